"""Lists of points as users have them: tensors, NumPy arrays, and files that are mapped into memory."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A tensor, or an array of NumPy, which is not imported for its sake.
ArrayLike = Any


def read_array(name: str, values: Any) -> Any:
    """Return a NumPy array as a tensor that shares its memory, and everything else as it is."""
    module = type(values).__module__.split(".")[0]
    if module == "dask":
        raise ValueError(
            f"{name} should be a tensor or a NumPy array here, got a Dask array. Use MTBKB, or {name}.compute()."
        )
    if module != "numpy":
        return values
    if hasattr(values, "mask"):
        raise ValueError(f"{name} should be an array without a mask, got a masked one. Leave the masked rows out.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
        try:
            return torch.from_numpy(values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} should hold numbers in single or double precision, in the machine's own order and rows one "
                f"after the other, got an array of {values.dtype}. Use numpy.ascontiguousarray({name}, dtype=float)."
            ) from error


@dataclass(frozen=True)
class File:
    """A file that is mapped into memory, as a ``numpy.memmap``.

    Attributes:
        path: Where it is.
        size: The bytes that it should have.
        offset: Where its rows begin.
        row: The bytes of a row.
    """

    path: str
    size: int
    offset: int
    row: int

    @classmethod
    def behind(cls, values: Any) -> File | None:
        """Return the file that an array is in, or a part of; None if it is in none."""
        found, part = None, values
        while part is not None and not isinstance(part, Tensor):
            found = part if getattr(part, "filename", None) is not None else found
            part = getattr(part, "base", None)
        if found is None or not len(values):
            return None
        return cls(str(found.filename), found.offset + found.nbytes, found.offset, values[:1].nbytes)

    def require_whole(self) -> None:
        """Refuse a file that has lost rows: reading them would end the process."""
        if not os.path.exists(self.path):  # what is mapped stays readable
            return
        size = os.path.getsize(self.path)
        if size < self.size:
            rows, row = (self.size - self.offset) // self.row, max(0, size - self.offset) // self.row
            raise ValueError(
                f"choices should stay in a file of {rows:,} rows, got one that ends in row {row}. Restore {self.path}; "
                "nothing that was told is lost."
            )
