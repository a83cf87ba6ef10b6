"""What happens when things break: killed runs, full disks, other processes, files that are not ours."""

from __future__ import annotations

import ast
import copy
import errno
import itertools
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from catalogue import data, icm
from test_bad_input import bits

from mtbo_torch import MTBKB, MTKB
from mtbo_torch.checks import checksum
from mtbo_torch.cli import main
from mtbo_torch.experiments import storage
from mtbo_torch.experiments.panels import Settings
from mtbo_torch.experiments.reproduce import Request, reproduce
from mtbo_torch.problems import load_sensors, load_soil
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, RandomSearch, SobolSearch, Strategy

TESTS = Path(__file__).parent
RUN = "runs/rkhs-2-chebyshev"
PANEL = ["reproduce", "fig1b", "--trials", "2", "--rounds", "30", "--algorithms", "MT-BKB", "random", "--out"]
# Starts commands without the seconds that imports take. A line says what goes before the command, and the command.
SERVER = """
import contextlib, os, resource, sys, torch
torch.set_num_threads(1)
import matplotlib
matplotlib.use("Agg")
from mtbo_torch import cli, plotting
from mtbo_torch.experiments import engine
engine.SECONDS_BETWEEN_COMMITS = 0.0
with contextlib.redirect_stdout(open(os.devnull, "w")):  # what is imported late is imported here
    once = "reproduce fig1b --trials 1 --rounds 1 --algorithms MT-BKB random --out"
    cli.main([*once.split(), sys.argv[1]])
print("ready", flush=True)
for line in sys.stdin:
    before, said, *command = line.split()
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")
        sys.stderr = open(said, "w")
        if before == "nobody":
            os.setgid(65534)
            os.setuid(65534)
        elif before.isdigit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(before), int(before)))
        try:
            cli.main(command)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            sys.stderr.write(repr(error) + " Traceback")
            code = 1
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Server:
    """Runs commands in fresh processes that have everything imported."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", SERVER, str(folder / "once")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.said = folder / "said"
        assert self._line() == "ready"

    def _line(self) -> str:
        return self.process.stdout.readline().strip()

    def run(self, arguments: list[str], before: str = "plainly", kill_after: float | None = None) -> int:
        """The exit code; negative if it was killed."""
        self.process.stdin.write(" ".join([before, str(self.said), *arguments]) + "\n")
        child = int(self._line())
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)  # waited for only after the answer below: it is still the same process
        return int(self._line())

    def sentence(self) -> str:
        return self.said.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.stdin.close()
    server.process.stdout.close()
    server.process.wait()


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """What an uninterrupted run leaves, and how long it takes."""
    out = tmp_path_factory.mktemp("whole")
    started = time.monotonic()
    assert server.run([*PANEL, str(out)]) == 0
    return tables(out), time.monotonic() - started


def tables(out: Path) -> dict[str, str]:
    """The tables, without the column of seconds."""
    summary = [line.rsplit(",", 1)[0] for line in (out / "fig1b" / "summary.csv").read_text().splitlines()]
    return {"results": (out / RUN / "results.csv").read_text(), "summary": "\n".join(summary)}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_table(
    server: Server, whole: tuple[dict[str, str], float], tmp_path: Path
) -> None:
    expected, seconds = whole
    chance, kills, lives = random.Random(0), 0, 0
    while kills < 20:
        out = tmp_path / str(lives)
        while kills < 20:
            code = None
            try:
                code = server.run([*PANEL, str(out)], kill_after=chance.uniform(0, seconds / 3))
            except ProcessLookupError:  # it had ended
                code = int(server._line())
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
        assert server.run([*PANEL, str(out)]) == 0
        assert tables(out) == expected
        lives += 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [400, 6_000])
def test_files_that_cannot_grow(size: int, server: Server, whole: tuple[dict[str, str], float], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert server.run([*PANEL, str(out)], before=str(size)) == 2
    said = server.sentence()
    assert said.startswith(f"mtbo-torch: {out}")
    assert said.endswith("cannot be used: File too large.\n")
    assert said.count("\n") == 1
    kept = {path: path.stat().st_size for path in contents(out)}
    assert all(length <= size for length in kept.values())
    assert server.run([*PANEL, str(out)]) == 0
    assert tables(out) == whole[0]


def full_after(count: int) -> Callable[[int], None]:
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fsync


def small(out: Path) -> Request:
    return Request(["fig1b"], out, Settings(rounds=12), ["MT-KB", "random"], trials=1)


@pytest.mark.parametrize("count", range(6))
def test_a_disk_that_fills_up_keeps_what_was_there(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproduce(small(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", full_after(count))
        with pytest.raises(OSError, match="No space left on device") as failure:
            reproduce(small(tmp_path / "full"))
        assert failure.value.errno == errno.ENOSPC
    reproduce(small(tmp_path / "full"))
    table = f"{RUN}/results.csv"
    assert (tmp_path / "full" / table).read_bytes() == (tmp_path / "whole" / table).read_bytes()


def test_a_full_disk_is_one_sentence_and_old_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mpl.use("Agg")
    arguments = ["reproduce", "fig1b", "--trials", "1", "--rounds", "12", "--out", str(tmp_path), "--algorithms"]
    main([*arguments, "random"])
    before = contents(tmp_path)
    monkeypatch.setattr(storage.os, "fsync", full_after(0))
    capsys.readouterr()
    with pytest.raises(SystemExit) as failure:
        main([*arguments, "random"])  # nothing to run; the pictures cannot be written
    assert failure.value.code == 2
    said = capsys.readouterr().err
    assert said == f"mtbo-torch: {tmp_path / 'fig1b' / 'fig1b.png'} cannot be used: No space left on device.\n"
    assert contents(tmp_path) == before
    picture = tmp_path / "demo.png"
    picture.write_bytes(b"old")
    with pytest.raises(SystemExit):
        main(["demo", "--trials", "1", "--rounds", "1", "--out", str(picture)])
    assert capsys.readouterr().err == f"mtbo-torch: {picture} cannot be used: No space left on device.\n"
    assert picture.read_bytes() == b"old"


@pytest.mark.slow
def test_a_read_only_folder_is_one_sentence(server: Server) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        out = folder / "out"
        assert (
            server.run([*PANEL[:2], "--trials", "1", "--rounds", "2", "--algorithms", "random", "--out", str(out)]) == 0
        )
        before = contents(out)
        for path in (folder, out, *out.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        for place in (out, folder / "new"):
            who = "nobody" if os.geteuid() == 0 else "plainly"  # the superuser writes anywhere
            code, said = server.run([*PANEL, str(place)], before=who), server.sentence()
            assert code == 2, said
            assert said.startswith(f"mtbo-torch: {place}")
            assert said.endswith("cannot be used: Permission denied.\n")
            assert said.count("\n") == 1
        assert contents(out) == before
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


# Strategies that go on in another process


X, Y, Z = data(6, 2, 2)
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
QUICK = {"bounds": BOX, "num_restarts": 1, "raw_samples": 8}
LEARNED = {"refit_every": 2}
FIXED = {"norm_bound": 60.0, "noise_scale": 0.1}


def kernel() -> Any:
    return icm(2, 2).kernel


CASES: dict[str, Callable[[], Strategy]] = {
    "MTKB on choices": lambda: MTKB(kernel(), choices=Z, **FIXED),
    "MTKB on a box": lambda: MTKB(kernel(), **QUICK, **FIXED),
    "MTKB, trials": lambda: MTKB(kernel(), choices=Z, seed=[3, 4], **FIXED),
    "MTKB that learns": lambda: MTKB(2, choices=Z, **LEARNED),
    "MTKB, constrained": lambda: MTKB(
        kernel(), choices=Z, signs=(1, -1), constraints=(BOX[1:], BOX[1, :1]), bound="ellipsoid", **FIXED
    ),
    "MTBKB on choices": lambda: MTBKB(kernel(), choices=Z, **FIXED),
    "MTBKB on a box": lambda: MTBKB(kernel(), **QUICK, **FIXED),
    "MTBKB, delayed": lambda: MTBKB(kernel(), choices=Z, schedule="delayed", oversampling=None, **FIXED),
    "MTBKB, trials": lambda: MTBKB(kernel(), choices=Z, seed=[3, 4], **FIXED),
    "MTBKB that learns": lambda: MTBKB(2, choices=Z, **LEARNED),
    "ITKB": lambda: ITKB(kernel(), choices=Z, **FIXED),
    "ITBKB": lambda: ITBKB(kernel(), choices=Z, **FIXED),
    "MOBO": lambda: MOBO(kernel(), choices=Z),
    "random": lambda: RandomSearch(2, bounds=BOX),
    "Sobol": lambda: SobolSearch(2, bounds=BOX),
}


def advance(strategy: Strategy, rounds: int, first: int = 0) -> Strategy:
    """Two points a round, one of which stays pending; some values are missing where that is allowed."""
    can_miss = isinstance(strategy, MTKB)
    for i in range(first, first + rounds):
        x = strategy.ask(2)
        y = torch.stack([(5 * x).sin().sum(dim=-1), x.prod(dim=-1)], dim=-1)
        if can_miss and i % 2:
            y[..., 0, 1] = torch.nan
        number = strategy.asked_ids[0]
        strategy.tell([number], y[..., :1, :], allow_missing=can_miss)
        if len(strategy.pending) > 2:
            strategy.forget(min(strategy.pending))
    return strategy


def go_on_elsewhere(source: str, target: str) -> None:
    """What the other process does."""
    states = torch.load(source, weights_only=True)
    ends = {}
    for name, state in states.items():
        strategy = CASES[name]()
        strategy.load_state_dict(state)
        ends[name] = advance(strategy, 3, first=3).state_dict()
    torch.save(ends, target)


@pytest.mark.slow
def test_a_strategy_goes_on_in_another_process_bit_for_bit(tmp_path: Path) -> None:
    begun = {name: advance(make(), 3) for name, make in CASES.items()}
    torch.save({name: strategy.state_dict() for name, strategy in begun.items()}, tmp_path / "begun.pt")
    code = "import sys, conftest, test_faults; test_faults.go_on_elsewhere(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path / "begun.pt"), str(tmp_path / "ends.pt")]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path})
    ends = torch.load(tmp_path / "ends.pt", weights_only=True)
    for name, strategy in begun.items():
        here = advance(strategy, 3, first=3).state_dict()
        assert torch.equal(ends[name]["train_X"], here["train_X"]), name
        assert bits(ends[name]) == bits(here), name


# Files and states that are not ours


PACKAGE = TESTS.parent / "mtbo_torch"
RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "numpy"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_in_the_package_can_run_code_from_a_file(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & RUNS_CODE
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in RUNS_CODE
            assert not (node.module == "torch" and {alias.name for alias in node.names} & {"load", "hub", "jit"})
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in ("eval", "exec", "compile", "__import__")
        if called in ("torch.load", "torch.jit.load", "torch.hub.load"):
            assert {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}["weights_only"] == "True"


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.place,)


def test_a_trap_is_not_sprung_wherever_a_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpl.use("Agg")
    sprung, out = tmp_path / "sprung", tmp_path / "out"
    bait = pickle.dumps(Trap(sprung))
    pickle.loads(bait)
    assert sprung.exists()  # it would work
    sprung.unlink()
    arguments = ["reproduce", "fig1b", "--trials", "1", "--rounds", "3", "--algorithms", "random", "--out", str(out)]
    main(arguments)
    good = contents(out)
    torch.save(Trap(sprung), tmp_path / "trap.pt")
    for name in ("state.pt", "settings.json", "results.csv"):
        for poison in (bait, (tmp_path / "trap.pt").read_bytes()):
            (out / RUN / name).write_bytes(poison)
            capsys.readouterr()
            with pytest.raises(SystemExit) as failure:
                main(arguments)
            assert failure.value.code == 2
            said = capsys.readouterr().err
            assert str(out / RUN) in said
            assert said.count("\n") == 1
            assert (out / RUN / name).read_bytes() == poison
            (out / RUN / name).write_bytes(good[out / RUN / name])
    (out / "fig1b" / "panel.json").write_bytes(bait)
    main(arguments)
    for load in (load_sensors, load_soil):
        (tmp_path / "data.csv").write_bytes(bait)
        with pytest.raises(ValueError, match=r"data\.csv should"):
            load(tmp_path / "data.csv")
    assert not sprung.exists()


def test_a_changed_state_of_a_run_is_refused(tmp_path: Path) -> None:
    reproduce(small(tmp_path))
    path = tmp_path / RUN / "state.pt"
    state = torch.load(path, weights_only=True)
    for change in (
        {"active": {"algorithm": "MT-KB", "trials": [0], "run": {}}},
        {"seconds": {}},
        {"rounds": {"MT-KB": {0: 3}}},
        {"rounds": 7},
    ):
        torch.save(state | change, path)
        with pytest.raises(ValueError, match=r"state\.pt should be as it was written, got contents that were changed"):
            reproduce(small(tmp_path))
    torch.save([1], path)
    with pytest.raises(ValueError, match=r"state\.pt should be as it was written, got damaged or foreign"):
        reproduce(small(tmp_path))


Path_ = tuple[Any, ...]


# Kernels that are learned are many, and written alike: inside these nothing is changed. Settings are those of kernels
# that are known, which are changed everywhere.
ALIKE = [("settings", "kernel", name) for name in ("shared", "shared, two scales", "own", "own, two scales")]
ALIKE += [("memory", "candidates", name) for name in ("shared, two scales", "own, two scales")]


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every place of a nested state, and what is there."""
    if path:
        yield path, value
    if path in ALIKE:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from leaves(part, (*path, key))


def changed(state: Any, path: Path_, value: Any = None, drop: bool = False) -> Any:
    """A state that shares with the given one what is not on the path."""
    state = copy.copy(state)
    if len(path) > 1:
        state[path[0]] = changed(state[path[0]], path[1:], value, drop)
    elif drop:
        del state[path[0]]
    else:
        state[path[0]] = value
    return state


def tamperings(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """States that differ from the given one in one place."""
    tensors = [(path, value) for path, value in leaves(state) if isinstance(value, torch.Tensor) and value.numel()]
    for path, value in leaves(state):
        yield f"{path} dropped", changed(state, path, drop=True)
        yield f"{path} a string", changed(state, path, "junk")
        if value is not None:
            yield f"{path} None", changed(state, path, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path} one more", changed(state, path, value + 1)
            yield f"{path} huge", changed(state, path, 10**30)
    for path, value in tensors:
        yield f"{path} another shape", changed(state, path, value.unsqueeze(0))
        yield f"{path} shorter", changed(state, path, value.reshape(-1)[:-1])
        yield f"{path} other numbers", changed(state, path, value + 1 if value.dtype != torch.bool else ~value)
        if value.is_floating_point():
            for bad in (torch.nan, torch.inf, 1e300):
                yield f"{path} {bad}", changed(state, path, torch.full_like(value, bad))
            yield f"{path} another dtype", changed(state, path, value.float())
    for (first, a), (second, b) in itertools.pairwise(tensors):
        if not torch.equal(a.reshape(-1)[:1], b.reshape(-1)[:1]) or a.shape != b.shape:
            yield f"{first} and {second} swapped", changed(changed(state, first, b), second, a)


def is_refused(strategy: Strategy, state: dict[str, Any]) -> bool:
    try:
        strategy.load_state_dict(state)
    except ValueError as error:
        return "state_dict should" in str(error)
    return False


# Dictionaries, several trials and what learns its kernel have a state of many parts.
LONG = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("MTBKB, trials", "MTBKB on choices", "MTKB that learns")
]


@pytest.mark.parametrize("name", ["MTKB on choices", "Sobol", *LONG])
def test_a_tampered_state_is_refused_and_changes_nothing(name: str) -> None:
    strategy = advance(CASES[name](), 4)
    state = strategy.state_dict()
    before, after = bits(state), copy.deepcopy(strategy).ask(2)
    count, accepted = 0, []
    for what, bad in tamperings(state):
        if bits(bad) == before:
            continue
        count += 1
        if not is_refused(strategy, bad):
            accepted.append(what)
    assert not accepted
    assert count > 100
    assert bits(strategy.state_dict()) == before
    assert torch.equal(copy.deepcopy(strategy).ask(2), after)
    strategy.load_state_dict(state)
    assert torch.equal(strategy.ask(2), after)


@pytest.mark.parametrize("name", ["MTKB on choices", "Sobol", *LONG[1:]])
def test_a_forged_checksum_does_not_let_nonsense_in(name: str) -> None:
    strategy = advance(CASES[name](), 4)
    state = strategy.state_dict()
    before, good = bits(state), copy.deepcopy(strategy).ask(2)
    kinds, refused = (" dropped", " a string", " None", " another shape", " shorter", " nan", " inf"), 0
    for what, bad in tamperings(state):
        if not what.endswith(kinds) or "checksum" in what:
            continue
        bad["checksum"] = checksum({key: value for key, value in bad.items() if key != "checksum"})
        if is_refused(strategy, bad):
            refused += 1
            continue
        # Another state that makes sense, such as one that waits for fewer points.
        for value in (strategy.asked_weights, *strategy.pending.values()):
            assert value.isfinite().all(), what
        points = strategy.ask(2)
        assert points.shape == good.shape, what
        assert points.isfinite().all(), what
        strategy.load_state_dict(state)
    assert refused > 50
    assert bits(strategy.state_dict()) == before
    assert torch.equal(strategy.ask(2), good)
