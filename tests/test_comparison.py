"""Does multi-task help? The figures behind the answer, the answer, and how it is shown."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

import numpy as np
import oracles
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from catalogue import data, rbf, scaled, task_matrix
from gpytorch.kernels import Kernel, MultitaskKernel, RBFKernel, ScaleKernel
from suites import close
from torch import Tensor

from mtbo_torch import (
    ExactMultiTaskGP,
    ICMKernel,
    IndependentKernel,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    compare_kernels,
)
from mtbo_torch.comparison import ComparedKernel, KernelComparison, _make_default_kernels
from mtbo_torch.models import learning

FAMILIES = ["ICM", "similarity", "sum of separable", "independent tasks"]


def draw(t: int, n: int, d: int, seed: int, shared: float) -> tuple[Tensor, Tensor]:
    """Functions from a GP, of whose variance a share is the same in all tasks, with noise."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float).double()  # noqa: E731
    X = torch.rand(t, d, generator=generator, dtype=torch.float).double()
    K = torch.exp(-torch.cdist(X, X).square() / (2 * 0.25**2)) + 1e-8 * torch.eye(t)
    F = torch.linalg.cholesky(K) @ normal(t, n + 1)
    return X, math.sqrt(1 - shared) * F[:, :n] + math.sqrt(shared) * F[:, n:] + 0.2 * normal(t, n)


@cache
def related() -> tuple[Tensor, Tensor, KernelComparison]:
    X, Y = draw(20, 2, 1, seed=0, shared=0.95)
    X, Y = 7 * X - 3, torch.tensor([50.0, -0.1]).double() * Y + torch.tensor([300.0, 0.0]).double()
    return X, Y, compare_kernels(X, Y)


def row_of(comparison: KernelComparison, name: str) -> ComparedKernel:
    (row,) = [row for row in comparison.rows if row.name == name]
    return row


def test_four_families_are_compared_best_first() -> None:
    _, _, comparison = related()
    assert sorted(row.name for row in comparison.rows) == sorted(FAMILIES)
    densities = [row.log_density for row in comparison.rows]
    assert densities == sorted(densities, reverse=True)
    assert comparison.best is comparison.rows[0]
    assert comparison.reference is row_of(comparison, "independent tasks")


def rbf_of(kernel: RBFKernel) -> oracles.Scalar:
    return oracles.rbf(kernel.lengthscale.item())


def separated(kernel: Kernel) -> list[tuple[oracles.Scalar, np.ndarray]]:
    """The terms of a fitted kernel of the four families, for the oracle."""
    if isinstance(kernel, SumOfSeparableKernel):
        return [term for part in kernel.kernels for term in separated(part)]
    if isinstance(kernel, IndependentKernel):
        units = np.eye(len(kernel.kernels))
        return [
            (rbf_of(part.base_kernel), part.outputscale.item() * np.diag(unit))
            for part, unit in zip(kernel.kernels, units, strict=True)
        ]
    if isinstance(kernel, TaskSimilarityKernel):
        omega, n = kernel.omega.item(), kernel.num_tasks
        B = kernel.base_kernel.outputscale.item() * (omega * np.eye(n) + (1 - omega) * np.ones((n, n)) / n)
        return [(rbf_of(kernel.base_kernel.base_kernel), B)]
    W = kernel.task_factor.detach().numpy()
    return [(rbf_of(kernel.base_kernel), W @ W.T)]


@pytest.mark.parametrize("name", FAMILIES)
def test_figures_are_those_of_the_definition(name: str) -> None:
    X, Y, comparison = related()
    row = row_of(comparison, name)
    mean, sd = Y.numpy().mean(axis=0), Y.numpy().std(axis=0, ddof=1)
    points = ((X - X.amin(dim=0)) / (X.amax(dim=0) - X.amin(dim=0))).numpy()
    inside = oracles.separable(*separated(row.model.covar_module))
    gamma = lambda x, y: np.outer(sd, sd) * inside(x, y)  # noqa: E731
    noise = row.model.noise.detach().numpy() * sd**2
    centered = Y.numpy() - mean
    means, covariances = oracles.leave_one_out(gamma, points, centered, noise)
    densities = [oracles._log_density(S, y - m) for S, y, m in zip(covariances, centered, means, strict=True)]
    close(row.log_densities, np.array(densities), 1e-8)
    assert row.log_density == pytest.approx(sum(densities), abs=1e-8)
    expected = oracles.log_likelihood(gamma, points, centered, noise)
    assert row.log_marginal_likelihood == pytest.approx(expected, abs=1e-8)


@cache
def gappy() -> tuple[Tensor, Tensor, KernelComparison]:
    """A row without values, one with a single value, and the second task at every other point."""
    X, Y, _ = related()
    Y = Y.clone()
    Y[3] = math.nan
    Y[::2, 1] = math.nan
    Y[5, 0] = math.nan
    return X, Y, compare_kernels(X, Y, allow_missing=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_figures_are_of_what_was_seen(name: str) -> None:
    X, Y, comparison = gappy()
    row = row_of(comparison, name)
    mean, sd = np.nanmean(Y.numpy(), axis=0), np.nanstd(Y.numpy(), axis=0, ddof=1)
    points = ((X - X.amin(dim=0)) / (X.amax(dim=0) - X.amin(dim=0))).numpy()
    inside = oracles.separable(*separated(row.model.covar_module))
    gamma = lambda x, y: np.outer(sd, sd) * inside(x, y)  # noqa: E731
    noise = row.model.noise.detach().numpy() * sd**2
    centered = Y.numpy() - mean
    means, covariances = oracles.leave_one_out(gamma, points, centered, noise)
    densities = []
    for y, m, S in zip(centered, means, covariances, strict=True):
        seen = [j for j in range(2) if not math.isnan(y[j])]
        densities.append(oracles._log_density(S[np.ix_(seen, seen)], (y - m)[seen]) if seen else math.nan)
    assert [i for i, density in enumerate(densities) if math.isnan(density)] == [3]
    assert row.log_densities.isnan().tolist() == [math.isnan(density) for density in densities]
    close(row.log_densities.nan_to_num(nan=0.0), np.nan_to_num(densities), 1e-8)
    assert row.log_density == pytest.approx(np.nansum(densities), abs=1e-8)
    likelihood = oracles.given_seen(gamma, points, centered, noise, points[:1])[-1]
    assert row.log_marginal_likelihood == pytest.approx(likelihood, abs=1e-8)
    assert "a standard error over 19 points" in str(comparison)


@pytest.mark.parametrize(("compared", "count"), [(related, 20), (gappy, 19)])
def test_differences_are_paired(compared: Callable[[], tuple[Tensor, Tensor, KernelComparison]], count: int) -> None:
    _, _, comparison = compared()
    for row in comparison.rows:
        pairs = zip(row.log_densities.tolist(), comparison.reference.log_densities.tolist(), strict=True)
        gaps = [a - b for a, b in pairs if not math.isnan(a)]
        average = sum(gaps) / count
        variance = sum((gap - average) ** 2 for gap in gaps) / (count - 1)
        assert row.difference == pytest.approx(sum(gaps), abs=1e-9)
        assert row.standard_error == pytest.approx(math.sqrt(count * variance), abs=1e-9)


def test_what_is_known_of_one_task_alone_is_compared_too() -> None:
    X, Y = draw(20, 2, 1, seed=0, shared=0.95)
    with_gaps = torch.where(torch.arange(20).unsqueeze(-1) % 2 == torch.arange(2), Y, math.nan)
    comparison = compare_kernels(X, with_gaps, allow_missing=True)
    assert comparison.best.name != "independent tasks"  # the other task is seen nearby
    assert comparison.best.difference > 2


def test_what_is_learned_is_counted() -> None:
    X, Y = draw(6, 3, 2, seed=0, shared=0.5)
    counts = {row.name: row.num_parameters for row in compare_kernels(X, Y).rows}
    # Two lengthscales for each kernel, scales, a symmetric task matrix, and the noise of each task.
    expected = {"ICM": 2 + 6 + 3, "similarity": 2 + 1 + 1 + 3, "independent tasks": 3 * 3 + 3}
    assert counts == expected | {"sum of separable": 2 + 3 + 3 * 3 + 3}


def test_models_are_ready_for_use_in_the_users_units() -> None:
    X, Y, comparison = related()
    for row in comparison.rows:
        assert isinstance(row.model, ExactMultiTaskGP)
        residual = (row.model.posterior(X).mean - Y) / Y.std(dim=0)
        assert residual.abs().mean() < 0.3
        grown = row.model.condition_on_observations(X[:1], Y[:1])
        assert grown.mean(X).shape == (20, 2)


@pytest.mark.slow
def test_units_move_all_densities_alike() -> None:
    X, Y = draw(12, 2, 1, seed=1, shared=0.9)
    plain, other = compare_kernels(X, Y), compare_kernels(1000 * X, 1e-3 * Y + 5)
    for row in plain.rows:
        moved = row_of(other, row.name)
        shift = 12 * 2 * math.log(1e3)
        assert moved.log_density == pytest.approx(row.log_density + shift, abs=0.1)  # fits end at a tolerance
        assert moved.log_marginal_likelihood == pytest.approx(row.log_marginal_likelihood + shift, abs=0.1)
        assert moved.difference == pytest.approx(row.difference, abs=0.1)


@pytest.mark.slow
def test_tasks_that_share_nearly_everything_gain() -> None:
    # One data set of this size is called clear about every second time; four together are.
    comparisons = [compare_kernels(*draw(40, 3, 2, seed, shared=0.95)) for seed in range(4)]
    assert all(comparison.best.name != "independent tasks" for comparison in comparisons)
    assert not any(comparison.verdict.startswith("Multi-task does not") for comparison in comparisons)
    rows = [row_of(comparison, "ICM") for comparison in comparisons]
    gain = sum(row.difference - 2 for row in rows)  # it has two parameters more
    assert gain > 2 * math.sqrt(sum(row.standard_error**2 for row in rows))


@pytest.mark.slow
def test_opposed_tasks_gain() -> None:
    X, Y = draw(40, 3, 2, seed=0, shared=0.95)
    Y[:, 1] *= -1
    comparison = compare_kernels(X, Y)
    # A similarity between all tasks is the wrong idea; signs are learned.
    assert {row.name for row in comparison.rows[:2]} == {"ICM", "sum of separable"}
    signs = row_of(comparison, "sum of separable").model.covar_module.kernels[0].task_factor.flatten().sign()
    assert signs[0] == -signs[1] == signs[2]


def test_signs_to_start_from_are_those_of_what_was_seen() -> None:
    X, Y = draw(20, 3, 1, seed=0, shared=0.95)
    Y[:, 1] *= -1
    Y[::2, 0], Y[::3, 2], Y[4] = math.nan, math.nan, math.nan
    signs = _make_default_kernels(X, Y)["sum of separable"].kernels[0].task_factor.flatten().sign()
    assert signs[0] == -signs[1] == signs[2]


@pytest.mark.slow
def test_unrelated_tasks_are_not_said_to_gain() -> None:
    verdicts = [compare_kernels(*draw(20, 2, 1, seed, shared=0.0)).verdict for seed in range(8)]
    # At two standard errors mistakes are to be expected: if one in twenty is, two of eight or more have 6 %.
    assert sum(verdict.startswith("Multi-task helps") for verdict in verdicts) <= 1


@pytest.mark.parametrize("shared", [1.0, 0.0])
def test_the_similarity_is_learned(shared: float) -> None:
    X, Y = draw(40, 3, 1, seed=0, shared=shared)
    kernel = TaskSimilarityKernel(ScaleKernel(RBFKernel()), num_tasks=3)
    comparison = compare_kernels(X, Y, {"similarity": kernel})
    omega = comparison.best.model.covar_module.omega.item()
    assert omega < 0.02 if shared else omega > 0.6
    assert kernel.omega.item() == 0.5  # a copy was fitted


def test_kernels_of_the_user_are_left_alone() -> None:
    X, Y = draw(8, 2, 1, seed=0, shared=0.9)
    kernels = {"first": ICMKernel(rbf(0.5), task_matrix(2)), "second": IndependentKernel([rbf(0.5), rbf(0.3)])}
    before = copy.deepcopy({name: kernel.state_dict() for name, kernel in kernels.items()})
    grads = [parameter.requires_grad for kernel in kernels.values() for parameter in kernel.parameters()]
    comparison = compare_kernels(X, Y, kernels)
    assert {row.name for row in comparison.rows} == {"first", "second"}
    for name, kernel in kernels.items():
        assert all(torch.equal(kernel.state_dict()[key], value) for key, value in before[name].items())
        assert row_of(comparison, name).model.covar_module is not kernel
    assert grads == [parameter.requires_grad for kernel in kernels.values() for parameter in kernel.parameters()]
    assert torch.equal(row_of(comparison, "first").model.covar_module.task_covar, task_matrix(2))


def test_a_list_is_named_by_classes_and_the_reference_is_the_independent_one() -> None:
    X, Y = draw(8, 2, 1, seed=0, shared=0.9)
    kernels = [
        ICMKernel(rbf(0.5), num_tasks=2),
        MultitaskKernel(rbf(0.5), num_tasks=2),
        TaskSimilarityKernel(scaled(rbf(0.5), 1.0), 2, omega=1.0),  # shares nothing
        SumOfSeparableKernel([ICMKernel(rbf(0.5), task_matrix(2))]),
    ]
    comparison = compare_kernels(X, Y, kernels)
    assert {row.name for row in comparison.rows} == {type(kernel).__name__ for kernel in kernels}
    assert comparison.reference.name == "TaskSimilarityKernel"
    comparison = compare_kernels(X, Y, kernels[:2])
    assert comparison.reference.name == "ICMKernel"
    assert "ulti-task" not in comparison.verdict.replace("MultitaskKernel", "")


def test_a_fit_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = draw(8, 2, 1, seed=0, shared=0.9)
    fit = learning.fit_gpytorch_mll

    def fail_for_similarity(mll: object, **options: object) -> object:
        if isinstance(mll.model.covar_module, TaskSimilarityKernel):
            raise ModelFittingError("on purpose")
        return fit(mll, **options)

    def fail(*args: object, **options: object) -> None:
        raise ModelFittingError("on purpose")

    monkeypatch.setattr(learning, "fit_gpytorch_mll", fail_for_similarity)
    with pytest.warns(UserWarning, match="'similarity' could not be fitted to 8 points and is omitted: on purpose"):
        comparison = compare_kernels(X, Y)
    assert sorted(row.name for row in comparison.rows) == sorted({*FAMILIES} - {"similarity"})
    monkeypatch.setattr(learning, "fit_gpytorch_mll", fail)
    with pytest.warns(UserWarning, match="omitted"), pytest.raises(ModelFittingError, match="None of the kernels"):
        compare_kernels(X, Y)


@pytest.mark.parametrize(
    "kind",
    [
        *("one task", "two points", "a constant task"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (
                *("one place", "float32", "tiny", "huge"),
                *("a task seen once", "a task never seen", "a value at each of two points"),
            )
        ),
    ],
)
def test_unusual_data(kind: str) -> None:
    X, Y = draw(8, 2, 1, seed=0, shared=0.9)
    if kind == "one task":
        Y = Y[:, :1]
    if kind == "two points":
        X, Y = X[:2], Y[:2]
    if kind == "one place":
        X = X[:1].expand(8, 1)
    if kind == "a constant task":
        Y[:, 1] = 3.0
    if kind == "float32":
        X, Y = X.float(), Y.float()
    if kind in ("tiny", "huge"):
        Y = Y * (1e-100 if kind == "tiny" else 1e100)
    if kind == "a task seen once":
        Y[1:, 1] = math.nan
    if kind == "a task never seen":
        Y[:, 1] = math.nan
    if kind == "a value at each of two points":
        Y[2:], Y[0, 0], Y[1, 1] = math.nan, math.nan, math.nan
    comparison = compare_kernels(X, Y, allow_missing=True)
    assert len(comparison.rows) == 4
    for row in comparison.rows:
        assert math.isfinite(row.log_density)
        assert math.isfinite(row.log_marginal_likelihood)
        assert row.model.mean(X).dtype == X.dtype
    if kind == "one task":
        assert comparison.verdict.startswith("No clear difference")
        assert max(abs(row.difference) for row in comparison.rows) < 0.5


MODELS = {
    "sharing": ExactMultiTaskGP(*data(3, 2, 1)[:2], ICMKernel(rbf(0.5), num_tasks=2)),
    "independent": ExactMultiTaskGP(*data(3, 2, 1)[:2], IndependentKernel([rbf(0.5), rbf(0.2)])),
}


def made(*rows: tuple[str, float, float, str], reference: int, counts: tuple[int, ...] = ()) -> KernelComparison:
    """Rows of a name, a difference, its standard error, and a kind of kernel; and their numbers of parameters."""
    compared = [
        ComparedKernel(name, difference - 100, difference, error, -150.0, count, torch.zeros(30), MODELS[kind])
        for (name, difference, error, kind), count in zip(rows, counts or [7] * len(rows), strict=True)
    ]
    return KernelComparison(tuple(compared), compared[reference])


A, R = ("A & <B>", 12.34, 3.1, "sharing"), ("apart", 0.0, 0.0, "independent")


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (
            made(A, ("worse", 1.0, 0.1, "sharing"), R, reference=2),
            "Multi-task helps: A & <B> is ahead of apart by 12.3 ± 3.1 in leave-one-out log density.",
        ),
        (
            made(("A", 12.3, 6.2, "sharing"), R, reference=1),
            "No clear difference: A is ahead of apart by 12.3 ± 6.2 in leave-one-out log density.",
        ),
        (
            made(("A", 3.9, 0.1, "sharing"), R, reference=1),
            "No clear difference: A is ahead of apart by 3.9 ± 0.1 in leave-one-out log density.",
        ),
        (
            made(R, ("A", -3.9, 0.1, "sharing"), reference=0),
            "No clear difference: A is behind apart by 3.9 ± 0.1 in leave-one-out log density.",
        ),
        (
            made(R, ("A", -9.0, 2.0, "sharing"), reference=0),
            "Multi-task does not help: A is behind apart by 9.0 ± 2.0 in leave-one-out log density.",
        ),
        (
            made(R, ("A", -9.0, 2.0, "sharing"), ("B", -19.0, 2.0, "sharing"), reference=0),
            "Multi-task does not help: A is behind apart by 9.0 ± 2.0 in leave-one-out log density.",
        ),
        (  # five parameters more would look better by five
            made(("A", 9.0, 2.5, "sharing"), R, reference=1, counts=(15, 10)),
            "No clear difference: A is ahead of apart by 9.0 ± 2.5 in leave-one-out log density, "
            "with 5 more parameters.",
        ),
        (
            made(("A", 11.0, 2.5, "sharing"), R, reference=1, counts=(15, 10)),
            "Multi-task helps: A is ahead of apart by 11.0 ± 2.5 in leave-one-out log density, with 5 more parameters.",
        ),
        (  # and no fewer of them make a kernel better than it is
            made(("A", 3.9, 0.1, "sharing"), R, reference=1, counts=(5, 10)),
            "No clear difference: A is ahead of apart by 3.9 ± 0.1 in leave-one-out log density.",
        ),
        (
            made(R, ("A", -9.0, 1.0, "sharing"), reference=0, counts=(16, 10)),
            "No clear difference: A is behind apart by 9.0 ± 1.0 in leave-one-out log density.",
        ),
        (
            made(R, ("A", -9.0, 1.0, "sharing"), reference=0, counts=(10, 16)),
            "Multi-task does not help: A is behind apart by 9.0 ± 1.0 in leave-one-out log density.",
        ),
        (
            made(("A", 12.0, 2.0, "sharing"), ("B", 11.0, 2.0, "sharing"), R, reference=2, counts=(30, 9, 9)),
            "Multi-task helps: B is ahead of apart by 11.0 ± 2.0 in leave-one-out log density.",
        ),
        (  # another independent kernel is no answer
            made(("smooth", 20.0, 2.0, "independent"), ("A", 9.0, 2.0, "sharing"), R, reference=2),
            "Multi-task helps: A is ahead of apart by 9.0 ± 2.0 in leave-one-out log density.",
        ),
        (
            made(("A", 9.0, 2.0, "sharing"), ("B", 0.0, 0.0, "sharing"), reference=1),
            "A clear difference: A is ahead of B by 9.0 ± 2.0 in leave-one-out log density.",
        ),
        (
            made(("smooth", 9.0, 2.0, "independent"), R, reference=1),
            "A clear difference: smooth is ahead of apart by 9.0 ± 2.0 in leave-one-out log density.",
        ),
        (made(A, reference=0), "Only A & <B> was compared."),
    ],
)
def test_verdicts(comparison: KernelComparison, verdict: str) -> None:
    assert comparison.verdict == verdict
    assert str(comparison).endswith(f"\n{verdict}")


def test_the_table_is_aligned() -> None:
    assert str(made(A, R, reference=1)) == (
        "kernel   leave-one-out     to apart  marginal likelihood  parameters\n"
        "--------------------------------------------------------------------\n"
        "A & <B>          -87.7  +12.3 ± 3.1               -150.0           7\n"
        "apart           -100.0                            -150.0           7\n"
        "\n"
        "Log densities in the units of train_Y; ± is a standard error over 30 points.\n"
        "Multi-task helps: A & <B> is ahead of apart by 12.3 ± 3.1 in leave-one-out log density."
    )


def test_the_table_in_jupyter() -> None:
    comparison = made(A, R, reference=1)
    page = ElementTree.fromstring(f"<div>{comparison._repr_html_()}</div>")
    table = page.find("table")
    assert [cell.text for cell in table.find("thead").iter("th")] == [
        "kernel",
        "leave-one-out",
        "to apart",
        "marginal likelihood",
        "parameters",
    ]
    rows = [[cell.text or "" for cell in row] for row in table.find("tbody")]
    assert rows == [["A & <B>", "-87.7", "+12.3 ± 3.1", "-150.0", "7"], ["apart", "-100.0", "", "-150.0", "7"]]
    assert page.findall("p")[-1].find("b").text == comparison.verdict


X, Y, _ = data(5, 3, 2)
KERNEL = ICMKernel(rbf(0.5), task_matrix(3))


def spoiled(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[-1, -1] = value
    return tensor


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare_kernels(X.tolist(), Y), "train_X should be a torch.Tensor"),
        (lambda: compare_kernels(X, Y.long()), "train_Y should have a floating-point"),
        (lambda: compare_kernels(X[:, 0], Y), "train_X should be"),
        (lambda: compare_kernels(X, Y[:, 0]), "train_Y should be"),
        (lambda: compare_kernels(X, Y[:4]), "train_Y should be"),
        (lambda: compare_kernels(X, Y.float()), "train_Y should have the dtype"),
        (lambda: compare_kernels(X[:1], Y[:1]), "train_X should be `t x d` with t >= 2 points"),
        (lambda: compare_kernels(X[:0], Y[:0]), "train_X should be `t x d` with t >= 2 points"),
        (lambda: compare_kernels(X.expand(2, 5, 2), Y.expand(2, 5, 3)), "train_X should be `t x d`"),
        (lambda: compare_kernels(spoiled(X, math.nan), Y), "train_X should contain finite"),
        (lambda: compare_kernels(X, spoiled(Y, math.nan)), "train_Y should contain finite .* Pass allow_missing=True"),
        (lambda: compare_kernels(X, spoiled(Y, math.inf), allow_missing=True), "train_Y should contain finite"),
        (
            lambda: compare_kernels(X, Y.masked_fill(torch.arange(5).unsqueeze(-1) > 0, math.nan), allow_missing=True),
            "train_Y should have values in at least two rows, got 1",
        ),
        (lambda: compare_kernels(X, spoiled(Y, math.inf)), "train_Y should contain finite"),
        (lambda: compare_kernels(X, Y, {}), "kernels should be a non-empty dict or list"),
        (lambda: compare_kernels(X, Y, []), "kernels should be a non-empty dict or list"),
        (lambda: compare_kernels(X, Y, KERNEL), "kernels should be a non-empty dict or list"),
        (lambda: compare_kernels(X, Y, "ICM"), "kernels should be a non-empty dict or list"),
        (lambda: compare_kernels(X, Y, {1: KERNEL}), "kernels should have names that are strings"),
        (lambda: compare_kernels(X, Y, [KERNEL, KERNEL]), "kernels should be told apart by their names"),
        (lambda: compare_kernels(X, Y, {"a": rbf(0.5)}), r"kernels\['a'\] should be a multi-task kernel"),
        (lambda: compare_kernels(X, Y, ["ICM"]), r"kernels\['str'\] should be a multi-task kernel"),
        (lambda: compare_kernels(X, Y[:, :2], {"a": KERNEL}), r"kernels\['a'\] should be for 2 tasks .* got 3"),
        (
            lambda: compare_kernels(X, Y, {"a": ICMKernel(rbf(0.5), task_matrix(3).expand(2, 3, 3))}),
            r"kernels\['a'\] should be one kernel, got the batch shape \(2,\)",
        ),
    ],
)
def test_refusals_say_what_is_wrong(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("t", "n"), [(2, 2), (3, 4), (4, 2), (6, 4)])
def test_few_points_get_no_verdict(t: int, n: int) -> None:
    X, Y = draw(t, n, 1, seed=0, shared=0.0)
    kernels = {"together": ICMKernel(RBFKernel(), num_tasks=n), "apart": IndependentKernel([RBFKernel()] * n)}
    assert compare_kernels(X, Y, kernels).verdict == f"{t} points of {n} tasks are too few to tell."


def test_few_values_get_no_verdict() -> None:
    X, Y = draw(8, 2, 1, seed=0, shared=0.0)
    kernels = {"together": ICMKernel(RBFKernel(), num_tasks=2), "apart": IndependentKernel([RBFKernel()] * 2)}
    Y[:6, 0] = math.nan
    verdict = compare_kernels(X, Y, kernels, allow_missing=True).verdict  # ten values, as at five points
    assert "too few" not in verdict
    Y[6, 0] = math.nan
    verdict = compare_kernels(X, Y, kernels, allow_missing=True).verdict
    assert verdict == "8 points of 2 tasks, with 7 values missing, are too few to tell."
    Y[6, 1] = math.nan
    verdict = compare_kernels(X, Y, kernels, allow_missing=True).verdict
    assert verdict == "7 points of 2 tasks, with 6 values missing, are too few to tell."
