"""What every test starts from."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_run() -> None:
    torch.manual_seed(0)
