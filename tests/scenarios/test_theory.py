from itertools import permutations

import pytest

from emulator.topology import Host, Path, Topology
from scenarios.theory import ratio, theory

S = 16.867e6
FRAMES = 1514 / 1448
SLOW = 0.7e6 * FRAMES  # link-layer rate whose goodput is 0.7 MB/s
FAST = 30e6 * FRAMES


def network(size, path=lambda source, target: {}, access=lambda host: {}):
    """Hosts "0" to size-1; `path` and `access` say what limits them."""
    hosts = tuple(Host(str(index), "site", **access(index)) for index in range(size))
    paths = [Path(str(one), str(other), **{"rate": None, "delay": 0.035, **path(one, other)})
             for one, other in permutations(range(size), 2)]
    return Topology("test", "test.yaml", hosts, paths, (), "cubic", ""), [host.name for host in hosts]


def per_path(one, other):
    """Hosts 0 and 1 are near, everything else is slow."""
    return {"rate": FAST if {one, other} == {0, 1} else SLOW}


# DESIGN's table for 16.867 MB at 0.7 MB/s.
@pytest.mark.parametrize(("size", "ring", "shard"), [(3, 32.1, 16.1), (4, 36.1, 12.05), (6, 40.2, 8.03)])
def test_limits_per_path(size, ring, shard):
    topology, hosts = network(size, per_path)
    assert theory(topology, hosts, "gloo").slope * S == pytest.approx(ring, abs=0.06)
    assert theory(topology, hosts, "shard").slope * S == pytest.approx(shard, abs=0.06)
    assert theory(topology, hosts, "shard").limit == "path"
    assert theory(topology, hosts, "shard").goodput == pytest.approx(0.7e6)
    assert ratio(topology, hosts) == pytest.approx(size - 1)


@pytest.mark.parametrize(("size", "both"), [(2, 24.1), (3, 32.1), (4, 36.1), (6, 40.2)])
def test_limits_at_equal_accesses(size, both):
    topology, hosts = network(size, access=lambda host: {"up": SLOW, "down": SLOW})
    for arm in ("gloo", "shard", "pipelined", "direct"):
        assert theory(topology, hosts, arm).slope * S == pytest.approx(both, rel=2e-3)
        assert theory(topology, hosts, arm).limit == "access"
    assert ratio(topology, hosts) == pytest.approx(1)


def test_unequal_accesses_state_the_ring_alone():
    rates = [FAST, FAST, SLOW, SLOW]
    topology, hosts = network(4, access=lambda host: {"up": rates[host], "down": rates[host]})
    assert theory(topology, hosts, "gloo").slope * S == pytest.approx(36.1, rel=2e-3)
    assert theory(topology, hosts, "shard") is None
    assert ratio(topology, hosts) is None


def test_two_hosts_with_unequal_accesses_share_nothing():
    topology, hosts = network(2, access=lambda host: {"up": [FAST, SLOW][host], "down": [FAST, SLOW][host]})
    assert theory(topology, hosts, "shard").slope * S == pytest.approx(24.1, rel=2e-3)
    assert ratio(topology, hosts) == pytest.approx(1)


def test_an_access_wide_enough_for_every_slow_path_does_not_bind():
    topology, hosts = network(4, lambda *_: {"rate": SLOW}, lambda host: {"up": 3.1 * SLOW, "down": 3.1 * SLOW})
    assert theory(topology, hosts, "shard").limit == "path"
    assert ratio(topology, hosts) == pytest.approx(3)


def test_an_access_for_one_and_a_half_paths_is_between():
    # Ring: one flow a host, at the path's 0.7. Shard: three flows share 1.05, so 0.35 each: half the path's rate.
    topology, hosts = network(4, lambda *_: {"rate": SLOW}, lambda host: {"up": 1.5 * SLOW, "down": 1.5 * SLOW})
    assert theory(topology, hosts, "gloo").limit == "path"
    assert theory(topology, hosts, "shard").limit == "access"
    assert ratio(topology, hosts) == pytest.approx(1.5)


def test_a_window_limits_each_connection_to_window_per_round_trip():
    # 49,000 bytes in 2 × 35 ms: 0.7 MB/s of payload, headers apart.
    topology, hosts = network(4, lambda *_: {"window": 49_000})
    assert theory(topology, hosts, "shard").limit == "window"
    assert theory(topology, hosts, "shard").slope * S == pytest.approx(12.05, rel=2e-3)
    assert ratio(topology, hosts) == pytest.approx(3)


def test_the_ring_sends_to_the_rank_before():
    # Only 0 -> 1 is slow: the ring of three goes 0 -> 2 -> 1 -> 0 and never takes it.
    topology, hosts = network(3, lambda one, other: {"rate": SLOW if (one, other) == (0, 1) else FAST})
    assert theory(topology, hosts, "gloo").goodput == pytest.approx(30e6)
    assert theory(topology, hosts, "shard").goodput == pytest.approx(0.7e6)
    assert theory(topology, [hosts[0], hosts[2], hosts[1]], "gloo").goodput == pytest.approx(0.7e6)


def test_nothing_is_stated_of_what_bytes_do_not_decide():
    topology, hosts = network(3, lambda *_: {"rate": SLOW, "loss": 0.01})
    assert theory(topology, hosts, "gloo") is None
    topology, hosts = network(3, lambda *_: {"rate": SLOW})
    assert theory(topology, ["0", "0", "1"], "gloo") is None     # two ranks on a host
    assert theory(topology, hosts, "whole") is None
    assert theory(*network(3), "gloo") is None                   # nothing is limited
