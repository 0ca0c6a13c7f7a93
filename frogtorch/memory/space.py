"""FrogNet Memory of one group, as one member sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from frogtorch.collectives.interest import SMALL_BYTES, Interest, unasked
from frogtorch.effects import Name
from frogtorch.memory.cells import Address, Cell, Inbox, Key, Reading, Tally
from frogtorch.memory.connection import Connection
from frogtorch.memory.endpoint import Endpoint
from frogtorch.memory.faults import GroupClosed, MemoryFault, Mismatch, PeerGaveUp, PeerLost, ProtocolError
from frogtorch.memory.loop import Loop
from frogtorch.memory.rendezvous import Link
from frogtorch.memory.wire import TEXT_MAX, Frame, Kind, encode, encode_name

INBOX_BYTES = 64 << 20
"""Most bytes of cells from one peer that came unasked and wait for their reads."""

STANDING_MAX = 1 << 16
"""Most requests of one peer that stand here at a time."""

ENDED_KEPT = 1024
"""Rounds after whose end it is still known what they were, to tell it to a rank that does something else in one."""

LINGER = 5.0
"""Seconds that a member which leaves waits for the others to close their ends."""


class Operation(Protocol):
    """A round under way on this rank, as the memory sees it."""

    what: bytes
    deadline: float
    tally: Tally

    def fail(self, error: BaseException) -> None:
        """End it with `error`."""

    def expire(self) -> None:
        """End it: its deadline has passed."""


class Memory:
    """Cells of this rank, reads at the others, and the connections between.

    Except for :meth:`leave`, all calls are made with ``loop.lock`` held; what they queue goes out with :meth:`flush`.
    """

    def __init__(self, loop: Loop, space: str, rank: int, endpoint: Endpoint, links: dict[int, Link],
                 interests: Collection[Interest]) -> None:
        self.loop = loop
        self.space = space
        self.rank = rank
        self.endpoint = endpoint
        self.interests = frozenset(interests)
        self.connections = {peer: Connection(self, peer, link) for peer, link in sorted(links.items())}
        self.operations: dict[int, Operation] = {}
        self.next_round = 0
        self.dirty: set[Connection] = set()  # connections with something to flush
        self.when_flushed: list[Callable[[], None]] = []  # called once, after the next flush
        self.closed: MemoryFault | None = None
        self._cells: dict[Key, Cell] = {}
        # Requests that stand, and cells that came unasked and wait, by round: a round that ends takes its own along.
        self._asked: dict[int, dict[bytes, list[Connection]]] = {}
        self._standing = dict.fromkeys(self.connections, 0)
        self._reads: dict[int, dict[Key, Reading]] = {peer: {} for peer in self.connections}
        self._inbox = {peer: Inbox() for peer in self.connections}
        self._gone: dict[int, MemoryFault] = {}  # peers that are lost or have left
        self._gave_up: dict[tuple[int, int], str] = {}  # (peer, round): why
        self._ended: dict[int, bytes] = {}  # what the latest rounds were
        self._tallies: dict[int, Tally] = {}
        self._audiences: dict[tuple[str | int, str | int], tuple[Connection, ...]] = {}
        self._quiet = threading.Condition(loop.lock)  # told when an operation, a cell or a connection has gone
        loop.add(self)
        for connection in self.connections.values():
            connection.take()

    def address(self, number: int, name: bytes, owner: int) -> Address:
        """The address of a cell, for texts: the round comes second in its name, as in ``ars.7.0.3``."""
        kind, _, rest = name.decode(errors="replace").partition(".")
        return Address(self.space, f"{kind}.{number}" + (f".{rest}" if rest else ""), owner)

    def tally(self, number: int) -> Tally:
        """The byte counts of a round; of one that is over, a sheet that nobody reads."""
        found = self._tallies.get(number)
        if found is None:
            found = Tally()
            if not self._over(number):
                self._tallies[number] = found
        return found

    def _over(self, number: int) -> bool:
        return number < self.next_round and number not in self.operations

    # Rounds ---------------------------------------------------------------------------------------------------

    def begin(self, operation: Operation) -> int:
        """Number a new round. It may fail at once, if a peer is known to do something else in it."""
        if self.closed is not None:
            raise self.closed
        number = self.next_round
        self.next_round += 1
        self.operations[number] = operation
        operation.tally = self.tally(number)
        self.loop.awake_by(operation.deadline)
        return number

    def early(self, number: int) -> MemoryFault | None:
        """What is wrong with what came for this round before it began here, if anything is."""
        what = self.operations[number].what
        for peer, inbox in self._inbox.items():
            for theirs in inbox.kinds(number) - {what}:
                return self._differs(number, what, peer, theirs)
        return None

    def end(self, number: int, error: BaseException | None = None) -> None:
        """A round is over on this rank. If it failed, take back its cells and tell the others."""
        self._ended[number] = self.operations.pop(number).what
        self._ended.pop(number - ENDED_KEPT, None)
        self._tallies.pop(number, None)
        for peer in self.connections:
            self._gave_up.pop((peer, number), None)
            self._inbox[peer].forget(number)
        if error is not None:
            text = str(error).encode()[:TEXT_MAX]
            for peer, connection in self.connections.items():
                connection.withdraw(number)
                if peer not in self._gone:
                    connection.send(encode(Kind.GIVE_UP, number, total=len(text), length=len(text)) + text, number)
            for key in [key for key in self._cells if key[0] == number]:
                self._retire(self._cells[key])
        for name, connections in self._asked.pop(number, {}).items():
            for connection in connections:
                self._standing[connection.rank] -= 1
                self._unserved(connection, number, name)
        self._quiet.notify_all()

    def expire(self, now: float) -> float:
        """End the rounds whose deadline has passed by `now`; return the nearest of the others."""
        for operation in [one for one in self.operations.values() if one.deadline <= now]:
            operation.expire()
        return min((one.deadline for one in self.operations.values()), default=float("inf"))

    def flush(self) -> None:
        """Hand what was queued to the kernel, as far as it takes it; then tell those who wait for that."""
        while self.dirty:
            self.dirty.pop().flush()
        told, self.when_flushed = self.when_flushed, []
        for tell in told:
            tell()

    # Cells ----------------------------------------------------------------------------------------------------

    def publish(self, number: int, name: Name, view: memoryview, readers: int,
                retired: Callable[[], None] | None = None) -> None:
        """Make the bytes of `view` the cell `name` of a round, until `readers` ranks have them: then `retired()`.

        Raises ValueError if the round has such a cell already.
        """
        operation = self.operations[number]
        key = number, encode_name(name)
        if key in self._cells:
            raise ValueError(f"{self.address(*key, self.rank)} is published already; a name is written once")
        cell = Cell(number, key[1], operation.what, view, readers, operation.tally, retired)
        audience = self._audience(name)
        cell.waiting = {c.rank for c in audience} if len(audience) == readers else set(self.connections)
        if self._gone:
            cell.waiting.difference_update(self._gone)
        if self._gave_up:
            cell.waiting.difference_update([p for p in cell.waiting if (p, number) in self._gave_up])
        self._cells[key] = cell
        if cell.nbytes <= SMALL_BYTES:
            for connection in audience:
                self._serve(cell, connection)
        for connection in self._asked.get(number, {}).pop(key[1], ()):
            self._standing[connection.rank] -= 1
            self._serve(cell, connection)
        if not cell.waiting:
            self._retire(cell)

    def _audience(self, name: Name) -> tuple[Connection, ...]:
        """The members that subscribed to such a cell."""
        found = self._audiences.get((name[0], name[-1]))
        if found is None:
            found = tuple(c for c in self.connections.values() if unasked(c.interests, name, 0))
            if len(self._audiences) < 4096:
                self._audiences[name[0], name[-1]] = found
        return found

    def _serve(self, cell: Cell, connection: Connection) -> None:
        if connection.rank in cell.waiting and connection.rank not in cell.sent_to:
            cell.sent_to.add(connection.rank)
            cell.tally.payload_offered += cell.nbytes
            connection.serve(cell)

    def served(self, cell: Cell, peer: int) -> None:
        """The kernel has the last byte of `cell` for `peer`."""
        cell.left -= 1
        cell.waiting.discard(peer)
        if not cell.left or not cell.waiting:
            self._retire(cell)

    def _retire(self, cell: Cell) -> None:
        if self._cells.pop((cell.round, cell.name), None) is not None:
            if cell.retired is not None:
                cell.retired()
            if not self._cells:
                self._quiet.notify_all()

    def _reads_no_more(self, peer: int, number: int | None = None) -> None:
        """A peer will not come for our cells (of one round) any more."""
        for cell in [c for c in self._cells.values() if number in (None, c.round) and peer in c.waiting]:
            cell.waiting.discard(peer)
            if not cell.waiting:
                self._retire(cell)

    # Reads ----------------------------------------------------------------------------------------------------

    def read(self, reading: Reading, name: Name) -> bool:
        """Begin a read; return whether it is filled already. Otherwise its ``done`` is called later.

        Raises PeerLost or PeerGaveUp if its owner is known to be gone, Mismatch if the cell that came is another.
        """
        owner, key = reading.owner, (reading.round, reading.name)
        came = self._inbox[owner].pop(key)
        if came is not None:
            what, data = came
            if what != reading.what or len(data) != len(reading.view):
                raise self._wrong(reading, what, len(data))
            reading.view[:] = data
            reading.first = reading.last = time.monotonic()
            reading.got = reading.head = len(data)
            reading.tally.payload_received += len(data)
            return True
        fault = self._unreadable(owner, reading.round)
        if fault is not None:
            raise fault
        self._reads[owner][key] = reading
        if not unasked(self.interests, name, len(reading.view)):
            self.connections[owner].send(
                encode(Kind.ASK, reading.round, reading.name, reading.what, len(reading.view)), reading.round)
        return False

    def cancel(self, reading: Reading) -> None:
        """Forget a read: nothing is written to its view any more."""
        if self._reads[reading.owner].pop((reading.round, reading.name), None) is not None:
            self.connections[reading.owner].forget(reading)

    def _unreadable(self, owner: int, number: int) -> MemoryFault | None:
        if (owner, number) in self._gave_up:
            return PeerGaveUp(self._gave_up[owner, number])
        return self._gone.get(owner)

    def _finish(self, reading: Reading, error: BaseException | None = None) -> None:
        self._reads[reading.owner].pop((reading.round, reading.name), None)
        if error is not None:
            self.connections[reading.owner].forget(reading)
        reading.done(reading, error)

    def progress(self, reading: Reading, count: int) -> None:
        """`count` more bytes of a read are in place."""
        now = time.monotonic()
        if reading.first is None:
            reading.first = now
            reading.head = count
        reading.last = now
        reading.got += count
        reading.tally.payload_received += count
        reading.tally.socket_received += count
        if reading.got == len(reading.view):
            self._finish(reading)

    # What comes in --------------------------------------------------------------------------------------------

    def frame(self, connection: Connection, frame: Frame, head: int, payload: memoryview) -> None:
        """A whole frame came: `head` bytes before its payload. Raises ProtocolError."""
        if frame.kind == Kind.CELL:
            reading = self._expected(connection, frame, head)
            if reading is not None:
                reading.place(frame)[:] = payload
                self.progress(reading, len(payload))
            elif frame.length == frame.total and not self._over(frame.round):
                self._keep(connection, frame, head, payload)
        elif frame.kind == Kind.ASK:
            self._ask(connection, frame, head)
        elif frame.kind == Kind.GIVE_UP:
            self._peer_gave_up(connection, frame.round, bytes(payload).decode(errors="replace"))
        else:
            self._peer_left(connection)

    def long_frame(self, connection: Connection, frame: Frame, head: int) -> Reading | None:
        """A frame of a long cell begins: the read that its payload is for, None if nobody wants it."""
        if frame.kind != Kind.CELL:
            raise ProtocolError(f"a {Kind(frame.kind).name} frame carries {frame.length} bytes")
        return self._expected(connection, frame, head)

    def _expected(self, connection: Connection, frame: Frame, head: int) -> Reading | None:
        reading = self._reads[connection.rank].get((frame.round, frame.name))
        if reading is None:
            return None
        reading.tally.socket_received += head
        if frame.what != reading.what or frame.total != len(reading.view):
            self._finish(reading, self._wrong(reading, frame.what, frame.total))
            return None
        if frame.offset != reading.got:
            raise ProtocolError(f"{self.address(frame.round, frame.name, connection.rank)} goes on at byte "
                                f"{frame.offset} where byte {reading.got} comes next")
        return reading

    def _keep(self, connection: Connection, frame: Frame, head: int, payload: memoryview) -> None:
        operation = self.operations.get(frame.round)
        if operation is not None and operation.what != frame.what:
            operation.fail(self._differs(frame.round, operation.what, connection.rank, frame.what))
            return
        inbox = self._inbox[connection.rank]
        if inbox.nbytes + len(payload) > INBOX_BYTES:
            raise ProtocolError(f"more than {INBOX_BYTES >> 20} MiB came from {connection} unasked and unread: it is "
                                f"at round {frame.round}, rank {self.rank} at {self.next_round}")
        self.tally(frame.round).socket_received += head + len(payload)
        inbox.put(frame, payload)

    def _ask(self, connection: Connection, frame: Frame, head: int) -> None:
        key = frame.round, frame.name
        cell = self._cells.get(key)
        if cell is not None:
            cell.tally.socket_received += head
            self._serve(cell, connection)
            return
        self.tally(frame.round).socket_received += head
        operation = self.operations.get(frame.round)
        if operation is not None and operation.what != frame.what:
            operation.fail(self._differs(frame.round, operation.what, connection.rank, frame.what))
        if self._over(frame.round):
            self._unserved(connection, *key)
            return
        self._standing[connection.rank] += 1
        if self._standing[connection.rank] > STANDING_MAX:
            raise ProtocolError(f"{connection} has more than {STANDING_MAX} requests standing")
        self._asked.setdefault(frame.round, {}).setdefault(frame.name, []).append(connection)

    def _unserved(self, connection: Connection, number: int, name: bytes) -> None:
        """Somebody waits for a cell of a round that is over here: it would wait for nothing."""
        what = self._ended.get(number, b"a collective").decode()
        text = (f"rank {self.rank} did {what} there, which has ended, and has no cell "
                f"{self.address(number, name, self.rank)}").encode()[:TEXT_MAX]
        connection.send(encode(Kind.GIVE_UP, number, total=len(text), length=len(text)) + text, number)

    def _peer_gave_up(self, connection: Connection, number: int, why: str) -> None:
        peer = connection.rank
        connection.withdraw(number)
        self._reads_no_more(peer, number)
        if self._over(number):
            return
        self._gave_up[peer, number] = f"{connection} gave up round {number}: {why}"
        for reading in [r for r in self._reads[peer].values() if r.round == number]:
            self._finish(reading, self._unreadable(peer, number))

    def _peer_left(self, connection: Connection) -> None:
        self._drop(connection, PeerLost(f"{connection} has left the group and closed its connection"))

    def ended(self, connection: Connection) -> None:
        """The peer closed its end without a BYE, or after ours."""
        self._drop(connection, PeerLost(f"{connection} closed the connection without leaving the group: it died, or "
                                        f"was killed"))

    def lost(self, connection: Connection, error: PeerLost) -> None:
        """The connection broke."""
        self._drop(connection, error)

    def _drop(self, connection: Connection, error: MemoryFault) -> None:
        if not connection.open:
            return
        peer = connection.rank
        connection.close()
        self._gone[peer] = error
        for asked in self._asked.values():
            for waiting in asked.values():
                if connection in waiting:
                    waiting.remove(connection)
        self._reads_no_more(peer)
        for reading in list(self._reads[peer].values()):
            self._finish(reading, error)
        self._quiet.notify_all()

    # Texts ----------------------------------------------------------------------------------------------------

    def _differs(self, number: int, mine: bytes, peer: int, theirs: bytes) -> Mismatch:
        return Mismatch(f"in round {number} of {self.space}, rank {self.rank} does {mine.decode()}, but "
                        f"{self.connections[peer]} does {theirs.decode(errors='replace')}")

    def _wrong(self, reading: Reading, what: bytes, nbytes: int) -> Mismatch:
        if what != reading.what:
            return self._differs(reading.round, reading.what, reading.owner, what)
        return Mismatch(f"{self.address(reading.round, reading.name, reading.owner)} has {nbytes} bytes on "
                        f"{self.connections[reading.owner]}, but rank {self.rank} expects {len(reading.view)} bytes")

    # The end --------------------------------------------------------------------------------------------------

    def leave(self, timeout: float) -> None:
        """Leave the group: when rounds are over and cells read, say BYE and close. At most `timeout` seconds.

        A rank that is done first thus takes nothing away from the others. Takes the lock itself.
        """
        with self.loop.lock:
            if self.closed is not None:
                return
            until = time.monotonic() + timeout
            self._quiet.wait_for(lambda: not self.operations and not self._cells, timeout)
            self.closed = GroupClosed(f"group {self.space} was shut down on rank {self.rank}")
            for connection in self.connections.values():
                if connection.open:
                    connection.send(encode(Kind.BYE, 0), 0)
            self.flush()
            # They close when they read it: closing first, with something of theirs unread, would reset the
            # connection and could take from them what is still on its way.
            self._quiet.wait_for(lambda: not any(c.open for c in self.connections.values()),
                                 min(LINGER, max(0.0, until - time.monotonic())))
            self._close(self.closed)

    def abort(self, error: MemoryFault) -> None:
        """Close everything at once; what is under way fails with `error`."""
        if self.closed is None:
            self.closed = error
        self._close(error)

    def _close(self, error: MemoryFault) -> None:
        for connection in self.connections.values():
            self._gone.setdefault(connection.rank, error)
            connection.close()
        for operation in list(self.operations.values()):
            operation.fail(error)
        for cell in list(self._cells.values()):
            self._retire(cell)
        self.loop.remove(self)
        self.flush()
        self._quiet.notify_all()
