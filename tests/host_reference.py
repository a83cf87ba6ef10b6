"""What a use of BoTorch should give: the same model, built from BoTorch's dense long-format ``MultiTaskGP``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models import ModelListGP, MultiTaskGP
from botorch.models.model import FantasizeMixin, Model, ModelList
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.list_sampler import ListSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import IndexKernel, Kernel, MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, MultitaskMean
from suites import close
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel, NystromMultiTaskGP
from mtbo_torch.models import MultiTaskGPModel

N, T, D, ETA = 2, 8, 2, 0.05
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
FACTOR = torch.tensor([[0.9, 0.2], [-0.6, 0.5]], dtype=torch.double)
EXTRA = torch.tensor([0.1, 0.2], dtype=torch.double)
B = FACTOR @ FACTOR.T + EXTRA.diag()  # the two tasks are correlated negatively


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def evaluate(X: Tensor) -> Tensor:
    """Two objectives that conflict."""
    return torch.stack([(4 * X[..., 0]).sin() + X[..., 1], 2 - 3 * X[..., 0] + (3 * X[..., 1]).cos()], dim=-1)


def base_kernel() -> Kernel:
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)).double()
    kernel.base_kernel.lengthscale = torch.tensor([0.4, 0.7], dtype=torch.double)
    kernel.outputscale = torch.tensor(1.3, dtype=torch.double)
    return kernel.requires_grad_(False)


def prior_mean(n: int) -> Mean:
    mean = MultitaskMean([ConstantMean().double() for _ in range(n)], num_tasks=n)
    for value, part in zip((0.3, -0.2)[:n], mean.base_means, strict=True):
        part.constant.data.fill_(value)
    return mean.requires_grad_(False)


@dataclass(frozen=True)
class Setting:
    """The data of a model and what is in front of and behind them; a model and its reference are built from one."""

    X: Tensor
    Y: Tensor
    Yvar: Tensor | None = None
    transformed: bool = False
    mean: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def transforms(self) -> dict[str, Any]:
        if not self.transformed:
            return {}
        bounds = torch.tensor([[-0.5, 0.0], [1.5, 2.0]], dtype=torch.double)
        return {
            "input_transform": Normalize(D, bounds=bounds),
            "outcome_transform": Standardize(self.Y.shape[-1], batch_shape=self.Y.shape[:-2]),
        }

    def build(self, model_class: type[MultiTaskGPModel]) -> MultiTaskGPModel:
        """Return our model; the Nystrom one has every point in its dictionary, so that it is the exact one."""
        options = self.transforms() | self.options
        options |= {"train_Yvar": self.Yvar} if self.Yvar is not None else {"eta": ETA}
        if model_class is NystromMultiTaskGP:
            options["dictionary"] = torch.arange(self.X.shape[-2])
        n = self.Y.shape[-1]
        if self.mean:
            options["mean_module"] = prior_mean(n)
        return model_class(self.X, self.Y, covar_module=ICMKernel(base_kernel(), B[:n, :n]), **options)

    def reference(self, model_class: type[MultiTaskGPModel]) -> Dense:
        """Return BoTorch's model of the same data."""
        Yvar = torch.full_like(self.Y, ETA) if self.Yvar is None else self.Yvar
        inputs, outcomes = self.transforms().get("input_transform"), self.transforms().get("outcome_transform")
        Y = self.Y
        if outcomes is not None:
            outcomes = outcomes.double()
            Y, scaled = outcomes(Y, Yvar)
            Yvar = scaled if self.Yvar is not None else Yvar
            outcomes.eval()
        X = self.X if inputs is None else inputs(self.X)
        dictionary = X if model_class is NystromMultiTaskGP else None
        return Dense(X, Y, Yvar, inputs, outcomes, self.mean, dictionary)


def setting(tasks: int = N, **changes: Any) -> Setting:
    X = seeded(T, D)
    return Setting(X, (evaluate(X) + 0.1 * seeded(T, N, seed=1))[..., :tasks], **changes)


class Dense(FantasizeMixin, Model):
    """BoTorch's ``MultiTaskGP`` on all values in long format, behind the interface of a multi-output model.

    Its joint posterior is point-major, as ours is, so that the same base samples give the same draws.

    Args:
        X: ``(b) x t x d``, behind the input transform.
        Y: ``(b) x t x n``, behind the outcome transform; NaN for values that are missing.
        Yvar: ``(b) x t x n``, behind the outcome transform.
        inputs: The input transform.
        outcomes: The outcome transform.
        mean: Whether there is a prior mean.
        dictionary: ``m x d`` points, behind the input transform. Values that were observed count with
            the part of the kernel that these span; None for all of it.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor,
        inputs: Any,
        outcomes: Any,
        mean: bool,
        dictionary: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.X, self.Y, self.Yvar, self.inputs, self.outcomes, self.mean = X, Y, Yvar, inputs, outcomes, mean
        self.dictionary = dictionary
        n = Y.shape[-1]
        values, variances = Y.flatten(-2), Yvar.flatten(-2)
        seen = ~values.isnan().reshape(-1, values.shape[-1]).any(dim=0)
        points, values, variances = _long(X, n)[..., seen, :], values[..., seen], variances[..., seen]
        first = (0,) * len(self.batch_shape)  # the constructor takes one data set only
        self.gp = MultiTaskGP(
            points[first].detach(),
            values[first].detach().unsqueeze(-1),
            task_feature=D,
            train_Yvar=variances[first].unsqueeze(-1),
            mean_module=prior_mean(n),
            covar_module=base_kernel(),
            outcome_transform=None,
            all_tasks=list(range(n)),
        )
        if not mean:
            for part in self.gp.mean_module.base_means:
                part.constant.data.zero_()
        tasks = IndexKernel(num_tasks=n, rank=n, active_dims=[D]).double()
        tasks.covar_factor.data.copy_(torch.linalg.cholesky((FACTOR @ FACTOR.T)[:n, :n]))
        tasks.var = EXTRA[:n]
        self.gp.covar_module.kernels[1] = tasks
        self.gp.set_train_data(points, values, strict=False)
        self.gp.likelihood.noise = variances
        self.gp.eval().requires_grad_(False)

    @property
    def likelihood(self) -> Any:
        return None  # whose noise `fantasize` would otherwise take for that of one output

    @property
    def num_outputs(self) -> int:
        return self.Y.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        return self.X.shape[:-2]

    @property
    def train_inputs(self) -> tuple[Tensor]:
        return (self.X if self.inputs is None else self.inputs.untransform(self.X),)

    def transform_inputs(self, X: Tensor, input_transform: Any = None) -> Tensor:
        return X if self.inputs is None else self.inputs(X)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        mean, covariance = self.joint(X)
        if observation_noise is not False:
            noise = self.Yvar.nanmean(dim=-2, keepdim=True) if observation_noise is True else observation_noise
            covariance = covariance + torch.diag_embed(noise.expand(mean.shape).flatten(-2))
        posterior = GPyTorchPosterior(_normal(mean, covariance))
        if self.outcomes is not None:
            posterior = self.outcomes.untransform_posterior(posterior)
        posterior = posterior if output_indices is None else _pick(posterior, output_indices)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and covariance, ``... x q x n`` and ``... x qn x qn``, behind the outcome transform."""
        X = _long(self.transform_inputs(X), self.num_outputs)
        if self.dictionary is None:
            found = self.gp.posterior(X).distribution
            mean, covariance = found.mean, found.covariance_matrix
        else:
            mean, covariance = self._spanned(X)
        return mean.unflatten(-1, (-1, self.num_outputs)), covariance

    def _spanned(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and covariance if values observed count with the dictionary's part of the kernel."""
        points, kernel = self.gp.train_inputs[0], self.gp.covar_module
        atoms = _long(self.dictionary, self.num_outputs)
        root = torch.linalg.cholesky(kernel(atoms).to_dense())
        here, there = (
            torch.linalg.solve_triangular(root, kernel(atoms, Z).to_dense(), upper=False) for Z in (X, points)
        )
        observed = there.mT @ there + torch.diag_embed(self.gp.likelihood.noise)
        cross = here.mT @ there
        rest = (self.gp.train_targets - self.gp.forward(points).mean).unsqueeze(-1)
        mean = self.gp.forward(X).mean + (cross @ torch.linalg.solve(observed, rest)).squeeze(-1)
        return mean, kernel(X).to_dense() - cross @ torch.linalg.solve(observed, cross.mT)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.batch_shape)
        Y = Y if self.outcomes is None else self.outcomes(Y)[0]
        noise = self.Yvar.nanmean(dim=-2, keepdim=True).expand(Y.shape) if noise is None else noise.expand(Y.shape)
        pairs = (self.X, self.transform_inputs(X)), (self.Y, Y), (self.Yvar, noise)
        grown = [torch.cat([part.expand(*shape, *part.shape[-2:]) for part in pair], dim=-2) for pair in pairs]
        return type(self)(*grown, self.inputs, self.outcomes, self.mean, self.dictionary)

    def subset_output(self, idcs: list[int]) -> _Subset:
        return _Subset(self, idcs)


class _Subset(Model):
    """Some outputs of another model."""

    def __init__(self, whole: Model, idcs: list[int]) -> None:
        super().__init__()
        self.whole, self.idcs = whole, idcs

    @property
    def num_outputs(self) -> int:
        return len(self.idcs)

    @property
    def batch_shape(self) -> torch.Size:
        return self.whole.batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        picked = self.idcs if output_indices is None else [self.idcs[i] for i in output_indices]
        return self.whole.posterior(X, picked, observation_noise, posterior_transform)


class DenseList(ModelList):
    """A list of such models: as in BoTorch's ``ModelListGP``, no covariance between outputs is kept."""

    @property
    def batch_shape(self) -> torch.Size:
        return self.models[0].batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        wanted = range(self.num_outputs) if output_indices is None else output_indices
        X = X[0] if isinstance(X, list) else X
        noises = [observation_noise] * len(self.models)
        if isinstance(observation_noise, Tensor):
            noises = list(observation_noise.split([model.num_outputs for model in self.models], dim=-1))
        parts = [
            _pick(model.posterior(X, observation_noise=noise), [i]).distribution
            for model, noise in zip(self.models, noises, strict=True)
            for i in range(model.num_outputs)
        ]
        means = torch.stack([parts[i].mean for i in wanted], dim=-1)
        blocks = torch.stack([parts[i].covariance_matrix for i in wanted], dim=-3)
        if len(wanted) == 1:
            posterior = GPyTorchPosterior(MultivariateNormal(means.squeeze(-1), blocks.squeeze(-3)))
        else:
            joint = _block_diagonal(blocks)
            posterior = GPyTorchPosterior(MultitaskMultivariateNormal(means, joint, interleaved=False))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        return (torch.stack([model.train_inputs[0] for model in self.models]),)

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any) -> DenseList:
        samplers = sampler.samplers if isinstance(sampler, ListSampler) else [sampler] * len(self.models)
        sizes = [model.num_outputs for model in self.models]
        noises = [None] * len(sizes) if observation_noise is None else observation_noise.split(sizes, dim=-1)
        parts = zip(self.models, samplers, noises, strict=True)
        return DenseList(*(model.fantasize(X, part, noise) for model, part, noise in parts))

    def condition_on_observations(self, X: Any, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> DenseList:
        X = X[0] if isinstance(X, list) else X
        sizes = [model.num_outputs for model in self.models]
        noises = noise.split(sizes, dim=-1) if isinstance(noise, Tensor) else [None] * len(sizes)
        parts = zip(self.models, Y.split(sizes, dim=-1), noises, strict=True)
        return DenseList(*(model.condition_on_observations(X, y, variances) for model, y, variances in parts))


def _long(X: Tensor, n: int) -> Tensor:
    """Return ``... x qn x (d + 1)``: every point once for each task, with the task as its last feature."""
    tasks = torch.arange(n, dtype=X.dtype).repeat(X.shape[-2]).unsqueeze(-1)
    return torch.cat([X.repeat_interleave(n, dim=-2), tasks.expand(*X.shape[:-2], -1, 1)], dim=-1)


def _pick(posterior: Posterior, outputs: Sequence[int]) -> GPyTorchPosterior:
    found = posterior.distribution
    mean, covariance = posterior.mean, found.covariance_matrix
    q, n = mean.shape[-2:]
    rows = torch.tensor([[i * n + j % n for j in outputs] for i in range(q)]).flatten()
    mean, covariance = mean[..., list(outputs)], covariance[..., rows, :][..., rows]
    return GPyTorchPosterior(_normal(mean, covariance))


def _normal(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    if mean.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), covariance)
    return MultitaskMultivariateNormal(mean, covariance)


def _block_diagonal(blocks: Tensor) -> Tensor:
    n, q = blocks.shape[-3], blocks.shape[-1]
    joint = torch.zeros(*blocks.shape[:-3], n, q, n, q, dtype=blocks.dtype)
    for j in range(n):
        joint[..., j, :, j, :] = blocks[..., j, :, :]
    return joint.reshape(*blocks.shape[:-3], n * q, n * q)


@dataclass(frozen=True)
class Kind:
    """A kind of model: how to build it and its reference, and how close the two should be."""

    name: str
    model_class: type[MultiTaskGPModel]
    tolerance: float
    is_list: bool = False
    tasks: int = N

    def __str__(self) -> str:
        return self.name

    def make(self, given: Setting) -> Any:
        if not self.is_list:
            return given.build(self.model_class)
        return ModelListGP(given.build(self.model_class), other(given).build(self.model_class))

    def reference(self, given: Setting) -> Any:
        if not self.is_list:
            return given.reference(self.model_class)
        return DenseList(given.reference(self.model_class), other(given).reference(self.model_class))

    def pair(self, **changes: Any) -> tuple[Any, Any]:
        """Return the model and its reference."""
        given = setting(self.tasks, **changes)
        return self.make(given), self.reference(given)

    @property
    def num_outputs(self) -> int:
        return 2 * self.tasks if self.is_list else self.tasks

    @property
    def weights(self) -> Tensor:
        return torch.tensor([0.7, -0.4, 0.5, 0.3], dtype=torch.double)[: self.num_outputs]

    def values(self, X: Tensor) -> Tensor:
        """Return values at some points, such as could be observed."""
        Y = evaluate(X)[..., : self.tasks]
        return torch.cat([Y, 0.5 - Y.flip(-1)], dim=-1) if self.is_list else Y


def other(given: Setting) -> Setting:
    """Other values at the same points, for the second model in a list."""
    return Setting(given.X, 0.5 - given.Y.flip(-1), given.Yvar, given.transformed, given.mean, given.options)


EXACT = Kind("exact", ExactMultiTaskGP, 1e-9)
NYSTROM = Kind("nystrom", NystromMultiTaskGP, 1e-6)
EXACT_LIST = Kind("list of exact", ExactMultiTaskGP, 1e-9, is_list=True)
NYSTROM_LIST = Kind("list of nystrom", NystromMultiTaskGP, 1e-6, is_list=True)
ONE_EXACT = Kind("exact, one task", ExactMultiTaskGP, 1e-9, tasks=1)
ONE_NYSTROM = Kind("nystrom, one task", NystromMultiTaskGP, 1e-6, tasks=1)
ONES_EXACT = Kind("list of exact, one task each", ExactMultiTaskGP, 1e-9, is_list=True, tasks=1)
ONES_NYSTROM = Kind("list of nystrom, one task each", NystromMultiTaskGP, 1e-6, is_list=True, tasks=1)
SINGLE, LISTS = [EXACT, NYSTROM], [EXACT_LIST, NYSTROM_LIST]
ONE_TASK, LISTS_OF_ONES = [ONE_EXACT, ONE_NYSTROM], [ONES_EXACT, ONES_NYSTROM]


def same_posterior(actual: Posterior, expected: Posterior, tolerance: float) -> None:
    """Compare means, variances, the joint covariance and draws from the same base samples."""
    assert actual.mean.shape == expected.mean.shape
    close(actual.mean, expected.mean, tolerance)
    close(actual.variance, expected.variance, tolerance)
    mine, other = actual.distribution, expected.distribution
    assert getattr(mine, "_interleaved", True) == getattr(other, "_interleaved", True)
    close(mine.covariance_matrix, other.covariance_matrix, tolerance)


def same_gradient(function: Callable[[Tensor], Tensor], X: Tensor, tolerance: float = 1e-6) -> None:
    """Compare the derivative in a random direction with central differences; one that is zero says nothing."""
    direction = torch.randn(X.shape, generator=torch.Generator().manual_seed(2), dtype=X.dtype)
    X, step = X.clone().requires_grad_(True), 1e-5
    (gradient,) = torch.autograd.grad(function(X).sum(), X)
    assert gradient.isfinite().all()
    stencil = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
    X = X.detach()
    expected = sum(weight * function(X + shift * step * direction).detach().sum() for shift, weight in stencil) / step
    assert expected.abs() > 1e-4
    close((gradient * direction).sum(), expected, tolerance)
