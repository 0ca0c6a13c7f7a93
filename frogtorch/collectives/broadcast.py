"""Broadcast: the root publishes, the others read."""

from __future__ import annotations

from frogtorch.effects import Collective, Group, Publish, Read, Region


def broadcast(group: Group, tensor: Region, root: int) -> Collective:
    """Fill every rank's `tensor` with that of `root` (a rank of the group). An empty one goes its way too."""
    if not group.peers:
        return
    if group.rank == root:
        yield Publish(("bct", root), tensor, readers=len(group.peers), copy=True)
    else:
        yield Read(("bct", root), owner=root, into=tensor)
