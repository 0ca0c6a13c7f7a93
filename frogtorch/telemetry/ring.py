"""The last collectives of the process, of all its groups."""

from __future__ import annotations

import itertools
from collections import deque

from frogtorch.telemetry.record import Record

KEPT = 1_000
"""Collectives that have ended and are still known."""


class Ring:
    """The last :data:`KEPT` collectives, and however many are under way: those are what one looks for.

    It takes no lock, so that it can be read while everything else hangs: every step of it is one call of the
    interpreter's own containers.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._under_way: dict[int, Record] = {}
        self._over: deque[Record] = deque(maxlen=KEPT)

    def begin(self, record: Record) -> None:
        """Number a collective that begins, and keep it."""
        record.id = next(self._numbers)
        self._under_way[record.id] = record

    def end(self, record: Record) -> None:
        """It has ended, so it goes when its turn comes."""
        self._over.append(record)
        self._under_way.pop(record.id, None)

    def records(self) -> list[Record]:
        """All of them, in the order in which they began."""
        # In this order: one that ends in between is then there twice, and not missing.
        found = {record.id: record for record in list(self._under_way.values()) + list(self._over)}
        return [found[number] for number in sorted(found)]

    def clear(self) -> None:
        """Forget all."""
        self._under_way.clear()
        self._over.clear()


RING = Ring()
"""The process's."""
