"""What every test starts from."""

from __future__ import annotations

import os

import pytest
import torch

# Nothing may depend on torch's default dtype: the suite is run under both.
torch.set_default_dtype(getattr(torch, os.environ.get("MTBO_TEST_DTYPE", "float32")))


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_run() -> None:
    torch.manual_seed(0)
