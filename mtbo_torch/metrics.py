"""How well a run did, from tensors alone."""

from __future__ import annotations

import torch
from torch import Tensor

from mtbo_torch.scalarizations import Scalarization


def scalarized_regret(scalarization: Scalarization, achieved: Tensor, attainable: Tensor) -> Tensor:
    r"""The instantaneous regret :math:`\max_x s_\lambda(f(x)) - s_\lambda(f(x_t))` on a finite domain.

    Args:
        scalarization: :math:`s_\lambda` with one weight vector, or ``q`` of them for ``q`` rounds.
        achieved: ``q x n``, :math:`f(x_t)`.
        attainable: ``N x n``, :math:`f` on the whole domain.

    Returns:
        ``q`` regrets.
    """
    best = scalarization(attainable).amax(dim=-1)
    return best - scalarization(achieved.unsqueeze(-2)).squeeze(-1)


def average_regret(instantaneous: Tensor) -> Tensor:
    r"""The time-average cumulative regret :math:`R_C(t) / t` after each of the ``... x T`` rounds."""
    rounds = torch.arange(1, instantaneous.shape[-1] + 1, dtype=instantaneous.dtype, device=instantaneous.device)
    return instantaneous.cumsum(dim=-1) / rounds
