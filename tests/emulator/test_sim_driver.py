"""The driver's promises: when each effect is done, in virtual time."""

import pytest
from simpy import Environment

from emulator.sim.connection import Connections
from emulator.sim.driver import Driver
from emulator.sim.rank import Costs, Rank
from emulator.sim.sending import Handshake, Plain
from emulator.topology import Host, Path, Topology
from frogtorch.effects import Buffer, Combine, Copy, Publish, Read, Receive, Release, Send, Stage, Together

DELAY = 3.0
BIG = Buffer(100_000, 1)[:]
SMALL = Buffer(100, 1)[:]


class World:
    """`size` ranks, each on its host, every path unlimited and 3 s long."""

    def __init__(self, size, sending=Plain, costs=Costs()):  # noqa: B008 - nothing writes to it
        names = [f"host-{i}" for i in range(size)]
        paths = [Path(a, b, None, DELAY) for a in names for b in names if a != b]
        topology = Topology("test", "test.yaml", tuple(Host(n, "s") for n in names), paths, (), "cubic", "")
        self.env = Environment()
        self.ranks = []
        self.ranks += [Rank(Connections(self.env, topology, names), i, self.ranks) for i in range(size)]
        connections = self.ranks[0].connections
        for rank in self.ranks:
            rank.connections = connections
        self.sending = sending(self.env)
        self.costs = costs

    def run(self, *collectives):
        """Drive collectives[i] on rank i; returns what each returned."""
        self.drivers = [Driver(rank, 0, self.sending, self.costs) for rank in self.ranks]
        lanes = [self.env.process(driver.run(c)) for driver, c in zip(self.drivers, collectives, strict=False)]
        self.env.run(self.env.all_of(lanes))
        return [lane.value for lane in lanes]

    def after(self, seconds, *effects):
        """A collective that does effects one after another, from `seconds` on; returns when each was done."""
        times = []
        if seconds:
            yield _Wait(self, seconds)
        for effect in effects:
            yield effect
            times.append(self.env.now)
        return times


def _Wait(world, seconds):  # noqa: N802
    """An effect that takes `seconds`: a Combine at a cost of a second a byte."""
    world.costs.combine = 1.0
    return Combine(Buffer(seconds, 1)[:], [SMALL, SMALL], "sum")


def test_a_read_that_stands_when_its_cell_is_published_costs_one_delay():
    world = World(2)
    _, times = world.run(world.after(10, Publish(("x",), BIG, 1)), world.after(0, Read(("x",), 0, BIG)))
    assert times == [10 + DELAY]


def test_a_read_asked_after_publication_costs_a_round_trip():
    world = World(2)
    _, times = world.run(world.after(0, Publish(("x",), BIG, 1)), world.after(10, Read(("x",), 0, BIG)))
    assert times == [10 + 2 * DELAY]


@pytest.mark.parametrize(("region", "seconds"), [(SMALL, DELAY), (BIG, 2 * DELAY)])
def test_a_small_cell_that_its_reader_subscribed_to_comes_unasked(region, seconds):
    world = World(2)
    _, times = world.run(world.after(0, Publish(("arr", 0, 0), region, 1)),
                         world.after(0, Read(("arr", 0, 0), 0, region)))
    assert times == [seconds]
    # A cell is one message either way; its request is another.
    assert world.ranks[0].connections.messages() == [1, region is BIG]


def test_a_small_cell_that_came_before_its_read_is_there_at_once():
    world = World(2)
    _, times = world.run(world.after(0, Publish(("whl", 0), SMALL, 1)),
                         world.after(10, Read(("whl", 0), 0, SMALL)))
    assert times == [10]


def test_publishing_returns_at_once_and_a_copy_costs_its_bytes():
    world = World(2, costs=Costs(copy=0.01))
    times, _ = world.run(world.after(0, Publish(("x",), SMALL, 1), Publish(("y",), SMALL, 1, copy=True)), _nothing())
    assert times == [0, 1]
    assert world.drivers[0].account.publish == 1


def _nothing():
    return
    yield


def test_combine_and_copy_cost_their_bytes():
    world = World(1, costs=Costs(copy=0.01, combine=0.1))
    (times,) = world.run(world.after(0, Copy(SMALL, SMALL), Combine(SMALL, [SMALL] * 4, "sum")))
    assert times == [1, 31]  # three folds
    assert world.drivers[0].account.combined == 31


def test_a_message_costs_its_receiver():
    world = World(2, costs=Costs(message=0.5))
    _, times = world.run(world.after(0, Publish(("bar", 0), SMALL, 1)), world.after(0, Read(("bar", 0), 0, SMALL)))
    assert times == [DELAY + 0.5]


def test_lanes_run_side_by_side_and_their_results_keep_their_order():
    world = World(1)
    (results,) = world.run(_together([world.after(5, Copy(SMALL, SMALL)), world.after(2, Copy(SMALL, SMALL))]))
    assert results == [[5], [2]]


def _together(lanes, width=None):
    return (yield Together(lanes, width))


def test_width_admits_lanes_in_their_order():
    # Two at a time: 0 and 1 from 0; 2 when 1 is done at 2; 3 when 0 is done at 5.
    world = World(1)
    (results,) = world.run(_together([world.after(n, Copy(SMALL, SMALL)) for n in (5, 2, 4, 1)], width=2))
    assert results == [[5], [2], [6], [6]]


def test_stages_and_copied_cells_are_counted_and_go():
    world = World(2)

    def staging():
        first = yield Stage(1000, 4)
        yield Release(first)
        second = yield Stage(100, 4)
        yield Publish(("bar", 0), SMALL, 1, copy=True)
        return second.count

    def reading():
        yield Read(("bar", 0), 0, SMALL)

    assert world.run(staging(), reading())[0] == 100
    assert world.ranks[0].memory_peak == 4000
    assert world.ranks[0].memory == 0  # the cell was read, and the stage went with its collective


def test_a_stage_is_released_once():
    world = World(1)

    def twice():
        stage = yield Stage(1, 1)
        yield Release(stage)
        yield Release(stage)

    with pytest.raises(ValueError, match="not staged, or was released before"):
        world.run(twice())


def test_what_an_effect_raises_is_thrown_into_its_generator_and_closes_the_lanes_beside_it():
    world = World(2)
    log = []

    def waiting():
        try:
            yield Read(("never",), 1, SMALL)
        finally:
            log.append(world.env.now)

    def failing():
        yield Publish(("x",), SMALL, 1)
        yield _Wait(world, 7)
        try:
            yield Publish(("x",), SMALL, 1)
        except ValueError as error:
            log.append(str(error))
            raise

    def parent():
        try:
            yield Together([waiting(), failing()])
        except ValueError:
            return "caught"

    assert world.run(parent()) == ["caught"]
    assert log == ["rank 0 publishes ('x',) twice in round 0", 7]


def test_a_read_must_have_the_size_of_its_cell():
    world = World(2)
    with pytest.raises(ValueError, match=r"rank 1 reads \('x',\) of rank 0 into 100 bytes, but it has 100000"):
        world.run(world.after(0, Publish(("x",), BIG, 1)), world.after(0, Read(("x",), 0, SMALL)))


def test_a_cell_has_no_more_readers_than_it_was_published_for():
    world = World(3)
    read = Read(("x",), 0, BIG)
    with pytest.raises(ValueError, match="has had all its readers"):
        world.run(world.after(0, Publish(("x",), BIG, 1)), world.after(0, read), world.after(1, read))


def test_what_is_no_effect_is_refused():
    world = World(1)
    with pytest.raises(TypeError, match="does not know the effect 'x'"):
        world.run(_together(["x"]))


@pytest.mark.parametrize(("sending", "sent", "got"), [(Plain, 4, 4 + DELAY), (Handshake, 10 + DELAY, 10 + 2 * DELAY)])
def test_sends_meet_receives(sending, sent, got):
    """The sender is ready at 4 s, the receiver at 10 s: with the handshake its notice must travel first."""
    world = World(2, sending)
    sends, receives = world.run(world.after(4, Send(1, BIG)), world.after(10, Receive(0, BIG)))
    assert sends == [sent]
    assert receives == [max(got, 10)]
    assert world.ranks[0].connections.messages() == ([1, 0] if sending is Plain else [2, 1])


def test_a_receive_that_stands_costs_one_delay_with_the_handshake_too():
    world = World(2, Handshake)
    _, receives = world.run(world.after(10, Send(1, BIG)), world.after(0, Receive(0, BIG)))
    assert receives == [10 + DELAY]


def test_the_nth_send_meets_the_nth_receive():
    world = World(2, Handshake)
    _, receives = world.run(world.after(0, Send(1, SMALL), Send(1, BIG)),
                            world.after(0, Receive(0, SMALL), Receive(0, BIG)))
    assert receives == [2 * DELAY, 4 * DELAY]
    assert world.drivers[1].account.peers[0].bytes == 100_100


def test_wait_and_transfer_of_a_peer():
    world = World(2)
    world.run(world.after(10, Publish(("arr", 0, 0), BIG, 1)), world.after(0, Read(("arr", 0, 0), 0, BIG)))
    account = world.drivers[1].account
    assert (account.peers[0].wait, account.peers[0].transfer, account.peers[0].bytes) == (10 + DELAY, 0, 100_000)
    assert account.reduced == 10 + DELAY
