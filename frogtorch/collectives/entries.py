"""All-gather of tables whose lengths only their owners know, such as the entries of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence

from frogtorch.effects import Collective, Group, Lane, Look, Publish, Read, Region, Stage, Together


def all_gather_entries(group: Group, number: Region, columns: Sequence[Region], widths: Sequence[int],
                       most: int) -> Collective:
    """Gather every rank's entries; return, by rank, how many it has and the list of its columns.

    `number`, one element of 8 bytes, holds how many entries this rank has, at most `most`; ``columns[c]`` has
    ``widths[c]`` elements for each of them. The other ranks' columns are staged: they go when the collective ends.
    Small tables take one one-way delay, others two more: a length has to come before its table can be asked for.

    Raises ValueError if a rank says a number that cannot be.
    """
    if group.peers:
        yield Publish(("len",), number, readers=len(group.peers), copy=True)
        for c, column in enumerate(columns):
            if column.count:
                yield Publish(("ent", c), column, readers=len(group.peers), copy=True)
    lanes: list[Lane] = [_table(group, p, columns, widths, most) for p in group.peers]
    tables = dict(zip(group.peers, (yield Together(lanes)), strict=True))
    tables[group.rank] = (yield Look(number)), columns
    return [tables[r] for r in range(group.size)]


def _table(group: Group, peer: int, columns: Sequence[Region], widths: Sequence[int], most: int) -> Collective:
    number = (yield Stage(1, 8))[:]
    yield Read(("len",), owner=peer, into=number)
    length = yield Look(number)
    if not 0 <= length <= most:
        raise ValueError(f"rank {peer} says to rank {group.rank} that it has {length} entries: 0 to {most} can be")
    theirs = []
    for column, width in zip(columns, widths, strict=True):
        theirs.append((yield Stage(length * width, column.itemsize))[:])
    yield Together(Read(("ent", c), owner=peer, into=into) for c, into in enumerate(theirs) if into.count)
    return length, theirs
