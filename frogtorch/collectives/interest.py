"""Which small cells travel unasked.

A read's request costs a one-way delay of its own when reader and owner start together. So every member says once,
at rendezvous, which kinds of cells it will always read, and a small one of them goes to it at publication, without
a request. Owner and reader decide by the same rule, :func:`unasked`, from the name and the size alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from frogtorch.effects import Name

SMALL_BYTES = 16 * 1024
"""A cell of at most this many bytes goes unasked to the members that subscribed to its kind."""


FRAME_BYTES = 128 * 1024
"""Most payload in a frame of FrogNet Memory. A small cell or a request waits for the rest of a frame at most, so it is
no longer than what the kernel is let keep unsent (:data:`frogtorch.memory.connection.UNSENT_BYTES`)."""


class Interest(NamedTuple):
    """A subscription: to the cells of a kind, or only to those whose name ends in `last`."""

    kind: str
    last: int | None = None


def interests(rank: int) -> frozenset[Interest]:
    """What rank `rank` of a group reads in every collective: contributions to its own slice, and what all read."""
    return frozenset({Interest("ars", rank), Interest("arr"), Interest("whl"), Interest("bct"), Interest("agt"),
                      Interest("bar")})


def unasked(subscribed: Collection[Interest], name: Name, nbytes: int) -> bool:
    """Whether a member with these subscriptions gets the cell `name` of `nbytes` bytes without asking for it."""
    if nbytes > SMALL_BYTES:
        return False
    kind, last = str(name[0]), name[-1]
    return Interest(kind) in subscribed or (isinstance(last, int) and Interest(kind, last) in subscribed)
