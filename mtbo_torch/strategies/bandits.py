"""The algorithms: MT-KB and MT-BKB, and the baselines with a kernel. Each is a radius."""

from __future__ import annotations

from typing import Any, Unpack

from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.arrays import ArrayLike
from mtbo_torch.cluster import ClusterChoices, is_dask_array
from mtbo_torch.confidence import (
    exact_radius,
    independent_nystrom_radius,
    independent_radius,
    mobo_radius,
    nystrom_radius,
)
from mtbo_torch.inputs import Inputs
from mtbo_torch.regression import KroneckerRegression
from mtbo_torch.space import Space
from mtbo_torch.strategies.budgeted import BudgetedStrategy
from mtbo_torch.strategies.kernelized import ExactStrategy, KernelOptions


class MTKB(ExactStrategy):
    r"""Multi-task kernelized bandits: optimize several correlated objectives from few noisy evaluations.

    Each round (Algorithm 1) draws weights :math:`\lambda`, chooses

    .. math:: x_{t+1} = \arg\max_x s_\lambda(\mu_t(x)) + L_\lambda \beta_t \|\Gamma_t(x, x)\|^{1/2}

    and learns from the answer. With a known kernel, a true `norm_bound` and a true `noise_scale` the regret bound of
    the paper holds with probability :math:`1 - \delta`; with any of them learned or left out it is a heuristic of the
    same form.

    On finite `choices` a round costs :math:`O(r t^2 + N t)` for kernels ``k B``, with r distinct non-zero eigenvalues
    of B; on `bounds` the acquisition is maximized by BoTorch's batched L-BFGS-B. Once a value is missing (see
    :meth:`tell`), observations and points cost what :class:`ExactMultiTaskGP` says, and all choices are evaluated in
    every round.

    Args:
        kernel: The multi-task kernel :math:`\Gamma`. The strategy keeps a copy. With `refit_every` it may be the number
            of tasks: each refit then learns several kernels, in which tasks share their lengthscales or have their own,
            and uses the one that suits the data best (:func:`candidate_kernels`; see :attr:`kernel_scores`).
        bounds: ``2 x d``, a box to search, or :class:`Inputs` that describe it; or
        choices: ``N x d``, the points that may be chosen: a tensor or a NumPy array. A ``numpy.memmap`` stays in its
            file.
        norm_bound: A bound b of the objective's RKHS norm, or one for each of a batch of trials, ``(b)``. If not given,
            the theory's radius takes the norm of the fitted function, or 1 if that is smaller.
        noise_scale: The noise's sub-Gaussian constant :math:`\sigma`, such as its standard deviation; :math:`\sqrt\eta`
            if not given.
        eta: The regularizer, one number; if not given, 0.1, or learned where `refit_every` is given.
        delta: The probability with which the confidence bound may fail, in ``(0, 1]``.
        radius: ``"theory"``; or a number; or ``"mobo"``, :math:`\sqrt{0.125 \log(2 t + 1)}` in round t; or a function
            that takes the number of observations to a number. By default the theory's with a known kernel, `norm_bound`
            and `noise_scale`, else 1, as no number would have a guarantee then.
        bound: ``"mixture"``, the default where the radius is the theory's and all it needs is known, see
            :class:`Mixture`; ``"norm"``, the paper's and the default elsewhere; or ``"ellipsoid"``, which is tighter
            than that, see :class:`ScalarizedMultiTaskUCB`. All have the same guarantee; the mixture's intervals are by
            far the shortest and do not depend on `eta`. It warns once if no function of that norm explains the data.
        refit_every: After how many observations the kernel's free parameters are learned again, by maximum likelihood;
            :class:`MTBKB` does so less and less often. The strategy then works on inputs scaled to the unit cube and
            values standardized at each refit, and a given kernel, `norm_bound`, `noise_scale`, `eta` and `radius` are
            meant in these units; points, values, `ref_point` and `constraints` stay in yours. By default nothing is
            learned, and all units are yours.
        scalarization: The class of scalarization, called with the weights.
        ref_point: ``k``, the reference point of the Chebyshev or the hypervolume scalarization, one value for each
            objective, in the units of the values told and with their signs. By default the origin for Chebyshev, or, if
            the kernel is learned, the best values seen.
        weights: Where the weights come from. By default :class:`InverseUniformWeights` (the paper's) for the Chebyshev
            scalarization, :class:`SphereWeights` for the hypervolume's and :class:`UniformWeights` for any other.
        signs: 1, -1 or 0 for each task: to be maximized, to be minimized, or no objective (but perhaps constrained); k
            of them are not 0. By default all tasks are maximized. Or names with words, such as
            ``{"yield": "maximize", "cost": "minimize", "purity": "at least 0.9", "color": "watch"}``.
        constraints: The pair of A, ``m x n``, and c, ``m``: the values of all n tasks should satisfy :math:`A y \le c`.
            The acquisition is weighed by the probability of that.
        repeat: Whether a choice may be asked for again. With False it is not, once it was told or while it is pending:
            for tables, where a second look shows the same.
        memory: The gigabytes that what is known of the choices may take. Mean and variances are always kept; with less
            room, what else would save time is computed anew in every round.
        seed: All randomness follows from it. A list of b seeds gives b independent trials side by side: points are
            then ``b x q x d`` and values ``b x q x n``, and the kernel may have batch shape ``b``.
        num_restarts: From how many points the acquisition is maximized, on `bounds`.
        raw_samples: From how many Sobol points these are chosen.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import MTKB, TaskSimilarityKernel
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> strategy = MTKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1)
        >>> for _ in range(3):
        ...     x = strategy.ask()
        ...     strategy.tell(x, torch.cat([x.sin(), x.cos()], dim=-1))
        >>> strategy.num_observations
        3
        >>> strategy.tell(choices[7], torch.tensor([0.07, torch.nan], dtype=torch.double), allow_missing=True)
    """

    _can_miss_values = True
    _chooses_kernel = True

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return exact_radius(self._surrogate.info_gain, norm_bound, noise_scale, eta, self.delta)


class MTBKB(BudgetedStrategy):
    r"""Multi-task budgeted kernelized bandits: MT-KB on a dictionary, for very many rounds.

    A round between two draws of the dictionary costs :math:`O(r m^2 + r N m)` on N choices, a draw
    :math:`O(u m^2)` with u the number of distinct points observed, and so does each point after the first of an
    :meth:`ask` for several. With `oversampling` from theory and the schedule ``"every_round"`` the regret is within a
    constant factor of MT-KB's (Theorem 3).

    With `refit_every` the kernel is learned from at most 500 of the observations, drawn from all of them, by their
    exact likelihood. It is learned again at every multiple of `refit_every`; from 8 times as many observations on, at
    every second one; from 16 times as many on, at every fourth; and so on. Whenever the observations double, these are
    4 refits, whose cost does not grow beyond that of 500.

    Args:
        kernel: As in :class:`MTKB`. The number of tasks stands for :func:`default_kernel` alone, which is by far the
            cheapest on a dictionary.
        epsilon: The accuracy of the dictionary that the radius counts on, in ``(0, 1)``; a smaller one needs a larger
            dictionary, but has a smaller radius.
        oversampling: The q in the probability :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)` with which a point is
            in the dictionary, 3 by default: more for accuracy, fewer for speed. :func:`theory_oversampling` gives the
            paper's for a known horizon; with None it is taken for a horizon that doubles whenever it is reached. With a
            mixture :math:`\eta` is the square of `noise_scale` here and below, whatever `eta` is.
        schedule: ``"every_round"`` draws the dictionary after each observation, as the paper does; ``"delayed"`` only
            when the norms :math:`\|\tilde\Gamma(x_s, x_s)\|` since the last draw add up to more than :math:`\eta` (an
            extension, without a multi-task theorem), which makes 100,000 rounds practical. Each observation then
            keeps its random number in all draws, and the dictionary keeps its points as long as they are most of it.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``, which may be a Dask array here.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import MTBKB, TaskSimilarityKernel
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> strategy = MTBKB(kernel, choices=choices, norm_bound=3.0, noise_scale=0.1, schedule="delayed")
        >>> for _ in range(50):
        ...     x = strategy.ask()
        ...     strategy.tell(x, torch.cat([x.sin(), x.cos()], dim=-1))
        >>> strategy.dictionary_size < 20
        True
    """

    def _make_space(self, bounds: Tensor | Inputs | None, choices: ArrayLike | None, *options: Any) -> Space:
        if bounds is None and is_dask_array(choices):
            repeat, *_ = options
            return ClusterChoices(choices, repeat)
        return super()._make_space(bounds, choices, *options)

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return nystrom_radius(self._surrogate.info_gain, norm_bound, noise_scale, eta, self.delta, self.epsilon)


class ITKB(ExactStrategy):
    r"""Independent-task kernelized bandits, the paper's baseline: nothing is learned of one task from another.

    Task j has the prior variance :math:`B_{jj} k`, the acquisition is :math:`s_\lambda(\mu_t(x)) + L_\lambda \beta_t
    \max_j \sigma_j(x)`, and the radius is GP-UCB's times :math:`\sqrt n` (:func:`independent_radius`).

    Args:
        kernel: As in :class:`MTKB`, one of ours; of every B only the diagonal is used, and not learned.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``; `norm_bound` bounds the RKHS norm
            of every single task.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import ITKB
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> ITKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1).ask().shape
        torch.Size([1, 1])
    """

    _shares_tasks = False

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        regression = self._surrogate.regression
        assert isinstance(regression, KroneckerRegression)
        return independent_radius(regression.largest_gain, self.num_tasks, norm_bound, noise_scale, eta, self.delta)


class ITBKB(BudgetedStrategy):
    r"""Independent-task budgeted kernelized bandits, the paper's baseline for :class:`MTBKB`.

    As :class:`ITKB`, on a dictionary and with BKB's radius times :math:`\sqrt n` (:func:`independent_nystrom_radius`).
    All tasks share one dictionary, drawn by the largest of their variances, so each is approximated at least as well as
    with its own.

    Args:
        kernel: As in :class:`ITKB`.
        options: The other arguments of :class:`MTBKB`, such as `choices`, ``N x d``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import ITBKB
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> ITBKB(kernel, choices=choices, norm_bound=1.0, noise_scale=0.1).ask().shape
        torch.Size([1, 1])
    """

    _shares_tasks = False

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        regression, units = self._surrogate.regression, self._surrogate.units
        prior = self._start(self._known.kernel, self._known.noise, units)
        return independent_nystrom_radius(
            regression.at(regression.train_X).norm.sum(dim=-1) / eta,
            self.num_observations,
            prior.inside(self.space.points).norm.amax(dim=-1),
            self.num_tasks,
            norm_bound,
            noise_scale,
            eta,
            self.delta,
            self.epsilon,
        )


class MOBO(ExactStrategy):
    r"""Random scalarizations with independent tasks (Paria et al. 2019), the paper's baseline.

    The acquisition is :math:`s_\lambda(\mu_t(x) + \beta_t \sigma_t(x))`, with the tasks' own standard deviations.
    Unless `radius` says otherwise, :math:`\beta_t = \sqrt{0.125 \log(2 t + 1)}` in round t, a heuristic that depends on
    the round alone: `norm_bound`, `noise_scale`, `delta` and `bound` are not used.

    Args:
        kernel: As in :class:`ITKB`.
        options: The other arguments of :class:`MTKB`, such as `choices`, ``N x d``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> from mtbo_torch.strategies import MOBO
        >>> kernel = TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.4)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> MOBO(kernel, choices=choices).ask().shape
        torch.Size([1, 1])
    """

    _shares_tasks = False

    def __init__(self, kernel: Kernel | int, **options: Unpack[KernelOptions]) -> None:
        super().__init__(kernel, **({"radius": "theory"} | options))
        self.bound = "tasks"

    @property
    def _is_proven(self) -> bool:
        return False

    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        return self.space.points.new_full(self.batch_shape, mobo_radius(self.num_observations + 1))
