"""Reduce-scatter: rank k reads part k from everybody and reduces it. Half of an all-reduce, in bytes and in delays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frogtorch.collectives.collect import collect, fold
from frogtorch.collectives.order import RANK, Order, Piece
from frogtorch.effects import Buffer, Collective, Copy, Group, Publish, Region, Release


def reduce_scatter(group: Group, parts: Sequence[Region], into: Region, op: str, order: Order = RANK) -> Collective:
    """Reduce every rank's ``parts[k]`` into the `into` of rank k. Parts may differ in size from k to k, not by rank.

    They are summed as one tensor, of which they are adjoining pieces: in the order GLOO as Gloo sums that of its
    ``reduce_scatter_tensor``. Empty parts go their way too.
    """
    mine = parts[group.rank]
    if not group.peers:
        if mine.count:
            yield Copy(mine, into)
        return
    for k in group.peers:
        # A copy: this rank is done when it has its own part, whether or not the others have theirs.
        yield Publish(("rsc", k), parts[k], readers=1, copy=True)
    stage, contributions = yield from collect(group, ("rsc", group.rank), mine)
    tensor = Buffer(sum(part.count for part in parts), mine.itemsize)[:]
    before = sum(part.count for part in parts[:group.rank])
    pieces = _within(order.pieces(tensor, group.size), before, before + mine.count)
    yield from fold(into, contributions, pieces, op)
    yield Release(stage)


def _within(pieces: Iterable[Piece], lo: int, hi: int) -> list[Piece]:
    """What of the pieces of a tensor is in its elements ``lo:hi``, counted from `lo`."""
    return [Piece(max(lo, piece.lo) - lo, min(hi, piece.hi) - lo, piece.ranks)
            for piece in pieces if max(lo, piece.lo) < min(hi, piece.hi)]
