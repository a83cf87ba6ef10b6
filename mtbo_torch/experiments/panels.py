"""The paper's figures as data: which problems, which algorithms, which regret, and what the paper says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch.experiments.instances import BoxInstances, FiniteInstances, Instances, norm_over_kappa, stream
from mtbo_torch.kernels import ICMKernel, MultiTaskKernel, TaskSimilarityKernel
from mtbo_torch.problems import FieldProblem, PerturbedSine, RKHSFunction, ShiftedBranin, paper
from mtbo_torch.scalarizations import ChebyshevScalarization, LinearScalarization, Scalarization


@dataclass(frozen=True)
class Settings:
    """What every run of a reproduction has in common.

    Attributes:
        seed: All randomness follows from it.
        rounds: T.
        dtype: ``"float64"`` or ``"float32"``.
        device: Such as ``"cpu"`` or ``"cuda"``.
        norm_bound: ``"exact"``, the RKHS norm where it is known, or ``"paper"``, the paper's formula everywhere.
    """

    seed: int = 0
    rounds: int = paper.NUM_ROUNDS
    dtype: str = "float64"
    device: str = "cpu"
    norm_bound: str = "exact"

    @property
    def kind(self) -> Tensor:
        """An empty tensor of the dtype and on the device."""
        return torch.empty(0, dtype=getattr(torch, self.dtype), device=self.device)


Build = Callable[[Sequence[int], Settings, FieldProblem | None], Instances]


@dataclass(frozen=True)
class Experiment:
    """A problem with a scalarization.

    Attributes:
        name: Of the folder with its results.
        scalarization: The class.
        build: Makes the functions of some trials.
        knows_norm: Whether the RKHS norms of the functions are known.
        data: The kind of file it needs, ``"sensor"`` or ``"soil"``, if any.
    """

    name: str
    scalarization: type[Scalarization]
    build: Build
    knows_norm: bool = False
    data: str | None = None


@dataclass(frozen=True)
class Claim:
    """Something the paper says of a figure.

    Attributes:
        text: In words.
        kind: ``"below"`` (the first curve ends below the second), ``"near"`` (within a quarter of it), ``"falls"``
            (each curve ends below the next), or ``"gap"`` (the second is above the first by a larger factor than
            elsewhere).
        curves: The labels.
        elsewhere: The panel compared with, for ``"gap"``.
    """

    text: str
    kind: str
    curves: tuple[str, ...]
    elsewhere: str | None = None


@dataclass(frozen=True)
class Panel:
    """A figure of the paper.

    Attributes:
        name: As on the command line.
        title: For people.
        experiments: The experiments by label; with several, there is one curve for each, else one for each algorithm.
        metric: The column drawn.
        claims: What the paper says.
    """

    name: str
    title: str
    experiments: Mapping[str, str]
    metric: str
    claims: tuple[Claim, ...]

    @property
    def is_sweep(self) -> bool:
        """Whether the curves are experiments, not algorithms."""
        return len(self.experiments) > 1

    def algorithms(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The algorithms to run: a sweep is about MT-KB alone."""
        return ("MT-KB",) if self.is_sweep else tuple(wanted)


def base_kernel(lengthscale: float, kind: Tensor) -> RBFKernel:
    """The squared exponential kernel, fixed, with the dtype and device of ``kind``."""
    kernel = RBFKernel().to(kind)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double).to(kind)
    return kernel.requires_grad_(False)


def net(kind: Tensor) -> Tensor:
    """The 0.01-net of the unit interval, ``101 x 1``."""
    return torch.linspace(0, 1, round(1 / paper.NET) + 1, dtype=torch.double).unsqueeze(-1).to(kind)


def _functions(
    functions: Sequence[RKHSFunction], kernel: MultiTaskKernel, domain: Tensor, settings: Settings
) -> FiniteInstances:
    table = torch.stack([f.evaluate_true(domain) for f in functions])
    exact = torch.tensor([f.norm for f in functions], dtype=torch.double).to(domain)
    norm_bound = exact if settings.norm_bound == "exact" else norm_over_kappa(table, kernel)
    return FiniteInstances(kernel, norm_bound, paper.NOISE_SCALE, domain, table)


def _rkhs(num_tasks: int) -> Build:
    def build(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
        domain, base = net(settings.kind), base_kernel(paper.LENGTHSCALE, settings.kind)
        generators = [torch.Generator().manual_seed(stream(settings.seed, i, "task matrix")) for i in trials]
        A = torch.stack([torch.rand(num_tasks, num_tasks, generator=g, dtype=torch.double) for g in generators])
        B = (A.mT @ A).to(domain)
        functions = [
            RKHSFunction.draw(ICMKernel(base, B[j]), domain, seed=stream(settings.seed, i, "function"))
            for j, i in enumerate(trials)
        ]
        return _functions(functions, ICMKernel(base, B), domain, settings)

    return build


def _similarity(omega: float, scaled: bool) -> Build:
    def build(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
        domain, base = net(settings.kind), base_kernel(paper.LENGTHSCALE, settings.kind)
        kernel = TaskSimilarityKernel(base, paper.SIMILARITY_NUM_TASKS, omega)
        functions = [RKHSFunction.draw(kernel, domain, seed=stream(settings.seed, i, "function")) for i in trials]
        if scaled:
            functions = [f.scaled_to(paper.SIMILARITY_NORM) for f in functions]
        return _functions(functions, kernel, domain, settings)

    return build


def _sine(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    domain, base = net(settings.kind), base_kernel(paper.LENGTHSCALE, settings.kind)
    kernel = TaskSimilarityKernel(base, paper.SINE_NUM_TASKS, paper.SINE_OMEGA)
    table = PerturbedSine(dtype=domain.dtype).to(domain).evaluate_true(domain).expand(len(trials), -1, -1)
    return FiniteInstances(kernel, norm_over_kappa(table, kernel), paper.NOISE_SCALE, domain, table)


def _branin(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    problem: MultiObjectiveTestProblem = ShiftedBranin().to(settings.kind)
    kernel = TaskSimilarityKernel(
        base_kernel(paper.LENGTHSCALE, settings.kind), paper.BRANIN_NUM_TASKS, paper.BRANIN_OMEGA
    )
    axis = torch.linspace(0, 1, 101, dtype=torch.double).to(settings.kind)
    grid = problem.evaluate_true(torch.cartesian_prod(axis, axis)).expand(len(trials), -1, -1)
    return BoxInstances(kernel, norm_over_kappa(grid, kernel), paper.NOISE_SCALE, problem, problem.bounds)


def _field(trials: Sequence[int], settings: Settings, field: FieldProblem | None) -> Instances:
    assert field is not None
    choices, table = field.choices.to(settings.kind), field.values.to(settings.kind)
    kernel = ICMKernel(base_kernel(field.lengthscale, settings.kind), field.task_covar.to(settings.kind))
    table = table.expand(len(trials), -1, -1)
    return FiniteInstances(kernel, norm_over_kappa(table, kernel), field.noise_scale, choices, table)


@lru_cache(maxsize=8)
def instances_of(experiment: str, trials: tuple[int, ...], settings: Settings, field: FieldProblem | None) -> Instances:
    """The functions of an experiment's trials; algorithms share them."""
    with torch.no_grad():
        return EXPERIMENTS[experiment].build(trials, settings, field)


def _all_experiments() -> dict[str, Experiment]:
    sweep = [
        (f"{name}-{w:g}", _similarity(w, scaled), True, None)
        for name, scaled in (("similarity", False), ("similarity-scaled", True))
        for w in paper.SIMILARITY_OMEGAS
    ]
    problems: list[tuple[str, Build, bool, str | None]] = [
        *sweep,
        ("rkhs-2", _rkhs(2), True, None),
        ("rkhs-20", _rkhs(20), True, None),
        ("sine", _sine, False, None),
        ("branin", _branin, False, None),
        ("sensors", _field, False, "sensor"),
        ("soil", _field, False, "soil"),
    ]
    kinds: dict[str, type[Scalarization]] = {"chebyshev": ChebyshevScalarization, "linear": LinearScalarization}
    experiments = [
        Experiment(f"{name}-{suffix}", kind, build, knows_norm, data)
        for name, build, knows_norm, data in problems
        for suffix, kind in kinds.items()
    ]
    return {experiment.name: experiment for experiment in experiments}


_USUAL = (
    Claim("MT-KB ends below IT-KB", "below", ("MT-KB", "IT-KB")),
    Claim("MT-BKB ends below IT-BKB", "below", ("MT-BKB", "IT-BKB")),
    Claim("MT-BKB is near MT-KB", "near", ("MT-BKB", "MT-KB")),
)
_MOBO = Claim("MT-KB ends below MOBO", "below", ("MT-KB", "MOBO"))


def _all_panels() -> dict[str, Panel]:
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
        _panel("fig1b", "RKHS function (2 tasks)", "rkhs-2-chebyshev", average, _USUAL),
        _panel("fig1c", "RKHS function (20 tasks)", "rkhs-20-chebyshev", average, (*_USUAL, gap)),
        _panel("fig1d", "Perturbed sine function", "sine-chebyshev", average, (*_USUAL, _MOBO)),
        _panel("fig1e", "Shifted Branin-Hoo", "branin-chebyshev", average, (*_USUAL, _MOBO)),
        _panel("fig1f", "Sensor measurements", "sensors-chebyshev", average, (*_USUAL, _MOBO)),
        _panel("fig2a", "RKHS function, linear scalarization", "rkhs-2-linear", average, _USUAL),
        _panel("fig2b", "Perturbed sine function, linear scalarization", "sine-linear", average, (*_USUAL, _MOBO)),
        _panel("fig2c", "Sensor measurements, linear scalarization", "sensors-linear", average, (*_USUAL, _MOBO)),
        _panel("fig3a", "RKHS function", "rkhs-2-chebyshev", bayes, _USUAL),
        _panel("fig3b", "Perturbed sine function", "sine-chebyshev", bayes, (*_USUAL, _MOBO)),
        _panel("fig3c", "Sensor measurements", "sensors-chebyshev", bayes, (*_USUAL, _MOBO)),
        _panel("soil", "Heavy metals in soil (not in the paper)", "soil-chebyshev", average, (*_USUAL, _MOBO)),
    ]
    return {panel.name: panel for panel in panels}


def _panel(name: str, title: str, experiment: str, metric: str, claims: tuple[Claim, ...]) -> Panel:
    return Panel(name, title, {"": experiment}, metric, claims)


EXPERIMENTS = _all_experiments()
PANELS = _all_panels()


def described(experiment: Experiment, settings: Settings, field: FieldProblem | None) -> dict[str, object]:
    """Everything that decides an experiment's numbers, as plain data."""
    constants = {name.lower(): value for name, value in vars(paper).items() if name.isupper()}
    del constants["open_choices"]
    facts: dict[str, object] = {"experiment": experiment.name} | asdict(settings) | {"paper": constants}
    if not experiment.knows_norm:
        facts["norm_bound"] = "paper"
    if field is not None:
        numbers = torch.cat([tensor.flatten() for tensor in (field.choices, field.values, field.task_covar)])
        facts["data"] = {
            "report": field.report,
            "lengthscale": field.lengthscale,
            "noise_scale": field.noise_scale,
            "sha256": hashlib.sha256(numbers.numpy().tobytes()).hexdigest(),
        }
    return facts
