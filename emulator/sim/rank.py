"""A rank in the simulated world: its connections, the cells it has published, and what it has counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simpy import Environment, Event

from emulator.sim.channel import Channel, Message, What
from emulator.sim.connection import Connections
from emulator.sim.cores import Thread
from frogtorch.collectives.interest import FOR_ONE, FRAME_BYTES, SMALL_BYTES, interests, unasked
from frogtorch.effects import Name

FRAME_HEADER = 64
"""Bytes before the payload of a frame: 32 of fixed header, and two texts, such as ``ars.0.3`` and what the round is."""

Key = tuple[int, Name]
"""A round and the name of a cell in it."""


@dataclass
class Costs:
    """What a rank's own work takes, in seconds: a byte copied, a byte combined, a message, both its ends.

    With `cores`, all ranks are on one box that has so many, and these are seconds of a core
    (:mod:`emulator.sim.cores`): half of a message is its sender's, before it leaves. Without, every rank does all that
    it has to do side by side, and a message costs when it is taken in.
    """

    copy: float = 0.0
    combine: float = 0.0
    message: float = 0.0
    cores: int | None = None


MEASURED = Costs(copy=9.5e-11, combine=8.9e-11, message=2e-5)
"""One core of the machine that this was written on, idle: torch copies 16.9 MB in 1.6 ms and adds as much in 1.5 ms;
handing something to a waiting thread takes 18 µs. None of it comes from running a collective."""


@dataclass
class Peer:
    """What one rank got from another in one round."""

    wait: float
    """Seconds from the start of the round to the first byte."""
    transfer: float = 0.0
    """Seconds from the first byte to the last, of all reads together."""
    bytes: int = 0
    """Payload."""


@dataclass
class Account:
    """What one rank counted in one round. Points in time are virtual seconds."""

    start: float = 0.0
    end: float = 0.0
    publish: float = 0.0
    """Seconds spent publishing."""
    combined: float | None = None
    """When the last Combine was done."""
    reduced: float | None = None
    """When the first byte of a reduced cell came."""
    peers: dict[int, Peer] = field(default_factory=dict)


@dataclass
class Cell:
    """A published value: its size, how many readers have not got it yet, whether it holds memory of its own."""

    nbytes: int
    readers: int
    copied: bool


class Rank:
    """One rank; `group` is the list of them all, by rank, which may be filled later.

    With a `thread` a message of its costs that `seconds` of work before it leaves.
    """

    def __init__(self, connections: Connections, rank: int, group: list[Rank], thread: Thread | None = None,
                 seconds: float = 0.0) -> None:
        self.env: Environment = connections.env
        self.rank = rank
        self.group = group
        self.connections = connections
        self.memory = 0
        """Bytes that stages and copied cells hold now."""
        self.memory_peak = 0
        self._cells: dict[Key, Cell] = {}
        self._standing: defaultdict[Key, list[int]] = defaultdict(list)
        self._incoming: dict[tuple[int, Key], Event] = {}
        self._interests = interests(rank)
        self._thread = thread
        self._seconds = seconds

    def send(self, to: int, nbytes: int, urgent: bool = False, what: What | None = None) -> Message:
        """Send a message with payload to another rank; it waits until this one has had the time."""
        return self.channel(to).send(nbytes, urgent, what,
                                     None if self._thread is None else self._thread.work(self._seconds))

    def channel(self, to: int) -> Channel:
        """Return the way from this rank to another."""
        return self.connections.channel(self.rank, to)

    def hold(self, nbytes: int) -> None:
        """Count `nbytes` more (or fewer) of memory."""
        self.memory += nbytes
        self.memory_peak = max(self.memory_peak, self.memory)

    def publish(self, key: Key, cell: Cell) -> None:
        """Make a cell readable: it goes to those who get it unasked, then to those who stand waiting.

        Raises ValueError if the name was published in this round before.
        """
        if key in self._cells:
            raise ValueError(f"rank {self.rank} publishes {key[1]!r} twice in round {key[0]}")
        self._cells[key] = cell
        if cell.copied:
            self.hold(cell.nbytes)
        if cell.nbytes <= SMALL_BYTES:  # a larger one goes to nobody unasked, and there may be a million of them
            kind, last = key[1][0], key[1][-1]
            for peer in [self.group[last]] if kind in FOR_ONE and isinstance(last, int) else self.group:
                if peer is not self and unasked(peer._interests, key[1], cell.nbytes):
                    self._serve(key, cell, peer.rank, "UNASKED")
        for reader in self._standing.pop(key, ()):
            self._serve(key, cell, reader, "CELL")

    def ask(self, key: Key, owner: int, nbytes: int) -> Event:
        """Ask `owner` for a cell of `nbytes`. When it is sent, the event fires with the message and its size."""
        coming = self.incoming(owner, key)
        if not unasked(self._interests, key[1], nbytes):
            request = self.channel(owner).send(FRAME_HEADER, True, What("ASK", key[0], 0, key[1]))
            request.arrived.callbacks.append(lambda _: self.group[owner]._asked(key, self.rank))
        return coming

    def incoming(self, owner: int, key: Key) -> Event:
        """Return the event that fires when `owner` sends the cell."""
        if (owner, key) not in self._incoming:
            self._incoming[owner, key] = self.env.event()
        return self._incoming[owner, key]

    def forget(self, owner: int, key: Key) -> None:
        """What `owner` has sent under this name was looked at, and nobody will again."""
        del self._incoming[owner, key]

    def _asked(self, key: Key, reader: int) -> None:
        cell = self._cells.get(key)
        if cell is None:
            self._standing[key].append(reader)
        else:
            self._serve(key, cell, reader, "CELL")

    def _serve(self, key: Key, cell: Cell, reader: int, kind: str) -> None:
        if not cell.readers:
            raise ValueError(f"rank {reader} reads {key[1]!r} of rank {self.rank}, which has had all its readers")
        frames = max(1, -(-cell.nbytes // FRAME_BYTES))
        message = self.send(reader, cell.nbytes + frames * FRAME_HEADER, cell.nbytes <= SMALL_BYTES,
                            What(kind, key[0], cell.nbytes, key[1]))
        self.group[reader].incoming(self.rank, key).succeed((message, cell.nbytes))
        cell.readers -= 1
        if cell.copied and not cell.readers:
            # The copy goes with its last byte; the name stays taken for the round.
            message.left.callbacks.append(lambda _: self.hold(-cell.nbytes))

