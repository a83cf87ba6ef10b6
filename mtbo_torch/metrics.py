"""Measures of how well a run did, computed from tensors alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import product

import torch
from botorch.utils.multi_objective.box_decompositions import DominatedPartitioning
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from mtbo_torch.checks import require_broadcast, require_finite, require_positive, require_tensor
from mtbo_torch.scalarizations import Scalarization, require_scalarization, require_scalarization_class

# With more tasks, the hypervolume takes longer than the run.
MOST_TASKS_OF_HYPERVOLUME = 4


def scalarized_regret(scalarization: Scalarization, achieved: Tensor, attainable: Tensor) -> Tensor:
    r"""Compute the instantaneous regret :math:`\max_x s_\lambda(f(x)) - s_\lambda(f(x_t))` on a finite domain.

    Args:
        scalarization: :math:`s_\lambda` with one weight vector, or ``(b) x q`` weight vectors for q rounds of b runs.
        achieved: ``(b) x q x n``, :math:`f(x_t)`, without noise.
        attainable: ``N x n``, :math:`f` on the whole domain; ``b x 1 x N x n`` for a batch of runs.

    Returns:
        ``(b) x q``.

    Example:
        >>> import torch
        >>> from mtbo_torch import LinearScalarization
        >>> from mtbo_torch.metrics import scalarized_regret
        >>> f = torch.tensor([[0.0, 1.0], [1.0, 3.0], [2.0, 0.0]])
        >>> scalarized_regret(LinearScalarization(torch.tensor([0.5, 0.5])), f[[0, 1]], f)
        tensor([1.5000, 0.0000])
    """
    require_scalarization(scalarization)
    for name, value in (("achieved", achieved), ("attainable", attainable)):
        _require_values(name, value, scalarization.num_tasks)
    if attainable.shape[-2] == 0:
        raise ValueError(f"attainable should have at least one row, got shape {tuple(attainable.shape)}. Pass f.")
    best = scalarization(attainable).amax(dim=-1)
    return best - scalarization(achieved.unsqueeze(-2)).squeeze(-1)


def average_regret(instantaneous: Tensor) -> Tensor:
    r"""Compute the time-average cumulative regret :math:`R_C(t) / t = \frac1t \sum_{s \le t} r_s` in each round.

    Args:
        instantaneous: ``... x T``, the regrets :math:`r_t`, for instance from :func:`scalarized_regret`.

    Returns:
        ``... x T``.

    Example:
        >>> import torch
        >>> from mtbo_torch.metrics import average_regret
        >>> average_regret(torch.tensor([3.0, 1.0, 2.0]))
        tensor([3., 2., 2.])
    """
    _require_rounds("instantaneous", instantaneous)
    return instantaneous.cumsum(dim=-1) / _number_rounds(instantaneous)


def regret_certificate(lipschitz: Tensor, radius: Tensor, norm: Tensor) -> Tensor:
    r"""Compute the bound of Theorem 2 on the cumulative regret after each of the ``... x T`` rounds of a run.

    .. math:: R_C(t) \le 2 L \beta_t \sqrt{t \sum_{s \le t} \|\Gamma_{s-1}(x_s, x_s)\|}

    with probability at least :math:`1 - \delta`, if the radii are valid. The printed theorem also replaces
    :math:`\Gamma_{s-1}(x_s, x_s)` by :math:`(1 + \kappa / \eta) \Gamma_s(x_s, x_s)` and the log-determinant in
    :math:`\beta_t` by its largest possible value, which bounds the sum before the run. During a run the sum is known,
    and it is smaller. The same bound holds with MT-BKB's radius and norms (proof of Theorem 3).

    Args:
        lipschitz: ``... x T``, :math:`L_{\lambda_t}`; the largest so far counts.
        radius: ``... x T``, the radius with which :math:`x_t` was chosen; the largest so far counts.
        norm: ``... x T``, :math:`\|\Gamma_{t-1}(x_t, x_t)\|`, before the observation.

    Returns:
        ``... x T``, a bound on the cumulative regret; divide by t for the average.

    Example:
        >>> import torch
        >>> from mtbo_torch.metrics import regret_certificate
        >>> regret_certificate(torch.ones(2), torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0]))
        tensor([ 4., 12.])
    """
    for name, value in (("lipschitz", lipschitz), ("radius", radius), ("norm", norm)):
        _require_rounds(name, value)
        if value.shape[-1] != norm.shape[-1]:
            raise ValueError(
                f"{name} should have one entry for each of the {norm.shape[-1]} rounds (from norm), got shape "
                f"{tuple(value.shape)}. Pass one number per round."
            )
        require_positive(name, value, "Pass the values of the run.", allow_zero=True)
    require_broadcast("lipschitz, radius and norm", lipschitz.shape, radius.shape, norm.shape)
    largest = lipschitz.cummax(dim=-1).values * radius.cummax(dim=-1).values
    return 2 * largest * (_number_rounds(norm) * norm.cumsum(dim=-1)).sqrt()


def hypervolume(achieved: Tensor, ref_point: Tensor) -> Tensor:
    r"""Compute the volume that values dominate above a reference point, :math:`vol(\bigcup_s \{y : z \le y \le y_s\})`.

    It is exact, by BoTorch's partitioning of one set after the other, whose cost grows steeply with the number of
    tasks. Of a single task it is what the largest value exceeds z by.

    Args:
        achieved: ``(b) x t x n``, the values :math:`y_s`.
        ref_point: ``n`` or ``(b) x n``, z.

    Returns:
        ``(b)``.

    Example:
        >>> import torch
        >>> from mtbo_torch.metrics import hypervolume
        >>> Y = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> hypervolume(Y, ref_point=torch.zeros(2))
        tensor(3.)
        >>> hypervolume(torch.stack([Y, 2 * Y]), ref_point=torch.zeros(2))  # two sets of values
        tensor([ 3., 12.])
    """
    _require_values("achieved", achieved, None)
    require_finite("achieved", achieved)
    *batch_shape, _, n = achieved.shape
    ref_point = require_tensor("ref_point", ref_point, "Pass one number per task.")
    if ref_point.shape not in ((n,), (*batch_shape, n)):
        raise ValueError(
            f"ref_point should have one entry for each of the {n} tasks, or be `(b) x n` with the batch shape "
            f"{tuple(batch_shape)} of achieved, got shape {tuple(ref_point.shape)}. Pass one number per task."
        )
    require_finite("ref_point", ref_point)
    ref_points = ref_point.to(achieved).expand(*batch_shape, n)
    if n == 1:  # the reference point itself is worth nothing
        return (torch.cat([achieved, ref_points.unsqueeze(-2)], dim=-2).amax(dim=-2) - ref_points).squeeze(-1)
    volumes = achieved.new_zeros(batch_shape)
    for i in product(*map(range, batch_shape)):
        volumes[i] = DominatedPartitioning(ref_point=ref_points[i], Y=achieved[i]).compute_hypervolume()
    return volumes


class RegretTracker:
    r"""All regrets of b parallel runs, updated after each block of rounds.

    * ``regret``: :math:`s_{\lambda_t}(f(x^\star_{\lambda_t})) - s_{\lambda_t}(f(x_t))`
    * ``average_regret``: its mean over the rounds so far, :math:`R_C(t) / t`
    * ``simple_regret``: the regret of the best point so far, for the weights of the round
    * ``bayes_regret``: :math:`R_B(t)`, the mean of the simple regret over fixed weights
    * ``front_share``: the share of the points of the Pareto front found so far, on a finite domain
    * ``hypervolume_share``: the share of the attainable hypervolume above the worst values, on a finite domain with
      few tasks, in the last round of a block (NaN in the others)

    Args:
        scalarization: The class of :math:`s_\lambda`.
        best: Maps weights ``b x q x n`` to :math:`\max_x s_\lambda(f(x))`, ``b x q``.
        bayes_weights: ``W x n``, the fixed weights of the Bayes regret.
        attainable: ``b x N x n``, f on a finite domain; None for other domains, which have no shares.

    Example:
        >>> import torch
        >>> from mtbo_torch import LinearScalarization
        >>> from mtbo_torch.metrics import RegretTracker
        >>> f = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
        >>> best = lambda weights: weights.amax(dim=-1)
        >>> tracker = RegretTracker(LinearScalarization, best, torch.tensor([[0.5, 0.5]]), f)
        >>> tracker.update(torch.tensor([[[1.0, 0.0]]]), f[:, :1])["regret"]
        tensor([[1.]])
    """

    def __init__(
        self,
        scalarization: type[Scalarization],
        best: Callable[[Tensor], Tensor],
        bayes_weights: Tensor,
        attainable: Tensor | None,
    ) -> None:
        require_scalarization_class(scalarization)
        if not callable(best):
            raise ValueError(f"best should be a function of weights, got {best!r}. Return the largest values.")
        self.scalarization, self.best, self.attainable = scalarization, best, attainable
        self.bayes = scalarization(bayes_weights)
        if attainable is not None:
            _require_values("attainable", attainable, self.bayes.num_tasks)
            if attainable.dim() != 3 or 0 in attainable.shape:
                raise ValueError(
                    f"attainable should be `b x N x n`, got shape {tuple(attainable.shape)}. Pass f on the domain."
                )
        self.front = None if attainable is None else is_non_dominated(attainable, deduplicate=False)
        self._bayes_best: Tensor | None = None
        self.state: dict[str, Tensor] = {}

    @cached_property
    def _volumes(self) -> Tensor:
        assert self.attainable is not None
        volumes = hypervolume(self.attainable, self.attainable.amin(dim=-2))
        # NaN where the volume is zero because every point of the front is worst in some task.
        return torch.where(volumes > 0, volumes, torch.nan)

    def update(self, weights: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Add q rounds, and return their regrets by name, each ``b x q``.

        Args:
            weights: ``b x q x n``, the weights of these rounds.
            values: ``b x q x n``, f at the chosen points, without noise.
        """
        n = self.bayes.num_tasks
        _require_values("weights", weights, n)
        _require_values("values", values, n)
        runs = self.state.get("total", values[:, 0, 0] if self.attainable is None else self.attainable[:, 0, 0])
        if values.dim() != 3 or weights.shape != values.shape or len(values) != len(runs) or values.shape[1] == 0:
            raise ValueError(
                f"weights and values should be `b x q x n` with b = {len(runs)} runs, q >= 1 and n = {n} tasks, got "
                f"shapes {tuple(weights.shape)} and {tuple(values.shape)}. Pass a row for each round of each run."
            )
        b, q, _ = values.shape
        if self._bayes_best is None:
            self._bayes_best = self.best(self.bayes.weights.expand(b, *self.bayes.weights.shape)).unsqueeze(-1)
        scalarization, best = self.scalarization(weights), self.best(weights)
        regret = best - scalarization(values.unsqueeze(-2)).squeeze(-1)
        total = self.state.get("total", regret.new_zeros(b)).unsqueeze(-1) + regret.cumsum(dim=-1)
        history = torch.cat([self.state.get("values", values[:, :0]), values], dim=-2)
        first = history.shape[-2] - q
        rounds = torch.arange(first + 1, first + q + 1, dtype=regret.dtype, device=regret.device)
        # b x q x t: the scalarized value of every point so far in each of the new rounds.
        worth = scalarization(history.unsqueeze(1))
        later = torch.arange(history.shape[-2], device=worth.device) >= rounds.unsqueeze(-1)
        bayes = self.bayes(values.unsqueeze(1)).cummax(dim=-1).values
        if "bayes" in self.state:
            bayes = torch.maximum(bayes, self.state["bayes"].unsqueeze(-1))
        columns = {
            "regret": regret,
            "average_regret": total / rounds,
            "simple_regret": best - worth.masked_fill(later, -torch.inf).amax(dim=-1),
            "bayes_regret": (self._bayes_best - bayes).mean(dim=-2),
        }
        self.state |= {"total": total[:, -1], "values": history, "bayes": bayes[..., -1]}
        if self.attainable is not None and self.front is not None:
            columns |= self._update_front(values, self.attainable, self.front)
        return columns

    def _update_front(self, values: Tensor, attainable: Tensor, front: Tensor) -> dict[str, Tensor]:
        found = (values.unsqueeze(-2) == attainable.unsqueeze(-3)).all(dim=-1).cummax(dim=-2).values
        before = self.state.get("found", torch.zeros_like(front))
        found = found | before.unsqueeze(-2)
        share = (found & front.unsqueeze(-2)).sum(dim=-1).to(values) / front.sum(dim=-1, keepdim=True)
        columns = {"front_share": share}
        if 1 < values.shape[-1] <= MOST_TASKS_OF_HYPERVOLUME:
            old = self.state.get("hypervolume", values.new_zeros(len(values)))
            masks, past = (_find_non_dominated(attainable, mask) for mask in (found[:, -1], before))
            volumes = [
                hypervolume(Y[mask], Y.amin(dim=0)) / total if changed else value
                for Y, mask, total, changed, value in zip(
                    attainable, masks, self._volumes, (masks != past).any(dim=-1).tolist(), old, strict=True
                )
            ]
            self.state["hypervolume"] = torch.stack(volumes)
            column = torch.full_like(share, torch.nan)
            column[:, -1] = self.state["hypervolume"]
            columns["hypervolume_share"] = column
        self.state["found"] = found[:, -1]
        return columns


def _find_non_dominated(attainable: Tensor, found: Tensor) -> Tensor:
    """Return ``b x N``, True for found points that no other found point dominates."""
    worst = attainable.amin(dim=-2, keepdim=True) - 1
    return is_non_dominated(torch.where(found.unsqueeze(-1), attainable, worst), deduplicate=False) & found


def _require_values(name: str, value: object, num_tasks: int | None) -> None:
    value = require_tensor(name, value, "Pass one row per point and one column per task.")
    if value.dim() < 2 or num_tasks not in (None, value.shape[-1]):
        raise ValueError(
            f"{name} should be `... x q x n` with one column for each of the {num_tasks or 'n'} tasks, got shape "
            f"{tuple(value.shape)}. Pass one row per point."
        )


def _require_rounds(name: str, value: object) -> None:
    value = require_tensor(name, value, "Pass one number per round.")
    if value.dim() == 0:
        raise ValueError(f"{name} should be `... x T`, got a single number. Pass one number per round.")


def _number_rounds(values: Tensor) -> Tensor:
    return torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
