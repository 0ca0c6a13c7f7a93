"""The order of summation: which rank owns which slice of a tensor, and in which order a slice's parts are folded.

Floating-point sums depend on their order, so the order is a setting and never arrival. It is a left fold of the ranks'
contributions, slice by slice::

    RANK   slices as even as can be;   slice k = x[0] + x[1] + ... + x[W-1]
    GLOO   the chunks of Gloo's ring;  slice k = x[k-1] + x[k-2] + ... + x[k+1] + x[k]     (ranks mod W)

GLOO gives the bits of the ring all-reduce of PyTorch 2.13's Gloo. In that ring a chunk starts at one rank and goes
round to its owner, each rank adding its own on the way. The tensor, of S bytes in elements of e bytes, is cut into N
segments of B bytes, P of them for each rank's chunk::

    M = e · max(1, 1 MiB // e)            N = ⌈max(⌈S/M⌉, 2W) / W⌉ · W      P = N/W      B = ⌈⌈S/N⌉ / e⌉ · e

Its reduce to one rank begins with the same ring, but for the segments: there B comes first, and N follows from it::

    B = ⌈min(⌈S/2W⌉, 1 MiB) / e⌉ · e                N = ⌈max(⌈S/B⌉, 2W) / W⌉ · W

The last chunks are shorter, or empty, where S is no multiple of N·B. The bits are promised for float32 and float64:
half precision is folded in single here, not so in Gloo; and the maximum of a number and NaN is NaN, there not always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from frogtorch.effects import Region

__all__ = ["GLOO", "ORDERS", "RANK", "Order", "Piece", "Segments", "reduce_segments", "segments"]

SEGMENT_BYTES = 1 << 20
"""Most bytes of a segment of Gloo's ring."""


class Segments(NamedTuple):
    """How a tensor is cut: `number` segments of `size` elements (the last ones less, or none), `per_rank` a chunk."""

    number: int
    per_rank: int
    size: int


def segments(count: int, itemsize: int, ranks: int) -> Segments:
    """Cut a tensor of `count` elements of `itemsize` bytes for the all-reduce of Gloo's ring of `ranks`."""
    most = max(1, SEGMENT_BYTES // itemsize)
    number = max(-(-count // most), 2 * ranks)
    number = -(-number // ranks) * ranks
    return Segments(number, number // ranks, -(-count // number))


def reduce_segments(count: int, itemsize: int, ranks: int) -> Segments:
    """Cut such a tensor for its reduce."""
    nbytes = min(-(-count * itemsize // (2 * ranks)), SEGMENT_BYTES)
    size = max(1, -(-nbytes // itemsize))
    number = max(-(-count // size), 2 * ranks)
    number = -(-number // ranks) * ranks
    return Segments(number, number // ranks, size)


class Piece(NamedTuple):
    """Elements ``lo:hi``, and the order of ranks in which their parts are folded."""

    lo: int
    hi: int
    ranks: Sequence[int]


class Order(Protocol):
    """An order of summation in a group of `ranks`. The same slices, and the same folds, on every rank."""

    @property
    def of_reduce(self) -> Order:
        """The one in which a reduce to one rank sums."""

    def slices(self, tensor: Region, ranks: int) -> list[Region]:
        """Adjoining regions, one a rank, of which the first is the longest; some may be empty."""

    def fold(self, k: int, ranks: int) -> Sequence[int]:
        """The ranks, in the order in which their parts of slice `k` are folded."""

    def pieces(self, tensor: Region, ranks: int) -> list[Piece]:
        """`tensor` in as few pieces as are folded alike, their elements counted from its first. None is empty."""


class _Rank:
    @property
    def of_reduce(self) -> Order:
        return RANK

    def slices(self, tensor: Region, ranks: int) -> list[Region]:
        return tensor.split(ranks)

    def fold(self, k: int, ranks: int) -> Sequence[int]:
        return range(ranks)

    def pieces(self, tensor: Region, ranks: int) -> list[Piece]:
        return [Piece(0, tensor.count, range(ranks))] if tensor.count else []

    def __repr__(self) -> str:
        return "RANK"


class _Gloo:
    def __init__(self, segments: Callable[[int, int, int], Segments]) -> None:
        self._segments = segments

    @property
    def of_reduce(self) -> Order:
        return _GLOO_REDUCE

    def slices(self, tensor: Region, ranks: int) -> list[Region]:
        cut = self._segments(tensor.count, tensor.itemsize, ranks)
        chunk = cut.per_rank * cut.size
        bounds = [min(k * chunk, tensor.count) for k in range(ranks + 1)]
        return [tensor[lo:hi] for lo, hi in pairwise(bounds)]

    def fold(self, k: int, ranks: int) -> Sequence[int]:
        return [(k - i) % ranks for i in range(1, ranks + 1)]

    def pieces(self, tensor: Region, ranks: int) -> list[Piece]:
        return [Piece(part.lo - tensor.lo, part.hi - tensor.lo, self.fold(k, ranks))
                for k, part in enumerate(self.slices(tensor, ranks)) if part.count]

    def __repr__(self) -> str:
        return "GLOO"


RANK: Order = _Rank()
GLOO: Order = _Gloo(segments)
_GLOO_REDUCE: Order = _Gloo(reduce_segments)

ORDERS: dict[str, Order] = {"rank": RANK, "gloo": GLOO}
"""Orders of summation by the name that the backend's settings use."""
