"""Sine functions with local perturbations."""

from __future__ import annotations

import math

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.checks import require_tensor
from mtbo_torch.problems.paper import SINE_CENTERS, SINE_NUM_TASKS, SINE_PERTURBATION, SINE_WEIGHTS, SINE_WIDTH


class PerturbedSine(MultiObjectiveTestProblem):
    r"""The paper's perturbed sine, four tasks on ``[0, 1]``, all maximized.

    .. math:: f_i(x) = \sin(2 \pi x) + 0.6 \sum_j w_{ij} \exp(-(x - c_j)^2 / 0.02), \quad c = (0.05, 0.4, 0.7)

    Args:
        noise_std: As in BoTorch.
        negate: As in BoTorch.
        dtype: As in BoTorch.

    Example:
        >>> import torch
        >>> from mtbo_torch.problems import PerturbedSine
        >>> PerturbedSine(noise_std=0.1)(torch.rand(5, 1)).shape
        torch.Size([5, 4])
    """

    dim = 1
    num_objectives = SINE_NUM_TASKS
    continuous_inds = [0]  # noqa: RUF012
    _bounds = [(0.0, 1.0)]  # noqa: RUF012
    _ref_point = [-2.0] * SINE_NUM_TASKS
    _is_minimization_by_default = False

    def _evaluate_true(self, X: Tensor) -> Tensor:
        X = require_tensor("X", X, "Pass one row per point.")
        weights, centers = (
            torch.tensor(value, dtype=X.dtype, device=X.device) for value in (SINE_WEIGHTS, SINE_CENTERS)
        )
        bumps = torch.exp(-((X - centers) / SINE_WIDTH).square() / 2)
        return torch.sin(2 * math.pi * X) + SINE_PERTURBATION * bumps @ weights.T
