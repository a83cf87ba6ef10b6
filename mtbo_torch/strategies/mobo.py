"""MOBO (Paria et al. 2019)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import ScalarizedMultiTaskUCB
from mtbo_torch.confidence import mobo_radius
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.regression import Followed
from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies.kernelized import ExactStrategy, independent_tasks


class MOBO(ExactStrategy):
    r"""Random scalarisations with independent tasks, the paper's baseline: :math:`s_\lambda(\mu_t(x) + \beta_t
    \sigma_t(x))`, componentwise.

    The radius :math:`\beta_t = \sqrt{0.125 \log(2 t + 1)}` is a heuristic that depends on the round alone:
    `norm_bound`, `noise_scale` and `delta` are not used.

    Args:
        kernel: As in :class:`MTKB`; only its diagonal is used.
        options: The other arguments of :class:`MTKB`.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import MOBO
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> MOBO(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1).ask().shape
        torch.Size([1, 1])
    """

    def _theory_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return self._space.new_full(self.batch_shape, mobo_radius(self.num_observations + 1))

    def _own_kernel(self, kernel: Kernel) -> Kernel:
        return independent_tasks(kernel)

    def _values(self, followed: Followed, scalarization: Scalarization, radius: Tensor) -> Tensor:
        return _componentwise_ucb(*followed.mean_and_variance(), scalarization, radius)

    def _acquisition(
        self, model: ExactMultiTaskGP, scalarization: Scalarization, radius: Tensor, pending: Tensor | None
    ) -> ScalarizedMultiTaskUCB:
        model = model if pending is None else model.hallucinate(pending)
        return _ComponentwiseUCB(model, scalarization, radius)


def _componentwise_ucb(mean: Tensor, variance: Tensor, scalarization: Scalarization, radius: Tensor) -> Tensor:
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return scalarization(mean + radius.to(mean)[..., None, None] * deviation)


class _ComponentwiseUCB(ScalarizedMultiTaskUCB):
    def _value(self, X: Tensor, before: Tensor) -> Tensor:
        mean, variance = self.model.mean_and_variance(X)
        return _componentwise_ucb(mean, variance, self.scalarization, self.radius).squeeze(-1)
