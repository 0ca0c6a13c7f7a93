"""All-reduce by whole tensors: everybody reads everything from everybody. One phase, W-1 tensors a rank."""

from __future__ import annotations

from frogtorch.collectives.collect import collect, fold
from frogtorch.collectives.order import RANK, Order
from frogtorch.effects import Collective, Group, Publish, Region


def whole(group: Group, tensor: Region, op: str, order: Order = RANK) -> Collective:
    """All-reduce `tensor` in place. One one-way delay, which makes it the choice for a few elements; (W-1)S bytes."""
    if not tensor.count or not group.peers:
        return
    # A copy: this rank may be done, and write, while a peer still reads.
    yield Publish(("whl",), tensor, readers=len(group.peers), copy=True)
    _, parts = yield from collect(group, ("whl",), tensor)
    yield from fold(tensor, parts, order.pieces(tensor, group.size), op)
