r"""Multi-task kernels :math:`\Gamma(x, x') \in R^{n \times n}` as GPyTorch kernels.

Every kernel here is a sum of separable terms, :math:`\Gamma(x, x') = \sum_j k_j(x, x') B_j`, and says so through
:meth:`MultiTaskKernel.terms`. The terms are what the regression exploits.

Matrices are point-major: entry ``(i n + a, j n + b)`` is the covariance of task ``a`` at ``x_i`` with task ``b`` at
``x_j``, that is ``kron(K, B)``, and pairs with ``train_Y.reshape(-1)``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Real
from operator import add
from typing import Any

import gpytorch
import torch
from botorch.models.kernels import CategoricalKernel
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.priors import LogNormalPrior
from linear_operator import to_linear_operator
from linear_operator.operators import DenseLinearOperator, KroneckerProductLinearOperator, LinearOperator
from torch import Tensor

from mtbo_torch.checks import (
    require_broadcast,
    require_count,
    require_finite,
    require_same_kind,
    require_task_covar,
    require_tensor,
)
from mtbo_torch.linalg import is_free_to_look
from mtbo_torch.regression import IndependentTasks, MatrixKernel, ScalarKernel, SeparableSum

__all__ = ["ICMKernel", "IndependentKernel", "MultiTaskKernel", "SumOfSeparableKernel", "TaskSimilarityKernel"]
__all__ += ["TaskwiseKernel", "candidate_kernels", "default_kernel", "estimate_task_covar"]

NO_BATCH = torch.Size()
# Where the learning of two scales starts: from lengthscales that are so much longer and shorter than those of one, and
# with so much of the variance in the shorter ones.
SLOW, FAST_SHARE = 1.5, 0.4


class MultiTaskKernel(Kernel):
    r"""The base of all multi-task kernels here: :math:`\Gamma(x, x') = \sum_j k_j(x, x') B_j \in R^{n \times n}`.

    For a kernel of your own, set ``num_tasks`` and say the terms.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from mtbo_torch.kernels import MultiTaskKernel
        >>> class Opposites(MultiTaskKernel):
        ...     num_tasks = 2
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.base_kernel = RBFKernel()
        ...     def terms(self):
        ...         return [(self.base_kernel, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))]
        >>> Opposites()(torch.zeros(1, 1)).to_dense().detach()
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """

    num_tasks: int

    def __getitem__(self, index: Any) -> Kernel:
        parts = getattr(self, "kernels", None)
        if parts is None:
            return super().__getitem__(index)
        selected = deepcopy(self)  # GPyTorch's own way does not see into a list of kernels
        selected.kernels = torch.nn.ModuleList([kernel[index] for kernel in parts])
        return selected

    @abstractmethod
    def terms(self) -> list[tuple[Kernel, Tensor]]:
        """Return the pairs ``(k_j, B_j)``, with ``B_j`` of shape ``(b) x n x n``."""

    def independent(self) -> MultiTaskKernel:
        r"""Return the same tasks without what they share, :math:`\sum_j k_j(x, x') diag(B_j)`, as a new kernel.

        The :math:`k_j` are copied, and learned if they were to be learned; the :math:`B_j` stay as they are.
        """
        parts = [
            ICMKernel(deepcopy(k), torch.diag_embed(B.detach().diagonal(dim1=-2, dim2=-1))) for k, B in self.terms()
        ]
        if len(parts) > 1:
            return SumOfSeparableKernel(parts, active_dims=self.active_dims)
        parts[0].active_dims = self.active_dims
        return parts[0]

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        """n, whatever the ``(b) x N x d`` points."""
        return self.num_tasks

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor | LinearOperator:
        """Return ``(b) x N1 n x N2 n``, point-major, or its diagonal ``(b) x N n``; behind ``kernel(x1, x2)``.

        Args:
            x1: ``(b) x N1 x d``.
            x2: ``(b) x N2 x d``.
            diag: Whether only the diagonal is wanted.
            last_dim_is_batch: Has to be False.
            params: For the scalar kernels.
        """
        if last_dim_is_batch:
            raise ValueError(
                f"{type(self).__name__} does not take last_dim_is_batch=True. "
                "Give it to the base kernel, for instance through an additive base kernel."
            )
        if diag:
            return reduce(add, [_kron_diag(k(x1, x2, diag=True, **params), B) for k, B in self.terms()])
        return reduce(add, [_kron(k(x1, x2, **params), B) for k, B in self.terms()])


def _kron(covar: LinearOperator, task_covar: Tensor) -> KroneckerProductLinearOperator:
    task_covar = task_covar.to(covar.dtype)
    batch_shape = torch.broadcast_shapes(covar.shape[:-2], task_covar.shape[:-2])
    return KroneckerProductLinearOperator(
        to_linear_operator(covar).expand(*batch_shape, *covar.shape[-2:]),
        DenseLinearOperator(task_covar.expand(*batch_shape, *task_covar.shape[-2:])),
    )


def _kron_diag(variances: Tensor, task_covar: Tensor) -> Tensor:
    task_variances = task_covar.to(variances.dtype).diagonal(dim1=-2, dim2=-1)
    return (variances.unsqueeze(-1) * task_variances.unsqueeze(-2)).flatten(-2)


class ICMKernel(MultiTaskKernel):
    r"""The intrinsic coregionalization model :math:`\Gamma(x, x') = k(x, x') B` (paper, Section 2).

    k says how alike two points are, B how alike two tasks are: :math:`B_{ab} > 0` if they rise and fall together,
    :math:`B_{ab} < 0` if they are in conflict. B is either given and then fixed, or learned as :math:`B = W W^T` with W
    of shape ``n x rank`` (``kernel.task_factor``), which starts from tasks that are unrelated where the rank allows.

    Args:
        base_kernel: The scalar kernel :math:`k`, any GPyTorch kernel, with its own `active_dims` and batch shape.
        task_covar: ``(b) x n x n``, symmetric positive semi-definite, perhaps singular. It stays as it is.
        num_tasks: The number of tasks n, in place of `task_covar`, when that is to be learned.
        rank: The rank of the learned B, from 1 to n; n by default.
        active_dims: The inputs that are used; all by default.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ICMKernel
        >>> B = torch.tensor([[1.0, -0.5], [-0.5, 1.0]])
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), task_covar=B)
        >>> kernel(torch.rand(3, 1)).shape
        torch.Size([6, 6])
    """

    def __init__(
        self,
        base_kernel: Kernel,
        task_covar: Tensor | None = None,
        *,
        num_tasks: int | None = None,
        rank: int | None = None,
        active_dims: tuple[int, ...] | None = None,
    ) -> None:
        _require_scalar_kernel("base_kernel", base_kernel)
        if (task_covar is None) == (num_tasks is None):
            raise ValueError(
                "ICMKernel should get either task_covar (fixed) or num_tasks (to learn it), got "
                f"{'neither' if task_covar is None else 'both'}. Pass exactly one of them."
            )
        if task_covar is not None:
            if rank is not None:
                raise ValueError(
                    f"rank should only be given together with num_tasks, got rank={rank} beside a fixed task_covar. "
                    "Leave rank out, or pass num_tasks to learn a B of this rank."
                )
            require_task_covar("task_covar", task_covar)
            num_tasks = task_covar.shape[-1]
            batch_shape = _common_batch("task_covar", task_covar.shape[:-2], base_kernel)
            super().__init__(batch_shape=batch_shape, active_dims=active_dims)
            self.base_kernel = base_kernel
            fixed = task_covar.detach().expand(*batch_shape, num_tasks, num_tasks).clone()
            self.register_buffer("_fixed_task_covar", fixed)
        else:
            assert num_tasks is not None
            require_count("num_tasks", num_tasks, "Pass the number of tasks.")
            rank = num_tasks if rank is None else rank
            if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= num_tasks:
                raise ValueError(
                    f"rank should lie between 1 and num_tasks = {num_tasks}, got {rank}. "
                    "Leave it out for a B of full rank."
                )
            super().__init__(batch_shape=base_kernel.batch_shape, active_dims=active_dims)
            self.base_kernel = base_kernel
            # Task i starts on factor i mod rank: unit variances, and no row of W is zero.
            start = torch.eye(rank)[torch.arange(num_tasks) % rank]
            parameter = torch.nn.Parameter(start.expand(*self.batch_shape, num_tasks, rank).clone())
            self.register_parameter("task_factor", parameter)
        self.num_tasks = num_tasks

    @property
    def task_covar(self) -> Tensor:
        """B, of shape ``(b) x n x n``, given or learned."""
        fixed = getattr(self, "_fixed_task_covar", None)
        return self.task_factor @ self.task_factor.mT if fixed is None else fixed

    def terms(self) -> list[tuple[Kernel, Tensor]]:
        return [(self.base_kernel, self.task_covar)]


class TaskSimilarityKernel(MultiTaskKernel):
    r"""All tasks equally similar: :math:`\Gamma(x, x') = k(x, x') (\omega I + (1 - \omega) 1 1^T / n)`.

    At :math:`\omega = 1` the tasks are unrelated, at :math:`\omega = 0` they are one and the same function. The task
    matrix has only two distinct eigenvalues, 1 and :math:`\omega`, so fitting costs two factorizations whatever n is.

    Args:
        base_kernel: The scalar kernel :math:`k`.
        num_tasks: The number of tasks n.
        omega: A number in ``[0, 1]``, or ``(b)`` of them. It stays as it is. If not given, it is learned, from 0.5; the
            task matrix has no scale of its own, so pass a ``ScaleKernel`` to learn that too.
        active_dims: As in :class:`ICMKernel`.

    Example:
        >>> import gpytorch
        >>> from mtbo_torch import TaskSimilarityKernel
        >>> TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.5).task_covar.tolist()
        [[0.75, 0.25], [0.25, 0.75]]
    """

    def __init__(
        self,
        base_kernel: Kernel,
        num_tasks: int,
        omega: float | Tensor | None = None,
        *,
        active_dims: tuple[int, ...] | None = None,
    ) -> None:
        _require_scalar_kernel("base_kernel", base_kernel)
        require_count("num_tasks", num_tasks, "Pass the number of tasks.")
        value = None if omega is None else _similarity(omega)
        batch_shape = base_kernel.batch_shape
        if value is not None:
            batch_shape = _common_batch("omega", value.shape, base_kernel)
        super().__init__(batch_shape=batch_shape, active_dims=active_dims)
        self.base_kernel = base_kernel
        self.num_tasks = num_tasks
        if value is not None:
            # Not through register_buffer, which refuses the name of a property.
            self._buffers["omega"] = value.detach().expand(batch_shape).clone()
        else:
            self.register_parameter("raw_omega", torch.nn.Parameter(torch.zeros(batch_shape)))
            self.register_constraint("raw_omega", Interval(0.0, 1.0))

    @property
    def omega(self) -> Tensor:
        """``(b)``, the similarity, given or learned."""
        given = self._buffers.get("omega")
        return self.raw_omega_constraint.transform(self.raw_omega) if given is None else given

    @omega.setter
    def omega(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_omega).clamp(1e-4, 1 - 1e-4)  # no fit starts from an end
        self.initialize(raw_omega=self.raw_omega_constraint.inverse_transform(value))

    @property
    def task_covar(self) -> Tensor:
        """``omega I + (1 - omega) 1 1^T / n``, of shape ``(b) x n x n``."""
        omega = self.omega[..., None, None]
        eye = torch.eye(self.num_tasks, dtype=omega.dtype, device=omega.device)
        return omega * eye + (1 - omega) / self.num_tasks

    def terms(self) -> list[tuple[Kernel, Tensor]]:
        return [(self.base_kernel, self.task_covar)]


class SumOfSeparableKernel(MultiTaskKernel):
    r"""A sum of multi-task kernels, :math:`\Gamma(x, x') = \sum_j k_j(x, x') B_j`.

    So tasks can share their long waves, say, and not the short ones. If the :math:`B_j` commute, the regression solves
    one scalar problem for each common eigenvector; otherwise it works on the full ``nt x nt`` matrix.

    Args:
        kernels: Multi-task kernels over the same tasks, such as :class:`ICMKernel`; each selects its inputs in its base
            kernel.
        active_dims: As in :class:`ICMKernel`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from mtbo_torch import ICMKernel, SumOfSeparableKernel
        >>> B1, B2 = torch.eye(2), torch.ones(2, 2)
        >>> kernel = SumOfSeparableKernel([ICMKernel(RBFKernel(), B1), ICMKernel(MaternKernel(), B2)])
        >>> kernel(torch.rand(3, 1)).shape
        torch.Size([6, 6])
    """

    def __init__(self, kernels: Sequence[MultiTaskKernel], *, active_dims: tuple[int, ...] | None = None) -> None:
        _require_sequence("kernels", kernels)
        for index, kernel in enumerate(kernels):
            if not isinstance(kernel, MultiTaskKernel):
                raise ValueError(
                    f"kernels[{index}] should be a multi-task kernel, got {type(kernel).__name__}. "
                    "Wrap a scalar kernel as ICMKernel(kernel, task_covar)."
                )
            if kernel.num_tasks != kernels[0].num_tasks:
                raise ValueError(
                    f"kernels should all have the same number of tasks, got {kernels[0].num_tasks} in kernels[0] and "
                    f"{kernel.num_tasks} in kernels[{index}]. Use task matrices of one size."
                )
            if kernel.active_dims is not None:
                raise ValueError(
                    f"kernels[{index}] should select its inputs in its base kernel, got active_dims on "
                    f"{type(kernel).__name__}. Pass active_dims to the base kernel instead."
                )
        require_broadcast("The batches of kernels", *[kernel.batch_shape for kernel in kernels])
        super().__init__(active_dims=active_dims)
        self.kernels = torch.nn.ModuleList(kernels)
        self.num_tasks = kernels[0].num_tasks

    def terms(self) -> list[tuple[Kernel, Tensor]]:
        kernels: Iterable[Any] = self.kernels
        return [term for kernel in kernels for term in kernel.terms()]


class IndependentKernel(MultiTaskKernel):
    r"""Tasks that share nothing: :math:`\Gamma(x, x') = diag(k_1(x, x'), \dots, k_n(x, x'))`.

    Args:
        kernels: One scalar kernel per task. The same object may be repeated; it is then evaluated only once.
        active_dims: As in :class:`ICMKernel`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from mtbo_torch import IndependentKernel
        >>> kernel = IndependentKernel([RBFKernel(), MaternKernel()])
        >>> kernel(torch.zeros(1, 1)).to_dense().detach()  # no covariance between the tasks
        tensor([[1., 0.],
                [0., 1.]])
    """

    def __init__(self, kernels: Sequence[Kernel], *, active_dims: tuple[int, ...] | None = None) -> None:
        _require_sequence("kernels", kernels)
        for index, kernel in enumerate(kernels):
            _require_scalar_kernel(f"kernels[{index}]", kernel)
        super().__init__(active_dims=active_dims)
        self.kernels = torch.nn.ModuleList(kernels)
        self.num_tasks = len(kernels)
        self.register_buffer("_task_selectors", torch.diag_embed(torch.eye(self.num_tasks)), persistent=False)

    def terms(self) -> list[tuple[Kernel, Tensor]]:
        return list(zip(self.kernels, self._task_selectors, strict=True))


class TaskwiseKernel(MultiTaskKernel):
    r"""Tasks that share nothing, with kernels of one kind: :math:`\Gamma(x, x') = diag(k_1(x, x'), \dots, k_n(x, x'))`.

    It equals an :class:`IndependentKernel` of n kernels, but all tasks are evaluated and learned at once.

    Args:
        base_kernel: A scalar kernel of batch shape ``(b) x n``: the parameters of each task.
        active_dims: As in :class:`ICMKernel`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from mtbo_torch.kernels import TaskwiseKernel
        >>> base = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([3]))
        >>> kernel = TaskwiseKernel(base)
        >>> kernel.num_tasks, base.lengthscale.shape  # two lengthscales for each of three tasks
        (3, torch.Size([3, 1, 2]))
    """

    def __init__(self, base_kernel: Kernel, *, active_dims: tuple[int, ...] | None = None) -> None:
        _require_scalar_kernel("base_kernel", base_kernel)
        if not base_kernel.batch_shape:
            raise ValueError(
                "base_kernel should have a batch dimension for the tasks, got a kernel without. "
                "Build it with batch_shape=torch.Size([n])."
            )
        super().__init__(active_dims=active_dims)
        self.base_kernel = base_kernel
        self.num_tasks = base_kernel.batch_shape[-1]
        selectors = torch.diag_embed(torch.eye(self.num_tasks))
        self.register_buffer("_task_selectors", selectors, persistent=False)

    @property
    def batch_shape(self) -> torch.Size:
        """``(b)``, without the tasks."""
        return self.base_kernel.batch_shape[:-1]

    def __getitem__(self, index: Any) -> Kernel:
        if not self.batch_shape:
            return self
        selected = deepcopy(self)  # GPyTorch's own way would take the tasks for a batch
        selected.base_kernel = self.base_kernel[index]
        return selected

    def terms(self) -> list[tuple[Kernel, Tensor]]:
        return [(_KernelOfTask(self.base_kernel, i), selector) for i, selector in enumerate(self._task_selectors)]

    def independent(self) -> TaskwiseKernel:
        """Return a copy: the tasks share nothing."""
        return deepcopy(self)


class _KernelOfTask(Kernel):
    """The kernel of one task out of those that are evaluated at once."""

    def __init__(self, kernels: Kernel, task: int) -> None:
        super().__init__()
        self.kernels, self.task = kernels, task

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernels.batch_shape[:-1]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        values = self.kernels(x1.unsqueeze(-3), x2.unsqueeze(-3), diag=diag, **params)
        return values.select(-2, self.task) if diag else values.to_dense().select(-3, self.task)


def default_kernel(
    num_tasks: int, num_inputs: int, batch_shape: torch.Size = NO_BATCH, categories: Sequence[int] = ()
) -> ICMKernel:
    """Return the kernel to be learned when none is given: BoTorch's RBF kernel, and a B of full rank.

    For inputs that are categories, it is multiplied by BoTorch's kernel for these.

    It has one lengthscale per input.

    The lengthscales have BoTorch's prior, which is meant for inputs in the unit cube and grows with their number.

    Args:
        num_tasks: The number of tasks n.
        num_inputs: The number of inputs d.
        batch_shape: ``(b)``, to learn a kernel for each data set of a batch.
        categories: The places of the inputs whose values have no order.

    Example:
        >>> from mtbo_torch.kernels import default_kernel
        >>> default_kernel(num_tasks=2, num_inputs=3).base_kernel.lengthscale.shape
        torch.Size([1, 3])
    """
    require_count("num_inputs", num_inputs, "Pass the number of inputs d.")
    if not isinstance(batch_shape, torch.Size):
        raise ValueError(f"batch_shape should be a torch.Size, got {batch_shape!r}. Pass for instance torch.Size([2]).")
    return ICMKernel(_make_base(num_inputs, batch_shape, categories), num_tasks=num_tasks)


def candidate_kernels(
    num_tasks: int, num_inputs: int, batch_shape: torch.Size = NO_BATCH, categories: Sequence[int] = ()
) -> dict[str, MultiTaskKernel]:
    r"""Return the kernels from which data can choose when none is given, by name.

    * shared: :func:`default_kernel`, :math:`k B`
    * shared, two scales: :math:`(k + s k') B`, with lengthscales for slow and others for fast changes
    * own: :math:`diag(s_1 k_1, \dots, s_n k_n)`, each task with lengthscales of its own
    * own, two scales: :math:`diag(s_1 k_1 + s_1' k_1', \dots)`

    All lengthscales have BoTorch's prior. A single task has nothing to share, and has the first two only.

    Args:
        num_tasks: The number of tasks n.
        num_inputs: The number of inputs d.
        batch_shape: ``(b)``, to learn a kernel for each data set of a batch.
        categories: The places of the inputs whose values have no order.

    Example:
        >>> from mtbo_torch.kernels import candidate_kernels
        >>> list(candidate_kernels(num_tasks=2, num_inputs=3))
        ['shared', 'shared, two scales', 'own', 'own, two scales']
    """
    shared = default_kernel(num_tasks, num_inputs, batch_shape, categories)
    slow, fast = (_make_base(num_inputs, batch_shape, categories, stretch) for stretch in (SLOW, 1 / SLOW))
    both = AdditiveKernel(slow, _scale(fast, FAST_SHARE))
    candidates: dict[str, MultiTaskKernel] = {
        "shared": shared,
        "shared, two scales": ICMKernel(both, num_tasks=num_tasks),
    }
    if num_tasks == 1:
        return candidates
    each = torch.Size([*batch_shape, num_tasks])
    slow, fast = (_make_base(num_inputs, each, categories, stretch) for stretch in (SLOW, 1 / SLOW))
    both = AdditiveKernel(_scale(slow, 1.0), _scale(fast, FAST_SHARE))
    return candidates | {
        "own": TaskwiseKernel(_scale(_make_base(num_inputs, each, categories), 1.0)),
        "own, two scales": TaskwiseKernel(both),
    }


def _make_base(
    num_inputs: int, batch_shape: torch.Size, categories: Sequence[int] = (), stretch: float = 1.0
) -> Kernel:
    """Return BoTorch's RBF kernel, to be learned from lengthscales that are stretched, times one for categories."""
    others = [place for place in range(num_inputs) if place not in categories]
    parts: list[Kernel] = []
    if others:
        active = tuple(others) if categories else None
        rbf = get_covar_module_with_dim_scaled_prior(len(others), batch_shape=batch_shape, active_dims=active)
        rbf.lengthscale = stretch * rbf.lengthscale.detach()
        parts.append(rbf)
    if categories:
        # At its mode, values of two categories have the correlation exp(-1 / 2), if there is one such input.
        prior = LogNormalPrior(loc=math.log(2 / len(categories)) + 1, scale=1.0)
        parts.append(
            CategoricalKernel(
                ard_num_dims=len(categories),
                batch_shape=batch_shape,
                active_dims=tuple(categories),
                lengthscale_prior=prior,
                lengthscale_constraint=GreaterThan(0.01, transform=None, initial_value=prior.mode),
            )
        )
    return parts[0] if len(parts) == 1 else ProductKernel(*parts)


def _scale(kernel: Kernel, start: float) -> ScaleKernel:
    scaled = ScaleKernel(kernel, batch_shape=kernel.batch_shape)
    scaled.outputscale = start
    return scaled


def num_tasks_of(name: str, kernel: object) -> int:
    """Return the number of tasks of any multi-task kernel of GPyTorch; refuse everything else.

    Args:
        name: What the error calls the argument.
        kernel: One of ours, or one of GPyTorch's own such as ``MultitaskKernel``.
    """
    one_point = torch.zeros(1, 1)
    count = kernel.num_outputs_per_input(one_point, one_point) if isinstance(kernel, Kernel) else 0
    if not count or (count == 1 and not hasattr(kernel, "num_tasks")):
        raise ValueError(
            f"{name} should be a multi-task kernel, got {type(kernel).__name__}. "
            "Wrap a scalar kernel as ICMKernel(kernel, task_covar)."
        )
    return count


def require_takes(name: str, kernel: Kernel, X: Tensor) -> None:
    """Refuse a kernel that was built for another number of inputs than that of ``(b) x t x d`` points."""
    try:
        with torch.no_grad():
            kernel(X.new_zeros(1, X.shape[-1])).to_dense()
    except (IndexError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ValueError(
            f"{name} should take points with d = {X.shape[-1]} inputs, got: {reason} Build it for as many inputs."
        ) from error


def shared_parameter(kernel: Kernel, batch_shape: torch.Size) -> str | None:
    """Return the name of a parameter to be learned that the data sets of a batch would have to share, or None.

    Args:
        kernel: The kernel.
        batch_shape: ``(b)``.
    """
    taskwise = [part for part in kernel.modules() if isinstance(part, TaskwiseKernel)]
    sizes = {inner: (part.num_tasks,) for part in taskwise for inner in part.base_kernel.modules()}
    for path, part in kernel.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            is_batched = parameter.shape[: len(batch_shape)] == batch_shape
            if isinstance(part, Kernel):  # a task factor may look like a batch
                is_batched &= part.batch_shape == (*batch_shape, *sizes.get(part, ()))
            if parameter.requires_grad and not is_batched:
                return f"{path}.{name}" if path else name
    return None


def describe_kernel(kernel: Kernel) -> list[list[Any]]:
    """Return everything that tells a kernel from others, part by part, as plain values.

    A part is its path, its class, its settings, the numbers it holds, and the names of those that can be learned.

    Args:
        kernel: Any GPyTorch kernel.
    """
    parts = []
    for path, part in kernel.named_modules():
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(part).items()
            if name != "training" and (name == "_batch_shape" or not name.startswith("_"))
            if value is None or isinstance(value, bool | int | float | str | tuple)
        }
        tensors = {**dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}
        numbers = {name: value.detach().double().tolist() for name, value in tensors.items()}
        learned = sorted(name for name, value in tensors.items() if value.requires_grad)
        parts.append([path, f"{type(part).__module__}.{type(part).__qualname__}", settings, numbers, learned])
    return parts


def estimate_task_covar(readings: Tensor, gram: Tensor) -> Tensor:
    r"""Estimate B from held-out readings as the paper does, :math:`B = R^T K^{-1} R / m` (Section 6).

    Taking out what the places explain leaves what the tasks share. It maximizes the likelihood of
    :math:`R \sim N(0, K \otimes B)`.

    Args:
        readings: ``m x n``, R, the values of all tasks at m places, with mean zero.
        gram: ``m x m``, K, the kernel between the places, positive definite: with a nugget if places are close.

    Returns:
        ``n x n``, for :class:`ICMKernel`; singular if m < n.

    Raises:
        ValueError: If `gram` is singular in the precision at hand.

    Example:
        >>> import torch
        >>> from mtbo_torch.kernels import estimate_task_covar
        >>> estimate_task_covar(torch.tensor([[1.0], [3.0]]), 2 * torch.eye(2))
        tensor([[2.5000]])
    """
    readings = require_tensor("readings", readings, "Pass one row per reading.")
    gram = require_tensor("gram", gram, "Pass the kernel matrix of the readings' places.")
    require_same_kind(("readings", readings), ("gram", gram))
    if readings.dim() != 2 or readings.numel() == 0 or gram.shape != (len(readings), len(readings)):
        raise ValueError(
            f"readings and gram should be `m x n` and `m x m`, got shapes {tuple(readings.shape)} and "
            f"{tuple(gram.shape)}. Pass one row per reading."
        )
    require_finite("readings", readings)
    require_finite("gram", gram)
    chol, info = torch.linalg.cholesky_ex(gram)
    if info.any():
        raise ValueError("gram should be positive definite, got a singular one. Add a nugget to its diagonal.")
    whitened = torch.linalg.solve_triangular(chol, readings, upper=False)
    return whitened.mT @ whitened / len(readings)


def _require_scalar_kernel(name: str, kernel: object) -> None:
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"{name} should be a gpytorch.kernels.Kernel, got {type(kernel).__name__}. "
            "Pass for instance gpytorch.kernels.RBFKernel()."
        )
    one_point = torch.zeros(1, 1)
    if kernel.num_outputs_per_input(one_point, one_point) != 1:
        raise ValueError(
            f"{name} should be a scalar kernel, got {type(kernel).__name__} with several outputs per input. "
            "Add multi-task kernels with SumOfSeparableKernel([...])."
        )


def _similarity(omega: object) -> Tensor:
    if isinstance(omega, bool) or not isinstance(omega, Real | Tensor):
        raise ValueError(f"omega should be a number in [0, 1], got {omega!r}. Use 1 for unrelated tasks.")
    value = torch.tensor(float(omega), dtype=torch.double) if isinstance(omega, Real) else omega
    value = require_tensor("omega", value, "Use 1 for unrelated tasks.")
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError(
            f"omega should lie in [0, 1], got {omega}. Use 1 for unrelated tasks and 0 for identical ones."
        )
    return value


def _common_batch(name: str, shape: torch.Size, base_kernel: Kernel) -> torch.Size:
    try:
        return torch.broadcast_shapes(shape, base_kernel.batch_shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} should have a batch shape that broadcasts with {tuple(base_kernel.batch_shape)} (from "
            f"base_kernel), got {tuple(shape)}. Build base_kernel with batch_shape={tuple(shape)}."
        ) from error


def _require_sequence(name: str, kernels: object) -> None:
    if not isinstance(kernels, Sequence) or isinstance(kernels, str) or len(kernels) == 0:
        raise ValueError(f"{name} should be a non-empty list of kernels, got {kernels!r}. Pass at least one kernel.")


def adapt_kernel(kernel: Kernel, num_tasks: int) -> MatrixKernel:
    """Return a multi-task kernel as the regression takes it: as a sum of separable terms if it is one of ours."""
    if not isinstance(kernel, MultiTaskKernel):
        return MatrixAdapter(kernel, num_tasks)
    if isinstance(kernel, TaskwiseKernel):
        return IndependentTasks(ScalarAdapter(kernel.base_kernel, kernel.active_dims), kernel.num_tasks)
    merged: dict[int, tuple[Kernel, Tensor]] = {}
    for base, task_covar in kernel.terms():  # k B1 + k B2 = k (B1 + B2)
        known = merged.get(id(base))
        merged[id(base)] = (base, task_covar if known is None else known[1] + task_covar)
    adapters = tuple(ScalarAdapter(base, kernel.active_dims) for base, _ in merged.values())
    return SeparableSum(adapters, tuple(task_covar for _, task_covar in merged.values()))


class ScalarAdapter:
    """A scalar GPyTorch kernel ``k`` as plain tensors."""

    def __init__(self, kernel: Kernel, active_dims: Tensor | None) -> None:
        self.kernel = kernel
        self.active_dims = active_dims

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        X1, X2 = self._select(X1), self._select(X2)
        if X1.requires_grad and _is_plain(self.kernel):
            return _evaluate_plain(self.kernel, X1, X2)
        if X1.requires_grad and X1.shape == X2.shape and X1.numel() and not is_free_to_look(X1):
            # GPyTorch compares as many points with as many others, which waits for the device: so one more.
            return self._evaluate(torch.cat([X1, X1[..., :1, :]], dim=-2), X2)[..., :-1, :]
        return self._evaluate(X1, X2)

    def _evaluate(self, X1: Tensor, X2: Tensor) -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X1, X2).to_dense()

    def diag(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)``, ``(b) x N``, at ``(b) x N x d`` points."""
        variance = _constant_variance(self.kernel)
        if variance is None:
            return self.kernel(self._select(X), diag=True)
        return variance.to(X).unsqueeze(-1) + torch.zeros_like(X[..., 0])

    def pick(self, trials: Tensor, own_dims: int) -> ScalarKernel:
        """Return the kernel of some data sets, ``k`` places, where it has `own_dims` more dimensions for each."""
        shape = self.kernel.batch_shape
        if len(shape) <= own_dims or shape[-1 - own_dims] == 1:
            return self
        return PickedKernel(self, trials, shape[-1 - own_dims], -3 - own_dims)

    def _select(self, X: Tensor) -> Tensor:
        return X if self.active_dims is None else X.index_select(-1, self.active_dims)


@dataclass(frozen=True)
class PickedKernel:
    """A scalar kernel with parameters for each data set, for some of them: it is evaluated for all.

    Attributes:
        kernel: The kernel.
        trials: ``k``, the places of the data sets.
        count: The number of all data sets.
        dim: Their dimension, in points and in values.
    """

    kernel: ScalarKernel
    trials: Tensor
    count: int
    dim: int

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.kernel(self._spread(X1), self._spread(X2)).index_select(self.dim, self.trials)

    def diag(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)``, ``k x N``, at ``k x N x d`` points."""
        return self.kernel.diag(self._spread(X)).index_select(self.dim + 1, self.trials)

    def pick(self, trials: Tensor, own_dims: int) -> ScalarKernel:
        """Return the kernel of some of these data sets."""
        return replace(self, trials=self.trials[trials])

    def _spread(self, X: Tensor) -> Tensor:
        return spread_trials(X, self.trials, self.count, self.dim)


def spread_trials(X: Tensor, trials: Tensor, count: int, dim: int) -> Tensor:
    """Return points of some data sets at their places among all, with zeros for the others."""
    if X.dim() < -dim:  # the same for all
        return X
    shape = list(X.shape)
    shape[dim] = count
    return X.new_zeros(shape).index_copy(dim, trials, X)


def _constant_variance(kernel: Kernel) -> Tensor | None:
    """Return ``k(x, x)``, ``(b)``, where it is known to be the same for all points, else None.

    GPyTorch's own way compares the points with themselves, which waits for the device in every acquisition.
    """
    if type(kernel) in (RBFKernel, MaternKernel, CategoricalKernel):
        return kernel.raw_lengthscale.new_ones(kernel.batch_shape)
    if type(kernel) is ScaleKernel:
        inner = _constant_variance(kernel.base_kernel)
        return None if inner is None else kernel.outputscale * inner
    if type(kernel) in (AdditiveKernel, ProductKernel):
        parts = [_constant_variance(part) for part in kernel.kernels]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return reduce(torch.add if type(kernel) is AdditiveKernel else torch.mul, known)
    return None


def _is_plain(kernel: Kernel) -> bool:
    """Return whether a kernel is a combination of RBF and category kernels without anything to be learned."""
    if type(kernel) in (RBFKernel, CategoricalKernel):
        return not kernel.raw_lengthscale.requires_grad
    if kernel.active_dims is not None:
        return False
    if type(kernel) is ScaleKernel:
        return not kernel.raw_outputscale.requires_grad and _is_plain(kernel.base_kernel)
    return type(kernel) in (AdditiveKernel, ProductKernel) and all(map(_is_plain, kernel.kernels))


def _evaluate_plain(kernel: Kernel, X1: Tensor, X2: Tensor) -> Tensor:
    if type(kernel) is RBFKernel:
        return _rbf(kernel, X1, X2)
    if type(kernel) is ScaleKernel:
        return kernel.outputscale[..., None, None] * _evaluate_plain(kernel.base_kernel, X1, X2)
    if type(kernel) is CategoricalKernel:  # no gradient leads from one category to another
        return kernel(X1.detach(), X2).to_dense()
    combine = torch.add if type(kernel) is AdditiveKernel else torch.mul
    return reduce(combine, [_evaluate_plain(part, X1, X2) for part in kernel.kernels])


def _rbf(kernel: RBFKernel, X1: Tensor, X2: Tensor) -> Tensor:
    """Evaluate the RBF kernel with a gradient in `X1` alone.

    GPyTorch's clamps, divides and compares its inputs, which makes its gradient cost half as much again as the whole
    acquisition on top of it, and waits for the device. Here the exponent is one product. Rounding makes it positive
    where points that are equal lie many lengthscales from the others, so it is cut off at zero.
    """
    if kernel.active_dims is not None:
        X1, X2 = X1.index_select(-1, kernel.active_dims), X2.index_select(-1, kernel.active_dims)
    if X2.shape[-2]:
        center = X2.mean(dim=-2, keepdim=True)  # far from the origin, squares would swallow the differences
        X1, X2 = X1 - center, X2 - center
    X1, X2 = X1 / kernel.lengthscale, X2 / kernel.lengthscale
    half1, half2 = (-X.square().sum(dim=-1, keepdim=True) / 2 for X in (X1, X2))
    left = torch.cat([X1, half1, torch.ones_like(half1)], dim=-1)
    right = torch.cat([X2, torch.ones_like(half2), half2], dim=-1)
    return (left @ right.mT).clamp_max(0).exp_()


class MatrixAdapter(MatrixKernel):
    """Any GPyTorch kernel with several outputs per input as plain tensors."""

    def __init__(self, kernel: Kernel, num_tasks: int) -> None:
        self.kernel = kernel
        self.num_tasks = num_tasks

    def pick(self, trials: Tensor) -> MatrixKernel:
        return self if self.kernel.batch_shape.numel() == 1 else PickedMatrixKernel(self, trials)

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        rows, columns = (self.num_tasks * X.shape[-2] for X in (X1, X2))
        if not rows or not columns:  # not every kernel of GPyTorch knows what to do
            batch_shape = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2], self.kernel.batch_shape)
            return X1.new_zeros(*batch_shape, rows, columns)
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X1, X2).to_dense()

    def blocks(self, X: Tensor) -> Tensor:
        batch_shape = torch.broadcast_shapes(X.shape[:-2], self.kernel.batch_shape)
        if not X.shape[-2]:
            return X.new_zeros(*batch_shape, 0, self.num_tasks, self.num_tasks)
        # One point per batch entry, with the points in front so that the kernel's own batch shape stays in place.
        points = X.expand(*batch_shape, *X.shape[-2:]).movedim(-2, 0).unsqueeze(-2)
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(points).to_dense().movedim(0, -3)


@dataclass(frozen=True)
class PickedMatrixKernel(MatrixKernel):
    """A kernel with parameters for each data set, for ``k`` of them: it is evaluated for all."""

    whole: MatrixAdapter
    trials: Tensor

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.whole(self._spread(X1), self._spread(X2)).index_select(-3, self.trials)

    def blocks(self, X: Tensor) -> Tensor:
        return self.whole.blocks(self._spread(X)).index_select(-4, self.trials)

    def pick(self, trials: Tensor) -> MatrixKernel:
        return replace(self, trials=self.trials[trials])

    def _spread(self, X: Tensor) -> Tensor:
        return spread_trials(X, self.trials, self.whole.kernel.batch_shape[-1], -3)
