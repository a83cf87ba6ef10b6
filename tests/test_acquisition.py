"""ScalarizedMultiTaskUCB: values, gradients, and every way BoTorch maximizes it."""

from __future__ import annotations

import warnings

import gpytorch
import numpy as np
import oracles
import pytest
import suites
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import KroneckerMultiTaskGP, ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_discrete, optimize_acqf_mixed
from botorch.optim.optimize import optimize_acqf_list
from botorch.posteriors import GPyTorchPosterior
from botorch.test_functions.multi_objective import BraninCurrin
from botorch.utils.sampling import draw_sobol_samples
from catalogue import KERNELS, PATHS, Builder, data, icm, rbf, scaled, task_matrix
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator import to_linear_operator
from suites import close
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    HypervolumeScalarization,
    ICMKernel,
    IndependentKernel,
    InverseUniformWeights,
    LinearScalarization,
    ObjectiveScalarization,
    ScalarizedMultiTaskUCB,
    SphereWeights,
    UniformWeights,
)
from mtbo_torch.models.learning import learn_kernel
from mtbo_torch.regression import factor as growing

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def weights(n: int) -> Tensor:
    return UniformWeights(n).sample(generator=torch.Generator().manual_seed(0), dtype=torch.double)


def fitted(n: int = 3, d: int = 2, t: int = 8, build: Builder = icm, **kwargs: object) -> ExactMultiTaskGP:
    X, Y, _ = data(t, n, d)
    return ExactMultiTaskGP(X, Y, build(n, d).kernel, **({"eta": 0.1} | kwargs))


def acquisition(model: ExactMultiTaskGP, radius: float = 1.5, **kwargs: object) -> ScalarizedMultiTaskUCB:
    return ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights(model.num_outputs)), radius, **kwargs)


@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("eta", [0.1, (0.1, 0.2, 0.3)], ids=["one noise", "noise of each task"])
@pytest.mark.parametrize("scalarization", [LinearScalarization, ChebyshevScalarization])
def test_gradients(build: Builder, eta: object, scalarization: type) -> None:
    model = fitted(build=build, eta=torch.tensor(eta))
    _, _, Z = data(8, 3, 2)
    suites.check_gradient(ScalarizedMultiTaskUCB(model, scalarization(weights(3)), radius=1.5), Z)


def test_gradients_of_many_points_and_of_few_agree() -> None:
    acqf = acquisition(fitted(t=30))
    points = torch.rand(growing.MANY_ROWS, 1, 2, dtype=torch.double, requires_grad=True)
    (many,) = torch.autograd.grad(acqf(points).sum(), points)
    for part in points.detach().split(growing.MANY_ROWS - 1):
        few = part.clone().requires_grad_()
        (expected,) = torch.autograd.grad(acqf(few).sum(), few)
        start = 0 if len(part) > 1 else growing.MANY_ROWS - 1
        close(many[start : start + len(part)], expected, 1e-10)
    suites.check_gradient(acqf, torch.rand(growing.MANY_ROWS, 2, dtype=torch.double))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e2, 1e4, 1e6])
def test_values_with_and_without_a_gradient_agree_at_any_scale(scale: float) -> None:
    X, Y, _ = data(200, 2, 2)
    kernel = ICMKernel(scaled(rbf(0.5), scale), task_matrix(2))
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    points = torch.rand(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    expected = model.covariance_norm(points)
    # Two ways to evaluate the kernel differ by rounding, which counts in units of the prior.
    rounding = 1e3 * torch.finfo(torch.double).eps * scale
    torch.testing.assert_close(
        model.covariance_norm(points.clone().requires_grad_()).detach(), expected, rtol=1e-6, atol=rounding
    )


@pytest.mark.parametrize("far", [0.0, 1e4])
@pytest.mark.parametrize("active_dims", [None, (1,)])
def test_values_with_and_without_a_gradient_agree(far: float, active_dims: tuple[int, ...] | None) -> None:
    X, Y, Z = data(20, 3, 2)
    base = gpytorch.kernels.RBFKernel(ard_num_dims=1 if active_dims else 2, active_dims=active_dims).double()
    base.lengthscale = torch.tensor(0.3, dtype=torch.double)
    model = ExactMultiTaskGP(X + far, Y, ICMKernel(base, task_matrix(3)), eta=0.1)
    acqf = ScalarizedMultiTaskUCB(model, LinearScalarization(weights(3)), 1.5)
    points = (Z + far).unsqueeze(-2)
    close(acqf(points.clone().requires_grad_()), acqf(points), 1e-10)
    suites.check_gradient(acqf, Z + far)


def test_at_an_observed_point_with_hardly_any_noise_the_gradient_is_finite() -> None:
    model = fitted(eta=1e-12)
    X = model.train_inputs[0].unsqueeze(-2).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(acquisition(model)(X).sum(), X)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("bound", ["norm", "ellipsoid"])
def test_kinks_are_rounded_off_where_a_gradient_is_asked_for(bound: str) -> None:
    model, (_, _, Z) = fitted(), data(8, 3, 2)
    acqf, points, w = acquisition(model, bound=bound), Z.unsqueeze(-2), weights(3).numpy()
    belief, told = model.at(Z), model.at(model.train_inputs[0])
    spread = (told.mean.var(dim=0, correction=0) + told.variance().mean(dim=0)).sqrt().detach().numpy()
    exact = acqf(points)
    rounded = acqf(points.clone().requires_grad_())
    close(acqf(points.clone().requires_grad_().detach()), exact, 1e-12)
    for i, mean in enumerate(belief.mean.detach().numpy()):
        if bound == "norm":
            deviation, added = (
                np.full(3, 1.5 * belief.norm[i].sqrt().item()),
                w.max() * 1.5 * belief.norm[i].sqrt().item(),
            )
            parts = w * mean
        else:
            deviation, added = 1.5 * belief.variance()[i].sqrt().detach().numpy(), 0.0
            parts = w * (mean + deviation)
        width = 0.3 * (w * (deviation + 0.03 * spread)).mean()
        expected = -width * np.log(np.exp(-parts / width).mean()) + added
        close(rounded[i], np.array(expected), 1e-8)
        assert 0 <= expected - exact[i].item() <= width * np.log(3)


def test_the_hypervolume_is_not_flat_where_nothing_exceeds_the_reference_point() -> None:
    model, (_, Y, Z) = fitted(), data(8, 3, 2)
    scalarization = HypervolumeScalarization(torch.ones(3, dtype=torch.double), Y.amax(dim=0) + 20)
    assert (scalarization(model.mean(Z)) == 0).all()
    swapped = ObjectiveScalarization(scalarization, torch.eye(3, dtype=torch.double).flip(0))
    for s in (scalarization, swapped):
        points = Z.unsqueeze(-2).clone().requires_grad_()
        value = ScalarizedMultiTaskUCB(model, s, 1.0, bound="ellipsoid")(points)
        (gradient,) = torch.autograd.grad(value.sum(), points)
        assert value.std() > 1e-2
        assert (gradient.abs().amax(dim=-1) > 1e-6).all()


@pytest.mark.slow
def test_no_search_ends_abnormally() -> None:
    """Of 50 in an own loop, on kernels that were learned from few and from many points.

    The values are of order one: SciPy's tolerance for gradients is absolute, and with values in the hundreds it asks
    for more than rounding allows, of functions without any kink as well.
    """
    problem, unit = BraninCurrin(negate=True), torch.tensor([50.0, 3.0], dtype=torch.double)
    box, ref_point = problem.bounds.double(), problem.ref_point.double() / unit
    for seed in range(25):
        source = torch.Generator().manual_seed(seed)
        X = draw_sobol_samples(box, 1, (8, 40)[seed % 2], seed=seed)[0]
        Y = problem(X) / unit
        model = ExactMultiTaskGP(X, Y, input_transform=Normalize(2, bounds=box), outcome_transform=Standardize(2))
        learn_kernel(model)
        on_sphere = SphereWeights(2).sample(generator=source, dtype=torch.double)
        inverse = InverseUniformWeights(2).sample(generator=source, dtype=torch.double)
        for s in (HypervolumeScalarization(on_sphere, ref_point), ChebyshevScalarization(inverse, Y.amax(dim=0))):
            acqf = ScalarizedMultiTaskUCB(model.eval(), s, 1.0, bound="ellipsoid")
            torch.manual_seed(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimize_acqf(acqf, box, q=1, num_restarts=10, raw_samples=256, options={"seed": seed})


def test_several_points_with_weights_of_their_own_in_one_call() -> None:
    model, box = fitted(), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    weights = InverseUniformWeights(3).sample(3, torch.Generator().manual_seed(0), torch.double)
    acqfs = [ScalarizedMultiTaskUCB(model, ChebyshevScalarization(w), 1.0) for w in weights]
    search = {"num_restarts": 4, "raw_samples": 64, "options": {"seed": 0}}
    together, _ = optimize_acqf_list(acqfs, box, **search)
    for i, w in enumerate(weights):
        alone = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(w), 1.0, X_pending=together[:i] if i else None)
        rivals = torch.rand(500, 1, 2, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        assert alone(together[i : i + 1]) >= alone(rivals).max() - 1e-6


def test_one_task_is_gp_ucb() -> None:
    X, Y, Z = data(12, 1, 2)
    eta, radius = 0.1, 1.7
    reference = SingleTaskGP(
        X,
        Y,
        train_Yvar=torch.full_like(Y, eta),
        covar_module=rbf(0.5),
        mean_module=gpytorch.means.ZeroMean(),
        outcome_transform=None,
    )
    model = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), torch.ones(1, 1, dtype=torch.double)), eta=eta)
    points = Z.unsqueeze(-2)
    for kind in (LinearScalarization, ChebyshevScalarization):
        ours = ScalarizedMultiTaskUCB(model, kind(torch.ones(1, dtype=torch.double)), radius)
        beta = torch.tensor(radius**2, dtype=torch.double)
        close(ours(points), UpperConfidenceBound(reference, beta=beta)(points), 1e-8)


def test_identity_matrix_is_independent_gps() -> None:
    X, Y, Z = data(12, 2, 2)
    eta = 0.1
    singles = [
        SingleTaskGP(
            X,
            Y[:, i : i + 1],
            train_Yvar=torch.full((12, 1), eta, dtype=torch.double),
            covar_module=rbf(0.5),
            mean_module=gpytorch.means.ZeroMean(),
            outcome_transform=None,
        )
        for i in range(2)
    ]
    expected = acquisition(ModelListGP(*singles))(Z.unsqueeze(-2))
    for kernel in (ICMKernel(rbf(0.5), torch.eye(2, dtype=torch.double)), IndependentKernel([rbf(0.5), rbf(0.5)])):
        close(acquisition(ExactMultiTaskGP(X, Y, kernel, eta=eta))(Z.unsqueeze(-2)), expected, 1e-8)


class _Foreign(torch.nn.Module):
    """Our model behind BoTorch's bare interface, so that only its posterior can be used."""

    def __init__(self, model: ExactMultiTaskGP, interleaved: bool = True) -> None:
        super().__init__()
        self.inner, self.interleaved = model, interleaved
        self.num_outputs, self.batch_shape = model.num_outputs, model.batch_shape

    def posterior(self, X: Tensor, **options: object) -> GPyTorchPosterior:
        posterior = self.inner.posterior(X, **options)
        if self.interleaved:
            return posterior
        q, n = posterior.mean.shape[-2:]
        task_major = torch.arange(q * n).reshape(q, n).T.flatten()
        covariance = posterior.distribution.covariance_matrix[..., task_major, :][..., task_major]
        normal = MultitaskMultivariateNormal(posterior.mean, to_linear_operator(covariance), interleaved=False)
        return GPyTorchPosterior(normal)


@pytest.mark.parametrize("interleaved", [True, False])
def test_any_joint_posterior_gives_the_full_norm(interleaved: bool) -> None:
    model = fitted()
    _, _, Z = data(8, 3, 2)
    pending = Z[:2]
    for options in ({}, {"X_pending": pending}):
        foreign = acquisition(_Foreign(model, interleaved), **options)
        close(foreign(Z.unsqueeze(-2)), acquisition(model, **options)(Z.unsqueeze(-2)), 1e-8)


def test_botorchs_multi_task_gp() -> None:
    X, Y, Z = data(6, 2, 1)
    long_X = torch.cat([torch.cat([X, torch.full_like(X, task)], dim=-1) for task in (0, 1)])
    model = MultiTaskGP(long_X, Y.T.reshape(-1, 1), task_feature=-1, output_tasks=[0, 1])
    acqf = acquisition(model)
    posterior = model.posterior(Z.unsqueeze(-2))
    covariance = posterior.distribution.covariance_matrix
    expected = [
        oracles.chebyshev(weights(2).numpy(), mean, np.zeros(2))
        + max(weights(2).numpy()) * 1.5 * np.sqrt(np.linalg.norm(cov, 2))
        for mean, cov in zip(posterior.mean.squeeze(-2).detach().numpy(), covariance.detach().numpy(), strict=True)
    ]
    assert (covariance[:, 0, 1].abs() > 1e-6).all()
    close(acqf(Z.unsqueeze(-2)), np.array(expected), 1e-8)
    acqf.set_X_pending(Z[:1])
    assert (acqf(Z.unsqueeze(-2)) < torch.tensor(expected)).all()


def test_a_model_list_with_one_of_ours_in_it() -> None:
    X, Y, Z = data(6, 3, 2)
    single, ours = SingleTaskGP(X, Y[:, :1]), ExactMultiTaskGP(X, Y[:, 1:], icm(2, 2).kernel, eta=0.1)
    acqf = acquisition(ModelListGP(single, ours))
    alone = single.posterior(Z.unsqueeze(-2))
    mean = torch.cat([alone.mean.squeeze(-2), ours.mean(Z)], dim=-1)
    norm = torch.maximum(alone.variance.flatten(), ours.covariance_norm(Z))
    scalarization = ChebyshevScalarization(weights(3))
    close(acqf(Z.unsqueeze(-2)), scalarization(mean) + scalarization.lipschitz * 1.5 * norm.sqrt(), 1e-8)
    assert (ours.covariance_norm(Z) > ours.posterior(Z.unsqueeze(-2)).variance.amax(dim=(-2, -1)) + 1e-6).all()
    free = acqf(Z.unsqueeze(-2))
    acqf.set_X_pending(Z[:1])
    assert (acqf(Z.unsqueeze(-2)) < free).all()


@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")  # the host's own, at q = 2
def test_a_posterior_without_cross_covariances_is_used_as_independent_and_says_so_once() -> None:
    X, Y, Z = data(6, 2, 1)
    model = KroneckerMultiTaskGP(X, Y)
    acqf = acquisition(model)
    with pytest.warns(BotorchWarning, match="KroneckerMultiTaskGP has no covariances between tasks"):
        value = acqf(Z.unsqueeze(-2))
    close(acqf(Z.unsqueeze(-2)), value, 1e-10)  # warnings are errors: the second call has none
    posterior = model.posterior(Z.unsqueeze(-2))
    scalarized = ChebyshevScalarization(weights(2))(posterior.mean).squeeze(-1)
    close(value, scalarized + weights(2).max() * 1.5 * posterior.variance.amax(dim=-1).squeeze(-1).sqrt(), 1e-8)
    acqf.set_X_pending(Z[:1])
    with pytest.raises(UnsupportedError, match="KroneckerMultiTaskGP"):
        acqf(Z.unsqueeze(-2))


@pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
def test_pending_points_shrink_the_variance_and_leave_the_mean(build: Builder) -> None:
    model = fitted(build=build)
    _, _, Z = data(8, 3, 2)
    pending = Z[:2]
    X, Y = model.train_inputs[0], model.train_targets
    hallucinated = ExactMultiTaskGP(torch.cat([X, pending]), torch.cat([Y, Y[:2]]), build(3, 2).kernel, eta=0.1)
    scalarization = ChebyshevScalarization(weights(3))
    deviation = hallucinated.covariance_norm(Z).sqrt()
    expected = scalarization(model.mean(Z)) + scalarization.lipschitz * 1.5 * deviation
    acqf = acquisition(model, X_pending=pending)
    close(acqf(Z.unsqueeze(-2)), expected, 1e-8)
    acqf.set_X_pending(None)
    assert (acqf(Z.unsqueeze(-2)) >= expected - 1e-12).all()


def test_the_value_of_several_points_is_the_sum_of_the_steps() -> None:
    model = fitted()
    _, _, Z = data(8, 3, 2)
    acqf = acquisition(model)
    joint = acqf(torch.stack([Z[:3], Z[3:6]]))
    for i, triple in enumerate((Z[:3], Z[3:6])):
        steps = 0.0
        for j in range(3):
            acqf.set_X_pending(triple[:j] if j else None)
            steps += acqf(triple[j : j + 1])
        close(joint[i], steps.squeeze(), 1e-8)
    acqf.set_X_pending(None)
    small = torch.stack([Z[:2]])
    assert torch.autograd.gradcheck(acqf, (small.requires_grad_(),), atol=1e-5)


def test_batched_models_weights_and_radii() -> None:
    sets = [data(6, 3, 2, seed) for seed in (0, 1)]
    X, Y, _ = (torch.stack(parts) for parts in zip(*sets, strict=True))
    kernel = icm(3, 2).kernel
    many = UniformWeights(3).sample(2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    radii = torch.tensor([1.0, 2.0], dtype=torch.double)
    together = ScalarizedMultiTaskUCB(ExactMultiTaskGP(X, Y, kernel, eta=0.1), ChebyshevScalarization(many), radii)
    points = torch.rand(5, 2, 1, 2, dtype=torch.double)
    values = together(points)
    assert values.shape == (5, 2)
    for i in range(2):
        model = ExactMultiTaskGP(X[i], Y[i], kernel, eta=0.1)
        alone = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(many[i]), radii[i])
        close(values[:, i], alone(points[:, i]), 1e-10)


def test_values_do_not_depend_on_their_neighbours() -> None:
    acqf = acquisition(fitted(t=30))
    points = torch.rand(200, 1, 2, dtype=torch.double)
    close(acqf(points)[:3], acqf(points[:3]), 1e-12)


@pytest.mark.parametrize("t", [0, 8])
def test_optimize_acqf(t: int) -> None:
    acqf = acquisition(fitted(t=t))
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=torch.double)] * 2).unsqueeze(-2)
    if t == 0:
        assert acqf(grid).std() < 1e-12
        return
    best, value = optimize_acqf(acqf, bounds=BOUNDS, q=1, num_restarts=8, raw_samples=64, options={"seed": 0})
    assert best.shape == (1, 2)
    assert value >= acqf(grid).max() - 1e-6


def test_sequential_q_spreads_and_restores() -> None:
    acqf = acquisition(fitted(), radius=5.0)
    # Values fall if each is the maximum: with few starts BoTorch misses one now and then.
    points, values = optimize_acqf(acqf, bounds=BOUNDS, q=3, num_restarts=10, raw_samples=256, sequential=True)
    assert points.shape == (3, 2)
    assert acqf.X_pending is None
    assert torch.pdist(points).min() > 1e-2
    assert (values.diff() <= 1e-9).all()


def test_discrete_choices() -> None:
    acqf = acquisition(fitted())
    choices = torch.rand(50, 2, dtype=torch.double)
    best, value = optimize_acqf_discrete(acqf, q=1, choices=choices)
    assert torch.equal(best[0], choices[acqf(choices.unsqueeze(-2)).argmax()])
    close(value, acqf(choices.unsqueeze(-2)).max(), 1e-12)
    several, _ = optimize_acqf_discrete(acqf, q=3, choices=choices, unique=False)
    assert several.shape == (3, 2)


@pytest.mark.parametrize("q", [1, 2])
def test_mixed_and_fixed_features(q: int) -> None:
    acqf = acquisition(fitted())
    points, value = optimize_acqf_mixed(
        acqf, bounds=BOUNDS, q=q, num_restarts=2, raw_samples=16, fixed_features_list=[{0: 0.0}, {0: 0.5}, {0: 1.0}]
    )
    assert points.shape == (q, 2)
    assert set(points[:, 0].tolist()) <= {0.0, 0.5, 1.0}
    close(value.squeeze(), acqf(points).squeeze(), 1e-8)
    fixed, _ = optimize_acqf(acqf, bounds=BOUNDS, q=1, num_restarts=2, raw_samples=16, fixed_features={1: 0.25})
    assert fixed[0, 1] == 0.25


def test_linear_constraints() -> None:
    acqf = acquisition(fitted())
    below_diagonal = (torch.tensor([0, 1]), torch.tensor([1.0, -1.0], dtype=torch.double), 0.25)
    point, _ = optimize_acqf(
        acqf, bounds=BOUNDS, q=1, num_restarts=4, raw_samples=32, inequality_constraints=[below_diagonal]
    )
    assert point[0, 0] - point[0, 1] >= 0.25 - 1e-6


def test_everything_moves_with_to() -> None:
    acqf = acquisition(fitted(), X_pending=torch.rand(2, 2, dtype=torch.double)).to(torch.float)
    assert acqf(torch.rand(3, 1, 2, dtype=torch.float)).dtype == torch.float
    assert acqf(torch.rand(3, 2, 2, dtype=torch.float)).dtype == torch.float


@pytest.mark.parametrize("scalarization", [LinearScalarization, ChebyshevScalarization])
def test_weights_of_another_precision_follow_the_model(scalarization: type) -> None:
    _, _, Z = data(8, 3, 2)
    single = ScalarizedMultiTaskUCB(fitted(), scalarization(weights(3).float()), 1.7)(Z.unsqueeze(-2))
    assert single.dtype == torch.double
    close(single, ScalarizedMultiTaskUCB(fitted(), scalarization(weights(3)), 1.7)(Z.unsqueeze(-2)), 1e-6)


def test_a_changed_model_is_noticed() -> None:
    _, Y, Z = data(8, 3, 2)
    model, other = fitted(), fitted()
    acqf, pending = acquisition(model), acquisition(model, X_pending=Z[:2])
    model.covar_module.base_kernel.lengthscale = torch.tensor(0.2, dtype=torch.double)
    other.covar_module.base_kernel.lengthscale = torch.tensor(0.2, dtype=torch.double)
    close(acqf(Z.unsqueeze(-2)), acquisition(other)(Z.unsqueeze(-2)), 1e-10)
    close(pending(Z.unsqueeze(-2)), acquisition(other, X_pending=Z[:2])(Z.unsqueeze(-2)), 1e-10)
    model.set_train_data(model.train_inputs[0] + 0.1, -Y)
    other.set_train_data(other.train_inputs[0] + 0.1, -Y)
    close(pending(Z.unsqueeze(-2)), acquisition(other, X_pending=Z[:2])(Z.unsqueeze(-2)), 1e-10)


def test_pending_points_leave_no_trace_in_the_state() -> None:
    acqf = acquisition(fitted())
    keys = set(acqf.state_dict())
    acqf.set_X_pending(torch.rand(2, 2, dtype=torch.double))
    assert set(acqf.state_dict()) == keys


def test_task_order_does_not_matter() -> None:
    X, Y, Z = data(8, 3, 2)
    order, B, w = [2, 0, 1], task_matrix(3), weights(3)
    plain = ScalarizedMultiTaskUCB(
        ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), B), eta=0.1), ChebyshevScalarization(w), 1.5
    )
    permuted = ScalarizedMultiTaskUCB(
        ExactMultiTaskGP(X, Y[:, order], ICMKernel(rbf(0.5), B[order][:, order]), eta=0.1),
        ChebyshevScalarization(w[order]),
        1.5,
    )
    close(permuted(Z.unsqueeze(-2)), plain(Z.unsqueeze(-2)), 1e-10)


@pytest.mark.parametrize("build", KERNELS)
def test_several_points_at_a_time_in_other_units_with_several_noises(build: Builder) -> None:
    (X, Y, Z), etas, shown = data(8, 3, 2), np.array([0.02, 0.1, 0.4]), [2, 0]
    Y = Y * torch.tensor([1.0, 10.0, 100.0]) + 5
    mean, scale = Y.mean(dim=0).numpy(), Y.std(dim=0).numpy()
    model = ExactMultiTaskGP(X, Y, build(3, 2).kernel, eta=torch.tensor(etas), outcome_transform=Standardize(3))
    acqf = ScalarizedMultiTaskUCB(model.subset_output(shown), LinearScalarization(weights(2)), 1.5, Z[:1])
    gamma, values, expected = build(3, 2).gamma, (Y.numpy() - mean) / scale, 0.0
    for place in (1, 2):
        point, seen = Z[place : place + 1].numpy(), np.concatenate([X.numpy(), Z[:place].numpy()])
        mu = oracles.posterior(gamma, X.numpy(), values, etas, point)[0][0]
        _, block = oracles.posterior(gamma, seen, np.zeros((len(seen), 3)), etas, point)
        block = (block * np.outer(scale, scale))[np.ix_(shown, shown)]
        w = weights(2).numpy()
        expected += w @ (mean + scale * mu)[shown]
        expected += 1.5 * np.linalg.norm(w) * np.linalg.eigvalsh(block)[-1] ** 0.5
    close(acqf(Z[1:3].unsqueeze(0)), np.array([expected]), 1e-8)
