"""A network in memory: ranks are generators over Python lists, and events come in any order that they could."""

from hypothesis import strategies as st

from frogtorch.effects import (
    Buffer,
    Combine,
    Copy,
    Group,
    Look,
    Publish,
    Read,
    Receive,
    Release,
    Send,
    Stage,
    Together,
)

SMALL, LARGE = 4, 16_385
"""Bytes an element: of a few, and of those of which a single one is no small cell any more."""


class Net:
    """All ranks of a collective in one thread: `choose` decides what happens next, of all that could.

    Reads are delivered element by element, so that a region that is overwritten too early is seen.
    """

    def __init__(self, choose):
        self.choose = choose
        self.cells = {}  # (owner, name): [region, values or None if served in place, readers left, ranks that have it]
        self.ready = []  # (lane, value)
        self.reads = []  # [lane, rank, effect, elements delivered]
        self.sends = []  # [lane, rank, effect, parcel, elements that have left]; a parcel: (from, to, kind, number)
        self.receives = []  # [lane, rank, effect, parcel, elements that have come]
        self.parcels = {}  # its elements that are on their way
        self.counts = {}
        self.done = []  # lanes of ranks that are done, but for cells that are served in place
        self.received = {}

    def run(self, collectives):
        for rank, collective in enumerate(collectives):
            self.received[rank] = 0
            self.ready.append((Lane(rank, collective, None), None))
        while True:
            possible = [("lane", i, lane.rank) for i, (lane, _) in enumerate(self.ready)]
            possible += [("read", i, rank) for i, (_, rank, asked, _) in enumerate(self.reads)
                         if (asked.owner, asked.name) in self.cells]
            possible += [("send", i, rank) for i, (_, rank, _, parcel, _) in enumerate(self.sends)
                         if not any(other[:2] == parcel[:2] for _, _, _, other, _ in self.sends[:i])]
            possible += [("receive", i, rank) for i, (_, rank, _, parcel, _) in enumerate(self.receives)
                         if self.parcels.get(parcel)]
            possible += [("done", i, lane.rank) for i, lane in enumerate(self.done) if not self.lent(lane.rank)]
            if not possible:
                break
            kind, i, _ = self.choose(possible)
            if kind == "lane":
                self.step(*self.ready.pop(i))
            elif kind == "done":
                self.ready.append((self.done.pop(i), None))
            elif kind == "send":
                self.leave(i)
            elif kind == "receive":
                self.arrive(i)
            else:
                self.deliver(i)
        assert not self.done
        assert not self.reads, f"these wait for ever: {self.reads}"
        assert not self.sends
        assert not self.receives, f"these wait for ever: {self.receives}"
        assert not any(self.parcels.values()), f"these were sent and not received: {self.parcels}"
        assert not self.cells, f"these were not read by all their readers: {self.cells}"

    def lent(self, rank):
        return any(owner == rank and values is None for (owner, _), (_, values, *_) in self.cells.items())

    def step(self, lane, value):
        if lane.generator is None:
            self.end(lane, value)
            return
        try:
            effect = lane.generator.send(value)
        except StopIteration as stop:
            self.end(lane, stop.value)
            return
        self.perform(lane, effect)

    def end(self, lane, value):
        if lane.parent is not None:
            side = lane.parent
            side.results[lane.index] = value
            side.left -= 1
            if side.queue:
                self.admit(side)
            if not side.left:
                self.ready.append((side.lane, side.results))

    def admit(self, side):
        index, what = side.queue.pop(0)
        if hasattr(what, "send"):
            self.ready.append((Lane(side.lane.rank, what, side, index), None))
        else:
            self.perform(Lane(side.lane.rank, None, side, index), what)

    def perform(self, lane, effect):
        value = None
        if effect == "done":
            self.done.append(lane)
            return
        match effect:  # ("sum" here is concatenation, which shows the order)
            case Publish():
                assert (lane.rank, effect.name) not in self.cells, "a name is written once"
                values = read(effect.region) if effect.copy else None
                self.cells[lane.rank, effect.name] = [effect.region, values, effect.readers, set()]
            case Read():
                self.reads.append([lane, lane.rank, effect, 0])
                return
            case Send():
                assert effect.region.count, "an empty region is not sent"
                parcel = self.parcel("send", lane.rank, effect.to, effect.kind)
                self.sends.append([lane, lane.rank, effect, parcel, 0])
                return
            case Receive():
                assert effect.into.count, "an empty region is not received"
                parcel = self.parcel("receive", effect.source, lane.rank, effect.kind)
                self.receives.append([lane, lane.rank, effect, parcel, 0])
                return
            case Combine():
                assert effect.into.count, "an empty region is not combined"
                total = read(effect.parts[0])
                for part in effect.parts[1:]:
                    total = [a + b for a, b in zip(total, read(part), strict=True)]
                self.check_free(effect.into)
                effect.into.buffer.storage[effect.into.lo:effect.into.hi] = total
            case Copy():
                assert effect.into.count, "an empty region is not copied"
                self.check_free(effect.into)
                effect.into.buffer.storage[effect.into.lo:effect.into.hi] = read(effect.source)
            case Look():
                (value,) = read(effect.region)
            case Stage():
                value = Buffer(effect.count, effect.itemsize, [None] * effect.count)
            case Release():
                effect.buffer.storage[:] = ["released"] * effect.buffer.count
            case Together():
                side = Side(lane, list(effect.lanes))
                if not side.queue:
                    self.ready.append((lane, []))
                for _ in range(effect.width or len(side.queue)):
                    if side.queue:
                        self.admit(side)
                return
        self.ready.append((lane, value))

    def parcel(self, side, *way):
        self.counts[side, way] = self.counts.get((side, way), -1) + 1
        return *way, self.counts[side, way]

    def leave(self, i):
        """One more element leaves, of the parcel that is the first on its way."""
        lane, _, effect, parcel, gone = self.sends[i]
        self.parcels.setdefault(parcel, []).append(read(effect.region)[gone])
        self.sends[i][-1] += 1
        if gone + 1 == effect.region.count:
            del self.sends[i]
            self.ready.append((lane, None))

    def arrive(self, i):
        lane, rank, effect, parcel, come = self.receives[i]
        self.check_free(effect.into)
        effect.into.buffer.storage[effect.into.lo + come] = self.parcels[parcel].pop(0)
        self.receives[i][-1] += 1
        if come + 1 == effect.into.count:
            del self.receives[i]
            self.received[rank] += effect.into.nbytes
            self.ready.append((lane, None))

    def check_free(self, region):
        for _, _, effect, _, _ in self.sends:
            if effect.region.buffer is region.buffer:
                assert effect.region.hi <= region.lo or region.hi <= effect.region.lo, "written while it was sent"
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
        if done < region.count:
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
    def __init__(self, rank, generator, parent, index=0):
        self.rank, self.generator, self.parent, self.index = rank, generator, parent, index


class Side:
    def __init__(self, lane, queue):
        self.lane, self.queue, self.left = lane, list(enumerate(queue)), len(queue)
        self.results = [None] * len(queue)


def read(region):
    return list(region.buffer.storage[region.lo:region.hi])


def chooser(data):
    """The order of events, by a cheap generator that hypothesis has seeded: any, or one rank is far ahead of others."""
    state = data.draw(st.integers(0, 2**32 - 1))
    ahead = data.draw(st.none() | st.integers(0, 4))

    def choose(possible):
        nonlocal state
        state = (state * 1664525 + 1013904223) % 2**32
        if state >> 28:  # but for one time in sixteen
            possible = [event for event in possible if event[2] == ahead] or possible
        return possible[(state >> 8) % len(possible)]

    return choose


def contribution(rank, count, what=""):
    """What rank `rank` has in a tensor: "2.0 2.1 2.2 ", an element each."""
    return [f"{rank}{what}.{i} " for i in range(count)]


def regions(*values, itemsize=SMALL):
    """A region of a buffer of its own for each list of values, with a neighbour on both sides that nobody may touch."""
    return [Buffer(len(v) + 2, itemsize, ["left", *v, "right"])[1:1 + len(v)] for v in values]


def empty(*counts, itemsize=SMALL):
    return regions(*([None] * count for count in counts), itemsize=itemsize)


def play(data, size, make):
    """Run ``make(group) -> (collective, inputs, outputs)`` on all ranks; return the outputs, and the bytes received.

    The moment a rank is done, and what it serves in place is read, it overwrites all its tensors, as its caller may.
    """
    results = [None] * size

    def run(rank):
        collective, inputs, outputs = make(Group(rank, size))
        yield from collective
        yield "done"
        results[rank] = [read(region) for region in outputs]
        for region in {id(region): region for region in (*inputs, *outputs)}.values():
            assert (region.buffer.storage[0], region.buffer.storage[-1]) == ("left", "right")
            region.buffer.storage[:] = ["overwritten"] * region.buffer.count

    net = Net(chooser(data))
    net.run([run(rank) for rank in range(size)])
    return results, [net.received[rank] for rank in range(size)]
