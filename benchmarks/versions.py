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
from importlib.metadata import version
from pathlib import Path

from record import ROOT, format_rows, record

HOSTS = ("torch", "botorch", "gpytorch", "linear_operator", "matplotlib", "pandas")
WITH_BOTORCH = ["tests/test_host.py", "tests/test_acquisition.py"]  # every entry point of BoTorch
# The oldest and the newest that pyproject.toml allows, and the tests that they concern. The newest are installed.
SETS = {
    "": [*WITH_BOTORCH, "tests/test_plotting.py", "tests/test_experiment.py"],
    "botorch==0.17.2": WITH_BOTORCH,
    "botorch==0.18.0": WITH_BOTORCH,
    "matplotlib==3.10.9": ["tests/test_plotting.py"],
    "pandas==2.2.3": ["tests/test_experiment.py"],
}
COUNTS = re.compile(r"(\d+) (passed|failed|error)")


def install(folder: Path, wanted: str) -> Path:
    """Create an environment in which some versions are exchanged, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "hosts.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    if wanted:
        pip = [python, "-m", "pip", "install", "--quiet", f"torch=={version('torch')}", *wanted.split()]
        subprocess.run(pip, check=True)
    return python


def describe(python: Path, wanted: str) -> str:
    """Return which versions an environment exchanges, as it sees them itself; all of them if none."""
    names = re.findall(r"([\w-]+)==", wanted) or HOSTS
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as botorch==0.17.2; by default all sets, which are recorded")
    parser.add_argument("--tests", nargs="+", default=WITH_BOTORCH, help="what to run with them")
    options = parser.parse_args()
    rows, any_failed = [("Python", "versions", "tests", "passed", "failed")], False
    sets = {" ".join(options.versions): options.tests} if options.versions else SETS
    for wanted, tests in sets.items():
        python = install(ROOT / "build" / "versions", wanted)
        passed, failed = run_tests(python, tests)
        any_failed |= bool(failed) or not passed
        files = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        rows.append((platform.python_version(), describe(python, wanted), files, str(passed), str(failed)))
        print(*format_rows(rows), sep="\n", flush=True)
    if not options.versions:
        record("versions", format_rows(rows), "make test-versions", ["benchmarks/versions.py", "pyproject.toml"])
    if any_failed:
        sys.exit("Some tests failed.")


if __name__ == "__main__":
    main()
