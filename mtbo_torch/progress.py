"""Progress bars, where tqdm is installed and somebody is looking."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _Silent:
    def update(self, count: int) -> None: ...
    def set_description(self, text: str) -> None: ...


def progress_bar(total: int, description: str, unit: str = "round") -> AbstractContextManager[Any]:
    """A bar to be used with ``with``; silent where there is neither a terminal nor a notebook."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return nullcontext(_Silent())
    return tqdm(total=total, desc=description, unit=f" {unit}", disable=None, dynamic_ncols=True)
