"""Figures. Only this package imports matplotlib. Every plot draws on the axes it is given and returns them."""

try:
    import matplotlib as mpl  # noqa: F401
except ImportError:
    raise ImportError('Plots need matplotlib. Run: pip install "mtbo-torch[plot]"') from None

from mtbo_torch.plotting.axes import COLORS
from mtbo_torch.plotting.figures import save_demo, save_panel
from mtbo_torch.plotting.fronts import plot_parallel, plot_pareto
from mtbo_torch.plotting.models import plot_explanation, plot_leave_one_out, plot_posterior, plot_task_correlation
from mtbo_torch.plotting.runs import plot_certificate, plot_dictionary, plot_differences, plot_hypervolume, plot_regret
from mtbo_torch.plotting.slices import plot_slice

__all__ = [
    "COLORS",
    "plot_certificate",
    "plot_dictionary",
    "plot_differences",
    "plot_explanation",
    "plot_hypervolume",
    "plot_leave_one_out",
    "plot_parallel",
    "plot_pareto",
    "plot_posterior",
    "plot_regret",
    "plot_slice",
    "plot_task_correlation",
    "save_demo",
    "save_panel",
]
