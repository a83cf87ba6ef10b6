"""IT-BKB: BKB on independent tasks."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.confidence import independent_nystrom_radius
from mtbo_torch.strategies.budgeted import BudgetedStrategy
from mtbo_torch.strategies.kernelized import cut_ties


class ITBKB(BudgetedStrategy):
    r"""Independent-task budgeted kernelized bandits, the paper's baseline for :class:`MTBKB`.

    As :class:`ITKB`, on a dictionary and with BKB's radius times :math:`\sqrt n` (:func:`independent_nystrom_radius`).
    All tasks share one dictionary, drawn by the largest of their variances, so each is approximated at least as well as
    with its own.

    Args:
        kernel: As in :class:`ITKB`.
        options: The other arguments of :class:`MTBKB`, such as `choices`, ``N x d``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import ITBKB
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> ITBKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1).ask().shape
        torch.Size([1, 1])
    """

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        regression, units = self._surrogate.regression, self._surrogate.units
        prior = self._start(self._known.kernel, self._known.noise, units)
        return independent_nystrom_radius(
            regression.at(regression.train_X).norm.sum(dim=-1) / eta,
            self.num_observations,
            prior.inside(self.space.points).norm.amax(dim=-1),
            self.num_tasks,
            norm_bound,
            noise_scale,
            eta,
            self.delta,
            self.epsilon,
        )

    def _adjust_kernel(self, kernel: Kernel) -> Kernel:
        return cut_ties(kernel)
