"""What comes from a peer: of one that sends anything at all the connection ends, and nothing else does."""

import contextlib
import select
import socket
import threading
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frogtorch.collectives.interest import interests
from frogtorch.memory import credit, peers, wire
from frogtorch.memory.cells import Reading, Tally
from frogtorch.memory.credit import CELL_BYTES
from frogtorch.memory.endpoint import Endpoint
from frogtorch.memory.faults import MemoryFault
from frogtorch.memory.parcels import Parcel
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
            assert not memory.receive(self.reading(number, ("arr", 7), LONG, b"kind/x/float32"))
            memory.send(Parcel(number, b"ars.0", b"kind/x/float32", memoryview(bytes(LONG)), Tally(),
                               lambda parcel, error: self.results.append(error)), 1)
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
        assert not self.memory.read(self.reading(number, name, nbytes, what), name)

    def reading(self, number, name, nbytes, what):
        # The bytes around the view are nobody's.
        room = bytearray(b"\xaa" * 64 + bytes(nbytes) + b"\xaa" * 64)
        self.guarded.append(room)
        return Reading(number, wire.encode_name(name), 1, what, memoryview(room)[64:-64],
                       Tally(), lambda reading, error: self.results.append(error))

    def feed(self, data):
        """What the I/O thread would do with these bytes; anything that is raised here would have killed it."""
        data = memoryview(data)
        while data and self.connection.open:
            data = data[self.theirs.send(data[:50_000]):]
            select.select([self.connection.sock], [], [], 5)
            self.connection.receive()
            self.memory.expire(time.monotonic())
            self.memory.flush()
            self.hear()

    def hear(self):
        """What has come at the other end."""
        heard = b""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.theirs.recv(1 << 20):
                heard += data
        return heard

    def answers(self, *asked):
        """The rounds that are given up in answer to requests: (round, name, what) each."""
        self.memory.flush()
        self.hear()
        for number, name, what in asked:
            self.theirs.send(encode(Kind.ASK, number, name, what, 100))
        select.select([self.connection.sock], [], [], 5)
        self.connection.receive()
        return self.given_up()

    def given_up(self):
        self.memory.flush()
        select.select([self.theirs], [], [], 0.2)
        heard, numbers = memoryview(self.hear()), []
        while heard:
            frame, body = wire.decode(heard)
            heard = heard[body + frame.length:]
            if frame.kind == Kind.GIVE_UP:
                numbers.append(frame.round)
        return numbers

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


# What rank 1 has reason to send: a cell's number and name, what it is part of, its size, and kinds of frames about it.
CELL = (Kind.UNASKED, Kind.OFFER, Kind.CELL)
KNOWN = [
    *((number, name, b"kind/x/float32", size, kinds) for number in (0, 3) for name, size, kinds in (
        (b"bct.1", 100, CELL), (b"whl.1", LONG, CELL), (b"arr.1", 0, CELL), (b"rdr.1", LONG, (Kind.ASK,)),
        (b"arr.7", LONG, (Kind.DATA,)), (b"arr.8", LONG, (Kind.DATA,)), (b"arr.9", 100, (Kind.DATA,)),
        (b"", 0, (Kind.GIVE_UP, Kind.CREDIT)))),
    *((message_round(source, message), message_name(message), b"message/float32", size,
       (*(CELL if source else (Kind.ASK,)), Kind.GIVE_UP))
      for source in (0, 1) for tag, size in ((0, 100), (1, LONG)) for number in (0, 1)
      for message in [Message(tag, number, 1 - source)]),
]
OTHERWISE = {
    "kind": sorted(Kind),
    "number": [0, 1, 2, 3, 4, 1000, 2**63, 2**64 - 1],
    "name": [b"", b"bct.1", b"whl.1", b"\xff\xfe", b"x" * 255, b"msg.", b"msg.1.0", b"msg.1.0.0.0", b"msg.1.0.1",
             b"msg.-1.0.0", b"msg.1.99999999999999999999.0"],
    "what": [b"kind/x/float32", b"message/float32", b"other", b"", b"\xff" * 255],
    "total": [0, 1, 99, 101, 16384, 16385, LONG, 2**31, 2**63, 2**64 - 1],
    "length": [0, 1, 99, 101, 16384, 16385, LONG],
    "offset": [1, 10, 2**64 - 1],
}


def frame(choose):
    """A frame that is right, or but for a field or two, and its payload."""
    number, name, what, total, kinds = choose.choice(KNOWN)
    one = {"kind": choose.choice(kinds), "number": number, "name": name, "what": what, "total": total, "offset": 0}
    wrong = choose.sample(sorted(OTHERWISE), choose.choice([0, 0, 1, 1, 2]))
    one |= {field: choose.choice(OTHERWISE[field]) for field in wrong}
    if "length" not in wrong:
        one["length"] = min(one["total"], 1 << 17) if one["kind"] in wire.LADEN else 0
        if 0 < one["offset"] < one["length"]:
            one["length"] -= one["offset"]
    head = encode(**one)
    if choose.random() < 0.1:  # a byte is another, or some are missing
        at = choose.randrange(len(head))
        head = head[:at] + choose.randbytes(choose.randrange(2)) + head[at + choose.randrange(1, 9):]
    return head + bytes(one["length"])


def stream(seed):
    choose = Random(seed)
    return b"".join(choose.randbytes(choose.randrange(100)) if choose.random() < 0.05 else frame(choose)
                    for _ in range(choose.randrange(1, 12)))


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32))
def test_any_bytes(seed):
    bench = Bench()
    try:
        bench.feed(stream(seed))
        bench.check()
    finally:
        bench.close()


def refused(bench):
    (error,) = {str(result) for result in bench.results if result is not None} or {None}
    return error


@pytest.mark.parametrize(("flood", "said"), [
    # Without end, each frame as a member could send it once.
    (lambda i: encode(Kind.UNASKED, 3 + i, b"bct.1", b"w", 10, 0, 10) + bytes(10), "beyond all credit"),
    (lambda i: encode(Kind.DATA, 3 + i, b"arr.0", b"w", 10, 0, 10) + bytes(10), "more than 300 bytes came"),
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
    monkeypatch.setattr("frogtorch.memory.parcels.EARLY_BYTES", 300)
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


@pytest.mark.parametrize(("frames", "said"), [
    ([(Kind.CELL, b"whl.1", LONG, 0, 20_000), (Kind.CELL, b"whl.1", LONG, 19_999, 20_001)],
     "goes on at byte 19999 where byte 20000 comes next"),
    ([(Kind.UNASKED, b"arr.1", 10, 0, 10), (Kind.UNASKED, b"arr.1", 10, 0, 10)], "came twice"),
    ([(Kind.DATA, b"arr.8", 10, 0, 10), (Kind.DATA, b"arr.8", 10, 0, 10)], "came twice"),
    ([(Kind.DATA, b"arr.8", LONG, 0, 20_000), (Kind.DATA, b"arr.8", LONG, 0, 20_000)],
     "goes on at byte 0 where byte 20000 comes next"),
])
def test_what_would_be_a_wrong_value(frames, said):
    bench = Bench()
    try:
        bench.feed(b"".join(encode(kind, 0, name, b"kind/x/float32", total, offset, length) + bytes(length)
                            for kind, name, total, offset, length in frames))
        assert said in refused(bench)
    finally:
        bench.close()


def test_who_asks_for_what_has_gone_there_unasked_is_not_told_that_it_would_wait_for_nothing():
    bench = Bench()
    try:
        # It has gone, and its round goes on; another cell of the round has not been read.
        assert bench.answers((0, b"arr.0", b"kind/x/float32")) == []
        assert bench.memory.peers[1].standing == 0
        assert bench.answers((1, b"never", b"kind/x/float32")) == []
        assert bench.memory.peers[1].standing == 1
        bench.memory.end(0)
        bench.memory.end(1)
        assert bench.given_up() == [1]
        # Also when the round is over here: the word would overtake the other cell. Not so to one that does another.
        assert bench.answers((0, b"arr.0", b"kind/x/float32")) == []
        assert bench.answers((0, b"arr.0", b"another/x/float32")) == [0]
        bench.answers((0, b"rdr.1", b"kind/x/float32"))
        assert bench.answers((0, b"late", b"kind/x/float32")) == [0]  # now it has all that there is
    finally:
        bench.close()


@pytest.mark.parametrize("came", [0, 10, 40, 100, 20_000, 20_100, 30_000, LONG])
def test_a_parcel_is_received_wherever_it_is(came):
    """`came` bytes of it, with its header, or in its second frame, are here as it is received; then comes the rest."""
    what = b"kind/x/float32"
    data = bytes(i % 251 for i in range(LONG))
    cut = 20_000
    stream = (encode(Kind.DATA, 1, b"arr.8", what, LONG, 0, cut) + data[:cut]
              + encode(Kind.DATA, 1, b"arr.8", what, LONG, cut, LONG - cut) + data[cut:])
    bench = Bench()
    try:
        bench.feed(stream[:came])
        reading = bench.reading(1, ("arr", 8), LONG, what)
        if not bench.memory.receive(reading):
            bench.feed(stream[came:])
        assert reading.got == LONG
        assert reading.view == data
        assert not bench.memory.peers[1].early
    finally:
        bench.close()


def test_what_came_of_a_parcel_goes_with_its_round():
    bench = Bench()
    try:
        for number in (1, 9):
            bench.feed(encode(Kind.DATA, number, b"arr.8", b"kind/x/float32", 10, 0, 10) + bytes(10))
        assert len(bench.memory.peers[1].early) == 2
        bench.memory.end(1)
        assert len(bench.memory.peers[1].early) == 1
        bench.feed(encode(Kind.DATA, 1, b"arr.8", b"kind/x/float32", 10, 0, 10) + bytes(10))  # nobody wants it now
        assert len(bench.memory.peers[1].early) == 1
        # Of a rank that has gone, what came in full can still be received, and the rest cannot.
        bench.feed(encode(Kind.DATA, 2, b"arr.8", b"kind/x/float32", 10, 0, 10) + bytes(10)
                   + encode(Kind.DATA, 2, b"arr.9", b"kind/x/float32", 20, 0, 10) + bytes(10) + encode(Kind.BYE, 0))
        assert bench.memory.receive(bench.reading(2, ("arr", 8), 10, b"kind/x/float32"))
        with pytest.raises(MemoryFault, match="has left the group"):
            bench.memory.receive(bench.reading(2, ("arr", 9), 20, b"kind/x/float32"))
        with pytest.raises(MemoryFault, match="has left the group"):
            bench.memory.send(Parcel(2, b"ars.1", b"kind/x/float32", memoryview(b"x"), Tally(), None), 1)
    finally:
        bench.close()
