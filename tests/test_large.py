"""Very many choices: in pieces, in a file, with little memory. Nothing of that changes what is proposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import icm
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, space
from mtbo_torch.regression import Lookup, TrackedPieces, pieces, sites
from mtbo_torch.strategies import Strategy

GENERATOR = torch.Generator().manual_seed(0)
DISTINCT = torch.rand(30, 2, generator=GENERATOR, dtype=torch.double)
# Some of them twice, in another piece.
CHOICES = torch.cat([DISTINCT, DISTINCT[:11]])
KINDS = [(MTBKB, {"schedule": "delayed"}), (MTBKB, {"schedule": "every_round", "bound": "norm"}), (MTKB, {})]


def build(kind: type[Strategy], choices: Any = CHOICES, **options: Any) -> Strategy:
    known = {"norm_bound": 20.0, "noise_scale": 0.1, "seed": 1}
    return kind(icm(2, 2).kernel, choices=choices, **known | options)


def observe(x: Tensor) -> Tensor:
    return torch.stack([(5 * x).sin().sum(dim=-1), (3 * x).cos().prod(dim=-1)], dim=-1)


def play(strategy: Strategy, num_rounds: int = 12) -> Tensor:
    for q in (1, 2, *[1] * (num_rounds - 2)):
        x = strategy.ask(q)
        strategy.tell(x, observe(x))
    strategy.ask()
    return torch.cat([strategy.train_X, strategy.ask(2)], dim=-2)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=["delayed", "every_round", "MTKB"])
@pytest.mark.parametrize("others", [{}, {"repeat": False}, {"seed": [3, 4]}], ids=["repeat", "once", "trials"])
def test_pieces_propose_what_one_piece_does(
    monkeypatch: pytest.MonkeyPatch, kind: type[Strategy], options: dict[str, Any], others: dict[str, Any]
) -> None:
    whole = build(kind, **options, **others)
    expected = play(whole)
    monkeypatch.setattr(pieces, "PIECE", 7)
    for memory in (1.0, 0.0):
        cut = build(kind, memory=memory, **options, **others)
        assert torch.equal(play(cut), expected)
        tracking = cut._known.surrogate.tracking
        assert isinstance(tracking, TrackedPieces)
        assert len(tracking.parts) == 6
        mean, variance = whole._known.surrogate.tracked.mean, whole._known.surrogate.tracked.variance()
        torch.testing.assert_close(tracking.mean, mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(tracking.variance(), variance, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=["delayed", "every_round", "MTKB"])
def test_without_memory_nothing_grows_with_the_observations(kind: type[Strategy], options: dict[str, Any]) -> None:
    strategy = build(kind, memory=0.0, **options)
    sizes = []
    for _ in range(2):
        play(strategy)
        strategy.forget()
        tracking = strategy._known.surrogate.tracking
        known = getattr(tracking, "known", ()) or (tracking.variances, tracking.whitened_mean)
        others = [value for name, value in vars(tracking).items() if name not in ("known", "X", "regression")]
        assert not any(isinstance(value, Tensor) and value.numel() > 100 * len(CHOICES) for value in others)
        assert getattr(tracking, "cross", None) is None
        assert getattr(tracking, "_kept_features", None) is None
        sizes.append(sum(part.numel() for part in known))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("schedule", ["every_round", "delayed"])
def test_pieces_continue_bit_for_bit(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    monkeypatch.setattr(pieces, "PIECE", 7)
    first, second = (build(MTBKB, schedule=schedule) for _ in range(2))
    play(first)
    second.load_state_dict(first.state_dict())
    assert torch.equal(play(first), play(second))


def test_a_state_has_a_checksum_in_place_of_many_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "NUMBERS_SAVED", 10)
    first, second = build(MTBKB), build(MTBKB)
    play(first)
    state = first.state_dict()
    assert state["space"].shape == (1, 32)
    second.load_state_dict(state)
    assert torch.equal(play(first), play(second))
    with pytest.raises(ValueError, match="other points"):
        build(MTBKB, choices=CHOICES.flip(0)).load_state_dict(state)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_is_searched_where_it_is(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "choices.npy"
    np.save(path, CHOICES.numpy())
    stored = np.load(path, mmap_mode=mode)
    strategy = build(MTBKB, choices=stored)
    assert strategy.space.points.data_ptr() == stored.ctypes.data
    assert torch.equal(play(strategy), play(build(MTBKB)))
    assert torch.equal(play(build(MTBKB, choices=CHOICES.numpy())), play(build(MTBKB)))


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "choices.dat"
    CHOICES.numpy().tofile(path)
    stored = np.memmap(path, dtype=np.float64, mode="r", shape=tuple(CHOICES.shape))
    strategy = build(MTBKB, choices=stored)
    x = strategy.ask()
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(content) - 100)
    for attempt in (strategy.ask, lambda: strategy.tell(x, observe(x))):
        with pytest.raises(ValueError, match=f"ends before row {(len(content) - 100) // 16}"):
            attempt()
    with path.open("r+b") as file:
        file.write(content)
    other = build(MTBKB)
    for one in (strategy, other):
        one.ask() if one is other else None
        one.tell(x, observe(x))
    assert torch.equal(strategy.ask(), other.ask())


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "choices.npy"
    bad = CHOICES.numpy().copy()
    bad[17, 1] = np.nan
    np.save(path, bad)
    with pytest.raises(ValueError, match=r"choices .*the first at index \(17, 1\)"):
        build(MTBKB, choices=np.load(path, mmap_mode="r"))
    with pytest.raises(ValueError, match=r"choices should .* got torch.int64"):
        build(MTBKB, choices=np.arange(6).reshape(3, 2))
    with pytest.raises(ValueError, match=r"choices should be a torch.Tensor, a NumPy array .* got list"):
        build(MTBKB, choices=[[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"choices should hold numbers in single or double precision"):
        build(MTBKB, choices=np.array([["a", "b"]]))
    with pytest.raises(ValueError, match=r"memory should be finite and >= 0"):
        build(MTBKB, memory=-1.0)


@pytest.mark.parametrize("mixing", [sites.MIXING, 0], ids=["mixed", "all codes collide"])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_places_are_found(monkeypatch: pytest.MonkeyPatch, mixing: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(sites, "MIXING", mixing)
    points = torch.cat([CHOICES, torch.zeros(1, 2)]).to(dtype)
    lookup = Lookup(points)
    wanted = torch.cat([points.flip(0), points[:2] + 1, torch.tensor([[-0.0, 0.0]]).to(dtype)])
    equal = (points == wanted.unsqueeze(-2)).all(dim=-1)
    expected = torch.where(equal.any(dim=-1), equal.to(torch.uint8).argmax(dim=-1), -1)
    assert torch.equal(lookup.find(wanted), expected)
    assert torch.equal(lookup.find(wanted.reshape(5, 9, 2)), expected.reshape(5, 9))
    again = (points.unsqueeze(-2) == points).all(dim=-1).tril(diagonal=-1).any(dim=-1)
    assert torch.equal(lookup.repeated, again)
