"""Cells that supersede each other, from one member's side: what is kept, what is answered, what is refused."""

import select
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_incoming import Bench, Operation, refused

from frogtorch.memory import wire
from frogtorch.memory.cells import Question, Tally
from frogtorch.memory.questions import (
    NEVER,
    Query,
    Version,
    answer_newer,
    ask_newer,
    decode_query,
    decode_version,
    question,
)
from frogtorch.memory.series import Entry
from frogtorch.memory.wire import Kind

NAME = b"hkb.1.0"
WHAT = b"fresh_only/buckets/float32"
HUGE = 32 << 20
"""Bytes: more than the buffers of two sockets hold."""


class Owner(Bench):
    """Rank 0, which publishes; rank 1 is the test's socket."""

    def __init__(self):
        super().__init__()
        self.retired = []

    def publish(self, step, layout=0, nbytes=100, name=NAME, what=WHAT):
        view = memoryview(bytes([step % 256]) * nbytes)
        self.memory.series.supersede(Entry(name, Version(layout, step, nbytes), what, view, Tally(),
                                           lambda: self.retired.append(step)))
        self.memory.flush()

    def ask(self, count, have=NEVER, oldest=NEVER, layout=0, nbytes=100, reader=1, what=WHAT):
        self.send(ask_newer(question(reader, count), NAME, what, Query(layout, have, oldest, nbytes)))

    def send(self, data):
        self.theirs.sendall(data)
        select.select([self.connection.sock], [], [], 5)
        self.connection.receive()
        self.memory.flush()

    def heard(self, wanted):
        """What was answered, until there are `wanted` bytes of payload: (kind, number, version or payload)."""
        data, found, got = bytearray(), [], 0
        while got < wanted or not found:
            self.connection.flush()  # the loop's, when the kernel takes more
            select.select([self.theirs], [], [], 5)
            more = self.hear()
            assert more
            data += more
            while (head := wire.decode(memoryview(bytes(data[:600])))) is not None:
                frame, body = head
                if len(data) < body + frame.length:
                    break
                payload = bytes(data[body:body + frame.length])
                del data[:body + frame.length]
                if frame.kind == Kind.CELL:
                    got += frame.length
                    found.append((Kind.CELL, frame.round, payload))
                else:
                    found.append((Kind(frame.kind), frame.round, decode_version(memoryview(payload))))
        return found


@pytest.fixture
def owner():
    one = Owner()
    one.hear()  # what the bench has asked and offered
    one.memory.flush()
    one.hear()
    yield one
    one.close()


def test_questions_and_answers_come_back_as_they_went():
    query, version = Query(3, -1, 17, 1 << 40), Version(2, -1, 0)
    frame, body = wire.decode(memoryview(asked := ask_newer(question(5, 9), NAME, WHAT, query)))
    assert (frame.kind, frame.round, frame.name, frame.what) == (Kind.NEWER, (1 << 62) + (5 << 40) + 9, NAME, WHAT)
    assert decode_query(memoryview(asked)[body:]) == query
    frame, body = wire.decode(memoryview(answered := answer_newer(Kind.SAME, 1, NAME, b"", version)))
    assert decode_version(memoryview(answered)[body:]) == version


def test_only_what_is_newer_and_alike_travels(owner):
    owner.ask(1)
    assert owner.heard(0) == [(Kind.SAME, question(1, 1), Version(0, NEVER, 0))]  # nothing was published
    owner.publish(4)
    owner.ask(2)
    assert owner.heard(100) == [(Kind.NEWEST, question(1, 2), Version(0, 4, 100)),
                                (Kind.CELL, question(1, 2), bytes([4]) * 100)]
    owner.ask(3, have=4)
    assert owner.heard(0) == [(Kind.SAME, question(1, 3), Version(0, 4, 100))]
    owner.ask(4, layout=1, nbytes=60)
    assert owner.heard(0) == [(Kind.SAME, question(1, 4), Version(0, 4, 100))]
    owner.ask(5, nbytes=60)  # of one layout, and not alike: the answer says so, and nothing more comes
    assert owner.heard(0) == [(Kind.NEWEST, question(1, 5), Version(0, 4, 100))]
    assert not owner.hear()


def test_a_question_stands_until_there_is_what_it_needs(owner):
    owner.publish(1)
    owner.ask(1, have=1, oldest=3)
    owner.publish(2)
    assert not owner.hear()
    assert owner.memory.peers[1].standing == 1
    owner.publish(3)
    assert owner.heard(100)[0] == (Kind.NEWEST, question(1, 1), Version(0, 3, 100))
    assert owner.memory.peers[1].standing == 0


def test_what_is_superseded_goes_and_what_is_being_read_stays_to_its_end(owner):
    owner.publish(0, nbytes=HUGE)
    owner.ask(1, nbytes=HUGE)
    owner.publish(1, nbytes=HUGE)
    owner.publish(2, nbytes=HUGE)
    owner.publish(3, nbytes=HUGE)
    assert owner.retired == [1, 2]  # 0 is being read
    payload = b"".join(payload for kind, _, payload in owner.heard(HUGE) if kind == Kind.CELL)
    assert payload == bytes(HUGE)
    assert owner.retired == [1, 2, 0]
    assert len(owner.memory.series) == 1


def test_a_reader_that_goes_away_lets_go_of_what_it_read(owner):
    owner.publish(0, nbytes=HUGE)
    owner.ask(1, nbytes=HUGE)
    owner.ask(2, oldest=9)
    owner.publish(1)
    assert owner.retired == []
    owner.theirs.close()
    select.select([owner.connection.sock], [], [], 5)
    owner.connection.receive()
    assert owner.retired == [0]
    assert len(owner.memory.series) == 1  # the newest; no question


def test_the_end_takes_all_along(owner):
    owner.publish(0)
    owner.publish(0, name=b"hkb.1.1")
    owner.close()
    assert owner.retired == [0, 0]
    assert not owner.memory.series


def test_steps_only_grow(owner):
    owner.publish(2)
    with pytest.raises(ValueError, match=r"hkb\.1\.0 of step 2 would come after step 2; steps only grow"):
        owner.publish(2)


@pytest.mark.parametrize(("frames", "said"), [
    ([ask_newer(question(0, 1), NAME, WHAT, Query(0, -1, -1, 100))], "which is none of its own"),
    ([ask_newer(7, NAME, WHAT, Query(0, -1, -1, 100))], "which is none of its own"),
    ([ask_newer(question(1, 1), NAME, WHAT, Query(0, -1, -1, HUGE))] * 2, "twice"),
    ([ask_newer(question(1, i), NAME, WHAT, Query(0, -1, 9, 100)) for i in range(400)], "more than 300 requests"),
    ([ask_newer(question(1, i), NAME, WHAT, Query(0, -1, -1, HUGE)) for i in range(400)], "more than 300 requests"),
    ([wire.encode(Kind.NEWER, question(1, 1), NAME, WHAT, 31, 0, 31) + bytes(31)], "has 32 bytes of payload, not 31"),
])
def test_what_a_reader_must_not_ask(monkeypatch, owner, frames, said):
    monkeypatch.setattr("frogtorch.memory.peers.STANDING_MAX", 300)
    owner.publish(0, nbytes=HUGE)
    owner.feed(b"".join(frames))
    assert not owner.connection.open
    assert said in refused(owner)


def reader(bench, have=2, oldest=1):
    """A question of rank 0's that waits for its answer."""
    number = bench.memory.begin(Operation(WHAT, None), bench.memory.next_question())
    one = Question(number, NAME, 1, WHAT, memoryview(bytearray(100)), Tally(),
                   lambda reading, error: bench.results.append(error), Query(0, have, oldest, 100))
    bench.memory.ask_newest(one)
    return one


@pytest.mark.parametrize("version", [Version(0, 2, 100), Version(1, 3, 100), Version(0, -1, 100)])
def test_an_answer_that_cannot_be_is_refused(owner, version):
    one = reader(owner)
    owner.feed(answer_newer(Kind.NEWEST, one.round, NAME, WHAT, version))
    assert not owner.connection.open
    assert "answers Query(layout=0, have=2, oldest=1" in refused(owner)


def test_an_answer_of_another_kind_of_bucket_fails_the_read_alone(owner):
    one = reader(owner)
    owner.feed(answer_newer(Kind.NEWEST, one.round, NAME, b"fresh_only/buckets/float64", Version(0, 3, 200)))
    assert owner.connection.open
    assert refused(owner) == (
        "hkb.1.0 is fresh_only/buckets/float64 of 200 bytes on rank 1 at 127.0.0.1:2, but fresh_only/buckets/float32 "
        "of 100 bytes on rank 0")


def test_an_answer_to_no_question(owner):
    owner.feed(answer_newer(Kind.NEWEST, 0, b"whl.1", WHAT, Version(0, 3, 100)))
    assert "an answer came to what was no question" in refused(owner)


def stream(seed):
    """Frames about a series: right, or but for something."""
    choose = Random(seed)
    frames = []
    for _ in range(choose.randrange(1, 12)):
        number = choose.choice([question(1, choose.randrange(3)), question(0, choose.randrange(1, 3)), 0, 1 << 63])
        name = choose.choice([NAME, NAME, b"hkb.1.1", b"x"])
        what = choose.choice([WHAT, WHAT, b""])
        steps = [-(1 << 63), -1, 0, 1, 2, 3, 1 << 62]
        size = choose.choice([100, 100, 0, 1 << 63, HUGE])
        kind = choose.choice([Kind.NEWER, Kind.NEWER, Kind.SAME, Kind.NEWEST, Kind.CELL])
        if kind == Kind.NEWER:
            frame = ask_newer(number, name, what, Query(choose.randrange(2), *choose.choices(steps, k=2), size))
        elif kind == Kind.CELL:
            frame = wire.encode(kind, number, name, what, 100, 0, 100) + bytes(100)
        else:
            frame = answer_newer(kind, number, name, what, Version(choose.randrange(2), choose.choice(steps), size))
        if choose.random() < 0.1:
            at = choose.randrange(len(frame))
            frame = frame[:at] + choose.randbytes(choose.randrange(2)) + frame[at + choose.randrange(1, 9):]
        frames.append(frame)
    return b"".join(frames)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_any_frames(seed):
    bench = Owner()
    try:
        bench.publish(1)
        reader(bench, have=0)
        bench.publish(2, layout=1)
        bench.feed(stream(seed))
        bench.check()
    finally:
        bench.close()
        assert not bench.memory.series
        assert sorted(bench.retired) == [1, 2]
