"""Which small cells travel unasked.

A read's request costs a one-way delay of its own when reader and owner start together. So every member says once,
at rendezvous, which kinds of cells it will always read, and a small one of them goes to it at publication, without
a request. Owner and reader decide by the same rule, :func:`unasked`, from the name and the size alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from frogtorch.effects import Name

SMALL_BYTES = 16 * 1024
"""A cell of at most this many bytes goes unasked to the members that subscribed to its kind."""


FRAME_BYTES = 128 * 1024
"""Payload of a frame of a long cell, but where the path has just taken more at once. A small cell or a request waits
for the rest of a frame at most, so it is no longer than what the kernel is let keep unsent
(:data:`frogtorch.memory.connection.UNSENT_BYTES`)."""


class Interest(NamedTuple):
    """A subscription: to the cells of a kind, or only to those whose name ends in `last`."""

    kind: str
    last: int | None = None


FOR_ONE = ("ars", "rds", "rdr", "rsc", "gth", "sct", "a2a", "msg")
"""Kinds of cells that one rank reads, in which their name ends."""

FOR_ALL = ("arr", "whl", "bct", "agt", "len", "ent", "bar")
"""Kinds of cells that every other rank reads."""

SUMS = ("arr", "rdr")
"""Kinds of cells that hold a sum: what the second phase of an all-reduce, and of a reduce, reads."""


def interests(rank: int) -> frozenset[Interest]:
    """What rank `rank` of a group reads in every collective: what is for it alone, and what is for all."""
    return frozenset({Interest(kind, rank) for kind in FOR_ONE} | {Interest(kind) for kind in FOR_ALL})


def unasked(subscribed: frozenset[Interest], name: Name, nbytes: int) -> bool:
    """Whether a member with these subscriptions gets the cell `name` of `nbytes` bytes without asking for it."""
    return nbytes <= SMALL_BYTES and _covered(subscribed, name[0], name[-1])


@lru_cache(maxsize=4096)
def _covered(subscribed: frozenset[Interest], kind: str | int, last: str | int) -> bool:
    kind = str(kind)
    return Interest(kind) in subscribed or (isinstance(last, int) and Interest(kind, last) in subscribed)
