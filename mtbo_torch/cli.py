"""The command ``mtbo-torch``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import gpytorch
import torch
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
    """MT-KB against random search on the paper's RKHS functions with two tasks."""
    from mtbo_torch.plotting import save_demo

    domain = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    regrets: dict[str, list[Tensor]] = {"MT-KB": [], "random search": []}
    for trial in _progress(range(trials), "optimising"):
        f = _correlated_tasks(domain, seed=trial)
        values, chosen, weights = _optimise(f, domain, rounds, seed=trial)
        random = torch.randint(len(domain), (rounds,), generator=torch.Generator().manual_seed(trial))
        scalarization = ChebyshevScalarization(weights)
        for name, achieved in (("MT-KB", chosen), ("random search", values[random])):
            regrets[name].append(average_regret(scalarized_regret(scalarization, achieved, values)))
    curves = {name: torch.stack(curve) for name, curve in regrets.items()}
    _print_table(curves)
    save_demo(curves, values, chosen, out)
    print(f"The picture is in {out}")


def _correlated_tasks(domain: Tensor, seed: int) -> RKHSFunction:
    base = gpytorch.kernels.RBFKernel()
    base.lengthscale = 0.2
    A = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed), dtype=domain.dtype)
    return RKHSFunction.draw(ICMKernel(base.to(domain), A.T @ A), domain, seed=seed)


def _optimise(f: RKHSFunction, domain: Tensor, rounds: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The values on the domain, the noiseless values of the points chosen, and the weights they were chosen for."""
    noise_scale, generator = 0.1, torch.Generator().manual_seed(seed)
    strategy = MTKB(f.kernel, choices=domain, norm_bound=f.norm, noise_scale=noise_scale, seed=seed)
    weights: list[Tensor] = []
    for _ in range(rounds):
        x = strategy.ask()
        weights.append(strategy.asked_weights)
        strategy.tell(x, f(x) + noise_scale * torch.randn(1, 2, generator=generator, dtype=x.dtype))
    return f(domain), f(strategy.train_X), torch.cat(weights)


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
