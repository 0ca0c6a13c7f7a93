"""A member that sends anything at all: its connection ends, and nothing else does."""

import contextlib
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frogtorch.collectives.interest import interests
from frogtorch.memory import credit, peers, wire
from frogtorch.memory.cells import Reading, Tally
from frogtorch.memory.credit import CELL_BYTES
from frogtorch.memory.endpoint import Endpoint
from frogtorch.memory.faults import MemoryFault
from frogtorch.memory.rendezvous import Link
from frogtorch.memory.space import Memory
from frogtorch.memory.wire import Kind, Message, encode, message_name, message_round

LONG = 40_000


class Loop:
    """The I/O loop, but that the test calls the connection itself, and holds the lock all the time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    def add(self, memory):
        pass

    remove = watch = unwatch = awake_by = add


class Operation:
    deadline = float("inf")

    def __init__(self, what, end):
        self.what = what
        self.tally = Tally()
        self.end = end

    def fail(self, error):
        if self.end is not None:
            end, self.end = self.end, None
            end(error)


class Receive:
    """A receive from any source with tag 1, or (behind it) from rank 1."""

    tag = 1

    def __init__(self, source):
        self.source = source
        self.got = None

    def matched(self, source, number):
        assert self.source in (None, source)
        self.got = source, number

    def fail(self, error):
        assert isinstance(error, MemoryFault)


class Bench:
    """Rank 0 of two, in the middle of things: rounds 0 to 2 under way, reads and requests that stand, messages."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.theirs.setblocking(False)
        self.memory = memory = Memory(Loop(), "g", 0, Endpoint("127.0.0.1", 1),
                                      {1: Link(ours, Endpoint("127.0.0.1", 2), interests(1), b"")}, interests(0))
        self.connection = memory.connections[1]
        self.results = []
        self.guarded = []
        for number in range(3):
            operation = Operation(b"kind/x/float32", lambda error, number=number: (self.results.append(error),
                                                                                   memory.end(number, error)))
            assert memory.begin(operation) == number
            memory.publish(number, ("arr", 0), memoryview(bytes(100)), 1, lambda: None)
            memory.publish(number, ("rdr", 1), memoryview(bytes(LONG)), 1)
            self.read(number, ("bct", 1), 100, b"kind/x/float32")
            self.read(number, ("whl", 1), LONG, b"kind/x/float32")
        memory.mailbox.claim(1, 0)
        self.read(self.message(1, Message(0, 0, 0)), ("msg", 0, 0, 0), 100, b"message/float32")
        sent = memory.mailbox.send(1, 0)
        memory.publish(self.message(0, sent), ("msg", *sent), memoryview(bytes(LONG)), 1, lambda: None)
        self.receives = [Receive(None), Receive(1)]
        assert [memory.mailbox.receive(one) for one in self.receives] == [None, None]

    def message(self, source, message):
        number = message_round(source, message)
        return self.memory.begin(Operation(b"message/float32", lambda error: self.memory.end_message(
            number, 1, message, error)), number)

    def read(self, number, name, nbytes, what):
        # The bytes around the view are nobody's.
        room = bytearray(b"\xaa" * 64 + bytes(nbytes) + b"\xaa" * 64)
        self.guarded.append(room)
        reading = Reading(number, wire.encode_name(name), 1, what, memoryview(room)[64:-64],
                          Tally(), lambda reading, error: self.results.append(error))
        assert not self.memory.read(reading, name)

    def feed(self, data):
        """What the I/O thread would do with these bytes; anything that is raised here would have killed it."""
        data = memoryview(data)
        while data and self.connection.open:
            data = data[self.theirs.send(data[:50_000]):]
            self.connection.receive()
            self.memory.expire(time.monotonic())
            self.memory.flush()
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                while self.theirs.recv(1 << 20):
                    pass

    def check(self):
        assert all(room[:64] == room[-64:] == b"\xaa" * 64 for room in self.guarded)
        assert all(error is None or isinstance(error, MemoryFault) for error in self.results)
        peer = self.memory.peers[1]
        assert peer.inbox.cost <= credit.UNASKED_BYTES
        assert peer.standing <= peers.STANDING_MAX + 1
        assert len(peer.gave_up) <= peers.STANDING_MAX + 1

    def close(self):
        self.memory.abort(MemoryFault("the test is over"))
        self.theirs.close()
        self.check()
        # Closed, nothing is kept for anybody.
        assert not self.memory.published.cells
        assert self.memory.published.unread.nbytes == 0


names = st.sampled_from([b"arr.0", b"rdr.1", b"bct.1", b"whl.1", b"bar.1", b"x", b"msg.", b"msg.1.0", b"msg.1.0.0.0",
                         b"msg.-1.0.0", b"msg.1.99999999999999999999.0", b"\xff\xfe"]) | st.binary(max_size=255)
messages = st.builds(Message, st.integers(0, 2), st.integers(0, 3), st.integers(0, 2))
sizes = st.sampled_from([0, 1, 100, 16384, 16385, LONG, 2**31, 2**63, 2**64 - 1])
whats = st.sampled_from([b"kind/x/float32", b"message/float32", b"other", b"", b"\xff" * 255])


@st.composite
def frames(draw):
    """A frame that is nearly right, or quite, and the size of its payload."""
    kind = draw(st.sampled_from(sorted(Kind)))
    if draw(st.booleans()):
        message = draw(messages)
        name = message_name(message)
        number = message_round(draw(st.integers(0, 1)), message)
    else:
        name = draw(names)
        number = draw(st.sampled_from([0, 1, 2, 3, 4, 1000, 2**63, 2**64 - 1]))
    if kind in (Kind.BYE, Kind.CREDIT, Kind.GIVE_UP) and draw(st.booleans()):
        name = b""
    length = draw(st.sampled_from([0, 1, 100, 16384, 16385, LONG]))
    if kind not in wire.CELLS and draw(st.integers(0, 9)):
        length = min(length, 100) if kind == Kind.GIVE_UP else 0
    total = draw(st.just(length) | sizes)
    offset = draw(st.just(0) | st.sampled_from([1, 100, 2**64 - 1]))
    head = encode(kind, number, name, draw(whats), total, offset, length)
    if draw(st.integers(0, 4)) == 0:  # a byte is another, or some are missing
        at = draw(st.integers(0, len(head) - 1))
        head = head[:at] + draw(st.binary(max_size=1)) + head[at + draw(st.integers(1, 9)):]
    return head, length


@settings(max_examples=300, deadline=None)
@given(st.lists(frames() | st.tuples(st.binary(max_size=100), st.just(0)), max_size=12))
def test_any_bytes(sent):
    bench = Bench()
    try:
        bench.feed(b"".join(head + bytes(length) for head, length in sent))
        bench.check()
    finally:
        bench.close()


def refused(bench):
    (error,) = {str(result) for result in bench.results if result is not None} or {None}
    return error


@pytest.mark.parametrize(("flood", "said"), [
    # Without end, each frame as a member could send it once.
    (lambda i: encode(Kind.UNASKED, 3 + i, b"bct.1", b"w", 10, 0, 10) + bytes(10), "beyond all credit"),
    (lambda i: encode(Kind.OFFER, 3 + i, b"bct.1", b"w", 10), "more than 300 offers"),
    (lambda i: encode(Kind.ASK, 3 + i, b"arr.0", b"w", 10), "more than 300 requests"),
    (lambda i: encode(Kind.GIVE_UP, 3 + i), "gave up more than 300 rounds"),
    (lambda i: encode(Kind.OFFER, message_round(1, Message(9, i, 0)), message_name(Message(9, i, 0)), b"w", 10),
     "more than 300 offers"),
    (lambda i: encode(Kind.ASK, message_round(0, Message(9, i, 1)), message_name(Message(9, i, 1)), b"w", 10),
     "more than 300 requests"),
    (lambda i: encode(Kind.GIVE_UP, message_round(1, Message(9, i, 0)), message_name(Message(9, i, 0))),
     "gave up more than 300 rounds"),
    (lambda i: encode(Kind.CREDIT, 0, total=1 << 40), "credit for"),
])
def test_nothing_grows_without_end(monkeypatch, flood, said):
    monkeypatch.setattr("frogtorch.memory.cells.OFFERS_MAX", 300)
    monkeypatch.setattr("frogtorch.memory.peers.STANDING_MAX", 300)
    monkeypatch.setattr(credit, "UNASKED_BYTES", 300 * (CELL_BYTES + 10))
    bench = Bench()
    try:
        bench.feed(b"".join(flood(i) for i in range(1000)))
        assert not bench.connection.open
        assert said in refused(bench)
        assert "rank 1 at 127.0.0.1:2 was closed" in refused(bench)
    finally:
        bench.close()


def test_answers_that_are_not_taken(monkeypatch):
    # It asks for a cell of a round that is over, again and again, and reads none of the answers.
    monkeypatch.setattr("frogtorch.memory.incoming.OFFERS_MAX", 300)
    bench = Bench()
    try:
        bench.memory.end(0)
        asked = encode(Kind.ASK, 0, b"late", b"w", 10)
        for _ in range(100):
            if not bench.connection.open:
                break
            bench.theirs.send(asked * 100)
            bench.connection.receive()
            bench.memory.flush()
        assert "does not take its answers" in refused(bench)
    finally:
        bench.close()
