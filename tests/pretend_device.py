"""A device that is not there: tensors say that they live on it, while the numbers are made on the CPU.

It runs real programs, values, gradients and all, and sees what would be wrong on a GPU: tensors of two devices in one
operation, memory taken on the host or in the default dtype, and every place at which the host would wait.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CPU = torch.device("cpu")
# The only type of device beside the CPU's that every build of torch can make tensors of with gradients. As on a GPU,
# tensors have its number, which a user leaves out.
PRETENDED = torch.device("lazy")
FIRST = torch.device("lazy", 0)

# Operations that take a host's tensor to the device or back, or may have indices on the host.
MOVES = {aten.copy_.default, aten._to_copy.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# What they return, or its shape, depends on values. (``equal`` looks at the values only if the shapes are equal.)
READS = {
    aten._local_scalar_dense,
    aten._unique2,
    aten.bincount,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten.unique_consecutive,
    aten.unique_dim,
}
# Read a code of success from the device, as their documentation says (and the source of `cholesky_inverse`).
CHECKED = {
    aten._linalg_eigh,
    aten._linalg_svd,
    aten.cholesky,
    aten.cholesky_inverse,
    aten.linalg_cholesky,
    aten.linalg_eig,
    aten.linalg_inv,
    aten.linalg_lstsq,
}
OTHERS = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"), __file__)


class PretendTensor(torch.Tensor):
    """A tensor on the pretended device; its numbers are `numbers`."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendTensor:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            layout=real.layout,
            device=FIRST,
        )
        self.numbers = real
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.numbers})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            # Torch would make a tensor of a list out of the sight of everybody.
            args = (args[0], _without_lists(args[1]), *args[2:])
        if func is Tensor.tolist:  # which knows no subclasses
            return args[0].to(CPU).tolist()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, lambda kind: None)

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()


class PretendDevice(TorchDispatchMode):
    """While it is entered, ``device`` can be used like any other, and what happens is counted.

    Attributes:
        waits: By place in the code, how often the host would have waited for the device.
        host: By place, how often tensors were made on the host, other than by drawing from a generator.
        undecided: By place, how often floating-point tensors were made without saying their dtype.
    """

    device = PRETENDED

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.host: Counter[str] = Counter()
        self.undecided: Counter[str] = Counter()

    def __enter__(self) -> PretendDevice:
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) goes through the host, in our sight
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._before)
        super().__exit__(*failure)

    @contextmanager
    def counting(self) -> Iterator[PretendDevice]:
        """Count from zero in here."""
        for counter in (self.waits, self.host, self.undecided):
            counter.clear()
        yield self

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self._note)

    def _note(self, kind: str) -> None:
        counter: Counter[str] = getattr(self, kind)
        counter[_place()] += 1


def home(tensor: Tensor) -> Tensor:
    """The numbers, on the CPU."""
    return tensor.detach().numbers if isinstance(tensor, PretendTensor) else tensor.detach().cpu()


def _run(func: Any, args: Any, kwargs: dict[str, Any], note: Callable[[str], None]) -> Any:
    tensors = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    here = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    goes_there = bool(there) if wanted is None else wanted.type == PRETENDED.type
    is_index = func in INDEXED
    # A number on the host is an argument of a kernel, like any other number.
    if there and any(tensor.dim() for tensor in here) and not is_index and func not in MOVES:
        shapes = [tuple(tensor.shape) for tensor in here]
        raise RuntimeError(f"Tensors should be on one device, got {func} with {shapes} on the CPU at {_place()}.")
    if is_index and not isinstance(args[0], PretendTensor) and there:
        raise RuntimeError(f"A tensor on the CPU was indexed by one on the device at {_place()}.")
    if _waits(func, args, there, here, goes_there):
        note("waits")
    real_kwargs = {**kwargs, "device": CPU} if wanted is not None and goes_there else kwargs
    out = func(*tree_map(_real, args), **tree_map(_real, real_kwargs))
    if not tensors and isinstance(out, Tensor) and _is_our_own_doing():
        if not goes_there and kwargs.get("generator") is None:
            note("host")
        if out.is_floating_point() and kwargs.get("dtype") is None:
            note("undecided")
    written = [a for a, spec in zip(args, func._schema.arguments, strict=False) if _is_written(spec)]
    if written and isinstance(written[0], Tensor):
        mine = written[0]
        has_grown = isinstance(mine, PretendTensor) and mine.shape != mine.numbers.shape
        return PretendTensor(mine.numbers) if has_grown else mine
    return tree_map(lambda part: PretendTensor(part) if isinstance(part, Tensor) else part, out) if goes_there else out


def _waits(func: Any, args: Any, there: list[Tensor], here: list[Tensor], goes_there: bool) -> bool:
    if func in MOVES:
        # Copies between devices wait, both ways, unless the memory is pinned.
        return bool(there and here) or (bool(there) != goes_there and bool(there or here))
    if not there:
        return False
    if func in INDEXED:
        indices = [index for index in args[1] if index is not None]
        return any(not isinstance(i, PretendTensor) or i.dtype in (torch.bool, torch.uint8) for i in indices)
    operation = func.overloadpacket
    if operation is aten.equal:
        return args[0].shape == args[1].shape and args[0].numel() > 0
    return operation in READS or operation in CHECKED


def _is_written(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write


def _real(part: Any) -> Any:
    return part.numbers if isinstance(part, PretendTensor) else part


def _without_lists(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    if isinstance(index, list | range):
        return torch.tensor(index, dtype=None if len(index) else torch.long)
    return index


def _frames() -> Iterator[FrameType]:
    """From the inside."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _place() -> str:
    """The innermost line of ours."""
    for frame in _frames():
        name = frame.f_code.co_filename
        if not name.startswith(OTHERS):
            return f"{'/'.join(name.split('/')[-2:])}:{frame.f_lineno}"
    return "nowhere"


def _is_our_own_doing() -> bool:
    """Whether torch was called by us, and not by another library."""
    names = (frame.f_code.co_filename for frame in _frames())
    return not next(name for name in names if name != __file__ and "/torch/" not in name).startswith(OTHERS)
