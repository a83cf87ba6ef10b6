"""The command ``mtbo-torch``."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

import mtbo_torch
from mtbo_torch.display import format_mean_and_sd, format_text_table, progress_bar
from mtbo_torch.experiments.algorithms import ALGORITHMS, DEFAULT_ALGORITHMS, resolve_names
from mtbo_torch.experiments.panels import PANELS, Settings, build_instances
from mtbo_torch.experiments.reproduce import Request, make_benchmark, reproduce
from mtbo_torch.experiments.runner import Part, Run, join
from mtbo_torch.problems import load_sensors, load_soil, paper
from mtbo_torch.report import METRIC_NAMES, give_verdicts, load_facts, write_index, write_panel

OPTIONAL = ("matplotlib", "pandas", "tqdm", "ax-platform", "distributed", "optuna")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="mtbo-torch", description="Multi-task Bayesian optimization with guarantees.")
    parser.add_argument("--version", action="store_true", help="say the version, and stop")
    parser.add_argument("--environment", action="store_true", help="say what it runs on, for a bug report, and stop")
    commands = parser.add_subparsers(dest="command")
    _add_demo(commands.add_parser("demo", help="optimize two correlated tasks and plot the result"))
    _add_reproduce(commands.add_parser("reproduce", help="run the paper's experiments", epilog=_list_panels()))
    options = parser.parse_args(arguments)
    if options.version or options.environment:
        print(
            f"mtbo_torch {mtbo_torch.__version__}", *(describe_environment() if options.environment else ()), sep="\n"
        )
        return
    if options.command is None:
        parser.error("a command is required: demo or reproduce")
    try:
        import_module("mtbo_torch.plotting")  # before all the work, if it cannot be
        options.run(options)
    except KeyboardInterrupt:
        parser.exit(130, "mtbo-torch: interrupted; give the same command again to continue.\n")
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        parser.exit(2, f"mtbo-torch: {error.filename or options.out} cannot be used: {error.strerror or error}.\n")
    except (ValueError, ImportError) as error:
        parser.exit(2, f"mtbo-torch: {error}\n")


def describe_environment() -> Iterator[str]:
    """Return the lines that a bug report should have: versions, platform and devices."""
    yield f"Python {platform.python_version()} on {platform.platform()}"
    for name in ("torch", "gpytorch", "linear_operator", "botorch", *OPTIONAL):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield f"{torch.get_num_threads()} threads, default dtype {torch.get_default_dtype()}"
    yield f"GPUs: {', '.join(devices) or 'none'}"


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=_parse_integer, default=10, help="number of functions (default: 10)")
    parser.add_argument("--rounds", type=_parse_integer, default=100, help="evaluations of each (default: 100)")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="file of the figure (default: demo.png)")
    parser.set_defaults(run=_run_demo)


def _run_demo(options: argparse.Namespace) -> None:
    if not options.out.resolve().parent.is_dir():
        raise ValueError(f"--out should lie in an existing folder, got {options.out}. Create the folder first.")
    run_demo(options.trials, options.rounds, options.out)


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("panels", nargs="+", metavar="PANEL", help="names of panels, or all")
    add("--trials", type=_parse_integer, default=paper.NUM_TRIALS, help="number of trials (default: %(default)s)")
    add("--rounds", type=_parse_integer, default=paper.NUM_ROUNDS, help="rounds of each (default: %(default)s)")
    add("--algorithms", nargs="+", metavar="NAME", help=f"{', '.join(ALGORITHMS)} (default: all but the last four)")
    add("--out", type=Path, default=Path("results"), help="output folder (default: %(default)s)")
    add("--seed", type=_parse_count, default=0, help="determines all random numbers (default: %(default)s)")
    add("--device", default="cpu", help="for instance cuda (default: %(default)s)")
    add("--dtype", default="float64", help="float64 or float32 (default: %(default)s)")
    add("--batch", type=_parse_integer, default=paper.NUM_TRIALS, help="trials in one batch (default: %(default)s)")
    add("--norm-bound", default="exact", help="exact (where the norm is known) or paper (default: %(default)s)")
    add("--sensor-data", type=Path, help="a folder with data.txt and mote_locs.txt, or a tidy CSV file")
    add("--soil-data", type=Path, help="the Jura data as a CSV file")
    add("--executor", default="local", help="local or dask (default: %(default)s)")
    add("--scheduler", metavar="ADDRESS", help="address of the Dask scheduler, for instance tcp://host:8786")
    parser.set_defaults(run=_run_reproduce)


def _list_panels() -> str:
    return "panels: " + "; ".join(f"{name}: {panel.title}" for name, panel in PANELS.items())


def _run_reproduce(options: argparse.Namespace) -> None:
    panels = resolve_names("PANEL", options.panels, ["all", *PANELS])
    panels = list(PANELS) if "all" in panels else panels
    algorithms = DEFAULT_ALGORITHMS
    if options.algorithms:
        algorithms = tuple(resolve_names("--algorithms", options.algorithms, list(ALGORITHMS)))
    settings = Settings(
        seed=options.seed,
        rounds=options.rounds,
        dtype=_resolve_name("--dtype", options.dtype, ("float64", "float32")),
        device=_check_device(options.device),
        norm_bound=_resolve_name("--norm-bound", options.norm_bound, ("exact", "paper")),
    )
    scheduler = _resolve_scheduler(options)
    files = (("sensor", options.sensor_data, load_sensors), ("soil", options.soil_data, load_soil))
    fields = {name: load(path) for name, path, load in files if path is not None}
    for name, problem in fields.items():
        print(f"{name} data: {problem.report}")
    request = Request(panels, options.out, settings, algorithms, options.trials, options.batch, fields, scheduler)
    others = {name: panel for name, panel in PANELS.items() if name not in panels}
    load_facts(options.out, others)  # refuses what the page would refuse
    results, notes = reproduce(request)
    for note in notes:
        print(note)
    if not results:
        return
    for result in results:
        write_panel(result, options.out)
    index = write_index(options.out, notes)
    for result in results:
        name, regret = result.panel.name, METRIC_NAMES[result.panel.metric]
        print(f"\n{name}: {result.panel.title}, {regret}, mean ± standard deviation")
        _print_table(result.curves)
        for verdict in give_verdicts(options.out, name):
            print(f"  {verdict}")
    print(f"\nFigures and tables are in {index}")


def _resolve_name(name: str, value: str, known: Sequence[str]) -> str:
    return resolve_names(name, [value], known)[0]


def _check_device(name: str) -> str:
    try:
        (torch.zeros(1, device=name) + 1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise ValueError(f"--device should be usable on this machine, got {name} ({reason}). Use cpu.") from error
    return name


def _resolve_scheduler(options: argparse.Namespace) -> str | None:
    executor = _resolve_name("--executor", options.executor, ("local", "dask"))
    if executor == "local":
        if options.scheduler is not None:
            raise ValueError("--scheduler should only be given with --executor dask, got it alone. Add the executor.")
        return None
    if options.scheduler is None:
        raise ValueError("--executor dask should come with the address of a scheduler, got none. Add --scheduler.")
    address: str = options.scheduler
    return address


def run_demo(trials: int, rounds: int, out: Path) -> None:
    """Run MT-KB and random search on the paper's RKHS functions with two tasks, all trials as one batch."""
    from mtbo_torch.plotting import save_demo

    settings, numbers = Settings(rounds=rounds), tuple(range(trials))
    benchmark = make_benchmark("rkhs-2-chebyshev", settings)
    columns = {}
    with progress_bar(2 * rounds, "optimizing") as bar:
        for algorithm in ("MT-KB", "random"):
            run, blocks = Run(Part(benchmark, algorithm, numbers)), []
            while not run.is_done:
                blocks.append(run.advance())
                bar.update(blocks[-1]["regret"].shape[1])
            columns[algorithm] = join(blocks)
    curves = {name: values["average_regret"] for name, values in columns.items()}
    print("time-average regret, mean ± standard deviation")
    _print_table(curves)
    instances = build_instances(benchmark.name, numbers, settings, None)
    assert instances.attainable is not None
    widest = int(is_non_dominated(instances.attainable).sum(dim=-1).argmax())  # the most interesting front
    save_demo(curves, instances.attainable[widest], instances.evaluate(columns["MT-KB"]["x"])[widest], out)
    print(f"The figure is in {out}")


def _print_table(curves: dict[str, Tensor]) -> None:
    rounds = next(iter(curves.values())).shape[-1]
    rows = [
        [str(t), *[format_mean_and_sd(curve[:, t - 1].tolist()) for curve in curves.values()]]
        for t in sorted({max(1, rounds // 10), max(1, rounds // 2), rounds})
    ]
    print(format_text_table([["round", *curves], *rows]))


def _parse_count(text: str) -> int:
    return _parse_integer(text, least=0)


def _parse_integer(text: str, least: int = 1) -> int:
    if not text.lstrip("-").isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"should be a whole number, at least {least}, got {text}")
    return int(text)
