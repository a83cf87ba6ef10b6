"""What BoTorch and Ax need to drive the acquisition functions: input constructors, and real Ax trials."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core.analysis_card import ErrorAnalysisCard
from ax.generation_strategy.generation_node import GenerationStep
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.multi_objective.objective import (
    FeasibilityWeightedMCMultiOutputObjective,
    WeightedMCMultiOutputObjective,
)
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils import sampling
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from catalogue import data, icm, rbf
from suites import check_gradient, close
from torch import Tensor

import mtbo_torch
from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    ScalarizedMultiTaskUCB,
    exact_radius,
    nystrom_radius,
)
from mtbo_torch.ax import make_generation_strategy

# At a kink of a Chebyshev scalarization BoTorch's line search ends early, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Optimization failed")

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.double)
Point = dict[str, float]
Outcomes = dict[str, Any]


def fitted(n: int = 2, **kwargs: object) -> ExactMultiTaskGP:
    X, Y, _ = data(8, n, 2)
    return ExactMultiTaskGP(X, Y, icm(n, 2).kernel, **({"eta": 0.1} | kwargs))


def signed(*coefficients: float, outcomes: list[int] | None = None) -> WeightedMCMultiOutputObjective:
    return WeightedMCMultiOutputObjective(torch.tensor(coefficients, dtype=torch.double), outcomes=outcomes)


def constructed(model: object, **kwargs: Any) -> ScalarizedMultiTaskUCB:
    return ScalarizedMultiTaskUCB(**get_acqf_input_constructor(ScalarizedMultiTaskUCB)(model=model, **kwargs))


def test_outcomes_are_turned_into_objectives_that_are_all_maximized() -> None:
    model = fitted()
    _, _, Z = data(8, 2, 2)
    ref_point = torch.tensor([-0.4, -0.2], dtype=torch.double)
    acqf = constructed(
        model, objective=signed(1.0, -2.0, outcomes=[1, 0]), ref_point=ref_point, weights=WEIGHTS, radius=1.5
    )
    mean = model.mean(Z)
    objectives = torch.stack([mean[:, 1], -2 * mean[:, 0]], dim=-1)
    scalarized = (WEIGHTS * (objectives - ref_point)).amin(dim=-1)
    # The norm is that of the objectives.
    C = torch.tensor([[0.0, 1.0], [-2.0, 0.0]], dtype=torch.double)
    norm = torch.linalg.matrix_norm(C @ model.covariance(Z) @ C.T, ord=2)
    close(acqf(Z.unsqueeze(-2)), scalarized + 0.7 * 1.5 * norm.sqrt(), 1e-10)
    check_gradient(acqf, Z)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_the_lipschitz_constant_holds_whatever_the_coefficients(kind: type) -> None:
    scalarization = constructed(
        fitted(), objective=signed(3.0, -0.5), scalarization=kind, weights=WEIGHTS
    ).scalarization
    first, second = torch.randn(2, 1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    change = (scalarization(first) - scalarization(second)).abs()
    assert (change <= scalarization.lipschitz * (first - second).norm(dim=-1) + 1e-12).all()


def test_without_an_objective_all_outputs_are_maximized() -> None:
    model = fitted()
    _, _, Z = data(8, 2, 2)
    plain = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(WEIGHTS), radius=1.5)
    close(constructed(model, weights=WEIGHTS, radius=1.5)(Z.unsqueeze(-2)), plain(Z.unsqueeze(-2)), 1e-12)


def test_outputs_that_are_no_objectives_do_not_enter() -> None:
    model = fitted(n=3)
    _, _, Z = data(8, 3, 2)
    acqf = constructed(model, objective=signed(-1.0, 1.0, outcomes=[2, 0]), weights=WEIGHTS, radius=1.5)
    objectives = model.mean(Z)[:, [2, 0]] * torch.tensor([-1.0, 1.0], dtype=torch.double)
    block = model.covariance(Z)[:, [2, 0]][..., [2, 0]]
    expected = (WEIGHTS * objectives).amin(dim=-1) + 0.7 * 1.5 * torch.linalg.matrix_norm(block, 2).sqrt()
    close(acqf(Z.unsqueeze(-2)), expected, 1e-10)


def test_pending_points_are_passed_on() -> None:
    model = fitted()
    _, _, Z = data(8, 2, 2)
    free, pending = (constructed(model, weights=WEIGHTS, radius=1.5, X_pending=X) for X in (None, Z[:2]))
    assert torch.equal(pending.X_pending, Z[:2])
    assert (pending(Z.unsqueeze(-2)) < free(Z.unsqueeze(-2))).all()


def test_a_scalarization_is_of_the_objectives() -> None:
    model = fitted()
    _, _, Z = data(8, 2, 2)
    acqf = constructed(model, objective=signed(-1.0, 1.0), scalarization=LinearScalarization(WEIGHTS), radius=0.0)
    mean = model.mean(Z)
    close(acqf(Z.unsqueeze(-2)), -0.3 * mean[:, 0] + 0.7 * mean[:, 1], 1e-10)


def test_thresholds_that_are_not_known_are_the_origin() -> None:
    ref_point = torch.tensor([math.nan, -2.0], dtype=torch.double)
    scalarization = constructed(fitted(), ref_point=ref_point).scalarization.scalarization
    assert scalarization.ref_point.tolist() == [0.0, -2.0]


def test_weights_are_drawn_anew_for_each_round_of_the_same_seed() -> None:
    model = fitted()
    X, _, Z = data(8, 2, 2)

    def drawn(**kwargs: object) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return constructed(model, **kwargs).scalarization.weights

    several = [
        drawn(),
        drawn(X_baseline=X),
        drawn(X_baseline=X, X_pending=Z[:1]),
        drawn(scalarization=LinearScalarization),
    ]
    assert torch.pdist(torch.stack(several)).min() > 1e-3
    assert torch.equal(drawn(X_baseline=X), several[1])
    assert torch.equal(drawn(weights=FixedWeights(WEIGHTS), X_baseline=X), WEIGHTS)


def test_the_estimate_radius_is_the_theorys() -> None:
    model = fitted(eta=torch.tensor([0.1, 0.2]))
    norm = model.surrogate.regression.mean_norm
    assert norm > 1
    expected = exact_radius(model.info_gain, norm, noise_scale=0.3, eta=0.09, delta=0.1)
    close(mtbo_torch.ax_inputs.estimate_radius(model), expected, 1e-10)
    close(constructed(model).radius, expected, 1e-10)
    assert constructed(model, delta=0.01).radius > constructed(model).radius
    assert constructed(model, radius=1.5).radius == 1.5


def test_the_estimated_norm_is_at_least_one() -> None:
    X, Y, _ = data(8, 2, 2)
    model = ExactMultiTaskGP(X, 1e-3 * Y, icm(2, 2).kernel, eta=0.1)
    expected = exact_radius(model.info_gain, norm_bound=1.0, noise_scale=1.0, eta=1.0, delta=0.1)
    close(mtbo_torch.ax_inputs.estimate_radius(model), expected, 1e-10)


def test_the_estimate_radius_of_a_list_is_that_of_independent_tasks() -> None:
    X, Y, _ = data(8, 2, 2)
    together = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), torch.eye(2, dtype=torch.double)), eta=0.1)
    one = torch.ones(1, 1, dtype=torch.double)
    alone = [ExactMultiTaskGP(X, Y[:, i : i + 1], ICMKernel(rbf(0.5), one), eta=0.1) for i in range(2)]
    radius = mtbo_torch.ax_inputs.estimate_radius
    close(radius(ModelListGP(*alone)), radius(together), 1e-8)


def test_the_nystrom_acquisition() -> None:
    X, Y, Z = data(8, 2, 2)
    model = NystromMultiTaskGP(X, Y, icm(2, 2).kernel, eta=0.1)
    inputs = get_acqf_input_constructor(NystromScalarizedMultiTaskUCB)(model=model, objective=signed(1.0, -1.0))
    acqf = NystromScalarizedMultiTaskUCB(**inputs)
    assert acqf(Z.unsqueeze(-2)).shape == (7,)
    norm = model.surrogate.regression.mean_norm.clamp_min(1)
    close(acqf.radius, nystrom_radius(model.info_gain, norm, 1.0, 1.0, delta=0.1, epsilon=0.5), 1e-10)


def test_options_that_cannot_be_are_refused() -> None:
    model = fitted()
    X, Y, _ = data(8, 2, 2)
    with pytest.raises(TypeError, match="Unexpected keyword argument `radios`"):
        constructed(model, radios=1.0)
    with pytest.raises(ValueError, match="weights should not be given together with a scalarization"):
        constructed(model, scalarization=LinearScalarization(WEIGHTS), weights=WEIGHTS)
    for wrong in (max, dict):
        with pytest.raises(ValueError, match="scalarization should be a Scalarization or a class of them, got"):
            constructed(model, scalarization=wrong)
    for weights in (torch.ones(3), torch.ones(1), FixedWeights(torch.ones(3))):
        for kind in (None, LinearScalarization, HypervolumeScalarization):
            with pytest.raises(ValueError, match="weights should have one entry for each of the 2 objectives, got"):
                constructed(model, weights=weights, scalarization=kind)
    with pytest.raises(ValueError, match="scalarization should have one weight for each of the 2 objectives, got 3"):
        constructed(model, scalarization=LinearScalarization(torch.ones(3)))
    with pytest.raises(ValueError, match="ref_point should have one entry for each of the 2 tasks"):
        constructed(model, ref_point=torch.zeros(3))
    with pytest.raises(ValueError, match="radius should be given for a SingleTaskGP"):
        constructed(SingleTaskGP(X, Y))
    with pytest.raises(UnsupportedError, match="constraints should come with constraints_tuple"):
        constructed(model, constraints=[lambda Y: Y[..., 0]])
    with pytest.raises(ValueError, match="bound should be one of"):
        constructed(model, bound="box")
    feasibility = FeasibilityWeightedMCMultiOutputObjective(model, X, constraint_idcs=[])
    with pytest.raises(UnsupportedError, match="objective should be a WeightedMCMultiOutputObjective"):
        constructed(model, objective=feasibility)


def test_the_ellipsoid_and_the_hypervolume_are_options() -> None:
    model = fitted(n=3)
    _, _, Z = data(8, 3, 2)
    ref_point = torch.tensor([-1.5, -1.2], dtype=torch.double)
    acqf = constructed(
        model,
        objective=signed(-1.0, 1.0, outcomes=[2, 0]),
        ref_point=ref_point,
        weights=WEIGHTS,
        radius=1.5,
        bound="ellipsoid",
        scalarization=HypervolumeScalarization,
    )
    mean, sd = model.mean(Z), model.covariance(Z).diagonal(dim1=-2, dim2=-1).sqrt()
    optimistic = torch.stack([-mean[:, 2] + 1.5 * sd[:, 2], mean[:, 0] + 1.5 * sd[:, 0]], dim=-1)
    # Of which the scalarization is the square; the root also ranks what does not exceed the reference point.
    expected = ((optimistic - ref_point) / WEIGHTS).amin(dim=-1)
    close(acqf(Z.unsqueeze(-2)), expected, 1e-9)
    by_norm = constructed(model, ref_point=torch.zeros(3), radius=1.5, scalarization=HypervolumeScalarization)
    assert by_norm(Z.unsqueeze(-2)).isfinite().all()


def test_constraints_are_weighed_by_their_probability() -> None:
    model = fitted(n=3)
    X, _, Z = data(8, 3, 2)
    A, c = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.double), torch.tensor([[0.4]], dtype=torch.double)
    options = {"objective": signed(-1.0, 1.0, outcomes=[2, 0]), "weights": WEIGHTS, "radius": 1.5, "X_baseline": X}
    acqf = constructed(model, constraints=[lambda Y: Y[..., 1]], constraints_tuple=(A, c), **options)
    free = constructed(model, **options)(Z.unsqueeze(-2))
    sd = model.covariance(Z)[:, 1, 1].sqrt()
    p = torch.distributions.Normal(model.mean(Z)[:, 1], sd).cdf(torch.tensor(0.2, dtype=torch.double))
    worst = (WEIGHTS * torch.stack([-model.mean(X)[:, 2], model.mean(X)[:, 0]], dim=-1)).amin(dim=-1).amin()
    close(acqf(Z.unsqueeze(-2)), p * free + (1 - p) * worst, 1e-9)


def evaluated(point: Point) -> Outcomes:
    """The cost is least at (1, 1), the output largest at (2, 2), in a box that goes to 5."""
    distances = [sum((value - target) ** 2 for value in point.values()) for target in (1, 2)]
    return {"cost": distances[0], "output": -distances[1]}


def client_of(objective: str = "-cost, output", constraints: tuple[str, ...] = (), **options: object) -> Client:
    client = Client(random_seed=0)
    parameters = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 5.0)) for name in ("x", "y")]
    client.configure_experiment(parameters=parameters)
    client.configure_optimization(objective=objective, outcome_constraints=constraints)
    ours = {
        "surrogate_spec": SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=ExactMultiTaskGP)]),
        "botorch_acqf_class": ScalarizedMultiTaskUCB,
        "botorch_acqf_options": options,
    }
    first = GenerationStep(Generators.SOBOL, num_trials=2, generator_kwargs={"seed": 0})
    then = GenerationStep(Generators.BOTORCH_MODULAR, num_trials=-1, generator_kwargs=ours)
    client.set_generation_strategy(GenerationStrategy(nodes=[first, then]))
    return client


def run(client: Client, num_trials: int, evaluate: Any = evaluated) -> list[Outcomes]:
    outcomes = []
    for _ in range(num_trials):
        for index, point in client.get_next_trials(max_trials=1).items():
            outcomes.append(evaluate(point))
            client.complete_trial(trial_index=index, raw_data=outcomes[-1])
    return outcomes


def model_of(client: Client) -> ExactMultiTaskGP:
    model = client._generation_strategy.adapter.generator.surrogate.model
    assert type(model) is ExactMultiTaskGP
    return model


def objectives(outcomes: list[Outcomes]) -> Tensor:
    return torch.tensor([[-values["cost"], values["output"]] for values in outcomes], dtype=torch.double)


def hypervolume(Y: Tensor) -> float:
    return Hypervolume(torch.tensor([-15.0, -15.0])).compute(Y[is_non_dominated(Y)])


@pytest.mark.parametrize(
    ("objective", "options"),
    [("-cost, output", {}), pytest.param("output, -cost", {"radius": 1.0}, marks=pytest.mark.slow)],
)
def test_ten_trials(objective: str, options: dict[str, object]) -> None:
    client = client_of(objective, **options)
    Y = objectives(run(client, 10))
    model = model_of(client)
    assert model.num_outputs == 2
    assert model.train_targets.shape == (9, 2)  # the last trial was not yet there
    learned = model.covar_module.base_kernel.lengthscale
    fresh = ExactMultiTaskGP(model.train_inputs[0], model.train_targets).covar_module.base_kernel.lengthscale
    assert (learned - fresh).abs().max() > 1e-2
    assert hypervolume(Y) > 1.2 * hypervolume(Y[:2])
    if "radius" in options:  # the theory's, from estimates, explores too much to dominate both initial points so soon
        assert (Y[2:].unsqueeze(1) > Y[:2]).all(dim=-1).any(dim=0).all()
    assert 1 <= len(client.get_pareto_frontier()) <= 10


def test_standard_errors_are_the_noise() -> None:
    client = client_of(radius=1.0)

    def measured(point: Point) -> Outcomes:
        values = evaluated(point)
        return {"cost": (values["cost"], 0.1), "output": (values["output"], 0.1 + 0.01 * point["x"])}

    run(client, 5, measured)
    model = model_of(client)
    variances = model.likelihood.variances
    assert variances.shape == (4, 2)
    assert (variances[1:, 0] == variances[0, 0]).all()
    assert (variances[1:, 1] != variances[0, 1]).all()


def test_pending_trials_completed_in_another_order() -> None:
    client = client_of(radius=1.0)
    run(client, 3)
    running = client.get_next_trials(max_trials=1) | client.get_next_trials(max_trials=2)
    points = torch.tensor([[point["x"], point["y"]] for point in running.values()])
    assert torch.pdist(points).min() > 1e-2
    for index, point in reversed(running.items()):
        client.complete_trial(trial_index=index, raw_data=evaluated(point))
        client.get_next_trials(max_trials=1)
    assert model_of(client).train_targets.shape == (6, 2)


@pytest.mark.slow
def test_tracked_metrics_are_learned_but_not_optimized() -> None:
    client = client_of(radius=1.0)
    run(client, 4, lambda point: evaluated(point) | {"third": point["x"]})
    client.get_next_trials(max_trials=2)
    assert model_of(client).num_outputs == 3


# While everything seen is a dozen deviations outside, the probability to be inside is the same to all digits.
@pytest.mark.filterwarnings("ignore:All acquisition values for raw samples:botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.slow
def test_an_outcome_constraint_on_a_metric_that_is_no_objective() -> None:
    def measured(point: Point) -> Outcomes:
        return evaluated(point) | {"size": point["x"]}

    # Without the constraint x is between 1 and 2 for every point of the front.
    proposed = []
    for constraints, bound in ((("size <= 0.5",), "norm"), (("size <= 0.5",), "ellipsoid"), ((), "ellipsoid")):
        client = client_of(constraints=constraints, radius=1.0, bound=bound)
        outcomes = run(client, 9, measured)
        assert model_of(client).num_outputs == 3
        proposed.append([values["size"] for values in outcomes[-3:]])
    assert max(proposed[0] + proposed[1]) < 0.75
    assert max(proposed[2]) > 0.75


def test_a_sum_of_metrics_is_one_objective_and_refused() -> None:
    with pytest.raises(UnsupportedError, match="coefficients of 1 and -1"):
        constructed(fitted(), objective=signed(2.0, -1.0), radius=1.0)


def test_a_metric_that_is_missing_somewhere_leaves_a_list_of_our_models() -> None:
    client = client_of()
    run(client, 3)
    run(client, 1, lambda point: {"cost": evaluated(point)["cost"]})
    client.get_next_trials(max_trials=2)
    model = client._generation_strategy.adapter.generator.surrogate.model
    assert [type(member) for member in model.models] == [ExactMultiTaskGP, ExactMultiTaskGP]


def test_an_unknown_option_is_refused() -> None:
    client = client_of(radios=1.0)
    run(client, 2)
    with pytest.raises(TypeError, match="Unexpected keyword argument `radios`"):
        client.get_next_trials(max_trials=1)


def small_client(**options: Any) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment([RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 5.0))])
    client.configure_optimization(objective="-cost, output")
    client.set_generation_strategy(make_generation_strategy(num_initial=3, seed=0, **options))
    return client


def test_one_line_saves_and_loads(tmp_path: Path) -> None:
    client = small_client(scalarization="chebyshev")
    run(client, 4)
    assert type(model_of(client)) is ExactMultiTaskGP
    client.save_to_json_file(str(tmp_path / "client.json"))
    loaded = Client.load_from_json_file(str(tmp_path / "client.json"))
    (point,), (again,) = (c.get_next_trials(max_trials=1).values() for c in (client, loaded))
    assert again["x"] == pytest.approx(point["x"], abs=1e-4)
    assert 0 <= again["x"] <= 5


@pytest.mark.filterwarnings("ignore:Unknown solver options")  # in BoTorch's optimizer for many combinations
@pytest.mark.parametrize(("num_choices", "burn_in"), [(2, 256), pytest.param(11, 10_000, marks=pytest.mark.slow)])
def test_walks_between_limits_are_short(num_choices: int, burn_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than ten combinations of whole numbers, Ax has another optimizer, which takes no such options."""
    walks, walk = [], sampling.sample_polytope

    def count_steps(**arguments: Any) -> Tensor:
        walks.append(arguments["n0"])
        return walk(**arguments)

    client = Client(random_seed=0)
    count = RangeParameterConfig(name="count", parameter_type="int", bounds=(1, num_choices))
    floats = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 5.0)) for name in ("x", "y")]
    client.configure_experiment([*floats, count], parameter_constraints=["x + y <= 1.5"])
    client.configure_optimization(objective="-cost, output")
    client.set_generation_strategy(make_generation_strategy(num_initial=3, seed=0))
    run(client, 3, lambda point: evaluated({"x": point["x"], "y": point["y"]}))
    monkeypatch.setattr(sampling, "sample_polytope", count_steps)
    (point,) = client.get_next_trials(max_trials=1).values()
    assert walks
    assert set(walks) == {burn_in}
    assert point["x"] + point["y"] <= 1.5 + 1e-6


# Where a metric is missing, Ax models each metric by itself; then the optimizer's first steps may be flat.
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.slow
def test_one_line_with_everything(tmp_path: Path) -> None:
    """A category, a whole number, a log scale, a limit between inputs, three metrics, one missing once, a constraint
    with a threshold, two trials at a time, a save in the middle, and Ax's analyses."""
    client = Client(random_seed=0)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name="u", parameter_type="float", bounds=(0.0, 1.0)),
            RangeParameterConfig(name="v", parameter_type="float", bounds=(0.0, 1.0)),
            RangeParameterConfig(name="loading", parameter_type="float", bounds=(1e-3, 1.0), scaling="log"),
            RangeParameterConfig(name="steps", parameter_type="int", bounds=(1, 3)),
            ChoiceParameterConfig(name="metal", parameter_type="str", values=["Pd", "Ni"], is_ordered=False),
        ],
        parameter_constraints=["u + v <= 1"],
    )
    client.configure_optimization(
        objective="quality, -cost", outcome_constraints=["size <= 0.9", "quality >= 0.1", "cost <= 3"]
    )
    client.set_generation_strategy(make_generation_strategy(num_initial=5, seed=0))

    def measured(point: dict[str, Any]) -> Outcomes:
        load = math.log10(point["loading"]) / 3 + 1
        quality = point["u"] + load * (point["metal"] == "Pd")
        return {"quality": quality, "cost": 0.5 * point["steps"] + load, "size": point["u"] + 0.2 * point["v"]}

    for number in range(4):
        trials = client.get_next_trials(max_trials=2)
        for index, point in trials.items():
            assert point["u"] + point["v"] <= 1 + 1e-6
            assert point["steps"] in (1, 2, 3)
            data = measured(point)
            if index == 1:
                del data["size"]
            client.complete_trial(trial_index=index, raw_data=data)
        if number == 2:
            client.save_to_json_file(str(tmp_path / "client.json"))
            client = Client.load_from_json_file(str(tmp_path / "client.json"))
    cards = [card for group in client.compute_analyses(display=False) for card in group.flatten()]
    assert len(cards) > 5
    # This one fails with any model: it takes each fold to have all metrics.
    failed = [card.name for card in cards if isinstance(card, ErrorAnalysisCard)]
    assert failed == ["PredictableMetricsAnalysis"]
    assert client.get_pareto_frontier()
