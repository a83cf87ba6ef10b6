"""The exact path against the bare matrix product, against BoTorch's models and against refitting.

Run with ``make bench``. Every line is a ratio of two things timed in turns in this one run; the last column is the
bound it is held to.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from timing import in_turns, milliseconds, ratio  # isort: skip - sets the environment before torch is loaded

import torch
from botorch.models import KroneckerMultiTaskGP, ModelListGP, SingleTaskGP
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    InverseUniformWeights,
    ScalarizedMultiTaskUCB,
    TaskSimilarityKernel,
)
from mtbo_torch.kernels import MultiTaskKernel

torch.set_default_dtype(torch.double)
DIMENSION, POINTS = 4, 512


def data(t: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(t, DIMENSION, generator=generator)
    Y = torch.sin(3 * X @ torch.rand(DIMENSION, n, generator=generator))
    return X, Y + 0.1 * torch.randn(t, n, generator=generator)


def full_rank(n: int) -> ICMKernel:
    A = torch.rand(n, n, generator=torch.Generator().manual_seed(1))
    return ICMKernel(RBFKernel(ard_num_dims=DIMENSION), A.T @ A)


def similarity(n: int) -> TaskSimilarityKernel:
    return TaskSimilarityKernel(RBFKernel(ard_num_dims=DIMENSION), n, 0.4)


def fitted(t: int, n: int, kernel: MultiTaskKernel) -> ExactMultiTaskGP:
    model = ExactMultiTaskGP(*data(t, n), covar_module=kernel, eta=0.1)
    assert model.regression.num_observations == t
    return model


def acquisition_of(model: ExactMultiTaskGP, bound: str = "norm") -> Callable[[], object]:
    """Its values at 512 points with their gradient; what is done once for a model has been done."""
    weights = InverseUniformWeights(model.num_outputs).sample(generator=torch.Generator().manual_seed(0))
    acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), radius=2.0, bound=bound)
    X = torch.rand(POINTS, 1, DIMENSION, requires_grad=True)
    return lambda: torch.autograd.grad(acqf(X).sum(), X)


def value_and_gradient(t: int, n: int = 9) -> tuple[str, float]:
    """The acquisition against a 512 x t by t x t product."""
    left, right = torch.rand(POINTS, t), torch.rand(t, t)
    ours = acquisition_of(fitted(t, n, full_rank(n)))
    product, gradient = in_turns([lambda: left @ right, ours], repeats=25)
    return f"{milliseconds(gradient):.1f} ms against {milliseconds(product):.1f} ms", ratio(gradient, product)


def ellipsoid_over_norm(t: int = 1000, n: int = 9) -> tuple[str, float]:
    """The two bounds of the acquisition."""
    norm, ellipsoid = (acquisition_of(fitted(t, n, full_rank(n)), bound) for bound in ("norm", "ellipsoid"))
    usual, tighter = in_turns([norm, ellipsoid], repeats=25)
    return f"{milliseconds(tighter):.1f} ms against {milliseconds(usual):.1f} ms", ratio(tighter, usual)


def many_over_few_tasks(many: int, t: int = 1000, few: int = 2) -> tuple[str, float]:
    """The acquisition for many tasks against that for few."""
    runs = [acquisition_of(fitted(t, n, full_rank(n))) for n in (few, many)]
    two, fifty = in_turns(runs, repeats=25)
    return f"{milliseconds(fifty):.1f} ms against {milliseconds(two):.1f} ms", ratio(fifty, two)


def against_kronecker(t: int = 200, n: int = 9) -> tuple[str, float]:
    """Mean and variance at 512 points, no gradient."""
    model, peer = fitted(t, n, full_rank(n)), KroneckerMultiTaskGP(*data(t, n))
    X = torch.rand(POINTS, 1, DIMENSION)

    def run(model: object) -> Callable[[], None]:
        def evaluate() -> None:
            with torch.no_grad():
                posterior = model.posterior(X)
                posterior.mean, posterior.variance  # noqa: B018

        return evaluate

    ours, theirs = in_turns([run(model), run(peer)], repeats=3)
    return f"{milliseconds(ours):.1f} ms against {milliseconds(theirs):.0f} ms", ratio(theirs, ours)


def against_model_list(t: int = 500, n: int = 20) -> tuple[str, float]:
    """Mean and norm at 512 points with their gradient, as in an acquisition."""
    model = fitted(t, n, full_rank(n))
    X_train, Y_train = data(t, n)
    peer = ModelListGP(*[SingleTaskGP(X_train, Y_train[:, i : i + 1]) for i in range(n)])
    weights = InverseUniformWeights(n).sample(generator=torch.Generator().manual_seed(0))
    X = torch.rand(POINTS, 1, DIMENSION, requires_grad=True)

    def run(model: object) -> Callable[[], None]:
        acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), radius=2.0)

        def evaluate() -> None:
            torch.autograd.grad(acqf(X).sum(), X)

        return evaluate

    ours, theirs = in_turns([run(model), run(peer)], repeats=5)
    return f"{milliseconds(ours):.1f} ms against {milliseconds(theirs):.0f} ms", ratio(theirs, ours)


def append_against_refit(kernel: MultiTaskKernel, t: int = 2000, n: int = 9) -> tuple[str, float]:
    """One more point, appended to a chain of appended points, against fitting t + 1 points."""
    X, Y = data(t + 64, n)
    model = ExactMultiTaskGP(X[:t], Y[:t], covar_module=kernel, eta=0.1)
    chain = [model.regression]

    def append() -> None:
        i = chain[-1].num_observations
        chain[:] = [chain[-1].append(X[i : i + 1], Y[i : i + 1])]

    def refit() -> None:
        model._fit(model.covar_module, model.mean_module, [])

    with torch.no_grad():
        appended, refitted = in_turns([append, refit], repeats=5)
    return f"{milliseconds(appended):.1f} ms against {milliseconds(refitted):.0f} ms", ratio(refitted, appended)


def growth_of_an_append(n: int = 9) -> tuple[str, float]:
    """The exponent p in t^p between t = 1000 and t = 4000."""
    chains = []
    for t in (1000, 4000):
        X, Y = data(t + 64, n)
        chains.append((X, Y, [ExactMultiTaskGP(X[:t], Y[:t], covar_module=similarity(n), eta=0.1).regression]))

    def append(X: Tensor, Y: Tensor, chain: list) -> Callable[[], None]:
        def step() -> None:
            i = chain[-1].num_observations
            chain[:] = [chain[-1].append(X[i : i + 1], Y[i : i + 1])]

        return step

    with torch.no_grad():
        small, large = in_turns([append(*chain) for chain in chains], repeats=25)
    text = f"{milliseconds(small):.2f} ms at 1000, {milliseconds(large):.2f} ms at 4000"
    return text, math.log(ratio(large, small)) / math.log(4)


LINES: list[tuple[str, Callable[[], tuple[str, float]], str, float]] = [
    ("value and gradient, t = 1000, over a bare product", lambda: value_and_gradient(1000), "<=", 2.0),
    ("value and gradient, t = 2000, over a bare product", lambda: value_and_gradient(2000), "<=", 1.5),
    ("bound='ellipsoid' over bound='norm', t = 1000, n = 9", ellipsoid_over_norm, "<=", 2.0),
    ("20 tasks over 2, t = 1000", lambda: many_over_few_tasks(20), "<=", 1.5),
    ("50 tasks over 2, t = 1000", lambda: many_over_few_tasks(50), "<=", 1.5),
    ("KroneckerMultiTaskGP over ours, t = 200, n = 9, 512 points", against_kronecker, ">=", 100.0),
    ("ModelListGP over ours, t = 500, n = 20, 512 points", against_model_list, ">=", 20.0),
    ("refit over append, t = 2000, similarity kernel", lambda: append_against_refit(similarity(9)), ">=", 50.0),
    ("refit over append, t = 2000, full-rank B, n = 9", lambda: append_against_refit(full_rank(9)), ">=", 10.0),
    ("exponent of an append's growth, t = 1000 to 4000", growth_of_an_append, "<=", 2.2),
]


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float64, d = {DIMENSION}")
    print(f"{'':<60}{'measured':>40}{'ratio':>9}{'bound':>10}")
    missed = 0
    for name, measure, sign, bound in LINES:
        text, value = measure()
        holds = value <= bound if sign == "<=" else value >= bound
        missed += not holds
        print(f"{name:<60}{text:>40}{value:>9.2f}{sign:>5} {bound:<5g}{'' if holds else '  MISSED'}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
