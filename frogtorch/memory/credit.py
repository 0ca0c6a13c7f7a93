"""How much may be under way that nobody asked for, and how much published that nobody has read.

Both are counted in bytes of cells, and :data:`CELL_BYTES` for each cell: a million empty ones are memory too.
"""

from __future__ import annotations

from collections.abc import Callable

from frogtorch.memory.faults import ProtocolError

CELL_BYTES = 1024
"""What a cell takes beside its bytes: objects at its owner and, while it waits there, at its reader."""

UNASKED_BYTES = 32 << 20
"""Most that is on its way to one reader, or waits there for its reads, without having been asked for."""

CREDIT_BYTES = 4 << 20
"""How much a reader uses up before it says so. Small beside UNASKED_BYTES, or the sender would stop and go."""

UNREAD_BYTES = 256 << 20
"""Copies that a rank of a group keeps for its readers before those that publish more have to wait for them."""


class Credit:
    """Unasked cells between this rank and a peer, both ways. All counts only ever grow.

    A sender counts what it sent, and what the reader said it has used up; between the two is what is on its way or
    waits at the reader. A cell that would make that more than UNASKED_BYTES is offered instead, and the reader asks
    for it as soon as its read stands: so a reader never waits for credit, and a sender never waits at all.
    """

    __slots__ = ("_came", "_sent", "_used_here", "_used_there")

    def __init__(self) -> None:
        self._sent = 0
        self._used_there = 0  # of what we sent
        self._came = 0
        self._used_here = 0  # of what came, as far as the peer has been told

    def spend(self, nbytes: int) -> bool:
        """Whether a cell of `nbytes` bytes may go unasked; then it is counted."""
        cost = nbytes + CELL_BYTES
        if self._sent + cost - self._used_there > UNASKED_BYTES:
            return False
        self._sent += cost
        return True

    def restore(self, used: int) -> None:
        """The peer has used up `used` in all. Raises ProtocolError if that cannot be."""
        if not self._used_there <= used <= self._sent:
            raise ProtocolError(f"credit for {used} bytes, of {self._sent} sent and {self._used_there} credited before")
        self._used_there = used

    def take(self, nbytes: int) -> None:
        """An unasked cell of `nbytes` bytes came. Raises ProtocolError if the peer had no credit for it."""
        self._came += nbytes + CELL_BYTES
        if self._came - self._used_here > UNASKED_BYTES:
            raise ProtocolError(f"more than {UNASKED_BYTES >> 20} MiB came unasked and beyond all credit")

    def due(self, waiting: int) -> int | None:
        """What to tell the peer that is used up, if `waiting` of what came is not; None if it is too little to tell."""
        used = self._came - waiting
        if used - self._used_here < CREDIT_BYTES:
            return None
        self._used_here = used
        return used


class Unread:
    """Copies that this rank keeps for its readers, and the rounds whose end waits until they are fewer.

    A round ends here when its cells are published; that its caller goes on may be held back, so that one who waits
    for it is slowed down to its readers. Only a round with unread copies *of its own* is held, and no longer than
    until these are read: it waits for nothing that a rendezvous would not wait for, so what runs with sends that
    wait for their receivers runs here. If they are the only unread copies it is not held at all, however large.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._rounds: dict[int, int] = {}
        self._held: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, number: int, nbytes: int) -> None:
        """A copy has been published."""
        self.nbytes += nbytes + CELL_BYTES
        self._rounds[number] = self._rounds.get(number, 0) + nbytes + CELL_BYTES

    def remove(self, number: int, nbytes: int) -> None:
        """A copy is gone; let those rounds end that need not wait any more."""
        self.nbytes -= nbytes + CELL_BYTES
        left = self._rounds[number] = self._rounds[number] - nbytes - CELL_BYTES
        if not left:
            del self._rounds[number]
        if not self._held:
            return
        if self.nbytes <= UNREAD_BYTES:
            free = list(self._held)
        else:
            free = ([] if left else [number]) + (list(self._rounds) if len(self._rounds) == 1 else [])
        for one in free:
            end = self._held.pop(one, None)
            if end is not None:
                end()

    def hold(self, number: int, end: Callable[[], None]) -> bool:
        """Whether the end of a round has to wait; then `end` is called once, later, unless it is forgotten first."""
        own = self._rounds.get(number, 0)
        if not own or self.nbytes <= max(UNREAD_BYTES, own):
            return False
        self._held[number] = end
        return True

    def forget(self, number: int) -> None:
        """A held round has ended in another way."""
        self._held.pop(number, None)
