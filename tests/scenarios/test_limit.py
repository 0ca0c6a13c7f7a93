"""The linear programme against limits that are known in closed form, or were worked out in its flow form."""

from pathlib import Path

import pytest

from emulator.topology import load
from scenarios.limit import MOST, slope

ROOT = Path(__file__).parents[2]
PAYLOAD = 1448 / 1514
GRADIENTS = 16.867332      # MB


def network(tmp_path, hosts, paths, groups=""):
    text = "name: made\nsites: [here]\nhosts:\n" + "".join(f"  {name}: {{site: here{own}}}\n" for name, own in hosts)
    (tmp_path / "made.yaml").write_text(f"{text}defaults: {{delay: 1 ms}}\npaths:\n{paths}{groups}")
    return load(tmp_path / "made.yaml")


def names(size):
    return [f"h{index}" for index in range(size)]


@pytest.mark.parametrize(("size", "seconds"), [(3, 12.05), (4, 9.64), (6, 6.88)])
def test_one_fast_pair_among_slow_paths(tmp_path, size, seconds):
    # DESIGN's table: 16.867 MB, hosts 0 and 1 near at 30 MB/s, all else 0.7 MB/s, headers apart.
    topology = network(tmp_path, [(name, "") for name in names(size)],
                       "  - {between: [here, here], rate: 0.7 MB/s}\n  - {between: [h0, h1], rate: 30 MB/s}\n")
    found = slope(topology, names(size))
    assert found * GRADIENTS * 1e6 * PAYLOAD == pytest.approx(seconds, abs=0.006)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_accesses_two_of_them_fast(tmp_path, size):
    # DESIGN's table: 24.1 s at every W: each slow host takes the whole result in once, and sends its own out once.
    slow, fast = ", access: {up: 0.7 MB/s, down: 0.7 MB/s}", ", access: {up: 30 MB/s, down: 30 MB/s}"
    topology = network(tmp_path, [(name, fast if index < 2 else slow) for index, name in enumerate(names(size))],
                       "  - {between: [here, here]}\n")
    assert slope(topology, names(size)) * GRADIENTS * 1e6 * PAYLOAD == pytest.approx(24.1, abs=0.05)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_equal_paths_and_equal_accesses(tmp_path, size):
    # Equal paths of B: 2/(W·B), which shard reaches. Equal accesses of B: 2(W-1)/(W·B), which ring and shard reach.
    per_path = network(tmp_path, [(name, "") for name in names(size)], "  - {between: [here, here], rate: 1 MB/s}\n")
    assert slope(per_path, names(size)) * 1e6 * PAYLOAD == pytest.approx(2 / size)
    access = network(tmp_path, [(name, ", access: {up: 1 MB/s, down: 1 MB/s}") for name in names(size)],
                     "  - {between: [here, here]}\n")
    assert slope(access, names(size)) * 1e6 * PAYLOAD == pytest.approx(2 * (size - 1) / size)


def test_a_group_between_two_sites(tmp_path):
    # Two and two hosts; each direction between them shares 1 MB/s, which must carry every byte at least once.
    def shared(name, sources, targets):
        paths = ", ".join(f"{{from: h{a}, to: h{b}}}" for a in sources for b in targets)
        return f"  {name}: {{rate: 1 MB/s, paths: [{paths}]}}\n"

    topology = network(tmp_path, [(name, "") for name in names(4)], "  - {between: [here, here]}\n",
                       "groups:\n" + shared("east", (0, 1), (2, 3)) + shared("west", (2, 3), (0, 1)))
    assert slope(topology, names(4)) * 1e6 * PAYLOAD == pytest.approx(1.0)


def test_a_window_is_a_rate(tmp_path):
    topology = network(tmp_path, [(name, "") for name in names(2)], "  - {between: [here, here], window: 65535 B}\n")
    assert slope(topology, names(2)) == pytest.approx(2e-3 / 65535)      # 1 byte each way over window ÷ RTT


def test_nothing_is_stated_without_limits_or_with_too_many_cuts(tmp_path):
    topology = network(tmp_path, [(name, "") for name in names(MOST + 1)], "  - {between: [here, here]}\n")
    assert slope(topology, names(3)) is None
    limited = network(tmp_path, [(name, "") for name in names(MOST + 1)], "  - {between: [here, here], rate: 1 MB/s}\n")
    assert slope(limited, names(MOST + 1)) is None
    assert slope(limited, ["h0", "h0"]) is None


def test_no_arm_is_below_it_on_the_shipped_networks():
    from scenarios.theory import theory

    for name in ("seattle-newyork", "uniform-access", "seattle-newyork-window"):
        topology = load(ROOT / f"topologies/{name}.yaml")
        for size in (2, 3, 4, 6):
            hosts = [host.name for host in topology.hosts][:size]
            for arm in ("gloo", "shard"):
                assert theory(topology, hosts, arm).slope >= slope(topology, hosts) * (1 - 1e-9)
