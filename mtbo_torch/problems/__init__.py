"""What is optimised, one problem in each file."""

from mtbo_torch.problems.rkhs import RKHSFunction

__all__ = ["RKHSFunction"]
