r"""Append-only storage, and the inverse Cholesky factor that lives in it.

Fitted objects are immutable: appending returns a new object. What makes that free is that rows once written never
change, so an older object simply goes on seeing its own prefix of a shared buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.linalg import cholesky_logdet, eye_like, safe_cholesky, solve_lower

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
# Rows with fewer numbers are rather moved than kept in one more block: a product with each block is one more call.
LARGE_BLOCK = 2**19
# The explicit inverse pays off when a product is bound by arithmetic, and is used only where rounding allows.
MANY_ROWS, LARGEST_ROUNDING = 64, 5e-8


@dataclass
class _Buffer:
    """Preallocated rows ``... x capacity x width``, of which the first `used` belong to somebody."""

    tensor: Tensor
    used: int


@dataclass(frozen=True)
class GrowingRows:
    """The first `length` rows of a shared buffer; :meth:`extend` appends without copying when nobody else has."""

    _buffer: _Buffer
    length: int

    def __getstate__(self) -> dict[str, Any]:
        return {"_buffer": self._buffer, "length": self.length}  # a copy of the view would not share its memory

    @classmethod
    def allocate(cls, like: Tensor, batch_shape: torch.Size, capacity: int, width: int) -> GrowingRows:
        """Return no rows yet, with room for ``(b) x capacity x width`` numbers."""
        # What is not written takes no memory.
        return cls(_Buffer(like.new_empty(*batch_shape, capacity, width), 0), 0)

    @classmethod
    def of(cls, rows: Tensor) -> GrowingRows:
        """Wrap existing rows; the buffer is full, so the first append moves it."""
        return cls(_Buffer(rows, rows.shape[-2]), rows.shape[-2])

    @cached_property
    def rows(self) -> Tensor:
        """``... x length x width``, a view."""
        # Rows with a gradient are always all of a buffer, and a view that is kept might be of rows without one.
        return self._buffer.tensor if self.length == self.capacity else self._buffer.tensor.narrow(-2, 0, self.length)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape before that of the rows."""
        return self._buffer.tensor.shape[:-2]

    @property
    def capacity(self) -> int:
        """The number of rows that the buffer has room for."""
        return self._buffer.tensor.shape[-2]

    def extend(self, new: Tensor) -> GrowingRows:
        """Append ``... x q x width`` rows (narrower ones are padded with zeros).

        In place when this object owns the buffer's end and there is room; otherwise into a new buffer, of twice the
        size if it was full. Rows with a gradient are never written in place.
        """
        length = self.length + new.shape[-2]
        width = self._buffer.tensor.shape[-1]
        padded = new if new.shape[-1] == width else torch.nn.functional.pad(new, (0, width - new.shape[-1]))
        if padded.requires_grad or self._buffer.tensor.requires_grad:
            return GrowingRows.of(torch.cat([self.rows, padded], dim=-2))
        if self._buffer.used != self.length or length > self.capacity:
            capacity = self.capacity if length <= self.capacity else 2 * length
            buffer = GrowingRows.allocate(self.rows, self.rows.shape[:-2], capacity, width)._buffer
            buffer.tensor[..., : self.length, :] = self.rows
        else:
            buffer = self._buffer
        # Writing through .data leaves the version counter alone: graphs that saved the older prefix stay valid.
        buffer.tensor.data.narrow(-2, self.length, new.shape[-2]).copy_(padded)
        buffer.used = length
        return GrowingRows(buffer, length)

    def expand(self, batch_shape: torch.Size) -> GrowingRows:
        """Return the same rows under a larger batch shape, as a view; a later append copies them."""
        return GrowingRows.of(self.rows.expand(*batch_shape, *self.rows.shape[-2:]))


@dataclass(frozen=True)
class RowBlocks:
    """Long rows ``... x length x width`` in blocks, of which a large one is never moved: that would take it twice.

    Attributes:
        blocks: The rows, one block after the other. A new block has room for as many as there are before it.
    """

    blocks: tuple[GrowingRows, ...]

    @classmethod
    def of(cls, rows: Tensor) -> RowBlocks:
        """Wrap existing rows."""
        return cls((GrowingRows.of(rows),))

    @property
    def length(self) -> int:
        """The number of rows."""
        return sum(block.length for block in self.blocks)

    @property
    def nbytes(self) -> int:
        """The memory that the rows take."""
        return sum(block.rows.nbytes for block in self.blocks)

    @property
    def parts(self) -> list[Tensor]:
        """The rows of each block, views."""
        return [block.rows for block in self.blocks]

    def join(self) -> Tensor:
        """Return all rows, ``... x length x width``."""
        return self.parts[0] if len(self.blocks) == 1 else torch.cat(self.parts, dim=-2)

    def extend(self, new: Tensor) -> RowBlocks:
        """Append ``... x q x width`` rows."""
        *before, last = self.blocks
        if last.length + new.shape[-2] > last.capacity and last.rows.numel() >= LARGE_BLOCK:
            room = max(self.length, new.shape[-2])
            before, last = [*self.blocks], GrowingRows.allocate(new, new.shape[:-2], room, new.shape[-1])
        return RowBlocks((*before, last.extend(new)))


@dataclass(frozen=True)
class Extension:
    r"""The change that one append made to a factor.

    Attributes:
        rows: ``... x q x (t + q)``, the new rows :math:`[-L_c^{-1} s, L_c^{-1}]` of ``M``.
        corner: ``... x q x q``, their last block :math:`L_c^{-1}`.
    """

    rows: Tensor
    corner: Tensor


@dataclass
class _KnownInverse:
    """``A^{-1}``, once somebody has needed it."""

    tensor: Tensor | None = None


@dataclass(frozen=True)
class InverseCholesky:
    r"""``M = L^{-1}`` for a positive definite ``A = L L^T`` that grows at its lower right corner.

    ``M`` is kept in blocks of rows, each only as wide as its triangle reaches. That halves the work of a product
    with ``M`` or ``M^T``, and an append writes into the last block alone: two triangular products, :math:`O(t^2)`, no
    factorization, no copy.

    Attributes:
        blocks: The rows of ``M``, in order.
        logdet: ``...``, :math:`\log\det A`.
        size: The number of rows t.
        smallest: A lower bound of the eigenvalues of ``A``.
        largest: By how much the largest diagonal entry of ``A`` exceeds that bound.
    """

    blocks: tuple[GrowingRows, ...]
    logdet: Tensor
    size: int
    smallest: float
    largest: float
    _known: _KnownInverse = field(default_factory=_KnownInverse)
    _known_of_leading: _KnownInverse = field(default_factory=_KnownInverse)

    @classmethod
    def of(cls, matrix: Tensor, floor: Tensor) -> InverseCholesky:
        """Factorize ``... x t x t`` in :math:`O(t^3)`; `floor` as in :func:`safe_cholesky`."""
        size, smallest = matrix.shape[-1], floor.min().item()
        if size == 0:
            return cls((), matrix.new_zeros(matrix.shape[:-2]), 0, smallest, 0.0)
        chol = safe_cholesky(matrix, floor, matrix)
        inverse = solve_lower(chol, eye_like(chol))
        blocks = tuple(
            GrowingRows.of(inverse[..., start : start + LARGEST_BLOCK, : start + LARGEST_BLOCK].contiguous())
            for start in range(0, size, LARGEST_BLOCK)
        )
        return cls(blocks, cholesky_logdet(chol), size, smallest, _largest_excess(matrix, floor))

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape of ``A``."""
        return self.logdet.shape

    @property
    def requires_grad(self) -> bool:
        """True if ``M`` itself has a gradient, and not only what it is multiplied with."""
        return any(block.rows.requires_grad for block in self.blocks)

    def lower(self, vectors: Tensor) -> Tensor:
        """Return ``M v`` for each row ``v`` of ``... x P x t``, at half the cost of a full product. Differentiable."""
        return self._lower(vectors) if self.requires_grad else _Product.apply(vectors, self, False)

    def upper(self, vectors: Tensor) -> Tensor:
        """Return ``M^T w`` for each row ``w`` of ``... x P x t``, at half the cost of a full product."""
        return self._upper(vectors) if self.requires_grad else _Product.apply(vectors, self, True)

    def quadratic(self, vectors: Tensor) -> Tensor:
        r"""Return :math:`v^T A^{-1} v`, ``... x P``, for each row ``v`` of ``... x P x t``.

        Without a gradient this is :math:`\|M v\|^2`, half a product. With one, many rows at once go through
        :math:`A^{-1} v`, which is half the gradient as well, so that value and gradient cost one product; few rows,
        or an ``A`` too ill-conditioned for its inverse to be used, take ``M`` and then ``M^T``.
        """
        if self.requires_grad:
            projected = self._lower(vectors)
            return _row_dot(projected, projected)
        return _QuadraticForm.apply(vectors, self)

    def inverse(self) -> Tensor:
        """Return ``A^{-1} = M^T M``, ``... x t x t``, computed when first asked for."""
        if self._known.tensor is None:
            result = self.logdet.new_zeros(*self.batch_shape, self.size, self.size)
            for _, stop, rows in self._pieces():
                result[..., :stop, :stop] += rows.mT @ rows
            self._known.tensor = result
        return self._known.tensor

    def inverse_blocks(self, width: int) -> Tensor:
        """Return the diagonal blocks of ``A^{-1}``, ``... x t / w x w x w``, at :math:`O(w t^2)`."""
        places = torch.arange(self.size, device=self.logdet.device)
        return self.inverse_blocks_at(places, self.size // width, width)

    def inverse_blocks_at(self, places: Tensor, count: int, width: int) -> Tensor:
        """Return diagonal blocks of ``A^{-1}`` when its rows are some of ``count * w``, in :math:`O(w t T)`, T of them.

        Args:
            places: ``t``, which of them, in increasing order; entries of the others are zero.
            count: The number of blocks.
            width: Their width w.

        Returns:
            ``... x count x w x w``.
        """
        result = self.logdet.new_zeros(*self.batch_shape, count, width, width)
        ends = (places // width + 1).tolist()
        for _, stop, rows in self._pieces():
            used = ends[stop - 1]
            columns = rows.new_zeros(*rows.shape[:-1], used * width).index_copy(-1, places[:stop], rows)
            columns = columns.unflatten(-1, (used, width)).movedim(-3, -1)  # ... x used x w x rows
            # Added to a new tensor: the blocks may have a gradient.
            result = result + torch.nn.functional.pad(columns @ columns.mT, (0, 0, 0, 0, 0, count - used))
        return result

    def prefers_inverse(self, num_vectors: int) -> bool:
        """Return whether a value with its gradient at this many rows should go through the inverse."""
        # The error of v^T A^{-1} v, for v as large as the rows of A, in units of its smallest eigenvalue.
        rounding = torch.finfo(self.logdet.dtype).eps * self.size * (self.largest / self.smallest) ** 2
        return num_vectors >= MANY_ROWS and rounding <= LARGEST_ROUNDING

    def append(self, cross: Tensor, corner: Tensor, floor: Tensor) -> tuple[InverseCholesky, Extension]:
        r"""Border ``A`` with ``q`` rows.

        With :math:`l = M a` for the new rows ``a``, :math:`s = M^T l` and the Cholesky factor :math:`L_c` of the
        Schur complement, the new rows of ``M`` are :math:`[-L_c^{-1} s, L_c^{-1}]`.

        Args:
            cross: ``... x q x t``, the new rows of ``A`` left of the corner.
            corner: ``... x q x q``.
            floor: ``...``, a known lower bound of the Schur complement's eigenvalues.
        """
        projected = self.lower(cross)
        chol = safe_cholesky(corner - projected @ projected.mT, floor, corner)
        inverse = solve_lower(chol, eye_like(chol))
        rows = torch.cat([-(inverse @ self.upper(projected)), inverse], dim=-1)
        grown = InverseCholesky(
            self._extended_blocks(rows),
            self.logdet + cholesky_logdet(chol),
            self.size + corner.shape[-1],
            self.smallest,
            max(self.largest, _largest_excess(corner, floor)),
        )
        return grown, Extension(rows, inverse)

    def expand(self, batch_shape: torch.Size) -> InverseCholesky:
        """Return the same factor under a larger batch shape, as views."""
        blocks = tuple(block.expand(batch_shape) for block in self.blocks)
        return InverseCholesky(blocks, self.logdet.expand(batch_shape), self.size, self.smallest, self.largest)

    def leading(self) -> InverseCholesky:
        """Return the factor of the first entry of the last batch dimension, kept as a dimension of size one."""
        blocks = tuple(GrowingRows.of(block.rows[..., :1, :, :]) for block in self.blocks)
        logdet, known = self.logdet[..., :1], self._known_of_leading
        return InverseCholesky(blocks, logdet, self.size, self.smallest, self.largest, known)

    def _extended_blocks(self, rows: Tensor) -> tuple[GrowingRows, ...]:
        blocks = list(self.blocks)
        start = self.size
        while rows.shape[-2]:
            if not blocks or blocks[-1].length == self._target_length(blocks[-1], start):
                height = min(max(start, SMALLEST_BLOCK), LARGEST_BLOCK)
                blocks.append(GrowingRows.allocate(rows, rows.shape[:-2], height, start + height))
            room = self._target_length(blocks[-1], start) - blocks[-1].length
            now, rows = rows[..., :room, :], rows[..., room:, :]
            start += now.shape[-2]
            blocks[-1] = blocks[-1].extend(now[..., : blocks[-1].rows.shape[-1]])
        return tuple(blocks)

    @staticmethod
    def _target_length(block: GrowingRows, start: int) -> int:
        """Return how many rows the block that ends at row `start` may hold before its triangle is wider than it is."""
        return block.rows.shape[-1] - (start - block.length)

    def _pieces(self) -> list[tuple[int, int, Tensor]]:
        pieces, start = [], 0
        for block in self.blocks:
            stop = start + block.length
            pieces.append((start, stop, block.rows[..., :stop]))
            start = stop
        return pieces

    def _lower(self, vectors: Tensor) -> Tensor:
        products = [vectors[..., :stop] @ rows.mT for _, stop, rows in self._pieces()]
        return torch.cat(products, dim=-1) if products else _no_columns(vectors, self.batch_shape)

    def _upper(self, vectors: Tensor) -> Tensor:
        pieces = self._pieces()
        if not pieces:
            return _no_columns(vectors, self.batch_shape)
        # From the last block, which is as wide as the result, to the narrowest.
        start, stop, rows = pieces[-1]
        total = vectors[..., start:stop] @ rows
        for start, stop, rows in reversed(pieces[:-1]):
            total[..., :stop] += vectors[..., start:stop] @ rows
        return total


class _Product(torch.autograd.Function):
    """``M v`` or ``M^T v``, each the other's gradient; `M` is a constant and is not saved as a graph tensor."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, factor: InverseCholesky, transposed: bool) -> Tensor:
        ctx.factor, ctx.shape, ctx.transposed = factor, vectors.shape, transposed
        return factor._upper(vectors) if transposed else factor._lower(vectors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(grads[0], ctx.factor, not ctx.transposed).sum_to_size(ctx.shape), None, None


class _QuadraticForm(torch.autograd.Function):
    """``v^T A^{-1} v``, with ``2 A^{-1} v`` as its gradient."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, factor: InverseCholesky) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(vectors)
        ctx.through_inverse = ctx.needs_input_grad[0] and factor.prefers_inverse(vectors.shape[-2])
        if ctx.through_inverse:
            ctx.product = vectors @ factor.inverse()
            return _row_dot(vectors.expand_as(ctx.product), ctx.product)
        ctx.product = factor._lower(vectors)
        return _row_dot(ctx.product, ctx.product)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (vectors,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            solved = ctx.factor.upper(ctx.factor.lower(vectors))
        else:
            solved = ctx.product if ctx.through_inverse else ctx.factor._upper(ctx.product)
        return (solved * (2 * grads[0]).unsqueeze(-1)).sum_to_size(vectors.shape), None


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("...i,...i->...", a, b)


def _largest_excess(matrix: Tensor, floor: Tensor) -> float:
    excess = matrix.diagonal(dim1=-2, dim2=-1) - floor.unsqueeze(-1)
    return excess.amax().item() if excess.numel() else 0.0


def _no_columns(vectors: Tensor, batch_shape: torch.Size) -> Tensor:
    return vectors.new_zeros(*torch.broadcast_shapes(vectors.shape[:-2], batch_shape), *vectors.shape[-2:])
