"""Maximize many functions on one box at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from botorch.exceptions.warnings import BadInitialCandidatesWarning, OptimizationWarning
from botorch.generation import gen_candidates_scipy
from botorch.optim.initializers import initialize_q_batch
from botorch.utils.sampling import manual_seed
from torch import Tensor
from torch.quasirandom import SobolEngine

from mtbo_torch.grid import Grid

# At a kink, and a Chebyshev scalarization has many, a longer line search gains nothing.
LONGEST_LINE_SEARCH = 10
FLAT = 1e-6
# How often climbs and changes of single inputs take turns.
MOST_CLIMBS = 4
# Between limits climbs are slow: from how many starts there are any, and with how many steps.
FEW_STARTS, MOST_STEPS = 4, 40


def maximize(
    function: Callable[[Tensor], Tensor],
    bounds: Tensor,
    seeds: Sequence[int],
    num_restarts: int,
    raw_samples: int,
    extra: Tensor | None = None,
    grid: Grid | None = None,
) -> tuple[Tensor, Tensor]:
    """Maximize each of b functions, by one call of BoTorch's batched L-BFGS-B from several starts each.

    Every start of every function is a separate problem, so the result for a function does not depend on the others.

    Args:
        function: Maps ``R x b x d`` points to ``R x b`` values; column i holds points and values of the i-th function.
        bounds: ``2 x d``, the lower and the upper corner.
        seeds: One for each of the b functions, for choosing the starts.
        num_restarts: The number of starts for each function.
        raw_samples: The number of Sobol points from which the starts are chosen.
        extra: ``S x b x d``, more points to choose them from.
        grid: Which points are allowed; all by default. Then inputs with a few values are changed one at a time, in
            turns with climbs along the others.

    Returns:
        The maximizers ``b x d`` and the maxima ``b``.

    Example:
        >>> import torch
        >>> from mtbo_torch.optimization import maximize
        >>> peaks = torch.tensor([[0.25], [0.75]], dtype=torch.double)
        >>> box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> x, _ = maximize(lambda X: -(X - peaks).square().sum(-1), box, seeds=[0, 1], num_restarts=2, raw_samples=16)
        >>> x.allclose(peaks, atol=1e-3)
        True
    """
    unit = torch.stack([draw_sobol(bounds.shape[-1], raw_samples, seed) for seed in seeds], dim=1).to(bounds)
    raw = bounds[0] + (bounds[1] - bounds[0]) * unit
    raw = raw if extra is None else torch.cat([raw, extra])
    raw = raw if grid is None else grid.place(raw)
    with torch.no_grad():
        values = function(raw)
    if grid is not None and grid.constraints:
        num_restarts = min(num_restarts, FEW_STARTS)
    chosen = [_choose_starts(raw[:, i], values[:, i], num_restarts, seed) for i, seed in enumerate(seeds)]
    points = torch.stack(chosen, dim=1)
    values = torch.full_like(points[..., 0], -torch.inf)
    for _ in range(1 if grid is None else MOST_CLIMBS):
        points, reached = _climb(function, bounds, points, grid)
        if grid is not None:
            points, reached = grid.step(function, points)
        if (reached <= values + FLAT * values.abs()).all():
            break
        values = reached
    best, place = reached.max(dim=0)
    return points[place, torch.arange(len(seeds), device=points.device)], best


def _climb(
    function: Callable[[Tensor], Tensor], bounds: Tensor, starts: Tensor, grid: Grid | None
) -> tuple[Tensor, Tensor]:
    """Return where gradients lead from ``R x b x d`` points, and the values ``R x b`` there."""
    R, b, d = starts.shape
    # Each start carries the index of its function as one more input, which the optimizer keeps fixed.
    owners = torch.arange(b, dtype=starts.dtype, device=starts.device).repeat(R)
    flat = starts.reshape(-1, d)
    held = {} if grid is None else {place: flat[:, place] for place in grid.held}
    if len(held) < d:
        lower, upper = (torch.cat([bound, bound.new_zeros(1)]) for bound in bounds)
        upper[-1] = b
        constraints = {} if grid is None else grid.constraints
        options = {"maxls": LONGEST_LINE_SEARCH}
        if constraints:  # another method, which takes one start after the other
            options = {"max_optimization_problem_aggregation_size": 1, "maxiter": MOST_STEPS}
        with warnings.catch_warnings(record=True) as caught:
            found, _ = gen_candidates_scipy(
                torch.cat([flat, owners.unsqueeze(-1)], dim=-1).unsqueeze(-2),
                _ByOwner(function, b, d),
                lower,
                upper,
                options=options,
                fixed_features=held | {d: owners},
                **constraints,
            )
        for warning in caught:  # the caller need not know that a line search ended early
            if not issubclass(warning.category, OptimizationWarning):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        starts = found[:, 0, :d].reshape(R, b, d)
    with torch.no_grad():
        return starts, function(starts)


def draw_sobol(d: int, count: int, seed: int, start: int = 0) -> Tensor:
    """Draw the points ``count x d`` of a scrambled Sobol sequence in the unit cube that come after the first `start`.

    Args:
        d: The number of inputs.
        count: How many points to draw.
        seed: Determines the scrambling.
        start: How many points to leave out.

    Example:
        >>> import torch
        >>> from mtbo_torch.optimization import draw_sobol
        >>> torch.equal(draw_sobol(d=2, count=2, seed=0, start=1), draw_sobol(d=2, count=3, seed=0)[1:])
        True
    """
    engine = SobolEngine(d, scramble=True, seed=seed)
    # Torch rounds the first point to its default dtype.
    first = (engine.quasi.double() / 2**engine.MAXBIT).reshape(1, d)[start:]
    rest = engine.fast_forward(max(start, 1)).draw(count, dtype=torch.double)
    return torch.cat([first, rest])[:count]


def _choose_starts(points: Tensor, values: Tensor, count: int, seed: int) -> Tensor:
    # A function may be flat, as an acquisition is before the first observation. Then every point is a maximizer, and
    # rounding must not decide.
    if values.max() - values.min() <= FLAT * values.abs().max():
        values = torch.zeros_like(values)
    with manual_seed(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore", BadInitialCandidatesWarning)
        return initialize_q_batch(points.unsqueeze(-2), values, count)[0].squeeze(-2)


class _ByOwner(torch.nn.Module):
    """The b functions at ``P x 1 x (d + 1)`` points in any order; the last entry is the index of the function."""

    def __init__(self, function: Callable[[Tensor], Tensor], count: int, d: int) -> None:
        super().__init__()
        self.function, self.count, self.d = function, count, d

    def forward(self, X: Tensor) -> Tensor:
        points, owner = X[:, 0, : self.d], X[:, 0, self.d].detach().long()
        # Each point takes the next free row of its function's column; free rows are never read.
        is_mine = torch.nn.functional.one_hot(owner, self.count)
        row = is_mine.cumsum(dim=0).gather(-1, owner.unsqueeze(-1)).squeeze(-1) - 1
        grid = points.detach()[:1].expand(int(row.max()) + 1, self.count, self.d)
        return self.function(grid.index_put((row, owner), points))[row, owner]
