"""MT-KB (Algorithm 1) as ask and tell."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.optim import optimize_acqf
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import ScalarizedMultiTaskUCB, scalarized_ucb
from mtbo_torch.checks import require_bounds, require_choices, require_data, require_positive, require_probability
from mtbo_torch.confidence import exact_radius
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.regression import Followed, Regression
from mtbo_torch.scalarizations import (
    ChebyshevScalarization,
    InverseUniformWeights,
    Scalarization,
    UniformWeights,
    WeightDistribution,
)


class MTKB:
    r"""Multi-task kernelised bandits: optimise several correlated objectives from few noisy evaluations.

    Each round draws weights :math:`\lambda`, maximises :math:`s_\lambda(\mu_t(x)) + L_\lambda \beta_t
    \|\Gamma_t(x, x)\|^{1/2}`, and learns from the answer. On finite `choices` a round costs :math:`O(r t^2 + N t)`,
    on `bounds` the acquisition is maximised by BoTorch's ``optimize_acqf``. All objectives are maximised.

    Args:
        kernel: The multi-task kernel :math:`\Gamma`. The strategy keeps a copy.
        bounds: ``2 x d``, a box to search; or
        choices: ``N x d``, the points that may be chosen.
        norm_bound: A bound b of the objective's RKHS norm.
        noise_scale: The noise's sub-Gaussian constant :math:`\sigma`, such as its standard deviation.
        eta: The regulariser.
        delta: The probability with which the confidence bound may fail.
        scalarization: The class of scalarisation, called with the weights.
        weights: Where the weights come from. By default :class:`InverseUniformWeights` (the paper's) for the Chebyshev
            scalarisation and :class:`UniformWeights` for any other.
        seed: All randomness follows from it.
        num_restarts: For ``optimize_acqf``, on `bounds` only.
        raw_samples: For ``optimize_acqf``, on `bounds` only.

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
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        bounds: Tensor | None = None,
        choices: Tensor | None = None,
        norm_bound: float,
        noise_scale: float,
        eta: float = 0.1,
        delta: float = 0.1,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        weights: WeightDistribution | None = None,
        seed: int = 0,
        num_restarts: int = 10,
        raw_samples: int = 256,
    ) -> None:
        if (bounds is None) == (choices is None):
            raise ValueError(
                f"MTKB should get either bounds or choices, got {'neither' if bounds is None else 'both'}. "
                "Pass bounds (2 x d) to search a box, or choices (N x d) to search a finite set."
            )
        if bounds is not None:
            require_bounds(bounds)
        else:
            require_choices("choices", choices)
        require_positive("norm_bound", norm_bound, "Pass a bound of the objective's RKHS norm.", allow_zero=True)
        require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
        require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
        if not (isinstance(scalarization, type) and issubclass(scalarization, Scalarization)):
            raise ValueError(
                f"scalarization should be a class such as ChebyshevScalarization, got {scalarization!r}. "
                "Every round builds one with weights of its own."
            )
        space = bounds if bounds is not None else choices
        assert space is not None
        self.bounds, self.choices = bounds, choices
        self.norm_bound, self.noise_scale, self.eta, self.delta = norm_bound, noise_scale, eta, delta
        self.num_restarts, self.raw_samples = num_restarts, raw_samples
        self.scalarization = scalarization
        prior = _prior(kernel, eta, space)
        self.num_tasks = prior.num_outputs
        if weights is None:
            is_chebyshev = issubclass(scalarization, ChebyshevScalarization)
            weights = (InverseUniformWeights if is_chebyshev else UniformWeights)(self.num_tasks)
        if weights.num_tasks != self.num_tasks:
            raise ValueError(
                f"weights should be for {self.num_tasks} tasks (from the kernel), got {weights.num_tasks}. "
                f"Build them with num_tasks={self.num_tasks}."
            )
        self.weights = weights
        self._generator = torch.Generator().manual_seed(seed)
        self._batch_sizes: list[int] = []
        self._asked_weights = space.new_empty(0, self.num_tasks)
        self._prior = prior
        self._state = self._start(prior)

    @property
    def train_X(self) -> Tensor:
        """``t x d``, the points told so far."""
        return self._regression.train_X

    @property
    def train_Y(self) -> Tensor:
        """``t x n``, the values told so far."""
        return self._regression.train_Y

    @property
    def num_observations(self) -> int:
        """The number of points told so far."""
        return self._regression.num_observations

    @property
    def asked_weights(self) -> Tensor:
        """``q x n``, the weights behind the points of the last :meth:`ask`; ``0 x n`` before the first."""
        return self._asked_weights

    @property
    def model(self) -> ExactMultiTaskGP:
        """The posterior given everything told, as a BoTorch model."""
        return self._prior.with_regression(self._regression)

    @property
    def radius(self) -> Tensor:
        r"""The current :math:`\beta_t`."""
        return exact_radius(self._regression.info_gain, self.norm_bound, self.noise_scale, self.eta, self.delta)

    def ask(self, q: int = 1) -> Tensor:
        """The next ``q x d`` points to evaluate.

        Every point has weights of its own. Points after the first take those before them as if their values had
        been the mean: the variance shrinks there, so they spread.
        """
        if not isinstance(q, int) or q < 1:
            raise ValueError(f"q should be an integer >= 1, got {q!r}. Ask for at least one point.")
        space = self._space
        weights = self.weights.sample(q, generator=self._generator).to(space)
        scalarizations = [self.scalarization(w) for w in weights]
        with torch.no_grad():
            radius = self.radius
        search = self._search_choices if self.choices is not None else self._search_box
        points = search(scalarizations, radius)
        self._asked_weights = weights
        return points

    def tell(self, x: Tensor, y: Tensor) -> None:
        """Learn the values at some points, proposed or not; a refused call changes nothing.

        Args:
            x: ``q x d``, or ``d`` for one point.
            y: ``q x n``, or ``n`` for one point.
        """
        x, y = self._checked(x, y)
        with torch.no_grad():
            state = self._state.append(x, y)
        self._state = state
        self._batch_sizes.append(x.shape[-2])

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; safe for ``torch.save`` and ``torch.load(weights_only=True)``."""
        return {
            "settings": self._settings(),
            "kernel": deepcopy(self._prior.covar_module.state_dict()),
            "train_X": self.train_X.clone(),
            "train_Y": self.train_Y.clone(),
            "batch_sizes": list(self._batch_sizes),
            "asked_weights": self._asked_weights.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a strategy built with the same arguments.

        The observations are told again in the same portions, which repeats the same arithmetic. A refused state
        changes nothing.
        """
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(f"state_dict should come from MTKB.state_dict(), got one without {sorted(missing)}.")
        ours, theirs = self._settings(), state_dict["settings"]
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if different:
            raise ValueError(
                "state_dict should come from a strategy with the same settings, got other values of "
                + ", ".join(f"{key} ({theirs.get(key)} there, {ours.get(key)} here)" for key in different)
                + ". Build the strategy with the arguments it was saved with."
            )
        fresh = deepcopy(self._prior)
        fresh.covar_module.load_state_dict(state_dict["kernel"])
        X, Y, sizes = (
            state_dict["train_X"].to(self._space),
            state_dict["train_Y"].to(self._space),
            state_dict["batch_sizes"],
        )
        require_data(X, Y, self.num_tasks)
        generator = torch.Generator()
        generator.set_state(state_dict["generator"])
        state = self._start(fresh)
        with torch.no_grad():
            for x, y in zip(X.split(sizes), Y.split(sizes), strict=True):
                state = state.append(x, y)
        self._prior, self._state, self._batch_sizes = fresh, state, list(sizes)
        self._generator, self._asked_weights = generator, state_dict["asked_weights"]

    @property
    def _space(self) -> Tensor:
        space = self.bounds if self.bounds is not None else self.choices
        assert space is not None
        return space

    @property
    def _regression(self) -> Regression:
        return self._state.regression if isinstance(self._state, Followed) else self._state

    def _start(self, prior: ExactMultiTaskGP) -> Followed | Regression:
        return prior.regression if self.choices is None else prior.regression.follow(self.choices)

    def _search_choices(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        assert self.choices is not None
        assert isinstance(self._state, Followed)
        followed, chosen = self._state, []
        with torch.no_grad():
            for scalarization in scalarizations:
                mean, norm = followed.mean_and_norm()
                index = self._argmax(scalarized_ucb(mean, norm, scalarization, radius))
                chosen.append(self.choices[index])
                if len(chosen) < len(scalarizations):
                    followed = followed.append(chosen[-1], mean[index])
        return torch.cat(chosen)

    def _argmax(self, values: Tensor) -> Tensor:
        """One of the maximisers, at random: before the first observation every choice is one."""
        best = (values == values.max()).nonzero().flatten()
        return best[torch.randint(len(best), (1,), generator=self._generator).to(best.device)]

    def _search_box(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        model, points = self.model, self._space.new_empty(0, self._space.shape[-1])
        for scalarization in scalarizations:
            acqf = ScalarizedMultiTaskUCB(model, scalarization, radius, X_pending=points if len(points) else None)
            seed = int(torch.randint(2**31, (1,), generator=self._generator))
            with manual_seed(seed), warnings.catch_warnings():
                # Before the first observation the acquisition may be flat: every point is a maximiser.
                warnings.simplefilter("ignore", BadInitialCandidatesWarning)
                best, _ = optimize_acqf(
                    acqf,
                    bounds=self._space,
                    q=1,
                    num_restarts=self.num_restarts,
                    raw_samples=self.raw_samples,
                    options={"seed": seed},
                )
            points = torch.cat([points, best])
        return points

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(x, Tensor) and x.dim() == 1:
            x = x.unsqueeze(0)
        if isinstance(y, Tensor) and y.dim() == 1:
            y = y.unsqueeze(0)
        require_data(x, y, self.num_tasks, names=("x", "y"))
        d = self._space.shape[-1]
        if x.dim() != 2 or x.shape[-1] != d or x.shape[-2] == 0:
            raise ValueError(
                f"x should be `q x d` with d = {d} and at least one row, got shape {tuple(x.shape)}. "
                "Pass one row per point."
            )
        if x.dtype != self._space.dtype or x.device != self._space.device:
            raise ValueError(
                f"x should have the dtype and device of the search space ({self._space.dtype}, {self._space.device}), "
                f"got {x.dtype} on {x.device}. Use x.to(bounds) or x.to(choices)."
            )
        return x.detach(), y.detach()

    def _settings(self) -> dict[str, Any]:
        return {
            "strategy": type(self).__name__,
            "num_tasks": self.num_tasks,
            "space": "bounds" if self.bounds is not None else "choices",
            "space_shape": list(self._space.shape),
            "dtype": str(self._space.dtype),
            "norm_bound": float(self.norm_bound),
            "noise_scale": float(self.noise_scale),
            "eta": float(self.eta),
            "delta": float(self.delta),
            "scalarization": self.scalarization.__name__,
            "weights": type(self.weights).__name__,
            "num_restarts": self.num_restarts,
            "raw_samples": self.raw_samples,
        }


def _prior(kernel: Kernel, eta: float, space: Tensor) -> ExactMultiTaskGP:
    if not isinstance(kernel, Kernel) or not hasattr(kernel, "num_tasks"):
        raise ValueError(
            f"kernel should be a multi-task kernel, got {type(kernel).__name__}. "
            "Pass for instance TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.5)."
        )
    no_X = space.new_empty(0, space.shape[-1])
    no_Y = space.new_empty(0, int(kernel.num_tasks))
    return ExactMultiTaskGP(no_X, no_Y, covar_module=deepcopy(kernel), eta=eta)
