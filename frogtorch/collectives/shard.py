"""All-reduce by slices: rank k owns slice k, reads it from everybody, combines it, publishes the sum.

The structure is a reduce-scatter and an all-gather by direct exchange. On a network where every *path* has the rate
B, each path carries S/W in each phase, so the time is 2S/(W*B), where a ring of the same traffic takes
2(W-1)S/(W*B): its bytes go through one path per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.collectives.collect import collect
from frogtorch.collectives.order import RANK, Order
from frogtorch.effects import Collective, Combine, Group, Publish, Read, Region, Release, Together

SUM = "arr"
"""Kind of the cells that hold a sum, which the second phase reads; those of contributions are ``"ars"``."""

CHUNK_BYTES = 1 << 20
"""Default size of a chunk of :func:`pipelined`, in bytes."""


def shard(group: Group, tensor: Region, op: str, order: Order = RANK) -> Collective:
    """All-reduce `tensor` in place, every slice whole: the reads of both phases stand from the start."""
    yield from _lane(group, 0, order.slices(tensor, group.size), op, order.fold(group.rank, group.size))


def pipelined(group: Group, tensor: Region, op: str, order: Order = RANK, chunk_bytes: int = CHUNK_BYTES,
              width: int | None = None) -> Collective:
    """All-reduce `tensor` in place, in chunks of at most `chunk_bytes` of a slice that go their way side by side.

    There is no barrier between the phases: the sum of one chunk travels while another is still being collected.
    Slices, and the order of summation, are those of :func:`shard`, so the bits are the same. At most `width` chunks
    are under way at a time (None: all). Raises ValueError if chunk_bytes < 1.
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, not {chunk_bytes}")
    slices = order.slices(tensor, group.size)
    chunks = max(1, -(-slices[0].nbytes // chunk_bytes))  # slice 0 is the longest
    cut = [part.split(chunks) for part in slices]
    fold = order.fold(group.rank, group.size)
    yield Together((_lane(group, c, [part[c] for part in cut], op, fold) for c in range(chunks)), width)


def _lane(group: Group, chunk: int, slices: list[Region], op: str, fold: Sequence[int]) -> Collective:
    """One chunk's way through both phases; `slices[k]` is the chunk of the slice that rank k owns."""
    for k in group.peers:
        if slices[k].count:
            # In place: owner k has read slice k from all before it publishes the sum, which is all that is
            # written here, and nobody but owner k reads it.
            yield Publish(("ars", chunk, k), slices[k], readers=1)
    yield Together([_own(group, chunk, slices[group.rank], op, fold)]
                   + [Read((SUM, chunk, p), owner=p, into=slices[p]) for p in group.peers if slices[p].count])


def _own(group: Group, chunk: int, mine: Region, op: str, fold: Sequence[int]) -> Collective:
    """The owner's half: collect every contribution to `mine`, combine them in the order `fold`, publish the sum."""
    if not mine.count or not group.peers:
        return
    stage, parts = yield from collect(group, ("ars", chunk, group.rank), mine)
    # By rank, never by arrival: all ranks, and all runs, end with the same bits.
    yield Combine(mine, [parts[r] for r in fold], op)
    yield Release(stage)
    # In place too: nothing is written there any more, and the collective does not end before it is served.
    yield Publish((SUM, chunk, group.rank), mine, readers=len(group.peers))
