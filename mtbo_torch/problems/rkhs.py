"""Functions drawn from the RKHS of a multi-task kernel, whose norm is known exactly."""

from __future__ import annotations

from copy import deepcopy
from typing import Self

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.checks import require_choices, require_positive, require_tensor
from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.problems.paper import NUM_CENTERS


class RKHSFunction(MultiObjectiveTestProblem):
    r""":math:`f = \sum_i \Gamma(\cdot, x_i) c_i`, with :math:`\|f\|_\Gamma^2 = \sum_{ij} c_i^T \Gamma(x_i, x_j) c_j`.

    A BoTorch test problem on the smallest box that holds the centers; all tasks are to be maximised.

    Args:
        kernel: :math:`\Gamma`.
        centers: ``m x d``, the points :math:`x_i`.
        coefficients: ``m x n``, the vectors :math:`c_i`.
        noise_std: As in BoTorch.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.problems import RKHSFunction
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> f = RKHSFunction.draw(kernel, torch.linspace(0, 1, 101).unsqueeze(-1), seed=0)
        >>> f(torch.rand(3, 1)).shape
        torch.Size([3, 2])
    """

    _is_minimization_by_default = False

    def __init__(
        self, kernel: MultiTaskKernel, centers: Tensor, coefficients: Tensor, noise_std: float | None = None
    ) -> None:
        require_choices("centers", centers)
        coefficients = require_tensor("coefficients", coefficients, "Pass one row per center.")
        if coefficients.shape != (len(centers), kernel.num_tasks):
            raise ValueError(
                f"coefficients should be `m x n` = {len(centers)} x {kernel.num_tasks} (from centers and the kernel), "
                f"got shape {tuple(coefficients.shape)}. Pass one row per center and one column per task."
            )
        kernel = deepcopy(kernel).requires_grad_(False)
        self.dim, self.num_objectives = centers.shape[-1], kernel.num_tasks
        self.continuous_inds = list(range(self.dim))
        self._bounds = [(float(x.min()), float(x.max())) for x in centers.unbind(dim=-1)]
        values = _values(kernel, centers, centers, coefficients)
        self._ref_point = values.amin(dim=0).tolist()
        super().__init__(noise_std=noise_std, dtype=centers.dtype)
        self.kernel = kernel
        self.register_buffer("centers", centers)
        self.register_buffer("coefficients", coefficients)
        self.norm = (values * coefficients).sum().clamp_min(0).sqrt().item()
        """The RKHS norm."""

    @classmethod
    def draw(cls, kernel: MultiTaskKernel, domain: Tensor, num_centers: int = NUM_CENTERS, seed: int = 0) -> Self:
        """The paper's random element: centers from the ``N x d`` domain, coefficients uniform on ``[-1, 1]^n``."""
        generator = torch.Generator().manual_seed(seed)
        centers = domain[torch.randint(len(domain), (num_centers,), generator=generator).to(domain.device)]
        uniform = torch.rand(num_centers, kernel.num_tasks, generator=generator, dtype=torch.double)
        return cls(kernel, centers, (2 * uniform - 1).to(domain))

    def scaled_to(self, norm: float) -> Self:
        """The multiple of this function with the given RKHS norm."""
        require_positive("norm", norm, "Pass the norm wanted.")
        return type(self)(self.kernel, self.centers, self.coefficients * (norm / self.norm), self.noise_std)

    def evaluate_true(self, X: Tensor) -> Tensor:
        """``... x n``, the values at ``... x d`` points, also outside the box."""
        return self._evaluate_true(X)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        points = X.unsqueeze(0) if X.dim() == 1 else X
        values = _values(self.kernel, points, self.centers, self.coefficients)
        return values.squeeze(0) if X.dim() == 1 else values


def _values(kernel: MultiTaskKernel, X: Tensor, centers: Tensor, coefficients: Tensor) -> Tensor:
    flat = kernel(X, centers).to_dense() @ coefficients.flatten()
    return flat.unflatten(-1, (-1, kernel.num_tasks))
