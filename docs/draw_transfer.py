"""Draw the picture of the README: a task is learned where only the other one was observed. ``make figures``."""

from __future__ import annotations

from pathlib import Path

import torch
from gpytorch.kernels import MaternKernel
from matplotlib.figure import Figure

from mtbo_torch import ExactMultiTaskGP, ICMKernel
from mtbo_torch.plotting import COLORS, plot_posterior

torch.set_default_dtype(torch.double)


def make_kernel(correlation: float) -> ICMKernel:
    base = MaternKernel(nu=2.5)
    base.lengthscale = 0.15
    return ICMKernel(base.requires_grad_(False), torch.tensor([[1.0, correlation], [correlation, 1.0]]))


def main(path: Path) -> None:
    grid = torch.linspace(0, 1, 201).unsqueeze(-1)
    prior = ExactMultiTaskGP(grid[:0], grid.new_empty(0, 2), make_kernel(0.9), eta=1.0)
    torch.manual_seed(3)
    with torch.no_grad():
        f = prior.posterior(grid).rsample(torch.Size([1]))[0]
    at = torch.cat([torch.arange(4, 80, 15), torch.arange(110, 200, 9)])
    train_X, train_Y = grid[at], f[at].clone()
    train_Y[at >= 100, 1] = torch.nan  # on the right, only task 1 is observed

    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.1)
    axes = figure.subplots(1, 2, sharey=True)
    for correlation, title, ax in zip([0.0, 0.9], ["modeled separately", "modeled together"], axes, strict=True):
        model = ExactMultiTaskGP(train_X, train_Y, make_kernel(correlation), eta=1e-3, allow_missing=True)
        plot_posterior(model, grid, train_X, train_Y, ax).set_title(title)
        ax.plot(grid, f[:, 1], color=COLORS[1], linestyle=":", label="task 2, truth")
        ax.label_outer()
        ax.get_legend().remove()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    print(f"The picture is in {path}.")


if __name__ == "__main__":
    main(Path(__file__).parent / "figures" / "transfer.png")
