"""The other members, as this one sees them: what is read from each, what came from it, and what became of it."""

from __future__ import annotations

from frogtorch.memory.cells import Inbox, Key, Reading
from frogtorch.memory.connection import Connection
from frogtorch.memory.credit import Credit
from frogtorch.memory.faults import MemoryFault, PeerGaveUp, ProtocolError
from frogtorch.memory.parcels import Early, Parcel

STANDING_MAX = 1 << 16
"""Most requests of one peer that stand here at a time, answers that wait for it, and rounds that it gave up ahead."""


class Peer:
    """Another member of the group."""

    __slots__ = ("connection", "credit", "early", "gave_up", "gone", "inbox", "parcels", "rank", "reads", "standing")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rank = connection.rank
        self.reads: dict[Key, Reading] = {}
        """Reads of its cells, and receives of its parcels, that are under way."""
        self.inbox = Inbox()
        self.early = Early()
        self.parcels: dict[Parcel, None] = {}
        """Parcels to it that the kernel does not have in full."""
        self.credit = Credit()
        self.standing = 0
        """Its requests that stand here."""
        self.gone: MemoryFault | None = None
        """Why it is lost, or that it has left."""
        self.gave_up: dict[int, str] = {}
        """Why it gave up a round that is not over here."""

    def __str__(self) -> str:
        return str(self.connection)

    def fault(self, number: int) -> MemoryFault | None:
        """Why nothing comes from it, and nothing is read by it, in a round; None if there is no reason."""
        if number in self.gave_up:
            return PeerGaveUp(self.gave_up[number])
        return self.gone

    def stands(self) -> None:
        """One more of its requests stands here. Raises ProtocolError if these are too many."""
        self.standing += 1
        if self.standing > STANDING_MAX:
            raise ProtocolError(f"{self} has more than {STANDING_MAX} requests standing")

    def gives_up(self, number: int, why: str) -> None:
        """It gave up a round that is not over here. Raises ProtocolError if these are too many."""
        self.gave_up[number] = why
        if len(self.gave_up) > STANDING_MAX:
            raise ProtocolError(f"{self} gave up more than {STANDING_MAX} rounds that are not over")
