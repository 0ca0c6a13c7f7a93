"""The vocabulary of a collective: what it asks of the world, as values.

A collective is a generator that yields the effects below and is sent their results. It never touches
a socket, a clock, a thread or an element of a tensor, so one text runs in two worlds: the backend
(:mod:`frogtorch.engine`) drives it against FrogNet Memory and tensors, the simulator
(``emulator.sim``) drives it in virtual time, where a region is only a size.

A driver promises:

* it resumes a generator with an effect's result once the effect is *done*; each class says when that is;
* an effect that fails is thrown into the generator as an exception, and closes the lanes beside it;
* names are unique for one round of one group: the driver adds the round, so that a cell is written once.

A collective promises:

* it yields effects in an order that depends on rank, world size, region sizes and the numbers it looks at alone,
  never on arrival (what :class:`Newest` finds does depend on it: a collective that asks for that is no all-reduce);
* an empty region is not combined, copied, sent nor received. It is published and read only where ranks could believe
  in different sizes, or where that it came is what it says;
* it does not write into a region that it has published with ``copy=False`` before every reader has it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Buffer", "Collective", "Combine", "Copy", "Effect", "Group", "Lane", "Look", "Name", "Newest", "Publish", "Read",
    "Receive", "Region", "Release", "Send", "Stage", "Supersede", "Together",
]

Name = tuple[str | int, ...]
"""What a cell is called inside its round: a kind, then numbers, as in ``("ars", chunk, slice)``."""


class Buffer:
    """A run of `count` elements of `itemsize` bytes; ``buffer[lo:hi]`` is a :class:`Region` of it.

    `storage` is whatever the driver keeps the elements in (a flat tensor), or None where sizes are enough.
    """

    __slots__ = ("count", "itemsize", "storage")

    def __init__(self, count: int, itemsize: int, storage: Any = None) -> None:
        if count < 0 or itemsize < 1:
            raise ValueError(f"a buffer has count >= 0 and itemsize >= 1, not count={count}, itemsize={itemsize}")
        self.count = count
        self.itemsize = itemsize
        self.storage = storage

    def __getitem__(self, elements: slice) -> Region:
        """The region of the elements ``lo:hi``.

        Raises IndexError if it is not inside the buffer (Python's own slices would silently shrink) or has a step.
        """
        return Region(self, *_bounds(elements, self.count))

    def __repr__(self) -> str:
        return f"Buffer({self.count} x {self.itemsize} B)"


class Region:
    """The elements ``[lo:hi]`` of a buffer: what is published, read into, combined, copied."""

    __slots__ = ("buffer", "hi", "lo")

    def __init__(self, buffer: Buffer, lo: int, hi: int) -> None:
        self.buffer = buffer
        self.lo = lo
        self.hi = hi

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.hi - self.lo

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.buffer.itemsize

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return (self.hi - self.lo) * self.buffer.itemsize

    def __getitem__(self, elements: slice) -> Region:
        """The region of the elements ``lo:hi`` of this one. Raises IndexError as a buffer does."""
        lo, hi = _bounds(elements, self.count)
        return Region(self.buffer, self.lo + lo, self.lo + hi)

    def split(self, n: int) -> list[Region]:
        """`n` adjoining regions, as even as can be: the first ``count % n`` have one element more.

        All ranks split alike, so that slice k is the same elements everywhere. Raises ValueError if n < 1.
        """
        if n < 1:
            raise ValueError(f"a region is split into n >= 1 parts, not {n}")
        least, longer = divmod(self.count, n)
        parts = []
        lo = self.lo
        for i in range(n):
            hi = lo + least + (i < longer)
            parts.append(Region(self.buffer, lo, hi))
            lo = hi
        return parts

    def __repr__(self) -> str:
        return f"{self.buffer!r}[{self.lo}:{self.hi}]"


def _bounds(elements: slice, count: int) -> tuple[int, int]:
    lo = 0 if elements.start is None else elements.start
    hi = count if elements.stop is None else elements.stop
    if elements.step is not None or not 0 <= lo <= hi <= count:
        raise IndexError(f"[{lo}:{hi}:{elements.step or ''}] is no region of {count} elements")
    return lo, hi


class Group:
    """The ranks of a collective, seen from one of them."""

    __slots__ = ("peers", "rank", "size")

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not in a group of {size}")
        self.rank = rank
        self.size = size
        # From the next rank on, round the group: if all began with rank 0, it would be everybody's first target.
        self.peers = tuple((rank + i) % size for i in range(1, size))

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size})"


@dataclass(slots=True)
class Publish:
    """Make `region` readable by others as the cell `name`; done at once, result None.

    The cell lives until `readers` distinct ranks have it. With ``copy=False`` it is served from the region itself,
    so the collective must not write there before then, and the driver does not end the collective before then; with
    ``copy=True`` the region may be overwritten at once, and the collective ends without waiting for its readers.
    """

    name: Name
    region: Region
    readers: int
    copy: bool = False


@dataclass(slots=True)
class Read:
    """Fill `into` with the cell `name` of rank `owner`; done when the bytes are there, result None.

    It may be asked before the owner has published, and should be: a read that stands when its cell is published
    costs one one-way delay, one asked later a round trip.
    """

    name: Name
    owner: int
    into: Region


@dataclass(slots=True)
class Combine:
    """``into = ((parts[0] op parts[1]) op parts[2]) ...``: a left fold in the order given; result None.

    All regions have the same count; `into` may be one of the parts. `op` is a name such as ``"sum"`` or ``"avg"``
    (the fold, divided by the number of parts); which there are is the driver's business.
    """

    into: Region
    parts: Sequence[Region]
    op: str


@dataclass(slots=True)
class Copy:
    """Copy `source` to `into` (same count); result None."""

    source: Region
    into: Region


@dataclass(slots=True)
class Look:
    """Look at `region`, of one element: the result is its bytes as a signed integer.

    For what cannot be known before: a size that another rank says. A driver that knows only sizes refuses it.
    """

    region: Region


@dataclass(slots=True)
class Stage:
    """Get a :class:`Buffer` to work in: the result. Its content is undefined until written."""

    count: int
    itemsize: int


@dataclass(slots=True)
class Release:
    """Give a staged buffer back; one that is not released goes when its collective ends. Result None."""

    buffer: Buffer


@dataclass(slots=True)
class Send:
    """Send `region` to rank `to`; done when the region may be overwritten, result None.

    It leaves at once, whether or not it is received already. The n-th Send of a kind from a to b meets the n-th
    Receive of that kind of b from a, in one round.
    """

    to: int
    region: Region
    kind: str = "seg"


@dataclass(slots=True)
class Receive:
    """Fill `into` with what rank `source` sends; done when the bytes are there, result None."""

    source: int
    into: Region
    kind: str = "seg"


@dataclass(slots=True)
class Supersede:
    """Make a copy of `region` readable by others as the cell `name`, in place of the one before; done at once.

    Its address is (name, step): steps only grow, and no address is written twice. It has no number of readers: it goes
    when the next one comes, but for those who are reading it then, who get it to its end. Cells of one `layout` are
    alike: of one size, and their elements mean the same.
    """

    name: Name
    region: Region
    layout: int
    step: int


@dataclass(slots=True)
class Newest:
    """Fill `into` with the newest cell `name` of rank `owner`, if that is worth it: the result is its step, or None.

    It is if it has this `layout` and came after step `have`; otherwise not a byte of it travels. The owner answers once
    its newest is of step `oldest` or later (-1: whatever there is, and also if there is nothing). If the owner has left
    the group, there is nothing new of it; an error if `have` is before `oldest`.
    """

    name: Name
    owner: int
    into: Region
    layout: int
    have: int
    oldest: int


class Together:
    """Run lanes (effects or generators) side by side; done when all are, result the list of theirs in lane order.

    At most `width` lanes are under way at a time (None: all). They are admitted in index order, on every rank
    alike, which is why a width never deadlocks a collective whose lane i waits only for lane i of its peers.
    """

    __slots__ = ("lanes", "width")

    def __init__(self, lanes: Iterable[Lane], width: int | None = None) -> None:
        if width is not None and width < 1:
            raise ValueError(f"Together runs width >= 1 lanes at a time, not {width}")
        self.lanes: list[Lane] = list(lanes)
        self.width = width

    def __repr__(self) -> str:
        return f"Together({len(self.lanes)} lanes, width={self.width})"


Effect = (Publish | Read | Combine | Copy | Look | Stage | Release | Send | Receive | Supersede | Newest | Together)
Collective = Generator[Effect, Any, Any]
Lane = Effect | Collective
