"""Shifted Branin-Hoo functions."""

from __future__ import annotations

import math

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.checks import require_tensor
from mtbo_torch.problems.paper import BRANIN_MEAN, BRANIN_NUM_TASKS, BRANIN_SD


class ShiftedBranin(MultiObjectiveTestProblem):
    r"""The paper's nine shifted Branin-Hoo functions on the unit square, all maximized.

    .. math:: f_i(x) = (m - g(x - i e_i / 100)) / s, \quad i = 1, \dots, 9

    where g is the Branin function on the unit square, m and s are its mean and standard deviation there, and the shift
    is along the first axis for odd i, along the second for even i.

    Args:
        noise_std: As in BoTorch.
        negate: As in BoTorch.
        dtype: As in BoTorch.

    Example:
        >>> import torch
        >>> from mtbo_torch.problems import ShiftedBranin
        >>> problem = ShiftedBranin(noise_std=0.1)
        >>> problem(torch.rand(5, 2)).shape  # with noise; evaluate_true is without
        torch.Size([5, 9])
    """

    dim = 2
    num_objectives = BRANIN_NUM_TASKS
    continuous_inds = [0, 1]  # noqa: RUF012
    _bounds = [(0.0, 1.0), (0.0, 1.0)]  # noqa: RUF012
    _ref_point = [-8.5] * BRANIN_NUM_TASKS
    _is_minimization_by_default = False

    def _evaluate_true(self, X: Tensor) -> Tensor:
        X = require_tensor("X", X, "Pass one row per point.")
        shifts = torch.zeros(BRANIN_NUM_TASKS, 2, dtype=X.dtype, device=X.device)
        tasks = torch.arange(BRANIN_NUM_TASKS)
        shifts[tasks, tasks % 2] = (tasks + 1).to(shifts) / 100
        u, v = (X.unsqueeze(-2) - shifts).unbind(dim=-1)
        return (BRANIN_MEAN - branin(15 * u - 5, 15 * v)) / BRANIN_SD


def branin(x: Tensor, y: Tensor) -> Tensor:
    """Evaluate the Branin function at ``...`` first and second coordinates, usually on ``[-5, 10] x [0, 15]``."""
    parabola = y - 5.1 / (4 * math.pi**2) * x.square() + 5 / math.pi * x - 6
    return parabola.square() + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x) + 10
