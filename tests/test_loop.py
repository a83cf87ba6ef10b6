"""The loop: workers kept busy, failures survived, and a stop that changes nothing."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import icm
from torch import Tensor

from mtbo_torch import MTKB, Category, Experiment, Optimizer, Real, optimize
from mtbo_torch.strategies import NEHVI, RandomSearch, SobolSearch, Strategy

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
AXIS = torch.linspace(0, 1, 5, dtype=torch.double)
LINE = torch.tensor([[0.0], [1.0]], dtype=torch.double)


def evaluate(x: Tensor) -> Tensor:
    return torch.stack([x.sum().sin(), (2 * x).cos().sum()])


def mtkb(**options: Any) -> MTKB:
    return MTKB(
        icm(2, 2).kernel, bounds=BOX, norm_bound=20.0, noise_scale=0.1, num_restarts=2, raw_samples=16, **options
    )


class Stopping:
    """Evaluate, but be stopped by Ctrl-C in one of the calls."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return evaluate(x)


def test_it_asks_and_tells() -> None:
    by_hand, by_loop = mtkb(), mtkb()
    for _ in range(4):
        x = by_hand.ask()
        by_hand.tell(x, evaluate(x[0]))
    optimize(by_loop, evaluate, rounds=4)
    assert torch.equal(by_loop.train_X, by_hand.train_X)
    assert torch.equal(by_loop.train_Y, by_hand.train_Y)
    assert not by_loop.pending


@pytest.mark.parametrize("build", [mtkb, lambda: SobolSearch(2, bounds=BOX)], ids=["MTKB", "SobolSearch"])
@pytest.mark.parametrize("with_file", [True, False], ids=["from the file", "from memory"])
def test_a_stop_changes_nothing(build: Any, with_file: bool, tmp_path: Path) -> None:
    whole = build()
    optimize(whole, evaluate, rounds=5)
    path = tmp_path / "run.pt" if with_file else None
    strategy: Strategy = build()
    for at in (1, 3, 2):
        done = strategy.num_observations
        with pytest.raises(KeyboardInterrupt):
            optimize(strategy, Stopping(at), rounds=5 if with_file else 5 - done, path=path)
        strategy = build() if with_file else strategy
    optimize(strategy, evaluate, rounds=5 if with_file else 5 - strategy.num_observations, path=path)
    assert torch.equal(strategy.train_X, whole.train_X)
    assert torch.equal(strategy.ask(), whole.ask())


@pytest.mark.slow
def test_a_stop_changes_nothing_for_the_optimizer(tmp_path: Path) -> None:
    whole = Optimizer(2, bounds=LINE)
    optimize(whole, evaluate, rounds=7)
    with pytest.raises(KeyboardInterrupt):
        optimize(Optimizer(2, bounds=LINE), Stopping(6), rounds=7, path=tmp_path / "run.pt")
    again = Optimizer(2, bounds=LINE)
    optimize(again, evaluate, rounds=7, path=tmp_path / "run.pt")
    assert torch.equal(again.train_X, whole.train_X)


@pytest.mark.slow
# Python ignores a signal that arrives while it collects garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_stopped_at_any_moment_it_continues(tmp_path: Path) -> None:
    """A signal arrives wherever it likes: while asking, evaluating, telling, saving or loading."""

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    def build() -> MTKB:
        return MTKB(icm(2, 2).kernel, choices=torch.cartesian_prod(AXIS, AXIS), norm_bound=20.0, noise_scale=0.1)

    whole = build()
    optimize(whole, evaluate, rounds=12)
    chance, stops, again = random.Random(0), 0, build()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        while again.num_observations < 12:
            again = build()
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-3, 1e-2 * (1 + stops)))
                optimize(again, evaluate, rounds=12, path=tmp_path / "run.pt")
            except KeyboardInterrupt:
                stops += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stops > 2
    assert torch.equal(again.train_X, whole.train_X)
    assert torch.equal(again.ask(), whole.ask())


def test_a_stop_with_several_workers_loses_no_point(tmp_path: Path) -> None:
    """Both workers are stopped at work; what they were at is evaluated first, and no other point before."""
    started, asked = threading.Barrier(2), []

    def be_stopped(x: Tensor) -> Tensor:
        asked.append(x.tolist())
        started.wait()
        raise KeyboardInterrupt

    strategy = mtkb()
    with ThreadPoolExecutor(2) as executor, pytest.raises(KeyboardInterrupt):
        optimize(strategy, be_stopped, rounds=6, executor=executor, workers=2, path=tmp_path / "run.pt")
    strategy = mtkb()
    with ThreadPoolExecutor(2) as executor:
        optimize(strategy, evaluate, rounds=6, executor=executor, workers=2, path=tmp_path / "run.pt")
    assert sorted(strategy.train_X[:2].tolist()) == sorted(asked)
    assert strategy.num_observations == 6


def test_workers_are_kept_busy() -> None:
    """While one evaluation takes its time, the other worker does all others."""
    last, calls = threading.Event(), []

    def wait_for_all(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) == 1:
            assert last.wait(timeout=60)
        elif len(calls) == 6:
            last.set()
        return evaluate(x)

    strategy = RandomSearch(2, bounds=BOX)
    with ThreadPoolExecutor(2) as executor:
        optimize(strategy, wait_for_all, rounds=6, executor=executor, workers=2)
    assert strategy.num_observations == 6
    assert torch.equal(strategy.train_X[-1], calls[0]) or torch.equal(strategy.train_X[-2], calls[0])


@pytest.mark.parametrize("bad", [ZeroDivisionError("no"), [math.nan, math.nan], [1.0, math.inf]], ids=str)
def test_failures_are_repeated_then_given_up(bad: Any, tmp_path: Path) -> None:
    calls: list[list[float]] = []

    def fail_at_the_second_point(x: Tensor) -> Any:
        calls.append(x.tolist())
        if x.tolist() != second:
            return evaluate(x)
        if isinstance(bad, Exception):
            raise bad
        return bad

    points = SobolSearch(2, bounds=BOX).ask(4).tolist()
    second = points[1]
    strategy = SobolSearch(2, bounds=BOX)
    with pytest.warns(UserWarning, match="was given up"):
        optimize(strategy, fail_at_the_second_point, rounds=4, retries=2, path=tmp_path / "run.pt")
    assert strategy.train_X.tolist() == [points[0], *points[2:]]
    assert calls.count(second) == 3
    assert not strategy.pending
    # The file knows of it, too.
    calls.clear()
    again = SobolSearch(2, bounds=BOX)
    optimize(again, fail_at_the_second_point, rounds=5, path=tmp_path / "run.pt")
    assert len(calls) == 1
    assert again.num_observations == 4


def test_a_point_given_up_is_not_asked_for_again() -> None:
    choices = torch.tensor([[0.1, 0.1], [0.9, 0.9], [0.5, 0.5]], dtype=torch.double)
    kernel = icm(2, 2).kernel
    strategy = MTKB(kernel, choices=choices, norm_bound=20.0, noise_scale=0.1, repeat=False)
    failed: list[list[float]] = []

    def fail_once_told(x: Tensor) -> Tensor:
        if strategy.num_observations == 1 and not failed:
            failed.append(x.tolist())
        if x.tolist() in failed:
            raise RuntimeError
        return evaluate(x)

    with pytest.warns(UserWarning, match="was given up"):
        optimize(strategy, fail_once_told, rounds=3, retries=0)
    assert strategy.num_observations == 2
    assert failed[0] not in strategy.train_X.tolist()


def test_a_function_that_never_works_says_so() -> None:
    strategy = RandomSearch(2, bounds=BOX)
    with pytest.raises(ZeroDivisionError):
        optimize(strategy, lambda x: 1 / 0, rounds=3)
    assert list(strategy.pending) == [0]
    with pytest.raises(ValueError, match=r"function should return the values of the 2 tasks, got \[1.0\]"):
        optimize(strategy, lambda x: [1.0], rounds=3)
    optimize(strategy, evaluate, rounds=1)
    assert not strategy.pending


def test_missing_values_are_missing() -> None:
    values = iter([[1.0, 2.0], [math.nan, 2.0], [3.0, 4.0]])
    strategy = mtkb()
    optimize(strategy, lambda x: next(values), rounds=3)
    assert strategy.train_Y.isnan().tolist() == [[False, False], [True, False], [False, False]]
    values = iter([[1.0, 2.0], [math.nan, 2.0], [3.0, 4.0]])
    search = NEHVI(2, bounds=BOX)
    optimize(search, lambda x: next(values), rounds=2, retries=1)
    assert search.train_Y.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_experiments_have_names() -> None:
    def measure(row: dict[str, Any]) -> dict[str, float]:
        assert set(row) == {"heat", "metal"}
        return {"yield": row["heat"] / 900} if row["metal"] == "Pd" else {"yield": 0.1, "cost": 1.0}

    inputs = {"heat": Real(300, 900), "metal": Category("Pd", "Ni")}
    experiment = Experiment(inputs, {"yield": "maximize", "cost": "minimize"}, seed=1)
    optimize(experiment, measure, rounds=4)
    table = experiment.table
    assert table["cost"].isna().tolist() == (table["metal"] == "Pd").tolist()
    with pytest.raises(ValueError, match="function should return a dictionary with the tasks yield, cost"):
        optimize(experiment, lambda row: {"yeild": 1.0}, rounds=1)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    optimize(RandomSearch(2, bounds=BOX), evaluate, rounds=2, path=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="same settings"):
        optimize(RandomSearch(2, bounds=2 * BOX), evaluate, rounds=3, path=path)
    other = RandomSearch(2, bounds=BOX)
    other.tell([[0.5, 0.5]], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="path should be a file that begins with the 1 observations"):
        optimize(other, evaluate, rounds=3, path=path)
    assert path.read_bytes() == before
    (tmp_path / "notes.txt").write_text("it went well")
    with pytest.raises(ValueError, match=r"path should be a file of optimize"):
        optimize(other, evaluate, rounds=3, path=tmp_path / "notes.txt")


def evaluate_or_die(x: Tensor) -> Tensor:
    if float(x[0]) > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    return evaluate(x)


@pytest.mark.slow
def test_processes(tmp_path: Path) -> None:
    strategy = SobolSearch(2, bounds=BOX)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        optimize(strategy, evaluate, rounds=6, executor=executor, workers=2)
    expected = SobolSearch(2, bounds=BOX).ask(6)
    assert sorted(strategy.train_X.tolist()) == sorted(expected.tolist())
    assert all(torch.equal(evaluate(x), y) for x, y in zip(strategy.train_X, strategy.train_Y, strict=True))
    # A process that dies breaks the pool, as it always does; another one continues.
    again = SobolSearch(2, bounds=BOX)
    with ProcessPoolExecutor(2, mp_context=context) as executor, pytest.raises(Exception, match="terminated abruptly"):
        optimize(again, evaluate_or_die, rounds=6, executor=executor, workers=2, path=tmp_path / "run.pt")
    again = SobolSearch(2, bounds=BOX)
    optimize(again, evaluate, rounds=6, path=tmp_path / "run.pt")
    assert sorted(again.train_X.tolist()) == sorted(expected.tolist())


def take_time(x: Tensor) -> Tensor:
    time.sleep(0.1)
    return evaluate(x)


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_a_cluster_with_a_worker_killed(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    path, strategy = tmp_path / "run.pt", SobolSearch(2, bounds=BOX)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        victim = next(iter(cluster.workers.values())).pid

        def kill() -> None:
            while not path.exists() or torch.load(path, weights_only=True)["done"] < 3:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        optimize(strategy, take_time, rounds=16, executor=client.get_executor(pure=False), workers=2, path=path)
        killer.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what the cluster left open is closed here, not in the next test
    assert sorted(strategy.train_X.tolist()) == sorted(SobolSearch(2, bounds=BOX).ask(16).tolist())
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)
