"""Tensors as the engine takes them: each one run of elements, out of autograd's sight. And what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from frogtorch import arithmetic
from frogtorch.effects import Region
from frogtorch.engine import bind

__all__ = ["Packed", "Place", "Reduction", "Tensors", "alike", "apart", "by_dtype", "cut", "fits", "flat_of", "listed",
           "only", "pairs", "reduction", "regions", "row", "rows", "shapes"]

Tensors = Sequence[torch.Tensor]

SHOWN = 8
"""Most tensors that the text of an error describes."""


def flat_of(tensor: torch.Tensor, factor: float | torch.Tensor | None = None) -> torch.Tensor:
    """The elements of `tensor` in one run: its own memory if that is how they lie there, else a copy.

    With a `factor` they are multiplied by it, in a copy. Raises TypeError for what is not a dense tensor on the CPU.
    """
    tensor = _waited_for(tensor)
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise TypeError(f"it takes dense tensors on the CPU, not one of {tensor.layout} on {tensor.device}")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if factor is not None:
        tensor = (tensor * factor).to(tensor.dtype)
    return tensor.contiguous().view(-1)


def _waited_for(tensor: torch.Tensor) -> torch.Tensor:
    """A functional collective's result, which may be under way, as the tensor that it is; any other as it is."""
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()


class Place:
    """Where a result goes: `flat` is filled, and :meth:`put_back` takes it home where it is a copy.

    It begins with the tensor's elements, multiplied by a `factor` if there is one. Raises ValueError for a tensor that
    has several elements in one place, as one that was expanded does.
    """

    __slots__ = ("_home", "flat")

    def __init__(self, tensor: torch.Tensor, factor: float | torch.Tensor | None = None) -> None:
        tensor = _waited_for(tensor)
        if _overlaps_itself(tensor):
            raise ValueError(f"a result cannot go to a tensor of shape {tuple(tensor.shape)} and strides "
                             f"{tensor.stride()}: some of its elements share their memory; use its clone()")
        self.flat = flat_of(tensor, factor)
        self._home = None if self.flat.data_ptr() == tensor.data_ptr() else tensor.detach()

    def put_back(self) -> None:
        """Copy the result to the tensor, if it is not there."""
        if self._home is not None:
            self._home.copy_(self.flat.view(self._home.shape))


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return False
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


class Packed:
    """Several flat tensors of one dtype as one: `flat` is filled, and :meth:`put_back` hands out what is in it.

    It begins with their elements if it is to `read` them, else undefined. One alone is taken as it is.
    """

    __slots__ = ("_parts", "flat")

    def __init__(self, parts: Sequence[torch.Tensor], read: bool = True) -> None:
        self._parts = parts if len(parts) > 1 else []
        if not self._parts:
            (self.flat,) = parts
        elif read:
            self.flat = torch.cat(list(parts))
        else:
            self.flat = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype)

    def put_back(self) -> None:
        """Copy every part's elements to it."""
        start = 0
        for part in self._parts:
            part.copy_(self.flat[start:start + part.numel()])
            start += part.numel()


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The indices of the tensors of each dtype, in order of first appearance. Raises ValueError for no tensors."""
    if not tensors:
        raise ValueError("it takes at least one tensor")
    found: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(index)
    return list(found.values())


# Arguments ----------------------------------------------------------------------------------------------------


def only(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor that torch hands over, alone or in a list. Raises ValueError if it is not one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1 or not isinstance(tensors[0], torch.Tensor):
        raise ValueError(f"it takes one tensor a rank, not {len(tensors)}: {shapes(tensors)}")
    return tensors[0]


def listed(tensors: Sequence[Any]) -> Sequence[torch.Tensor]:
    """The tensors that torch hands over in a list, or in a list of one list."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        return tensors[0]
    return tensors


def row(tensors: Sequence[Any], size: int, what: str) -> Sequence[torch.Tensor]:
    """The tensors, one for each of `size` ranks, that torch hands over as :func:`listed`.

    Raises ValueError if it is another number of them; `what` says what they are.
    """
    tensors = listed(tensors)
    if len(tensors) != size:
        raise ValueError(f"it takes {size} {what} tensors, one for each rank, not {len(tensors)}: {shapes(tensors)}")
    return tensors


def rows(tensor: torch.Tensor, splits: Sequence[int], size: int, what: str) -> list[int]:
    """How many elements of `tensor` are for each of `size` ranks: those of ``splits[k]`` rows for rank k.

    Without splits all get as many rows. Raises ValueError if that does not come out even, or the splits do not fit.
    """
    length = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if length % size:
            raise ValueError(f"the {length} rows of the {what} ({shapes([tensor])}) are no multiple of {size} ranks; "
                             f"give split sizes")
        splits = [length // size] * size
    if len(splits) != size or min(splits) < 0 or sum(splits) != length:
        raise ValueError(f"the {what} ({shapes([tensor])}) has to be split among {size} ranks by as many numbers, none "
                         f"negative, that add up to its {length} rows, not by {list(splits)}")
    width = tensor.numel() // length if length else 0
    return [count * width for count in splits]


def alike(*tensors: torch.Tensor) -> None:
    """Raise TypeError if not all tensors have one dtype."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise TypeError(f"its tensors have to be of one dtype, not {shapes(tensors)}")


def fits(mine: torch.Tensor, into: torch.Tensor, times: int = 1) -> None:
    """Raise ValueError unless `into` has `times` the elements of `mine`, TypeError unless it has its dtype."""
    alike(mine, into)
    if mine.numel() * times != into.numel():
        many = f"{times} times " if times > 1 else ""
        raise ValueError(f"{many}{shapes([mine])} does not match {shapes([into])}")


def pairs(small: Sequence[torch.Tensor], large: Sequence[torch.Tensor], times: int) -> list[list[int]]:
    """The indices, by dtype, of pairs of a small tensor and a large one of `times` its elements.

    Raises ValueError or TypeError for tensors that are not in such pairs.
    """
    if len(small) != len(large):
        raise ValueError(f"it takes as many inputs as outputs, not {len(small)} and {len(large)}")
    for one, other in zip(small, large, strict=True):
        fits(one, other, times)
    return by_dtype(small)


def shapes(tensors: Sequence[torch.Tensor]) -> str:
    """What tensors look like, for the text of an error: ``(2, 3) of float32, …``."""
    seen = [f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            if isinstance(tensor, torch.Tensor) else type(tensor).__name__ for tensor in tensors[:SHOWN]]
    return ", ".join(seen) + (", …" if len(tensors) > SHOWN else "")


class Reduction(NamedTuple):
    """How tensors are reduced."""

    name: str
    """As torch calls it, in small letters: all ranks have to mean the same."""
    op: str
    """As :mod:`frogtorch.arithmetic` calls it."""
    factor: float | torch.Tensor | None
    """What this rank multiplies its tensor by beforehand."""


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """What torch's ReduceOp is to us. Raises TypeError if tensors of `dtype` cannot be reduced so."""
    kind = getattr(op, "op", op)
    name = kind.name.lower()
    if kind != dist.ReduceOp.PREMUL_SUM:
        arithmetic.check(name, dtype)
        return Reduction(name, name, None)
    arithmetic.check("sum", dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"frogtorch cannot reduce {dtype} with premul_sum: a product with its factor is no integer")
    factor = op.factor
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"the factor of premul_sum is one number, not {tuple(factor.shape)} of them")
        factor = factor.detach().view(())
    return Reduction(name, "sum", factor)


# Regions ------------------------------------------------------------------------------------------------------


def regions(flats: Iterable[torch.Tensor]) -> list[Region]:
    """Each flat tensor as a region of its own."""
    return [bind(flat)[:] for flat in flats]


def cut(flat: torch.Tensor, counts: Sequence[int]) -> list[Region]:
    """Adjoining regions of a flat tensor, of so many elements each."""
    buffer = bind(flat)
    bounds = [0, *accumulate(counts)]
    return [buffer[lo:hi] for lo, hi in pairwise(bounds)]


def apart(parts: Sequence[Region], places: Sequence[Region], own: tuple[int, int]) -> list[Region]:
    """The `parts`, of which those are copied that share memory with a place.

    Only ``parts[own[0]]`` may lie just where ``places[own[1]]`` does: it is what goes there.
    """
    reaches = [_reach(place) for place in places]
    lowest, highest = min((lo for lo, _ in reaches), default=0), max((hi for _, hi in reaches), default=0)
    kept = list(parts)
    for k, part in enumerate(parts):
        lo, hi = _reach(part)
        if lo < highest and lowest < hi and any(
                lo < there_hi and there_lo < hi and ((k, j) != own or (lo, hi) != (there_lo, there_hi))
                for j, (there_lo, there_hi) in enumerate(reaches)):
            kept[k] = bind(part.buffer.storage.tensor[part.lo:part.hi].clone())[:]
    return kept


def _reach(region: Region) -> tuple[int, int]:
    """The addresses of the first byte, and behind the last."""
    start = region.buffer.storage.tensor.data_ptr() if region.count else 0
    return start + region.lo * region.itemsize, start + region.hi * region.itemsize
