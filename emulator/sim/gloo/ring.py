"""Gloo's ring: all-reduce, and what reduce takes of it.

Rank r of W receives from r+1 and sends to r-1. The tensor is cut into N segments, P of them for each rank's chunk;
how, says :mod:`frogtorch.collectives.order`, whose GLOO has this ring's bits by other means.

Phase 1 has N-P steps. Step i sends segment (r+1)P+i and receives segment (r+2)P+i (mod N) into one of two buffers,
then adds it to its own. Phase 2 has as many: it sends rP+i, receives (r+1)P+i in place. Two steps are in flight, each
posted in order when all but the last are done; segments past the end of a short tensor are left out.

What is sent in step i >= P was received in step i-P, and P >= 2, so it is there. Checked against the segments and the
order of summation that the real one was seen to have.

A reduce to one rank is phase 1, of segments of another size, and every rank's chunk straight to the root. Its phase has
N-2 steps, P-2 too many: in those a rank's reduced chunk goes on to the rank before it, which does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.collectives.order import GLOO, Segments, reduce_segments, segments
from frogtorch.effects import Collective, Combine, Group, Lane, Receive, Region, Release, Send, Stage, Together


def ring(group: Group, tensor: Region, op: str) -> Collective:
    """All-reduce `tensor` in place. `op` combines two parts at a time, so a mean is a sum, divided afterwards."""
    if tensor.count and group.peers:
        cut = segments(tensor.count, tensor.itemsize, group.size)
        steps = cut.number - cut.per_rank
        yield from _reduce_scatter(group, tensor, cut, steps, op)
        yield from _phase(group, tensor, cut, steps, 0, [None, None], op)


def reduce(group: Group, tensor: Region, root: int, op: str) -> Collective:
    """Reduce every rank's `tensor` into that of `root`; those of the others are worked in."""
    if not tensor.count or not group.peers:
        return
    cut = reduce_segments(tensor.count, tensor.itemsize, group.size)
    yield from _reduce_scatter(group, tensor, cut, cut.number - 2, op)
    chunks = GLOO.of_reduce.slices(tensor, group.size)
    if group.rank == root:
        yield Together(Receive(p, chunks[p]) for p in range(group.size) if p != root and chunks[p].count)
    elif chunks[group.rank].count:
        yield Send(root, chunks[group.rank])


def _reduce_scatter(group: Group, tensor: Region, cut: Segments, steps: int, op: str) -> Collective:
    """Phase 1: every rank's own chunk is reduced."""
    stages = [(yield Stage(cut.size, tensor.itemsize)), (yield Stage(cut.size, tensor.itemsize))]
    yield from _phase(group, tensor, cut, steps, 1, [stage[:] for stage in stages], op)
    for stage in stages:
        yield Release(stage)


def _phase(group: Group, tensor: Region, cut: Segments, steps: int, ahead: int, buffers: Sequence[Region | None],
           op: str) -> Collective:
    """In so many steps, send segments from the chunk on that is `ahead` of one's own, and receive from the next on.

    They come into the `buffers` in turn, or in place.
    """
    first = (group.rank + ahead) * cut.per_rank
    done = [False] * steps
    following = 0
    alone = False

    def segment(index: int) -> Region:
        lo = min(tensor.lo + index % cut.number * cut.size, tensor.hi)
        return tensor.buffer[lo:min(lo + cut.size, tensor.hi)]

    def lane() -> Collective:
        nonlocal following, alone
        while following < steps:
            i = following
            if i > 1 and not done[i - 2]:
                # The other lane is at i-2 still, though i-1 is done: out of order, as when i-1 was empty.
                # What comes now waits for it, so let it go on for both.
                alone = True
                return
            following += 1
            out, into = segment(first + i), segment(first + cut.per_rank + i)
            both: list[Lane] = []
            if into.count:
                both.append(_receive(group, into, buffers[i % 2], op))
            if out.count:
                both.append(Send((group.rank - 1) % group.size, out))
            yield Together(both)
            done[i] = True
            if alone:
                alone = False
                yield Together([lane(), lane()])

    yield Together([lane(), lane()])


def _receive(group: Group, into: Region, buffer: Region | None, op: str) -> Collective:
    """Receive a segment from the next rank, and combine it with one's own if it comes into a buffer."""
    source = (group.rank + 1) % group.size
    if buffer is None:
        yield Receive(source, into)
    else:
        part = buffer.buffer[:into.count]
        yield Receive(source, part)
        yield Combine(into, [into, part], op)
