"""An Optuna sampler: what :class:`Optimizer` would ask for next, in a study of Optuna's."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.checks import require_seed
from mtbo_torch.inputs import Category, Input, Inputs, Ordered, Real
from mtbo_torch.strategies import Optimizer, SobolSearch

try:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import intersection_search_space
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise ImportError('The sampler needs Optuna. Run: pip install "mtbo-torch[optuna]"') from None

# Numbers with more allowed values than these are continuous inside, and rounded.
MOST_VALUES = 1000
# Under which a trial keeps what was proposed for it, so that others know before it is suggested.
PROPOSED = "mtbo_torch:proposed"
# Threads that share a study ask one after another, each knowing what the one before was given.
ONE_AT_A_TIME = threading.Lock()


class MultiTaskSampler(BaseSampler):
    """Sample the trials of an Optuna study as :class:`Optimizer` asks for points: all objectives modeled together.

    Studies may have one objective or several, and constraints (``trial.set_constraint``). Floats, integers and
    categories are modeled together. A parameter that is not in all completed trials with the same range, as when it
    depends on another one, is drawn at random; so is the first trial, from which the sampler learns what there is.

    The sampler keeps nothing to itself: a proposal follows from the seed and from the study's trials, so that a study
    resumed in another process continues as if it had never stopped. Trials that are running, on other workers too,
    are taken as :meth:`Optimizer.ask` takes pending points. So are those that failed or were pruned: nothing is
    learned from them, but the same point is not asked for again.

    Args:
        seed: All randomness follows from it and the number of the trial.

    Example:
        >>> import optuna
        >>> from mtbo_torch.optuna import MultiTaskSampler
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(directions=["minimize", "maximize"], sampler=MultiTaskSampler(seed=0))
        >>> def objective(trial: optuna.Trial) -> tuple[float, float]:
        ...     x = trial.suggest_float("x", 1e-3, 1, log=True)
        ...     kind = trial.suggest_categorical("kind", ["a", "b"])
        ...     return x, x**2 if kind == "a" else 1 - x
        >>> study.optimize(objective, n_trials=4)
        >>> len(study.trials)
        4
    """

    def __init__(self, seed: int = 0) -> None:
        require_seed("seed", seed)
        self._seed = seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that all completed trials have in common and that can vary."""
        common = intersection_search_space(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        return {name: distribution for name, distribution in common.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a value for each parameter of the search space."""
        fixed = _find_fixed(trial, search_space)
        if fixed.keys() == search_space.keys():
            return {}
        with ONE_AT_A_TIME:
            known = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
            inside = self._propose(study, known, trial.number, search_space, fixed)
            params = {name: _write(distribution, inside[name]) for name, distribution in search_space.items()}
            numbers = [distribution.to_internal_repr(params[name]) for name, distribution in search_space.items()]
            study._storage.set_trial_system_attr(trial._trial_id, PROPOSED, [list(search_space), numbers])
        return params

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value for a parameter outside the search space."""
        source = RandomSampler(seed=self._derive_seed(trial.number, param_name) % 2**32)
        return source.sample_independent(study, trial, param_name, param_distribution)

    def _propose(
        self,
        study: Study,
        known: Sequence[FrozenTrial],
        number: int,
        search_space: Mapping[str, BaseDistribution],
        fixed: Mapping[str, Any],
    ) -> dict[str, Any]:
        inputs = Inputs({name: _describe(distribution) for name, distribution in search_space.items()})
        signs = [1 if direction == StudyDirection.MAXIMIZE else -1 for direction in study.directions]
        done = [trial for trial in known if trial.state == TrialState.COMPLETE]
        Y = _collect_values(done)
        has_values = ~Y.isnan().all(dim=-1)
        observed = inputs.encode([_read_all(search_space, trial.params) for trial in done])
        others = [trial for trial in known if trial.state != TrialState.COMPLETE]
        points = [point for trial in others if (point := _find_point(trial, search_space)) is not None]
        avoided = torch.cat([observed[~has_values], inputs.encode(points).reshape(-1, len(search_space))])
        num_running = sum(trial.state == TrialState.RUNNING for trial in others)
        m = Y.shape[-1] - len(signs)
        options: dict[str, Any] = {"bounds": inputs, "signs": [*signs, *[0] * m]}
        optimizer = Optimizer(
            Y.shape[-1], constraints=_limit_last(Y.shape[-1], m), seed=self._derive_seed(number), **options
        )
        if not has_values.any() or len(done) + num_running < optimizer.design_size:
            design = SobolSearch(Y.shape[-1], seed=self._seed, **options)
            return inputs.decode(design.ask(number + 1, fixed)[-1:])[0]
        optimizer.tell(observed[has_values], Y[has_values], allow_missing=True)
        if len(avoided):
            optimizer.expect(avoided)
        return inputs.decode(optimizer.ask(fixed=fixed))[0]

    def _derive_seed(self, *parts: object) -> int:
        return random.Random(":".join(map(str, (self._seed, *parts)))).getrandbits(63)


def _limit_last(num_tasks: int, m: int) -> tuple[Tensor, Tensor] | None:
    """Return the constraints that the last m tasks are at most zero."""
    if not m:
        return None
    return torch.eye(num_tasks, dtype=torch.double)[num_tasks - m :], torch.zeros(m, dtype=torch.double)


def _collect_values(trials: Sequence[FrozenTrial]) -> Tensor:
    """Return the objectives and then the constraints of completed trials, ``t x n``; NaN where one is not finite."""
    names = sorted({name for trial in trials for name, value in trial.constraints.items() if math.isfinite(value)})
    rows = [[*trial.values, *[trial.constraints.get(name, math.nan) for name in names]] for trial in trials]
    Y = torch.tensor(rows, dtype=torch.double)
    return Y.masked_fill(Y.isinf(), torch.nan)


def _find_fixed(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return what an enqueued trial says of the parameters, inside."""
    given = trial.system_attrs.get("fixed_params", {})
    return {
        name: _read(distribution, given[name])
        for name, distribution in search_space.items()
        if name in given and distribution._contains(distribution.to_internal_repr(given[name]))
    }


def _find_point(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """Return the point of a trial that has no values, inside; None if it is not in the search space."""
    names, numbers = trial.system_attrs.get(PROPOSED, ([], []))
    params = {
        name: search_space[name].to_external_repr(number)
        for name, number in zip(names, numbers, strict=True)
        if name in search_space
    }
    params |= trial.params
    if not search_space.keys() <= params.keys():
        return None
    for name, distribution in search_space.items():
        if not distribution._contains(distribution.to_internal_repr(params[name])):
            return None
    return _read_all(search_space, params)


def _describe(distribution: BaseDistribution) -> Input:
    """Return a parameter as an input: categories by their place, numbers with few values on a list, others real."""
    if isinstance(distribution, CategoricalDistribution):
        return Category(*range(len(distribution.choices)))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if not _has_list(distribution):
        return Real(distribution.low, distribution.high, distribution.log)
    assert distribution.step is not None
    numbers = range(round((distribution.high - distribution.low) / distribution.step) + 1)
    return Ordered(*[_read(distribution, distribution.low + i * distribution.step) for i in numbers])


def _has_list(distribution: FloatDistribution | IntDistribution) -> bool:
    return distribution.step is not None and (distribution.high - distribution.low) / distribution.step < MOST_VALUES


def _read_all(search_space: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _read(distribution, params[name]) for name, distribution in search_space.items()}


def _read(distribution: BaseDistribution, value: Any) -> Any:
    """Return the value inside of a parameter's value."""
    number = distribution.to_internal_repr(value)
    if isinstance(distribution, CategoricalDistribution):
        return int(number)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if not _has_list(distribution):
        return number
    number = _snap(distribution, number)
    return math.log10(number) if distribution.log else number


def _write(distribution: BaseDistribution, inside: Any) -> Any:
    """Return the parameter's value of a value inside."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.to_external_repr(inside)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    number = 10**inside if distribution.log and _has_list(distribution) else inside
    return distribution.to_external_repr(_snap(distribution, number))


def _snap(distribution: FloatDistribution | IntDistribution, number: float) -> float:
    """Return the allowed number that is nearest."""
    if distribution.step is not None:
        number = distribution.low + distribution.step * round((number - distribution.low) / distribution.step)
    return min(max(number, distribution.low), distribution.high)
