"""What the design promises: no hidden change, methods instead of type switches, states that know their kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from catalogue import data, icm, rbf
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from pretend_device import PretendDevice
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    HypervolumeScalarization,
    ICMKernel,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    TaskSimilarityKernel,
)
from mtbo_torch.ax_inputs import construct_inputs_scalarized_ucb
from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.metrics import hypervolume
from mtbo_torch.regression import NystromRegression, TrackedNystrom
from mtbo_torch.scalarizations import Scalarization, WeightDistribution
from mtbo_torch.strategies import ITKB, SobolSearch

CHOICES = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
WHERE = [{"choices": CHOICES}, {"bounds": BOUNDS, "num_restarts": 2, "raw_samples": 16}]


def objective(x: Tensor) -> Tensor:
    return torch.stack([(3 * x).sin().sum(dim=-1), -x.square().sum(dim=-1), x[..., 0] - x[..., 1]], dim=-1)


# A user's own scalarization and weights


class Compromise(Scalarization):
    """The smallest step beyond a reference point, with a little of the sum."""

    def __init__(self, weights: Tensor, ref_point: Tensor) -> None:
        super().__init__(weights)
        self.register_buffer("ref_point", ref_point)

    @property
    def lipschitz(self) -> Tensor:
        return self.weights.amax(dim=-1) + 0.1 * math.sqrt(self.num_tasks)

    def _scalarize(self, Y: Tensor) -> Tensor:
        beyond = Y - (self.ref_point if self.ref_point.dim() == 1 else self.ref_point.unsqueeze(-2))
        weights = self.weights if self.weights.dim() == 1 else self.weights.unsqueeze(-2)
        return (weights * beyond).amin(dim=-1) + 0.1 * beyond.sum(dim=-1)

    @classmethod
    def default_weights(cls, num_tasks: int) -> WeightDistribution:
        return Corners(num_tasks)


class Corners(WeightDistribution):
    """One task at a time, with a little of the others."""

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        order = torch.empty_like(like).uniform_(generator=generator).argsort(dim=-1)
        return (order == 0).to(like) + 0.1


@pytest.mark.parametrize(
    ("kind", "where", "refit_every"),
    [
        (MTKB, WHERE[0], 2),
        (MTBKB, WHERE[0], None),
        pytest.param(MTKB, WHERE[1], None, marks=pytest.mark.slow),
        pytest.param(MTBKB, WHERE[1], 2, marks=pytest.mark.slow),
    ],
    ids=["MTKB, choices, learned", "MTBKB, choices, known", "MTKB, box, known", "MTBKB, box, learned"],
)
def test_a_users_own_scalarization_with_a_reference_point(
    kind: type[MTKB] | type[MTBKB], where: dict[str, Tensor], refit_every: int | None
) -> None:
    options = {"scalarization": Compromise, "ref_point": torch.tensor([-1.0, 2.0]).double(), "signs": (1, -1, 0)}
    limits = (torch.tensor([[0.0, 0.0, 1.0]]).double(), torch.tensor([0.5]).double())
    chosen = kind(icm(3, 2).kernel, **where, **options, constraints=limits, refit_every=refit_every)
    for _ in range(3):
        x = chosen.ask(2)
        chosen.tell(x, objective(x))
    assert isinstance(chosen.weights, Corners)
    close(chosen.asked_weights.amax(dim=-1), torch.full((2,), 1.1 / 1.2), 1e-6)
    scalarization, worst = chosen.goal.scalarize(chosen.asked_weights[0], chosen._surrogate.units, chosen.train_Y)
    told = scalarization(chosen._surrogate.units.scale_values(chosen.train_Y))
    close(worst, told.min(), 1e-9)
    again = kind(icm(3, 2).kernel, **where, **options, constraints=limits, refit_every=refit_every)
    again.load_state_dict(chosen.state_dict())
    assert torch.equal(again.ask(), chosen.ask())


def test_a_scalarization_that_needs_a_reference_point_asks_for_it() -> None:
    with pytest.raises(ValueError, match="ref_point should be given for a Compromise, got None"):
        MTKB(icm(3, 2).kernel, choices=CHOICES, scalarization=Compromise)
    with pytest.raises(ValueError, match="scalarization should need nothing but weights for SobolSearch"):
        SobolSearch(3, choices=CHOICES, scalarization=Compromise)


def test_a_users_own_scalarization_in_ax() -> None:
    X, Y, Z = data(6, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    thresholds = torch.tensor([0.1, 0.2, torch.nan], dtype=torch.double)
    inputs = construct_inputs_scalarized_ucb(
        model, objective=IdentityMCMultiOutputObjective(), ref_point=thresholds, scalarization=Compromise, radius=1.0
    )
    inner = inputs["scalarization"].scalarization
    assert isinstance(inner, Compromise)
    close(inner.ref_point, thresholds.nan_to_num(nan=0.0), 0)
    assert ScalarizedMultiTaskUCB(**inputs)(Z.unsqueeze(-2)).isfinite().all()


def test_the_hypervolume_is_an_average_with_the_users_own_weights_too() -> None:
    class Sphere(Corners):
        _norm_order = 2

        def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
            return torch.empty_like(like).normal_(generator=generator).abs()

    front = torch.tensor([[1.0, 0.2], [0.5, 0.7]], dtype=torch.double)
    weights = Sphere(2).sample(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    values = HypervolumeScalarization(weights.unsqueeze(1), torch.zeros(2).double())(front.unsqueeze(-2)).squeeze(-1)
    average = values.amax(dim=-1).mean().item()
    assert average * math.pi / 4 == pytest.approx(hypervolume(front, torch.zeros(2).double()).item(), rel=1e-2)


# States know their kernel


def opposite(correlation: float) -> ICMKernel:
    return ICMKernel(rbf(0.5), torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.double))


def eye(base: Kernel) -> ICMKernel:
    return ICMKernel(base, torch.eye(2, dtype=torch.double))


OTHERS: dict[str, tuple[Callable[[], MultiTaskKernel], Callable[[], MultiTaskKernel]]] = {
    "task matrix": (lambda: opposite(0.9), lambda: opposite(-0.9)),
    "smoothness": (lambda: eye(MaternKernel(nu=1.5)), lambda: eye(MaternKernel(nu=2.5))),
    "lengthscale": (lambda: eye(rbf(0.5)), lambda: eye(rbf(0.4))),
    "inputs": (lambda: eye(RBFKernel(active_dims=(0,))), lambda: eye(RBFKernel(active_dims=(1,)))),
    "similarity": (lambda: TaskSimilarityKernel(rbf(0.5), 2, 0.4), lambda: TaskSimilarityKernel(rbf(0.5), 2, 0.5)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", [MTKB, MTBKB, ITKB])
def test_a_state_of_another_kernel_is_refused(kind: type[MTKB], name: str) -> None:
    own, other = (build() for build in OTHERS[name])
    saved, mine, theirs = (kind(kernel, choices=CHOICES) for kernel in (own, own, other))
    saved.tell(CHOICES[:2], objective(CHOICES[:2])[:, :2])
    mine.load_state_dict(saved.state_dict())
    assert torch.equal(mine.ask(), saved.ask())
    if kind is ITKB and name == "task matrix":
        theirs.load_state_dict(saved.state_dict())  # without what the tasks share, the two are the same
        return
    with pytest.raises(ValueError, match="same settings, got others: kernel"):
        theirs.load_state_dict(saved.state_dict())
    assert theirs.num_observations == 0


# What is interrupted, and what is done once


def test_an_interrupted_ask_skips_no_sobol_point(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, interrupted = (SobolSearch(2, bounds=BOUNDS, seed=3) for _ in range(2))
    expected = torch.cat([whole.ask(2), whole.ask(3)])
    first = interrupted.ask(2)

    def stop(*_: object) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(interrupted.space, "from_cube", stop)
        with pytest.raises(KeyboardInterrupt):
            interrupted.ask(3)
    assert torch.equal(torch.cat([first, interrupted.ask(3)]), expected)


@pytest.mark.parametrize("schedule", ["every_round", "delayed"])
def test_a_round_evaluates_all_choices_once(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    passes = []
    track, advance = NystromRegression.track, TrackedNystrom.advance
    monkeypatch.setattr(NystromRegression, "track", lambda self, *args: (passes.append("all"), track(self, *args))[1])
    monkeypatch.setattr(
        TrackedNystrom,
        "advance",
        lambda self, grown: (passes.append("update") if grown.growth is not None else None, advance(self, grown))[1],
    )
    mtbkb = MTBKB(icm(3, 2).kernel, choices=CHOICES, schedule=schedule)
    x = mtbkb.ask()
    for _ in range(8):
        passes.clear()
        mtbkb.tell(x, objective(x))
        x = mtbkb.ask()
        mtbkb.forget()
        assert len(passes) == 1


# No hidden change


@pytest.mark.parametrize("bound", ["norm", "ellipsoid"])
@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_an_acquisition_leaves_the_model_as_it_is(kind: type[ExactMultiTaskGP], bound: str) -> None:
    X, Y, Z = data(40, 5, 2)
    model = kind(X, Y, icm(5, 2).kernel, eta=0.01)
    Z = Z.clone()

    def answers() -> list[Tensor]:
        belief, posterior = model.at(Z), model.posterior(Z)
        return [
            belief.mean,
            belief.norm,
            belief.covariance,
            belief.variance(),
            posterior.variance,
            posterior.distribution.covariance_matrix,
            model.info_gain,
        ]

    before, surrogate = answers(), model.surrogate
    limits = (torch.ones(1, 5).double(), torch.ones(1).double())
    for constraints in (None, limits):
        acqf = ScalarizedMultiTaskUCB(
            model, ChebyshevScalarization(torch.ones(5).double()), 2.0, Z[:2], bound, constraints=constraints
        )
        points = Z.unsqueeze(-2).requires_grad_()
        acqf(points).sum().backward()
        acqf(Z[:2].unsqueeze(0))
        acqf.set_X_pending(None)
    assert model.surrogate is surrogate
    for old, new in zip(before, answers(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_observations_with_noise_of_their_own_are_appended_as_they_are_fitted(kind: type[ExactMultiTaskGP]) -> None:
    X, Y, Z = data(9, 3, 2)
    noise = 0.05 + torch.rand(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    options = {} if kind is ExactMultiTaskGP else {"dictionary": torch.arange(4)}
    grown = kind(X[:4], Y[:4], icm(3, 2).kernel, train_Yvar=noise[:4], **options)
    for new in (slice(4, 5), slice(5, 9)):
        grown = grown.condition_on_observations(X[new], Y[new], noise=noise[new])
    fitted = kind(X, Y, icm(3, 2).kernel, train_Yvar=noise, **options)
    close(grown.surrogate.regression.noise, noise, 1e-12)
    for ours, theirs in ((grown, fitted), (grown.imagine(Z[:1]), fitted.imagine(Z[:1]))):
        close(ours.at(Z).mean, theirs.at(Z).mean, 1e-8)
        close(ours.at(Z).covariance, theirs.at(Z).covariance, 1e-8)
    close(grown.surrogate.regression.mean_norm, fitted.surrogate.regression.mean_norm, 1e-8)
    if kind is ExactMultiTaskGP:  # along a dictionary the gain is a sum over rounds
        close(grown.info_gain, fitted.info_gain, 1e-9)


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_moving_to_where_it_is_keeps_the_fit(kind: type[ExactMultiTaskGP]) -> None:
    X, Y, Z = data(6, 3, 2)
    model = kind(X, Y, icm(3, 2).kernel, eta=0.1)
    surrogate = model.surrogate
    assert model.to(X).surrogate is surrogate
    assert model.to(torch.double).surrogate is surrogate
    assert model.train().eval().surrogate is surrogate
    close(model.float().mean(Z.float()), surrogate.at(Z).mean, 1e-3)


def on_pretended_device(change: Callable[[ExactMultiTaskGP], None]) -> tuple[Tensor, Tensor]:
    """What an acquisition that exists already says after a change, and one that is built anew."""
    place = PretendDevice()
    with place:
        X, Y, Z = (part.to(place.device) for part in data(6, 3, 2))
        model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
        weights = torch.ones(3).double().to(place.device)
        acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), 2.0)
        acqf(Z.unsqueeze(-2))
        change(model)
        value = acqf(Z.unsqueeze(-2)).to("cpu")  # before anybody else asks the model
        fresh = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights), 2.0)
        return value, fresh(Z.unsqueeze(-2)).to("cpu")


def shorten_in_place(model: ExactMultiTaskGP) -> None:
    with torch.no_grad():
        model.covar_module.base_kernel.raw_lengthscale.add_(0.5)


def shorten_by_loading(model: ExactMultiTaskGP) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({name: value + 0.5 if "lengthscale" in name else value for name, value in state.items()})


def exchange_data(model: ExactMultiTaskGP) -> None:
    model.set_train_data(targets=2 * model.train_targets)


@pytest.mark.parametrize("change", [shorten_in_place, shorten_by_loading, exchange_data])
def test_a_change_is_noticed_on_a_device_too(change: Callable[[ExactMultiTaskGP], None]) -> None:
    old, new = on_pretended_device(change)
    close(old, new, 1e-12)
    unchanged, _ = on_pretended_device(lambda model: None)
    assert not torch.allclose(unchanged, new)
