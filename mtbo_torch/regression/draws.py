"""Which observations are in a dictionary: random numbers, masks ``(b) x t``, and lists of indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

# A dictionary that keeps what it has is at most so many times as large as what was drawn.
LARGEST_SURPLUS = 1.5

Generators = torch.Generator | Sequence[torch.Generator]


def draw_luck(known: Tensor, size: int, generator: Generators) -> Tensor:
    """Return ``(b) x size`` uniform random numbers, the first ``(b) x s`` of them as they are unless they are NaN.

    Each data set draws from a generator of its own if there are several.
    """
    drawn = pad(known, (0, size - known.shape[-1]), value=torch.nan)
    sources, missing = [generator] if isinstance(generator, torch.Generator) else generator, drawn.isnan()
    counts = missing.reshape(len(sources), -1).sum(dim=-1).tolist()
    draws = [torch.rand(n, generator=source, dtype=drawn.dtype) for n, source in zip(counts, sources, strict=True)]
    return drawn.masked_scatter(missing, torch.cat(draws))


def compare_sites(wanted: Tensor, before: Tensor, sites: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of the observations wanted, ``(b) x t``, are at sites that those before are not at, each site once.

    The other result says for which data sets, ``(b)``, no site of those before is lost.
    """
    nowhere = torch.zeros_like(sites)
    wants, has = (nowhere.scatter_reduce(-1, sites, mask.to(sites), "amax") > 0 for mask in (wanted, before))
    return keep_last(wanted & ~has.gather(-1, sites), sites), (wants | ~has).all(dim=-1)


def keep_last(drawn: Tensor, sites: Tensor) -> Tensor:
    """Return ``(b) x t`` without those for which a later one at the same site is drawn too."""
    everything = torch.arange(drawn.shape[-1], device=drawn.device).expand_as(sites)
    last = torch.zeros_like(sites).scatter_reduce(-1, sites, everything.where(drawn, 0), "amax")
    return drawn & (everything == last.gather(-1, sites))


def keep_unless_many(drawn: Tensor, before: Tensor, sites: Tensor) -> Tensor:
    """Return what was drawn and what was there before, ``(b) x t``; or what was drawn, if the rest is too much."""
    together = drawn | before
    sizes = [keep_last(mask, sites).sum(dim=-1, keepdim=True) for mask in (drawn, together)]
    return torch.where(sizes[1] <= LARGEST_SURPLUS * sizes[0], together, drawn)


def find_trials(where: Tensor) -> Tensor:
    """Return the places of the data sets where ``b`` is True."""
    return where.nonzero().squeeze(-1)


def list_indices(indices: Tensor, sizes: Tensor) -> dict[int, list[int]]:
    """Return the first so many, ``(b)``, of ``(b) x m`` indices, by data set."""
    rows = zip(indices.reshape(sizes.numel(), indices.shape[-1]).tolist(), sizes.flatten().tolist(), strict=True)
    return {trial: row[:size] for trial, (row, size) in enumerate(rows)}


def find_places(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return where ``(b) x t`` is True, each row padded with its last place to the longest, and how many these are.

    A row without any is padded with the first place.
    """
    sizes = drawn.sum(dim=-1)
    longest = int(sizes.max())
    order = torch.argsort((~drawn).to(torch.uint8), dim=-1, stable=True)[..., :longest]
    own = torch.arange(longest, device=drawn.device).minimum((sizes.unsqueeze(-1) - 1).clamp_min(0))
    return order.gather(-1, own), sizes
