"""Gloo's ring all-reduce, as PyTorch 2.13 runs it: our description, in the vocabulary of effects.

Of S bytes in elements of e bytes, rank r of W receives from r+1 and sends to r-1. The tensor is cut into N segments
of B bytes, P of them for each rank's chunk::

    M = e · max(1, 1 MiB // e)            N = ⌈max(⌈S/M⌉, 2W) / W⌉ · W      P = N/W      B = ⌈⌈S/N⌉ / e⌉ · e

Phase 1 has N-P steps. Step i sends segment (r+1)P+i and receives segment (r+2)P+i (mod N) into one of two buffers,
then adds it to its own. Phase 2 has as many: it sends rP+i, receives (r+1)P+i in place. Two steps are in flight, each
posted when the one before the last is done; segments past the end of a short tensor are left out.

What is sent in step i >= P was received in step i-P. Tested against the segments and the bits of Gloo itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from frogtorch.effects import Collective, Combine, Group, Lane, Receive, Region, Release, Send, Stage, Together

SEGMENT_BYTES = 1 << 20
"""Most bytes of a segment."""


class Segments(NamedTuple):
    """How a tensor is cut: `number` segments of `size` elements (the last ones less, or none), `per_rank` a chunk."""

    number: int
    per_rank: int
    size: int


def segments(count: int, itemsize: int, ranks: int) -> Segments:
    """Cut a tensor of `count` elements of `itemsize` bytes for a ring of `ranks`."""
    most = max(1, SEGMENT_BYTES // itemsize)
    number = max(-(-count // most), 2 * ranks)
    number = -(-number // ranks) * ranks
    return Segments(number, number // ranks, -(-count // number))


def ring(group: Group, tensor: Region, op: str) -> Collective:
    """All-reduce `tensor` in place. `op` combines two parts at a time, so a mean is a sum, divided afterwards."""
    if not tensor.count or not group.peers:
        return
    cut = segments(tensor.count, tensor.itemsize, group.size)
    steps = cut.number - cut.per_rank
    mine = group.rank * cut.per_rank

    def segment(index: int) -> Region:
        lo = min(tensor.lo + index % cut.number * cut.size, tensor.hi)
        return tensor.buffer[lo:min(lo + cut.size, tensor.hi)]

    def phase(first: int, buffers: Sequence[Region | None]) -> Collective:
        """Send the segments from `first` on, receive those from the next chunk on: into `buffers` in turn, or in place.

        Two lanes, of the even and of the odd steps, are Gloo's two steps in flight. Both directions are in order, so
        the lanes advance in turns.
        """
        done: set[int] = set()

        def lane(parity: int) -> Collective:
            for i in range(parity, steps, 2):
                if i >= cut.per_rank and i - cut.per_rank not in done:
                    raise RuntimeError(f"step {i} of the ring sends what step {i - cut.per_rank} has not brought yet")
                out, into = segment(first + i), segment(first + cut.per_rank + i)
                both: list[Lane] = []
                if into.count:
                    both.append(_receive(group, into, buffers[parity], op))
                if out.count:
                    both.append(Send(group.rank - 1 if group.rank else group.size - 1, out))
                yield Together(both)
                done.add(i)

        yield Together([lane(0), lane(1)])

    stages = [(yield Stage(cut.size, tensor.itemsize)), (yield Stage(cut.size, tensor.itemsize))]
    yield from phase(mine + cut.per_rank, [stage[:] for stage in stages])
    for stage in stages:
        yield Release(stage)
    yield from phase(mine, [None, None])


def _receive(group: Group, into: Region, buffer: Region | None, op: str) -> Collective:
    """Receive a segment from the next rank, and combine it with one's own if it comes into a buffer."""
    source = (group.rank + 1) % group.size
    if buffer is None:
        yield Receive(source, into)
    else:
        part = buffer.buffer[:into.count]
        yield Receive(source, part)
        yield Combine(into, [into, part], op)
