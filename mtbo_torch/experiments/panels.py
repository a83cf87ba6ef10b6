"""The paper's figures as data: problems, algorithms, regrets and claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch.experiments.instances import (
    BoxInstances,
    FiniteInstances,
    Instances,
    compute_norm_over_kappa,
    derive_seed,
)
from mtbo_torch.experiments.results import Claim, Panel
from mtbo_torch.kernels import ICMKernel, MultiTaskKernel, TaskSimilarityKernel
from mtbo_torch.problems import FieldProblem, PerturbedSine, RKHSFunction, ShiftedBranin, paper
from mtbo_torch.scalarizations import ChebyshevScalarization, LinearScalarization, Scalarization


@dataclass(frozen=True)
class Settings:
    """The settings that all runs of a reproduction share.

    Attributes:
        seed: Determines all random numbers.
        rounds: T.
        dtype: ``"float64"`` or ``"float32"``.
        device: For instance ``"cpu"`` or ``"cuda"``.
        norm_bound: ``"exact"``, the RKHS norm where it is known, or ``"paper"``, the paper's formula everywhere.
    """

    seed: int = 0
    rounds: int = paper.NUM_ROUNDS
    dtype: str = "float64"
    device: str = "cpu"
    norm_bound: str = "exact"

    @property
    def like(self) -> Tensor:
        """An empty tensor with the dtype and device, for ``.to(like)``."""
        return torch.empty(0, dtype=getattr(torch, self.dtype), device=self.device)


Build = Callable[[Sequence[int], Settings, FieldProblem | None], Instances]


@dataclass(frozen=True)
class Experiment:
    """A problem with a scalarization.

    Attributes:
        name: The name of the folder with its results.
        scalarization: The class of the scalarization.
        build: Builds the functions of some trials.
        knows_norm: True if the RKHS norms of the functions are known.
        data: The data file that it needs, ``"sensor"`` or ``"soil"``, if any.
    """

    name: str
    scalarization: type[Scalarization]
    build: Build
    knows_norm: bool = False
    data: str | None = None


def make_base_kernel(lengthscale: float, like: Tensor) -> RBFKernel:
    """Make a fixed squared exponential kernel with the dtype and device of `like`."""
    kernel = RBFKernel().to(like)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double).to(like)
    return kernel.requires_grad_(False)


def make_net(like: Tensor) -> Tensor:
    """Make the 0.01-net of the unit interval, ``101 x 1``."""
    return torch.linspace(0, 1, round(1 / paper.NET) + 1, dtype=torch.double).unsqueeze(-1).to(like)


def _make_rkhs_instances(
    functions: Sequence[RKHSFunction], kernel: MultiTaskKernel, domain: Tensor, settings: Settings
) -> FiniteInstances:
    table = torch.stack([f.evaluate_true(domain) for f in functions])
    exact = torch.tensor([f.norm for f in functions], dtype=torch.double).to(domain)
    norm_bound = exact if settings.norm_bound == "exact" else compute_norm_over_kappa(table, kernel)
    return FiniteInstances(kernel, norm_bound, paper.NOISE_SCALE, domain, table)


def _make_rkhs_builder(num_tasks: int) -> Build:
    def build(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
        domain, base = make_net(settings.like), make_base_kernel(paper.LENGTHSCALE, settings.like)
        generators = [torch.Generator().manual_seed(derive_seed(settings.seed, i, "task matrix")) for i in trials]
        A = torch.stack([torch.rand(num_tasks, num_tasks, generator=g, dtype=torch.double) for g in generators])
        B = (A.mT @ A).to(domain)
        functions = [
            RKHSFunction.draw(ICMKernel(base, B[j]), domain, seed=derive_seed(settings.seed, i, "function"))
            for j, i in enumerate(trials)
        ]
        return _make_rkhs_instances(functions, ICMKernel(base, B), domain, settings)

    return build


def _make_similarity_builder(omega: float, scaled: bool) -> Build:
    def build(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
        domain, base = make_net(settings.like), make_base_kernel(paper.LENGTHSCALE, settings.like)
        kernel = TaskSimilarityKernel(base, paper.SIMILARITY_NUM_TASKS, omega)
        functions = [RKHSFunction.draw(kernel, domain, seed=derive_seed(settings.seed, i, "function")) for i in trials]
        if scaled:
            functions = [f.scale_to(paper.SIMILARITY_NORM) for f in functions]
        return _make_rkhs_instances(functions, kernel, domain, settings)

    return build


def _build_sine(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    domain, base = make_net(settings.like), make_base_kernel(paper.LENGTHSCALE, settings.like)
    kernel = TaskSimilarityKernel(base, paper.SINE_NUM_TASKS, paper.SINE_OMEGA)
    table = PerturbedSine(dtype=domain.dtype).to(domain).evaluate_true(domain).expand(len(trials), -1, -1)
    return FiniteInstances(kernel, compute_norm_over_kappa(table, kernel), paper.NOISE_SCALE, domain, table)


def _build_branin(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    problem: MultiObjectiveTestProblem = ShiftedBranin().to(settings.like)
    kernel = TaskSimilarityKernel(
        make_base_kernel(paper.LENGTHSCALE, settings.like), paper.BRANIN_NUM_TASKS, paper.BRANIN_OMEGA
    )
    axis = torch.linspace(0, 1, 101, dtype=torch.double).to(settings.like)
    grid = problem.evaluate_true(torch.cartesian_prod(axis, axis)).expand(len(trials), -1, -1)
    return BoxInstances(kernel, compute_norm_over_kappa(grid, kernel), paper.NOISE_SCALE, problem, problem.bounds)


def _build_field(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    assert field is not None
    choices, table = field.choices.to(settings.like), field.values.to(settings.like)
    kernel = ICMKernel(make_base_kernel(field.lengthscale, settings.like), field.task_covar.to(settings.like))
    table = table.expand(len(trials), -1, -1)
    return FiniteInstances(kernel, compute_norm_over_kappa(table, kernel), field.noise_scale, choices, table)


@lru_cache(maxsize=8)
def build_instances(
    experiment: str, trials: tuple[int, ...], settings: Settings, field: FieldProblem | None
) -> Instances:
    """Build the functions of an experiment's trials, which all algorithms share."""
    with torch.no_grad():
        return EXPERIMENTS[experiment].build(trials, settings, field)


def _list_experiments() -> dict[str, Experiment]:
    sweep = [
        (f"{name}-{w:g}", _make_similarity_builder(w, scaled), True, None)
        for name, scaled in (("similarity", False), ("similarity-scaled", True))
        for w in paper.SIMILARITY_OMEGAS
    ]
    problems: list[tuple[str, Build, bool, str | None]] = [
        *sweep,
        ("rkhs-2", _make_rkhs_builder(2), True, None),
        ("rkhs-20", _make_rkhs_builder(20), True, None),
        ("sine", _build_sine, False, None),
        ("branin", _build_branin, False, None),
        ("sensors", _build_field, False, "sensor"),
        ("soil", _build_field, False, "soil"),
    ]
    classes: dict[str, type[Scalarization]] = {"chebyshev": ChebyshevScalarization, "linear": LinearScalarization}
    experiments = [
        Experiment(f"{name}-{suffix}", scalarization, build, knows_norm, data)
        for name, build, knows_norm, data in problems
        for suffix, scalarization in classes.items()
    ]
    return {experiment.name: experiment for experiment in experiments}


_USUAL = (
    Claim("MT-KB ends below IT-KB", "below", ("MT-KB", "IT-KB")),
    Claim("MT-BKB ends below IT-BKB", "below", ("MT-BKB", "IT-BKB")),
    Claim("MT-BKB is near MT-KB", "near", ("MT-BKB", "MT-KB")),
)
_MOBO = Claim("MT-KB ends below MOBO", "below", ("MT-KB", "MOBO"))


def _list_panels() -> dict[str, Panel]:
    average, bayes = "average_regret", "bayes_regret"
    sweep, scaled = (
        {f"ω = {w:g}": f"{name}-{w:g}-chebyshev" for w in paper.SIMILARITY_OMEGAS}
        for name in ("similarity", "similarity-scaled")
    )
    falls = Claim("The more similar the tasks, the lower the regret", "falls", tuple(sweep))
    gap = Claim("The gap between MT-KB and IT-KB is larger than with 2 tasks", "gap", ("MT-KB", "IT-KB"), "fig1b")
    panels = [
        Panel("fig1a", "MT-KB under varying similarity of the tasks", sweep, average, (falls,)),
        Panel("fig1a-scaled", "As fig1a, with all functions of one norm (not in the paper)", scaled, average, (falls,)),
        _make_panel("fig1b", "RKHS function (2 tasks)", "rkhs-2-chebyshev", average, _USUAL),
        _make_panel("fig1c", "RKHS function (20 tasks)", "rkhs-20-chebyshev", average, (*_USUAL, gap)),
        _make_panel("fig1d", "Perturbed sine function", "sine-chebyshev", average, (*_USUAL, _MOBO)),
        _make_panel("fig1e", "Shifted Branin-Hoo", "branin-chebyshev", average, (*_USUAL, _MOBO)),
        _make_panel("fig1f", "Sensor measurements", "sensors-chebyshev", average, (*_USUAL, _MOBO)),
        _make_panel("fig2a", "RKHS function, linear scalarization", "rkhs-2-linear", average, _USUAL),
        _make_panel("fig2b", "Perturbed sine function, linear scalarization", "sine-linear", average, (*_USUAL, _MOBO)),
        _make_panel("fig2c", "Sensor measurements, linear scalarization", "sensors-linear", average, (*_USUAL, _MOBO)),
        _make_panel("fig3a", "RKHS function", "rkhs-2-chebyshev", bayes, _USUAL),
        _make_panel("fig3b", "Perturbed sine function", "sine-chebyshev", bayes, (*_USUAL, _MOBO)),
        _make_panel("fig3c", "Sensor measurements", "sensors-chebyshev", bayes, (*_USUAL, _MOBO)),
        _make_panel("soil", "Heavy metals in soil (not in the paper)", "soil-chebyshev", average, (*_USUAL, _MOBO)),
    ]
    return {panel.name: panel for panel in panels}


def _make_panel(name: str, title: str, experiment: str, metric: str, claims: tuple[Claim, ...]) -> Panel:
    return Panel(name, title, {"": experiment}, metric, claims)


EXPERIMENTS = _list_experiments()
PANELS = _list_panels()
