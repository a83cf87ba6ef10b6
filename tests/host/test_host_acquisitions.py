"""Every acquisition function of BoTorch: its value is that of BoTorch's own model, its gradient that of differences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ConstrainedExpectedImprovement,
    ExpectedImprovement,
    FixedFeatureAcquisitionFunction,
    LogExpectedImprovement,
    PosteriorMean,
    ProbabilityOfImprovement,
    ProximalAcquisitionFunction,
    UpperConfidenceBound,
    qExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
    qMultiStepLookahead,
    qNegIntegratedPosteriorVariance,
    qNoisyExpectedImprovement,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
    LogProbabilityOfImprovement,
    PosteriorStandardDeviation,
    ScalarizedPosteriorMean,
    qAnalyticProbabilityOfImprovement,
)
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.logei import qLogProbabilityOfFeasibility
from botorch.acquisition.max_value_entropy_search import qMultiFidelityMaxValueEntropy
from botorch.acquisition.monte_carlo import qLowerConfidenceBound, qPosteriorStandardDeviation
from botorch.acquisition.multi_objective import (
    ExpectedHypervolumeImprovement,
    qExpectedHypervolumeImprovement,
    qHypervolumeKnowledgeGradient,
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
    qNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_objective.joint_entropy_search import qLowerBoundMultiObjectiveJointEntropySearch
from botorch.acquisition.multi_objective.max_value_entropy_search import qLowerBoundMultiObjectiveMaxValueEntropySearch
from botorch.acquisition.multi_objective.multi_fidelity import MOMF
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.acquisition.multi_objective.predictive_entropy_search import qMultiObjectivePredictiveEntropySearch
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.acquisition.penalized import L2Penalty, PenalizedAcquisitionFunction
from botorch.acquisition.predictive_entropy_search import qPredictiveEntropySearch
from botorch.acquisition.prior_guided import PriorGuidedAcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Log, Standardize, Warp
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.list_sampler import ListSampler
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from host_reference import (
    EXACT,
    LISTS,
    LISTS_OF_ONES,
    NYSTROM,
    ONE_TASK,
    SINGLE,
    B,
    D,
    Dense,
    DenseList,
    Kind,
    T,
    base_kernel,
    evaluate,
    same_gradient,
    seeded,
)
from suites import close
from torch import Tensor

from mtbo_torch import ICMKernel

Make = Callable[[Any, Kind], AcquisitionFunction]

CANDIDATES = seeded(10, D, seed=11)
BASELINE = seeded(T, D)
REF_POINT = torch.tensor([-0.5, -1.5, -2.0, -1.5], dtype=torch.double)


def scalar(kind: Kind) -> ScalarizedPosteriorTransform:
    return ScalarizedPosteriorTransform(kind.weights)


def by_sum(kind: Kind) -> LinearMCObjective:
    return LinearMCObjective(kind.weights)


def draws(count: int = 16, seed: int = 3) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=seed)


def analytic(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    return lambda model, kind: acquisition(model, posterior_transform=scalar(kind), **options)


def monte_carlo(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    return lambda model, kind: acquisition(model, objective=by_sum(kind), sampler=draws(), **options)


def fantasized(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    """An analytic acquisition function on a model that has seen fantasies."""

    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        fantasies = model.fantasize(seeded(2, D, seed=21), draws(3))
        return acquisition(fantasies, posterior_transform=scalar(kind), **options)

    return make


def partitioning(kind: Kind) -> NondominatedPartitioning:
    Y = torch.cat([evaluate(BASELINE), 0.5 - evaluate(BASELINE).flip(-1)], dim=-1)[..., : kind.num_outputs]
    return NondominatedPartitioning(ref_point=REF_POINT[: kind.num_outputs], Y=Y)


def hypervolume(acquisition: type[AcquisitionFunction]) -> Make:
    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        ref_point = REF_POINT[: kind.num_outputs]
        return acquisition(model, ref_point=ref_point, partitioning=partitioning(kind), sampler=draws())

    return make


def noisy_hypervolume(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        ref_point = REF_POINT[: kind.num_outputs]
        return acquisition(model, ref_point=ref_point, X_baseline=BASELINE, sampler=draws(8), **options)

    return make


def expected_hypervolume(model: Any, kind: Kind) -> AcquisitionFunction:
    return ExpectedHypervolumeImprovement(model, REF_POINT[: kind.num_outputs].tolist(), partitioning(kind))


def parego(model: Any, kind: Kind) -> AcquisitionFunction:
    weights = kind.weights.abs() / kind.weights.abs().sum()
    return qLogNParEGO(model, BASELINE, scalarization_weights=weights, sampler=draws(), prune_baseline=True)


def entropy(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        torch.manual_seed(5)
        found = acquisition(model, CANDIDATES, posterior_transform=scalar(kind), num_mv_samples=4, **options)
        return found

    return make


def joint_entropy(noiseless: bool, kind_of_estimate: str = "LB") -> Make:
    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        inputs = seeded(3, D, seed=13)
        outputs = torch.cat([evaluate(inputs), 0.5 - evaluate(inputs).flip(-1)], dim=-1)[..., : kind.num_outputs] + 0.5
        options = {"condition_noiseless": noiseless, "estimation_type": kind_of_estimate, "num_samples": 8}
        torch.manual_seed(5)
        return qJointEntropySearch(model, inputs, outputs, posterior_transform=scalar(kind), **options)

    return make


def pareto_sample(kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
    """Two sampled Pareto sets of three points, their fronts, and the boxes they dominate."""
    sets = seeded(2, 3, D, seed=15)
    steps = torch.tensor([0.0, 0.4, 0.8], dtype=torch.double).unsqueeze(-1)
    fronts = torch.cat([1 + steps, 2 - steps, 1 + steps, 2 - steps], dim=-1)[..., : kind.num_outputs]
    fronts = torch.stack([fronts, fronts + 0.3])
    return sets, fronts, compute_sample_box_decomposition(fronts)


def pareto_joint_entropy(model: Any, kind: Kind) -> AcquisitionFunction:
    return qLowerBoundMultiObjectiveJointEntropySearch(model, *pareto_sample(kind), estimation_type="LB")


def pareto_value_entropy(model: Any, kind: Kind) -> AcquisitionFunction:
    return qLowerBoundMultiObjectiveMaxValueEntropySearch(model, pareto_sample(kind)[2], estimation_type="LB")


def pareto_predictive_entropy(model: Any, kind: Kind) -> AcquisitionFunction:
    return qMultiObjectivePredictiveEntropySearch(model, pareto_sample(kind)[0], max_ep_iterations=5)


def predictive_entropy(model: Any, kind: Kind) -> AcquisitionFunction:
    return qPredictiveEntropySearch(model, seeded(3, D, seed=13), max_ep_iterations=5)


def knowledge_gradient(**options: Any) -> Make:
    def make(model: Any, kind: Kind) -> AcquisitionFunction:
        return qKnowledgeGradient(model, 3, sampler=draws(3), posterior_transform=scalar(kind), **options)

    return make


def knowledge_gradient_by_draws(model: Any, kind: Kind) -> AcquisitionFunction:
    return qKnowledgeGradient(model, 3, sampler=draws(3), objective=by_sum(kind), inner_sampler=draws(8, seed=4))


def cost() -> InverseCostWeightedUtility:
    return InverseCostWeightedUtility(GenericDeterministicModel(lambda X: 1 + X.sum(dim=-1, keepdim=True)))


def at_full_fidelity(X: Tensor) -> Tensor:
    return torch.cat([X[..., :1], torch.ones_like(X[..., 1:])], dim=-1)


def knowledge_gradient_by_cost(model: Any, kind: Kind) -> AcquisitionFunction:
    return qMultiFidelityKnowledgeGradient(
        model,
        3,
        sampler=draws(3),
        posterior_transform=scalar(kind),
        current_value=torch.tensor(0.1, dtype=torch.double),
        cost_aware_utility=cost(),
        project=at_full_fidelity,
    )


def entropy_by_cost(model: Any, kind: Kind) -> AcquisitionFunction:
    torch.manual_seed(5)
    options = {"num_mv_samples": 4, "num_y_samples": 8, "num_fantasies": 2, "cost_aware_utility": cost()}
    options["project"] = at_full_fidelity
    return qMultiFidelityMaxValueEntropy(model, CANDIDATES, posterior_transform=scalar(kind), **options)


def lookahead(model: Any, kind: Kind) -> AcquisitionFunction:
    samplers = [draws(2, seed=7), draws(2, seed=8)]
    return qMultiStepLookahead(model, batch_sizes=[1, 1], samplers=samplers, posterior_transform=scalar(kind))


def lookahead_by_stages(model: Any, kind: Kind) -> AcquisitionFunction:
    """The one-step value of improvement is counted in each stage."""
    best = lambda model, X: {"best_f": 0.3}  # noqa: E731
    return qMultiStepLookahead(
        model,
        batch_sizes=[1],
        samplers=[draws(2, seed=7)],
        valfunc_cls=[ExpectedImprovement, ExpectedImprovement],
        valfunc_argfacs=[best, best],
        posterior_transform=scalar(kind),
    )


def hypervolume_knowledge_gradient(model: Any, kind: Kind) -> AcquisitionFunction:
    return qHypervolumeKnowledgeGradient(
        model,
        REF_POINT[: kind.num_outputs],
        num_fantasies=2,
        num_pareto=2,
        sampler=ListSampler(*(draws(2, seed=30 + i) for i in range(kind.num_outputs))),
    )


def constrained(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    bounds = {1: (None, 0.8)}
    return lambda model, kind: acquisition(model, objective_index=0, constraints=bounds, **options)


def constrained_draws(acquisition: type[AcquisitionFunction], **options: Any) -> Make:
    objective = GenericMCObjective(lambda Y, X=None: Y[..., 0])
    under = [lambda Y: Y[..., 1] - 0.8]
    return lambda model, kind: acquisition(
        model, objective=objective, constraints=under, sampler=draws(), eta=0.1, **options
    )


def feasible(model: Any, kind: Kind) -> AcquisitionFunction:
    return LogProbabilityOfFeasibility(model, {1: (None, 0.8), 0: (-1.0, 2.0)})


def feasible_draws(model: Any, kind: Kind) -> AcquisitionFunction:
    return qLogProbabilityOfFeasibility(model, [lambda Y: Y[..., 1] - 0.8], sampler=draws())


def mean_of_variances(model: Any, kind: Kind) -> AcquisitionFunction:
    return qNegIntegratedPosteriorVariance(model, CANDIDATES, sampler=draws(1), posterior_transform=scalar(kind))


def proximal(model: Any, kind: Kind) -> Any:
    inner, widths = analytic(ExpectedImprovement, best_f=0.3)(model, kind), torch.tensor([0.3, 0.5], dtype=torch.double)
    if isinstance(model, Dense | DenseList):  # by hand: close to the point that was observed last
        last = BASELINE[-1]
        return lambda X: inner(X) * (-((X - last) / widths).square().sum(dim=(-2, -1)) / 2).exp()
    return ProximalAcquisitionFunction(inner, widths)


def penalized(model: Any, kind: Kind) -> AcquisitionFunction:
    inner = qExpectedImprovement(model, 0.3, objective=by_sum(kind), sampler=draws())
    return PenalizedAcquisitionFunction(inner, L2Penalty(torch.zeros(D, dtype=torch.double)), 0.1)


def guided(model: Any, kind: Kind) -> AcquisitionFunction:
    prior = torch.nn.Module()
    prior.forward = lambda X: 1 + X.square().sum(dim=-1)
    return PriorGuidedAcquisitionFunction(ExpectedImprovement(model, 0.3, posterior_transform=scalar(kind)), prior)


def one_free_feature(model: Any, kind: Kind) -> AcquisitionFunction:
    inner = qLogExpectedImprovement(model, 0.3, objective=by_sum(kind), sampler=draws())
    return FixedFeatureAcquisitionFunction(inner, d=D, columns=[0], values=[0.4])


def with_pending(make: Make) -> Make:
    def with_points(model: Any, kind: Kind) -> AcquisitionFunction:
        found = make(model, kind)
        found.set_X_pending(seeded(2, D, seed=17))
        return found

    return with_points


# Each use: how to build it, and how many points it takes.
ONE_POINT: dict[str, Make] = {
    "ExpectedImprovement": analytic(ExpectedImprovement, best_f=0.3),
    "LogExpectedImprovement": analytic(LogExpectedImprovement, best_f=0.3),
    "ProbabilityOfImprovement": analytic(ProbabilityOfImprovement, best_f=0.3),
    "LogProbabilityOfImprovement": analytic(LogProbabilityOfImprovement, best_f=0.3),
    "UpperConfidenceBound": analytic(UpperConfidenceBound, beta=2.0),
    "PosteriorMean": analytic(PosteriorMean),
    "PosteriorStandardDeviation": analytic(PosteriorStandardDeviation),
    "ExpectedImprovement of fantasies": fantasized(ExpectedImprovement, best_f=0.3),
    "LogExpectedImprovement of fantasies": fantasized(LogExpectedImprovement, best_f=0.3),
    "PosteriorMean of fantasies": fantasized(PosteriorMean),
    "UpperConfidenceBound of fantasies": fantasized(UpperConfidenceBound, beta=2.0),
    "ConstrainedExpectedImprovement": constrained(ConstrainedExpectedImprovement, best_f=0.3),
    "LogConstrainedExpectedImprovement": constrained(LogConstrainedExpectedImprovement, best_f=0.3),
    "LogProbabilityOfFeasibility": feasible,
    "ExpectedHypervolumeImprovement": expected_hypervolume,
    "ProximalAcquisitionFunction": proximal,
    "PriorGuidedAcquisitionFunction": guided,
    "qMaxValueEntropy": entropy(qMaxValueEntropy, num_y_samples=8),
    "qMaxValueEntropy, pending points": entropy(
        qMaxValueEntropy, num_y_samples=8, num_fantasies=2, X_pending=seeded(2, D, seed=17)
    ),
    "qMultiFidelityMaxValueEntropy": entropy_by_cost,
    "qLowerBoundMaxValueEntropy": entropy(qLowerBoundMaxValueEntropy),
}
SOME_POINTS: dict[str, Make] = {
    "ScalarizedPosteriorMean": lambda model, kind: ScalarizedPosteriorMean(
        model, torch.tensor([0.6, 0.4], dtype=torch.double), posterior_transform=scalar(kind)
    ),
    "qAnalyticProbabilityOfImprovement": analytic(qAnalyticProbabilityOfImprovement, best_f=0.3),
    "qExpectedImprovement": monte_carlo(qExpectedImprovement, best_f=0.3),
    "qExpectedImprovement, posterior transform": lambda model, kind: qExpectedImprovement(
        model, 0.3, sampler=draws(), posterior_transform=scalar(kind)
    ),
    "qExpectedImprovement, pending points": with_pending(monte_carlo(qExpectedImprovement, best_f=0.3)),
    "qExpectedImprovement, constraints": constrained_draws(qExpectedImprovement, best_f=0.3),
    "qLogExpectedImprovement": monte_carlo(qLogExpectedImprovement, best_f=0.3),
    "qLogExpectedImprovement, constraints": constrained_draws(qLogExpectedImprovement, best_f=0.3),
    "qNoisyExpectedImprovement": monte_carlo(
        qNoisyExpectedImprovement, X_baseline=BASELINE, prune_baseline=False, cache_root=False
    ),
    "qNoisyExpectedImprovement, pruned": monte_carlo(
        qNoisyExpectedImprovement, X_baseline=BASELINE, prune_baseline=True, cache_root=False
    ),
    "qLogNoisyExpectedImprovement": monte_carlo(
        qLogNoisyExpectedImprovement, X_baseline=BASELINE, prune_baseline=False, cache_root=False
    ),
    "qProbabilityOfImprovement": monte_carlo(qProbabilityOfImprovement, best_f=1.2, tau=0.2),
    "qSimpleRegret": monte_carlo(qSimpleRegret),
    "qUpperConfidenceBound": monte_carlo(qUpperConfidenceBound, beta=2.0),
    "qLowerConfidenceBound": monte_carlo(qLowerConfidenceBound, beta=2.0),
    "qPosteriorStandardDeviation": monte_carlo(qPosteriorStandardDeviation),
    "qLogProbabilityOfFeasibility": feasible_draws,
    "qExpectedHypervolumeImprovement": hypervolume(qExpectedHypervolumeImprovement),
    "qLogExpectedHypervolumeImprovement": hypervolume(qLogExpectedHypervolumeImprovement),
    "qNoisyExpectedHypervolumeImprovement": noisy_hypervolume(qNoisyExpectedHypervolumeImprovement),
    "qNoisyExpectedHypervolumeImprovement, pruned": noisy_hypervolume(
        qNoisyExpectedHypervolumeImprovement, prune_baseline=True
    ),
    "qLogNoisyExpectedHypervolumeImprovement": noisy_hypervolume(qLogNoisyExpectedHypervolumeImprovement),
    "qLogNoisyExpectedHypervolumeImprovement, pending points": with_pending(
        noisy_hypervolume(qLogNoisyExpectedHypervolumeImprovement)
    ),
    "MOMF": lambda model, kind: MOMF(
        model, REF_POINT[: kind.num_outputs], partitioning(kind), sampler=draws(), cost_call=lambda X: 1 + X.sum(-1)
    ),
    "qLogNParEGO": parego,
    "qJointEntropySearch": joint_entropy(noiseless=False),
    "qJointEntropySearch, noiseless": joint_entropy(noiseless=True),
    "qJointEntropySearch, Monte Carlo": joint_entropy(noiseless=False, kind_of_estimate="MC"),
    "qPredictiveEntropySearch": predictive_entropy,
    "qLowerBoundMultiObjectiveJointEntropySearch": pareto_joint_entropy,
    "qLowerBoundMultiObjectiveMaxValueEntropySearch": pareto_value_entropy,
    "qMultiObjectivePredictiveEntropySearch": pareto_predictive_entropy,
    "qNegIntegratedPosteriorVariance": mean_of_variances,
    "PenalizedAcquisitionFunction": penalized,
    "FixedFeatureAcquisitionFunction": one_free_feature,
}
LOOK_AHEAD: dict[str, tuple[Make, int]] = {
    "qKnowledgeGradient": (knowledge_gradient(), 2 + 3),
    "qKnowledgeGradient, current value": (knowledge_gradient(current_value=torch.tensor(0.1).double()), 1 + 3),
    "qKnowledgeGradient, pending points": (with_pending(knowledge_gradient()), 1 + 3),
    "qKnowledgeGradient, inner draws": (knowledge_gradient_by_draws, 1 + 3),
    "qMultiFidelityKnowledgeGradient": (knowledge_gradient_by_cost, 1 + 3),
    "qMultiStepLookahead": (lookahead, 1 + 2 + 4),
    "qMultiStepLookahead, value of each stage": (lookahead_by_stages, 1 + 2),
    "qHypervolumeKnowledgeGradient": (hypervolume_knowledge_gradient, 1 + 2 * 2),
}
USES: dict[str, tuple[Make, int]] = {
    **{name: (make, 1) for name, make in ONE_POINT.items()},
    **{name: (make, 2) for name, make in SOME_POINTS.items()},
    **LOOK_AHEAD,
}
ENTROPY_OF_ONE = ["qMaxValueEntropy", "qMaxValueEntropy, pending points", "qMultiFidelityMaxValueEntropy"]
ENTROPY_OF_ONE += ["qLowerBoundMaxValueEntropy", "qJointEntropySearch", "qJointEntropySearch, noiseless"]
ENTROPY_OF_ONE += ["qJointEntropySearch, Monte Carlo", "qPredictiveEntropySearch", "qKnowledgeGradient"]
ENTROPY_OF_ONE += ["ProximalAcquisitionFunction", "qMultiObjectivePredictiveEntropySearch"]
FANTASIES = [name for name in USES if name in LOOK_AHEAD or "fantasies" in name]
FANTASIES += ["qNegIntegratedPosteriorVariance"]
CONDITIONED = [name for name in USES if "JointEntropy" in name]

# What BoTorch itself does not do with models of several outputs: it says so, or it looks for data that are not there.
ONE_OUTPUT = (UnsupportedError, "Multi-output models are not supported")
REFUSED: dict[tuple[str, str], tuple[type[Exception], str]] = {}
for kind in SINGLE + LISTS + LISTS_OF_ONES:
    REFUSED |= {(name, kind.name): ONE_OUTPUT for name in ENTROPY_OF_ONE[:4]}
for kind in SINGLE:
    REFUSED[("qJointEntropySearch, Monte Carlo", kind.name)] = (AssertionError, "output shape")
    REFUSED[("qPredictiveEntropySearch", kind.name)] = (RuntimeError, "size of tensor")
    REFUSED[("qMultiObjectivePredictiveEntropySearch", kind.name)] = (RuntimeError, "size of tensor")
    REFUSED[("qHypervolumeKnowledgeGradient", kind.name)] = (ValueError, "requires using a ModelList")
for kind in LISTS:
    REFUSED |= {(name, kind.name): (IndexError, "out of range") for name in FANTASIES}
    REFUSED |= {(name, kind.name): (BotorchTensorDimensionError, "number of inputs") for name in CONDITIONED}

LAST_POINT = "BoTorch takes the first row of train_inputs for the inputs of the first output"
WRONG = {("ProximalAcquisitionFunction", kind.name): LAST_POINT for kind in SINGLE + LISTS}

# Whose gradient is BoTorch's own approximation, or not there.
GRADIENT_OF_HOST = ["qAnalyticProbabilityOfImprovement"]


def list_uses(refused: bool) -> list[Any]:
    """Return every use with every kind of model that it is for; all but every other one of the exact model are slow.

    Of lists those of exact models will do: a list asks its members for what was compared with each of them alone.
    """
    kinds = dict.fromkeys(USES, SINGLE + LISTS[:1])
    for name in ENTROPY_OF_ONE:
        kinds[name] = kinds[name] + ONE_TASK
    for name in [*FANTASIES, *CONDITIONED]:
        if name == "qJointEntropySearch, Monte Carlo":
            continue  # for one output only
        kinds[name] = kinds[name] + LISTS_OF_ONES[:1]
    found = []
    for i, (name, each) in enumerate(kinds.items()):
        for kind in each:
            key = (name, kind.name)
            if (key in REFUSED) != refused:
                continue
            marks = [pytest.mark.xfail(strict=True, reason=WRONG[key], raises=AssertionError)] if key in WRONG else []
            is_quick = (kind is EXACT or kind in ONE_TASK) and i % 2 == 0
            marks += [] if is_quick else [pytest.mark.slow]
            found.append(pytest.param(name, kind, id=f"{name}-{kind.name}", marks=marks))
    return found


def points_for(name: str, seed: int = 19) -> Tensor:
    if name.endswith("of fantasies"):
        return seeded(2, 1, 1, D, seed=seed)  # at each for all fantasies
    return seeded(2, USES[name][1], 1 if name == "FixedFeatureAcquisitionFunction" else D, seed=seed)


def seeded_value(acqf: AcquisitionFunction, X: Tensor) -> Tensor:
    torch.manual_seed(1)  # some draw at every call
    return acqf(X)


def build(name: str, model: Any, kind: Kind) -> AcquisitionFunction:
    torch.manual_seed(1)  # some draw when they are built
    return USES[name][0](model, kind)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.parametrize(("name", "kind"), list_uses(refused=False))
def test_values_are_those_of_botorchs_model_and_gradients_those_of_differences(name: str, kind: Kind) -> None:
    model, reference = kind.pair()
    X = points_for(name)
    acqf, other = build(name, model, kind), build(name, reference, kind)
    close(seeded_value(acqf, X), seeded_value(other, X), kind.tolerance)
    if name in GRADIENT_OF_HOST:
        X.requires_grad_(True)
        mine, hosts = (torch.autograd.grad(seeded_value(each, X).sum(), X)[0] for each in (acqf, other))
        close(mine, hosts, kind.tolerance)
    else:
        same_gradient(lambda X: seeded_value(acqf, X), X)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.parametrize(("name", "kind"), list_uses(refused=True))
def test_what_the_host_refuses_of_any_model_of_several_outputs(name: str, kind: Kind) -> None:
    model, reference = kind.pair()
    error, message = REFUSED[(name, kind.name)]
    with pytest.raises(error, match=message):
        build(name, model, kind)(points_for(name))
    if not kind.is_list:
        with pytest.raises(error, match=message):
            build(name, reference, kind)(points_for(name))


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "known"), [(EXACT, True), (NYSTROM, False)], ids=["known noise", "one noise"])
@pytest.mark.parametrize("name", USES)
def test_values_and_gradients_with_transforms(name: str, kind: Kind, known: bool, request: Any) -> None:
    reason = WRONG.get((name, kind.name))
    if (name, kind.name) in REFUSED:
        pytest.skip("refused")
    if reason is not None:
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError))
    Yvar = 0.02 + 0.1 * seeded(T, kind.tasks, seed=3) if known else None
    model, reference = kind.pair(transformed=True, Yvar=Yvar)
    X = points_for(name, seed=20 if name == "ExpectedHypervolumeImprovement" else 19)  # where it is not flat
    acqf, other = build(name, model, kind), build(name, reference, kind)
    close(seeded_value(acqf, X), seeded_value(other, X), kind.tolerance)
    if name not in GRADIENT_OF_HOST:
        same_gradient(lambda X: seeded_value(acqf, X), X)


@pytest.mark.parametrize("warped", [False, True], ids=["plain", "warped inputs"])
@pytest.mark.parametrize("noise", ["fixed noise", "learned noise"])
@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_fantasies_can_be_differentiated_again_and_again(kind: Kind, noise: str, warped: bool) -> None:
    options: dict[str, Any] = {"eta": 0.1} if noise == "fixed noise" else {}
    options |= {"input_transform": Warp(d=D, indices=[0, 1]).double()} if warped else {}
    model = kind.model_class(BASELINE, evaluate(BASELINE), **options)
    acqf = fantasized(PosteriorMean)(model, kind)
    found = []
    for _ in range(2):
        X = seeded(1, 1, D, seed=19).requires_grad_(True)
        acqf(X).sum().backward()
        found.append(X.grad)
    close(found[0], found[1], 0.0)


@pytest.mark.parametrize("name", LOOK_AHEAD)
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
def test_a_look_ahead_with_everything_learned_can_be_differentiated_again_and_again(name: str) -> None:
    if name == "qHypervolumeKnowledgeGradient":
        pytest.skip("for lists only")
    model = EXACT.model_class(BASELINE, evaluate(BASELINE))
    acqf = build(name, model, EXACT)
    same_gradient(lambda X: seeded_value(acqf, X), points_for(name))
    for _ in range(2):
        X = points_for(name).requires_grad_(True)
        seeded_value(acqf, X).sum().backward()
        assert X.grad.isfinite().all()


@pytest.mark.parametrize("transform", [None, Standardize(2), Log()], ids=["plain", "standardized", "logarithms"])
@pytest.mark.parametrize("kind", SINGLE, ids=str)
def test_the_gradient_by_the_point_of_a_fantasy(kind: Kind, transform: Any) -> None:
    transform = copy.deepcopy(transform)
    kernel = ICMKernel(base_kernel(), B)
    Y = evaluate(BASELINE).exp()
    model = kind.model_class(BASELINE, Y, covar_module=kernel, eta=0.1, outcome_transform=transform)
    Z = seeded(3, D, seed=23)
    same_gradient(lambda x: model.fantasize(x, draws(2)).posterior(Z).mean, seeded(2, D, seed=21))
    same_gradient(lambda x: model.fantasize(x, draws(2)).posterior(Z).variance, seeded(2, D, seed=21))
