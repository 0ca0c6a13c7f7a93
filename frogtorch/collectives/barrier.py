"""Barrier: everybody publishes one byte and reads everybody's. One one-way delay."""

from __future__ import annotations

from frogtorch.effects import Collective, Group, Publish, Read, Stage, Together


def barrier(group: Group) -> Collective:
    """Return when every rank of the group has come."""
    if not group.peers:
        return
    token = (yield Stage(1, 1))[:]
    yield Publish(("bar", group.rank), token, readers=len(group.peers), copy=True)
    arrived = (yield Stage(len(group.peers), 1))[:].split(len(group.peers))
    yield Together(Read(("bar", p), owner=p, into=arrived[i]) for i, p in enumerate(group.peers))
