"""The description of Gloo's ring against what was seen of the real one."""

from collections import defaultdict

import pytest

from emulator.sim.gloo import ring
from frogtorch.collectives.order import segments
from frogtorch.effects import Buffer, Combine, Group, Receive, Release, Send, Stage, Together

# Bytes -> by world size: segments, segments a rank, bytes of a segment, payload messages a rank sends. From PyTorch
# 2.13's own Gloo, its writes logged at 16,867,332 bytes for W=3 and 4, and worked out from its source elsewhere.
SEEN = {
    4_202_500: {2: (6, 3, 700_420, 6), 3: (6, 2, 700_420, 8), 4: (8, 2, 525_316, 12), 6: (12, 2, 350_212, 20)},
    12_664_832: {2: (14, 7, 904_632, 14), 3: (15, 5, 844_324, 20), 4: (16, 4, 791_552, 24), 6: (18, 3, 703_604, 30)},
    16_867_332: {2: (18, 9, 937_076, 18), 3: (18, 6, 937_076, 24), 4: (20, 5, 843_368, 30), 6: (18, 3, 937_076, 30)},
    1 << 20: {2: (4, 2, 262_144, 4), 3: (6, 2, 174_764, 8), 4: (8, 2, 131_072, 12), 6: (12, 2, 87_384, 20)},
}
TABLE = [(nbytes, size, *row) for nbytes, rows in SEEN.items() for size, row in rows.items()]


class Play:
    """Runs the rings of all ranks on lists of numbers, one lane's step at a time; `late` slows one rank down."""

    def __init__(self, tensors, combine, late=None):
        self.inbox = defaultdict(list)
        self.taken = defaultdict(int)
        self.combine = combine
        size = len(tensors)
        rings = [self.drive(ring(Group(r, size), Buffer(len(t), 4, t)[:], "sum"), r) for r, t in enumerate(tensors)]
        turn = 0
        alive = dict(enumerate(rings))
        while alive:
            turn += 1
            assert turn < 100_000, "the ring stands still"
            for rank in list(alive):
                if rank != late or turn % 7 == 0:
                    try:
                        next(alive[rank])
                    except StopIteration:
                        del alive[rank]

    def sent(self, rank, size):
        return self.inbox[rank, (rank - 1) % size]

    def drive(self, collective, rank):
        result = None
        while True:
            try:
                effect = collective.send(result)
            except StopIteration:
                return
            result = yield from self.perform(effect, rank)

    def perform(self, effect, rank):
        match effect:
            case Together(lanes=lanes):
                running = [self.drive(x, rank) if hasattr(x, "send") else self.perform(x, rank) for x in lanes]
                while running:
                    for lane in list(running):
                        try:
                            next(lane)
                        except StopIteration:
                            running.remove(lane)
                    yield
            case Send(to=to, region=r):
                self.inbox[rank, to].append(r.buffer.storage[r.lo:r.hi])
            case Receive(source=source, into=r):
                mine = self.taken[source, rank]
                self.taken[source, rank] += 1
                while len(self.inbox[source, rank]) <= mine:
                    yield
                assert len(self.inbox[source, rank][mine]) == r.count
                r.buffer.storage[r.lo:r.hi] = self.inbox[source, rank][mine]
            case Combine(into=r, parts=(first, second)):
                if self.combine:
                    r.buffer.storage[r.lo:r.hi] = [self.combine(a, b) for a, b in zip(
                        first.buffer.storage[first.lo:first.hi], second.buffer.storage[second.lo:second.hi],
                        strict=True)]
            case Stage(count=count, itemsize=itemsize):
                return Buffer(count, itemsize, [None] * count if self.combine else Sizes())
            case Release():
                pass
        return None


@pytest.mark.parametrize(("nbytes", "size", "number", "per_rank", "segment", "messages"), TABLE)
def test_segments_are_gloos(nbytes, size, number, per_rank, segment, messages):
    cut = segments(nbytes // 4, 4, size)
    assert (cut.number, cut.per_rank, cut.size * 4) == (number, per_rank, segment)
    assert 2 * (number - per_rank) == messages


class Sizes:
    """Stands in for a list where only lengths matter: a slice of it is its length."""

    def __getitem__(self, elements):
        return range(elements.stop - elements.start)

    def __setitem__(self, elements, values):
        assert len(values) == elements.stop - elements.start

    def __len__(self):
        return 16_867_332 // 4


@pytest.mark.parametrize(("size", "nbytes", "messages"), [(3, 22_489_788, 24), (4, 25_301_012, 30)])
def test_what_a_rank_sends_is_what_the_wire_showed(size, nbytes, messages):
    """One rank was logged; chunks are not of equal length, so neither is what ranks send."""
    play = Play([Sizes() for _ in range(size)], None)
    payload = [sum(4 * len(sent) for sent in play.sent(rank, size)) for rank in range(size)]
    assert [len(play.sent(rank, size)) for rank in range(size)] == [messages] * size
    assert nbytes in payload


def expected(j, size, values):
    """Gloo's order for chunk j: x[j-1] first, then x[j-2] + that, ..., x[j] last (indices modulo the world size)."""
    order = [(j - 1 - i) % size for i in range(size)]
    total = values[order[0]]
    for rank in order[1:]:
        total = f"({values[rank]}+{total})"
    return total


@pytest.mark.parametrize("late", [None, 0, 1])
@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 16, 97, 1024])
def test_the_order_of_summation_is_gloos(size, count, late):
    """Every element's sum as text, so that its order shows; also for tensors so short that segments are empty."""
    tensors = [[f"{rank}.{i}" for i in range(count)] for rank in range(size)]
    inputs = [list(tensor) for tensor in tensors]
    Play(tensors, lambda a, b: f"({a}+{b})", late)
    cut = segments(count, 4, size)
    for i in range(count):
        chunk = i // (cut.per_rank * cut.size)
        assert {tensor[i] for tensor in tensors} == {expected(chunk, size, [x[i] for x in inputs])}


def test_four_bytes_at_two_ranks_are_one_message_each_way():
    play = Play([[1], [2]], lambda a, b: a + b)
    assert [play.sent(rank, 2) for rank in (0, 1)] == [[[3]], [[2]]]


def test_a_rank_alone_and_an_empty_tensor_do_nothing():
    assert list(ring(Group(0, 1), Buffer(5, 4)[:], "sum")) == []
    assert list(ring(Group(0, 4), Buffer(0, 4)[:], "sum")) == []
