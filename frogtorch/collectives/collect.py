"""What reductions have in common: collect everybody's part, fold the parts in the order of summation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frogtorch.collectives.order import Piece
from frogtorch.effects import Collective, Combine, Group, Name, Read, Region, Stage, Together


def collect(group: Group, name: Name, mine: Region) -> Collective:
    """Read every peer's cell `name`, each as large as `mine`.

    Returns the buffer that holds them, for its Release, and the parts by rank, `mine` among them.
    """
    stage = yield Stage(mine.count * len(group.peers), mine.itemsize)
    part = dict(zip(group.peers, stage[:].split(len(group.peers)), strict=True))
    yield Together(Read(name, owner=p, into=part[p]) for p in group.peers)
    return stage, [part.get(r, mine) for r in range(group.size)]


def fold(into: Region, parts: Sequence[Region], pieces: Iterable[Piece], op: str) -> Collective:
    """Combine the parts, one a rank, into `into`, which may be one of them: piece by piece, each in its order."""
    for lo, hi, ranks in pieces:
        yield Combine(into[lo:hi], [parts[r][lo:hi] for r in ranks], op)
