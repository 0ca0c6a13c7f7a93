"""Reduce: rank k collects slice k and reduces it, the root reads the reduced slices. Small tensors go to it whole.

By slices, 2(W-1)/W tensors come in at the root, and half as many elsewhere, where else W-1 would meet at the root.
"""

from __future__ import annotations

from frogtorch.collectives.collect import collect, fold
from frogtorch.collectives.interest import SMALL_BYTES
from frogtorch.collectives.order import RANK, Order
from frogtorch.effects import Collective, Combine, Copy, Group, Lane, Publish, Read, Region, Release, Together


def reduce(group: Group, tensor: Region, into: Region | None, root: int, op: str, order: Order = RANK) -> Collective:
    """Reduce every rank's `tensor` into `into` at `root`, which alone has one; it may be the root's `tensor` itself.

    The `tensor` of the other ranks stays as it was. An empty one goes its way too.
    """
    order = order.of_reduce
    if not group.peers:
        if into is not None and tensor.count:
            yield Copy(tensor, into)
    elif tensor.nbytes <= SMALL_BYTES:
        # It goes unasked, so that this is one one-way delay, where slices take two.
        yield from _whole(group, tensor, into, root, op, order)
    else:
        yield from _by_slices(group, tensor, into, root, op, order)


def _whole(group: Group, tensor: Region, into: Region | None, root: int, op: str, order: Order) -> Collective:
    if into is None:
        yield Publish(("rds", root), tensor, readers=1, copy=True)
        return
    _, parts = yield from collect(group, ("rds", root), tensor)
    yield from fold(into, parts, order.pieces(tensor, group.size), op)


def _by_slices(group: Group, tensor: Region, into: Region | None, root: int, op: str, order: Order) -> Collective:
    slices = order.slices(tensor, group.size)
    for k in group.peers:
        if slices[k].count:
            # The root's are served in place: it has a reduced slice only after their reader has it from all. The
            # others may be done before theirs are read.
            yield Publish(("rds", k), slices[k], readers=1, copy=group.rank != root)
    target = [] if into is None else order.slices(into, group.size)
    lanes: list[Lane] = [_own(group, slices[group.rank], target[group.rank] if target else None, root, op, order)]
    lanes += [Read(("rdr", root), owner=p, into=target[p]) for p in group.peers if target and target[p].count]
    yield Together(lanes)


def _own(group: Group, mine: Region, into: Region | None, root: int, op: str, order: Order) -> Collective:
    """The owner's half: collect every contribution to `mine`; reduce them `into` place, or for the root to read."""
    if not mine.count:
        return
    stage, parts = yield from collect(group, ("rds", group.rank), mine)
    # Where there is no `into`, over a contribution: `mine` has to stay.
    reduced = parts[root] if into is None else into
    yield Combine(reduced, [parts[r] for r in order.fold(group.rank, group.size)], op)
    if into is None:
        yield Publish(("rdr", root), reduced, readers=1, copy=True)
    yield Release(stage)
