"""Functions from the RKHS of a multi-task kernel, with known norm."""

from __future__ import annotations

from copy import deepcopy
from typing import Self

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.checks import (
    require_choices,
    require_count,
    require_finite,
    require_positive,
    require_same_kind,
    require_seed,
    require_tensor,
)
from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.problems.paper import NUM_CENTERS


class RKHSFunction(MultiObjectiveTestProblem):
    r"""A function of known RKHS norm, as a BoTorch test problem: all tasks are maximized.

    .. math:: f = \sum_i \Gamma(\cdot, x_i) c_i, \quad \|f\|_\Gamma^2 = \sum_{ij} c_i^T \Gamma(x_i, x_j) c_j

    Its box is the smallest one that contains the centers; ``norm`` is its RKHS norm.

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
        >>> round(f.scale_to(2.0).norm, 4)
        2.0
    """

    _is_minimization_by_default = False

    def __init__(
        self, kernel: MultiTaskKernel, centers: Tensor, coefficients: Tensor, noise_std: float | None = None
    ) -> None:
        _require_kernel(kernel)
        require_choices("centers", centers)
        coefficients = require_tensor("coefficients", coefficients, "Pass one row per center.")
        if coefficients.shape != (len(centers), kernel.num_tasks):
            raise ValueError(
                f"coefficients should be `m x n` = {len(centers)} x {kernel.num_tasks} (from centers and the kernel), "
                f"got shape {tuple(coefficients.shape)}. Pass one row per center and one column per task."
            )
        require_same_kind(("centers", centers), ("coefficients", coefficients))
        require_finite("coefficients", coefficients)
        if noise_std is not None:
            require_positive("noise_std", noise_std, "Pass the noise's standard deviation.", allow_zero=True)
        kernel = deepcopy(kernel).requires_grad_(False)
        self.dim, self.num_objectives = centers.shape[-1], kernel.num_tasks
        self.continuous_inds = list(range(self.dim))
        self._bounds = [(float(x.min()), float(x.max())) for x in centers.unbind(dim=-1)]
        values = _evaluate_at(kernel, centers, centers, coefficients)
        self._ref_point = values.amin(dim=0).tolist()
        super().__init__(noise_std=noise_std, dtype=centers.dtype)
        self.kernel = kernel
        self.register_buffer("centers", centers)
        self.register_buffer("coefficients", coefficients)
        self.norm = (values * coefficients).sum().clamp_min(0).sqrt().item()
        """The RKHS norm."""

    @classmethod
    def draw(cls, kernel: MultiTaskKernel, domain: Tensor, num_centers: int = NUM_CENTERS, seed: int = 0) -> Self:
        """Draw a function as in the paper: centers from the domain with replacement, coefficients from ``[-1, 1]^n``.

        Args:
            kernel: The multi-task kernel.
            domain: ``N x d``.
            num_centers: m.
            seed: Determines all random numbers.
        """
        _require_kernel(kernel)
        require_choices("domain", domain)
        require_count("num_centers", num_centers, "Pass for instance 50.")
        require_seed("seed", seed)
        generator = torch.Generator().manual_seed(seed)
        centers = domain[torch.randint(len(domain), (num_centers,), generator=generator).to(domain.device)]
        uniform = torch.rand(num_centers, kernel.num_tasks, generator=generator, dtype=torch.double)
        return cls(kernel, centers, (2 * uniform - 1).to(domain))

    def scale_to(self, norm: float) -> Self:
        """Return the multiple of this function with the given RKHS norm."""
        require_positive("norm", norm, "Pass the desired norm.")
        if isinstance(norm, Tensor) and norm.numel() != 1:
            raise ValueError(f"norm should be one number, got shape {tuple(norm.shape)}. Pass the desired norm.")
        if self.norm == 0:
            raise ValueError("coefficients should not all be zero to be scaled, got the zero function. Draw another.")
        return type(self)(self.kernel, self.centers, self.coefficients * (norm / self.norm), self.noise_std)

    def evaluate_true(self, X: Tensor) -> Tensor:
        """Return the values ``... x n`` at ``... x d`` points, also outside the box."""
        return self._evaluate_true(X)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        X = require_tensor("X", X, "Pass one row per point.")
        if X.shape[-1:] != (self.dim,):
            raise ValueError(
                f"X should be `... x d` with d = {self.dim} (from centers), got shape {tuple(X.shape)}. "
                "Pass one row per point."
            )
        points = X.unsqueeze(0) if X.dim() == 1 else X
        values = _evaluate_at(self.kernel, points, self.centers, self.coefficients)
        return values.squeeze(0) if X.dim() == 1 else values


def _require_kernel(kernel: object) -> None:
    if not isinstance(kernel, MultiTaskKernel) or kernel.batch_shape:
        raise ValueError(
            f"kernel should be a multi-task kernel without a batch shape, got {type(kernel).__name__}. "
            "Wrap a scalar kernel as ICMKernel(kernel, task_covar)."
        )


def _evaluate_at(kernel: MultiTaskKernel, X: Tensor, centers: Tensor, coefficients: Tensor) -> Tensor:
    flat = kernel(X, centers).to_dense() @ coefficients.flatten()
    return flat.unflatten(-1, (-1, kernel.num_tasks))
