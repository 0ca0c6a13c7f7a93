"""Paths that share one bottleneck, on real packets."""

import os

import pytest
from patience import assert_becomes

from emulator.hosts.netns import Network
from emulator.links import shaping
from emulator.links.fidelity import expected_goodput, schedule
from emulator.links.flows import together
from emulator.topology import TopologyError, load

PAYLOAD = 1448 / 1514
ENGINES = ("nfqueue", "tun")


@pytest.fixture
def world(tmp_path):
    def made(groups, hosts="", paths="  - {between: [west, east], delay: 5 ms}\n"):
        file = tmp_path / "world.yaml"
        hosts = hosts or "".join(f"  {name}: {{site: {site}}}\n" for site, names in (("west", "abc"), ("east", "xyz"))
                                 for name in names)
        file.write_text("name: world\nsites: [west, east]\ndefaults: {delay: 1 ms}\n"
                        f"hosts:\n{hosts}paths:\n  - {{between: [west, west]}}\n  - {{between: [east, east]}}\n{paths}"
                        f"groups:\n{groups}")
        return load(file)
    return made


ADDRESS = {host: f"10.0.0.{number}" for number, host in enumerate("axybcz", start=1)}
PORTS = {host: f"p{number}" for number, host in enumerate("axybcz")}
UPLINK = "  uplink: {rate: 6 MB/s, paths: [{from: west, to: east}]}\n"


def test_a_group_is_a_device_that_its_paths_are_led_through(world):
    small = world("  trunk: {rate: 6 MB/s, paths: [{from: a, to: x}, {from: a, to: y}]}\n")
    lines = shaping.group(small, "trunk", "g0", ADDRESS)
    # The two paths borrow what they send from the 6 MB/s.
    assert [line.split(" burst")[0] for line in lines if line.startswith("class")] == [
        "class add dev g0 parent 1: classid 1:fff htb rate 6000000bps ceil 6000000bps",
        "class add dev g0 parent 1:fff classid 1:1 htb rate 25bps ceil 6000000bps",
        "class add dev g0 parent 1:fff classid 1:2 htb rate 25bps ceil 6000000bps",
    ]
    assert [line.split("u32 ")[1] for line in lines if line.startswith("filter")] == [
        "match ip src 10.0.0.1/32 match ip dst 10.0.0.2/32 flowid 1:1",
        "match ip src 10.0.0.1/32 match ip dst 10.0.0.3/32 flowid 1:2",
    ]
    assert shaping.detours(small, PORTS, {"trunk": "g0"}, ADDRESS) == [
        "qdisc add dev p0 clsact",
        "filter add dev p0 ingress protocol ip prio 1 u32 match ip dst 10.0.0.2/32 "
        "action mirred egress redirect dev g0",
        "filter add dev p0 ingress protocol ip prio 1 u32 match ip dst 10.0.0.3/32 "
        "action mirred egress redirect dev g0",
    ]


def test_a_path_of_two_groups_takes_the_second_where_it_goes_out(world):
    small = world("  up: {rate: 6 MB/s, paths: [{from: a, to: x}]}\n  in: {rate: 4 MB/s, paths: [{from: a, to: x}]}\n")
    lines = shaping.detours(small, PORTS, {"up": "g0", "in": "g1"}, ADDRESS)
    assert [[*line.split()[3:5], line.split()[-1]] for line in lines if line.startswith("filter")] == [
        ["p0", "ingress", "g0"], ["p1", "egress", "g1"]]


def test_a_path_of_three_groups_is_refused(world):
    groups = "".join(f"  g{i}: {{rate: 6 MB/s, paths: [{{from: a, to: x}}]}}\n" for i in range(3))
    with pytest.raises(TopologyError, match=r"world.yaml:\d+: path a -> x is in 3 groups \(g0, g1, g2\)"):
        shaping.refuse(world(groups))


def test_paths_that_meet_in_a_group_are_measured_one_after_another(world):
    six = world(UPLINK)
    for paths in schedule(six, six.paths):
        # Whoever goes west to east has the group on the way there, whoever goes east to west on the way back.
        assert sum(path.source in "abc" and path.target in "xyz" for path in paths) \
            + sum(path.source in "xyz" and path.target in "abc" for path in paths) <= 1
    assert expected_goodput(six, six.path("a", "x")) == pytest.approx(6e6 * PAYLOAD)
    assert expected_goodput(six, six.path("x", "a")) is None
    both = world("  radio: {rate: 6 MB/s, paths: [{between: [west, east]}]}\n")
    assert expected_goodput(both, both.path("a", "x")) is None      # its acknowledgements take some of it


def assert_shares(network, expected, *pairs):
    """Of each flow, and of all together, in MB/s at the link."""
    def shares():
        found = [goodput / PAYLOAD / 1e6
                 for goodput in together(network, [network.shaped.path(*pair) for pair in pairs], 0.3, 1.5)]
        return [*found, sum(found)]

    assert_becomes(pytest.approx(expected, rel=0.02), shares)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_three_flows_share_a_group_and_an_access(world, engine):
    limited = world(UPLINK, hosts="  a: {site: west, access: {up: 3 MB/s}}\n  b: {site: west}\n  c: {site: west}\n"
                                  "  x: {site: east}\n  y: {site: east, access: {down: 4.5 MB/s}}\n  z: {site: east}\n")
    with Network(limited, f"group-{engine}-{os.getpid()}", engine=engine) as network:
        # One group, three hosts at either end; then what one host may send; then what one may receive.
        assert_shares(network, [2, 2, 2, 6], ("a", "x"), ("b", "y"), ("c", "z"))
        assert_shares(network, [1, 1, 1, 3], ("a", "x"), ("a", "y"), ("a", "z"))
        assert_shares(network, [1.5, 1.5, 1.5, 4.5], ("a", "y"), ("b", "y"), ("c", "y"))


@pytest.mark.root
@pytest.mark.slow
def test_a_path_of_two_groups_has_the_lesser_rate(world):
    double = world(UPLINK + "  to-x: {rate: 3 MB/s, paths: [{from: west, to: x}]}\n")
    with Network(double, f"groups-{os.getpid()}") as network:
        assert_shares(network, [1.5, 1.5, 3], ("a", "x"), ("b", "x"))
        # What the flows to x leave of the uplink is another's: 6 - 3.
        assert_shares(network, [1.5, 1.5, 3, 6], ("a", "x"), ("b", "x"), ("c", "z"))
