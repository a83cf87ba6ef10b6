"""The Optuna sampler: the same proposals as the optimizer's, from what the study knows and nothing else."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from mtbo_torch import Inputs, Optimizer, Real
from mtbo_torch.optuna import MOST_VALUES, MultiTaskSampler, _describe, _read, _write

optuna.logging.set_verbosity(optuna.logging.WARNING)

SPACE = {"x": FloatDistribution(0.0, 2.0), "y": FloatDistribution(1e-3, 1e3, log=True)}


def evaluate(x: float, y: float = 1.0) -> list[float]:
    return [(x - 0.5) ** 2 + math.log10(y) ** 2, math.sin(3 * x)]


def make_study(
    storage: str | None = None, seed: int = 7, directions: tuple[str, ...] = ("minimize", "maximize")
) -> optuna.Study:
    return optuna.create_study(
        study_name="here",
        storage=storage,
        load_if_exists=True,
        directions=directions,
        sampler=MultiTaskSampler(seed=seed),
    )


def add_points(study: optuna.Study, count: int) -> list[dict[str, float]]:
    """Add completed trials that are spread over the space."""
    points = [{"x": 2 * i / count, "y": 10 ** (3 * math.sin(5.0 * i))} for i in range(count)]
    for point in points:
        study.add_trial(create_trial(params=point, distributions=SPACE, values=evaluate(**point)))
    return points


def test_the_proposal_is_the_optimizers() -> None:
    study = make_study()
    points = add_points(study, 8)
    trial = study.ask(SPACE)
    inputs = Inputs({"x": Real(0, 2), "y": Real(1e-3, 1e3, log=True)})
    by_hand = Optimizer(2, bounds=inputs, signs=[-1, 1], seed=study.sampler._derive_seed(8))
    by_hand.tell(inputs.encode(points), [evaluate(**point) for point in points])
    assert trial.params == inputs.decode(by_hand.ask())[0]


@pytest.mark.slow
def test_running_trials_are_pending() -> None:
    study = make_study()
    points = add_points(study, 8)
    running = study.ask()
    running.suggest_float("x", 0, 2)  # its y is known to the sampler alone
    proposed = running.relative_params
    inputs = Inputs({"x": Real(0, 2), "y": Real(1e-3, 1e3, log=True)})
    by_hand = Optimizer(2, bounds=inputs, signs=[-1, 1], seed=study.sampler._derive_seed(9))
    by_hand.tell(inputs.encode(points), [evaluate(**point) for point in points])
    by_hand.expect(inputs.encode([proposed]))
    assert study.ask(SPACE).params == inputs.decode(by_hand.ask())[0]


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (FloatDistribution(-1.0, 3.0), [-1.0, 0.1, 3.0]),
        (FloatDistribution(1e-5, 1.0, log=True), [1e-5, 3e-3, 1.0]),
        (FloatDistribution(0.0, 1.0, step=0.1), [0.1 * i for i in range(11)]),
        (FloatDistribution(0.0, 1e6, step=0.5), [0.0, 7.5, 1e6]),
        (IntDistribution(-3, 12, step=5), [-3, 2, 7, 12]),
        (IntDistribution(1, 128, log=True), list(range(1, 129))),
        (IntDistribution(1, 10**9, log=True), [1, 12345, 10**9]),
        (IntDistribution(0, 10**7), [0, 12345, 10**7]),
        (CategoricalDistribution(["a", None, True, 1.5, "1.5"]), ["a", None, True, 1.5, "1.5"]),
    ],
    ids=lambda part: str(part)[:40],
)
def test_values_come_back(distribution: BaseDistribution, values: list[object]) -> None:
    inputs = Inputs({"v": _describe(distribution)})
    assert len(inputs.codes.get(0, [])) <= MOST_VALUES
    X = inputs.encode([{"v": _read(distribution, value)} for value in values])
    back = [_write(distribution, row["v"]) for row in inputs.decode(X)]
    for value, again in zip(values, back, strict=True):
        assert type(again) is type(value)
        assert again == (pytest.approx(value) if isinstance(value, float) else value)
        assert distribution._contains(distribution.to_internal_repr(again))
    if isinstance(distribution, IntDistribution) and distribution.log and len(values) > 3:
        assert X[1, 0] - X[0, 0] == pytest.approx(math.log10(2))  # distances are those of the logarithm


@pytest.mark.slow
def test_mixed_spaces_have_valid_proposals_in_either_direction_alone() -> None:
    def objective(trial: optuna.Trial) -> float:
        depth = trial.suggest_int("depth", 1, 64, log=True)
        rate = trial.suggest_float("rate", 0.0, 1.0, step=0.25)
        kind = trial.suggest_categorical("kind", [None, "relu"])
        trial.suggest_float("constant", 1.0, 1.0)
        return abs(depth - 8) + rate + (kind is None)

    study = make_study(directions=("minimize",))
    study.optimize(objective, n_trials=11)
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
    assert set(study.sampler.infer_relative_search_space(study, study.trials[0])) == {"depth", "rate", "kind"}


@pytest.mark.slow
def test_resumed_from_a_file_the_next_proposal_is_the_same(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    add_points(make_study(storage), 8)
    in_memory = make_study()
    add_points(in_memory, 8)
    assert make_study(storage).ask(SPACE).params == in_memory.ask(SPACE).params
    assert make_study(seed=8, storage=storage).ask(SPACE).params != in_memory.ask(SPACE).params


@pytest.mark.slow
def test_resumed_in_another_process_the_next_proposal_is_the_same(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    add_points(make_study(storage), 8)
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"from test_optuna import SPACE, make_study\nprint(repr(make_study({storage!r}).ask(SPACE).params))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = make_study()
    add_points(here, 8)
    assert there.strip() == repr(here.ask(SPACE).params)


@pytest.mark.slow
def test_several_jobs_do_not_repeat_each_other() -> None:
    study = make_study()

    def objective(trial: optuna.Trial) -> list[float]:
        return evaluate(trial.suggest_float("x", 0, 2), trial.suggest_float("y", 1e-3, 1e3, log=True))

    study.optimize(objective, n_trials=9, n_jobs=2)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 9
    assert len({trial.params["x"] for trial in study.trials}) == 9


@pytest.mark.slow
def test_constraints_are_modeled() -> None:
    """The best of both objectives is where the constraint forbids it."""
    study = make_study(directions=("minimize", "minimize"))

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        if trial.number != 2:  # it may be missing
            trial.set_constraint("at least 0.6", 0.6 - x)
        return x, x**2

    study.optimize(objective, n_trials=10)
    chosen = [trial.params["x"] for trial in study.trials[5:]]
    assert min(abs(x - 0.6) for x in chosen) < 0.02
    assert sum(x > 0.59 for x in chosen) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("how", [TrialState.FAIL, TrialState.PRUNED, "infinite"])
def test_points_without_values_are_not_asked_for_again(how: TrialState | str) -> None:
    study = make_study()
    add_points(study, 8)
    trial = study.ask(SPACE)
    if how == "infinite":
        study.tell(trial, [math.inf, -math.inf])
    else:
        study.tell(trial, state=how)
    again = study.ask(SPACE)
    apart = abs(again.params["x"] - trial.params["x"]) / 2, abs(math.log10(again.params["y"] / trial.params["y"])) / 6
    assert max(apart) > 1e-2


@pytest.mark.slow
def test_enqueued_trials_are_completed() -> None:
    study = make_study()
    add_points(study, 8)
    study.enqueue_trial({"x": 1.25})
    trial = study.ask(SPACE)
    inputs = Inputs({"x": Real(0, 2), "y": Real(1e-3, 1e3, log=True)})
    by_hand = Optimizer(2, bounds=inputs, signs=[-1, 1], seed=study.sampler._derive_seed(8))
    points = [done.params for done in study.trials[:8]]
    by_hand.tell(inputs.encode(points), [evaluate(**point) for point in points])
    assert trial.params == inputs.decode(by_hand.ask(fixed={"x": 1.25}))[0]


def test_what_is_not_in_all_trials_is_drawn_at_random() -> None:
    study = make_study()
    add_points(study, 3)
    space = SPACE | {"extra": FloatDistribution(0, 1)}
    drawn = [study.ask(space).params["extra"] for _ in range(3)]
    assert len(set(drawn)) == 3
    again = make_study()
    add_points(again, 3)
    assert [again.ask(space).params["extra"] for _ in range(3)] == drawn
