"""Strategies that choose their kernel from the data."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ICMKernel
from mtbo_torch.checks import checksum
from mtbo_torch.kernels import TaskwiseKernel, candidate_kernels, default_kernel
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.strategies import ITKB, MOBO, learners
from mtbo_torch.strategies.kernelized import KernelStrategy
from mtbo_torch.strategies.learners import SMALLEST_LEAD, choose, weigh_scores

NAMES = ["shared", "shared, two scales", "own", "own, two scales"]
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def one_in_two(x: Tensor, seed: int = 1) -> Tensor:
    """The same function in both tasks, with much noise."""
    wave = (7 * x[..., :1]).sin() + x[..., 1:]
    return torch.cat([wave, -wave], dim=-1) + 0.4 * noise(*x.shape[:-1], 2, seed=seed)


def slow_and_fast(x: Tensor, seed: int = 1) -> Tensor:
    """A task that depends on the first input, and slowly, and one that depends on the second, and fast."""
    values = torch.cat([(2 * x[..., :1]).sin(), (14 * x[..., 1:]).sin()], dim=-1)
    return values + 0.02 * noise(*x.shape[:-1], 2, seed=seed)


def strategy(refit_every: int = 30, **options: Any) -> MTKB:
    return MTKB(2, bounds=BOX, refit_every=refit_every, num_restarts=2, raw_samples=16, **options)


def told(f: Callable[[Tensor], Tensor], t: int = 30, **options: Any) -> MTKB:
    chosen = strategy(refit_every=t, **options)
    x = draw(*chosen.batch_shape, t, 2)
    chosen.tell(x, f(x))
    return chosen


@pytest.mark.parametrize(("f", "expected"), [(one_in_two, "shared"), (slow_and_fast, "own")])
def test_the_data_choose(f: Callable[[Tensor], Tensor], expected: str) -> None:
    chosen = told(f)
    scores = chosen.kernel_scores
    best = next(iter(scores))
    assert best.startswith(expected)
    assert sorted(scores) == sorted(NAMES)
    others = [score for name, score in scores.items() if not name.startswith(expected)]
    assert scores[best] > max(others) + SMALLEST_LEAD
    assert isinstance(chosen.model.covar_module, ICMKernel if expected == "shared" else TaskwiseKernel)
    assert f"the kernel is {best!r} (scores: {best} {scores[best]:.1f}, " in repr(chosen)


def test_what_changes_slowly_and_fast_has_two_scales() -> None:
    x = torch.linspace(0, 1, 40, dtype=torch.double).unsqueeze(-1)
    slow, fast = (2 * x).sin(), (30 * x).sin()
    chosen = MTKB(2, bounds=BOX[:, :1], refit_every=40)
    chosen.tell(x, torch.cat([slow + 0.05 * fast, slow - 0.1 * fast], dim=-1) + 0.01 * noise(40, 2, seed=2))
    assert next(iter(chosen.kernel_scores)) == "shared, two scales"


def test_another_kernel_takes_over_only_with_a_lead() -> None:
    lead = SMALLEST_LEAD
    assert choose({"a": 0.0, "b": lead, "c": lead - 0.1}, "a") == "a"
    assert choose({"a": 0.0, "b": lead + 0.01, "c": lead + 0.1}, "a") == "c"
    assert choose({"a": 0.0, "b": lead}, "b") == "b"
    assert choose({"b": -5.0, "c": -9.0}, "a") == "b"  # the current one could not be learned
    assert choose({"a": math.nan}, "a") == "a"  # nothing to choose


def test_kernels_that_may_be_right_are_weighed() -> None:
    scores = torch.tensor([[-3.0, 0.0, 0.0], [-3.0 + math.log(3), math.nan, -3.0], [-20.0, -1.0, -4.0]])
    first, second = math.e / (1 + math.e), 1 / (1 + math.exp(-3.0))  # of two, the third below 2 %
    expected = torch.tensor([[0.25, first, second], [0.75, 0.0, 1 - second], [0.0, 1 - first, 0.0]])
    close(weigh_scores(scores), expected, 1e-6)
    assert torch.equal(weigh_scores(scores) == 0, expected == 0)


def naive_score(name: str, kernel: Any, eta: list[float], X: Tensor, Y: Tensor) -> float:
    """The log density of what was seen, less the parameters, one pair of values after the other."""
    (t, d), n = X.shape, Y.shape[-1]

    def rbf(part: Any, x: np.ndarray, y: np.ndarray, task: int | None) -> float:
        scales = part.lengthscale.detach().numpy()
        scales = scales[0] if task is None else scales[task, 0]
        return math.exp(-sum(((x - y) / scales) ** 2) / 2)

    def scale(part: Any, task: int | None) -> float:
        return part.outputscale.item() if task is None else part.outputscale[task].item()

    def scalar(x: np.ndarray, y: np.ndarray, task: int | None) -> float:
        base = kernel.base_kernel
        if name == "shared":
            return rbf(base, x, y, task)
        if name == "own":
            return scale(base, task) * rbf(base.base_kernel, x, y, task)
        slow, fast = base.kernels
        rest = scale(fast, task) * rbf(fast.base_kernel, x, y, task)
        return rest + (rbf(slow, x, y, task) if task is None else scale(slow, task) * rbf(slow.base_kernel, x, y, task))

    is_shared = name.startswith("shared")
    B = (kernel.task_factor @ kernel.task_factor.mT).detach().numpy() if is_shared else np.eye(n)
    seen = [(i, a) for i in range(t) for a in range(n) if not math.isnan(Y[i, a])]
    points, C = X.numpy(), np.zeros((len(seen), len(seen)))
    for r, (i, a) in enumerate(seen):
        for s, (j, b) in enumerate(seen):
            C[r, s] = B[a, b] * scalar(points[i], points[j], None if is_shared else a) + eta[a] * (r == s)
    y = np.array([Y[i, a].item() for i, a in seen])
    density = -(y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + len(y) * math.log(2 * math.pi)) / 2
    sets = 2 if name.endswith("two scales") else 1
    parameters = sets * d + (sets - 1) + n * (n + 1) // 2 if is_shared else sets * n * (d + 1)
    return density - parameters - n  # and the noises


def with_gaps(x: Tensor) -> Tensor:
    y = slow_and_fast(x)
    y[..., ::3, 1] = torch.nan
    return y


@pytest.mark.parametrize(
    ("is_complete", "seed"), [(True, 0), (False, [0, 1])], ids=["complete, one trial", "with gaps, two trials"]
)
def test_the_score_is_the_likelihood_less_the_parameters(is_complete: bool, seed: Any) -> None:
    chosen = strategy(refit_every=9, seed=seed)
    x = draw(*chosen.batch_shape, 9, 2)
    y = slow_and_fast(x) if is_complete else with_gaps(x)
    chosen.tell(x, y, allow_missing=not is_complete)
    units = chosen._surrogate.units
    X, Y = units.scale_points(x), units.scale_values(y)
    for name, score in chosen.kernel_scores.items():
        one = chosen._known.candidates[name]
        if chosen.batch_shape:
            trials = range(2)
            expected = [naive_score(name, one.kernel[i], one.noise[i].tolist(), X[i], Y[i]) for i in trials]
        else:
            expected = [naive_score(name, one.kernel, one.noise.tolist(), X, Y)]
        close(torch.tensor(score), torch.tensor(np.mean(expected)), 1e-6)
    assert len(chosen.kernel_scores) == 4


@pytest.mark.slow
def test_a_batch_chooses_once_by_the_mean_score() -> None:
    chosen = strategy(refit_every=20, seed=[0, 1])
    x = draw(2, 20, 2)
    chosen.tell(x, torch.stack([one_in_two(x[0]), slow_and_fast(x[1])]))
    alone = [strategy(refit_every=20) for _ in range(2)]
    alone[0].tell(x[0], one_in_two(x[0]))
    alone[1].tell(x[1], slow_and_fast(x[1]))
    first, second = (one.kernel_scores for one in alone)
    assert next(iter(first)).startswith("shared")
    assert next(iter(second)).startswith("own")
    for name, score in chosen.kernel_scores.items():
        assert abs(score - (first[name] + second[name]) / 2) < 0.2  # to the tolerance of the fits
    assert next(iter(chosen.kernel_scores)) == max(chosen.kernel_scores, key=chosen.kernel_scores.__getitem__)
    assert chosen.ask().shape == (2, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("f", "seed"), [(one_in_two, 0), (with_gaps, [0, 1])])
def test_saving_continues_bit_for_bit(f: Callable[[Tensor], Tensor], seed: Any) -> None:
    def run(chosen: MTKB, rounds: int) -> MTKB:
        for _ in range(rounds):
            x = chosen.ask()
            chosen.tell(x, slow_and_fast(x))
        return chosen

    chosen = strategy(refit_every=3, seed=seed)
    x = draw(*chosen.batch_shape, 12, 2)
    chosen.tell(x, f(x), allow_missing=True)
    file = io.BytesIO()
    torch.save(run(chosen, 1).state_dict(), file)
    file.seek(0)
    resumed = strategy(refit_every=3, seed=[7, 8] if isinstance(seed, list) else 7)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.kernel_scores == chosen.kernel_scores
    assert list(resumed.kernel_scores) == list(chosen.kernel_scores)
    run(chosen, 3)  # with a refit
    run(resumed, 3)
    assert torch.equal(resumed.train_X, chosen.train_X)
    assert resumed.kernel_scores == chosen.kernel_scores


def test_a_state_with_an_unknown_kernel_is_refused() -> None:
    chosen = told(slow_and_fast, 8)
    state = chosen.state_dict()
    state["memory"]["chosen"] = "another"
    state["checksum"] = checksum({key: value for key, value in state.items() if key != "checksum"})
    with pytest.raises(ValueError, match="a kernel called 'another'"):
        strategy(refit_every=8).load_state_dict(state)


@pytest.mark.slow
def test_a_kernel_that_cannot_be_learned_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = learners.learn_kernel

    def fail_on_own(model: MultiTaskGPModel) -> None:
        if isinstance(model.covar_module, TaskwiseKernel):
            raise ModelFittingError("on purpose")
        learn(model)

    chosen = told(slow_and_fast, 12)
    assert next(iter(chosen.kernel_scores)).startswith("own")
    monkeypatch.setattr(learners, "learn_kernel", fail_on_own)
    x = draw(12, 2, seed=5)
    chosen.tell(x, slow_and_fast(x))
    assert next(iter(chosen.kernel_scores)).startswith("shared")
    assert sorted(chosen.kernel_scores) == NAMES[:2]
    monkeypatch.undo()
    x = draw(12, 2, seed=6)
    chosen.tell(x, slow_and_fast(x))
    assert next(iter(chosen.kernel_scores)).startswith("own")


def test_a_kernel_that_is_given_is_not_exchanged() -> None:
    given = MTKB(default_kernel(2, 2), bounds=BOX, refit_every=12)
    x = draw(12, 2)
    given.tell(x, slow_and_fast(x))
    assert given.kernel_scores == {}
    assert isinstance(given.model.covar_module, ICMKernel)
    assert "kernel" not in repr(given)


@pytest.mark.parametrize("kind", [MTBKB, ITKB, MOBO])
def test_others_have_nothing_to_choose(kind: type[KernelStrategy]) -> None:
    chosen = kind(2, bounds=BOX, refit_every=12)
    x = draw(12, 2)
    chosen.tell(x, slow_and_fast(x))
    assert chosen.kernel_scores == {}
    assert isinstance(chosen.model.covar_module, ICMKernel)


def test_one_task_has_nothing_to_share() -> None:
    assert list(candidate_kernels(1, 2)) == NAMES[:2]
    chosen = MTKB(1, bounds=BOX, refit_every=10)
    x = draw(10, 2)
    chosen.tell(x, slow_and_fast(x)[:, 1:])
    assert sorted(chosen.kernel_scores) == NAMES[:2]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_every_lengthscale_has_the_prior_of_botorch(batch: tuple[int, ...]) -> None:
    expected = default_kernel(2, 4).base_kernel.lengthscale_prior
    for name, kernel in candidate_kernels(2, 4, torch.Size(batch)).items():
        parts = [part for part in kernel.modules() if getattr(part, "has_lengthscale", False)]
        assert len(parts) == (2 if "two" in name else 1)
        for part in parts:
            assert (part.lengthscale_prior.loc, part.lengthscale_prior.scale) == (expected.loc, expected.scale)
            assert part.lengthscale.shape == (*batch, *((2,) if "own" in name else ()), 1, 4)
        assert kernel.batch_shape == batch
        assert kernel(draw(5, 4)).shape == (*batch, 10, 10)


def test_single_precision() -> None:
    chosen = MTKB(2, bounds=BOX.float(), refit_every=20)
    x = draw(20, 2)
    chosen.tell(x.float(), slow_and_fast(x).float())
    assert next(iter(chosen.kernel_scores)).startswith("own")
    assert chosen.ask().dtype == torch.float
