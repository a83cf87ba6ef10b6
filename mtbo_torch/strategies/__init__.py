"""Ask and tell: MT-KB, MT-BKB and the baselines."""

from mtbo_torch.strategies.base import Strategy
from mtbo_torch.strategies.itbkb import ITBKB
from mtbo_torch.strategies.itkb import ITKB
from mtbo_torch.strategies.mobo import MOBO
from mtbo_torch.strategies.mtbkb import MTBKB
from mtbo_torch.strategies.mtkb import MTKB
from mtbo_torch.strategies.reference import NEHVI, NParEGO
from mtbo_torch.strategies.search import RandomSearch, SobolSearch

__all__ = ["ITBKB", "ITKB", "MOBO", "MTBKB", "MTKB", "NEHVI", "NParEGO", "RandomSearch", "SobolSearch", "Strategy"]
