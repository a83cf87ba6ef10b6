"""Ask and tell: what to evaluate next, one algorithm in each file."""

from mtbo_torch.strategies.mtbkb import MTBKB
from mtbo_torch.strategies.mtkb import MTKB

__all__ = ["MTBKB", "MTKB"]
