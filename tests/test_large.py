"""Very many choices: in pieces, in a file, with little memory, on a cluster. None of that changes what is proposed."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import icm
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, Optimizer, space
from mtbo_torch.regression import TrackedNystrom, factor, nystrom
from mtbo_torch.regression.factor import RowBlocks
from mtbo_torch.regression.kronecker import TrackedKronecker
from mtbo_torch.strategies import ITBKB, RandomSearch, Strategy, budgeted

GENERATOR = torch.Generator().manual_seed(0)
DISTINCT = torch.rand(30, 2, generator=GENERATOR, dtype=torch.double)
# Some of them twice, in another piece.
CHOICES = torch.cat([DISTINCT, DISTINCT[:11]])
KINDS = [(MTBKB, {"schedule": "delayed"}), (MTBKB, {"schedule": "every_round", "bound": "norm"}), (MTKB, {})]
kinds = pytest.mark.parametrize(("kind", "options"), KINDS, ids=["delayed", "every_round", "MTKB"])


def build(kind: type[Strategy], choices: Any = CHOICES, **options: Any) -> Any:
    known = {"norm_bound": 20.0, "noise_scale": 0.1, "seed": 1}
    return kind(icm(2, 2).kernel, choices=choices, **known | options)


def observe(x: Tensor) -> Tensor:
    return torch.stack([(5 * x).sin().sum(dim=-1), (3 * x).cos().prod(dim=-1)], dim=-1)


def play(strategy: Any, num_rounds: int = 12) -> Tensor:
    for q in (1, 2, *[1] * (num_rounds - 2)):
        x = strategy.ask(q)
        strategy.tell(x, observe(x))
    strategy.ask()
    return torch.cat([strategy.train_X, strategy.ask(2)], dim=-2)


@kinds
@pytest.mark.parametrize("others", [{}, {"repeat": False}, {"seed": [3, 4]}], ids=["repeat", "once", "trials"])
def test_pieces_propose_what_one_piece_does(
    monkeypatch: pytest.MonkeyPatch, kind: type[Strategy], options: dict[str, Any], others: dict[str, Any]
) -> None:
    whole = build(kind, **options, **others)
    expected = play(whole)
    monkeypatch.setattr(space, "PIECE", 7)
    for memory in (1.0, 0.0):
        cut = build(kind, memory=memory, **options, **others)
        assert torch.equal(play(cut), expected)
        tracking, other = cut._known.surrogate.tracking, whole._known.surrogate.tracking
        assert len(tracking.parts) == 6
        torch.testing.assert_close(tracking.mean, other.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(tracking.variance(), other.variance(), rtol=0, atol=1e-8)
        torch.testing.assert_close(tracking.norm, other.norm, rtol=0, atol=1e-8)
        torch.testing.assert_close(tracking.covariance, other.covariance, rtol=0, atol=1e-8)


def kept_by(strategy: Any) -> RowBlocks | None:
    """Return what is kept of all choices besides mean and variances."""
    [part] = strategy._known.surrogate.tracking.parts
    assert isinstance(part, TrackedNystrom | TrackedKronecker)
    return part.columns if isinstance(part, TrackedNystrom) else part.cross


@kinds
@pytest.mark.parametrize("others", [{}, {"seed": [3, 4]}], ids=["one", "trials"])
def test_rows_in_blocks_propose_what_those_in_one_do(
    monkeypatch: pytest.MonkeyPatch, kind: type[Strategy], options: dict[str, Any], others: dict[str, Any]
) -> None:
    whole = build(kind, **options, **others)
    expected = play(whole)
    monkeypatch.setattr(factor, "LARGE_BLOCK", 1)
    cut = build(kind, **options, **others)
    assert torch.equal(play(cut), expected)
    one, several = kept_by(whole), kept_by(cut)
    assert len(one.blocks) == 1
    # A dictionary drawn in every round is fitted, and those of a batch are put in order at each draw.
    is_whole_again = kind is MTBKB and (options["schedule"] == "every_round" or "seed" in others)
    assert (len(several.blocks) > 1) != is_whole_again
    torch.testing.assert_close(one.join(), several.join(), rtol=0, atol=1e-8)
    tracking, other = cut._known.surrogate.tracking, whole._known.surrogate.tracking
    torch.testing.assert_close(tracking.mean, other.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(tracking.norm, other.norm, rtol=0, atol=1e-8)


@kinds
def test_without_memory_nothing_grows_with_the_observations(kind: type[Strategy], options: dict[str, Any]) -> None:
    kept = []
    for memory in (1.0, 0.0):
        strategy = build(kind, memory=memory, **options)
        play(strategy)
        kept.append(kept_by(strategy))
    assert kept[0].length > 1
    assert kept[1] is None


@kinds
def test_everything_that_is_known_counts_as_memory(kind: type[Strategy], options: dict[str, Any]) -> None:
    strategy = build(kind, **options)
    play(strategy)
    regression = strategy._known.surrogate.regression
    part = regression.track(CHOICES)
    is_nystrom = isinstance(part, TrackedNystrom)
    known = (part.residual, part.blocks, part.mean) if is_nystrom else (part.variances, part.whitened_mean)
    needed = (part.columns if is_nystrom else part.cross).nbytes + 2 * sum(tensor.nbytes for tensor in known)
    for memory in (needed, needed - 1):
        tracked = regression.track(CHOICES, memory)
        assert ((tracked.columns if is_nystrom else tracked.cross) is None) == (memory < needed)
        torch.testing.assert_close(tracked.mean, part.mean, rtol=0, atol=0)


@pytest.mark.parametrize("schedule", ["every_round", "delayed"])
@pytest.mark.parametrize("bound", ["norm", "mixture"])
def test_pieces_continue_bit_for_bit(monkeypatch: pytest.MonkeyPatch, schedule: str, bound: str) -> None:
    monkeypatch.setattr(space, "PIECE", 7)
    first, second = (build(MTBKB, schedule=schedule, bound=bound) for _ in range(2))
    play(first)
    state = first.state_dict()
    biggest = max(value.numel() for value in state["memory"]["regression"].values())
    assert biggest <= first.num_observations**2 * 12  # six regularizers and two groups, but no choices
    second.load_state_dict(state)
    assert torch.equal(play(first), play(second))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_is_searched_where_it_is(tmp_path: Path, mode: Any) -> None:
    np.save(tmp_path / "choices.npy", CHOICES.numpy())
    stored = np.load(tmp_path / "choices.npy", mmap_mode=mode)
    strategy = build(MTBKB, choices=stored)
    assert strategy.space.points.data_ptr() == stored.ctypes.data
    assert torch.equal(play(strategy), play(build(MTBKB)))
    assert torch.equal(play(build(MTBKB, choices=CHOICES.numpy())), play(build(MTBKB)))


def test_other_strategies_take_arrays(tmp_path: Path) -> None:
    for kind in (Optimizer, RandomSearch):
        ours, theirs = kind(2, choices=CHOICES), kind(2, choices=CHOICES.numpy())
        for one in (ours, theirs):
            for _ in range(7):
                x = one.ask()
                one.tell(x, observe(x))
        assert torch.equal(ours.train_X, theirs.train_X)


def test_an_unpickled_strategy_goes_on() -> None:
    """As what a worker keeps when it is moved to another one."""
    first = build(MTBKB, schedule="delayed")
    play(first)
    first.forget()
    second = pickle.loads(pickle.dumps(first))
    assert torch.equal(play(first), play(second))


@pytest.mark.parametrize("seed", [1, [1, 2, 3]], ids=["one trial", "trials"])
def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch, seed: int | list[int]) -> None:
    monkeypatch.setattr(nystrom, "MOST_STEPS", 6)
    monkeypatch.setattr(budgeted, "MOST_STEPS", 6)
    strategy = build(MTBKB, schedule="delayed", noise_scale=1.0, seed=seed)
    most = 0
    for _ in range(60):
        x = strategy.ask()
        strategy.tell(x, observe(x))
        most = max(most, len(strategy._nystrom.steps))
    assert 4 < most <= 7


@pytest.mark.parametrize("rows", [slice(None), slice(3, None)], ids=["whole", "a part"])
@pytest.mark.parametrize("repeat", [True, False])
def test_a_file_that_shrinks(tmp_path: Path, rows: slice, repeat: bool) -> None:
    path = tmp_path / "choices.dat"
    CHOICES.numpy().tofile(path)
    stored = np.memmap(path, dtype=np.float64, mode="r", shape=tuple(CHOICES.shape))
    strategy, other = (build(MTBKB, choices=values[rows], repeat=repeat) for values in (stored, CHOICES))
    x = strategy.ask()
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(content) - 100)
    for attempt in (strategy.ask, lambda: strategy.tell(x, observe(x)), strategy.state_dict, strategy.intervals):
        with pytest.raises(ValueError, match=rf"ends in row {(len(content) - 100) // 16}\. Restore .*choices\.dat"):
            attempt()
    path.write_bytes(content)
    other.ask()
    for one in (strategy, other):
        one.tell(x, observe(x))
    assert torch.equal(strategy.ask(), other.ask())
    path.unlink()  # what is mapped stays readable
    assert torch.equal(strategy.ask(), other.ask())


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    bad = CHOICES.numpy().copy()
    bad[17, 1] = np.nan
    np.save(tmp_path / "choices.npy", bad)
    with pytest.raises(ValueError, match=r"choices .*the first at index \(17, 1\)"):
        build(MTBKB, choices=np.load(tmp_path / "choices.npy", mmap_mode="r"))
    with pytest.raises(ValueError, match=r"choices should .* got torch.int64"):
        build(MTBKB, choices=np.arange(6).reshape(3, 2))
    with pytest.raises(ValueError, match=r"choices should be a torch.Tensor.* got list"):
        build(MTBKB, choices=[[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"choices should hold numbers in single or double precision"):
        build(MTBKB, choices=np.array([["a", "b"]]))
    for odd in (CHOICES.numpy()[::-1], CHOICES.numpy().astype(">f8")):
        with pytest.raises(ValueError, match=r"in the machine's own order.* numpy.ascontiguousarray"):
            build(MTBKB, choices=odd)
    with pytest.raises(ValueError, match="an array without a mask"):
        build(MTBKB, choices=np.ma.masked_array(CHOICES.numpy(), mask=CHOICES.numpy() > 0.9))
    with pytest.raises(ValueError, match=r"memory should be finite and >= 0"):
        build(MTBKB, memory=-1.0)


# On a cluster


def test_without_a_cluster_it_says_so() -> None:
    with pytest.raises(ValueError, match=r"where there is no Dask cluster.* distributed.Client\(\)"):
        build(MTBKB, choices=cut(DISTINCT.numpy()))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as found:
        yield found


def cut(values: Any, size: int = 16) -> Any:
    import dask.array

    return dask.array.from_array(values, chunks=(size, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"schedule": "delayed"}, {"bound": "norm"}, {"seed": [3, 4], "bound": "norm"}],
    ids=["delayed", "every round", "trials"],
)
def test_a_cluster_proposes_what_one_machine_does(
    client: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(space, "PIECE", 16)
    choices = DISTINCT.numpy()
    expected = play(build(MTBKB, choices=DISTINCT, repeat=False, **options), 8)
    remote = build(MTBKB, choices=cut(choices), repeat=False, **options)
    assert torch.equal(play(remote, 8), expected)
    assert "30 choices in 2 chunks on a cluster" in repr(remote)
    again = build(MTBKB, choices=cut(choices), repeat=False, **options)
    again.load_state_dict(remote.state_dict())
    assert torch.equal(again.ask(), remote.ask())
    with pytest.raises(ValueError, match="q should be at most"):
        remote.ask(30)
    twice = build(MTBKB, choices=cut(torch.cat([DISTINCT[:4], DISTINCT[:4]]).numpy(), 4), repeat=False)
    with pytest.raises(ValueError, match="no choice is left"):
        twice.ask(5)
    assert not twice.pending


@pytest.mark.slow
def test_a_worker_is_killed(client: Any) -> None:
    expected = play(build(MTBKB, choices=DISTINCT, schedule="delayed"), 8)
    remote = build(MTBKB, choices=cut(DISTINCT.numpy()), schedule="delayed")
    for i, q in enumerate((1, 2, *[1] * 6)):
        x = remote.ask(q)
        if i == 5:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        remote.tell(x, observe(x))
    remote.ask()
    assert torch.equal(torch.cat([remote.train_X, remote.ask(2)]), expected)


@pytest.mark.slow
def test_a_cluster_refuses_what_it_cannot_search(client: Any) -> None:
    import dask.array

    bad = DISTINCT.numpy().copy()
    bad[21, 1] = np.inf
    with pytest.raises(ValueError, match=r"choices should contain finite numbers only, got NaN or Inf in row 21\."):
        build(MTBKB, choices=cut(bad))
    unknown = cut(DISTINCT.numpy())
    with pytest.raises(ValueError, match=r"chunks of known sizes.*compute_chunk_sizes"):
        build(MTBKB, choices=unknown[unknown[:, 0] > 0.5])
    with pytest.raises(ValueError, match=r"choices should be `N x d`"):
        build(MTBKB, choices=dask.array.zeros(5))
    for kind in (MTKB, ITBKB):
        with pytest.raises(ValueError, match=r"got a Dask array. Use MTBKB, or choices.compute\(\)"):
            build(kind, choices=cut(DISTINCT.numpy()))
    strategy = build(MTBKB, choices=cut(DISTINCT.numpy()))
    with pytest.raises(ValueError, match=r"got choices on a cluster\. Pass x"):
        strategy.intervals()
    grid = torch.cartesian_prod(torch.arange(4.0, dtype=torch.double) * 1e-9, torch.arange(10, dtype=torch.double) / 10)
    sorted_by = build(MTBKB, choices=cut(grid.numpy(), 10))
    told = torch.tensor([[1e-9, 0.3], [2e-9, 0.3 + 1e-12]], dtype=torch.double)
    sorted_by.tell(told, observe(told))
    assert torch.equal(sorted_by.train_X, grid[[13, 23]])
    stray = DISTINCT[:1] + 1e-12
    strategy.tell(stray, observe(stray))
    assert torch.equal(strategy.train_X, DISTINCT[:1])
    with pytest.warns(UserWarning, match="A point told"):
        strategy.tell(DISTINCT[:1] + 0.01, observe(stray))
