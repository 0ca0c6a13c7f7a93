"""Whole exchanges against what can be worked out without a simulator."""

import pathlib

import pytest

from emulator.sim import Bucket, Costs, Workload, all_reduce, closed_form, step
from emulator.topology import Host, Path, Topology, load
from frogtorch.collectives import ALL_REDUCE
from frogtorch.effects import Read

TOPOLOGIES = pathlib.Path(__file__).parents[2] / "topologies"
FREE = Costs()
D = 0.035
SEGMENT, FRAME, HEADERS = 1448, 1514, 66
BURST = 2 * FRAME  # of a slow link: a frame, and half a packet of two
TWO_WAY = 1 + 33 / 1514  # wire bytes for each byte's own: half a frame of acknowledgements from the other direction
RATE = 700e3
ARMS = ["gloo", "shard", "pipelined", "whole", "direct"]


def uniform(size, rate=RATE, access=None):
    names = [f"h{i}" for i in range(size)]
    return Topology("uniform", "uniform.yaml", tuple(Host(n, "s", access, access) for n in names),
                    [Path(a, b, rate, D) for a in names for b in names if a != b], (), "cubic", ""), names


def run(world, arm, nbytes, **options):
    return all_reduce(*world, arm, nbytes, costs=FREE, **options)


def slope(world, arm, low=8_400_000, high=16_800_000):
    return (run(world, arm, high).seconds - run(world, arm, low).seconds) / (high - low)


def wire(payload):
    return payload + HEADERS * -(-payload // SEGMENT)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_shard_on_equal_paths_to_the_byte(size):
    """A request's delay, then a phase of S/W over each path and its delay, then the other.

    A frame of 64 bytes goes with every 128 KiB, each phase finds a burst on its idle path, and what goes against it
    is acknowledged here (but for the burst: there packets are long).
    """
    cell = 3_000_000 // size
    frames = 64 * -(-cell // 131_072)
    seconds = 3 * D + 2 * (wire(cell + frames) * TWO_WAY - BURST) / RATE
    assert run(uniform(size), "shard", 3_000_000).seconds == pytest.approx(seconds, abs=5e-4)
    # The control arm asks for nothing: the same bytes on the same paths, and one delay less.
    assert run(uniform(size), "direct", 3_000_000).seconds == pytest.approx(seconds - D, abs=5e-4)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_slopes_on_equal_paths(size):
    """b = 2/(W·B) for shard, 2(W-1)/(W·B) for the ring: B is 1448/1514 of the rate.

    Shard's frames add 64 B to 128 KiB, and its paths carry acknowledgements of what comes the other way; the ring's
    carry nothing else, but where two ranks meet. There its notices queue behind the payload that goes the same way,
    too, so that each segment waits up to a delay longer: 35 ms more for its 1.4 s.
    """
    goodput = RATE * SEGMENT / FRAME
    assert slope(uniform(size), "shard") == pytest.approx(TWO_WAY * 2 / (size * goodput), rel=1e-3)
    if size == 2:
        assert 1 < slope(uniform(2), "gloo") * goodput / TWO_WAY < 1.03
    else:
        assert slope(uniform(size), "gloo") == pytest.approx(2 * (size - 1) / (size * goodput), rel=2e-3)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_the_ratio_of_slopes_is_the_number_of_paths_or_one(size):
    paths, access = uniform(size), uniform(size, rate=None, access=RATE)
    assert slope(paths, "gloo") / slope(paths, "shard") == pytest.approx((size - 1) / TWO_WAY, rel=3e-3)
    # At a host's access both have the acknowledgements of as much as they send.
    assert slope(access, "gloo") / slope(access, "shard") == pytest.approx(1, rel=3e-3)


@pytest.mark.parametrize("size", [2, 4, 6])
def test_small_shard_takes_two_delays_and_whole_takes_one(size):
    assert run(uniform(size), "shard", 4096).seconds == pytest.approx(2 * D, abs=1e-3)
    assert run(uniform(size, rate=None), "shard", 4096).seconds == pytest.approx(2 * D, rel=1e-9)
    assert run(uniform(size, rate=None), "whole", 4096).seconds == pytest.approx(D, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_small_gloo_takes_a_notice_and_a_payload_a_hop(size):
    """2(W-1) hops, each of which waits for the receiver's notice, posted when the receiver has done its own hop."""
    assert run(uniform(size, rate=None), "gloo", 4096).seconds == pytest.approx(2 * (size - 1) * 2 * D, rel=1e-9)


def test_four_bytes_through_gloo():
    """One payload each way at W=2, one after the other; both notices stood from the start, or nearly.

    Rank 1 sends in phase 1, so its payload waits for a notice: 2 D. Rank 0 has posted phase 2 by then, but for rank 1
    phase 2 began when its payload had left, at D, so its notice is there at 2 D too. 3 D in all.
    """
    assert run(uniform(2, rate=None), "gloo", 4).seconds == pytest.approx(3 * D, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("arm", ARMS)
def test_received_bytes(size, arm):
    nbytes = 12 * 350_208  # W slices, and W·P segments, without a rest
    times = size - 1 if arm == "whole" else 2 * (size - 1) / size
    assert run(uniform(size), arm, nbytes).received_bytes == (times * nbytes,) * size


def test_messages():
    """Gloo: two notices to a payload message, of which 30 at W=4 (the reference). Shard: a request to a cell."""
    assert run(uniform(4), "gloo", 16_867_332).messages == (90,) * 4
    assert run(uniform(4), "shard", 16_867_332).messages == (12,) * 4
    assert run(uniform(4), "shard", 4096).messages == (6,) * 4


def test_phases_and_peers():
    outcome = run(uniform(4), "shard", 3_000_000)
    transfer = (wire(750_000 + 6 * 64) * TWO_WAY - BURST) / RATE
    for rank in range(4):
        (phases,) = outcome.phases[rank]
        assert phases.publish == 0
        assert phases.phase1 == pytest.approx(2 * D + transfer, abs=5e-4)
        assert phases.phase2 == pytest.approx(transfer, abs=5e-4)
        (peers,) = outcome.peers[rank]
        assert sorted(peers) == [peer for peer in range(4) if peer != rank]
        for peer in peers.values():
            # First the contribution, a request and a delay after the start; last the end of the sum.
            assert peer.wait == pytest.approx(2 * D)
            assert peer.transfer == pytest.approx(D + 2 * transfer, abs=1e-3)
            assert peer.bytes == 2 * 750_000
    assert run(uniform(4), "gloo", 3_000_000).phases[0][0].phase2 is None
    assert run(uniform(4), "whole", 3_000_000).phases[0][0].phase1 == pytest.approx(outcome_end(uniform(4), "whole"))


def outcome_end(world, arm):
    return run(world, arm, 3_000_000).ends[0]


def test_memory():
    # The stage holds W-1 contributions to a slice; the sum is served in place.
    assert run(uniform(4), "shard", 4_000_000).memory == (3_000_000,) * 4
    # Gloo has two buffers of a segment: N = 8.
    assert run(uniform(4), "gloo", 4_000_000).memory == (1_000_000,) * 4


@pytest.mark.parametrize(("arm", "seconds"), [
    ("shard", 0.1 + 2 * 0.01),  # at W=2: one fold of half a tensor, two messages; all is served in place
    ("whole", 2 + 0.2 + 0.01),  # one copy and one fold of a tensor, one message
])
def test_costs_add_up(arm, seconds):
    costs = Costs(copy=1e-6, combine=1e-7, message=0.01)
    slower = all_reduce(*uniform(2, rate=None), arm, 2_000_000, costs=costs).seconds
    assert slower - run(uniform(2, rate=None), arm, 2_000_000).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_again_is_the_same_to_the_last_bit(arm):
    topology = load(TOPOLOGIES / "seattle-newyork-access.yaml")
    hosts = [host.name for host in topology.hosts]
    assert all_reduce(topology, hosts, arm, 4_200_000) == all_reduce(topology, hosts, arm, 4_200_000)


@pytest.mark.parametrize(("name", "head_start"), [
    ("lan", 0.003), ("seattle-newyork", 0.009), ("seattle-newyork-access", 0.009), ("uniform-access", 0.009),
    ("seattle-newyork-window", 0.08),
])
@pytest.mark.parametrize("arm", ARMS)
def test_nothing_beats_the_bytes_of_the_closed_form(name, head_start, arm):
    """But for bursts: 3 ms, three frames, or a window, that an idle link gives away at the start of a phase."""
    topology = load(TOPOLOGIES / f"{name}.yaml")
    hosts = [host.name for host in topology.hosts][:4]
    bytes_only = closed_form(topology, hosts, arm, 8_400_000) - closed_form(topology, hosts, arm, 0)
    assert all_reduce(topology, hosts, arm, 8_400_000).seconds > bytes_only - 2 * head_start


@pytest.mark.parametrize(("arm", "transfer", "delays"), [("gloo", 1.5, 6), ("shard", 0.5, 2), ("pipelined", 0.5, 2),
                                                         ("direct", 0.5, 2), ("whole", 1, 1)])
def test_the_closed_form(arm, transfer, delays):
    assert closed_form(*uniform(4), arm, 10**7) == pytest.approx(transfer * 1e7 / (RATE * 1448 / 1514) + delays * D)
    access = {"gloo": 1.5, "whole": 3}.get(arm, 1.5)
    world = uniform(4, rate=None, access=RATE)
    assert closed_form(*world, arm, 10**7) == pytest.approx(access * 1e7 / (RATE * 1448 / 1514) + delays * D)


@pytest.mark.parametrize(("chosen", "ring", "shard"), [((0, 1, 3), 32.1, 16.1), ((0, 1, 2, 3), 36.1, 12.05),
                                                        (range(6), 40.2, 8.03)])
def test_the_closed_form_of_the_founding_network(chosen, ring, shard):
    """DESIGN's table for 16.867 MB, whose 0.7 MB/s are payload, and which knows no delays."""
    topology = load(TOPOLOGIES / "seattle-newyork.yaml")
    hosts = [topology.hosts[i].name for i in chosen]
    for arm, seconds in (("gloo", ring), ("shard", shard)):
        one, two = (closed_form(topology, hosts, arm, n * 16_867_332) for n in (1, 2))
        assert (two - one) * SEGMENT / FRAME == pytest.approx(seconds, abs=0.05)


def test_a_rank_alone_takes_no_time():
    for arm in ARMS:
        assert run(uniform(1), arm, 1000).seconds == closed_form(*uniform(1), arm, 1000) == 0


def test_ranks_on_one_host_talk_for_free():
    topology, _ = uniform(2)
    assert run((topology, ["h0", "h0"]), "shard", 10**6).seconds == 0
    three = run((topology, ["h0", "h0", "h1"]), "whole", 900_000)
    # h1 gets two tensors over one path, and gives two over the other.
    assert three.seconds == pytest.approx(
        2 * D + (2 * wire(900_000 + 7 * 64) * TWO_WAY - BURST) / RATE, abs=1e-3)


def test_cold_connections_start_slowly():
    """A slice of 20 segments with its header, asked for at 0: 10 leave at D, and 10 at 3 D; they are there at 4 D.

    Of the sum 10 leave then, for 10 of the 20 allowed are in flight, and the other 10 at 5 D.
    """
    world = uniform(2, rate=None)
    warm, cold = run(world, "shard", 2 * 19 * SEGMENT), run(world, "shard", 2 * 19 * SEGMENT, cold=True)
    assert warm.seconds == pytest.approx(3 * D)
    assert cold.seconds == pytest.approx(6 * D)


@pytest.mark.parametrize(("arguments", "message"), [
    (("ring", 4), "no arm 'ring' in the simulator; it knows gloo, shard"),
    (("shard", 6), "6 bytes are no number of elements of 4 bytes"),
])
def test_what_cannot_be_simulated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        all_reduce(*uniform(2), *arguments)


def test_an_arm_without_a_closed_form_says_so():
    with pytest.raises(ValueError, match="no closed form for the arm 'faithful'"):
        closed_form(*uniform(2), "faithful", 4)


def test_a_collective_that_can_never_end_is_an_error(monkeypatch):
    def stuck(group, tensor, op):
        if group.rank:
            yield Read(("never",), 0, tensor)

    monkeypatch.setitem(ALL_REDUCE, "stuck", stuck)
    with pytest.raises(RuntimeError, match=r"stuck: ranks \[1, 2\] of 3 wait for ever"):
        run(uniform(3), "stuck", 1000)


@pytest.mark.parametrize("arm", ["gloo", "shard"])
def test_a_step_is_compute_around_the_exchange(arm):
    world = uniform(4)
    alone = run(world, arm, 4_200_000).seconds
    work = Workload((Bucket(4_200_000, ready=0.25),), forward=1, backward=0.5, optimiser=2)
    assert step(*world, arm, work, costs=FREE).seconds == pytest.approx(1 + 0.25 + alone + 2)
    hidden = Workload((Bucket(4_200_000, ready=0.25),), forward=1, backward=100, optimiser=2)
    assert step(*world, arm, hidden, costs=FREE).seconds == pytest.approx(103)


def test_two_buckets_share_the_paths():
    """DDP's two: shard keeps every path busy from the first request to the last byte, so their bytes add up."""
    world = uniform(4)
    buckets = Workload((Bucket(4_202_500), Bucket(12_664_832)))
    outcome = step(*world, "shard", buckets, costs=FREE)
    bytes_only = 2 / 4 * (4_202_500 + 12_664_832) / (RATE * SEGMENT / FRAME)
    assert bytes_only * TWO_WAY - 0.02 < outcome.seconds < bytes_only * TWO_WAY + 3 * D + 0.01
    assert outcome.received_bytes == pytest.approx([1.5 * 16_867_332] * 4, rel=1e-5)
    assert len(outcome.phases[0]) == 2


@pytest.mark.parametrize(("arm", "rounds"), [("gloo", 2), ("shard", 1)])
def test_gloo_has_two_collectives_under_way_and_no_more(arm, rounds):
    world = uniform(2, rate=None)
    alone = run(world, arm, 4096).seconds
    three = step(*world, arm, Workload((Bucket(4096),) * 3), costs=FREE)
    assert three.seconds == pytest.approx(rounds * alone)
