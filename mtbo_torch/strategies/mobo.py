"""MOBO (Paria et al. 2019)."""

from __future__ import annotations

from typing import Unpack

from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.confidence import mobo_radius
from mtbo_torch.strategies.kernelized import ExactStrategy, KernelOptions, cut_ties


class MOBO(ExactStrategy):
    r"""Random scalarizations with independent tasks (Paria et al. 2019), the paper's baseline.

    The acquisition is :math:`s_\lambda(\mu_t(x) + \beta_t \sigma_t(x))`, with the tasks' own standard deviations.
    Unless `radius` says otherwise, :math:`\beta_t = \sqrt{0.125 \log(2 t + 1)}` in round t, a heuristic that depends on
    the round alone: `norm_bound`, `noise_scale`, `delta` and `bound` are not used.

    Args:
        kernel: As in :class:`ITKB`.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import MOBO
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> MOBO(kernel, choices=choices).ask().shape
        torch.Size([1, 1])
    """

    def __init__(self, kernel: Kernel | int, **options: Unpack[KernelOptions]) -> None:
        super().__init__(kernel, **options)
        self.bound = "tasks"

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return self.space.points.new_full(self.batch_shape, mobo_radius(self.num_observations + 1))

    def _adjust_kernel(self, kernel: Kernel) -> Kernel:
        return cut_ties(kernel)
