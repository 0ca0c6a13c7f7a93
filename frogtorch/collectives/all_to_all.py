"""All-to-all: everybody publishes a part for every other rank, and reads those meant for it."""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Collective, Copy, Group, Publish, Read, Region, Together


def all_to_all(group: Group, parts: Sequence[Region], into: Sequence[Region]) -> Collective:
    """Fill ``into[r]`` of rank k with ``parts[k]`` of rank r, for all r and k. Sizes may differ from pair to pair.

    Empty parts go their way too: the sizes that two ranks believe in are found to differ also where one is 0.
    """
    rank = group.rank
    for k in group.peers:
        # A copy: this rank may be done before rank k has read it.
        yield Publish(("a2a", k), parts[k], readers=1, copy=True)
    if parts[rank].count:
        yield Copy(parts[rank], into[rank])
    yield Together(Read(("a2a", rank), owner=p, into=into[p]) for p in group.peers)
