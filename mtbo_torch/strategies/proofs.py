"""What intervals prove about a finite set of choices."""

from __future__ import annotations

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from mtbo_torch.scalarizations import Scalarization


def find_dominated(lower: Tensor, upper: Tensor) -> Tensor:
    """Return which choices are certainly dominated, ``(b) x N``: another one is better in all objectives.

    Args:
        lower: ``(b) x N x k``, lower bounds of the objectives.
        upper: ``(b) x N x k``, upper bounds.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies.proofs import find_dominated
        >>> find_dominated(torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 3.0]]))
        tensor([ True, False])
    """
    # What dominates at all is dominated by one of those whose lower bounds nothing dominates.
    best = is_non_dominated(lower, deduplicate=True)
    dominated = [
        (low[keep] > up.unsqueeze(-2)).all(dim=-1).any(dim=-1)
        for low, up, keep in zip(
            *(x.reshape(-1, *x.shape[lower.dim() - 2 :]) for x in (lower, upper, best)), strict=True
        )
    ]
    return torch.stack(dominated).reshape(lower.shape[:-1])


def bound_gain(scalarization: Scalarization, lower: Tensor, upper: Tensor) -> Tensor:
    r"""Return ``W x (b)``, by how much the best choice can be better than the best that is certain.

    .. math:: \max_x s_\lambda(u(x)) - \max_x s_\lambda(l(x))

    Args:
        scalarization: With ``W x (b) x k`` weights.
        lower: ``(b) x N x k``, l, lower bounds of the objectives.
        upper: ``(b) x N x k``, u, upper bounds.
    """
    return (scalarization(upper).amax(dim=-1) - scalarization(lower).amax(dim=-1)).clamp_min(0)
