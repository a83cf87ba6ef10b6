"""A fit is valid until something it depends on has changed: whatever is done to a model, it says what follows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from catalogue import data, icm, matern, rbf, task_matrix
from gpytorch.means import ConstantMean
from suites import close
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    TaskSimilarityKernel,
)
from mtbo_torch.models import MultiTaskGPModel

N, D, T = 3, 2, 6
Z = data(4, N, D)[2][:4]


def build(kind: type[MultiTaskGPModel], transformed: bool) -> MultiTaskGPModel:
    X, Y, _ = data(T, N, D)
    options: dict[str, Any] = {"dictionary": torch.arange(T)} if kind is NystromMultiTaskGP else {}
    if transformed:
        options |= {"outcome_transform": Standardize(N), "input_transform": Normalize(D)}
    mean = ConstantMean().double().initialize(constant=0.3)
    return kind(X, Y, ICMKernel(matern(0.5), task_matrix(N)), eta=0.1, mean_module=mean, **options)


def write_out(model: MultiTaskGPModel) -> tuple[Tensor, Tensor]:
    """The posterior from the model's parts as they are now, by the matrix of all values."""
    with torch.no_grad():
        inputs = getattr(model, "input_transform", lambda X: X)
        X, points = inputs(model.observed_X), inputs(Z)
        Y, kernel, mean = model.train_targets, model.covar_module, model.mean_module
        cross = kernel(points, X).to_dense()
        noise = model.likelihood.noise * torch.eye(Y.numel()).double()
        weights = torch.linalg.solve(kernel(X).to_dense() + noise, cross.mT).mT
        values = (Y - mean(X).unsqueeze(-1)).reshape(-1)
        found = (weights @ values).reshape(-1, N) + mean(points).unsqueeze(-1)
        variance = (kernel(points).to_dense() - weights @ cross.mT).diagonal().reshape(-1, N)
        if hasattr(model, "outcome_transform"):
            scale = model.outcome_transform.stdvs
            return model.outcome_transform.means + scale * found, scale.square() * variance
        return found, variance


def in_place(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    with torch.no_grad():
        tensor.copy_(change(tensor))


def exchange_kernel(model: MultiTaskGPModel, number: float) -> None:
    base = rbf(0.5) if number < 0.5 else matern(0.5)
    model.covar_module.base_kernel = base


def exchange_all(model: MultiTaskGPModel, number: float) -> None:
    model.covar_module = (
        TaskSimilarityKernel(rbf(0.5), N, 0.4) if number < 0.5 else ICMKernel(matern(0.5), task_matrix(N))
    )


def exchange_mean(model: MultiTaskGPModel, number: float) -> None:
    model.mean_module = ConstantMean().double().initialize(constant=number)


def exchange_targets(model: MultiTaskGPModel, number: float) -> None:
    model.train_targets = model.train_targets + number


def load(model: MultiTaskGPModel, number: float) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(
        {name: value + number if name.endswith("raw_lengthscale") else value for name, value in state.items()}
    )


def lengthscale(model: MultiTaskGPModel) -> Tensor:
    return model.covar_module.base_kernel.raw_lengthscale


# What a user may do to a model, with a number between 0 and 1.
CHANGES: dict[str, Callable[[Any, float], object]] = {
    "lengthscale by its setter": lambda m, x: setattr(m.covar_module.base_kernel, "lengthscale", 0.2 + x),
    "lengthscale in place": lambda m, x: in_place(lengthscale(m), lambda value: value + x),
    "lengthscale past the counter": lambda m, x: lengthscale(m).data.add_(x),
    "lengthscale loaded": load,
    "another base kernel": exchange_kernel,
    "another kernel": exchange_all,
    "smoothness": lambda m, x: setattr(m.covar_module.base_kernel, "nu", 1.5 if x < 0.5 else 0.5),
    "noise": lambda m, x: in_place(m.likelihood.raw_noise, lambda value: torch.full_like(value, 0.05 + x)),
    "mean": lambda m, x: m.mean_module.initialize(constant=x),
    "another mean": exchange_mean,
    "other targets": exchange_targets,
    "targets in place": lambda m, x: in_place(m.train_targets, lambda value: value * (1 + x)),
    "data exchanged": lambda m, x: m.set_train_data(m.observed_X + x, m.train_targets - x),
    "nothing: a move": lambda m, x: m.to(torch.double),
    "nothing: training": lambda m, x: m.train(),
    "nothing: an acquisition": lambda m, x: ScalarizedMultiTaskUCB(
        m, ChebyshevScalarization(torch.ones(N).double()), 1.0
    )(Z.unsqueeze(-2)),
    "nothing: an analytic acquisition": lambda m, x: improvement(m)(Z.unsqueeze(-2)),
    "nothing: fantasies": lambda m, x: m.fantasize(Z[:1], SobolQMCNormalSampler(torch.Size([2]), seed=0)),
    "nothing: a call": lambda m, x: m.eval()(Z),
    "nothing: a gain": lambda m, x: m.info_gain,
}
OF_TRANSFORMS: dict[str, Callable[[Any, float], object]] = {
    "offset": lambda m, x: in_place(m.outcome_transform.means, lambda value: value + x),
    "coefficients of the inputs": lambda m, x: in_place(m.input_transform._coefficient, lambda value: value * (1 + x)),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def improvement(model: MultiTaskGPModel) -> LogExpectedImprovement:
    return LogExpectedImprovement(model, 0.0, posterior_transform=ScalarizedPosteriorTransform(torch.ones(N).double()))


@pytest.mark.parametrize("transformed", [False, True], ids=["plain", "transformed"])
@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
@pytest.mark.parametrize("seed", range(5))
def test_after_any_changes_a_model_says_what_its_parts_say(
    kind: type[MultiTaskGPModel], transformed: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model, done = build(kind, transformed), []
    changes = CHANGES | (OF_TRANSFORMS if transformed else {})
    names = [*changes, *COPIES]
    for _ in range(12):
        name = names[int(torch.randint(len(names), (1,), generator=generator))]
        done.append(name)
        if name in COPIES:
            model = COPIES[name](model)
        elif name != "smoothness" or hasattr(model.covar_module.base_kernel, "nu"):
            changes[name](model, float(torch.rand(1, generator=generator)))
        mean, variance = write_out(model.eval())
        posterior = model.posterior(Z)
        tolerance = 1e-9 if kind is ExactMultiTaskGP else 1e-6
        try:
            close(posterior.mean, mean, tolerance)
            close(posterior.variance, variance, tolerance)
        except AssertionError as error:
            raise AssertionError(f"after {done}") from error


@pytest.mark.parametrize("name", [name for name in (CHANGES | OF_TRANSFORMS) if not name.startswith("nothing")])
def test_every_change_changes_something(name: str) -> None:
    """Else the sequences above would show nothing."""
    model = build(ExactMultiTaskGP, transformed=True)
    before = model.posterior(Z)
    (CHANGES | OF_TRANSFORMS)[name](model, 0.45)
    after = model.posterior(Z)
    assert (after.mean - before.mean).abs().max() + (after.variance - before.variance).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_what_changes_nothing_fits_nothing(kind: type[MultiTaskGPModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kind, transformed=True)
    acqf = improvement(model)
    surrogate = model.surrogate
    fits = []
    monkeypatch.setattr(kind, "_fit_to", lambda self, problem: fits.append(problem))
    for _ in range(2):
        acqf(Z.unsqueeze(-2))
    assert model.surrogate is surrogate
    assert not fits


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_the_callers_data_stay_the_callers(kind: type[MultiTaskGPModel]) -> None:
    X, Y, _ = data(T, N, D)
    variances = torch.full_like(Y, 0.1)
    for noise in ({"eta": 0.1}, {"train_Yvar": variances}):
        model = kind(X, Y, icm(N, D).kernel, **noise)
        before = model.posterior(Z)
        for tensor in (X, Y, variances):
            tensor.mul_(1.5)
        for twin in (model, copy.deepcopy(model)):
            close(twin.posterior(Z).mean, before.mean, 1e-9)
            close(twin.posterior(Z).variance, before.variance, 1e-9)
        new_X, new_Y, _ = data(T, N, D)
        model.set_train_data(new_X, new_Y)
        before = model.posterior(Z)
        new_X.add_(1), new_Y.add_(1)
        close(model.posterior(Z).mean, before.mean, 0.0)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_the_gain_along_the_rounds_moves_with_the_model(dtype: torch.dtype) -> None:
    X, Y, Z = data(12, N, D)
    model = NystromMultiTaskGP(X[:2], Y[:2], icm(N, D).kernel, eta=0.1, dictionary=torch.arange(2))
    for i in range(2, 12):
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    gain, probs, mean = model.info_gain, model.inclusion_probs, model.mean(Z)
    anew = NystromMultiTaskGP(X, Y, icm(N, D).kernel, eta=0.1, dictionary=torch.arange(2)).info_gain
    assert (gain - anew).abs() > 1  # along the rounds it is another number
    moved = model.to(dtype)
    close(moved.info_gain, gain, 1e-4)
    close(moved.inclusion_probs, probs, 1e-4)
    close(moved.mean(Z.to(dtype)), mean, 1e-4)
