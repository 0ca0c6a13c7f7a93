"""Every collective of the backend in virtual time: how many one-way delays it takes, and what a rank receives."""

import pytest

from emulator import sim
from emulator.sim import Costs, gloo
from emulator.topology import Host, Path, Topology
from frogtorch.collectives import (
    all_gather,
    all_gather_entries,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from frogtorch.effects import Buffer

DELAY = 3.0
SIZE, ROOT = 4, 1
SMALL, MIDDLE, LARGE = 4_000, 40_000, 4_000_000


def run(make, over_gloo=False):
    """Run ``make(group)`` on all ranks, a delay apart on unlimited paths; the seconds, and the bytes received."""
    names = [f"host-{i}" for i in range(SIZE)]
    paths = [Path(a, b, None, DELAY) for a in names for b in names if a != b]
    topology = Topology("test", "test.yaml", tuple(Host(n, "s") for n in names), paths, (), "cubic", "")
    outcome = sim.collective(topology, names, make, over_gloo, Costs())
    return outcome.seconds, list(outcome.received_bytes)


def tensor(nbytes):
    return Buffer(nbytes, 1)[:]


def at_root(group, value):
    return value if group.rank == ROOT else None


COLLECTIVES = {
    # name: (collective, delays of a small tensor, of a large one, quarters of it that the root and the others receive)
    "reduce": (lambda g, n: reduce(g, tensor(n), at_root(g, tensor(n)), ROOT, "sum"), 1, 3, 6, 3),
    "reduce_scatter": (lambda g, n: reduce_scatter(g, tensor(n).split(SIZE), tensor(n // SIZE), "sum"), 1, 2, 3, 3),
    "broadcast": (lambda g, n: broadcast(g, tensor(n), ROOT), 1, 2, 0, 4),
    "all_gather": (lambda g, n: all_gather(g, tensor(n // SIZE), tensor(n).split(SIZE)), 1, 2, 3, 3),
    "gather": (lambda g, n: gather(g, tensor(n // SIZE), at_root(g, tensor(n).split(SIZE)), ROOT), 1, 2, 3, 0),
    "scatter": (lambda g, n: scatter(g, at_root(g, tensor(n).split(SIZE)), tensor(n // SIZE), ROOT), 1, 2, 0, 1),
    "all_to_all": (lambda g, n: all_to_all(g, tensor(n).split(SIZE), tensor(n).split(SIZE)), 1, 2, 3, 3),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_delays_and_bytes(name):
    """Small cells go unasked, in one delay; of large ones the request travels first, and a reduced slice is awaited.

    Of the middle size, which a reduce cuts into slices, a whole tensor is no small cell, and a quarter of it is one.
    """
    collective, few, many, root, others = COLLECTIVES[name]
    between = {"reduce": 2, "broadcast": 2}.get(name, 1)
    for nbytes, delays in ((SMALL, few), (MIDDLE, between), (LARGE, many)):
        seconds, received = run(lambda group, n=nbytes: collective(group, n))
        assert seconds == pytest.approx(delays * DELAY, abs=0.1)
        quarters = [root if rank == ROOT else others for rank in range(SIZE)]
        if (name, nbytes) == ("reduce", SMALL):  # whole tensors, to the root alone
            quarters = [4 * (SIZE - 1) if rank == ROOT else 0 for rank in range(SIZE)]
        assert received == [quarter * nbytes // 4 for quarter in quarters]


def test_barrier():
    assert run(barrier) == (pytest.approx(DELAY, abs=0.1), [SIZE - 1] * SIZE)


GLOOS = {
    # name: (collective, delays). A message takes two: the receiver's notice has to come before it leaves.
    "broadcast": (lambda g, n: gloo.broadcast(g, tensor(n), ROOT), 3),  # the second level has given notice before
    "all_gather": (lambda g, n: gloo.all_gather(g, tensor(n // SIZE), tensor(n)), 6),  # three steps
    "gather": (lambda g, n: gloo.gather(g, tensor(n // SIZE), at_root(g, tensor(n).split(SIZE)), ROOT), 2),
    "scatter": (lambda g, n: gloo.scatter(g, at_root(g, tensor(n).split(SIZE)), tensor(n // SIZE), ROOT), 2),
    "all_to_all": (lambda g, n: gloo.all_to_all(g, tensor(n).split(SIZE), tensor(n).split(SIZE)), 2),
    "reduce": (lambda g, n: gloo.reduce(g, tensor(n), ROOT, "sum"), 8),  # six segments, two at a time; then to the root
    "ring": (lambda g, n: gloo.ring(g, tensor(n), "sum"), 12),
}


@pytest.mark.parametrize("name", GLOOS)
def test_delays_and_bytes_of_gloos(name):
    collective, delays = GLOOS[name]
    seconds, received = run(lambda group: collective(group, LARGE), over_gloo=True)
    assert seconds == pytest.approx(delays * DELAY, abs=0.1)
    root, others = {"broadcast": (0, 4), "gather": (3, 0), "scatter": (0, 1), "reduce": (6, 3), "ring": (6, 6)}.get(
        name, (3, 3))
    assert received == [(root if rank == ROOT else others) * LARGE // 4 for rank in range(SIZE)]


def test_gloos_barrier():
    assert run(gloo.barrier, over_gloo=True) == (pytest.approx(4 * DELAY, abs=0.1), [0] * SIZE)  # two rounds


def test_what_another_rank_says_cannot_be_simulated():
    with pytest.raises(TypeError, match=r"looks at a number, .* cannot be simulated"):
        run(lambda group: all_gather_entries(group, Buffer(1, 8)[:], [tensor(10)], [1], 100))
