"""IT-KB: GP-UCB on independent tasks."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.confidence import independent_radius
from mtbo_torch.regression import KroneckerRegression
from mtbo_torch.strategies.kernelized import ExactStrategy, cut_ties


class ITKB(ExactStrategy):
    r"""Independent-task kernelized bandits, the paper's baseline: nothing is learned of one task from another.

    Task j has the prior variance :math:`B_{jj} k`, the acquisition is :math:`s_\lambda(\mu_t(x)) + L_\lambda \beta_t
    \max_j \sigma_j(x)`, and the radius is GP-UCB's times :math:`\sqrt n` (:func:`independent_radius`).

    Args:
        kernel: As in :class:`MTKB`, one of ours; of every B only the diagonal is used, and not learned.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``; `norm_bound` bounds the RKHS norm
            of every single task.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import ITKB
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> ITKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1).ask().shape
        torch.Size([1, 1])
    """

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        regression = self._surrogate.regression
        assert isinstance(regression, KroneckerRegression)
        return independent_radius(regression.largest_gain, self.num_tasks, norm_bound, noise_scale, eta, self.delta)

    def _adjust_kernel(self, kernel: Kernel) -> Kernel:
        return cut_ties(kernel)
