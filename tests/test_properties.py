r"""What holds for every kernel, every data set and every scale, on examples that hypothesis draws.

Tolerances are what rounding can do. Let :math:`A = I + G_t / \eta` have N rows, entries that are known to a relative
:math:`\delta`, and the condition number :math:`\kappa \le 1 + \|G_t\| / \eta`. To first order,

.. math::

    |d\Gamma_t| \le N \delta \kappa \|\Gamma\|, \quad
    |d\mu_t| \le N \delta \kappa (\|\Gamma\| / \eta)^{1/2} \|Y\|, \quad
    \delta = c \epsilon (1 + R^2)

with R the radius of the points in lengthscales: GPyTorch's squared distances are rounded in units of its square. Where
:math:`N \delta \kappa` exceeds one nothing is compared, but everything is still finite and no variance negative, or the
package refuses with an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import mpmath
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.settings import min_variance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    IndependentKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
)
from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.linalg import NotPositiveDefiniteError
from mtbo_torch.models import MultiTaskGPModel

pytestmark = pytest.mark.filterwarnings("ignore:Negative variance values detected")

settings.register_profile(
    "same_in_every_run",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("same_in_every_run")

# c. Task matrices that commute up to 1000 eps are taken to commute.
CONSTANT, CONSTANT_OF_SUMS = 30.0, 1000.0
# Eigenvalues of a dictionary below this share of the largest are left out of its span.
DICTIONARY_CUTOFF = 1e-10
KINDS = ("icm", "similarity", "commuting", "general", "independent")
LAYOUTS = ("random", "duplicated", "collinear", "near", "equal")


@dataclass(frozen=True)
class Drawn:
    """A problem: a kernel as its terms, data, and points to ask at."""

    kind: str
    rank: int
    omega: float
    layout: str
    t: int
    n: int
    d: int
    seed: int
    input_scale: float
    lengthscale: float
    value_scale: float
    task_scale: float
    eta: float
    missing: float
    dtype: torch.dtype = torch.double

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def base(self, which: int) -> Kernel:
        base = RBFKernel() if which == 0 else MaternKernel(nu=2.5)
        base = base.double()
        base.lengthscale = torch.tensor((1.0, 1.5)[which % 2] * self.lengthscale, dtype=torch.double)
        return base

    def task_matrix(self, which: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * (which + 1) + self.seed)
        A = torch.randn(self.n, self.n, generator=generator, dtype=torch.double)
        A = A[:, : self.rank] if self.rank else 1e-8 * A[:, :1]  # rank 0: as good as nothing
        B = A @ A.T / self.n
        B = B / torch.linalg.matrix_norm(B, 2) if self.rank else B
        return self.task_scale * (B + B.T) / 2

    @property
    def terms(self) -> list[tuple[int, Tensor]]:
        """Which scalar kernel, and its task matrix."""
        if self.kind == "icm":
            return [(0, self.task_matrix(0))]
        if self.kind == "similarity":
            eye = torch.eye(self.n, dtype=torch.double)
            return [(0, self.omega * eye + (1 - self.omega) / self.n)]
        if self.kind == "commuting":
            B = self.task_matrix(0)
            square = B @ B / torch.linalg.matrix_norm(B, 2)
            return [(0, B), (1, (square + square.T) / 2)]
        if self.kind == "general":
            return [(0, self.task_matrix(0)), (1, self.task_matrix(1))]
        return [(j % 2, self.task_scale * torch.diag(unit)) for j, unit in enumerate(torch.eye(self.n).double())]

    @property
    def kernel(self) -> MultiTaskKernel:
        return self.kernel_of_tasks(list(range(self.n)))

    def kernel_of_tasks(self, order: list[int]) -> MultiTaskKernel:
        """With the tasks in another order."""
        if self.kind == "similarity":
            return TaskSimilarityKernel(self.base(0), self.n, self.omega)
        if self.kind == "independent":
            kernels = [ScaleKernel(self.base(j % 2)).double() for j in order]
            for kernel in kernels:
                kernel.outputscale = torch.tensor(self.task_scale, dtype=torch.double)
            return IndependentKernel(kernels)
        parts = [ICMKernel(self.base(which), B[order][:, order]) for which, B in self.terms]
        return parts[0] if len(parts) == 1 else SumOfSeparableKernel(parts)

    def points(self, count: int, salt: int = 0) -> Tensor:
        """On a dyadic grid, so that exact shifts exist."""
        generator = torch.Generator().manual_seed(self.seed + 7919 * (salt + 1))
        X = 2 * torch.rand(count, self.d, generator=generator, dtype=torch.double) - 1
        if self.layout == "duplicated" and count > 1:
            X = X[torch.randint((count + 1) // 2, (count,), generator=generator)]
        elif self.layout == "collinear":
            X = X[:, :1].expand(-1, self.d)
        elif self.layout == "near":
            X = X[:1] + 1e-6 * X
        elif self.layout == "equal":
            X = X[:1].expand(count, -1) if count else X
        return ((X * 2**24).round() / 2**24 * self.input_scale).to(self.dtype)

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """Training points, values, and points to ask at: new ones, and those observed."""
        X = self.points(self.t)
        Y = self.value_scale * torch.randn(self.t, self.n, generator=self.generator, dtype=torch.double)
        if self.missing:
            Y[torch.rand(Y.shape, generator=self.generator) < self.missing] = torch.nan
        return X, Y.to(self.dtype), torch.cat([self.points(3, salt=1), X[:2]])

    @property
    def prior(self) -> float:
        """The norm of the prior covariance, at every point."""
        return float(torch.linalg.matrix_norm(torch.stack([B for _, B in self.terms]).sum(0), 2))

    @property
    def rounding(self) -> float:
        """N delta."""
        radius = math.sqrt(self.d) * self.input_scale / self.lengthscale
        constant = CONSTANT_OF_SUMS if self.kind in ("commuting", "general") else CONSTANT
        return constant * max(self.t * self.n, 1) * torch.finfo(self.dtype).eps * (1 + radius**2)

    @property
    def condition(self) -> float:
        """kappa, by the trace."""
        return 1 + max(self.t, 1) * self.prior / self.eta

    @property
    def slack(self) -> float:
        """How far covariances may be off, relative to the prior's."""
        return self.rounding * self.condition

    @property
    def mean_slack(self) -> float:
        """How far means may be off."""
        size = self.value_scale * 5 * math.sqrt(max(self.t * self.n, 1))
        return self.slack * math.sqrt(self.prior / self.eta) * size

    @property
    def nystrom_slack(self) -> float:
        # What is cut off from the span, and what a residual that is negative by rounding is raised by.
        return self.slack + self.condition * DICTIONARY_CUTOFF + self.rounding / DICTIONARY_CUTOFF

    @property
    def is_promised(self) -> bool:
        """Whether there is anything to compare."""
        return self.slack < 1


scales = st.one_of(st.just(0), st.integers(-6, 6)).map(lambda exponent: 10.0**exponent)


@st.composite
def problems(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = KINDS,
    smallest: int = 0,
    missing: bool = False,
    dtype: torch.dtype = torch.double,
    largest: tuple[int, int] = (7, 4),
) -> Drawn:
    n = draw(st.integers(1, largest[1]))
    # A power of two, so that points and shifts of them are exact.
    input_scale = 2.0 ** round(math.log2(draw(scales)))
    return Drawn(
        kind=draw(st.sampled_from(kinds)),
        rank=draw(st.integers(0, n)),
        omega=draw(st.sampled_from([0.4, 0.0, 1.0, 1e-9])),
        layout=draw(st.sampled_from(LAYOUTS)),
        t=draw(st.integers(smallest, largest[0])),
        n=n,
        d=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
        input_scale=input_scale,
        lengthscale=draw(st.sampled_from([input_scale, 0.3 * input_scale, 1.0])),
        value_scale=draw(scales),
        task_scale=draw(scales),
        eta=draw(scales),
        missing=draw(st.sampled_from([0.0, 0.2, 0.5, 0.9] if missing else [0.0])),
        dtype=dtype,
    )


def exact(problem: Drawn, X: Tensor, Y: Tensor, kernel: MultiTaskKernel | None = None) -> ExactMultiTaskGP:
    kernel = problem.kernel if kernel is None else kernel
    return ExactMultiTaskGP(X, Y, covar_module=kernel, eta=problem.eta, allow_missing=problem.missing > 0)


def nystrom(
    problem: Drawn, X: Tensor, Y: Tensor, kernel: MultiTaskKernel | None = None, dictionary: Tensor | None = None
) -> NystromMultiTaskGP:
    """By default on every other point."""
    kernel = problem.kernel if kernel is None else kernel
    if dictionary is None and X.shape[-2]:
        dictionary = torch.arange(0, X.shape[-2], 2)
    return NystromMultiTaskGP(X, Y, covar_module=kernel, eta=problem.eta, dictionary=dictionary)


Build = Callable[..., MultiTaskGPModel]
MODELS = [exact, nystrom]


def slack_of(problem: Drawn, build: Build) -> float:
    return problem.slack if build is exact else problem.nystrom_slack


def or_refused(problem: Drawn, error: NotPositiveDefiniteError) -> None:
    """A refusal is right only where rounding has eaten up the noise, and says what to do."""
    assert problem.slack > 1, error
    assert "Use" in str(error)


def within(actual: Tensor, expected: Tensor, slack: float) -> None:
    assert actual.shape == expected.shape
    assert actual.isfinite().all()
    worst = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0.0
    assert worst <= slack, f"{worst:.3g} > {slack:.3g}"


def smallest_eigenvalue(matrix: Tensor) -> float:
    matrix = matrix.double()
    return torch.linalg.eigvalsh((matrix + matrix.mT) / 2).min().item()


def check_answers(problem: Drawn, model: MultiTaskGPModel, Z: Tensor, slack: float) -> None:
    """Everything a model says is finite and of the right sign, and fits together up to rounding."""
    # A task matrix below this share of the noise is taken to be that, so that its reciprocal is finite.
    slack = slack * problem.prior + torch.finfo(problem.dtype).tiny ** 0.5 * problem.eta
    mean, covariance, norm = model.mean(Z), model.covariance(Z), model.covariance_norm(Z)
    variance = model.at(Z).variance()
    posterior = model.posterior(Z)
    joint = posterior.distribution.covariance_matrix
    gain = model.info_gain
    for answer in (
        mean,
        covariance,
        norm,
        variance,
        posterior.variance,
        joint,
        gain,
        model.surrogate.regression.mean_norm,
    ):
        assert answer.isfinite().all()
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    for answer in (norm, variance, diagonal, posterior.variance, joint.diagonal(dim1=-2, dim2=-1), gain):
        assert (answer >= 0).all(), answer.min()
    assert (variance <= problem.prior + slack).all()
    within(covariance, covariance.mT, 0 if slack == 0 else min(slack, problem.rounding * problem.prior))
    if slack < problem.prior:
        assert (norm >= diagonal.amax(dim=-1) - slack).all()
        assert smallest_eigenvalue(covariance) >= -slack
        assert smallest_eigenvalue(joint) >= -slack * len(Z)
        within(diagonal, variance, slack)
        floor = min_variance.value(variance.dtype)  # below, GPyTorch raises the variance, with a warning
        within(posterior.variance.reshape(variance.shape), variance.clamp_min(floor), slack)
        within(joint, joint.mT, slack)
    followed = model.surrogate.regression.track(Z)
    assert (followed.norm >= 0).all()
    assert (followed.variance() >= 0).all()


def check_bounds(problem: Drawn, model: MultiTaskGPModel, Z: Tensor, slack: float) -> None:
    """Both bounds and their gradients are finite, and the ellipsoid's is never above the norm's."""
    weights = torch.linspace(1, 2, problem.n, dtype=problem.dtype)
    radius = 3.0
    # A root of what is known to s is known to the root of s.
    slack = float(weights.norm()) * radius * math.sqrt(slack * problem.prior)
    for scalarization in (LinearScalarization(weights), ChebyshevScalarization(weights)):
        values = {}
        for bound in ("norm", "ellipsoid"):
            points = Z.unsqueeze(-2).clone().requires_grad_()
            value = ScalarizedMultiTaskUCB(model, scalarization, radius, bound=bound)(points)
            (gradient,) = torch.autograd.grad(value.sum(), points)
            assert value.isfinite().all()
            assert gradient.isfinite().all()
            values[bound] = value.detach()
        if problem.is_promised:
            size = values["norm"].abs() * 1e3 * torch.finfo(problem.dtype).eps
            assert (values["ellipsoid"] <= values["norm"] + slack + size).all()


def same_answers(
    problem: Drawn, model: MultiTaskGPModel, other: MultiTaskGPModel, Z: Tensor, other_Z: Tensor, slack: float
) -> None:
    """Two models say the same at points that correspond to each other, each up to its rounding."""
    if slack >= 1:
        return
    ratio = slack / problem.slack
    within(model.mean(Z), other.mean(other_Z), 2 * ratio * problem.mean_slack)
    within(model.covariance(Z), other.covariance(other_Z), 2 * slack * problem.prior)
    within(model.covariance_norm(Z), other.covariance_norm(other_Z), 2 * slack * problem.prior)
    within(model.at(Z).variance(), other.at(other_Z).variance(), 2 * slack * problem.prior)


def check_all(problem: Drawn, build: Build, slack: float) -> None:
    X, Y, Z = problem.data
    try:
        model = build(problem, X, Y)
        check_answers(problem, model, Z, slack)
        check_bounds(problem, model, Z, slack)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.parametrize("build", MODELS)
@given(problems())
def test_answers_are_finite_and_fit_together(build: Build, problem: Drawn) -> None:
    check_all(problem, build, slack_of(problem, build))


@given(problems(missing=True))
def test_answers_with_missing_values(problem: Drawn) -> None:
    check_all(problem, exact, problem.slack)


@pytest.mark.parametrize("build", MODELS)
@given(problems(dtype=torch.float))
def test_answers_in_single_precision(build: Build, problem: Drawn) -> None:
    check_all(problem, build, slack_of(problem, build))


@settings(max_examples=10)
@given(problems(largest=(4, 3)))
def test_the_truth_to_forty_digits(problem: Drawn) -> None:
    X, Y, Z = problem.data
    try:
        model = exact(problem, X, Y)
        mean, covariance = model.mean(Z), model.covariance(Z)
    except NotPositiveDefiniteError as error:
        return or_refused(problem, error)
    if problem.is_promised:
        true_mean, true_covariance = in_forty_digits(problem, X, Y, Z)
        within(mean, true_mean, problem.mean_slack)
        within(covariance, true_covariance, problem.slack * problem.prior)


def in_forty_digits(problem: Drawn, X: Tensor, Y: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at each point, by the paper's formulae and Gaussian elimination."""
    terms = [(which, problem.base(which).lengthscale.item(), B.tolist()) for which, B in problem.terms]

    def scalar(which: int, lengthscale: float, x: list[float], y: list[float]) -> mpmath.mpf:
        square = mpmath.fsum((mpmath.mpf(a) - b) ** 2 for a, b in zip(x, y, strict=True)) / mpmath.mpf(lengthscale) ** 2
        if which == 0:
            return mpmath.exp(-square / 2)
        r = mpmath.sqrt(5 * square)
        return (1 + r + r**2 / 3) * mpmath.exp(-r)

    def gram(first: Tensor, second: Tensor) -> mpmath.matrix:
        n, result = problem.n, mpmath.matrix(problem.n * len(first), problem.n * len(second))
        for i, x in enumerate(first.tolist()):
            for j, y in enumerate(second.tolist()):
                values = [scalar(which, lengthscale, x, y) for which, lengthscale, _ in terms]
                for a in range(n):
                    for b in range(n):
                        entries = [k * B[a][b] for k, (_, _, B) in zip(values, terms, strict=True)]
                        result[n * i + a, n * j + b] = mpmath.fsum(entries)
        return result

    with mpmath.workdps(40):
        n, q = problem.n, len(Z)
        mean, covariance = torch.zeros(q, n, dtype=torch.double), torch.zeros(q, n, n, dtype=torch.double)
        if len(X):
            inverse = (gram(X, X) + mpmath.mpf(problem.eta) * mpmath.eye(n * len(X))) ** -1
            y = mpmath.matrix(Y.flatten().tolist())
        for i in range(q):
            x = Z[i : i + 1]
            block = gram(x, x)
            if len(X):
                cross = gram(X, x)
                mean[i] = mean.new_tensor([float(value) for value in cross.T * (inverse * y)])
                block = block - cross.T * inverse * cross
            covariance[i] = mean.new_tensor([float(block[a, b]) for a in range(n) for b in range(n)]).reshape(n, n)
    return mean, covariance


@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True, smallest=1), st.integers(1, 3))
def test_more_data_never_raise_the_variance(build: Build, problem: Drawn, count: int) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    known = min(count, problem.t)
    try:
        before = build(problem, X[:known], Y[:known])
        after = before.condition_on_observations(X[known:], Y[known:]) if known < problem.t else before
        check_answers(problem, after, Z, slack)
        if slack < 1:
            lost = before.covariance(Z) - after.covariance(Z)
            assert smallest_eigenvalue(lost) >= -2 * slack * problem.prior
            assert (after.covariance_norm(Z) <= before.covariance_norm(Z) + 2 * slack * problem.prior).all()
            assert after.info_gain >= before.info_gain - 2 * slack * problem.t * problem.n
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True, smallest=2), st.booleans())
def test_appended_is_fitted(build: Build, problem: Drawn, one_by_one: bool) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    known = problem.t // 2
    more = {} if build is exact else {"dictionary": torch.arange(known)}
    try:
        appended = build(problem, X[:known], Y[:known], **more)
        step = 1 if one_by_one else problem.t
        for start in range(known, problem.t, step):
            appended = appended.condition_on_observations(X[start : start + step], Y[start : start + step])
        check_answers(problem, appended, Z, slack)
        fitted = build(problem, X, Y, **more)
        same_answers(problem, appended, fitted, Z, Z, slack)
        if slack < 1 and build is exact:
            within(appended.info_gain, fitted.info_gain, 2 * slack * problem.t * problem.n)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True, smallest=1), st.randoms(use_true_random=False))
def test_the_order_of_the_data_does_not_matter(build: Build, problem: Drawn, random: Random) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    X, Y, Z = problem.data
    order = random.sample(range(problem.t), problem.t)
    more = {} if build is exact else {"dictionary": torch.tensor([order.index(i) for i in range(0, problem.t, 2)])}
    try:
        model, other = build(problem, X, Y), build(problem, X[order], Y[order], **more)
        same_answers(problem, model, other, Z, Z, slack_of(problem, build))
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True), st.randoms(use_true_random=False))
def test_permuted_tasks_permute_the_answers(build: Build, problem: Drawn, random: Random) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    order = random.sample(range(problem.n), problem.n)
    try:
        model, other = build(problem, X, Y), build(problem, X, Y[:, order], problem.kernel_of_tasks(order))
        if slack < 1:
            ratio = slack / problem.slack
            within(other.mean(Z), model.mean(Z)[:, order], 2 * ratio * problem.mean_slack)
            within(other.covariance(Z), model.covariance(Z)[:, order][:, :, order], 2 * slack * problem.prior)
            within(other.covariance_norm(Z), model.covariance_norm(Z), 2 * slack * problem.prior)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True), scales, st.sampled_from([-1, 1]))
def test_scaled_values_scale_the_mean_alone(build: Build, problem: Drawn, scale: float, sign: int) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    factor = sign * scale
    try:
        model, other = build(problem, X, Y), build(problem, X, factor * Y)
        assert torch.equal(model.covariance(Z), other.covariance(Z))
        assert torch.equal(model.covariance_norm(Z), other.covariance_norm(Z))
        if slack < 1:
            allowed = slack / problem.slack * problem.mean_slack * abs(factor)
            within(other.mean(Z), factor * model.mean(Z), 2 * allowed)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True), st.integers(-1000, 1000))
def test_shifted_inputs_change_nothing(build: Build, problem: Drawn, steps: int) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    X, Y, Z = problem.data
    shift = steps * problem.input_scale
    assert torch.equal(X + shift - shift, X)
    try:
        model, other = build(problem, X, Y), build(problem, X + shift, Y)
        same_answers(problem, model, other, Z, Z + shift, slack_of(problem, build))
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True))
def test_scaled_kernel_and_noise_scale_the_covariance_alone(build: Build, problem: Drawn) -> None:
    problem = replace(problem, kind="icm", missing=problem.missing if build is exact else 0.0)
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    scaled = replace(problem, task_scale=2**20 * problem.task_scale, eta=2**20 * problem.eta)
    try:
        model, other = build(problem, X, Y), build(scaled, X, Y)
        if slack < 1:
            within(other.mean(Z), model.mean(Z), 2 * slack / problem.slack * problem.mean_slack)
            within(other.covariance(Z) / 2**20, model.covariance(Z), 2 * slack * problem.prior)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.parametrize("build", MODELS)
@given(problems(missing=True))
def test_a_batch_is_its_members(build: Build, problem: Drawn) -> None:
    problem = problem if build is exact else replace(problem, missing=0.0)
    slack = slack_of(problem, build)
    members = [replace(problem, seed=problem.seed + i) for i in range(4)]
    X, Y, Z = (torch.stack(parts).unflatten(0, (2, 2)) for parts in zip(*[m.data for m in members], strict=True))
    kernel = problem.kernel
    if problem.kind == "icm":  # each with a B of its own
        kernel = ICMKernel(problem.base(0), torch.stack([m.task_matrix(0) for m in members]).unflatten(0, (2, 2)))
    try:
        together = build(problem, X, Y, kernel)
        answers = [together.mean(Z), together.covariance(Z), together.covariance_norm(Z)]
        many = together.covariance_norm(torch.stack([Z, Z, Z]))
        assert all(answer.isfinite().all() for answer in (*answers, many, together.info_gain))
        if slack >= 1:
            return
        within(many, answers[2].expand_as(many), 2 * slack * problem.prior)
        for i, member in enumerate(members):
            own_X, own_Y, own_Z = member.data
            alone = build(problem, own_X, own_Y, member.kernel if problem.kind == "icm" else kernel)
            mean, covariance, norm = (answer[i // 2, i % 2] for answer in answers)
            within(mean, alone.mean(own_Z), 2 * slack / problem.slack * problem.mean_slack)
            within(covariance, alone.covariance(own_Z), 2 * slack * problem.prior)
            within(norm, alone.covariance_norm(own_Z), 2 * slack * problem.prior)
            gain_slack = 2 * slack * max(problem.t, 1) * problem.n
            within(together.info_gain[i // 2, i % 2], alone.info_gain, gain_slack * problem.condition)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@given(problems())
def test_leave_one_out_of_one_is_the_prior(problem: Drawn) -> None:
    problem = replace(problem, t=1)
    X, Y, _ = problem.data
    try:
        mean, covariance = exact(problem, X, Y).leave_one_out()
    except NotPositiveDefiniteError as error:
        return or_refused(problem, error)
    prior = sum(B for _, B in problem.terms) + problem.eta * torch.eye(problem.n, dtype=torch.double)
    within(mean[0], torch.zeros_like(mean[0]), problem.slack * Y.abs().max().item())
    within(covariance[0], prior, problem.slack * (problem.prior + problem.eta))


@given(problems())
def test_a_dictionary_of_all_points_is_exact(problem: Drawn) -> None:
    X, Y, Z = problem.data
    try:
        model = nystrom(problem, X, Y, dictionary=torch.arange(problem.t) if problem.t else None)
        same_answers(problem, model, exact(problem, X, Y), Z, Z, problem.nystrom_slack)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)


@pytest.mark.parametrize("build", MODELS)
@given(problems(smallest=1))
def test_followed_choices_are_the_model(build: Build, problem: Drawn) -> None:
    slack, X, Y, Z = slack_of(problem, build), *problem.data
    more = {} if build is exact else {"dictionary": torch.arange(1)}
    try:
        model = build(problem, X[:1], Y[:1], **more)
        followed = model.surrogate.regression.track(Z)
        for i in range(1, problem.t):
            followed = followed.advance(followed.regression.append(X[i : i + 1], Y[i : i + 1]))
        mean, norm = (followed.mean, followed.norm)
        variance = followed.variance()
        assert all(answer.isfinite().all() for answer in (mean, norm, variance))
        assert (norm >= 0).all()
        assert (variance >= 0).all()
        if slack < 1:
            fitted = build(problem, X, Y, **more)
            within(mean, fitted.mean(Z), 2 * slack / problem.slack * problem.mean_slack)
            within(norm, fitted.covariance_norm(Z), 2 * slack * problem.prior)
            within(variance, fitted.at(Z).variance(), 2 * slack * problem.prior)
    except NotPositiveDefiniteError as error:
        or_refused(problem, error)
