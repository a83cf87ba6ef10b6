"""MT-BKB (Algorithm 2)."""

from __future__ import annotations

from torch import Tensor

from mtbo_torch.confidence import nystrom_radius
from mtbo_torch.strategies.budgeted import BudgetedStrategy


class MTBKB(BudgetedStrategy):
    r"""Multi-task budgeted kernelized bandits: MT-KB on a dictionary, for very many rounds.

    A round between two draws of the dictionary costs :math:`O(r m^2 + r N m)` on N choices, a draw
    :math:`O(u m^2)` with u the number of distinct points observed, and so does each point after the first of an
    :meth:`ask` for several. With `oversampling` from theory and the schedule ``"every_round"`` the regret is within a
    constant factor of MT-KB's (Theorem 3).

    Args:
        kernel: As in :class:`MTKB`.
        epsilon: The accuracy of the dictionary that the radius counts on, in ``(0, 1)``; a smaller one needs a larger
            dictionary, but has a smaller radius.
        oversampling: The q in the probability :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)` with which a point is
            in the dictionary, 3 by default: more for accuracy, fewer for speed. :func:`theory_oversampling` gives the
            paper's for a known horizon; with None it is taken for a horizon that doubles whenever it is reached.
        schedule: ``"every_round"`` draws the dictionary after each observation, as the paper does; ``"delayed"`` only
            when the norms :math:`\|\tilde\Gamma(x_s, x_s)\|` since the last draw add up to more than :math:`\eta` (an
            extension, without a multi-task theorem), which makes 100,000 rounds practical.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import MTBKB, TaskSimilarityKernel
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> strategy = MTBKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1, schedule="delayed")
        >>> for _ in range(50):
        ...     x = strategy.ask()
        ...     strategy.tell(x, torch.cat([x.sin(), x.cos()], dim=-1))
        >>> strategy.dictionary_size < 20
        True
    """

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return nystrom_radius(self._surrogate.info_gain, norm_bound, noise_scale, eta, self.delta, self.epsilon)
