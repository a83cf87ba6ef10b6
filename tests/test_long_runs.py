"""Many rounds: memory as the theory has it, nothing left behind, and no error that adds up.

Each run has a process of its own, for the peak of its memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import gpytorch
import pytest
import torch
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ExactMultiTaskGP, NystromMultiTaskGP, TaskSimilarityKernel
from mtbo_torch.regression.factor import LARGEST_BLOCK

pytestmark = pytest.mark.slow
ETA, NOISE, DOUBLE_BYTES, MEGABYTE = 0.1, 0.1, 8, 2**20
CHOICES = torch.linspace(0, 1, 21, dtype=torch.double).unsqueeze(-1)


class Held(NamedTuple):
    """What is alive: the number of tensors, the bytes behind them, and how many have a graph."""

    tensors: int
    storage: int
    graphs: int


class LongRun(NamedTuple):
    """What a process tells of its run.

    Attributes:
        held: After some of the rounds, by their number.
        peak: By how many bytes the process grew, at most.
        data: The points and the values.
        known: Mean and norm at the choices as the strategy follows them, then as its model has them, and the gain.
        dictionary: The last one of MT-BKB.
    """

    held: dict[int, Held]
    peak: int
    data: tuple[Tensor, Tensor]
    known: tuple[Tensor, ...]
    dictionary: Tensor | None


def kernel(omega: float) -> TaskSimilarityKernel:
    base = gpytorch.kernels.RBFKernel().double()
    base.lengthscale = torch.tensor(0.2, dtype=torch.double)  # a number would be rounded to the default dtype
    return TaskSimilarityKernel(base, num_tasks=2, omega=omega)


def held() -> Held:
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return Held(len(tensors), sum(storages.values()), sum(tensor.grad_fn is not None for tensor in tensors))


def peak() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest


def long_run(kind: type, omega: float, rounds: int, options: dict) -> LongRun:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    strategy = kind(kernel(omega), choices=CHOICES, norm_bound=2.0, bound="norm", noise_scale=NOISE, eta=ETA, **options)
    values = torch.cat([torch.sin(6 * CHOICES), torch.cos(5 * CHOICES)], dim=-1)
    record, before = {}, 0
    for t in range(1, rounds + 1):
        x = strategy.ask()
        y = values[(x == CHOICES).flatten()] + NOISE * torch.randn(1, 2, dtype=torch.double)
        strategy.tell(x, y)
        if t == 50:
            before = peak()
        if t % (rounds // 5) == 0:
            record[t] = held()
    grown = peak() - before
    with torch.no_grad():
        model = strategy.model
        followed = (strategy._surrogate.tracking.mean, strategy._surrogate.tracking.norm)
        known = (*followed, model.mean(CHOICES), model.covariance_norm(CHOICES), model.info_gain)
    dictionary = strategy.dictionary if isinstance(strategy, MTBKB) else None
    return LongRun(record, grown, (strategy.train_X, strategy.train_Y), known, dictionary)


def in_own_process(kind: type, omega: float, rounds: int, **options: object) -> LongRun:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(long_run, kind, omega, rounds, options).result()


def exact_from_counts(omega: float, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and norm at the choices, and the gain, from how often each choice was observed and its mean values.

    A mean of c values is one observation with noise eta / c: a regression on the distinct points, nothing shared with
    what is tested.
    """
    index = (X - CHOICES.squeeze(-1)).abs().argmin(dim=-1)
    seen = index.unique()
    counts = (index == seen.unsqueeze(-1)).sum(dim=-1)
    means = torch.stack([Y[index == i].mean(dim=0) for i in seen])
    B = omega * torch.eye(2) + (1 - omega) * torch.ones(2, 2) / 2
    B, noise = B.double(), torch.diag(ETA / counts).kron(torch.eye(2, dtype=torch.double))
    k = (-((CHOICES - CHOICES.mT) ** 2) / (2 * 0.2**2)).exp()
    G, cross = torch.kron(k[seen][:, seen].contiguous(), B), torch.kron(k[:, seen].contiguous(), B)
    solved = torch.linalg.solve(G + noise, torch.cat([means.reshape(-1, 1), cross.mT], dim=-1))
    covariance = torch.kron(k, B) - cross @ solved[:, 1:]
    blocks = torch.stack([covariance[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(len(CHOICES))])
    gain = torch.linalg.slogdet(torch.eye(len(G), dtype=torch.double) + torch.linalg.solve(noise, G)).logabsdet / 2
    return (cross @ solved[:, :1]).reshape(-1, 2), torch.linalg.matrix_norm(blocks, ord=2), gain


def close_to(known: tuple[Tensor, ...], mean: Tensor, norm: Tensor, gain: Tensor | None) -> None:
    for ours, theirs in zip(known[:4], (mean, norm, mean, norm), strict=True):
        assert ((ours - theirs).abs() <= 1e-6 * theirs.abs().clamp_min(1e-3)).all()
    if gain is not None:
        close(known[4], gain, 1e-6)


def expected_bytes(t: int, num_groups: int) -> float:
    """Each group's factor in blocks of rows, the last one allocated in full, and the kernel between data and choices.

    The latter is held twice while its buffer doubles.
    """
    allocated = t + LARGEST_BLOCK
    factor = allocated**2 / 2 + LARGEST_BLOCK * allocated / 2
    return DOUBLE_BYTES * (num_groups * factor + 4 * len(CHOICES) * t)


@pytest.mark.parametrize(("omega", "num_groups", "rounds"), [(0.0, 1, 2_000), (0.4, 2, 1_500)])
def test_mtkb(omega: float, num_groups: int, rounds: int) -> None:
    run = in_own_process(MTKB, omega, rounds)
    (X, Y), held = run.data, run.held
    assert X.shape == (rounds, 1)
    # The triangle, little more, and at no time a copy of it.
    for t, now in held.items():
        assert now.graphs == 0
        assert num_groups * DOUBLE_BYTES * t**2 / 2 <= now.storage <= expected_bytes(t, num_groups) + MEGABYTE
    assert run.peak <= 1.1 * expected_bytes(rounds, num_groups) + 16 * MEGABYTE
    # One more tensor for each block of the factor, and none for each round.
    first, last = min(held), max(held)
    blocks = -(-(last - first) // LARGEST_BLOCK)
    assert held[last].tensors - held[first].tensors <= blocks + 2
    close_to(run.known, *exact_from_counts(omega, X, Y))
    if num_groups > 1:
        fresh = ExactMultiTaskGP(X, Y, kernel(omega), eta=ETA)
        with torch.no_grad():
            close_to(run.known, fresh.mean(CHOICES), fresh.covariance_norm(CHOICES), fresh.info_gain)


@pytest.mark.parametrize(("schedule", "rounds"), [("delayed", 1_500), ("every_round", 600)])
def test_mtbkb(schedule: str, rounds: int) -> None:
    run = in_own_process(MTBKB, 0.4, rounds, schedule=schedule)
    (X, Y), held = run.data, run.held
    assert run.dictionary is not None
    assert len(run.dictionary) <= 150
    # The observations, in buffers of up to twice their size, and some matrices of the dictionary's.
    first, last = min(held), max(held)
    for t, now in held.items():
        assert now.graphs == 0
        assert now.storage <= 2 * DOUBLE_BYTES * (X.shape[-1] + Y.shape[-1]) * t + MEGABYTE
    assert held[last].tensors - held[first].tensors <= 2
    assert run.peak <= 16 * MEGABYTE
    fresh = NystromMultiTaskGP(X, Y, kernel(0.4), eta=ETA, dictionary=run.dictionary)
    with torch.no_grad():
        close_to(run.known, fresh.mean(CHOICES), fresh.covariance_norm(CHOICES), None)
