"""Gloo's collectives that only move bytes.

An operation posts its sends and receives without waiting for each other, and is done when all of them are, unless said
otherwise here. Also an empty region is sent and received: Gloo's messages say their length.
"""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Buffer, Collective, Copy, Group, Receive, Region, Send, Together


def broadcast(group: Group, tensor: Region, root: int) -> Collective:
    """Fill every rank's `tensor` with that of `root`.

    Ranks are counted from the root on. In round i rank v < 2^i sends to rank v + 2^i; nobody waits for a round's end.
    """
    size = group.size
    v = (group.rank - root) % size
    if v:
        parent = v - (1 << (v.bit_length() - 1))
        yield Receive((parent + root) % size, tensor)
    children = [v + (1 << i) for i in range(v.bit_length(), (size - 1).bit_length()) if v + (1 << i) < size]
    yield Together(Send((child + root) % size, tensor) for child in children)


def all_gather(group: Group, mine: Region, into: Region) -> Collective:
    """Fill `into`, W shares in the order of the ranks, with every rank's `mine`. In bytes: halves may cut an element.

    Step i of W-1 sends to the next rank what came in step i-1, at first the own share. The first and the second halves
    of the shares go round side by side.
    """
    size, rank, nbytes = group.size, group.rank, mine.nbytes
    yield Copy(mine, _bytes(into)[rank * nbytes:(rank + 1) * nbytes])
    half = nbytes // 2

    def halves(lo: int, hi: int) -> Collective:
        for step in range(size - 1):
            out, come = (rank - step) % size * nbytes, (rank - step - 1) % size * nbytes
            yield Together([Send((rank + 1) % size, _bytes(into)[out + lo:out + hi]),
                            Receive((rank - 1) % size, _bytes(into)[come + lo:come + hi])])

    yield Together([halves(0, half), halves(half, nbytes)])


def gather(group: Group, mine: Region, into: Sequence[Region] | None, root: int) -> Collective:
    """Fill ``into[r]`` at `root`, which alone has it, with the `mine` of rank r."""
    if into is None:
        yield Send(root, mine)
        return
    yield Together(Receive(p, into[p]) for p in range(group.size) if p != root)
    yield Copy(mine, into[root])


def scatter(group: Group, parts: Sequence[Region] | None, into: Region, root: int) -> Collective:
    """Fill the `into` of rank r with ``parts[r]`` of `root`, which alone has them."""
    if parts is None:
        yield Receive(root, into)
        return
    yield Together(Send(p, parts[p]) for p in range(group.size) if p != root)
    yield Copy(parts[root], into)


def all_to_all(group: Group, parts: Sequence[Region], into: Sequence[Region]) -> Collective:
    """Fill ``into[r]`` of rank k with ``parts[k]`` of rank r."""
    yield Copy(parts[group.rank], into[group.rank])
    lanes: list[Send | Receive] = []
    for i in range(1, group.size):
        to, source = (group.rank + i) % group.size, (group.rank - i) % group.size
        lanes += [Send(to, parts[to]), Receive(source, into[source])]
    yield Together(lanes)


def barrier(group: Group) -> Collective:
    """Return when every rank has come: in round i a rank hears from the one 2^i before it, and tells that 2^i after."""
    nothing = Buffer(0, 1)[:]
    for i in range((group.size - 1).bit_length()):
        yield Together([Receive((group.rank - (1 << i)) % group.size, nothing),
                        Send((group.rank + (1 << i)) % group.size, nothing)])


def _bytes(region: Region) -> Region:
    """The same bytes as a region of single bytes."""
    buffer = Buffer(region.buffer.count * region.itemsize, 1, region.buffer.storage)
    return buffer[region.lo * region.itemsize:region.hi * region.itemsize]
