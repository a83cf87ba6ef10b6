"""What every test starts from."""

from __future__ import annotations

import os

import pytest
import torch

# Nothing may depend on torch's default dtype: the suite is run under both.
DEFAULT_DTYPE = getattr(torch, os.environ.get("MTBO_TEST_DTYPE", "float32"))
torch.set_default_dtype(DEFAULT_DTYPE)


@pytest.fixture(autouse=True)
def _same_start_in_every_run() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(DEFAULT_DTYPE)  # a page or a script that was run before may have set another
