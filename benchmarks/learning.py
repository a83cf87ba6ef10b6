"""Compare learning a kernel (t = 300, n = 9 tasks) with ``KroneckerMultiTaskGP``: ``make bench-learning``."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import time
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import KroneckerMultiTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.optim.closures import get_loss_closure_with_grads
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from record import format_rows, record
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel, NystromMultiTaskGP

T, N, D = 300, 9, 4
PATIENCE = 180.0  # seconds; a longer fit is cut off, and the ratio is a lower bound


def draw_observations() -> tuple[Tensor, Tensor]:
    """Draw noisy values from the model that is to be learned."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(T, D, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.5, dtype=torch.double)
    root = torch.linalg.cholesky(kernel(X).to_dense().detach() + 1e-8 * torch.eye(T, dtype=torch.double))
    mixing = torch.randn(N, N, generator=generator, dtype=torch.double) / N**0.5
    Y = root @ torch.randn(T, N, generator=generator, dtype=torch.double) @ mixing.T
    Y = Y + 0.1 * torch.randn(T, N, generator=generator, dtype=torch.double)
    return X, (Y - Y.mean(dim=0)) / Y.std(dim=0)


def make_builder(model_class: type[ExactMultiTaskGP | NystromMultiTaskGP]) -> Callable[[Tensor, Tensor], GPyTorchModel]:
    return lambda X, Y: model_class(X, Y, ICMKernel(RBFKernel(ard_num_dims=D), num_tasks=N))


def build_theirs(X: Tensor, Y: Tensor) -> GPyTorchModel:
    return KroneckerMultiTaskGP(X, Y, data_covar_module=RBFKernel(ard_num_dims=D), rank=N)


def measure(build: Callable[[Tensor, Tensor], GPyTorchModel], X: Tensor, Y: Tensor) -> tuple[float, float]:
    """Measure the seconds for one value with its gradient, and for the whole fit."""
    model = build(X, Y)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    closure = get_loss_closure_with_grads(mll, dict(mll.named_parameters()))
    closure()
    started = time.perf_counter()
    closure()
    one = time.perf_counter() - started
    model = build(X, Y)
    started = time.perf_counter()
    with suppress(ModelFittingError):  # out of patience
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll, max_attempts=1, optimizer_kwargs={"timeout_sec": PATIENCE})
    return one, time.perf_counter() - started


def main() -> None:
    warnings.simplefilter("ignore")  # BoTorch's and GPyTorch's
    X, Y = draw_observations()
    print(f"{f't = {T}, n = {N}, d = {D}':<24}{'value and gradient (s)':>24}{'fit (s)':>10}")
    times = {}
    for name, build in {
        "ExactMultiTaskGP": make_builder(ExactMultiTaskGP),
        "NystromMultiTaskGP": make_builder(NystromMultiTaskGP),
        "KroneckerMultiTaskGP": build_theirs,
    }.items():
        times[name] = measure(build, X, Y)
        print(f"{name:<24}{times[name][0]:>24.3f}{times[name][1]:>10.1f}", flush=True)
    ratios = [times["KroneckerMultiTaskGP"][i] / times["ExactMultiTaskGP"][i] for i in range(2)]
    at_least = "at least" if times["KroneckerMultiTaskGP"][1] > PATIENCE else ""
    rows = [(name, f"{one:.3f}", f"{fit:.1f}") for name, (one, fit) in times.items()]
    rows.append(
        ("KroneckerMultiTaskGP over ExactMultiTaskGP", f"{ratios[0]:.1f}", f"{at_least} {ratios[1]:.1f}".strip())
    )
    head = (f"t = {T}, n = {N}, d = {D}", "value and gradient (s)", "fit (s)")
    sources = ["benchmarks/learning.py", "mtbo_torch/regression/likelihood.py", "mtbo_torch/models"]
    record("learning", format_rows([head, *rows]), "make bench-learning", sources)
    print(f"{'theirs over ours':<24}{ratios[0]:>24.1f}{at_least:>10}{ratios[1]:>7.1f}   (bound: 10; ours below 30 s)")


if __name__ == "__main__":
    main()
