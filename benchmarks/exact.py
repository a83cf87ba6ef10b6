"""Compare the exact model with the bare matrix product, with BoTorch's models and with refitting.

Run with ``make bench``. Every line is the ratio of two times, measured in turns in the same run; the last column is
its bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from timing import compute_ratio, time_in_turns, to_ms  # isort: skip - sets the environment before torch is loaded

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.models import KroneckerMultiTaskGP, ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from record import format_rows, record
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    InverseUniformWeights,
    LogAverageImprovement,
    Mixture,
    ScalarizedMultiTaskUCB,
    TaskSimilarityKernel,
)
from mtbo_torch.kernels import MultiTaskKernel

torch.set_default_dtype(torch.double)
DIMENSION, POINTS = 4, 512
SOURCES = ["benchmarks/exact.py", "mtbo_torch/regression", "mtbo_torch/acquisition.py", "mtbo_torch/improvement.py"]


def make_data(t: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(t, DIMENSION, generator=generator)
    Y = torch.sin(3 * X @ torch.rand(DIMENSION, n, generator=generator))
    return X, Y + 0.1 * torch.randn(t, n, generator=generator)


def make_full_rank_kernel(n: int) -> ICMKernel:
    A = torch.rand(n, n, generator=torch.Generator().manual_seed(1))
    return ICMKernel(RBFKernel(ard_num_dims=DIMENSION), A.T @ A)


def make_similarity_kernel(n: int) -> TaskSimilarityKernel:
    return TaskSimilarityKernel(RBFKernel(ard_num_dims=DIMENSION), n, 0.4)


def fit(t: int, n: int, kernel: MultiTaskKernel) -> ExactMultiTaskGP:
    model = ExactMultiTaskGP(*make_data(t, n), covar_module=kernel, eta=0.1)
    assert model.surrogate.regression.num_observations == t
    return model


def make_acquisition(
    model: ExactMultiTaskGP, bound: str = "norm", radius: float | Mixture = 2.0
) -> Callable[[], object]:
    """Make a function that computes an acquisition at 512 points with its gradient."""
    weights = InverseUniformWeights(model.num_outputs).sample(generator=torch.Generator().manual_seed(0))
    acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), radius=radius, bound=bound)
    X = torch.rand(POINTS, 1, DIMENSION, requires_grad=True)
    return lambda: torch.autograd.grad(acqf(X).sum(), X)


def compare(one: list[float], other: list[float]) -> tuple[str, float]:
    """Return two lists of seconds as text, and the ratio of the first to the second."""
    return f"{to_ms(one):.4g} ms against {to_ms(other):.4g} ms", compute_ratio(one, other)


def compare_with_product(t: int, n: int = 9) -> tuple[str, float]:
    """Compare the acquisition with a 512 x t by t x t product."""
    left, right = torch.rand(POINTS, t), torch.rand(t, t)
    ours = make_acquisition(fit(t, n, make_full_rank_kernel(n)))
    product, gradient = time_in_turns([lambda: left @ right, ours], repeats=25)
    return compare(gradient, product)


def compare_bounds(t: int = 1000, n: int = 9) -> tuple[str, float]:
    """Compare the two bounds of the acquisition."""
    norm, ellipsoid = (make_acquisition(fit(t, n, make_full_rank_kernel(n)), bound) for bound in ("norm", "ellipsoid"))
    usual, tighter = time_in_turns([norm, ellipsoid], repeats=25)
    return compare(tighter, usual)


def compare_mixture(t: int = 1000, n: int = 9) -> tuple[str, float]:
    """Compare the bound of the mixture, over its regularizers, with the ellipsoid's."""
    model = fit(t, n, make_full_rank_kernel(n))
    runs = [make_acquisition(model, "ellipsoid"), make_acquisition(model, radius=Mixture(2.0, 0.3))]
    ellipsoid, mixture = time_in_turns(runs, repeats=25)
    return compare(mixture, ellipsoid)


def compare_task_counts(many: int, t: int = 1000, few: int = 2) -> tuple[str, float]:
    """Compare the acquisition for many tasks with the acquisition for few tasks."""
    runs = [make_acquisition(fit(t, n, make_full_rank_kernel(n))) for n in (few, many)]
    two, fifty = time_in_turns(runs, repeats=25)
    return compare(fifty, two)


def compare_with_kronecker(t: int = 200, n: int = 9) -> tuple[str, float]:
    """Compare mean and variance at 512 points, without gradient."""
    model, peer = fit(t, n, make_full_rank_kernel(n)), KroneckerMultiTaskGP(*make_data(t, n))
    X = torch.rand(POINTS, 1, DIMENSION)

    def make_run(model: object) -> Callable[[], None]:
        def evaluate() -> None:
            with torch.no_grad():
                posterior = model.posterior(X)
                posterior.mean, posterior.variance  # noqa: B018

        return evaluate

    ours, theirs = time_in_turns([make_run(model), make_run(peer)], repeats=3)
    return compare(theirs, ours)


def compare_with_model_list(t: int = 500, n: int = 20) -> tuple[str, float]:
    """Compare the acquisition at 512 points with its gradient."""
    model = fit(t, n, make_full_rank_kernel(n))
    X_train, Y_train = make_data(t, n)
    peer = ModelListGP(*[SingleTaskGP(X_train, Y_train[:, i : i + 1]) for i in range(n)])
    weights = InverseUniformWeights(n).sample(generator=torch.Generator().manual_seed(0))
    X = torch.rand(POINTS, 1, DIMENSION, requires_grad=True)

    def make_run(model: object) -> Callable[[], None]:
        acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), radius=2.0)

        def evaluate() -> None:
            torch.autograd.grad(acqf(X).sum(), X)

        return evaluate

    ours, theirs = time_in_turns([make_run(model), make_run(peer)], repeats=5)
    return compare(theirs, ours)


def make_improvement(t: int, n: int) -> Callable[[], object]:
    """Make a function that computes the improvement at 512 points with its gradient."""
    model = fit(t, n, make_full_rank_kernel(n))
    return make_gradient(LogAverageImprovement(model))


def make_gradient(acqf: AcquisitionFunction) -> Callable[[], object]:
    X = torch.rand(POINTS, 1, DIMENSION, generator=torch.Generator().manual_seed(2)).requires_grad_()
    return lambda: torch.autograd.grad(acqf(X).sum(), X)


def compare_with_nehvi(t: int = 100, n: int = 4) -> tuple[str, float]:
    """Compare the improvement with BoTorch's, on the models that Ax builds."""
    X, Y = make_data(t, n)
    units = [{"input_transform": Normalize(DIMENSION), "outcome_transform": Standardize(1)} for _ in range(n)]
    peer = ModelListGP(*[SingleTaskGP(X, Y[:, [i]], **units[i]) for i in range(n)])
    theirs = qLogNoisyExpectedHypervolumeImprovement(
        peer,
        ref_point=Y.amin(dim=0),
        X_baseline=X,
        sampler=SobolQMCNormalSampler(torch.Size([128]), seed=0),
        prune_baseline=True,
    )
    fast, slow = time_in_turns([make_improvement(t, n), make_gradient(theirs)], repeats=3)
    return compare(slow, fast)


def compare_objective_counts(many: int, few: int = 4, t: int = 100) -> tuple[str, float]:
    """Compare the improvement for many objectives with that for few."""
    small, large = time_in_turns([make_improvement(t, n) for n in (few, many)], repeats=15)
    return compare(large, small)


def compare_append_with_refit(kernel: MultiTaskKernel, t: int = 2000, n: int = 9) -> tuple[str, float]:
    """Compare appending one point to a chain of appended points with fitting all points."""
    X, Y = make_data(t + 64, n)
    model = ExactMultiTaskGP(X[:t], Y[:t], covar_module=kernel, eta=0.1)
    chain = [model.surrogate.regression]

    def append() -> None:
        i = chain[-1].num_observations
        chain[:] = [chain[-1].append(X[i : i + 1], Y[i : i + 1])]

    def refit() -> None:
        model._learn(model.covar_module, model.mean_module)

    with torch.no_grad():
        appended, refitted = time_in_turns([append, refit], repeats=5)
    return compare(refitted, appended)


def measure_append_growth(n: int = 9) -> tuple[str, float]:
    """Measure the exponent p of the cost t^p of an append between t = 1000 and t = 4000."""
    chains = []
    for t in (1000, 4000):
        X, Y = make_data(t + 64, n)
        model = ExactMultiTaskGP(X[:t], Y[:t], covar_module=make_similarity_kernel(n), eta=0.1)
        chains.append((X, Y, [model.surrogate.regression]))

    def make_append(X: Tensor, Y: Tensor, chain: list) -> Callable[[], None]:
        def append() -> None:
            i = chain[-1].num_observations
            chain[:] = [chain[-1].append(X[i : i + 1], Y[i : i + 1])]

        return append

    with torch.no_grad():
        small, large = time_in_turns([make_append(*chain) for chain in chains], repeats=25)
    text = f"{to_ms(small):.2f} ms at 1000, {to_ms(large):.2f} ms at 4000"
    return text, math.log(compute_ratio(large, small)) / math.log(4)


LINES: list[tuple[str, Callable[[], tuple[str, float]], str, float]] = [
    ("value and gradient, t = 1000, over a bare product", lambda: compare_with_product(1000), "<=", 2.0),
    ("value and gradient, t = 2000, over a bare product", lambda: compare_with_product(2000), "<=", 1.5),
    ("bound='ellipsoid' over bound='norm', t = 1000, n = 9", compare_bounds, "<=", 2.0),
    ("bound='mixture' over bound='ellipsoid', t = 1000, n = 9", compare_mixture, "<=", 3.0),
    ("20 tasks over 2, t = 1000", lambda: compare_task_counts(20), "<=", 1.5),
    ("50 tasks over 2, t = 1000", lambda: compare_task_counts(50), "<=", 1.5),
    ("KroneckerMultiTaskGP over ours, t = 200, n = 9, 512 points", compare_with_kronecker, ">=", 100.0),
    ("ModelListGP over ours, t = 500, n = 20, 512 points", compare_with_model_list, ">=", 20.0),
    ("qLogNEHVI over the average improvement, t = 100, n = 4", compare_with_nehvi, ">=", 10.0),
    ("average improvement, n = 10 over n = 4, t = 100", lambda: compare_objective_counts(10), "<=", 2.0),
    ("average improvement, n = 20 over n = 4, t = 100", lambda: compare_objective_counts(20), "<=", 3.0),
    (
        "refit over append, t = 2000, similarity kernel",
        lambda: compare_append_with_refit(make_similarity_kernel(9)),
        ">=",
        50.0,
    ),
    (
        "refit over append, t = 2000, full-rank B, n = 9",
        lambda: compare_append_with_refit(make_full_rank_kernel(9)),
        ">=",
        10.0,
    ),
    ("exponent of the cost of an append, t = 1000 to 4000", measure_append_growth, "<=", 2.2),
]


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float64, d = {DIMENSION}")
    print(f"{'':<60}{'measured':>40}{'ratio':>9}{'bound':>10}")
    missed, rows = 0, []
    for name, measure, sign, bound in LINES:
        text, value = measure()
        holds = value <= bound if sign == "<=" else value >= bound
        missed += not holds
        rows.append((name, text, f"{value:.3g}"))
        print(f"{name:<60}{text:>40}{value:>9.2f}{sign:>5} {bound:<5g}{'' if holds else '  MISSED'}", flush=True)
    record("speed", format_rows([("", "measured", "ratio"), *rows]), "make bench", SOURCES)
    peers = [(name, ratio) for name, _, ratio in rows if name.startswith(("Kronecker", "ModelList", "qLogNEHVI"))]
    record("speed_botorch", format_rows([("BoTorch's time over ours", "ratio"), *peers]), "make bench", SOURCES)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
