"""Outcome constraints and their probability of being satisfied."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.special import ndtri

from mtbo_torch.checks import require_finite, require_tensor

# The number of fixed points of the unit cube over which a joint probability is averaged.
NUM_SAMPLES = 128
# Points are processed in chunks of at most this many numbers.
MOST_NUMBERS = 2**22
# The relative tolerance within which rows count as multiples of each other.
PARALLEL = 1e-12


class OutcomeConstraints(torch.nn.Module):
    r"""Constraints :math:`A y \le c` on the values y of the tasks at a point.

    Rows of A that are multiples of each other become one interval. All numbers are stored in double precision.

    Args:
        A: ``m x n``, one row per constraint and one column per task; no row may be zero.
        c: ``m`` or ``m x 1``, as in BoTorch's ``(A, b)``.

    Raises:
        ValueError: If two constraints contradict each other.

    Example:
        >>> import torch
        >>> from mtbo_torch.feasibility import OutcomeConstraints
        >>> first_at_most_one = OutcomeConstraints(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]))
        >>> first_at_most_one.probability(torch.tensor([1.0, 5.0]), torch.eye(2))
        tensor(0.5000)
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    samples: Tensor

    def __init__(self, A: Tensor, c: Tensor) -> None:
        super().__init__()
        _require_constraints(A, c)
        A, c = A.double(), c.double().reshape(-1)
        rows: list[Tensor] = []
        bounds: list[list[float]] = []
        for row, limit in zip(A, c, strict=True):
            scale = row.norm()
            row, value = row / scale, (limit / scale).item()
            for known, interval in zip(rows, bounds, strict=True):
                if torch.allclose(row, known, rtol=PARALLEL, atol=0):
                    interval[1] = min(interval[1], value)
                    break
                if torch.allclose(row, -known, rtol=PARALLEL, atol=0):
                    interval[0] = max(interval[0], -value)
                    break
            else:
                rows.append(row)
                bounds.append([-math.inf, value])
        for low, high in bounds:
            if low >= high:
                raise ValueError(
                    f"A and c should leave an interval allowed, got an outcome that must be at least {low:g} and at "
                    f"most {high:g} (in a direction of unit length). A row a of A and an entry c mean a^T y <= c."
                )
        self._is_interval = [math.isfinite(low) for low, _ in bounds]
        self.register_buffer("A", torch.stack(rows))
        self.register_buffer("lower", A.new_tensor([low for low, _ in bounds]))
        self.register_buffer("upper", A.new_tensor([high for _, high in bounds]))
        # The draw for the last row is not used, so one row needs one sample.
        count = NUM_SAMPLES if len(rows) > 1 else 1
        engine = torch.quasirandom.SobolEngine(len(rows), scramble=True, seed=0)
        self.register_buffer("samples", engine.draw(count, dtype=torch.double).mT.contiguous().to(A.device))

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.A.shape[-1]

    def extra_repr(self) -> str:
        """Return the rows of unit length and their lower and upper limits."""
        return f"{self.A.tolist()}, {self.lower.tolist()}, {self.upper.tolist()}"

    def hold(self, Y: Tensor) -> Tensor:
        """Return ``...``, True where values ``... x n`` satisfy all constraints, up to rounding."""
        Y = require_tensor("Y", Y, "Pass one column per task.")
        if Y.shape[-1:] != (self.num_tasks,):
            raise ValueError(
                f"Y should be `... x n` with n = {self.num_tasks} tasks (from A), got shape {tuple(Y.shape)}. "
                "Pass all tasks."
            )
        A = self.A.to(Y)
        outcomes, rounding = Y @ A.mT, 8 * torch.finfo(Y.dtype).eps * (Y.abs() @ A.abs().mT)
        return ((outcomes >= self.lower.to(Y) - rounding) & (outcomes <= self.upper.to(Y) + rounding)).all(dim=-1)

    def probability(self, mean: Tensor, covariance: Tensor) -> Tensor:
        r"""Return ``...``, the probability that :math:`y \sim N(\mu, \Gamma)` satisfies all constraints.

        It is differentiable. For one constraint it is exact. Several constraints are taken one after another, each
        given values of the previous ones, and averaged over fixed points (Genz 1992); the error is mostly below 1e-3,
        at worst 1e-2, or 3e-2 with more constraints than tasks.

        Args:
            mean: ``... x n``.
            covariance: ``... x n x n``.
        """
        mean = require_tensor("mean", mean, "Pass one column per task.")
        covariance = require_tensor("covariance", covariance, "Pass one row and one column per task.")
        n = self.num_tasks
        if mean.shape[-1:] != (n,) or covariance.shape[-2:] != (n, n):
            raise ValueError(
                f"mean and covariance should be `... x n` and `... x n x n` with n = {n} tasks (from A), got shapes "
                f"{tuple(mean.shape)} and {tuple(covariance.shape)}. Pass all tasks."
            )
        size = max(1, MOST_NUMBERS // (self.samples.numel() * mean.shape[:-2].numel()))
        if mean.dim() == 1 or mean.shape[-2] <= size:
            return self._compute_probability(mean, covariance)
        pieces = zip(mean.split(size, dim=-2), covariance.split(size, dim=-3), strict=True)
        return torch.cat([self._compute_probability(*piece) for piece in pieces], dim=-1)

    def _compute_probability(self, mean: Tensor, covariance: Tensor) -> Tensor:
        A = self.A.to(mean)
        center, chol = mean @ A.mT, _factorize_semidefinite(A, covariance)
        low, high = ((bound.to(mean) - center).unsqueeze(-1) for bound in (self.lower, self.upper))  # ... x m x 1
        eps = torch.finfo(mean.dtype).eps
        total = torch.ones_like(center[..., :1])
        drawn: list[Tensor] = []
        for j, sample in enumerate(self.samples.to(mean)):
            shift = torch.zeros_like(total)
            for i, z in enumerate(drawn):
                shift = shift + chol[..., j, i, None] * z
            upper = (high[..., j, :] - shift) / chol[..., j, j, None]
            below, share = torch.zeros_like(upper), _ndtr(upper)
            if self._is_interval[j]:
                lower = (low[..., j, :] - shift) / chol[..., j, j, None]
                # Subtract in the tail in which both are small.
                below = _ndtr(lower)
                share = torch.where(lower > 0, _ndtr(-lower) - _ndtr(-upper), share - below)
            total = total * share
            drawn.append(ndtri((below + sample * share).clamp(eps, 1 - eps)))
        return total.mean(dim=-1)


def _ndtr(x: Tensor) -> Tensor:
    """Compute the normal distribution function; torch's own is zero more than eight deviations below the mean."""
    return torch.erfc(-x * math.sqrt(0.5)) / 2


def _factorize_semidefinite(A: Tensor, covariance: Tensor) -> Tensor:
    """Return ``... x m x m``, the Cholesky factor of ``A covariance A^T``, which may be singular.

    Pivots below the rounding error are replaced by the rounding error, and no entry is larger than the variance of its
    row allows.
    """
    number = torch.finfo(covariance.dtype)
    joint = A @ covariance @ A.mT
    # An upper bound on the rows' standard deviations, without any cancellation.
    largest = covariance.detach().diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt() @ A.abs().mT
    floor = (10 * A.shape[-1] * number.eps * largest.square()).clamp_min(number.tiny)
    rest = joint.diagonal(dim1=-2, dim2=-1)
    columns: list[Tensor] = []
    for j in range(len(A)):
        column = joint[..., j]
        for earlier in columns:
            column = column - earlier * earlier[..., j, None]
        column = column / torch.maximum(rest[..., j], floor[..., j]).sqrt().unsqueeze(-1)
        limit = torch.maximum(rest, floor).sqrt()
        column = torch.cat([torch.zeros_like(column[..., :j]), limit[..., j, None], column[..., j + 1 :]], dim=-1)
        column = torch.minimum(torch.maximum(column, -limit), limit)
        rest = rest - column.square()
        columns.append(column)
    return torch.stack(columns, dim=-1)


def _require_constraints(A: object, c: object) -> None:
    A = require_tensor("A", A, "Pass one row per constraint and one column per task.")
    c = require_tensor("c", c, "Pass one number per constraint.")
    if A.dim() != 2 or A.numel() == 0:
        raise ValueError(
            f"A should be `m x n`, got shape {tuple(A.shape)}. Pass one row per constraint and one column per task."
        )
    if c.numel() != len(A):
        raise ValueError(
            f"c should have one entry for each of the {len(A)} constraints (from A), got shape {tuple(c.shape)}. "
            "A row a of A and an entry c mean a^T y <= c."
        )
    require_finite("A", A)
    require_finite("c", c)
    if (A == 0).all(dim=-1).any():
        raise ValueError("A should have an entry other than zero in every row, got a row of zeros. Leave that row out.")
