"""Every use BoTorch and GPyTorch make of a model itself, compared with BoTorch's dense long-format model."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, efficient_loo_cv, gen_loo_cv_folds, loo_cv
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.evaluation import compute_in_sample_model_fit_metric
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from host_reference import (
    ETA,
    EXACT,
    LISTS,
    LISTS_OF_ONES,
    NYSTROM,
    ONE_EXACT,
    ONE_TASK,
    SINGLE,
    B,
    D,
    Kind,
    Setting,
    T,
    base_kernel,
    evaluate,
    other,
    prior_mean,
    same_posterior,
    seeded,
    setting,
)
from suites import close
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel, NystromMultiTaskGP

EVERY = SINGLE + LISTS + ONE_TASK + LISTS_OF_ONES
POINTS = seeded(3, D, seed=22)
NEW_X = seeded(2, D, seed=30)

Use = Callable[[Any, Kind], Posterior]


def draws(count: int = 3) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=3)


def variances(kind: Kind) -> Tensor:
    return torch.linspace(0.2, 0.4, kind.num_outputs, dtype=torch.double).unsqueeze(0)


def condition(model: Any, kind: Kind, Y: Tensor) -> Any:
    X = [NEW_X] * kind.num_outputs if isinstance(model, ModelListGP) else NEW_X
    return model.condition_on_observations(X, Y)


POSTERIORS: dict[str, Use] = {
    "posterior": lambda model, kind: model.posterior(POINTS),
    "posterior, batch of points": lambda model, kind: model.posterior(seeded(3, 2, 2, D, seed=4)),
    "posterior, observation noise": lambda model, kind: model.posterior(POINTS, observation_noise=True),
    "posterior, given noise": lambda model, kind: model.posterior(
        POINTS, observation_noise=variances(kind).expand(3, -1)
    ),
    "posterior, one output": lambda model, kind: model.posterior(POINTS, output_indices=[kind.num_outputs - 1]),
    "posterior, outputs in another order": lambda model, kind: model.posterior(
        POINTS, output_indices=list(reversed(range(kind.num_outputs)))
    ),
    "posterior, posterior transform": lambda model, kind: model.posterior(
        POINTS, posterior_transform=ScalarizedPosteriorTransform(kind.weights)
    ),
    "subset_output": lambda model, kind: model.subset_output([kind.num_outputs - 1]).posterior(POINTS),
    "condition_on_observations": lambda model, kind: condition(model, kind, kind.values(NEW_X)).posterior(POINTS),
    "condition_on_observations, batch of values": lambda model, kind: condition(
        model, kind, kind.values(NEW_X) + torch.arange(3.0, dtype=torch.double).view(3, 1, 1)
    ).posterior(POINTS),
    "condition_on_observations, twice": lambda model, kind: condition(
        condition(model, kind, kind.values(NEW_X)), kind, kind.values(NEW_X) - 0.3
    ).posterior(POINTS),
    "fantasize": lambda model, kind: model.fantasize(NEW_X, draws()).posterior(POINTS),
    "fantasize, batch of points": lambda model, kind: model.fantasize(seeded(4, 1, D, seed=6), draws()).posterior(
        POINTS
    ),
    "fantasize, given noise": lambda model, kind: model.fantasize(
        NEW_X, draws(), observation_noise=variances(kind)
    ).posterior(POINTS),
    "fantasize, twice": lambda model, kind: (
        model.fantasize(NEW_X, draws()).fantasize(NEW_X + 0.1, draws(2)).posterior(POINTS)
    ),
    "fantasize, no points": lambda model, kind: model.fantasize(NEW_X[:0], draws()).posterior(POINTS),
}
FAST = [(EXACT, "plain"), (EXACT, "known noise, transformed"), (NYSTROM, "transformed")]
SETTINGS = ["plain", "transformed", "known noise", "known noise, transformed"]


def make(kind: Kind, how: str) -> tuple[Any, Any]:
    known = 0.02 + 0.1 * seeded(T, kind.tasks, seed=3) if "known" in how else None
    return kind.pair(transformed="transformed" in how, Yvar=known)


def list_posteriors() -> list[Any]:
    found = []
    for name in POSTERIORS:
        changes_data = name.startswith(("condition", "fantasize"))
        for kind in EVERY:
            for how in SETTINGS:
                if (changes_data or name == "posterior, given noise") and kind in LISTS:
                    continue  # refused, below
                if name.startswith("condition") and kind in LISTS_OF_ONES and "transformed" in how:
                    continue  # refused, below
                if kind in LISTS + LISTS_OF_ONES and how in ("transformed", "known noise"):
                    continue  # both at once will do for a list: its members are compared alone
                marks = [] if (kind, how) in FAST else [pytest.mark.slow]
                found.append(pytest.param(name, kind, how, marks=marks, id=f"{name}-{kind}-{how}"))
    return found


@pytest.mark.parametrize(("name", "kind", "how"), list_posteriors())
def test_posteriors_are_those_of_botorchs_model(name: str, kind: Kind, how: str) -> None:
    model, reference = make(kind, how)
    same_posterior(POSTERIORS[name](model, kind), POSTERIORS[name](reference, kind), kind.tolerance)


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_what_lists_of_models_of_several_tasks_refuse(kind: Kind) -> None:
    model, _ = kind.pair()
    with pytest.raises(IndexError):
        model.fantasize(NEW_X, draws())
    with pytest.raises(BotorchTensorDimensionError):
        model.condition_on_observations(NEW_X, kind.values(NEW_X))
    with pytest.raises(ValueError, match="indices of outputs"):  # BoTorch hands members the list's indices
        model.posterior(POINTS, observation_noise=variances(kind).expand(3, -1))


@pytest.mark.parametrize("kind", SINGLE, ids=str)
@pytest.mark.parametrize("how", SETTINGS)
def test_a_batch_of_data_sets(kind: Kind, how: str) -> None:
    given = setting(transformed="transformed" in how)
    Y = torch.stack([given.Y, 0.5 - given.Y.flip(-1)])
    known = 0.02 + 0.1 * seeded(2, T, kind.tasks, seed=3) if "known" in how else None
    X = seeded(2, T, D, seed=40)
    whole = Setting(X, Y, known, given.transformed)
    model = whole.build(kind.model_class)
    for i in range(2):
        alone = Setting(X[i], Y[i], None if known is None else known[i], given.transformed)
        reference = alone.reference(kind.model_class)
        for noisy in (False, True):
            posterior = model.posterior(POINTS, observation_noise=noisy)
            expected = reference.posterior(POINTS, observation_noise=noisy)
            close(posterior.mean[i], expected.mean, kind.tolerance)
            covariance = posterior.distribution.covariance_matrix
            close(covariance[i], expected.distribution.covariance_matrix, kind.tolerance)


# Copies


def by_state(model: Any, kind: Kind, how: str) -> Any:
    """A model of other hyperparameters takes over the state."""
    other_model, _ = make(kind, how)
    for parameter in other_model.parameters():
        parameter.data.add_(0.1)
    other_model.posterior(POINTS)
    other_model.load_state_dict(model.state_dict())
    return other_model


def by_file(model: Any, kind: Kind, how: str) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any, Kind, str], Any]] = {
    "deepcopy": lambda model, kind, how: copy.deepcopy(model),
    "pickle": lambda model, kind, how: pickle.loads(pickle.dumps(model)),
    "torch.save": by_file,
    "state_dict": by_state,
    "train and eval": lambda model, kind, how: model.train().eval(),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param(kind, how, id=f"{kind}-{how}", marks=[] if (kind, how) in FAST else [pytest.mark.slow])
        for kind in SINGLE + LISTS
        for how in SETTINGS
    ],
)
@pytest.mark.parametrize("name", COPIES)
def test_copies_answer_alike(name: str, kind: Kind, how: str) -> None:
    model, reference = make(kind, how)
    model.posterior(POINTS)
    same_posterior(COPIES[name](model, kind, how).posterior(POINTS), reference.posterior(POINTS), kind.tolerance)


@pytest.mark.parametrize("kind", SINGLE, ids=str)
@pytest.mark.parametrize("name", ["deepcopy", "pickle", "torch.save"])
def test_copies_of_fantasies_answer_alike(name: str, kind: Kind) -> None:
    model, reference = kind.pair()
    fantasies = COPIES[name](model.fantasize(NEW_X, draws()), kind, "plain")
    same_posterior(fantasies.posterior(POINTS), reference.fantasize(NEW_X, draws()).posterior(POINTS), kind.tolerance)


# GPyTorch's own entry points


@pytest.mark.parametrize("kind", SINGLE + ONE_TASK, ids=str)
def test_a_call_in_evaluation_is_the_posterior(kind: Kind) -> None:
    model, reference = kind.pair()
    found = model.eval()(POINTS)
    same_posterior(GPyTorchPosterior(found), reference.posterior(POINTS), kind.tolerance)
    noisy = GPyTorchPosterior(model.likelihood(found))
    same_posterior(noisy, reference.posterior(POINTS, observation_noise=True), kind.tolerance)


@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_a_call_in_training_is_the_prior(kind: Kind) -> None:
    model, reference = kind.pair()
    found = model.train()(*model.train_inputs)
    tasks = torch.arange(2.0, dtype=torch.double).repeat(T).unsqueeze(-1)
    long = torch.cat([seeded(T, D).repeat_interleave(2, dim=0), tasks], dim=-1)
    expected = reference.gp.forward(long)
    close(found.mean.flatten(), expected.mean, 1e-12)
    close(found.covariance_matrix, expected.covariance_matrix, 1e-12)


def test_a_call_in_evaluation_with_missing_values() -> None:
    given = setting()
    given.Y[::3, 1] = torch.nan
    model = Setting(given.X, given.Y, options={"allow_missing": True}).build(ExactMultiTaskGP)
    found = GPyTorchPosterior(model.eval()(POINTS))
    same_posterior(found, given.reference(ExactMultiTaskGP).posterior(POINTS), 1e-9)


@pytest.mark.parametrize("how", ["plain", "known noise"])
def test_missing_values(how: str) -> None:
    given = setting(Yvar=0.02 + 0.1 * seeded(T, 2, seed=3) if how != "plain" else None)
    given.Y[::3, 1] = torch.nan
    model = Setting(given.X, given.Y, given.Yvar, options={"allow_missing": True}).build(ExactMultiTaskGP)
    same_posterior(model.posterior(POINTS), given.reference(ExactMultiTaskGP).posterior(POINTS), 1e-9)


def test_a_call_in_evaluation_on_a_dictionary() -> None:
    given = setting()
    options = {"covar_module": ICMKernel(base_kernel(), B), "eta": ETA, "mean_module": prior_mean(2)}
    model = NystromMultiTaskGP(given.X, given.Y, dictionary=torch.arange(3), **options)
    same_posterior(GPyTorchPosterior(model.eval()(POINTS)), model.posterior(POINTS), 1e-9)


@pytest.mark.parametrize("before", ["posterior", "call", "both"])
@pytest.mark.parametrize("kind", SINGLE + ONE_TASK, ids=str)
def test_get_fantasy_model_is_conditioning(kind: Kind, before: str) -> None:
    model, reference = kind.pair()
    if before != "call":
        model.posterior(POINTS)
    if before != "posterior":
        model.eval()(POINTS)
    Y = kind.values(NEW_X)
    found = model.get_fantasy_model(NEW_X, Y).posterior(POINTS)
    same_posterior(found, reference.condition_on_observations(NEW_X, Y).posterior(POINTS), kind.tolerance)


# Cross-validation


def leave_one_out(kind: Kind, how: str, noisy: bool) -> tuple[Tensor, Tensor]:
    """Predict every observation by BoTorch's model of the others."""
    given = make_setting(kind, how)
    means, found = [], []
    for i in range(T):
        kept = [j for j in range(T) if j != i]
        Yvar = None if given.Yvar is None else given.Yvar[kept]
        reference = Setting(given.X[kept], given.Y[kept], Yvar).reference(ExactMultiTaskGP)
        own = torch.full_like(given.Y[i], ETA) if given.Yvar is None else given.Yvar[i]
        posterior = reference.posterior(given.X[i : i + 1], observation_noise=own if noisy else False)
        means.append(posterior.mean)
        found.append(posterior.variance)
    return torch.stack(means), torch.stack(found)


def make_setting(kind: Kind, how: str) -> Setting:
    return setting(kind.tasks, Yvar=0.02 + 0.1 * seeded(T, kind.tasks, seed=3) if "known" in how else None)


@pytest.mark.parametrize("noisy", [False, True], ids=["latent", "noisy"])
@pytest.mark.parametrize("how", ["plain", "known noise"])
@pytest.mark.parametrize("helper", [loo_cv, efficient_loo_cv], ids=["loo_cv", "efficient_loo_cv"])
@pytest.mark.parametrize("kind", [EXACT, NYSTROM, ONE_EXACT], ids=str)
def test_botorchs_leave_one_out_is_refused(kind: Kind, helper: Any, how: str, noisy: bool) -> None:
    """BoTorch solves with train_targets as n x t values, or as t of one output; the model has leave_one_out."""
    model = make_setting(kind, how).build(kind.model_class)
    with pytest.raises(RuntimeError):
        helper(model, observation_noise=noisy)


@pytest.mark.parametrize("how", ["plain", "known noise"])
@pytest.mark.parametrize("kind", [EXACT, ONE_EXACT], ids=str)
def test_our_leave_one_out(kind: Kind, how: str) -> None:
    mean, covariance = make_setting(kind, how).build(ExactMultiTaskGP).leave_one_out()
    expected_mean, variance = leave_one_out(kind, how, noisy=True)
    close(mean, expected_mean.squeeze(-2), 1e-9)
    close(covariance.diagonal(dim1=-2, dim2=-1), variance.squeeze(-2), 1e-9)


@pytest.mark.parametrize("how", ["plain", "known noise"])
@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_batch_cross_validation(kind: Kind, how: str) -> None:
    given = make_setting(kind, how)
    folds = gen_loo_cv_folds(given.X, given.Y, given.Yvar)
    options: dict[str, Any] = {"covar_module": ICMKernel(base_kernel(), B), "mean_module": prior_mean(2)}
    options |= {} if given.Yvar is not None else {"eta": ETA}
    if kind is NYSTROM:
        options["dictionary"] = torch.arange(T - 1).expand(T, -1)
    found = batch_cross_validation(
        kind.model_class, ExactMarginalLogLikelihood, folds, model_init_kwargs=options
    ).posterior
    mean, variance = leave_one_out(kind, how, noisy=False)
    close(found.mean, mean, kind.tolerance)
    close(found.variance, variance, kind.tolerance)


@pytest.mark.parametrize("kind", [EXACT, ONE_EXACT], ids=str)
def test_in_sample_fit_is_the_likelihood(kind: Kind) -> None:
    model, _ = kind.pair()
    expected = -2 * model.log_marginal_likelihood().item()
    assert compute_in_sample_model_fit_metric(model, "MLL") == pytest.approx(-expected / 2, abs=1e-9)
    parameters = sum(parameter.numel() for parameter in model.parameters())  # BoTorch counts those that are fixed, too
    assert compute_in_sample_model_fit_metric(model, "AIC") == pytest.approx(expected + 2 * parameters, abs=1e-9)


# Learning


class Penalized(ExactMarginalLogLikelihood):
    """The likelihood, and a wish for one noise."""

    def forward(self, function_dist: Any, target: Tensor, *params: Any, **kwargs: Any) -> Tensor:
        value = super().forward(function_dist, target, *params, **kwargs)
        return value - 100 * (self.likelihood.task_noises.log() - torch.tensor(0.2).log()).square().sum()


def learn(mll_class: type[ExactMarginalLogLikelihood], model_class: type[Any]) -> Any:
    given = setting()
    model = model_class(given.X, given.Y)
    fit_gpytorch_mll(mll_class(model.likelihood, model))
    return model


def test_a_penalty_on_the_likelihood_is_learned_with() -> None:
    noise = learn(Penalized, ExactMultiTaskGP).noise
    torch.testing.assert_close(noise, torch.full_like(noise, 0.2), rtol=0.1, atol=0)
    with pytest.raises(UnsupportedError, match="mll should be an ExactMarginalLogLikelihood for a NystromMultiTaskGP"):
        learn(Penalized, NystromMultiTaskGP)


def test_a_penalty_with_missing_values_is_refused() -> None:
    given = setting()
    given.Y[::3, 1] = torch.nan
    model = ExactMultiTaskGP(given.X, given.Y, allow_missing=True)
    with pytest.raises(UnsupportedError, match="with missing values, got Penalized"):
        fit_gpytorch_mll(Penalized(model.likelihood, model))


@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_to_learn_by_leave_one_out_is_refused(kind: Kind) -> None:
    with pytest.raises(UnsupportedError, match="got LeaveOneOutPseudoLikelihood"):
        learn(LeaveOneOutPseudoLikelihood, kind.model_class)


# Transforms that look at a feature


@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_a_transform_by_strata_is_refused(kind: Kind) -> None:
    X = torch.cat([seeded(T, 1), (torch.arange(T) % 2).double().unsqueeze(-1)], dim=-1)
    transform = StratifiedStandardize(stratification_idx=1, all_task_values=torch.arange(2))
    with pytest.raises(ValueError, match="the same map at every point, got StratifiedStandardize"):
        kind.model_class(X, evaluate(X)[:, :1], outcome_transform=transform)


@pytest.mark.parametrize("kind", LISTS_OF_ONES, ids=str)
def test_lists_of_models_with_input_transforms_are_not_conditioned(kind: Kind) -> None:
    """BoTorch's own lists do not transform the inputs then."""
    Y = evaluate(POINTS)
    members = [kind.model_class(POINTS, Y[:, [i]], input_transform=Normalize(D)) for i in range(2)]
    with pytest.raises(UnsupportedError, match="do not say whether inputs are transformed"):
        ModelListGP(*members).condition_on_observations([NEW_X, NEW_X], evaluate(NEW_X))


def test_the_second_model_of_a_list_has_other_values() -> None:
    """Else lists could not tell their members apart."""
    given = setting()
    assert (other(given).Y - given.Y).abs().min() > 1e-3
