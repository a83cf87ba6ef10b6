"""Run tests with other versions of what we require, and record how many passed: ``make test-versions``.

Each version is installed into an environment of its own. Everything else is seen where this script sees it, in the
versions of ``constraints.txt``; so no other, large build of torch is loaded by accident. To try another torch or
another Python, create an environment with it and run the tests there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from record import ROOT, format_rows, record

WITH_BOTORCH = ["tests/test_kernels.py", "tests/test_acquisition.py"]
# Older versions than those of CI, and the tests that they concern.
SETS = {
    "botorch==0.17.2": WITH_BOTORCH,
    "botorch==0.18.0": WITH_BOTORCH,
    "matplotlib==3.10.9": ["tests/test_plotting.py"],
    "pandas==2.2.3": ["tests/test_experiment.py"],
}
COUNTS = re.compile(r"(\d+) (passed|failed|error)")


def install(folder: Path, wanted: str) -> Path:
    """Create an environment in which some versions are exchanged, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "hosts.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, f"torch=={version('torch')}", *wanted.split()], check=True)
    return python


def describe(python: Path, wanted: str) -> str:
    """Return the versions that were exchanged, as the environment sees them itself."""
    names = [requirement.partition("==")[0] for requirement in wanted.split()]
    code = f"from importlib.metadata import version; print(*[name + ' ' + version(name) for name in {names}], sep=', ')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def run_tests(python: Path, tests: list[str]) -> tuple[int, int]:
    """Return how many tests passed and failed."""
    command = [python, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(ran.stdout[-3000:], flush=True)
    counts = {what: int(count) for count, what in COUNTS.findall(ran.stdout.splitlines()[-1])}
    return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)


def try_versions(number: int, wanted: str, tests: list[str]) -> tuple[str, ...]:
    """Return a row of the table: what was tried, and how many tests passed and failed."""
    python = install(ROOT / "build" / "versions" / str(number), wanted)
    passed, failed = run_tests(python, tests)
    files = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
    return platform.python_version(), describe(python, wanted), files, str(passed), str(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as botorch==0.17.2; by default all sets, which are recorded")
    parser.add_argument("--tests", nargs="+", default=WITH_BOTORCH, help="what to run with them")
    options = parser.parse_args()
    sets = {" ".join(options.versions): options.tests} if options.versions else SETS
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(try_versions, range(len(sets)), sets.keys(), sets.values()))
    lines = format_rows([("Python", "versions", "tests", "passed", "failed"), *rows])
    print(*lines, sep="\n")
    if not options.versions:
        record("versions", lines, "make test-versions", ["benchmarks/versions.py", "pyproject.toml"])
    if any(passed == "0" or failed != "0" for *_, passed, failed in rows):
        sys.exit("Some tests failed.")


if __name__ == "__main__":
    main()
