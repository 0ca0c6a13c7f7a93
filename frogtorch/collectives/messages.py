"""Point to point: a message is a cell that one rank reads.

It is part of no round: which message of its pair and tag it is says its `number`, which both ends count. An empty
one is published like any other: that a message came is what it says.
"""

from __future__ import annotations

from frogtorch.effects import Collective, Group, Publish, Read, Region


def send(group: Group, region: Region, to: int, tag: int, number: int) -> Collective:
    """Send `region` to rank `to`: published as a copy, so it is done at once. Receives nothing."""
    yield Publish(("msg", tag, number, to), region, readers=1, copy=True)


def receive(group: Group, region: Region, source: int, tag: int, number: int) -> Collective:
    """Fill `region` with a message of rank `source`. Receives one tensor; one one-way delay if it stood before."""
    yield Read(("msg", tag, number, group.rank), owner=source, into=region)
