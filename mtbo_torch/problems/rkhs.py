"""Functions drawn from the RKHS of a multi-task kernel, whose norm is known exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from mtbo_torch.checks import require_choices, require_tensor
from mtbo_torch.kernels import MultiTaskKernel


class RKHSFunction:
    r""":math:`f = \sum_i \Gamma(\cdot, x_i) c_i`, with :math:`\|f\|_\Gamma^2 = \sum_{ij} c_i^T \Gamma(x_i, x_j) c_j`.

    Args:
        kernel: :math:`\Gamma`.
        centers: ``m x d``, the points :math:`x_i`.
        coefficients: ``m x n``, the vectors :math:`c_i`.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.problems import RKHSFunction
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> f = RKHSFunction.draw(kernel, torch.linspace(0, 1, 101).unsqueeze(-1), seed=0)
        >>> f(torch.rand(3, 1)).shape
        torch.Size([3, 2])
    """

    def __init__(self, kernel: MultiTaskKernel, centers: Tensor, coefficients: Tensor) -> None:
        require_choices("centers", centers)
        coefficients = require_tensor("coefficients", coefficients, "Pass one row per center.")
        if coefficients.shape != (len(centers), kernel.num_tasks):
            raise ValueError(
                f"coefficients should be `m x n` = {len(centers)} x {kernel.num_tasks} (from centers and the kernel), "
                f"got shape {tuple(coefficients.shape)}. Pass one row per center and one column per task."
            )
        self.kernel = kernel
        self.centers = centers
        self.coefficients = coefficients

    @classmethod
    def draw(cls, kernel: MultiTaskKernel, domain: Tensor, num_centers: int = 50, seed: int = 0) -> RKHSFunction:
        """The paper's random element: centers from the ``N x d`` domain, coefficients uniform on ``[-1, 1]^n``."""
        generator = torch.Generator().manual_seed(seed)
        centers = domain[torch.randint(len(domain), (num_centers,), generator=generator).to(domain.device)]
        uniform = torch.rand(num_centers, kernel.num_tasks, generator=generator, dtype=torch.double)
        return cls(kernel, centers, (2 * uniform - 1).to(domain))

    def __call__(self, X: Tensor) -> Tensor:
        """``... x q x n``, the values at ``... x q x d`` points."""
        with torch.no_grad():
            flat = self.kernel(X, self.centers).to_dense() @ self.coefficients.flatten()
        return flat.unflatten(-1, (-1, self.kernel.num_tasks))

    @property
    def norm(self) -> float:
        r"""The RKHS norm :math:`\|f\|_\Gamma`."""
        return (self(self.centers) * self.coefficients).sum().clamp_min(0).sqrt().item()
