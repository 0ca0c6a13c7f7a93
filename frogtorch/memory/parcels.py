"""Parcels: bytes that one member sends to another, as over a plain socket.

A parcel is no cell. Nobody asks for it and no credit is needed: it leaves when it is sent, in the order of sending,
straight from the sender's region, and lands in its receiver's, if that is there. One that is early waits here, whole or
in part; its receiver takes it over wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable

from frogtorch.memory.cells import Key, Reading, Tally
from frogtorch.memory.faults import ProtocolError
from frogtorch.memory.wire import Frame

EARLY_BYTES = 1 << 30
"""Most bytes of one peer that wait for their receivers."""


class Parcel:
    """Bytes on their way to one rank. `done` is called once: when the kernel has them all, or with an error."""

    __slots__ = ("done", "name", "nbytes", "round", "tally", "view", "what")

    def __init__(self, number: int, name: bytes, what: bytes, view: memoryview, tally: Tally,
                 done: Callable[[Parcel, BaseException | None], None]) -> None:
        self.round = number
        self.name = name
        self.what = what
        self.view = view
        self.nbytes = len(view)
        self.tally = tally
        self.done = done


class Early:
    """Parcels of one peer that came, or are coming, before they are received."""

    __slots__ = ("_nbytes", "_rounds")

    def __init__(self) -> None:
        self._rounds: dict[int, dict[bytes, Reading]] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._rounds.values()))

    def place(self, frame: Frame, owner: int, tally: Tally) -> Reading:
        """Where the parcel of `frame` goes until it is received. Raises ProtocolError for too much, or for nonsense."""
        parcels = self._rounds.setdefault(frame.round, {})
        found = parcels.get(frame.name)
        if found is None:
            self._nbytes += frame.total
            if self._nbytes > EARLY_BYTES:
                raise ProtocolError(f"more than {EARLY_BYTES} bytes came that this rank does not receive yet; wait for "
                                    f"collectives before more are started, or use another algorithm than direct")
            found = parcels[frame.name] = Reading(frame.round, frame.name, owner, frame.what,
                                                  memoryview(bytearray(frame.total)), tally, _arrived)
        elif found.got == len(found.view):
            raise ProtocolError(f"parcel {frame.name[:80]!r} of round {frame.round} came twice")
        return found

    def pop(self, key: Key) -> Reading | None:
        """What came of a parcel; it does not wait here any more. None if nothing has come."""
        parcels = self._rounds.get(key[0])
        found = None if parcels is None else parcels.pop(key[1], None)
        if found is not None:
            self._nbytes -= len(found.view)
            if not parcels:
                del self._rounds[key[0]]
        return found

    def kinds(self, number: int) -> set[bytes]:
        """What the parcels of a round are part of."""
        return {one.what for one in self._rounds.get(number, {}).values()}

    def forget(self, number: int) -> None:
        """Let the parcels of a round go."""
        self._nbytes -= sum(len(one.view) for one in self._rounds.pop(number, {}).values())

    def broken(self) -> None:
        """Nothing more comes: let those go that came in part."""
        for number, parcels in list(self._rounds.items()):
            for name in [name for name, one in parcels.items() if one.got < len(one.view)]:
                self.pop((number, name))


def _arrived(reading: Reading, error: BaseException | None) -> None:
    """Nothing is to be done: it waits until it is received."""
