"""Combining tensors: a left fold in exactly the order given, the same bits on every rank and in every run.

Half precision is folded in single, and rounded once at the end, not W-1 times on the way. Unsigned integers that torch
cannot add are folded in wider signed ones, whose lower bits are the same; integers wrap around, as in C. Of bool, sum,
max and bor are "or", product, min and band are "and". NaN and infinities go their way as in torch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["OPS", "check", "combine", "wide"]

BLOCK = 1 << 16
"""Elements folded at a time, so that the running value stays in the cache between one part and the next."""

OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "product": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}

_FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COMPLEX = {torch.complex64, torch.complex128}
_INTEGER = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
            torch.bool}

_WIDE = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64,
}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of `dtype` are folded."""
    return _WIDE.get(dtype, dtype)


def check(op: str, dtype: torch.dtype) -> None:
    """Raise TypeError if tensors of `dtype` cannot be combined with `op`, which is one of :data:`OPS`."""
    if dtype.is_floating_point and dtype not in _FLOATING:
        why = "torch has no arithmetic for it, it can only be moved; use bfloat16 or float32"
    elif dtype not in _FLOATING | _COMPLEX | _INTEGER:
        why = "torch has no arithmetic for it, it can only be moved, as with all_gather"
    elif op in ("max", "min") and dtype in _COMPLEX:
        why = "complex numbers have no order; use torch.view_as_real, or their absolute values"
    elif op in ("max", "min") and dtype == torch.uint64:
        why = "torch cannot compare it; use a view as int64, if all values are below 2**63"
    elif op in ("band", "bor", "bxor") and dtype not in _INTEGER:
        why = "it works on the bits of integers; use a view of the tensor as an integer dtype of its size"
    elif op == "avg" and dtype in _INTEGER:
        why = "a mean of integers is none; use sum, and divide"
    else:
        return
    raise TypeError(f"frogtorch cannot reduce {dtype} with {op}: {why}")


def combine(into: torch.Tensor, parts: Sequence[torch.Tensor], op: str) -> None:
    """``into = (parts[0] op parts[1]) op ...``, for flat tensors of one length; `into` may be one of the parts.

    ``avg`` is the sum, divided by the number of parts.
    """
    count = into.numel()
    dtype = wide(into.dtype)
    # Into `into` itself only where no part that is still to come can be in it.
    straight = dtype == into.dtype and all(part.data_ptr() != into.data_ptr() for part in parts[2:])
    room = into if straight else torch.empty(min(count, BLOCK), dtype=dtype)
    if count <= BLOCK or (straight and len(parts) == 2):  # where the running value is read again, in small blocks
        _fold(into, parts, op, room)
        return
    for lo in range(0, count, BLOCK):
        target = into[lo:lo + BLOCK]
        _fold(target, [part[lo:lo + BLOCK] for part in parts], op, target if straight else room[:target.numel()])


def _fold(into: torch.Tensor, parts: Sequence[torch.Tensor], op: str, value: torch.Tensor) -> None:
    """Fold the parts in `value`, in its dtype, and leave the result in `into`, which may be `value` itself."""
    function = OPS[op]
    if value.dtype != into.dtype:
        parts = [part.to(value.dtype) for part in parts]
    if len(parts) == 1:
        value.copy_(parts[0])
    else:
        function(parts[0], parts[1], out=value)
    for part in parts[2:]:
        function(value, part, out=value)
    if op == "avg":
        value.div_(len(parts))
    if value is not into:
        into.copy_(value)
