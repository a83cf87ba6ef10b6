"""Progress bars, if tqdm is installed and there is a terminal or a notebook."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _Silent:
    def update(self, count: int) -> None: ...
    def set_description(self, text: str) -> None: ...


def progress_bar(total: int, description: str, unit: str = "round") -> AbstractContextManager[Any]:
    """Return a progress bar for a ``with`` statement; silent without a terminal or a notebook."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return nullcontext(_Silent())
    return tqdm(total=total, desc=description, unit=f" {unit}", disable=None, dynamic_ncols=True)
