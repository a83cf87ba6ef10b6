"""The project itself: the direction of imports, the docstrings, the command line, the package."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import matplotlib as mpl
import pandas as pd
import pytest

import mtbo_torch
from mtbo_torch.cli import main
from mtbo_torch.experiments.compare import Comparison
from mtbo_torch.experiments.reproduce import Request, reproduce

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mtbo_torch"
ORDER = (
    "arrays",
    "checks",
    "display",
    "linalg",
    "regression",
    "kernels",
    "surrogate",
    "confidence",
    "intervals",
    "models",
    "comparison",
    "scalarizations",
    "feasibility",
    "acquisition",
    "improvement",
    "ax_inputs",
    "ax",
    "grid",
    "inputs",
    "optimization",
    "space",
    "cluster",
    "strategies",
    "experiment",
    "loop",
    "optuna",
    "problems",
    "metrics",
    "experiments",
    "plotting",
    "report",
    "cli",
)


SHARED_BY_SIBLINGS = {
    "base",
    "budgeted",
    "explanation",
    "goal",
    "kernelized",
    "learners",
    "modeling",
    "paper",
    "proofs",
    "search",
}


def imported_modules(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if part == "__init__":
        return
    modules = imported_modules(path)
    ours = {name.split(".")[1] for name in modules if name.startswith("mtbo_torch.")}
    assert part in ORDER
    assert all(ORDER.index(other) <= ORDER.index(part) for other in ours)
    hosts = {name.split(".")[0] for name in modules}
    if part == "regression":
        assert not hosts & {"gpytorch", "botorch", "linear_operator"}
    if part != "plotting":
        assert "matplotlib" not in hosts
    if part in ("strategies", "problems") and path.stem != "__init__":
        siblings = {name.split(".")[2] for name in modules if name.startswith(f"mtbo_torch.{part}.")}
        assert siblings <= SHARED_BY_SIBLINGS


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    users = [line for name in extras.keys() - {"docs", "test"} for line in extras[name]]
    names = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"] + users}
    imported = {name.split(".")[0] for path in PACKAGE.rglob("*.py") for name in imported_modules(path)}
    assert {"ax-platform" if name == "ax" else name for name in imported - sys.stdlib_module_names} <= names


# Some say what they export; in other modules, what has no underscore and is no check is public.
PACKAGES = ("mtbo_torch", "mtbo_torch.kernels", "mtbo_torch.models", "mtbo_torch.problems", "mtbo_torch.strategies")
MODULES = (
    "improvement",
    "intervals",
    "comparison",
    "scalarizations",
    "confidence",
    "feasibility",
    "optimization",
    "metrics",
)
WITH_EQUATION = """
    MultiTaskKernel ICMKernel TaskSimilarityKernel SumOfSeparableKernel IndependentKernel estimate_task_covar
    ExactMultiTaskGP ExactMultiTaskGP.leave_one_out ExactMultiTaskGP.log_marginal_likelihood
    NystromMultiTaskGP NystromMultiTaskGP.inclusion_probs
    MultiTaskGPModel.mean MultiTaskGPModel.covariance MultiTaskGPModel.covariance_norm
    MultiTaskGPModel.at MultiTaskGPModel.info_gain ComparedKernel compare_kernels
    Scalarization Scalarization.lipschitz Scalarization.upper_bound Scalarization.round_off
    LinearScalarization LinearScalarization.lipschitz ChebyshevScalarization.round_off
    ChebyshevScalarization ChebyshevScalarization.lipschitz HypervolumeScalarization HypervolumeScalarization.lipschitz
    HypervolumeScalarization.chebyshev ObjectiveScalarization ObjectiveScalarization.lipschitz
    WeightDistribution UniformWeights InverseUniformWeights DirichletWeights SphereWeights BoxWeights FixedWeights
    exact_radius nystrom_radius independent_radius independent_nystrom_radius mobo_radius theory_oversampling
    OutcomeConstraints OutcomeConstraints.probability
    ScalarizedMultiTaskUCB NystromScalarizedMultiTaskUCB
    LogAverageImprovement log_improvement Incumbent Samples Samples.draw Samples.reach Samples.widths
    MTKB MTBKB ITKB ITBKB MOBO ModelStrategy.covariance_norm
    scalarized_regret average_regret regret_certificate hypervolume RegretTracker
    PerturbedSine ShiftedBranin RKHSFunction FieldProblem
""".split()  # noqa: SIM905
SHAPE = re.compile(r"``(\(b\)|\.\.\.|\w)( x [^`]+)?``")


def public_names() -> dict[str, Any]:
    found = {}
    for package in map(import_module, PACKAGES):
        found |= {name: getattr(package, name) for name in package.__all__}
    for module in (import_module(f"mtbo_torch.{name}") for name in MODULES):
        own = {name: value for name, value in vars(module).items() if not name.startswith(("_", "require_"))}
        found |= {name: value for name, value in own.items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def public_members() -> dict[str, Any]:
    """The methods and properties that public classes of ours, and those they inherit from, define."""
    classes = {base for value in public_names().values() if inspect.isclass(value) for base in value.__mro__}
    return {
        f"{owner.__name__}.{name}": (owner, name, value)
        for owner in sorted(classes, key=str)
        if owner.__module__.startswith("mtbo_torch")
        for name, value in vars(owner).items()
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | classmethod))
    }


def own_doc(owner: type, name: str) -> str:
    """The docstring of a member, or that of the method of ours which it overrides; a host's does not count."""
    ours = [vars(base).get(name) for base in owner.__mro__ if base.__module__.startswith("mtbo_torch")]
    return next((member.__doc__ for member in ours if member is not None and member.__doc__), "")


def takes_tensors(value: Any) -> bool:
    function = value.__init__ if inspect.isclass(value) else getattr(value, "__func__", value)
    # Only type checkers see the package import pandas.
    hints = get_type_hints(function, localns={"pd": pd}) if inspect.isfunction(function) else {}
    return any("Tensor" in str(hint) for name, hint in hints.items() if name != "return")


def require_equation_and_shapes(name: str, value: Any, doc: str) -> None:
    assert ":math:" in doc or ".. math::" in doc or name not in WITH_EQUATION, "no equation"
    assert SHAPE.search(doc) or not takes_tensors(value), "no shape of a tensor, such as ``(b) x t x n``"


@pytest.mark.parametrize("name", sorted(public_names()))
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = public_names()[name]
    doc = value.__doc__ or ""
    assert doctest.DocTestParser().get_examples(doc.partition("Example:")[2]), "no example that runs"
    require_equation_and_shapes(name, value, doc)


@pytest.mark.parametrize("name", sorted(public_members()))
def test_every_public_member_is_documented(name: str) -> None:
    owner, attribute, value = public_members()[name]
    doc = own_doc(owner, attribute)
    assert doc, "no docstring"
    require_equation_and_shapes(name, value, doc)


def test_equations_are_asked_of_names_that_exist() -> None:
    assert not set(WITH_EQUATION) - public_names().keys() - public_members().keys()


def test_public_names_are_found_where_they_are() -> None:
    assert mtbo_torch._HOME_OF.keys() == set(mtbo_torch.__all__)
    assert mtbo_torch.kernels.ICMKernel is mtbo_torch.ICMKernel
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mtbo_torch.nothing  # noqa: B018


HOSTS = ("torch", "botorch", "matplotlib", "pandas", "ax", "distributed")
REGISTRY = "from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY as registry"


@pytest.mark.parametrize(
    "code",
    [
        f"import mtbo_torch, sys; assert not sys.modules.keys() & set({HOSTS})",
        pytest.param(
            f"from mtbo_torch import LogAverageImprovement; {REGISTRY}; assert LogAverageImprovement in registry",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{REGISTRY}; import mtbo_torch; assert 'LogAverageImprovement' in [acqf.__name__ for acqf in registry]",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["little is loaded", "registered when named", "registered where Ax waits"],
)
def test_importing(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("host", "extra", "use"),
    [
        ("ax.adapter.registry", "ax", lambda: import_module("mtbo_torch.ax")),
        ("optuna.distributions", "optuna", lambda: import_module("mtbo_torch.optuna")),
        ("matplotlib", "plot", lambda: import_module("mtbo_torch.plotting")),
        ("pandas", "table", lambda: Comparison([], ()).table),
        ("distributed", "cluster", lambda: reproduce(Request(["fig1b"], Path("none"), scheduler="tcp://here:1"))),
    ],
)
def test_without_a_host_it_is_said_which_extra_to_install(
    host: str, extra: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, host, None)
    monkeypatch.delitem(sys.modules, f"mtbo_torch.{extra}", raising=False)
    monkeypatch.delitem(sys.modules, "mtbo_torch.plotting", raising=False)
    with pytest.raises(ImportError, match=rf'Run: pip install "mtbo-torch\[{extra}\]"'):
        use()


@pytest.mark.slow
def test_the_wheel_and_the_source_are_whole(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert wheel.name == f"mtbo_torch-{mtbo_torch.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    package = {str(path.relative_to(ROOT)) for path in (*PACKAGE.rglob("*.py"), PACKAGE / "py.typed")}
    assert {name for name in names if ".dist-info/" not in name} == package
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert {line.split()[1].split("<")[0].split(">")[0] for line in required} == {
        "torch",
        "gpytorch",
        "botorch",
        "linear-operator",
        "scipy",
    }
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CITATION.cff", "docs/conf.py", "tests/test_project.py", *package} <= inside
    assert not [name for name in inside if name.startswith(("results", "docs/_build"))]
    assert run_demo_of(wheel, tmp_path) == str(tmp_path / "empty")


def run_demo_of(wheel: Path, folder: Path) -> str:
    """Install a wheel into an empty environment, run its demo, and return the environment it was loaded from.

    What it requires is not installed again but seen where these tests see it; pip refuses versions that do not suit.
    `make package` installs everything.
    """
    empty = folder / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    [packages] = (empty / "lib").glob("python*/site-packages")
    (packages / "hosts.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # editable packages there are not seen
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--python", empty / "bin/python", "install", "--no-index"]
    for command in (
        [*pip, "--no-deps", "--force-reinstall", wheel],
        [*pip, f"mtbo_torch[plot] @ {wheel.as_uri()}"],  # finds that all it requires is there
        [empty / "bin/mtbo-torch", "demo", "--trials", "1", "--rounds", "3"],
        [empty / "bin/python", "-c", "import mtbo_torch; print(mtbo_torch.__file__)"],
    ):
        ran = subprocess.run(command, cwd=folder, env=bare, capture_output=True)
        assert ran.returncode == 0, ran.stderr.decode()
    assert (folder / "demo.png").exists()
    return ran.stdout.decode().partition("/lib/")[0]


def test_version_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"mtbo_torch {mtbo_torch.__version__}\n"
    main(["--version", "--environment"])
    output = capsys.readouterr().out
    for name in ("mtbo_torch", "Python", "torch", "gpytorch", "botorch", "linear_operator", "GPUs"):
        assert re.search(rf"^{name}\b", output, flags=re.MULTILINE)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpl.use("Agg")
    picture = tmp_path / "demo.png"
    main(["demo", "--trials", "2", "--rounds", "12", "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert "MT-KB" in output
    assert re.search(r"^12 +\d\.\d+ ± ", output, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--rounds", "0"], "at least 1"),
        (["demo", "--out", "/no/such/folder/x.png"], "existing folder"),
        ([], ""),
    ],
)
def test_bad_arguments_exit_with_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        main(arguments)
    assert failure.value.code == 2
    assert message in capsys.readouterr().err
