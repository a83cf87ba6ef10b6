"""Run tests with other versions of what we require, and record how many passed: ``make test-versions``.

A set is the versions to try and, if another Python is wanted, its command before them. Each set is installed into an
environment of its own, which is deleted once tested: pip takes the named versions, for torch the one of
``constraints.txt`` if none is named, and for everything else the newest that ``pyproject.toml`` allows; it refuses a
set that ``pyproject.toml`` does not allow. Most builds of torch take several gigabytes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from threading import Lock

from record import ROOT, format_rows, record

WITH_BOTORCH = ["tests/test_kernels.py", "tests/test_acquisition.py"]
WITH_TORCH = [*WITH_BOTORCH, "tests/regression", "tests/strategies/test_mtkb.py"]
WITH_TABLES = ["tests/test_experiment.py", "tests/test_plotting.py"]
OLDEST = "torch==2.4.1 botorch==0.18.0 scipy==1.13.0 pandas==2.2.3 matplotlib==3.8.4"
# The oldest and the newest versions that pyproject.toml allows, and the tests that they concern. Old packages need old
# versions of what they require themselves.
SETS = {
    f"python3.11 {OLDEST} numpy==1.26.4 pyparsing==3.1.4": [*WITH_TORCH, *WITH_TABLES],
    "python3.11 torch==2.15.0": WITH_TORCH,
    "python3.12 torch==2.13.0": WITH_BOTORCH,
    "python3.13 torch==2.15.0": WITH_TORCH,
}
SHOWN = ["torch", "botorch", "gpytorch", "numpy", "scipy", "pandas", "matplotlib"]
COUNTS = re.compile(r"(\d+) (passed|failed|error)")
# One environment is installed while another is tested.
TESTING = Lock()


def split_set(wanted: str) -> tuple[str | None, list[str]]:
    """Return the Python of a set, ``None`` if it is not installed, and its versions."""
    first, *others = wanted.split()
    return (shutil.which(first), others) if first.startswith("python") else (sys.executable, [first, *others])


def install(folder: Path, python: str, versions: list[str]) -> Path:
    """Create an environment with some versions, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    if not any(name.startswith("torch==") for name in versions):
        versions = [f"torch=={version('torch').partition('+')[0]}", *versions]
    pip = [folder / "bin" / "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, f"{ROOT}[plot,progress,table]", "pytest", "hypothesis", "mpmath", *versions], check=True)
    return folder / "bin" / "python"


def describe(python: Path) -> tuple[str, str]:
    """Return the versions of Python and of what is shown, as the environment sees them itself."""
    values = f"platform.python_version(), *[name + ' ' + version(name) for name in {SHOWN}]"
    code = f"import platform; from importlib.metadata import version; print({values}, sep=', ')"
    output = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    own, _, others = output.strip().partition(", ")
    return own, others


def run_tests(python: Path, tests: list[str]) -> tuple[str, str]:
    """Return how many tests passed and failed."""
    command = [python, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(ran.stdout[-3000:], flush=True)
    counts = {what: int(count) for count, what in COUNTS.findall(ran.stdout.splitlines()[-1])}
    return str(counts.get("passed", 0)), str(counts.get("failed", 0) + counts.get("error", 0))


def try_set(number: int, wanted: str, tests: list[str]) -> tuple[str, ...]:
    """Return a row of the table: what was tried, and how many tests passed and failed; empty without the Python."""
    found, versions = split_set(wanted)
    if found is None:
        print(f"Skipped, as this Python is not installed: {wanted}", flush=True)
        return ()
    folder = ROOT / "build" / "versions" / str(number)
    python = install(folder, found, versions)
    with TESTING:
        counts = run_tests(python, tests)
    files = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
    row = (*describe(python), files, *counts)
    shutil.rmtree(folder)
    print(*row, sep="; ", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "versions", nargs="*", help="such as python3.12 botorch==0.18.0; by default all sets, which are recorded"
    )
    parser.add_argument("--tests", nargs="+", default=WITH_BOTORCH, help="what to run with them")
    options = parser.parse_args()
    sets = {" ".join(options.versions): options.tests} if options.versions else SETS
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(try_set, range(len(sets)), sets.keys(), sets.values()))
    tried = [row for row in rows if row]
    lines = format_rows([("Python", "versions", "tests", "passed", "failed"), *tried])
    print(*lines, sep="\n")
    if len(tried) < len(rows):
        print("Not recorded, as some sets were skipped.")
    elif not options.versions:
        record("versions", lines, "make test-versions", ["benchmarks/versions.py", "pyproject.toml"])
    if any(passed == "0" or failed != "0" for *_, passed, failed in tried):
        sys.exit("Some tests failed.")


if __name__ == "__main__":
    main()
