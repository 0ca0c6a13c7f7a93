"""The pure collectives, with ranks as generators over Python lists, in any order of events a network could have."""

from hypothesis import given, settings
from hypothesis import strategies as st

from frogtorch.collectives import ALL_REDUCE, all_gather, barrier, broadcast, pipelined
from frogtorch.effects import Buffer, Combine, Copy, Group, Publish, Read, Release, Stage, Together


class Net:
    """All ranks of a collective in one thread: `choose` decides what happens next, of all that could.

    Reads are delivered element by element, so that a region that is overwritten too early is seen.
    """

    def __init__(self, choose):
        self.choose = choose
        self.cells = {}  # (owner, name): [region, values or None if served in place, readers left, ranks that have it]
        self.ready = []  # (lane, value)
        self.reads = []  # [lane, rank, effect, elements delivered]
        self.received = {}

    def run(self, collectives):
        for rank, collective in enumerate(collectives):
            self.received[rank] = 0
            self.ready.append((Lane(rank, collective, None), None))
        while True:
            possible = [("lane", i) for i in range(len(self.ready))]
            possible += [("read", i) for i, (_, _, asked, _) in enumerate(self.reads)
                         if (asked.owner, asked.name) in self.cells]
            if not possible:
                break
            kind, i = self.choose(possible)
            if kind == "lane":
                self.step(*self.ready.pop(i))
            else:
                self.deliver(i)
        assert not self.reads, f"these wait for ever: {self.reads}"
        assert not self.cells, f"these were not read by all their readers: {self.cells}"

    def step(self, lane, value):
        if lane.generator is None:
            self.end(lane, value)
            return
        try:
            effect = lane.generator.send(value)
        except StopIteration:
            self.end(lane, None)
            return
        self.perform(lane, effect)

    def end(self, lane, value):
        if lane.parent is not None:
            side = lane.parent
            side.left -= 1
            if side.queue:
                self.admit(side)
            if not side.left:
                self.ready.append((side.lane, None))

    def admit(self, side):
        what = side.queue.pop(0)
        if hasattr(what, "send"):
            self.ready.append((Lane(side.lane.rank, what, side), None))
        else:
            self.perform(Lane(side.lane.rank, None, side), what)

    def perform(self, lane, effect):
        value = None
        match effect:  # ("sum" here is concatenation, which shows the order)
            case Publish():
                assert effect.region.count, "an empty region is not published"
                assert (lane.rank, effect.name) not in self.cells, "a name is written once"
                values = read(effect.region) if effect.copy else None
                self.cells[lane.rank, effect.name] = [effect.region, values, effect.readers, set()]
            case Read():
                assert effect.into.count, "an empty region is not read"
                self.reads.append([lane, lane.rank, effect, 0])
                return
            case Combine():
                total = read(effect.parts[0])
                for part in effect.parts[1:]:
                    total = [a + b for a, b in zip(total, read(part), strict=True)]
                self.check_free(effect.into)
                effect.into.buffer.storage[effect.into.lo:effect.into.hi] = total
            case Copy():
                self.check_free(effect.into)
                effect.into.buffer.storage[effect.into.lo:effect.into.hi] = read(effect.source)
            case Stage():
                value = Buffer(effect.count, effect.itemsize, [None] * effect.count)
            case Release():
                effect.buffer.storage[:] = ["released"] * effect.buffer.count
            case Together():
                side = Side(lane, list(effect.lanes))
                if not side.queue:
                    self.ready.append((lane, None))
                for _ in range(effect.width or len(side.queue)):
                    if side.queue:
                        self.admit(side)
                return
        self.ready.append((lane, value))

    def check_free(self, region):
        for served, values, *_ in self.cells.values():
            if values is None and served.buffer is region.buffer:
                assert served.hi <= region.lo or region.hi <= served.lo, "written while it was served in place"

    def deliver(self, i):
        lane, rank, effect, done = self.reads[i]
        cell = self.cells[effect.owner, effect.name]
        region, values, readers, have = cell
        assert region.count == effect.into.count
        assert rank not in have, "a rank reads a cell once"
        self.check_free(effect.into)
        source = values if values is not None else read(region)
        effect.into.buffer.storage[effect.into.lo + done] = source[done]
        self.reads[i][3] += 1
        if done + 1 < region.count:
            return
        del self.reads[i]
        have.add(rank)
        self.received[rank] += region.nbytes
        if len(have) == readers:
            del self.cells[effect.owner, effect.name]
        self.ready.append((lane, None))


class Lane:
    def __init__(self, rank, generator, parent):
        self.rank, self.generator, self.parent = rank, generator, parent


class Side:
    def __init__(self, lane, queue):
        self.lane, self.queue, self.left = lane, queue, len(queue)


def read(region):
    return list(region.buffer.storage[region.lo:region.hi])


def chooser(data):
    """The order of events: hypothesis picks the first ones, then a cheap generator that it has seeded does."""
    state = data.draw(st.integers(0, 2**32 - 1))

    def choose(possible):
        nonlocal state
        state = (state * 1664525 + 1013904223) % 2**32
        return possible[(state >> 8) % len(possible)]

    return choose


def tensors(size, count):
    return [Buffer(count, 4, [f"{rank}.{i} " for i in range(count)]) for rank in range(size)]


ALGORITHMS = {**ALL_REDUCE, "pipelined in chunks, two at a time": lambda g, t, op: pipelined(g, t, op, 8, 2)}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 5), st.integers(0, 23))
def test_all_reduce(data, algorithm, size, count):
    buffers = tensors(size, count)
    net = Net(chooser(data))
    net.run([ALGORITHMS[algorithm](Group(r, size), buffers[r][:], "sum") for r in range(size)])
    # Strings are not commutative: "sums" in rank order, the same on every rank.
    expected = ["".join(f"{rank}.{i} " for rank in range(size)) for i in range(count)]
    assert [buffer.storage for buffer in buffers] == [expected] * size
    least, longer = divmod(count, size)
    for rank in range(size):
        own = least + (rank < longer)
        # Phase 1: my slice from W-1 peers. Phase 2: all slices but mine. Whole: all from W-1 peers.
        elements = (size - 1) * count if algorithm == "whole" else (size - 1) * own + count - own
        assert net.received[rank] == 4 * elements


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(0, 9), st.integers(0, 4))
def test_broadcast(data, size, count, root):
    root %= size
    buffers = tensors(size, count)
    Net(chooser(data)).run([broadcast(Group(r, size), buffers[r][:], root) for r in range(size)])
    assert [buffer.storage for buffer in buffers] == [[f"{root}.{i} " for i in range(count)]] * size


@settings(max_examples=30, deadline=None)
@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_all_gather_of_uneven_shares(data, counts):
    size = len(counts)
    mine = [Buffer(count, 4, [f"{rank}.{i} " for i in range(count)]) for rank, count in enumerate(counts)]
    into = [[Buffer(count, 4, [None] * count) for count in counts] for _ in range(size)]
    Net(chooser(data)).run([all_gather(Group(r, size), mine[r][:], [b[:] for b in into[r]]) for r in range(size)])
    assert [[buffer.storage for buffer in buffers] for buffers in into] == [[b.storage for b in mine]] * size


@settings(max_examples=20, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_barrier_ends_for_nobody_before_all_have_come(data, size):
    order = []

    def come(rank):
        order.append("came")
        yield from barrier(Group(rank, size))
        order.append("went")

    Net(chooser(data)).run([come(rank) for rank in range(size)])
    assert order == ["came"] * size + ["went"] * size
