"""All-reduce by whole tensors: everybody reads everything from everybody. One phase, W-1 tensors a rank."""

from __future__ import annotations

from frogtorch.effects import Collective, Combine, Group, Publish, Read, Region, Stage, Together


def whole(group: Group, tensor: Region, op: str) -> Collective:
    """All-reduce `tensor` in place. One one-way delay, which makes it the choice for a few elements; (W-1)S bytes."""
    if not tensor.count or not group.peers:
        return
    # A copy: this rank may be done, and write, while a peer still reads.
    yield Publish(("whl", group.rank), tensor, readers=len(group.peers), copy=True)
    stage = yield Stage(tensor.count * len(group.peers), tensor.itemsize)
    part = dict(zip(group.peers, stage[:].split(len(group.peers)), strict=True))
    yield Together(Read(("whl", p), owner=p, into=part[p]) for p in group.peers)
    yield Combine(tensor, [part.get(r, tensor) for r in range(group.size)], op)
