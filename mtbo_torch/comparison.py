"""Does multi-task help on my data? Compare kernels by how well they predict each point from the others."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from mtbo_torch.checks import require_data
from mtbo_torch.display import format_html_table, format_text_table, progress_bar
from mtbo_torch.kernels import (
    ICMKernel,
    IndependentKernel,
    MultiTaskKernel,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    default_kernel,
    num_tasks_of,
    require_takes,
)
from mtbo_torch.linalg import NotPositiveDefiniteError
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.models.learning import count_parameters, learn_kernel, make_transforms, standardize

# Smaller differences of log densities are not reliable, whatever their standard error (Sivula et al. 2020, "Uncertainty
# in Bayesian leave-one-out cross-validation based model comparison"): a fit that stopped early already causes them.
SMALLEST_CLEAR = 4.0
FEWEST_POINTS = 5
# Smaller than in `learn_kernel`, because sums of separable kernels approach their optimum slowly.
SMALLEST_GAIN = 1e-6
FAILURES = (ModelFittingError, NotPositiveDefiniteError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
MISSING_HINT = "Pass allow_missing=True if NaN stands for a value that was not seen."
EMPTY_REMEDY = "Pass a dict of names and multi-task kernels, or None for the usual four."


@dataclass(frozen=True, eq=False)
class ComparedKernel:
    r"""A fitted kernel and how well it predicts: a row of a :class:`KernelComparison`.

    Attributes:
        name: The name of the kernel.
        log_density: :math:`\sum_s \log p(y_s | Y_{-s})`, the log density of the values observed at a point, given the
            values at all other points, summed over the points.
        difference: `log_density` minus the `log_density` of the reference.
        standard_error: :math:`\sqrt t` times the standard deviation of the differences point by point.
        log_marginal_likelihood: The log density of all values together, without priors on hyperparameters.
        num_parameters: The number of learned parameters, including the noise.
        log_densities: ``t``, the terms of `log_density`; NaN for a point without values.
        model: The fitted model, in the units of the data.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from mtbo_torch import ICMKernel, compare_kernels
        >>> X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
        >>> Y = torch.cat([X, X.square()], dim=-1)
        >>> row = compare_kernels(X, Y, [ICMKernel(RBFKernel(), torch.eye(2))]).best
        >>> row.name, row.difference, row.num_parameters  # a lengthscale, and two noises
        ('ICMKernel', 0.0, 3)
        >>> row.log_densities.shape
        torch.Size([8])
    """

    name: str
    log_density: float
    difference: float
    standard_error: float
    log_marginal_likelihood: float
    num_parameters: int
    log_densities: Tensor = field(repr=False)
    model: ExactMultiTaskGP = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class KernelComparison:
    """The result of :func:`compare_kernels`, shown as a table when printed and in Jupyter.

    Attributes:
        rows: One row per kernel, in decreasing order of leave-one-out log density.
        reference: The row that the others are compared with.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from mtbo_torch import ICMKernel, IndependentKernel, compare_kernels
        >>> X = torch.linspace(0, 1, 4, dtype=torch.double).unsqueeze(-1)
        >>> apart, shared = IndependentKernel([RBFKernel()] * 2), ICMKernel(RBFKernel(), torch.ones(2, 2))
        >>> comparison = compare_kernels(X, torch.cat([X, -X], dim=-1), {"apart": apart, "shared": shared})
        >>> comparison.best.name, comparison.reference.name  # the tasks are opposites of each other
        ('apart', 'apart')
        >>> comparison.verdict
        '4 points of 2 tasks are too few to tell.'
    """

    rows: tuple[ComparedKernel, ...]
    reference: ComparedKernel

    @property
    def best(self) -> ComparedKernel:
        """The row with the largest leave-one-out log density."""
        return self.rows[0]

    @property
    def verdict(self) -> str:
        """The conclusion in one sentence.

        A difference is clear if it exceeds 4 and twice its standard error after subtracting one for each additional
        parameter of the better kernel: that is how much a learned parameter flatters a kernel (Akaike 1974).
        """
        others = [row for row in self.rows if row is not self.reference]
        if not others:
            return f"Only {self.reference.name} was compared."
        t, n = self._num_points, self.reference.model.num_outputs
        unseen = self.reference.model.train_targets.isnan()
        missing = int(unseen[~unseen.all(dim=-1)].sum())
        if t * n - missing < n * max(FEWEST_POINTS, n + 3):  # so few points nearly lie on a line in the space of values
            gaps = f", with {missing} values missing," if missing else ""
            return f"{t} points of {n} tasks{gaps} are too few to tell."
        sharing = [row for row in others if not _is_independent(row.model.covar_module)]
        is_about_sharing = bool(sharing) and _is_independent(self.reference.model.covar_module)
        candidates = sharing if is_about_sharing else others
        row = max(candidates, key=lambda row: row.difference - max(0, self._count_surplus(row)))
        surplus = self._count_surplus(row) if row.difference > 0 else -self._count_surplus(row)
        is_clear = abs(row.difference) - max(0, surplus) > max(SMALLEST_CLEAR, 2 * row.standard_error)
        answer = "No clear difference"
        if is_clear and is_about_sharing:
            answer = "Multi-task helps" if row.difference > 0 else "Multi-task does not help"
        elif is_clear:
            answer = "A clear difference"
        size = f"{abs(row.difference):.1f} ± {row.standard_error:.1f} in leave-one-out log density"
        place = f"{'ahead of' if row.difference >= 0 else 'behind'} {self.reference.name}"
        more = f", with {surplus} more parameters" if row.difference > 0 and surplus > 1 else ""
        return f"{answer}: {row.name} is {place} by {size}{more}."

    def _count_surplus(self, row: ComparedKernel) -> int:
        return row.num_parameters - self.reference.num_parameters

    def __repr__(self) -> str:
        return "\n".join([format_text_table(list(self._make_rows())), "", self._explanation, self.verdict])

    def _repr_html_(self) -> str:
        table = format_html_table(list(self._make_rows()))
        return f"{table}\n<p>{html.escape(self._explanation)}</p>\n<p><b>{html.escape(self.verdict)}</b></p>"

    def _make_rows(self) -> Iterator[tuple[str, ...]]:
        yield "kernel", "leave-one-out", f"to {self.reference.name}", "marginal likelihood", "parameters"
        for row in self.rows:
            is_reference = row is self.reference
            difference = "" if is_reference else f"{row.difference:+.1f} ± {row.standard_error:.1f}"
            densities = f"{row.log_density:.1f}", difference, f"{row.log_marginal_likelihood:.1f}"
            yield row.name, *densities, str(row.num_parameters)

    @property
    def _explanation(self) -> str:
        return f"Log densities in the units of train_Y; ± is a standard error over {self._num_points} points."

    @property
    def _num_points(self) -> int:
        """The number of points with values."""
        return int((~self.reference.log_densities.isnan()).sum())


def compare_kernels(
    train_X: Tensor,
    train_Y: Tensor,
    kernels: Mapping[str, Kernel] | Sequence[Kernel] | None = None,
    allow_missing: bool = False,
) -> KernelComparison:
    r"""Fit several kernels to the data, and compare how well they predict left-out points.

    Every kernel is fitted by maximum likelihood, with a learned noise for each task, on inputs scaled to the unit
    cube and standardized values. Then the values observed at each point are predicted jointly from all other points, in
    closed form (:meth:`ExactMultiTaskGP.leave_one_out`). The score is the sum of the log densities of the observed
    values. Unlike the marginal likelihood, it hardly depends on how vague the prior is. The hyperparameters are learned
    from all points, which favors kernels with many hyperparameters if there are few points.

    By default four kernels are compared, each with BoTorch's RBF kernel with one lengthscale per input:

    * ICM: :math:`k B` with a full-rank B
    * similarity: :math:`s k (\omega I + (1 - \omega) 1 1^T / n)`, with :math:`\omega` learned
    * sum of separable: :math:`k_0 w w^T + diag(s_1 k_1, \dots, s_n k_n)`, a shared part and a part for each
      task. It works on the ``nt x nt`` matrix, and takes longer than all others together
    * independent tasks: :math:`diag(s_1 k_1, \dots, s_n k_n)`

    If a kernel cannot be fitted, it is omitted with a warning.

    Args:
        train_X: ``t x d``, with t >= 2.
        train_Y: ``t x n``.
        kernels: Multi-task kernels by name, or a list of kernels, which are named after their classes. Copies are
            fitted. The reference is the first kernel with independent tasks, or else the first of all.
        allow_missing: Whether values may be NaN, for tasks that were not observed at a point.

    Returns:
        A :class:`KernelComparison`; print it. The fitted models are in its rows, such as ``comparison.best.model``.

    Raises:
        ModelFittingError: If no kernel could be fitted.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from mtbo_torch import ICMKernel, IndependentKernel, compare_kernels
        >>> X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
        >>> noise = torch.tensor([[0.1, -0.1], [-0.1, 0.1]], dtype=torch.double).repeat(4, 1)
        >>> Y = torch.cat([(6 * X).sin(), 5 - (6 * X).sin()], dim=-1) + noise
        >>> kernels = {"ICM": ICMKernel(RBFKernel(), num_tasks=2), "apart": IndependentKernel([RBFKernel()] * 2)}
        >>> comparison = compare_kernels(X, Y, kernels)  # print(comparison) shows the table
        >>> comparison.verdict.split(":")[0]
        'Multi-task helps'
        >>> comparison.best.model.posterior(X).mean.shape
        torch.Size([8, 2])
    """
    require_data(train_X, train_Y, None, allow_missing=allow_missing, hint=MISSING_HINT)
    if train_X.dim() != 2 or len(train_X) < 2:
        raise ValueError(
            f"train_X should be `t x d` with t >= 2 points, got shape {tuple(train_X.shape)}. "
            "Pass one data set, with at least two rows."
        )
    num_seen = int((~train_Y.isnan()).any(dim=-1).sum())
    if num_seen < 2:
        raise ValueError(f"train_Y should have values in at least two rows, got {num_seen}. Observe more points.")
    train_X, train_Y = train_X.detach(), train_Y.detach()
    if kernels is None:
        named: Mapping[str, Kernel] = _make_default_kernels(train_X, train_Y)
    else:
        named = _resolve_names(kernels, train_X, train_Y.shape[-1])
    fitted = []
    with progress_bar(len(named), "fitting", unit="kernel") as bar:
        for name, kernel in named.items():
            bar.set_description(f"fitting {name}")
            try:
                fitted.append(_fit(name, deepcopy(kernel), train_X, train_Y, allow_missing))
            except FAILURES as error:
                warnings.warn(
                    f"The kernel {name!r} could not be fitted to {len(train_X)} points and is omitted: {error}",
                    stacklevel=2,
                )
            bar.update(1)
    if not fitted:
        raise ModelFittingError(f"None of the kernels ({', '.join(named)}) could be fitted. See the warnings.")
    independent = [row for row in fitted if _is_independent(row.model.covar_module)]
    reference = (independent or fitted)[0]
    compared = {row.name: _compare_with(row, reference) for row in fitted}
    rows = sorted(compared.values(), key=lambda row: row.log_density, reverse=True)
    return KernelComparison(tuple(rows), compared[reference.name])


def _make_default_kernels(X: Tensor, Y: Tensor) -> dict[str, MultiTaskKernel]:
    d, n = X.shape[-1], Y.shape[-1]

    def make_rbf() -> Kernel:
        return get_covar_module_with_dim_scaled_prior(ard_num_dims=d)

    def make_independent() -> IndependentKernel:
        return IndependentKernel([ScaleKernel(make_rbf()) for _ in range(n)])

    shared = ICMKernel(make_rbf(), num_tasks=n, rank=1)
    # Start with the signs of the correlations: from equal signs the search may end in a lower local maximum.
    standardized = standardize(X, Y).scale_values(Y).nan_to_num(nan=0.0)  # the mean for what is missing
    main_direction = torch.linalg.eigh(standardized.mT.cov().reshape(n, n)).eigenvectors[:, -1:]
    shared.initialize(task_factor=torch.where(main_direction < 0, -1.0, 1.0))
    return {
        "ICM": default_kernel(n, d),
        "similarity": TaskSimilarityKernel(ScaleKernel(make_rbf()), n),
        "sum of separable": SumOfSeparableKernel([shared, make_independent()]),
        "independent tasks": make_independent(),
    }


def _resolve_names(kernels: object, X: Tensor, num_tasks: int) -> dict[str, Kernel]:
    """Check the user's kernels, and return them by name."""
    if not isinstance(kernels, Mapping | Sequence) or isinstance(kernels, str) or len(kernels) == 0:
        raise ValueError(f"kernels should be a non-empty dict or list of kernels, got {kernels!r}. {EMPTY_REMEDY}")
    if isinstance(kernels, Mapping):
        named = dict(kernels)
        if not all(isinstance(name, str) for name in named):
            raise ValueError(f"kernels should have names that are strings, got {list(named)!r}. {EMPTY_REMEDY}")
    else:
        names = [type(kernel).__name__ for kernel in kernels]
        if len(set(names)) < len(names):
            raise ValueError(
                f"kernels should be told apart by their names, got a list with the classes {', '.join(names)}. "
                "Pass a dict with a name for each."
            )
        named = dict(zip(names, kernels, strict=True))
    for name, kernel in named.items():
        label = f"kernels[{name!r}]"
        count = num_tasks_of(label, kernel)
        if count != num_tasks:
            raise ValueError(
                f"{label} should be for {num_tasks} tasks (from train_Y), got {count}. "
                f"Build it for {num_tasks}, or pass one column of train_Y per task."
            )
        if kernel.batch_shape:
            raise ValueError(
                f"{label} should be one kernel, got the batch shape {tuple(kernel.batch_shape)}. Compare kernel[0]."
            )
        require_takes(label, deepcopy(kernel).to(X), X)
    return named


def _fit(name: str, kernel: Kernel, X: Tensor, Y: Tensor, allow_missing: bool) -> ComparedKernel:
    model = ExactMultiTaskGP(X, Y, kernel, **make_transforms(standardize(X, Y)), allow_missing=allow_missing)
    learn_kernel(model, SMALLEST_GAIN, is_careful=True)
    with torch.no_grad():
        log_densities = _compute_log_densities(Y, *model.leave_one_out())
        marginal = model.log_marginal_likelihood()
    if not torch.isfinite(log_densities).all():
        raise ModelFittingError("its predictions are not finite.")
    total, count = log_densities.sum().item(), count_parameters(model)
    log_densities = log_densities.masked_fill(Y.isnan().all(dim=-1), torch.nan)
    return ComparedKernel(name, total, 0.0, 0.0, marginal.item(), count, log_densities, model)


def _compute_log_densities(Y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return ``t``, the log density of what was observed in each row of ``t x n`` values; zero where nothing was."""
    seen = ~Y.isnan()
    # An entry that is zero with variance one adds nothing.
    residual = torch.where(seen, Y - mean, 0).double()
    alone = torch.eye(Y.shape[-1], dtype=torch.double, device=Y.device)
    chol = torch.linalg.cholesky(torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), covariance.double(), alone))
    whitened = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False).squeeze(-1)
    logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return -(whitened.square().sum(dim=-1) + logdet + seen.double().sum(dim=-1) * math.log(2 * math.pi)) / 2


def _compare_with(row: ComparedKernel, reference: ComparedKernel) -> ComparedKernel:
    differences = row.log_densities - reference.log_densities
    differences = differences[~differences.isnan()]
    error = differences.std().item() * math.sqrt(len(differences))
    return replace(row, difference=differences.sum().item(), standard_error=error)


def _is_independent(kernel: Kernel) -> bool:
    """Return True if the tasks of a kernel are independent and stay so when the kernel is learned."""
    if not isinstance(kernel, MultiTaskKernel):
        return False
    return all(not B.requires_grad and not (B - B.diagonal().diag()).any() for _, B in kernel.terms())
