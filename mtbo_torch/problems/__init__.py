"""Test problems, one per file."""

from mtbo_torch.problems.branin import ShiftedBranin
from mtbo_torch.problems.field import FieldProblem, load_sensors, load_soil
from mtbo_torch.problems.rkhs import RKHSFunction
from mtbo_torch.problems.sine import PerturbedSine

__all__ = ["FieldProblem", "PerturbedSine", "RKHSFunction", "ShiftedBranin", "load_sensors", "load_soil"]
