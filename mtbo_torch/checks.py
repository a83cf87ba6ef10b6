"""Argument checks. Every error says what was expected, what came and what to do."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor


def require_tensor(name: str, value: object, remedy: str) -> Tensor:
    """Check that a value is a floating-point tensor, and return it."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} should be a torch.Tensor, got {type(value).__name__}. {remedy}")
    if not value.is_floating_point():
        raise ValueError(f"{name} should have a floating-point dtype, got {value.dtype}. Use {name}.double().")
    if value.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{name} should be in single or double precision, got {value.dtype}. Use {name}.float() or {name}.double()."
        )
    if value.device.type == "meta":
        raise ValueError(f"{name} should hold numbers, got a tensor on the meta device, which has none. {remedy}")
    return value


def require_finite(name: str, value: Tensor) -> None:
    """Check that a tensor holds neither NaN nor Inf."""
    if not value.is_complex() and math.isfinite(value.sum().item()):  # as it is of finite numbers, unless they are huge
        return
    bad = ~torch.isfinite(value)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} should contain finite numbers only, got {int(bad.sum())} NaN or Inf (the first at index {first}). "
            "Remove or replace these entries."
        )


def require_values(name: str, value: Tensor, allow_missing: bool, hint: str = "") -> None:
    """Check that there is no Inf, and no NaN unless values may be missing; `hint` says how to allow missing values."""
    if not allow_missing:
        try:
            require_finite(name, value)
        except ValueError as error:
            if not hint or not value.isnan().any():
                raise
            raise ValueError(f"{error} {hint}") from None
    elif value.isinf().any():
        first = tuple(value.isinf().nonzero()[0].tolist())
        raise ValueError(
            f"{name} should contain finite numbers, or NaN for missing values, got "
            f"{int(value.isinf().sum())} Inf (the first at index {first}). Remove or replace these entries."
        )


def require_positive(name: str, value: object, remedy: str, allow_zero: bool = False) -> None:
    """Check that numbers are finite and positive (or, with `allow_zero`, not negative)."""
    wanted = "finite and >= 0" if allow_zero else "finite and > 0"
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise ValueError(f"{name} should be a number, {wanted}, got {value!r}. {remedy}")
    if isinstance(value, Tensor) and (value.is_complex() or value.device.type == "meta"):
        raise ValueError(f"{name} should hold real numbers, got {value.dtype} on {value.device}. {remedy}")
    if isinstance(value, Tensor) and value.numel() != 1:
        good = bool((((value >= 0) if allow_zero else (value > 0)) & (value < torch.inf)).all())
    else:
        number = float(value.detach() if isinstance(value, Tensor) else value)
        good = math.isfinite(number) and (number >= 0 if allow_zero else number > 0)
    if not good:
        raise ValueError(f"{name} should be {wanted}, got {describe(value)}. {remedy}")


def require_oversampling(value: object) -> None:
    """Check that the oversampling is one positive number."""
    remedy = "Pass for instance 3.0, or theory_oversampling(...)."
    require_positive("oversampling", value, remedy)
    if isinstance(value, Tensor):
        raise ValueError(f"oversampling should be one number, got {describe(value)}. {remedy}")


def require_count(name: str, value: object, remedy: str) -> None:
    """Check that a value is an integer of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} should be an integer >= 1, got {value!r}. {remedy}")


def require_seed(name: str, value: object) -> None:
    """Check that a value is an integer that a random generator accepts as its seed."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} should be an integer from 0 to 2^63 - 1, got {value!r}. Pass for instance 0.")


def require_broadcast(names: str, *shapes: torch.Size) -> None:
    """Check that shapes broadcast with each other."""
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        listed = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(
            f"{names} should have shapes that broadcast, got {listed}. Use numbers, or tensors of one shape."
        ) from error


def require_probability(name: str, value: float, remedy: str) -> None:
    """Check that a number lies in ``(0, 1]``."""
    if not (isinstance(value, Real) and not isinstance(value, bool) and 0 < value <= 1):
        raise ValueError(f"{name} should lie in (0, 1], got {describe(value)}. {remedy}")


def require_open_unit(name: str, value: float, remedy: str) -> None:
    """Check that a number lies in ``(0, 1)``."""
    if not (isinstance(value, Real) and 0 < value < 1):
        raise ValueError(f"{name} should lie in (0, 1), got {describe(value)}. {remedy}")


def require_task_covar(name: str, value: object) -> None:
    """Check that a tensor is a stack of symmetric positive semi-definite matrices."""
    value = require_tensor(name, value, "Pass an n x n matrix of task covariances.")
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] == 0:
        raise ValueError(
            f"{name} should be `n x n` (or `... x n x n`), got shape {tuple(value.shape)}. "
            "Pass one row and one column per task."
        )
    require_finite(name, value)
    scale = value.abs().amax(dim=(-2, -1), keepdim=True)
    if (scale == 0).any():
        raise ValueError(f"{name} should not be all zero, got a zero matrix. A zero prior cannot learn from data.")
    slack = scale * value.shape[-1] * 100 * torch.finfo(value.dtype).eps
    asymmetry = (value - value.mT).abs()
    if (asymmetry > slack).any():
        raise ValueError(
            f"{name} should be symmetric, got entries that differ from their mirror image by "
            f"{asymmetry.max().item():.3g}. Pass (B + B.T) / 2 if the difference is noise."
        )
    smallest = torch.linalg.eigvalsh(value).amin(dim=-1)
    if (smallest < -slack[..., 0, 0]).any():
        raise ValueError(
            f"{name} should be positive semi-definite, got the eigenvalue {smallest.min().item():.3g}. "
            "Clip negative eigenvalues to zero, or learn it with num_tasks= and rank=."
        )


def require_bounds(bounds: object) -> None:
    """Check that bounds are ``2 x d`` with lower below upper."""
    bounds = require_tensor("bounds", bounds, "Pass torch.stack([lower, upper]).")
    if bounds.dim() != 2 or bounds.shape[0] != 2 or bounds.shape[1] == 0:
        raise ValueError(
            f"bounds should be `2 x d` (a row of lower and a row of upper limits), got shape {tuple(bounds.shape)}. "
            "Pass torch.stack([lower, upper])."
        )
    require_finite("bounds", bounds)
    upside_down = (bounds[0] >= bounds[1]).nonzero().flatten().tolist()
    if upside_down:
        raise ValueError(
            f"bounds should have lower < upper in every column, got lower >= upper in columns {upside_down}. "
            "Swap the two rows there, or leave a constant input out."
        )


def require_choices(name: str, choices: object) -> Tensor:
    """Check that points are a non-empty finite ``N x d`` tensor, and return them."""
    choices = require_tensor(name, choices, "Pass one row per point.")
    if choices.dim() != 2 or 0 in choices.shape:
        raise ValueError(
            f"{name} should be `N x d` with at least one row, got shape {tuple(choices.shape)}. Pass one row per point."
        )
    require_finite(name, choices)
    return choices


def require_same_kind(reference: tuple[str, Tensor], *others: tuple[str, Tensor]) -> None:
    """Check that tensors have the dtype and device of the reference."""
    reference_name, expected = reference
    for name, value in others:
        if value.dtype != expected.dtype or value.device != expected.device:
            raise ValueError(
                f"{name} should have the dtype and device of {reference_name} ({expected.dtype} on {expected.device}), "
                f"got {value.dtype} on {value.device}. Use {name}.to({reference_name})."
            )


def require_batch(name: str, shape: torch.Size, batch_shape: torch.Size) -> None:
    """Check that a batch shape broadcasts to the batch shape of the data."""
    try:
        fits = torch.broadcast_shapes(shape, batch_shape) == batch_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} should have a batch shape that broadcasts to {tuple(batch_shape)} (from train_X), "
            f"got {tuple(shape)}. Expand train_X and train_Y to that batch shape."
        )


def require_data(
    X: object,
    Y: object,
    num_tasks: int | None,
    names: Sequence[str] = ("train_X", "train_Y"),
    allow_missing: bool = False,
    hint: str = "",
) -> None:
    """Check that observations are ``(b) x t x d`` and ``(b) x t x n``, finite, and of one dtype and device.

    `allow_missing` and `hint` as in :func:`require_values`.
    """
    x_name, y_name = names
    X = require_tensor(x_name, X, "Pass one row per point.")
    Y = require_tensor(y_name, Y, "Pass one row per point and one column per task.")
    if X.dim() < 2 or X.shape[-1] == 0:
        raise ValueError(
            f"{x_name} should be `(b) x t x d` with d >= 1, got shape {tuple(X.shape)}. Use unsqueeze(-1) for d = 1."
        )
    if 0 in X.shape[:-2]:
        raise ValueError(
            f"{x_name} should be `(b) x t x d` with b >= 1, got shape {tuple(X.shape)}. Pass at least one data set."
        )
    if Y.dim() != X.dim() or Y.shape[:-1] != X.shape[:-1] or Y.shape[-1] == 0:
        raise ValueError(
            f"{y_name} should be `(b) x t x n` with the same leading shape {tuple(X.shape[:-1])} as {x_name}, "
            f"got shape {tuple(Y.shape)}. Pass one row per point and one column per task."
        )
    if num_tasks is not None and Y.shape[-1] != num_tasks:
        raise ValueError(
            f"{y_name} should be `(b) x t x n` with n = {num_tasks} tasks (from the kernel), "
            f"got shape {tuple(Y.shape)}. Pass one column per task."
        )
    require_same_kind((x_name, X), (y_name, Y))
    require_finite(x_name, X)
    require_values(y_name, Y, allow_missing, hint)


def checksum(value: object) -> str:
    """Return the SHA-256 of nested dicts and lists of tensors and plain values, as ``torch.save`` stores them."""
    digest = hashlib.sha256()

    def feed(part: object) -> None:
        if isinstance(part, Tensor):
            feed(f"{part.dtype} {tuple(part.shape)}")
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(part, Mapping):
            feed(f"dict {len(part)}")
            for key in sorted(part, key=repr):
                feed(key)
                feed(part[key])
        elif isinstance(part, list | tuple):
            feed(f"list {len(part)}")
            for item in part:
                feed(item)
        else:
            text = f"{type(part).__name__} {part!r}".encode()
            digest.update(f"{len(text)} ".encode() + text)

    feed(value)
    return digest.hexdigest()


def name_of(value: object, argument: str) -> str:
    """Return the name by which a saved state knows a function or a class: its module and its place there."""
    name = getattr(value, "__qualname__", None)
    if name is None or "<" in name:
        raise ValueError(
            f"{argument} should have a name to be saved, got {value!r}. Define it at the top of a module, not as a "
            "lambda or inside a function."
        )
    return f"{getattr(value, '__module__', '')}.{name}"


def describe(value: object) -> str:
    """Return a short text that shows an offending value."""
    if isinstance(value, Tensor) and value.numel() > 4:
        return f"a tensor of shape {tuple(value.shape)} with values in [{value.min():.3g}, {value.max():.3g}]"
    return repr(value.tolist() if isinstance(value, Tensor) else value)


def require_ref_point(ref_point: object, size: int, of_what: str, remedy: str) -> Tensor:
    """Check that a reference point has `size` finite entries, and return a detached copy."""
    ref_point = require_tensor("ref_point", ref_point, "Pass one number per objective.")
    if ref_point.shape != (size,):
        raise ValueError(
            f"ref_point should have one entry for each of the {size} {of_what}, got shape {tuple(ref_point.shape)}. "
            f"{remedy}"
        )
    require_finite("ref_point", ref_point)
    return ref_point.detach().clone()


def require_signs(signs: object, num_tasks: int) -> list[int]:
    """Check that there is one sign for each task, and return them."""
    given = signs.tolist() if isinstance(signs, Tensor) else signs
    values: Sequence[Any] = given if isinstance(given, Sequence) else ()
    are_signs = all(v in (-1, 0, 1) and not isinstance(v, bool) for v in values)
    if len(values) != num_tasks or not are_signs or not any(values):
        raise ValueError(
            f"signs should be 1 (maximize), -1 (minimize) or 0 (not an objective) for each of the {num_tasks} tasks, "
            f"not all zero, got {signs!r}. Leave them out to maximize all."
        )
    return [int(value) for value in values]
