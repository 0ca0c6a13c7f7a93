"""All-reduce by slices over plain sockets: shard without the memory, its control.

The slices, who owns which, the order of summation, the bytes of every path and the number of one-way delays are those
of :mod:`~frogtorch.collectives.shard`; so are the connections, whose frames and working memory it shares. What it has
none of is the memory: nothing is published and nothing is read, so there is no request, no standing read, no offer, no
credit, and no small cell that goes ahead of long ones. A sender sends as soon as it has something, in the order of its
sends; what comes before its receive waits where it came. So what shard gains over a ring on a network of slow paths,
direct gains too; what is left between direct and shard is what the memory costs, or adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.collectives.order import RANK, Order
from frogtorch.collectives.shard import SUM
from frogtorch.effects import Collective, Combine, Group, Lane, Receive, Region, Release, Send, Stage, Together

PART = "ars"
"""Kind of what goes to a slice's owner, called as in shard; what it sends back is of the kind SUM."""


def direct(group: Group, tensor: Region, op: str, order: Order = RANK) -> Collective:
    """All-reduce `tensor` in place: all receives stand from the start."""
    slices = order.slices(tensor, group.size)
    # In place: owner k has slice k from all before it sends the sum, which is all that is written here.
    lanes: list[Lane] = [Send(k, slices[k], PART) for k in group.peers if slices[k].count]
    lanes.append(_own(group, slices[group.rank], op, order.fold(group.rank, group.size)))
    lanes += [Receive(p, slices[p], SUM) for p in group.peers if slices[p].count]
    yield Together(lanes)


def _own(group: Group, mine: Region, op: str, fold: Sequence[int]) -> Collective:
    """The owner's half: receive every contribution to `mine`, combine them in the order `fold`, send the sum."""
    if not mine.count or not group.peers:
        return
    stage = yield Stage(mine.count * len(group.peers), mine.itemsize)
    part = dict(zip(group.peers, stage[:].split(len(group.peers)), strict=True))
    yield Together(Receive(p, part[p], PART) for p in group.peers)
    yield Combine(mine, [part.get(r, mine) for r in fold], op)
    yield Release(stage)
    yield Together(Send(p, mine, SUM) for p in group.peers)
