"""The kernels as GPyTorch kernels."""

from __future__ import annotations

import copy
import pickle

import pytest
import suites
import torch
from catalogue import KERNELS, Builder, rbf, task_matrix
from gpytorch.kernels import RBFKernel
from linear_operator.operators import KroneckerProductLinearOperator
from suites import close

from mtbo_torch import ExactMultiTaskGP, ICMKernel, IndependentKernel, SumOfSeparableKernel, TaskSimilarityKernel
from mtbo_torch.kernels import TaskwiseKernel, adapt_kernel, candidate_kernels, shared_parameter


@pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("d", [1, 3])
def test_values(build: Builder, n: int, d: int) -> None:
    suites.check_kernel(build(n, d), d)


def test_operators_keep_their_structure() -> None:
    X = torch.rand(4, 1, dtype=torch.double)
    evaluated = ICMKernel(rbf(0.5), task_matrix(2))(X).evaluate_kernel()
    assert isinstance(evaluated, KroneckerProductLinearOperator)


def test_active_dims_of_the_whole_kernel() -> None:
    X = torch.rand(4, 3, dtype=torch.double)
    B = task_matrix(2)
    close(ICMKernel(rbf(0.5), B, active_dims=(2,))(X).to_dense(), ICMKernel(rbf(0.5), B)(X[:, 2:]).to_dense(), 1e-12)
    Y = torch.rand(4, 2, dtype=torch.double)
    selective = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), B, active_dims=(2,)), eta=0.1)
    plain = ExactMultiTaskGP(X[:, 2:], Y, ICMKernel(rbf(0.5), B), eta=0.1)
    close(selective.mean(X), plain.mean(X[:, 2:]), 1e-12)


def test_batch_shapes_come_from_base_kernel_and_task_matrix() -> None:
    X = torch.rand(5, 1, dtype=torch.double)
    base = RBFKernel(batch_shape=torch.Size([2])).double()
    assert ICMKernel(base, task_matrix(3)).batch_shape == (2,)
    assert ICMKernel(base, task_matrix(3))(X).shape == (2, 15, 15)
    matrices = torch.stack([task_matrix(3), task_matrix(3, seed=1)])
    kernel = ICMKernel(rbf(0.5), matrices)
    assert kernel(X).shape == (2, 15, 15)
    for i in range(2):
        close(kernel(X).to_dense()[i], ICMKernel(rbf(0.5), matrices[i])(X).to_dense(), 1e-12)
        close(kernel[i](X).to_dense(), ICMKernel(rbf(0.5), matrices[i])(X).to_dense(), 1e-12)
    omegas = torch.tensor([0.1, 0.9], dtype=torch.double)
    assert TaskSimilarityKernel(rbf(0.5), 3, omegas)(X).shape == (2, 15, 15)
    assert SumOfSeparableKernel([kernel, ICMKernel(base, task_matrix(3))])(X).shape == (2, 15, 15)
    assert IndependentKernel([base, base])(X).shape == (2, 10, 10)


def test_batches_can_be_indexed() -> None:
    X = torch.rand(2, 5, 1, dtype=torch.double)
    base = RBFKernel(batch_shape=torch.Size([2])).double()
    base.lengthscale = torch.tensor([[[0.3]], [[0.9]]], dtype=torch.double)
    icm = ICMKernel(base, torch.stack([task_matrix(3), task_matrix(3, seed=1)]))
    for kernel in (icm, SumOfSeparableKernel([icm, icm]), IndependentKernel([base, base])):
        whole = kernel(X).to_dense()
        for i in range(2):
            close(kernel(X)[i].to_dense(), whole[i], 1e-12)


def test_kernels_move_with_to() -> None:
    for build in KERNELS:
        kernel = build(2, 1).kernel.float()
        assert kernel(torch.rand(3, 1, dtype=torch.float)).to_dense().dtype == torch.float


def test_a_given_matrix_is_fixed_and_a_learned_one_is_free() -> None:
    fixed = ICMKernel(rbf(0.5), task_matrix(3))
    assert [name for name, _ in fixed.named_parameters()] == ["base_kernel.raw_lengthscale"]
    learned = ICMKernel(rbf(0.5), num_tasks=3, rank=2).double()
    assert learned.task_factor.requires_grad
    assert torch.linalg.matrix_rank(learned.task_covar) == 2
    learned.task_factor.data = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, 1.0]], dtype=torch.double)
    assert learned.task_covar[0, 1] < 0
    learned.task_covar.sum().backward()
    assert learned.task_factor.grad is not None


def test_the_callers_matrix_is_not_shared() -> None:
    B = torch.eye(2, dtype=torch.double)
    kernel = ICMKernel(rbf(0.5), B)
    B.fill_(0)
    assert torch.equal(kernel.task_covar, torch.eye(2, dtype=torch.double))


def test_a_given_similarity_is_fixed_and_one_that_is_not_is_learned() -> None:
    fixed = TaskSimilarityKernel(rbf(0.5), 3, omega=0.4)
    assert [name for name, _ in fixed.named_parameters()] == ["base_kernel.raw_lengthscale"]
    assert "omega" in fixed.state_dict()
    learned = TaskSimilarityKernel(rbf(0.5), 3).double()
    assert {name for name, _ in learned.named_parameters()} == {"raw_omega", "base_kernel.raw_lengthscale"}
    assert learned.omega.item() == 0.5
    close(learned.task_covar, 0.5 * torch.eye(3).double() + 0.5 / 3, 1e-12)
    learned.task_covar[0, 1].backward()
    assert learned.raw_omega.grad.item() == pytest.approx(-1 / 3 / 4)  # times the slope of the sigmoid at zero


@pytest.mark.parametrize("omega", [None, torch.tensor([0.1, 0.7], dtype=torch.double)], ids=["learned", "given"])
def test_a_similarity_is_saved_copied_indexed_moved_and_set(omega: torch.Tensor | None) -> None:
    X = torch.rand(2, 5, 1, dtype=torch.double)

    def build() -> TaskSimilarityKernel:
        return TaskSimilarityKernel(RBFKernel(batch_shape=torch.Size([2])).double(), 3, omega).double()

    kernel = build()
    kernel.omega = torch.tensor([0.2, 0.9], dtype=torch.double)
    assert kernel.batch_shape == kernel.omega.shape == (2,)
    for i, value in enumerate((0.2, 0.9)):
        B = value * torch.eye(3).double() + (1 - value) / 3
        close(kernel.task_covar[i], B, 1e-12)
        close(kernel[i].omega, torch.tensor(value).double(), 1e-7)
        close(kernel[i](X[i]).to_dense(), kernel(X).to_dense()[i], 1e-12)
    loaded = build()
    loaded.load_state_dict(kernel.state_dict())
    for same in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel)), loaded):
        assert torch.equal(same.omega, kernel.omega)
    copied = copy.deepcopy(kernel)
    copied.initialize(omega=torch.tensor([0.3, 0.4], dtype=torch.double))
    close(copied.omega, torch.tensor([0.3, 0.4]), 1e-7)
    close(kernel.omega, torch.tensor([0.2, 0.9]), 1e-7)
    assert kernel.float().omega.dtype == torch.float
    assert kernel(X.float()).to_dense().dtype == torch.float


def test_a_learned_similarity_cannot_leave_its_interval() -> None:
    kernel = TaskSimilarityKernel(rbf(0.5), 2).double()
    for raw in (-1e3, 1e3):
        kernel.raw_omega.data.fill_(raw)
        assert 0 <= kernel.omega.item() <= 1
        assert torch.linalg.eigvalsh(kernel.task_covar).min() >= -1e-15


def tasks_at_once(*batch: int) -> TaskwiseKernel:
    base = RBFKernel(ard_num_dims=2, batch_shape=torch.Size(batch)).double()
    base.lengthscale = 0.2 + torch.rand(*batch, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    return TaskwiseKernel(base)


def test_tasks_at_once_are_each_tasks_kernel_in_every_batch() -> None:
    X = torch.rand(2, 5, 2, dtype=torch.double)
    kernel = tasks_at_once(4, 2, 3)
    assert kernel.num_tasks == 3
    assert kernel.batch_shape == (4, 2)
    value, fast = kernel(X).to_dense(), adapt_kernel(kernel, 3)(X, X)
    close(fast, value, 1e-12)
    for i in range(4):
        for j in range(2):
            close(kernel[i, j](X[j]).to_dense(), value[i, j], 1e-12)
            apart = value[i, j].reshape(5, 3, 5, 3)
            for a in range(3):
                scales = kernel.base_kernel.lengthscale[i, j, a]
                close(apart[:, a, :, a], (-torch.cdist(X[j] / scales, X[j] / scales).square() / 2).exp(), 1e-10)
                assert not apart[:, a, :, [b for b in range(3) if b != a]].any()


def test_tasks_at_once_select_their_inputs() -> None:
    base = RBFKernel(batch_shape=torch.Size([2])).double()
    X, Y = torch.rand(4, 3, dtype=torch.double), torch.rand(4, 2, dtype=torch.double)
    selective = ExactMultiTaskGP(X, Y, TaskwiseKernel(base, active_dims=(2,)), eta=0.1)
    plain = ExactMultiTaskGP(X[:, 2:], Y, TaskwiseKernel(base), eta=0.1)
    close(selective.mean(X), plain.mean(X[:, 2:]), 1e-12)


def test_a_dimension_of_tasks_is_no_batch_of_trials() -> None:
    assert shared_parameter(tasks_at_once(2, 3), torch.Size([2])) is None
    assert shared_parameter(tasks_at_once(2), torch.Size([2])) == "base_kernel.raw_lengthscale"
    assert shared_parameter(tasks_at_once(2), torch.Size()) is None


@pytest.mark.parametrize("batch", [(), (2,)])
def test_candidates_have_the_same_values_and_slopes_with_and_without_gpytorch(batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    X1, X2 = (torch.rand(*batch, t, 3, generator=generator, dtype=torch.double) for t in (4, 6))
    for kernel in candidate_kernels(2, 3, torch.Size(batch)).values():
        kernel = kernel.double().requires_grad_(False)
        weights = torch.rand(*batch, 8, 12, generator=generator, dtype=torch.double)
        ours, theirs = X1.clone().requires_grad_(), X1.clone().requires_grad_()
        (weights * adapt_kernel(kernel, 2)(ours, X2)).sum().backward()
        value = kernel(theirs, X2).to_dense()
        (weights * value).sum().backward()
        close(adapt_kernel(kernel, 2)(ours, X2).detach(), value.detach(), 1e-10)
        close(ours.grad, theirs.grad, 1e-8)


def test_values_with_slopes_are_at_most_one_however_far_apart_the_points_are() -> None:
    X = 1e5 * torch.rand(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float)
    kernel = adapt_kernel(ICMKernel(RBFKernel().float(), torch.ones(1, 1)).requires_grad_(False), 1)
    points = X.clone().requires_grad_()
    values = kernel(points, X)
    (slopes,) = torch.autograd.grad(values.sum(), points)
    assert ((values >= 0) & (values <= 1)).all()
    assert slopes.isfinite().all()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_categories_are_alike_or_not(batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    X1, X2 = (torch.rand(*batch, t, 4, generator=generator, dtype=torch.double) for t in (5, 7))
    for X in (X1, X2):
        X[..., [1, 3]] = (3 * X[..., [1, 3]]).floor() / 2
    for name, kernel in candidate_kernels(2, 4, torch.Size(batch), categories=[1, 3]).items():
        kernel = kernel.double().requires_grad_(False)
        for parameter in kernel.parameters():
            parameter.add_(0.3 * torch.rand(parameter.shape, generator=generator, dtype=torch.double))
        weights = torch.rand(*batch, 10, 14, generator=generator, dtype=torch.double)
        ours, theirs = X1.clone().requires_grad_(), X1.clone().requires_grad_()
        fast = adapt_kernel(kernel, 2)(ours, X2)
        (weights * fast).sum().backward()
        value = kernel(theirs, X2).to_dense()
        (weights * value).sum().backward()
        close(fast.detach(), value.detach(), 1e-10)
        close(ours.grad, theirs.grad, 1e-8)
        assert (ours.grad[..., [1, 3]] == 0).all()
        if name == "shared":
            rbf_part, cat_part = kernel.base_kernel.kernels
            apart = (X1.unsqueeze(-2) - X2.unsqueeze(-3))[..., [0, 2]] / rbf_part.lengthscale.unsqueeze(-2)
            differs = (X1.unsqueeze(-2) != X2.unsqueeze(-3))[..., [1, 3]] / cat_part.lengthscale.unsqueeze(-2)
            scalar = (-apart.square().sum(-1) / 2 - differs.mean(-1)).exp()
            expected = torch.einsum("...ij,...ab->...iajb", scalar, kernel.task_covar).flatten(-4, -3).flatten(-2)
            close(value.detach(), expected, 1e-10)
