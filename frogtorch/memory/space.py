"""FrogNet Memory of one group, as one member sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from frogtorch.collectives.interest import Interest, unasked
from frogtorch.effects import Name
from frogtorch.memory import texts
from frogtorch.memory.cells import Cell, Question, Reading, Tally
from frogtorch.memory.connection import Connection
from frogtorch.memory.endpoint import Endpoint
from frogtorch.memory.faults import GroupClosed, MemoryFault, PeerLost
from frogtorch.memory.incoming import Incoming
from frogtorch.memory.loop import Loop
from frogtorch.memory.mailbox import Mailbox
from frogtorch.memory.parcels import Parcel
from frogtorch.memory.peers import Peer
from frogtorch.memory.published import Published
from frogtorch.memory.questions import ask_newer, question
from frogtorch.memory.rates import Rates
from frogtorch.memory.rendezvous import Link
from frogtorch.memory.series import Series
from frogtorch.memory.wire import MESSAGES, TEXT_MAX, Kind, Message, decode_message, encode, encode_name, message_name

ENDED_KEPT = 1024
"""Rounds after whose end it is still known what they were, to tell it to a rank that does something else in one."""

LINGER = 5.0
"""Seconds that a member which leaves waits for the others to close their ends."""

FOREVER = float("inf")


class Operation(Protocol):
    """A round, or a message, under way on this rank, as the memory sees it."""

    what: bytes
    deadline: float
    tally: Tally

    def fail(self, error: BaseException) -> None:
        """End it with `error`."""

    def expire(self) -> None:
        """Its deadline has passed: end it, or set another."""


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
        self.rates = Rates(space, rank, self.connections)
        self.peers = {rank: Peer(connection) for rank, connection in self.connections.items()}
        self.operations: dict[int, Operation] = {}
        self.next_round = 0
        self.mailbox = Mailbox(rank)
        self.dirty: set[Connection] = set()  # connections with something to flush
        self.when_flushed: list[Callable[[], None]] = []  # called once, after the next flush
        self.closed: MemoryFault | None = None
        self._quiet = threading.Condition(loop.lock)  # told when an operation, a cell or a connection has gone
        self.published = Published(self.peers, self._quiet.notify_all)
        self.series = Series(self.published)
        self._questions = 0
        self.incoming = Incoming(self)
        self._ended: dict[int, bytes] = {}  # what the latest rounds were
        self._tallies: dict[int, Tally] = {}
        self._nearest = FOREVER  # no operation's deadline is before this
        loop.add(self)
        for connection in self.connections.values():
            connection.take()

    def tally(self, number: int) -> Tally:
        """The byte counts of a round; of one that is over, or a message, a sheet that nobody reads."""
        found = self._tallies.get(number)
        if found is None:
            found = Tally()
            if number < MESSAGES and not self.over(number):
                self._tallies[number] = found
        return found

    def was(self, number: int) -> bytes | None:
        """What a round was that has ended here; None if that was too long ago."""
        return self._ended.get(number)

    def over(self, number: int) -> bool:
        """Whether a round has ended here; a message never has."""
        return number < self.next_round and number not in self.operations

    # Rounds and messages --------------------------------------------------------------------------------------

    def begin(self, operation: Operation, number: int | None = None) -> int:
        """Begin a new round, and number it; or a message, whose `number` is given (negative while it is not known)."""
        if self.closed is not None:
            raise self.closed
        if number is None:
            number = self.next_round
            operation.tally = self.tally(number)
            self.next_round += 1
        self.operations[number] = operation
        self._nearest = min(self._nearest, operation.deadline)
        self.loop.awake_by(operation.deadline)
        return number

    def renumber(self, old: int, new: int) -> None:
        """A message under way turns out to be this one."""
        self.operations[new] = self.operations.pop(old)

    def early(self, number: int) -> MemoryFault | None:
        """What is wrong with what came for this round before it began here, if anything is."""
        what = self.operations[number].what
        for peer in self.peers.values():
            for theirs in (peer.inbox.kinds(number) | peer.early.kinds(number)) - {what}:
                return texts.differs(self, number, what, peer, theirs)
        return None

    def hold(self, number: int, end: Callable[[], None]) -> bool:
        """Whether the end of a round has to wait until readers have caught up; `end` is called when they have."""
        return self.closed is None and self.published.unread.hold(number, end)

    def end(self, number: int, error: BaseException | None = None) -> None:
        """A round is over on this rank. If it failed, take back its cells and tell the others."""
        self._ended[number] = self.operations.pop(number).what
        self._ended.pop(number - ENDED_KEPT, None)
        self._tallies.pop(number, None)
        for peer in self.peers.values():
            peer.gave_up.pop(number, None)
            peer.inbox.forget(number)
            peer.early.forget(number)
            self.credit(peer)
        if error is not None:
            self._give_up(number, self.peers.values(), error)
        for name, peer in self.published.unanswered(number):
            self.refuse(peer, number, name)
        self._quiet.notify_all()

    def end_message(self, number: int, peer: int, message: Message, error: BaseException | None = None) -> None:
        """A message to or from `peer` is over on this rank. If it failed, it fails at its other end too."""
        del self.operations[number]
        other = self.peers[peer]
        other.gave_up.pop(number, None)
        other.inbox.forget(number)
        self.credit(other)
        if error is not None:
            self._give_up(number, [other], error, message_name(message))
        self.published.unanswered(number)
        self._quiet.notify_all()

    def end_unmatched(self, number: int) -> None:
        """A receive is over that never knew which message it gets, or a round of questions: nobody else has to know."""
        del self.operations[number]
        self._quiet.notify_all()

    def next_question(self) -> int:
        """The number of a new round of questions, which is this rank's alone."""
        self._questions += 1
        return question(self.rank, self._questions)

    def _give_up(self, number: int, peers: Collection[Peer], error: BaseException, name: bytes = b"") -> None:
        self.published.unread.forget(number)
        text = (str(error) or repr(error)).encode()[:TEXT_MAX]
        for peer in peers:
            peer.connection.withdraw(number)
            for parcel in [one for one in peer.parcels if one.round == number]:
                del peer.parcels[parcel]
            if peer.gone is None:
                peer.connection.send(encode(Kind.GIVE_UP, number, name, total=len(text), length=len(text)) + text,
                                     self.tally(number))
        self.published.withdraw(number)

    def refuse(self, peer: Peer, number: int, name: bytes) -> None:
        """Tell a peer, which waits for a cell of a round that is over here, that it would wait for nothing."""
        what = self._ended.get(number, b"a collective").decode()
        text = (f"rank {self.rank} did {what} there, which has ended, and has no cell "
                f"{texts.address(self, number, name, self.rank)}").encode()[:TEXT_MAX]
        peer.connection.send(encode(Kind.GIVE_UP, number, total=len(text), length=len(text)) + text,
                             self.tally(number))

    def expire(self, now: float) -> float:
        """End what has passed its deadline by `now`; return a time before which nothing else will have."""
        if self._nearest <= now:
            for operation in [one for one in self.operations.values() if one.deadline <= now]:
                operation.expire()
            self._nearest = min((one.deadline for one in self.operations.values()), default=FOREVER)
        return self._nearest

    def flush(self) -> None:
        """Hand what was queued to the kernel, as far as it takes it; then tell those who wait for that."""
        while self.dirty:
            self.dirty.pop().flush()
        told, self.when_flushed = self.when_flushed, []
        for tell in told:
            tell()

    # Cells ----------------------------------------------------------------------------------------------------

    def publish(self, number: int, name: Name, view: memoryview, readers: int,
                retired: Callable[[], None] | None = None, *, copied: bool = False) -> None:
        """Make the bytes of `view` the cell `name` of a round, until `readers` ranks have them: then `retired()`.

        `copied` says that they were copied for this: how many such bytes may wait for their readers is limited.
        Raises ValueError if the round has such a cell already; of a message, PeerLost or PeerGaveUp if nobody is there
        to read it.
        """
        operation = self.operations[number]
        key = number, encode_name(name)
        if self.published.had(*key):
            raise ValueError(f"{texts.address(self, *key, self.rank)} is published already; a name is written once")
        fault = self.peers[int(name[-1])].fault(number) if number >= MESSAGES else None
        if fault is not None:
            raise fault
        cell = Cell(number, key[1], operation.what, view, readers, operation.tally, retired, copied)
        self.published.add(cell, name)

    def served(self, what: Cell | Parcel, rank: int) -> None:
        """The kernel has the last byte of a cell, or of a parcel, for a peer."""
        if isinstance(what, Cell):
            self.published.served(what, rank)
        else:
            del self.peers[rank].parcels[what]
            what.done(what, None)

    # Parcels --------------------------------------------------------------------------------------------------

    def send(self, parcel: Parcel, to: int) -> None:
        """Send a parcel. Raises PeerLost or PeerGaveUp if nobody is there to take it."""
        peer = self.peers[to]
        fault = peer.fault(parcel.round)
        if fault is not None:
            raise fault
        peer.parcels[parcel] = None
        parcel.tally.payload_offered += parcel.nbytes
        peer.connection.post(parcel)

    def receive(self, reading: Reading) -> bool:
        """Begin to receive a parcel, as a read that asks nobody; return whether it is filled already.

        Raises PeerLost or PeerGaveUp if its sender is known to be gone, Mismatch if what came is something else.
        """
        peer, key = self.peers[reading.owner], (reading.round, reading.name)
        reading.asked = True  # not even when it is late
        came = peer.early.pop(key)
        if came is not None:
            if came.what != reading.what or len(came.view) != len(reading.view):
                peer.connection.forget(came)
                raise texts.wrong(self, reading, came.what, len(came.view))
            reading.view[:came.got] = came.view[:came.got]
            reading.first, reading.last, reading.got, reading.head = came.first, came.last, came.got, came.head
            if reading.got == len(reading.view):
                return True
            peer.connection.redirect(came, reading)
        fault = peer.fault(reading.round)
        if fault is not None:
            raise fault
        peer.reads[key] = reading
        return False

    def lose_parcels(self, peer: Peer, error: MemoryFault | None, number: int | None = None) -> None:
        """A peer takes no more parcels (of one round)."""
        for parcel in [one for one in peer.parcels if number in (None, one.round)]:
            del peer.parcels[parcel]
            parcel.done(parcel, error)

    # Reads ----------------------------------------------------------------------------------------------------

    def read(self, reading: Reading, name: Name) -> bool:
        """Begin a read; return whether it is filled already. Otherwise its ``done`` is called later.

        Raises PeerLost or PeerGaveUp if its owner is known to be gone, Mismatch if the cell that came is another.
        """
        peer, key = self.peers[reading.owner], (reading.round, reading.name)
        came = peer.inbox.pop(key)
        if came is not None:
            reading.tally.socket_received += came.head
            if came.what != reading.what or came.nbytes != len(reading.view):
                raise texts.wrong(self, reading, came.what, came.nbytes)
            if came.data is not None:
                self.credit(peer)
                reading.view[:] = came.data
                reading.first = reading.last = time.monotonic()
                reading.got = reading.head = came.nbytes
                reading.tally.payload_received += came.nbytes
                reading.tally.socket_received += came.nbytes
                return True
        fault = peer.fault(reading.round)
        if fault is not None:
            raise fault
        peer.reads[key] = reading
        if came is not None or not unasked(self.interests, name, len(reading.view)):
            self.ask(reading, peer)
        return False

    def ask(self, reading: Reading, peer: Peer) -> None:
        """Ask the owner of a cell for it; the answer comes when it is published."""
        reading.asked = True
        peer.connection.send(encode(Kind.ASK, reading.round, reading.name, reading.what, len(reading.view)),
                             reading.tally)

    def ask_newest(self, reading: Question) -> None:
        """Ask for the newest cell of a name; the reading's ``done`` is called later. Raises PeerLost or PeerLeft."""
        peer = self.peers[reading.owner]
        if peer.gone is not None:
            raise peer.gone
        peer.reads[reading.round, reading.name] = reading
        peer.connection.send(ask_newer(reading.round, reading.name, reading.what, reading.query), reading.tally)

    def cancel(self, reading: Reading) -> None:
        """Forget a read: nothing is written to its view any more."""
        if self.peers[reading.owner].reads.pop((reading.round, reading.name), None) is not None:
            self.connections[reading.owner].forget(reading)

    def finish(self, reading: Reading, error: BaseException | None = None) -> None:
        """A read has ended."""
        self.peers[reading.owner].reads.pop((reading.round, reading.name), None)
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
            self.finish(reading)

    def credit(self, peer: Peer) -> None:
        """Tell a peer what of its unasked cells is used up, if that is worth a frame."""
        used = peer.credit.due(peer.inbox.cost)
        if used is not None and peer.gone is None:
            peer.connection.send(encode(Kind.CREDIT, 0, total=used), Tally())

    # What becomes of peers ------------------------------------------------------------------------------------

    def alone(self) -> MemoryFault | None:
        """Why nobody is left who could send anything; None as long as somebody is."""
        faults = [peer.gone for peer in self.peers.values()]
        if None in faults:
            return None
        return faults[-1] if faults else PeerLost(f"group {self.space} has no other rank")

    def ended(self, connection: Connection) -> None:
        """The peer closed its end without a BYE, or after ours."""
        self.lost(connection, PeerLost(f"{connection} closed the connection without leaving the group: it died, or "
                                       f"was killed"))

    def lost(self, connection: Connection, error: PeerLost) -> None:
        """The connection broke."""
        self.drop(self.peers[connection.rank], error)

    def drop(self, peer: Peer, error: MemoryFault) -> None:
        """Nothing more comes from a peer, and nothing goes to it."""
        if not peer.connection.open:
            return
        peer.connection.close()
        peer.gone = error
        self.published.forget_requests(peer)
        self.published.loses(peer.rank)
        self.series.forget(peer)
        for number, name in peer.inbox.forget_offers():
            if number >= MESSAGES:
                message = decode_message(name)
                self.mailbox.forget(peer.rank, message.tag, message.number)
        peer.early.broken()
        for reading in list(peer.reads.values()):
            self.finish(reading, error)
        self.lose_parcels(peer, error)
        for receive in self.mailbox.hopeless(peer.rank, self.alone() is not None):
            receive.fail(error)
        self._quiet.notify_all()

    # The end --------------------------------------------------------------------------------------------------

    def leave(self, timeout: float) -> None:
        """Leave the group: when rounds are over and cells read, say BYE and close. At most `timeout` seconds.

        A rank that is done first thus takes nothing away from the others. Takes the lock itself.
        """
        with self.loop.lock:
            if self.closed is not None:
                return
            until = time.monotonic() + timeout
            self._quiet.wait_for(lambda: not self.operations and not self.published.cells, timeout)
            self.closed = GroupClosed(f"group {self.space} was shut down on rank {self.rank}")
            for connection in self.connections.values():
                if connection.open:
                    connection.send(encode(Kind.BYE, 0), Tally())
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
        for peer in self.peers.values():
            peer.gone = peer.gone or error
            peer.connection.close()
        for operation in list(self.operations.values()):
            operation.fail(error)
        for cell in list(self.published.cells.values()):
            self.published.retire(cell)
        self.series.close()
        self.loop.remove(self)
        self.flush()
        self._quiet.notify_all()
