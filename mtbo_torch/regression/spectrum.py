r"""The common eigenvectors of the task matrices: what turns a matrix-valued problem into a few scalar ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mtbo_torch.regression.base import pick_fields

NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Spectrum:
    r"""A joint diagonalization :math:`B_j = \sum_g \xi_{jg} U_g U_g^T` of whitened, commuting task matrices.

    Directions with the same eigenvalues in every matrix form one group, and those with zero eigenvalues are left out:
    what is fitted costs one scalar problem for each group.

    Attributes:
        eigvals: ``(b) x J x r``, :math:`\xi_{jg}` for matrix j and group g, in descending order of their sum over j.
        bases: ``(b) x r x n x m``, the orthonormal columns :math:`U_g`, padded with zero columns to a common m.
        multiplicities: The number of columns of each group.
    """

    eigvals: Tensor
    bases: Tensor
    multiplicities: tuple[int, ...]

    @classmethod
    def of(cls, task_covars: Tensor) -> Spectrum | None:
        """Diagonalize ``(b) x J x n x n`` matrices together; None if they do not commute."""
        n, dtype = task_covars.shape[-1], task_covars.dtype
        task_covars = task_covars.double()  # a few small matrices, on whose accuracy everything rests
        scale = torch.linalg.matrix_norm(task_covars, keepdim=True).clamp_min(torch.finfo(dtype).tiny)
        # What rounding the entries, and then working in double precision, can do to eigenvalues.
        rounding = scale * (torch.finfo(dtype).eps + n**0.5 * torch.finfo(torch.double).eps)
        # A generic combination has the common eigenvectors and tells apart all groups of directions.
        numbers = torch.arange(2, task_covars.shape[-3] + 2, dtype=task_covars.dtype, device=task_covars.device)
        mixing = numbers.sqrt()[:, None, None]
        vectors = torch.linalg.eigh((mixing * task_covars / scale).sum(dim=-3)).eigenvectors.flip(-1)
        if task_covars.shape[-3] > 1:
            vectors = _refine(_refine(vectors, task_covars / scale), task_covars / scale)
        values, others = _rotate(task_covars, vectors)
        if (torch.linalg.matrix_norm(others, keepdim=True) > 10 * rounding).any():
            return None
        return cls._grouped(values.clamp_min(0), vectors, 2 * rounding.squeeze(-1), dtype)

    @classmethod
    def _grouped(cls, values: Tensor, vectors: Tensor, slack: Tensor, dtype: torch.dtype) -> Spectrum:
        """Join neighbors with equal eigenvalues and drop the directions whose eigenvalues are all zero."""
        n = values.shape[-1]
        apart = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs()
        same = (apart <= slack.unsqueeze(-1)).flatten(end_dim=-3).all(dim=0).tolist()
        starts = [0]
        for i in range(1, n):
            if not all(same[i][starts[-1] : i]):  # with each of the group: many small steps make a long way
                starts.append(i)
        stops = [*starts[1:], n]
        # Zero up to rounding, and far below the noise, which is one: nothing can be learned of that direction.
        is_zero = (values <= slack.clamp_max(NEGLIGIBLE)).flatten(end_dim=-2).all(dim=0).tolist()
        groups = [(a, b) for a, b in zip(starts, stops, strict=True) if not all(is_zero[a:b])] or [(0, n)]
        widest = max(b - a for a, b in groups)
        bases = [torch.nn.functional.pad(vectors[..., a:b], (0, widest - (b - a))) for a, b in groups]
        eigvals = [values[..., a:b].mean(dim=-1) for a, b in groups]
        multiplicities = tuple(b - a for a, b in groups)
        return cls(torch.stack(eigvals, dim=-1).to(dtype), torch.stack(bases, dim=-3).to(dtype), multiplicities)

    def pick(self, trials: Tensor) -> Spectrum:
        """Return that of some data sets, ``k`` places."""
        return replace(self, **pick_fields(self, trials, eigvals=2, bases=3))

    def rotate(self, whitened: Tensor) -> Tensor:
        """Return ``(b) x t x n`` targets in the coordinates of each group, ``(b) x r x t x m``."""
        return whitened.unsqueeze(-3) @ self.bases

    def spread(self, per_group: Tensor, noise: Tensor) -> Tensor:
        """Turn whitened covariances ``... x (b) x r x p x q`` of groups into ``... x (b) x pn x qn`` of the tasks."""
        projectors = self.bases @ self.bases.mT
        whitened = torch.einsum("...gpq,...gij->...piqj", per_group, projectors)
        sd = noise.squeeze(-2).sqrt()
        sd = sd.expand(*sd.shape[:-1], projectors.shape[-1])
        scaled = sd[..., None, :, None, None] * whitened * sd[..., None, None, None, :]
        return scaled.flatten(-4, -3).flatten(-2)

    def spread_diagonal(self, variances: Tensor, noise: Tensor) -> Tensor:
        """Turn ``(b) x r x P`` whitened variances of the groups into ``(b) x P x n x n`` covariances of the tasks."""
        whitened = torch.einsum("...gp,...gij->...pij", variances, self.bases @ self.bases.mT)
        sd = noise.sqrt()
        return sd.unsqueeze(-1) * whitened * sd.unsqueeze(-2)

    def spread_variances(self, variances: Tensor, noise: Tensor, directions: Tensor | None) -> Tensor:
        """Turn ``(b) x r x P`` whitened variances of the groups into ``(b) x P x k`` along ``(b) x k x n`` directions.

        With None they are the ``(b) x P x n`` variances of the tasks. Noise is ``(b) x 1 x 1`` or ``(b) x 1 x n``. In
        memory the points are next to each other, as few long rows are faster than many short ones.
        """
        if directions is None:
            return (self.share(noise) @ variances).mT
        whitened = directions.to(noise) * noise.sqrt()
        shares = (whitened.unsqueeze(-3) @ self.bases).square().sum(dim=-1)  # (b) x r x k
        return (shares.mT @ variances).mT

    def share(self, noise: Tensor) -> Tensor:
        """Return how much of the variance of each group is in each task, ``(b) x n x r``, noise restored."""
        return (self.bases.square().sum(dim=-1) * noise).mT

    def total(self, per_group: Tensor) -> Tensor:
        """Sum a number of each group over all its directions, ``(b) x r`` to ``(b)``."""
        return torch.linalg.vecdot(per_group, self._counts)

    @cached_property
    def _counts(self) -> Tensor:
        return torch.tensor(self.multiplicities, dtype=self.eigvals.dtype, device=self.eigvals.device)


def _rotate(matrices: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonals ``(b) x J x n`` of matrices in another basis, and the rest of them."""
    rotated = vectors.mT.unsqueeze(-3) @ matrices @ vectors.unsqueeze(-3)
    values = rotated.diagonal(dim1=-2, dim2=-1)
    return values, rotated - torch.diag_embed(values)


def _refine(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Turn nearly common eigenvectors ``(b) x n x n`` to where, to first order, they are those of every matrix.

    Those of a combination are known to rounding over the gaps between its eigenvalues, and some of these gaps are small
    by chance. Here each pair of directions is told apart by all matrices.
    """
    values, others = _rotate(matrices, vectors)
    gaps = values.unsqueeze(-1) - values.unsqueeze(-2)
    tiny = torch.finfo(matrices.dtype).eps
    turn = (others * gaps).sum(dim=-3) / (gaps.square().sum(dim=-3) + tiny**2)
    return torch.linalg.qr(vectors - vectors @ turn).Q


def whiten(task_covars: Sequence[Tensor], noise: Tensor) -> Tensor:
    """Return the matrices ``Sigma^(-1/2) B_j Sigma^(-1/2)`` of several terms, ``(b) x J x n x n``."""
    sd = noise.squeeze(-2).sqrt()
    whitened = [B / (sd.unsqueeze(-1) * sd.unsqueeze(-2)) for B in task_covars]
    return torch.stack(torch.broadcast_tensors(*whitened), dim=-3)
