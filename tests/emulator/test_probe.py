"""Networks that the probe knows nothing about, on real packets: what it writes is what they are.

With ``-s`` each prints a table of truth and verdict; ``-m soak`` takes the shipped topologies whole.
"""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emulator.hosts.netns import Network
from emulator.probe.coordinate import Coordinator, ProbeError, over_pipes, probe
from emulator.probe.survey import BATCHES, ECHOES
from emulator.probe.write import Findings, topology_text
from emulator.topology import load

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


@dataclass
class Case:
    """A network, and what a probe should write of it, worked out by hand; MB/s at life size, None: no limit to see."""

    name: str
    hosts: list
    speedup: float
    rate: float | None
    """Of every path that `rates` does not name, by (source, target)."""
    rates: dict = field(default_factory=dict)
    access: dict = field(default_factory=dict)
    """(up, down) by host."""
    windows: object = frozenset()
    """Paths that are limited by 64 KiB a connection."""
    groups: dict = field(default_factory=dict)
    """Rate by the frozenset of paths."""
    text: str | None = None


AI, GATEWAY, SECOND, NEWYORK, NEWYORK_2, CHICAGO = ALL = [
    "seattle-ai", "seattle-gateway", "seattle-2", "newyork-1", "newyork-2", "chicago-1"]
LAN = {(AI, GATEWAY): 30, (GATEWAY, AI): 30}


def paths(sources, targets):
    return frozenset((one, other) for one in sources for other in targets if one != other)


UPLINK = """\
name: uplink
sites: [s, t]
hosts: {a: {site: s}, b: {site: s}, c: {site: t}, d: {site: t}}
defaults: {rate: 2 MB/s}
paths:
  - {between: [s, s], delay: 5 ms}
  - {between: [t, t], delay: 5 ms}
  - {between: [s, t], delay: 20 ms}
groups: {uplink: {rate: 3 MB/s, paths: [{from: s, to: t}]}}
"""
MIXED = """\
name: mixed
sites: [s, t]
hosts: {a: {site: s}, b: {site: s, access: {down: 2 MB/s}}, c: {site: t}, d: {site: t}}
defaults: {rate: 1.4 MB/s}
paths:
  - {between: [s, s], delay: 5 ms}
  - {between: [t, t], delay: 5 ms}
  - {between: [s, t], delay: 20 ms}
  - {from: c, to: a, rate: unlimited, window: 64 KiB}
"""

SMALL = [
    Case("lan", ["lab-1", "lab-2", "lab-3"], 1, 125),
    Case("seattle-newyork", [AI, GATEWAY, NEWYORK], 5, 0.7, LAN),
    # Nothing is as fast as the fast host's access: it cannot be seen here.
    Case("seattle-newyork-access", [AI, SECOND, NEWYORK], 10, None, access={SECOND: (0.7, 0.7), NEWYORK: (0.7, 0.7)}),
    Case("seattle-newyork-window", [SECOND, NEWYORK, CHICAGO], 10, None,
         windows=paths([SECOND, NEWYORK, CHICAGO], [SECOND, NEWYORK, CHICAGO])),
    Case("uniform-access", [AI, SECOND, NEWYORK], 10, None, access=dict.fromkeys([AI, SECOND, NEWYORK], (0.7, 0.7))),
    Case("uplink", list("abcd"), 10, 2, groups={paths("ab", "cd"): 3}, text=UPLINK),
    Case("mixed", list("abcd"), 10, 1.4, {("c", "a"): None}, access={"b": (None, 2)}, windows={("c", "a")}, text=MIXED),
]
SEATTLE, REST = [AI, GATEWAY, SECOND], [NEWYORK, NEWYORK_2, CHICAGO]
WHOLE = [
    Case("lan", [f"lab-{number}" for number in range(1, 7)], 1, 125),
    Case("seattle-newyork", ALL, 10, 0.7, LAN),
    Case("seattle-newyork-access", ALL, 1, None,      # faster, the fast accesses are as fast as the machine
         access={AI: (30, 30), GATEWAY: (30, 30), **dict.fromkeys([SECOND, *REST], (0.7, 0.7))}),
    Case("seattle-newyork-window", ALL, 10, None, LAN, windows=paths(ALL, ALL) - {*LAN}),
    Case("uniform-access", ALL, 10, None, access=dict.fromkeys(ALL, (0.7, 0.7))),
    # Chicago has one host, whose uplink is no other than its access.
    Case("shared-uplink", ALL, 2, None, {
        **dict.fromkeys(paths(SEATTLE, SEATTLE) | paths([NEWYORK, NEWYORK_2], [NEWYORK, NEWYORK_2]), 10)},
        access={CHICAGO: (2.1, 2.1)},
        groups={paths(SEATTLE, REST): 2.1, paths(REST, SEATTLE): 2.1,
                paths([NEWYORK, NEWYORK_2], [*SEATTLE, CHICAGO]): 2.1,
                paths([*SEATTLE, CHICAGO], [NEWYORK, NEWYORK_2]): 2.1}),
]


def truth(case, room):
    file = TOPOLOGIES / f"{case.name}.yaml"
    if case.text is not None:
        file = room / f"{case.name}.yaml"
        file.write_text(case.text)
    return load(file).select(case.hosts)


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_a_small_network_is_told(case, tmp_path):
    check(case, tmp_path)


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_a_shipped_network_is_told_whole(case, tmp_path):
    check(case, tmp_path)


def check(case, room):
    true = truth(case, room)
    with Network(true, f"probe-{case.name[:20]}-{os.getpid()}", speedup=case.speedup) as network:
        findings = Findings(*probe(network))
    for trial in findings.survey.trials:
        if len(trial.flows) > 1:
            print(f"{trial.kind}, busy {trial.busy:.2f}:",
                  *(f"{flow.source} -> {flow.target} {flow.rate / 1e6:.3f}" for flow in trial.flows))
    (room / "found.yaml").write_text(topology_text(case.name, findings))
    found = load(room / "found.yaml")
    print(f"\n{case.name}, {len(case.hosts)} hosts, k = {case.speedup:g}")
    print(*(f"{source} -> {target}: {findings.reason((source, target))}" for source, target in findings.verdicts),
          sep="\n")

    def megabytes(rate):
        return None if rate is None else rate / 1e6

    rows = [(f"{path.source} -> {path.target}", case.rates.get((path.source, path.target), case.rate),
             megabytes(path.rate)) for path in found.paths]
    for host in found.hosts:
        up, down = case.access.get(host.name, (None, None))
        rows += [(f"{host.name} up", up, megabytes(host.up)), (f"{host.name} down", down, megabytes(host.down))]
    shares = {group.paths: megabytes(group.rate) for group in found.groups}
    rows += [(f"group of {len(members)} paths", case.groups.get(members), shares.get(members))
             for members in {*case.groups, *shares}]
    print(*(f"{what:40} truth {expected!s:>6} MB/s, found {seen!s:>8}" for what, expected, seen in rows), sep="\n")
    wrong = [row for row in rows if (row[1] is None) != (row[2] is None)
             or (row[1] is not None and row[2] != pytest.approx(row[1], rel=0.03))]
    assert wrong == []
    assert {(path.source, path.target): path.window for path in found.paths if path.window} == dict.fromkeys(
        case.windows, 65536)
    # Echoes are late by a fraction of a millisecond by the clock, more on a busy machine.
    late = 1e-3 * case.speedup
    assert [(path.source, path.target, path.delay, found.path(path.source, path.target).delay) for path in true.paths
            if not abs(found.path(path.source, path.target).delay - path.delay) <= late] == []




def test_the_peer_needs_the_standard_library_alone():
    code = ("import emulator.probe.peer, sys; "
            "print([m for m in ('torch', 'numpy', 'networkx', 'pydantic', 'yaml') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.fixture
def peers():
    """Two peers on this machine's loopback, which measure nothing here: it is what they say that is tested."""
    programs = {name: subprocess.Popen([sys.executable, "-m", "emulator.probe.peer"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE) for name in "ab"}
    yield {name: over_pipes(program, name) for name, program in programs.items()}
    for program in programs.values():
        program.stdin.close()
        assert program.wait(60) == 0
        program.stdout.close()


def opened(peers):
    for channel in peers.values():
        channel.send({"do": "open", "address": "127.0.0.1", "secret": "00" * 16})
    return {name: channel.receive(60)["port"] for name, channel in peers.items()}


def ask(channel, **message):
    channel.send(message)
    return channel.receive(60)


def test_a_connection_without_a_token_of_the_trial_is_dropped(peers):
    port = opened(peers)["b"]
    assert ask(peers["b"], do="expect", tokens=["11" * 16]) == {}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        stranger.sendall(b"\x22" * 16)
        assert stranger.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as friend:
        friend.sendall(b"\x11" * 16 + bytes(100_000))
        friend.settimeout(0.3)
        with pytest.raises(TimeoutError):
            friend.recv(1)
        # A token serves once.
        with socket.create_connection(("127.0.0.1", port), timeout=60) as second:
            second.sendall(b"\x11" * 16)
            assert second.recv(1) == b""


def test_only_who_knows_the_secret_gets_an_echo(peers):
    port = opened(peers)["a"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.3)
        sock.sendto(b"\x01" * 20, ("127.0.0.1", port))
        with pytest.raises(TimeoutError):
            sock.recv(64)
        sock.settimeout(60)
        sock.sendto(bytes(20), ("127.0.0.1", port))
        assert sock.recv(64) == bytes(20)


def test_what_a_peer_cannot_do_is_said_with_its_name(peers):
    opened(peers)
    answer = ask(peers["a"], do="connect", flows=[{"flow": 0, "address": "127.0.0.1", "port": 1, "tokens": ["00"]}])
    assert "ConnectionRefusedError" in answer["error"]
    assert "KeyError" in ask(peers["a"], do="dance")["error"]
    # TEST-NET-1 (RFC 5737) is nobody's address.
    with pytest.raises(ProbeError, match=r"b could not open: OSError: .*Cannot assign"):
        Coordinator(peers, {"a": "127.0.0.1", "b": "192.0.2.1"}).probe()


def test_two_peers_measure_each_other_and_the_machine(peers):
    survey, known = Coordinator(peers, dict.fromkeys("ab", "127.0.0.1")).probe()
    one, other = survey.hosts
    assert one.machine == other.machine
    assert one.loopback == other.loopback > 1e6
    assert [len(seconds) for seconds in survey.echoes.values()] == [ECHOES]
    assert [(trial.kind, flow.pair, flow.connections, len(flow.goodput)) for trial in survey.trials
            for flow in trial.flows] == [("one connection", ("a", "b"), 1, BATCHES),
                                         ("two connections", ("a", "b"), 2, BATCHES),
                                         ("one connection", ("b", "a"), 1, BATCHES),
                                         ("two connections", ("b", "a"), 2, BATCHES)]
    assert Findings(survey, known).own_rate(("a", "b")) is None      # the machine's loopback is no path's limit
