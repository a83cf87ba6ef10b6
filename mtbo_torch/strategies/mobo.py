"""MOBO (Paria et al. 2019)."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.confidence import mobo_radius
from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies.kernelized import ExactStrategy, independent_tasks


class MOBO(ExactStrategy):
    r"""Random scalarisations with independent tasks (Paria et al. 2019), the paper's baseline.

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

    def __init__(self, kernel: Kernel | int, **options: Any) -> None:
        super().__init__(kernel, **options | {"bound": "ellipsoid"})

    def _theory_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return self._space.new_full(self.batch_shape, mobo_radius(self.num_observations + 1))

    def _own_kernel(self, kernel: Kernel) -> Kernel:
        return independent_tasks(kernel)

    def _of_objectives(self, weights: Tensor) -> Scalarization:
        return _ByTask(super()._of_objectives(weights))


class _ByTask(Scalarization):
    """A scalarisation of which only the tasks' deviations are to be known, even if it could use more."""

    def __init__(self, scalarization: Scalarization) -> None:
        super().__init__(scalarization.weights)
        self.scalarization = scalarization

    @property
    def lipschitz(self) -> Tensor:
        return self.scalarization.lipschitz

    def _scalarize(self, Y: Tensor) -> Tensor:
        return self.scalarization(Y)
