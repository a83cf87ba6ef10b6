"""Everything on another device than the CPU: a pretended one, or with ``pytest -m cuda`` a GPU."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from catalogue import (
    KERNELS,
    PATHS,
    Builder,
    commuting_sum,
    data,
    general_sum,
    icm,
    identical_tasks,
    matern,
    rbf,
    scaled,
)
from gpytorch.kernels import LinearKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from pretend_device import PretendDevice, PretendTensor, home
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    ScalarizedMultiTaskUCB,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    exact_radius,
)
from mtbo_torch.experiments.panels import Settings
from mtbo_torch.experiments.reproduce import make_benchmark
from mtbo_torch.experiments.runner import Part, run_part
from mtbo_torch.kernels import ScalarAdapter
from mtbo_torch.linalg import posterior_cholesky
from mtbo_torch.scalarizations import ObjectiveScalarization

slow = pytest.mark.slow
Answers = dict[str, Tensor]
# Norms of matrices are computed in another way than on the CPU, which tests/regression/test_norm.py compares.
OTHER_NORMS = 100.0


class Cuda:
    """What :class:`PretendDevice` counts, as far as a GPU tells."""

    device = torch.device("cuda")

    def __init__(self) -> None:
        self.num_waits = 0
        self.waits: Counter[str] = Counter()
        self.host: Counter[str] = Counter()
        self.undecided: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[Cuda]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield self
            finally:
                torch.cuda.set_sync_debug_mode("default")
        self.num_waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


Place = PretendDevice | Cuda


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "pretended":
        with PretendDevice() as device:
            yield device
    elif torch.cuda.is_available():
        yield Cuda()
    else:
        pytest.skip("there is no GPU")


@dataclass(frozen=True)
class Kind:
    device: torch.device
    dtype: torch.dtype

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)


DTYPES = [(torch.double, torch.float), (torch.float, torch.double)]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"], indirect=True)


@pytest.fixture(params=[DTYPES[0], pytest.param(DTYPES[1], marks=slow)], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Of the data; the default is the other one. Single precision is slow unless a test asks for both."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param[1])
    yield request.param[0]
    torch.set_default_dtype(before)


def check(
    place: Place,
    dtype: torch.dtype,
    scenario: Callable[[Kind], Answers],
    tolerance: float = 1e-6,
    rounding: float = 0.0,
) -> None:
    """The same answers as on the CPU, on the device of the data and in their dtype, without detours.

    A pretended device has the CPU's numbers, to the last bit but for `rounding`, in units of the dtype's; a GPU has
    them up to `tolerance`.
    """
    expected = scenario(Kind(torch.device("cpu"), dtype))
    with place.counting():
        answers = scenario(Kind(place.device, dtype))
    assert answers.keys() == expected.keys()
    for name, answer in answers.items():
        assert answer.device.type == place.device.type, name
        assert answer.dtype == expected[name].dtype, name
        assert answer.dtype == dtype or not answer.is_floating_point(), name
        on_gpu = tolerance if dtype == torch.double else 1e-3
        slack = rounding * torch.finfo(dtype).eps if isinstance(place, PretendDevice) else on_gpu
        torch.testing.assert_close(home(answer), home(expected[name]), rtol=slack, atol=slack, equal_nan=True)
    # A kernel's parameters begin in the default dtype, like those of any module, and are moved.
    assert not [line for line in place.undecided if "kernels.py" not in line]


# The device itself


def test_the_pretended_device_sees_what_it_should() -> None:
    with PretendDevice() as place:
        x = torch.arange(3.0).to(place.device)
        assert isinstance(x, PretendTensor)
        assert str(x.device) == "lazy:0"
        with pytest.raises(RuntimeError, match="one device"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="indexed"):
            torch.ones(3)[x.long()]
        assert home(x + torch.tensor(1.0)).tolist() == [1.0, 2.0, 3.0]  # a number, wherever it is
        assert home((x * torch.ones(3, device=place.device)).sum()).item() == 3.0


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: float(x[0]), 1),
        (lambda x: bool((x > 1).any()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x[[0, 2]], 1),
        (lambda x: x.unique(), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: torch.equal(x, x.clone()), 1),
        (lambda x: torch.tensor([1.0], device=x.device), 1),
        (lambda x: torch.linalg.eigvalsh(torch.outer(x, x)), 1),
        (lambda x: torch.equal(x, x[:2]), 0),
        (lambda x: torch.linalg.cholesky_ex(torch.outer(x, x)), 0),
        (lambda x: torch.where(x > 1, x, 0) + x[x.long()], 0),
        (lambda x: x.new_zeros(3) + torch.arange(3, device=x.device), 0),
    ],
)
def test_waits_are_counted(place: Place, read: Callable[[Tensor], object], count: int) -> None:
    x = torch.arange(3.0).to(place.device)
    with place.counting():
        read(x)
    assert place.num_waits == count


def test_detours_are_counted() -> None:
    with PretendDevice() as place:
        x = torch.zeros(3, device=place.device, dtype=torch.double)
        with place.counting():
            torch.eye(3).to(x)
        assert place.host.total() == place.undecided.total() == 1
        with place.counting():
            torch.eye(3, device=place.device)
        assert (place.host.total(), place.undecided.total()) == (0, 1)
        with place.counting():
            torch.rand(3, generator=torch.Generator(), dtype=x.dtype).to(x)
            torch.eye(3, dtype=x.dtype, device=x.device)
        assert not place.host
        assert not place.undecided


def test_gradients_and_views(place: Place) -> None:
    x = torch.arange(1.0, 4.0).to(place.device).requires_grad_()
    buffer = torch.zeros(2, 3, device=place.device)
    buffer[0, 1:] = x.detach()[1:]
    buffer[1] += 1
    (x.square() * buffer[0]).sum().backward()
    assert home(x.grad).tolist() == [0.0, 8.0, 18.0]
    assert home(buffer[1]).tolist() == [1.0, 1.0, 1.0]


# Kernels and models


@pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
def test_kernels(place: Place, dtype: torch.dtype, build: Builder) -> None:
    def scenario(kind: Kind) -> Answers:
        X, _, Z = map(kind, data(5, 3, 2))
        kernel = build(3, 2).kernel.to(device=kind.device, dtype=kind.dtype)
        return {"matrix": kernel(X, Z).to_dense(), "diagonal": kernel(X, diag=True), "own": kernel(X).to_dense()}

    check(place, dtype, scenario)


# Both models, alone and in a batch; other kernels, one model alone and one in a batch, and single precision are slow.
QUICK_MODELS = [(ExactMultiTaskGP, commuting_sum, True), (NystromMultiTaskGP, general_sum, False)]
CLASSES = (ExactMultiTaskGP, NystromMultiTaskGP)
OTHER_MODELS = [(cls, build, (i + j) % 2 == 0) for i, build in enumerate(PATHS) for j, cls in enumerate(CLASSES)]


@pytest.mark.parametrize(
    ("cls", "build", "batched", "dtype"),
    [
        *((*some, DTYPES[0]) for some in QUICK_MODELS),
        *(pytest.param(*some, DTYPES[1], marks=slow) for some in QUICK_MODELS),
        *(pytest.param(*other, DTYPES[0], marks=slow) for other in OTHER_MODELS if other not in QUICK_MODELS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
    indirect=["dtype"],
)
def test_models(place: Place, dtype: torch.dtype, build: Builder, cls: type, batched: bool) -> None:
    def scenario(kind: Kind) -> Answers:
        X, Y, Z = map(kind, data(8, 3, 2))
        if batched:
            X, Y = torch.stack([X, X.flip(0)]), torch.stack([Y, -Y])
        model = cls(X, Y, covar_module=build(3, 2).kernel, eta=0.1)
        more = model.condition_on_observations(X[..., :2, :] + 0.1, Y[..., :2, :])
        return {**_answers(model, Z), **{f"more {name}": answer for name, answer in _answers(more, Z).items()}}

    check(place, dtype, scenario, rounding=OTHER_NORMS)


@pytest.mark.parametrize("build", [icm, general_sum], ids=lambda build: build.__name__)
def test_a_draw_for_some_data_sets(place: Place, build: Builder) -> None:
    def scenario(kind: Kind) -> Answers:
        X, Y, Z = (kind(torch.stack(parts)) for parts in zip(*[data(8, 3, 2, seed) for seed in range(3)], strict=True))
        dictionary = torch.tensor([[0, 1, 2], [0, 3, 3], [4, 4, 4]])
        model = NystromMultiTaskGP(X, Y, build(3, 2).kernel, eta=0.1, dictionary=dictionary)
        grown = model.surrogate.regression.append(X[:, :1] + 0.1, Y[:, :1])
        sources = [torch.Generator().manual_seed(seed) for seed in range(3)]
        drawn = grown.resample(sources, where=torch.tensor([True, False, True], device=X.device), keep=True)
        tracked = model.surrogate.regression.track(Z[0]).advance(drawn)
        again = grown.redo(*drawn.steps[-1])
        return {"mean": tracked.mean, "norm": tracked.norm, "indices": drawn.dictionary, "again": again.dictionary}

    check(place, torch.double, scenario, rounding=OTHER_NORMS)


def _answers(model: Any, Z: Tensor) -> Answers:
    posterior = model.posterior(Z)
    noisy = model.posterior(Z, output_indices=[2, 0], observation_noise=True)
    mean, norm = (model.at(Z).mean, model.at(Z).norm)
    _, variance = (model.at(Z).mean, model.at(Z).variance())
    answers = {
        "mean": mean,
        "norm": norm,
        "variance": variance,
        "along": model.at(Z).variance(Z.new_ones(1, 3)),
        "mean again": model.mean(Z),
        "covariance": model.covariance(Z),
        "gain": model.info_gain,
        "radius": exact_radius(model.info_gain, 1.0, 0.1, 0.1, 0.1),
        "mean norm": model.surrogate.regression.mean_norm,
        "posterior mean": posterior.mean,
        "posterior variance": posterior.variance,
        "joint": posterior.distribution.covariance_matrix,
        "noisy": noisy.variance,
        "some": model.subset_output([0, 1]).covariance_norm(Z),
        "hallucinated": model.imagine(Z[:2]).at(Z).norm,
    }
    if isinstance(model, ExactMultiTaskGP):
        loo = model.leave_one_out()
        answers |= {"left out": loo[0], "left out too": loo[1], "likelihood": model.log_marginal_likelihood()}
    else:
        answers |= {"dictionary": model.dictionary, "probabilities": model.inclusion_probs}
    return answers


@pytest.mark.parametrize(("build", "share"), [(icm, 0.1), (general_sum, 0.7)], ids=["few", "many"])
def test_missing_values(place: Place, dtype: torch.dtype, build: Builder, share: float) -> None:
    def scenario(kind: Kind) -> Answers:
        X, Y, Z = map(kind, data(8, 3, 2))
        is_missing = torch.rand(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double) < share
        Y = torch.where(is_missing.to(kind.device), torch.nan, Y)
        model = ExactMultiTaskGP(X, Y, covar_module=build(3, 2).kernel, eta=0.1, allow_missing=True)
        more = model.condition_on_observations(Z[:2], Y[:2])
        mean, norm = (more.at(Z).mean, more.at(Z).norm)
        left_out = [part[~part.isnan()] for part in model.leave_one_out()]
        answers = {"left out": left_out[0], "left out too": left_out[1], "likelihood": model.log_marginal_likelihood()}
        return {"before": model.mean(Z), "mean": mean, "norm": norm, "gain": more.info_gain} | answers

    check(place, dtype, scenario, rounding=OTHER_NORMS)


@both_dtypes
@pytest.mark.parametrize("cls", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_noises_and_transforms(place: Place, dtype: torch.dtype, cls: type) -> None:
    def scenario(kind: Kind) -> Answers:
        X, Y, Z = map(kind, data(8, 3, 2))
        eta = torch.tensor([0.1, 0.2, 0.3], dtype=torch.double)
        transforms = {"outcome_transform": Standardize(3), "input_transform": Normalize(2)}
        models = {
            "of each task": cls(X, Y, covar_module=icm(3, 2).kernel, eta=eta, **transforms),
            "of each value": cls(X, Y, covar_module=icm(3, 2).kernel, train_Yvar=0.1 + Y.square(), **transforms),
        }
        return {
            f"{name} {what}": answer
            for name, model in models.items()
            for what, answer in zip(("mean", "norm"), (model.at(Z).mean, model.at(Z).norm), strict=True)
        }

    check(place, dtype, scenario, rounding=OTHER_NORMS)


@pytest.mark.parametrize("cls", [ExactMultiTaskGP, pytest.param(NystromMultiTaskGP, marks=slow)])
def test_learning(place: Place, dtype: torch.dtype, cls: type) -> None:
    def scenario(kind: Kind) -> Answers:
        X, _, Z = map(kind, data(8, 2, 2))
        model = cls(X, torch.stack([X.sum(dim=-1).sin(), X.prod(dim=-1)], dim=-1))
        options = {"options": {"maxiter": 5}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # five steps are not enough
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=options)
        return {"mean": model.mean(Z), "noise": model.noise.detach(), "B": model.covar_module.task_covar.detach()}

    check(place, dtype, scenario)


def test_what_was_moved_is_forgotten_and_fitted_again(place: Place) -> None:
    X, Y, Z = data(8, 3, 2)
    model = ExactMultiTaskGP(X, Y, covar_module=icm(3, 2).kernel, eta=0.1)
    expected = model.mean(Z)
    moved = model.to(place.device)
    answer = moved.mean(Z.to(place.device))
    assert answer.device.type == place.device.type
    torch.testing.assert_close(home(answer), expected)
    with torch.no_grad():
        moved.covar_module.base_kernel.raw_lengthscale.add_(1.0)
    assert not torch.allclose(home(moved.mean(Z.to(place.device))), expected)
    with pytest.raises(ValueError, match="device of train_X"):
        moved.mean(Z)


# Acquisition functions

MODELS_AND_BOUNDS = [
    (ExactMultiTaskGP, "norm"),
    (NystromMultiTaskGP, "ellipsoid"),
    (ExactMultiTaskGP, "ellipsoid"),
    (NystromMultiTaskGP, "norm"),
]


def with_models(name: str, options: dict[str, Any], dtypes: bool = False, quick: Container[str] | None = None) -> Any:
    """Ask everything of every model with every bound: of one quickly, of the others slowly, and some in both dtypes.

    Args:
        name: The argument that an option is.
        options: By what they are called.
        dtypes: Whether the tests have a dtype.
        quick: The options that are asked quickly; all by default.
    """
    cases = []
    for i, (option, value) in enumerate(options.items()):
        for j, (cls, bound) in enumerate(MODELS_AND_BOUNDS):
            is_quick = j == i % 2 and (quick is None or option in quick)
            for dtype in (DTYPES if j > 1 else DTYPES[:1]) if dtypes else [None]:
                values = [value, cls, bound, *([] if dtype is None else [dtype])]
                title = "-".join([option, cls.__name__, bound, *([] if dtype is None else [str(dtype[0])])])
                cases.append(pytest.param(*values, marks=[] if is_quick else [slow], id=title))
    names = [name, "cls", "bound", *(["dtype"] if dtypes else [])]
    return pytest.mark.parametrize(names, cases, indirect=["dtype"] if dtypes else False)


OBJECTIVES = torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.double)
CONSTRAINTS = (
    torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.double),
    torch.tensor([0.8, 0.9, 0.5], dtype=torch.double),
)
BASES = {
    "RBF": lambda: rbf(0.5),
    "scaled Matern": lambda: scaled(matern(0.7), 1.7),
    "sums and products": lambda: rbf(0.5, [0]) * matern(0.9, [1]) + scaled(rbf(0.3, [1]), 0.6),
}


def acquisition(
    kind: Kind,
    cls: type = ExactMultiTaskGP,
    base: str = "RBF",
    eta: float | Tensor = 0.1,
    kernel: Any = None,
    objectives: Tensor | None = None,
    is_constrained: bool = False,
    num_pending: int = 0,
    linear: bool = False,
    where: str = "device",
    tasks: list[int] | None = None,
    of_model: dict[str, Any] | None = None,
    **options: Any,
) -> ScalarizedMultiTaskUCB:
    X, Y, _ = map(kind, data(9, 3, 2))
    B = OBJECTIVES.abs() + 0.3
    of_model = {"train_Y": Y, "eta": eta} if of_model is None else {"train_Y": Y} | of_model
    of_model = {name: kind(value) if isinstance(value, Tensor) else value for name, value in of_model.items()}
    model = cls(X, covar_module=ICMKernel(BASES[base](), B) if kernel is None else kernel, **of_model)
    model = model if tasks is None else model.subset_output(tasks)
    own = kind if where == "device" else Kind(torch.device("cpu"), kind.dtype)
    weights = own(torch.tensor([0.2, 0.3, 0.5][: model.num_outputs], dtype=torch.double))
    target = own(Y[0, : model.num_outputs])
    scalarization: Any = LinearScalarization(weights) if linear else ChebyshevScalarization(weights, target)
    if objectives is not None:
        scalarization = ObjectiveScalarization(scalarization, own(objectives))
    if is_constrained:
        A, c = CONSTRAINTS
        options["constraints"] = (own(A[:, : model.num_outputs]), own(c))
    if num_pending:
        options["X_pending"] = X[:num_pending] + 0.05
    ucb = NystromScalarizedMultiTaskUCB if cls is NystromMultiTaskGP else ScalarizedMultiTaskUCB
    return ucb(model, scalarization, radius=1.5, **options)


def value_and_gradient(place: Place, kind: Kind, acqf: ScalarizedMultiTaskUCB, count: int = 9, q: int = 1) -> Answers:
    """At as many points as there are observations by default: then the host library compares them, too."""
    points = kind(data(count * q, 3, 2, seed=1)[0]).unflatten(0, (count, q)).requires_grad_()
    with place.counting():
        value = acqf(points)
        value.sum().backward()
    assert points.grad is not None
    return {"value": value.detach(), "gradient": points.grad}


ASKED: list[dict[str, Any]] = [
    {},
    {"linear": True},
    {"is_constrained": True, "infeasible_value": -3.0},
    {"objectives": OBJECTIVES},
    {"num_pending": 2},
    {"num_pending": 2, "is_constrained": True},
    {"where": "host", "is_constrained": True, "objectives": OBJECTIVES},
]


@with_models("options", {", ".join(options) or "plain": options for options in ASKED}, dtypes=True)
def test_an_acquisition_never_waits(place: Place, dtype: torch.dtype, cls: type, bound: str, options: Any) -> None:
    def scenario(kind: Kind) -> Answers:
        answers = value_and_gradient(place, kind, acquisition(kind, cls, bound=bound, **options))
        if kind.device.type != "cpu":
            assert place.num_waits == 0, place.waits
            assert not place.host
        return answers

    check(place, dtype, scenario)


@with_models(
    "points",
    {
        f"{base} at {count}": (base, count)
        for base, count in [("RBF", 100), ("sums and products", 9), ("scaled Matern", 9), ("scaled Matern", 100)]
    },
    quick=["RBF at 100", "sums and products at 9"],
)
def test_no_kernel_of_these_makes_it_wait(place: Place, cls: type, bound: str, points: tuple[str, int]) -> None:
    base, count = points

    def scenario(kind: Kind) -> Answers:
        acqf = acquisition(kind, cls, base, bound=bound, is_constrained=True)
        answers = value_and_gradient(place, kind, acqf, count)
        if kind.device.type != "cpu":
            assert place.num_waits == 0, place.waits
        return answers

    check(place, torch.double, scenario, rounding=5000)


SEVERAL_NOISES = torch.tensor([0.1, 0.2, 0.3], dtype=torch.double)


def _not_commuting() -> SumOfSeparableKernel:
    lopsided = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.double))
    return SumOfSeparableKernel([ICMKernel(rbf(0.5), OBJECTIVES.abs() + 0.3), ICMKernel(matern(0.8), lopsided)])


@with_models(
    "options",
    {
        "several noises": lambda: {"eta": SEVERAL_NOISES},
        "not commuting": lambda: {"kernel": _not_commuting()},
        "objectives": lambda: {"objectives": OBJECTIVES + 0.5},
        "objectives, constrained": lambda: {"objectives": OBJECTIVES + 0.5, "is_constrained": True},
    },
    dtypes=True,
)
def test_no_norm_of_a_matrix_makes_it_wait(
    place: Place, dtype: torch.dtype, cls: type, bound: str, options: Callable[[], Any]
) -> None:
    def scenario(kind: Kind) -> Answers:
        answers = value_and_gradient(place, kind, acquisition(kind, cls, bound=bound, **options()), count=7)
        if kind.device.type != "cpu":
            assert place.num_waits == 0, place.waits
            assert not place.host
        return answers

    check(place, dtype, scenario, rounding=OTHER_NORMS)


WAYS_TO_ASK: dict[str, dict[str, Any]] = {
    "alone": {"is_constrained": True},
    "some tasks": {"tasks": [2, 0], "is_constrained": True},
    "two at a time": {"q": 2},
    "two of some tasks beside another": {"q": 2, "tasks": [2, 0], "num_pending": 1, "linear": True},
}


def asked(place: Place, kind: Kind, cls: type, q: int = 1, **options: Any) -> Answers:
    answers = value_and_gradient(place, kind, acquisition(kind, cls, **options), q=q)
    if kind.device.type != "cpu":
        assert place.num_waits == 0, place.waits
        assert not place.host
    return answers


TOGETHER = "two of some tasks beside another"


@with_models(
    "asking",
    {f"{build.__name__} {TOGETHER}": (build, TOGETHER) for build in PATHS}
    | {f"{build.__name__} alone": (build, "alone") for build in (icm, general_sum)},
    quick=[f"{build.__name__} {TOGETHER}" for build in (icm, general_sum, identical_tasks)],
)
def test_no_way_to_ask_makes_it_wait(place: Place, cls: type, bound: str, asking: tuple[Builder, str]) -> None:
    build, way = asking

    def scenario(kind: Kind) -> Answers:
        return asked(place, kind, cls, bound=bound, kernel=build(3, 2).kernel, **WAYS_TO_ASK[way])

    check(place, torch.double, scenario, rounding=5000)


def test_jitter_is_that_of_the_host_library_without_waiting(place: Place) -> None:
    eye = torch.eye(2, dtype=torch.double)
    flat = torch.ones(2, 2, dtype=torch.double)
    matrices = torch.stack([eye, flat, flat - 3e-8 * eye, flat - 3e-7 * eye]).requires_grad_()
    expected = posterior_cholesky(matrices)
    moved = matrices.detach().to(place.device).requires_grad_()
    with place.counting():
        chol = posterior_cholesky(moved)
        slope = torch.autograd.grad(chol.sum(), moved)[0]
    assert place.num_waits == 0, place.waits
    torch.testing.assert_close(home(chol), expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(home(slope), torch.autograd.grad(expected.sum(), matrices)[0], rtol=1e-6, atol=0)
    assert home(posterior_cholesky(-moved)).isnan().all()


def _with_missing(*places: tuple[int, int]) -> dict[str, Any]:
    Y = data(9, 3, 2)[1]
    for point, task in places:
        Y[point, task] = torch.nan
    return {"train_Y": Y, "eta": SEVERAL_NOISES, "allow_missing": True}


MODELS: dict[str, Callable[[], dict[str, Any]]] = {
    "variances of tasks": lambda: {"train_Yvar": SEVERAL_NOISES.expand(9, 3)},
    "variances of values": lambda: {"train_Yvar": 0.1 + data(9, 3, 2)[1].square()},
    "transforms": lambda: {"eta": 0.1, "outcome_transform": Standardize(3), "input_transform": Normalize(2)},
    "a mean": lambda: {"eta": SEVERAL_NOISES, "mean_module": ConstantMean()},
    "few missing": lambda: _with_missing((0, 1), (4, 2)),
    "many missing": lambda: _with_missing(*((i, j) for i in range(9) for j in range(3) if (i + j) % 2)),
}


@pytest.mark.parametrize(
    ("way", "bound"),
    [
        ("two of some tasks beside another", "ellipsoid"),
        pytest.param("some tasks", "norm", marks=slow),
        pytest.param("two at a time", "norm", marks=slow),
    ],
)
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        *((ExactMultiTaskGP, name) for name in MODELS if name not in ("variances of tasks", "a mean")),
        (NystromMultiTaskGP, "variances of values"),
        pytest.param(ExactMultiTaskGP, "variances of tasks", marks=slow),
        pytest.param(ExactMultiTaskGP, "a mean", marks=slow),
        *(
            pytest.param(NystromMultiTaskGP, name, marks=slow)
            for name in ("variances of tasks", "transforms", "a mean")
        ),
    ],
)
def test_no_model_of_ours_makes_it_wait(place: Place, cls: type, bound: str, way: str, name: str) -> None:
    def scenario(kind: Kind) -> Answers:
        return asked(place, kind, cls, bound=bound, of_model=MODELS[name](), **WAYS_TO_ASK[way])

    check(place, torch.double, scenario, rounding=5000)


@pytest.mark.parametrize("cls", [ExactMultiTaskGP, NystromMultiTaskGP])
@pytest.mark.parametrize("q", [pytest.param(1, marks=slow), 2])
def test_optimize_acqf(place: Place, dtype: torch.dtype, cls: type, q: int) -> None:
    def scenario(kind: Kind) -> Answers:
        bounds = kind(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ends of line searches at a kink
            x, value = optimize_acqf(
                acquisition(kind, cls), bounds, q=q, num_restarts=2, raw_samples=16, sequential=True
            )
        return {"x": x, "value": value}

    check(place, dtype, scenario, tolerance=1e-4)


@pytest.mark.parametrize(
    "kernel",
    [rbf(0.5), matern(0.7), scaled(matern(0.7), 1.7), BASES["sums and products"](), LinearKernel().double()],
    ids=lambda kernel: type(kernel).__name__,
)
def test_prior_variances_are_the_host_librarys(kernel: Any) -> None:
    X = data(5, 1, 2)[0].expand(3, 5, 2)
    torch.testing.assert_close(ScalarAdapter(kernel, None).diag(X), kernel(X, diag=True), rtol=1e-15, atol=0)


# Strategies

# By ask and by tell, in a round after the first few. Choosing on a box, apart from the optimizer, which works on the
# host, and from learning a kernel, which does, too.
WAITS = {
    "MTKB on choices": (5, 7),
    "MTBKB on choices": (6, 18),
    "MTKB on bounds": (7, 7),
    "MTBKB on bounds": (9, 18),
    "MTKB, trials": (5, 7),
    "MTBKB, trials": (6, 22),
    "MTBKB, delayed": (6, 18),
    "MTKB, constrained": (10, 7),
    "MTKB, ellipsoid": (5, 7),
    "MTKB, pending": (11, 8),
    "MTKB, learned": (10, 7),
    "MTBKB, learned": (11, 18),
    "MTKB, mixture": (7, 7),
    "MTBKB, mixture": (8, 18),
    "MTBKB, mixture, bounds": (12, 17),
}
STRATEGIES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "MTKB on choices": (MTKB, "choices", {}),
    "MTBKB on choices": (MTBKB, "choices", {}),
    "MTKB on bounds": (MTKB, "bounds", {}),
    "MTBKB on bounds": (MTBKB, "bounds", {}),
    "MTKB, trials": (MTKB, "choices", {"seed": [0, 1]}),
    "MTBKB, trials": (MTBKB, "choices", {"seed": [0, 1]}),
    "MTBKB, delayed": (MTBKB, "choices", {"schedule": "delayed"}),
    "MTKB, constrained": (MTKB, "choices", {"signs": [1, -1], "constraints": tuple(c[:2] for c in CONSTRAINTS)}),
    "MTKB, ellipsoid": (MTKB, "choices", {"bound": "ellipsoid"}),
    "MTKB, mixture": (MTKB, "choices", {"bound": "mixture"}),
    "MTBKB, mixture": (MTBKB, "choices", {"bound": "mixture"}),
    "MTBKB, mixture, bounds": (MTBKB, "bounds", {"bound": "mixture"}),
    "MTKB, pending": (MTKB, "choices", {"q": 2}),
    "MTKB, learned": (MTKB, "choices", {"refit_every": 4}),
    "MTBKB, learned": (MTBKB, "choices", {"refit_every": 4}),
}


def started(kind: Kind, name: str) -> tuple[Any, int]:
    """A strategy, and how many points to ask for at a time."""
    cls, space, options = STRATEGIES[name]
    options = dict(options)
    q = options.pop("q", 1)
    if space == "choices":
        options["choices"] = kind(torch.rand(30, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0)))
    else:
        options["bounds"] = kind(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
        options |= {"num_restarts": 2, "raw_samples": 16}
    if "constraints" in options:
        A, c = options["constraints"]
        options["constraints"] = (A[:, :2], c)
    if "refit_every" in options:
        return cls(2, **options), q
    kernel = TaskSimilarityKernel(rbf(0.4), 2, 0.4)
    return cls(kernel, norm_bound=30.0, noise_scale=0.1, **({"bound": "norm"} | options)), q


def objective(x: Tensor) -> Tensor:
    return torch.cat([x.sum(dim=-1, keepdim=True).sin(), -x.square().sum(dim=-1, keepdim=True)], dim=-1)


# The longest runs are slow, and so is single precision.
QUICK = ["MTKB on choices", "MTBKB, delayed", "MTKB, constrained", "MTBKB, mixture"]
IN_SINGLE_PRECISION = ["MTKB on choices", "MTBKB, learned", "MTBKB, mixture"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, DTYPES[0]) for name in QUICK),
        *(pytest.param(name, DTYPES[0], marks=slow) for name in STRATEGIES if name not in QUICK),
        *(pytest.param(name, DTYPES[1], marks=slow) for name in IN_SINGLE_PRECISION),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[0]),
    indirect=["dtype"],
)
def test_strategies_and_their_waits_in_a_round(place: Place, dtype: torch.dtype, name: str) -> None:
    runs = []

    def scenario(kind: Kind) -> Answers:
        strategy, q = started(kind, name)
        for _ in range(5):
            x = strategy.ask(q)
            strategy.tell(x, objective(x))
        runs.append((strategy, q))
        model = strategy.model
        norm = strategy.covariance_norm(x)
        return {"X": strategy.train_X, "radius": strategy.radius, "norm": norm, "mean": model.mean(x)}

    # Tasks whose noise is learned have each their own, and a norm that is not that of one group.
    check(place, dtype, scenario, tolerance=1e-4, rounding=OTHER_NORMS if "learned" in name else 0.0)
    check_waits(place, name, *runs[-1])


def check_waits(place: Place, name: str, strategy: Any, q: int) -> None:
    with place.counting():
        x = strategy.ask(q)
    asking = place.num_waits
    if isinstance(place, PretendDevice):
        asking = sum(count for line, count in place.waits.items() if "/optimization.py" not in line)
        # Weights and Sobol points are drawn on the host, where the generators are.
        assert not [
            line for line in place.host if not line.partition(":")[0].endswith(("scalarizations.py", "optimization.py"))
        ]
    with place.counting():
        strategy.tell(x, objective(x))
    on_box = STRATEGIES[name][1] == "bounds"
    assert place.num_waits <= WAITS[name][1], place.waits
    if isinstance(place, PretendDevice) or not on_box:  # a GPU does not say who waited
        assert asking <= WAITS[name][0], place.waits


@pytest.mark.parametrize("name", ["MTKB on choices", pytest.param("MTBKB, learned", marks=slow)])
def test_continuing_on_another_device(place: Place, name: str) -> None:
    strategy, q = started(Kind(torch.device("cpu"), torch.double), name)
    for _ in range(5):
        x = strategy.ask(q)
        strategy.tell(x, objective(x))
    other, _ = started(Kind(place.device, torch.double), name)
    other.load_state_dict(strategy.state_dict())
    torch.testing.assert_close(home(other.ask(q)), strategy.ask(q))
    strategy.forget()
    other.forget()
    for x in (strategy.train_X[-1], strategy.train_X[0]):
        strategy.tell(x, objective(x))
        other.tell(x.to(place.device), objective(x).to(place.device))
    torch.testing.assert_close(home(other.radius), strategy.radius)


def test_missing_values_told(place: Place, dtype: torch.dtype) -> None:
    def scenario(kind: Kind) -> Answers:
        strategy, _ = started(kind, "MTKB on choices")
        for i in range(4):
            x = strategy.ask()
            y = objective(x)
            y[..., i % 2] = torch.nan
            strategy.tell(x, y, allow_missing=True)
        return {"X": strategy.train_X, "norm": strategy.covariance_norm(strategy.space.points)}

    check(place, dtype, scenario, rounding=OTHER_NORMS)


@pytest.mark.parametrize(
    "algorithm",
    [
        "MT-KB",
        *(pytest.param(name, marks=slow) for name in ("MT-BKB", "MT-KB-ellipsoid", "IT-KB", "IT-BKB", "MOBO")),
        "random",
        "Sobol",
    ],
)
def test_runs(place: Place, algorithm: str) -> None:
    columns = []
    for device in ("cpu", place.device.type):
        columns.append(
            run_part(Part(make_benchmark("rkhs-2-chebyshev", Settings(rounds=6, device=device)), algorithm, (0, 1)))[0]
        )
    assert columns[0].keys() == columns[1].keys()
    for name, column in columns[1].items():
        torch.testing.assert_close(column, columns[0][name], equal_nan=True)
