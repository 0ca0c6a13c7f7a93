"""Scatter: the root publishes a part for every rank, each reads its own."""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Collective, Copy, Group, Publish, Read, Region


def scatter(group: Group, parts: Sequence[Region] | None, into: Region, root: int) -> Collective:
    """Fill the `into` of rank r with ``parts[r]`` of `root`, which alone has them. Parts may differ in size by rank.

    Empty parts go their way too: the sizes that two ranks believe in are found to differ also where one is 0.
    """
    if parts is None:
        yield Read(("sct", group.rank), owner=root, into=into)
        return
    for k in group.peers:
        # A copy: nothing tells the root when the part has been read.
        yield Publish(("sct", k), parts[k], readers=1, copy=True)
    if into.count:
        yield Copy(parts[root], into)
