"""All-gather: everybody publishes one share and reads the others'."""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Collective, Copy, Group, Publish, Read, Region, Together


def all_gather(group: Group, mine: Region, into: Sequence[Region]) -> Collective:
    """Fill ``into[r]`` with the `mine` of rank r, for every r. Shares may differ in size from rank to rank.

    Empty shares go their way too: the sizes that two ranks believe in are found to differ also where one is 0.
    """
    if group.peers:
        yield Publish(("agt", group.rank), mine, readers=len(group.peers), copy=True)
    if mine.count:
        yield Copy(mine, into[group.rank])
    yield Together(Read(("agt", p), owner=p, into=into[p]) for p in group.peers)
