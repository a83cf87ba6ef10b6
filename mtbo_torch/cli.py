"""The command ``mtbo-torch``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch.kernels import ICMKernel
from mtbo_torch.metrics import average_regret, scalarized_regret
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.scalarizations import ChebyshevScalarization
from mtbo_torch.strategies import MTKB


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="mtbo-torch", description="Multi-task Bayesian optimisation with guarantees.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo_parser = commands.add_parser("demo", help="optimise two correlated tasks and draw what happened")
    demo_parser.add_argument("--trials", type=_positive, default=10, help="independent functions (default: 10)")
    demo_parser.add_argument("--rounds", type=_positive, default=100, help="evaluations in each (default: 100)")
    demo_parser.add_argument("--out", type=Path, default=Path("demo.png"), help="the picture (default: demo.png)")
    options = parser.parse_args(arguments)
    if not options.out.resolve().parent.is_dir():
        parser.error(f"--out should lie in an existing folder, got {options.out}. Create the folder first.")
    demo(options.trials, options.rounds, options.out)


def demo(trials: int, rounds: int, out: Path) -> None:
    """MT-KB against random search on the paper's RKHS functions with two tasks, all trials as one batch."""
    from mtbo_torch.plotting import save_demo

    domain = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    functions = [_correlated_tasks(domain, seed) for seed in range(trials)]
    values = torch.stack([f(domain) for f in functions])
    chosen, weights = _optimise(functions, domain, rounds)
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(domain), (trials, rounds), generator=generator)
    random = torch.stack([f[place] for f, place in zip(values, places, strict=True)])
    curves = {
        name: torch.stack(
            [
                average_regret(scalarized_regret(ChebyshevScalarization(w), achieved, attainable))
                for w, achieved, attainable in zip(weights, points, values, strict=True)
            ]
        )
        for name, points in (("MT-KB", chosen), ("random search", random))
    }
    _print_table(curves)
    save_demo(curves, values[-1], chosen[-1], out)
    print(f"The picture is in {out}")


def _correlated_tasks(domain: Tensor, seed: int) -> RKHSFunction:
    A = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed), dtype=domain.dtype)
    return RKHSFunction.draw(ICMKernel(_base_kernel(), A.T @ A), domain, seed=seed)


def _base_kernel() -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.double)
    return kernel


def _optimise(functions: list[RKHSFunction], domain: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """``b x T x n``: the noiseless values of the points chosen, and the weights they were chosen for."""
    noise_scale, generator = 0.1, torch.Generator().manual_seed(0)
    strategy = MTKB(
        ICMKernel(_base_kernel(), torch.cat([f.kernel.terms()[0][1].unsqueeze(0) for f in functions])),
        choices=domain,
        norm_bound=torch.tensor([f.norm for f in functions], dtype=domain.dtype),
        noise_scale=noise_scale,
        seed=list(range(len(functions))),
    )
    chosen, weights = [], []
    for _ in _progress(range(rounds), "optimising"):
        x = strategy.ask()
        y = torch.stack([f(points) for f, points in zip(functions, x, strict=True)])
        strategy.tell(x, y + noise_scale * torch.randn(y.shape, generator=generator, dtype=y.dtype))
        chosen.append(y)
        weights.append(strategy.asked_weights)
    return torch.cat(chosen, dim=-2), torch.cat(weights, dim=-2)


def _print_table(curves: dict[str, Tensor]) -> None:
    rounds = next(iter(curves.values())).shape[-1]
    print("time-average regret, mean ± standard deviation")
    print(f"{'round':>8}" + "".join(f"{name:>20}" for name in curves))
    for t in sorted({max(1, rounds // 10), max(1, rounds // 2), rounds}):
        cells = (
            f"{curve[:, t - 1].mean():.3f} ± {curve[:, t - 1].std(correction=min(1, len(curve) - 1)):.3f}"
            for curve in curves.values()
        )
        print(f"{t:>8}" + "".join(f"{cell:>20}" for cell in cells))


def _progress(items: Iterable[int], description: str) -> Iterable[int]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return items
    return tqdm(items, desc=description, disable=None)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"should be at least 1, got {value}")
    return value
