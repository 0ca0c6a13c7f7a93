"""What comes in: what each frame of a peer does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frogtorch.memory import texts
from frogtorch.memory.cells import OFFERS_MAX, Question, Reading
from frogtorch.memory.connection import Connection
from frogtorch.memory.faults import PeerLeft, ProtocolError
from frogtorch.memory.peers import Peer
from frogtorch.memory.questions import ANSWERS, decode_query, decode_version
from frogtorch.memory.wire import MESSAGES, Frame, Kind, Message, decode_message, message_round

if TYPE_CHECKING:
    from frogtorch.memory.space import Memory


class Incoming:
    """The frames that come to one member of a group. What a peer must not do raises ProtocolError."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def frame(self, connection: Connection, frame: Frame, head: int, payload: memoryview) -> None:
        """A whole frame came: `head` bytes before its payload."""
        peer = self._memory.peers[connection.rank]
        if frame.kind == Kind.CELL or frame.kind == Kind.UNASKED:
            self._cell(peer, frame, head, payload)
        elif frame.kind == Kind.DATA:
            reading = self._data(peer, frame, head)
            if reading is not None:
                reading.place(frame)[:] = payload
                self._memory.progress(reading, len(payload))
        elif frame.kind == Kind.ASK:
            self._ask(peer, frame, head)
        elif frame.kind == Kind.OFFER:
            self._offer(peer, frame, head)
        elif frame.kind == Kind.CREDIT:
            peer.credit.restore(frame.total)
        elif frame.kind == Kind.GIVE_UP:
            self._give_up(peer, frame, bytes(payload).decode(errors="replace"))
        elif frame.kind == Kind.NEWER:
            if peer.connection.waiting > OFFERS_MAX:
                raise ProtocolError(f"{peer} does not take its answers, and goes on asking")
            self._memory.series.asked(peer, frame, decode_query(payload), head + len(payload))
        elif frame.kind in ANSWERS:
            self._answer(peer, frame, head, payload)
        else:
            self._memory.drop(peer, PeerLeft(f"{peer} has left the group and closed its connection"))

    def long_frame(self, connection: Connection, frame: Frame, head: int) -> Reading | None:
        """A frame of a long cell or parcel begins: the read that its payload is for, None if nobody wants it."""
        peer = self._memory.peers[connection.rank]
        if frame.kind == Kind.DATA:
            return self._data(peer, frame, head)
        reading = peer.reads.get((frame.round, frame.name))
        return reading if reading is not None and self._fits(reading, frame, head) else None

    def _cell(self, peer: Peer, frame: Frame, head: int, payload: memoryview) -> None:
        memory = self._memory
        if frame.kind == Kind.UNASKED:
            peer.credit.take(frame.total)
        reading = peer.reads.get((frame.round, frame.name))
        if reading is None:
            if frame.kind == Kind.UNASKED and not memory.over(frame.round):
                self._keep(peer, frame, head, bytes(payload))
        elif self._fits(reading, frame, head):
            reading.place(frame)[:] = payload
            memory.progress(reading, len(payload))
        if frame.kind == Kind.UNASKED:
            memory.credit(peer)

    def _data(self, peer: Peer, frame: Frame, head: int) -> Reading | None:
        """A frame of a parcel begins: the receive that its payload is for, or where it waits for one."""
        memory = self._memory
        reading = peer.reads.get((frame.round, frame.name))
        if reading is None:
            if memory.over(frame.round) or not self._alike(peer, frame):
                return None
            reading = peer.early.place(frame, peer.rank, memory.tally(frame.round))
        return reading if self._fits(reading, frame, head) else None

    def _offer(self, peer: Peer, frame: Frame, head: int) -> None:
        reading = peer.reads.get((frame.round, frame.name))
        if reading is None:
            if not self._memory.over(frame.round):
                self._keep(peer, frame, head, None)
        elif self._fits(reading, frame, head) and not reading.asked:
            self._memory.ask(reading, peer)

    def _fits(self, reading: Reading, frame: Frame, head: int) -> bool:
        """Whether a cell, or what is offered, is what a read expects; if not, the read has failed."""
        reading.tally.socket_received += head
        if frame.what != reading.what or frame.total != len(reading.view):
            self._memory.finish(reading, texts.wrong(self._memory, reading, frame.what, frame.total))
            return False
        if frame.kind != Kind.OFFER and frame.offset != reading.got:
            raise ProtocolError(f"{texts.address(self._memory, frame.round, frame.name, reading.owner)} goes on at "
                                f"byte {frame.offset} where byte {reading.got} comes next")
        return True

    def _keep(self, peer: Peer, frame: Frame, head: int, data: bytes | None) -> None:
        """A cell, or an offer without `data`, waits for its read."""
        memory = self._memory
        if frame.round >= MESSAGES:
            message = self._message(peer, frame)
            if message.to == memory.rank and memory.mailbox.is_open(peer.rank, message):
                peer.inbox.put(frame, data, head)
                memory.mailbox.came(peer.rank, message)
            return  # or the receive that it was for has failed
        if self._alike(peer, frame):
            peer.inbox.put(frame, data, head)

    def _alike(self, peer: Peer, frame: Frame) -> bool:
        """Whether this rank does in a round what a peer does, as far as that is known; if not, it fails."""
        operation = self._memory.operations.get(frame.round)
        if operation is None or operation.what == frame.what:
            return True
        operation.fail(texts.differs(self._memory, frame.round, operation.what, peer, frame.what))
        return False

    def _ask(self, peer: Peer, frame: Frame, head: int) -> None:
        memory, number = self._memory, frame.round
        cell = memory.published.cells.get((number, frame.name))
        if cell is not None:
            cell.tally.socket_received += head
            memory.published.serve(cell, peer)
            return
        memory.tally(number).socket_received += head
        if number >= MESSAGES:
            message = self._message(peer, frame)
            if message.to != peer.rank or not memory.mailbox.is_open(peer.rank, message):
                return  # it has failed here, and the peer has been told
        self._alike(peer, frame)
        if not memory.over(number):
            if not memory.published.had(number, frame.name):  # or it has gone there unasked
                memory.published.stands(number, frame.name, peer)
            return
        if frame.what == memory.was(number) and memory.published.owes(number, peer):
            return  # what it asks for may have gone there too, and our word would overtake the rest
        if peer.connection.waiting > OFFERS_MAX:
            raise ProtocolError(f"{peer} does not take its answers, and goes on asking")
        memory.refuse(peer, number, frame.name)

    def _answer(self, peer: Peer, frame: Frame, head: int, payload: memoryview) -> None:
        """What is the newest of a name: the read of it has ended, or its bytes come next."""
        reading = peer.reads.get((frame.round, frame.name))
        if reading is None:  # it was called off
            return
        if not isinstance(reading, Question):
            raise ProtocolError(f"an answer came to what was no question: {frame.name[:80]!r}")
        reading.tally.socket_received += head + len(payload)
        if frame.kind == Kind.SAME:
            self._memory.finish(reading)
            return
        version, query = decode_version(payload), reading.query
        if reading.step >= 0 or version.layout != query.layout or version.step <= max(query.have, query.oldest - 1):
            raise ProtocolError(f"{peer} answers {query} about {frame.name[:80]!r} with {version}")
        if (frame.what, version.nbytes) != (reading.what, query.nbytes):
            self._memory.finish(reading, texts.unlike(self._memory, reading, frame.what, version.nbytes))
            return
        reading.step = version.step

    def _give_up(self, peer: Peer, frame: Frame, why: str) -> None:
        memory, number = self._memory, frame.round
        if number >= MESSAGES:
            message = self._message(peer, frame)
            what = texts.message(message)
            # The one that was claimed and is not being read has failed here too.
            over = not memory.mailbox.is_open(peer.rank, message) and (number, frame.name) not in peer.reads
            memory.published.unanswered(number)
        else:
            what = f"round {number}"
            over = memory.over(number)
        peer.connection.withdraw(number)
        memory.published.loses(peer.rank, number)
        if not over:
            peer.gives_up(number, f"{peer} gave up {what}: {why}")
            for reading in [r for r in peer.reads.values() if r.round == number]:
                memory.finish(reading, peer.fault(number))
            memory.lose_parcels(peer, peer.fault(number), number)

    def _message(self, peer: Peer, frame: Frame) -> Message:
        """Which message between `peer` and this rank a frame is about."""
        message = decode_message(frame.name)
        source = peer.rank if message.to == self._memory.rank else self._memory.rank
        if message.to not in (peer.rank, self._memory.rank) or frame.round != message_round(source, message):
            raise ProtocolError(f"{frame.name[:80]!r} is no message between rank {peer.rank} and rank "
                                f"{self._memory.rank}")
        return message
