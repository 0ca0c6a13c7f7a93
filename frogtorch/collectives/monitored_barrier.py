"""Barrier with a watch: rank 0 waits for everybody, lets them go, and knows who has not come."""

from __future__ import annotations

from frogtorch.effects import Collective, Group, Publish, Read, Region, Stage, Together


def monitored_barrier(group: Group, missing: set[int], wait_all: bool) -> Collective:
    """Return when every rank of the group has come. Two one-way delays.

    Rank 0 takes those that have come out of `missing`, which holds its peers. It fails as soon as one cannot come any
    more, or, to `wait_all`, when it is known of every rank whether it can.
    """
    if not group.peers:
        return
    token = (yield Stage(1, 1))[:]
    if group.rank:
        yield Publish(("mbr", 0), token, readers=1, copy=True)
        yield Read(("mba",), owner=0, into=token)
        return
    came = (yield Stage(len(group.peers), 1))[:].split(len(group.peers))
    failed: list[Exception] = []
    yield Together(_arrival(p, came[i], missing, failed if wait_all else None) for i, p in enumerate(group.peers))
    if failed:
        raise failed[0]
    yield Publish(("mba",), token, readers=len(group.peers), copy=True)


def _arrival(peer: int, into: Region, missing: set[int], failed: list[Exception] | None) -> Collective:
    try:
        yield Read(("mbr", 0), owner=peer, into=into)
    except Exception as error:
        if failed is None:
            raise
        failed.append(error)
    else:
        missing.discard(peer)
