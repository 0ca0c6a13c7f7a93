"""Gather: everybody publishes one share, the root reads them."""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Collective, Copy, Group, Publish, Read, Region, Together


def gather(group: Group, mine: Region, into: Sequence[Region] | None, root: int) -> Collective:
    """Fill ``into[r]`` at `root`, which alone has it, with the `mine` of rank r. Shares may differ in size by rank.

    Empty shares go their way too: the sizes that two ranks believe in are found to differ also where one is 0.
    """
    if into is None:
        # A copy: nothing tells this rank when the root has read it.
        yield Publish(("gth", root), mine, readers=1, copy=True)
        return
    if mine.count:
        yield Copy(mine, into[root])
    yield Together(Read(("gth", root), owner=p, into=into[p]) for p in group.peers)
