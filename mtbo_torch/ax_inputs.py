"""What Ax hands over, turned into the arguments of our acquisition functions. Importing this registers it."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model, ModelList
from torch import Tensor

from mtbo_torch.acquisition import NystromScalarizedMultiTaskUCB, ScalarizedMultiTaskUCB
from mtbo_torch.checks import require_tensor
from mtbo_torch.confidence import DEFAULT_EPSILON, exact_radius, nystrom_radius
from mtbo_torch.improvement import LogAverageImprovement
from mtbo_torch.models import MultiTaskGPModel, NystromMultiTaskGP
from mtbo_torch.scalarizations import (
    ChebyshevScalarization,
    HypervolumeScalarization,
    LinearScalarization,
    ObjectiveScalarization,
    Scalarization,
    WeightDistribution,
)

# Ax saves options that are words, not those that are classes.
SCALARIZATIONS: dict[str, type[Scalarization]] = {
    "hypervolume": HypervolumeScalarization,
    "chebyshev": ChebyshevScalarization,
    "linear": LinearScalarization,
}


def estimate_radius(model: Model, delta: float = 0.1) -> Tensor:
    r"""Return the theory's radius, ``(b)``, with estimates in place of what is not known.

    They are :math:`\max(1, \|\mu_t\|)` for the bound of the RKHS norm and :math:`\sqrt\eta` for the noise's scale.

    Args:
        model: An :class:`ExactMultiTaskGP`, a :class:`NystromMultiTaskGP`, or a ``ModelList`` of them.
        delta: The probability of failure, in ``(0, 1]``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
        >>> from mtbo_torch.ax_inputs import estimate_radius
        >>> X = torch.rand(5, 1, dtype=torch.double)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], -1), covar_module=kernel, eta=0.1)
        >>> estimate_radius(model) > 1
        tensor(True)
    """
    members = list(model.models) if isinstance(model, ModelList) else [model]
    if not members:
        raise ValueError("model should have at least one member, got an empty ModelList. Pass a fitted model.")
    for member in members:
        if not isinstance(member, MultiTaskGPModel):
            raise ValueError(
                f"radius should be given for a {type(member).__name__}, whose RKHS norm and information gain are not "
                "known, got None. Pass for instance radius=2.0."
            )
    # Members of a list are independent of each other: gains add up, and so do squared norms.
    gain = torch.stack([member.info_gain for member in members]).sum(dim=0)
    norm = (
        torch.stack([member.surrogate.regression.mean_norm for member in members])
        .square()
        .sum(dim=0)
        .sqrt()
        .clamp_min(1)
    )
    # The noise's scale over the root of the regularizer is one, whatever the noise of each task.
    if any(isinstance(member, NystromMultiTaskGP) for member in members):
        return nystrom_radius(gain, norm, noise_scale=1.0, eta=1.0, delta=delta, epsilon=DEFAULT_EPSILON)
    return exact_radius(gain, norm, noise_scale=1.0, eta=1.0, delta=delta)


@acqf_input_constructor(ScalarizedMultiTaskUCB, NystromScalarizedMultiTaskUCB)
def construct_inputs_scalarized_ucb(
    model: Model,
    objective: IdentityMCMultiOutputObjective | None = None,
    ref_point: Tensor | None = None,
    constraints: object = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    X_baseline: Tensor | None = None,
    X_pending: Tensor | None = None,
    scalarization: Scalarization | type[Scalarization] | str | None = None,
    weights: WeightDistribution | Tensor | None = None,
    radius: float | Tensor | None = None,
    delta: float = 0.1,
    bound: str = "norm",
) -> dict[str, Any]:
    """Return the arguments of :class:`ScalarizedMultiTaskUCB` from what Ax knows; the last five are the user's options.

    Args:
        model: The fitted model, with m outputs.
        objective: The n objectives: outcomes, with their signs or weights. All outputs, maximized, by default.
        ref_point: ``n``, the objectives' thresholds, all to be exceeded; NaN where there is none. It is the reference
            point of a Chebyshev or hypervolume scalarization. The origin by default: Ax standardizes, so that is the
            average outcome.
        constraints: The constraints on outcomes as functions, which are not used: they have to be linear, and given as
        constraints_tuple: ``m' x m`` and ``m' x 1``.
        X_baseline: ``t x d``, observed points.
        X_pending: ``p x d``, points that are being evaluated.
        scalarization: ``"chebyshev"``, ``"linear"`` or ``"hypervolume"``; or a class, or a scalarization of the n
            objectives in their order, all maximized, which Ax cannot save. Chebyshev by default.
        weights: ``n``, or the distribution that they are drawn from anew each time. By default
            those of its ``default_weights``.
        radius: A number; :func:`estimate_radius` by default.
        delta: The probability of failure of the estimated radius, in ``(0, 1]``.
        bound: ``"norm"`` or ``"ellipsoid"``.
    """
    tensors = {"ref_point": ref_point, "X_baseline": X_baseline, "X_pending": X_pending}
    _require_handed_over(model, constraints, constraints_tuple, tensors)
    scalarization = _find_class(scalarization)
    outcomes, coefficients = _find_objectives(model, objective)
    if scalarization is None and weights is None:
        _require_signs(coefficients, "or pass scalarization=LinearScalarization with weights")
    if scalarization is None or isinstance(scalarization, type):
        round_number = sum(X.shape[-2] for X in (X_baseline, X_pending) if X is not None)
        of_objectives = _draw(scalarization, weights, ref_point, coefficients, round_number)
    else:
        of_objectives = _check_given(scalarization, weights, len(outcomes))
    matrix = torch.zeros(len(outcomes), model.num_outputs).to(coefficients)
    matrix[torch.arange(len(outcomes)), outcomes] = coefficients
    scalarization = ObjectiveScalarization(of_objectives, matrix)
    worst = None
    if constraints_tuple is not None and X_baseline is not None:
        with torch.no_grad():
            worst = scalarization(model.posterior(X_baseline).mean).amin(dim=-1)
    return {
        "model": model,
        "scalarization": scalarization,
        "radius": estimate_radius(model, delta) if radius is None else radius,
        "X_pending": X_pending,
        "bound": bound,
        "constraints": constraints_tuple,
        "infeasible_value": worst,
    }


@acqf_input_constructor(LogAverageImprovement)
def construct_inputs_average_improvement(
    model: Model,
    objective: IdentityMCMultiOutputObjective | None = None,
    ref_point: Tensor | None = None,
    constraints: object = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    X_baseline: Tensor | None = None,
    X_pending: Tensor | None = None,
    scalarization: type[Scalarization] | str = HypervolumeScalarization,
    weights: Tensor | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of :class:`LogAverageImprovement` from what Ax knows; the last three are the user's options.

    Args:
        model: The fitted model, with m outputs.
        objective: The n objectives: outcomes with their signs. All outputs, maximized, by default.
        ref_point: ``n``, the objectives' thresholds, all to be exceeded; NaN where there is none.
        constraints: The constraints on outcomes as functions, which are not used: they have to be linear, and given as
        constraints_tuple: ``m' x m`` and ``m' x 1``.
        X_baseline: ``t x d``, observed points.
        X_pending: ``p x d``, points that are being evaluated.
        scalarization: ``"hypervolume"`` or ``"chebyshev"``; or the class, which Ax cannot save.
        weights: ``W x n``, of the objectives in the order of the outcomes.
        seed: As in :class:`LogAverageImprovement`.
    """
    tensors = {"ref_point": ref_point, "X_baseline": X_baseline, "X_pending": X_pending}
    _require_handed_over(model, constraints, constraints_tuple, tensors)
    outcomes, coefficients = _find_objectives(model, objective)
    _require_signs(coefficients, "or use another acquisition function")
    signs = torch.zeros(model.num_outputs, dtype=torch.long)
    signs[outcomes] = coefficients.long().to(signs)
    if ref_point is not None:
        ref_point = (ref_point * coefficients.to(ref_point))[outcomes.argsort()]
    return {
        "model": model,
        "ref_point": ref_point,
        "X_baseline": X_baseline,
        "X_pending": X_pending,
        "signs": signs.tolist(),
        "constraints": constraints_tuple,
        "scalarization": _find_class(scalarization),
        "weights": weights,
        "seed": seed,
    }


def _require_handed_over(
    model: object, constraints: object, constraints_tuple: object, tensors: dict[str, Tensor | None]
) -> None:
    if constraints is not None and constraints_tuple is None:
        raise UnsupportedError(
            "constraints should come with constraints_tuple, got functions only: constraints have to be linear in the "
            "outcomes. Pass the pair of A and c, which means A y <= c."
        )
    if not hasattr(model, "posterior"):
        raise ValueError(f"model should be a BoTorch model, got {type(model).__name__}. Pass the fitted model.")
    for name, value in tensors.items():
        if value is not None:
            require_tensor(name, value, "Pass what Ax hands over.")


def _find_class(scalarization: Any) -> Any:
    """Return the class that a word stands for; what is not a word as it is."""
    if not isinstance(scalarization, str):
        return scalarization
    if scalarization not in SCALARIZATIONS:
        raise ValueError(
            f"scalarization should be one of {', '.join(SCALARIZATIONS)}, got {scalarization!r}. Correct the word."
        )
    return SCALARIZATIONS[scalarization]


def _require_signs(coefficients: Tensor, remedy: str) -> None:
    if not torch.all(coefficients.abs() == 1):
        raise UnsupportedError(
            f"objective should have coefficients of 1 and -1, got {coefficients.tolist()}: a sum of outcomes is one "
            f"objective. Separate objectives by commas, {remedy}."
        )


def _find_objectives(model: Model, objective: object) -> tuple[Tensor, Tensor]:
    """Return the objectives' outcomes and coefficients, ``n`` both."""
    objective = IdentityMCMultiOutputObjective() if objective is None else objective
    if not isinstance(objective, IdentityMCMultiOutputObjective):
        raise UnsupportedError(
            "objective should be a WeightedMCMultiOutputObjective (outcomes with signs or weights), got "
            f"{type(objective).__name__}. Use an acquisition function that draws samples for it."
        )
    outcomes = getattr(objective, "outcomes", torch.arange(model.num_outputs))
    coefficients = getattr(objective, "weights", torch.ones(len(outcomes), dtype=torch.double))
    return outcomes, coefficients


def _check_given(scalarization: object, weights: object, num_objectives: int) -> Scalarization:
    if not isinstance(scalarization, Scalarization):
        raise ValueError(
            f"scalarization should be a Scalarization or a class of them, got {type(scalarization).__name__}. "
            "Pass for instance ChebyshevScalarization."
        )
    if weights is not None:
        raise ValueError(
            "weights should not be given together with a scalarization that has its own, got both. "
            "Pass the scalarization's class, or leave weights out."
        )
    if scalarization.num_tasks != num_objectives:
        raise ValueError(
            f"scalarization should have one weight for each of the {num_objectives} objectives, "
            f"got {scalarization.num_tasks} weights. Outcomes that are no objectives have none."
        )
    return scalarization


def _draw(
    scalarization: type[Scalarization] | None,
    weights: WeightDistribution | Tensor | None,
    ref_point: Tensor | None,
    like: Tensor,
    round_number: int,
) -> Scalarization:
    """Return a scalarization of ``n`` objectives, like ``like``, with weights drawn for this round."""
    scalarization = ChebyshevScalarization if scalarization is None else scalarization
    if not issubclass(scalarization, Scalarization):
        raise ValueError(
            f"scalarization should be a Scalarization or a class of them, got the class {scalarization.__name__}. "
            "Pass for instance ChebyshevScalarization."
        )
    if weights is None:
        weights = scalarization.default_weights(len(like))
    if isinstance(weights, WeightDistribution):
        # An Ax client with a seed sets it anew for every trial: of the same stream, each round takes its own draw.
        weights = weights.sample(round_number + 1, dtype=like.dtype, device=like.device)[-1]
    if isinstance(weights, Tensor) and weights.shape[-1:] != like.shape:
        raise ValueError(
            f"weights should have one entry for each of the {len(like)} objectives, got shape {tuple(weights.shape)}. "
            "Outcomes that are no objectives have none."
        )
    ref_point = torch.zeros_like(like) if ref_point is None else ref_point.nan_to_num(nan=0.0)
    return scalarization.build(weights, ref_point).for_search()
