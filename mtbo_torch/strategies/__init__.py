"""Ask and tell: MT-KB, MT-BKB and the baselines."""

from mtbo_torch.strategies.bandits import ITBKB, ITKB, MOBO, MTBKB, MTKB
from mtbo_torch.strategies.base import Strategy
from mtbo_torch.strategies.optimizer import Optimizer
from mtbo_torch.strategies.reference import NEHVI, NParEGO
from mtbo_torch.strategies.search import RandomSearch, SobolSearch

__all__ = [
    "ITBKB",
    "ITKB",
    "MOBO",
    "MTBKB",
    "MTKB",
    "NEHVI",
    "NParEGO",
    "Optimizer",
    "RandomSearch",
    "SobolSearch",
    "Strategy",
    "list_strategies",
]


def list_strategies() -> list[type[Strategy]]:
    """Return all strategies that can be used.

    Example:
        >>> from mtbo_torch.strategies import Optimizer, list_strategies
        >>> Optimizer in list_strategies()
        True
    """
    return [Optimizer, MTKB, MTBKB, ITKB, ITBKB, MOBO, NEHVI, NParEGO, RandomSearch, SobolSearch]
