"""Combining tensors: a left fold in exactly the order given, the same bits on every rank and in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["OPS", "check", "combine"]

BLOCK = 1 << 16
"""Elements folded at a time, so that the running value stays in the cache between one part and the next."""

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Half precision is summed in single: rounded once at the end, not W-1 times on the way."""

OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "product": torch.mul, "max": torch.maximum, "min": torch.minimum,
}


def check(op: str, dtype: torch.dtype) -> None:
    """Raise TypeError if tensors of `dtype` cannot be combined with `op`."""
    if op in ("max", "min") and dtype.is_complex:
        raise TypeError(f"frogtorch cannot reduce {dtype} with {op}: complex numbers have no order")
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"frogtorch cannot reduce {dtype} with avg: a mean of integers is none; use sum and divide")
    if dtype.is_floating_point and dtype.itemsize == 1:
        raise TypeError(f"frogtorch cannot reduce {dtype} with {op}: torch has no arithmetic for it")


def combine(into: torch.Tensor, parts: Sequence[torch.Tensor], op: str) -> None:
    """``into = (parts[0] op parts[1]) op ...``, for flat tensors of one length; `into` may be one of the parts.

    ``avg`` is the sum, divided by the number of parts. float16 and bfloat16 are folded in float32.
    """
    function = OPS[op]
    wide = _WIDE.get(into.dtype, into.dtype)
    count = into.numel()
    # Into `into` itself only where no part that is still to come can be in it.
    straight = wide == into.dtype and all(part.data_ptr() != into.data_ptr() for part in parts[2:])
    room = None if straight else torch.empty(min(count, BLOCK), dtype=wide)
    for lo in range(0, count, BLOCK):
        hi = min(lo + BLOCK, count)
        target = into[lo:hi]
        value = target if room is None else room[:hi - lo]
        first = parts[0][lo:hi].to(wide)
        if len(parts) == 1:
            value.copy_(first)
        else:
            function(first, parts[1][lo:hi].to(wide), out=value)
        for part in parts[2:]:
            function(value, part[lo:hi].to(wide), out=value)
        if op == "avg":
            value.div_(len(parts))
        if room is not None:
            target.copy_(value)
