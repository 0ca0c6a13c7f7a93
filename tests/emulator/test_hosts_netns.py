"""Hosts come up, do what they should, and go, all of them and nothing else, after any end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from observer import private_network

from emulator.hosts import ledger, netns
from emulator.hosts.netns import Network, down, runs
from emulator.links import calibration, engines, shaping
from emulator.links.namespace import LinkError
from emulator.topology import TopologyError, load

RUN = f"t{os.getpid()}"

# Brings a network up in a process that is killed at the command given by number, just when that has got its input: it
# is still at work when its starter is gone. Number 0 is when the name is claimed, and nothing written down yet; -1 is
# when all is up, and -2 when it is being taken down.
DOOMED = """
import os, signal, subprocess, sys
from emulator.hosts import ledger
from emulator.hosts.netns import Network
from emulator.topology import load

file, run, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)

class Counted(subprocess.Popen):
    number = 0

    def __init__(self, command, **options):
        super().__init__(command, **options)
        # Trials of what the machine can do come before the run exists, and are not counted.
        Counted.number += ledger.ROOM.joinpath(run).exists()
        self.last = Counted.number == moment
        if self.last and "delayd" in str(command):
            die()

    def communicate(self, text=None, timeout=None):
        if self.last or moment == -2 and "netns del" in (text or ""):
            self.stdin.write(text)
            self.stdin.close()
            die()
        return super().communicate(text, timeout)

if moment == 0:
    ledger.File.touch = die
subprocess.Popen = Counted
network = Network(load(file), run)
network.up()
if os.fork() == 0:       # a rank that is still there when its runner is gone
    network.enter("b")
    print("up", flush=True)
    signal.pause()
if moment == -2:
    network.down()
signal.pause()
"""


@pytest.fixture
def world(tmp_path):
    return written(tmp_path, "  - {between: [s, s], delay: 5 ms, rate: 10 MB/s}\n")


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    down(RUN)


def written(tmp_path, paths, more=""):
    file = tmp_path / "world.yaml"
    file.write_text(f"name: world\nsites: [s]\nhosts:\n  a: {{site: s}}\n  b: {{site: s}}\n  c: {{site: s}}\n"
                    f"paths:\n{paths}{more}")
    return load(file)


def namespaces():
    return {line.split()[0] for line in subprocess.check_output(["ip", "netns"], text=True).splitlines()}


def ours():
    return {name for name in namespaces() if name.startswith(f"ft-{RUN}-")}


def delay_processes():
    """Those that this process has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"delayd" in (process / "cmdline").read_bytes():
                found.append(process.name)
        except (FileNotFoundError, ProcessLookupError):
            continue      # it has ended meanwhile
    return found


def in_host(network, host, action):
    """What `action` returns, as JSON, in a process of its own in the host."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            network.enter(host)
            os.write(write, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return json.loads(answer.read())


@pytest.mark.root
def test_hosts_come_up_with_names_and_addresses_of_their_own(world):
    with private_network(), Network(world, RUN) as network:
        assert ours() == {f"ft-{RUN}-{i}" for i in ("hub", 0, 1, 2)}
        assert [name for _, name in socket.if_nameindex()] == ["lo"]      # where it was made from nothing was
        assert RUN in runs()
        assert len({network.address(host) for host in "abc"}) == 3
        assert network.stamp["engine"] in engines.ENGINES
        assert network.stamp["congestion"] == "cubic"
        network.check()
    assert not ours()
    assert RUN not in runs()
    network.down()


@pytest.mark.root
def test_a_process_that_enters_sees_only_its_host(world):
    with Network(world, RUN, speedup=5) as network:
        names, routes = in_host(network, "b", lambda: (
            [name for _, name in socket.if_nameindex()],
            subprocess.check_output(["ip", "route"], text=True)))
        assert set(names) == {"lo", network.device}
        assert "default" not in routes
        # One route a peer, and the least retransmission timeout, 200 ms, shortened as time is.
        assert re.findall(r"^(\S+) .*congctl cubic", routes, re.M) == [network.address("a"), network.address("c")]
        assert routes.count("rto_min lock 40ms") == 2 or routes.count("rto_min 40ms") == 2


@pytest.mark.root
def test_a_rank_that_fails_does_not_take_the_network_down(world):
    with Network(world, RUN) as network:
        child = os.fork()
        if child == 0:
            try:
                network.__exit__(ValueError, ValueError(), None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert len(ours()) == 4
        network.check()


@pytest.mark.root
def test_a_run_is_up_once(world):
    with Network(world, RUN) as network:
        with pytest.raises(LinkError, match=f"run {RUN} is up already"):
            Network(world, RUN).up()
        network.check()      # and the attempt did it no harm
        assert len(ours()) == 4


@pytest.mark.root
def test_a_foreign_namespace_of_such_a_name_is_refused_and_kept(world):
    foreign = f"ft-{RUN}-1"
    subprocess.check_call(["ip", "netns", "add", foreign])
    try:
        with pytest.raises(LinkError, match=f"{foreign} exists"):
            Network(world, RUN).up()
        assert down(RUN) == []
        assert ours() == {foreign}
    finally:
        subprocess.check_call(["ip", "netns", "del", foreign])


@pytest.mark.root
def test_what_is_half_made_is_taken_back(world, monkeypatch):
    real = shaping.up

    def broken(topology, host, *where):
        return real(topology, host, *where) if host != "c" else ["qdisc add dev eth0 root handle 1: nonsense"]

    monkeypatch.setattr(shaping, "up", broken)
    with pytest.raises(LinkError, match=r"tc -batch(?s:.*)qdisc add dev eth0 root handle 1: nonsense"):
        Network(world, RUN).up()
    assert not ours()
    assert RUN not in runs()


@pytest.mark.root
def test_an_interrupt_on_the_way_up_leaves_nothing(world, monkeypatch):
    def interrupted(network):
        network.engine.up(network.shaped)
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "calibrate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Network(world, RUN).up()
    assert not ours()
    assert not delay_processes()


@pytest.mark.root
@pytest.mark.parametrize("moment", [0, 1, 4, 7, 10, 13, -1, -2])
def test_down_after_a_kill_leaves_nothing_and_touches_nothing_else(world, moment):
    foreign = f"ft-{RUN}x-0"      # begins like ours, and is not
    subprocess.check_call(["ip", "netns", "add", foreign])
    inside = ["ip", "netns", "exec", foreign]
    subprocess.check_call([*inside, "tc", "qdisc", "add", "dev", "lo", "root", "handle", "7:", "htb"])
    subprocess.check_call([*inside, "iptables", "-A", "INPUT", "-s", "203.0.113.1", "-j", "DROP"])
    guest = subprocess.Popen([*inside, "sleep", "600"])
    try:
        maker = subprocess.Popen([sys.executable, "-c", DOOMED, world.file, RUN, str(moment)],
                                 stdout=subprocess.PIPE, text=True)
        if moment < 0:
            assert maker.stdout.readline() == "up\n"
        if moment == -1:
            maker.kill()
        assert maker.wait(200) == -signal.SIGKILL
        maker.stdout.close()
        removed = down(RUN)
        assert removed or moment in (0, -2)      # what it was told to do when it was killed may be done
        if moment == -1:
            assert any(line.startswith("process") and f"ft-{RUN}-1" in line for line in removed)
        assert down(RUN) == []
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:      # nobody who was still at work brings anything back
            assert not ours()
            time.sleep(0.1)
        assert RUN not in runs()
        assert not Path(ledger.ROOM, RUN).exists()
        assert foreign in namespaces()
        assert guest.poll() is None
        assert "htb 7:" in subprocess.check_output([*inside, "tc", "qdisc", "show", "dev", "lo"], text=True)
        assert "203.0.113.1" in subprocess.check_output([*inside, "iptables", "-S"], text=True)
    finally:
        guest.kill()
        guest.wait()
        subprocess.check_call(["ip", "netns", "del", foreign])


@pytest.mark.root
def test_a_dead_delay_process_is_noticed_and_named(world):
    with Network(world, RUN, engine="nfqueue") as network:
        victim, = ledger.members(f"ft-{RUN}-1")
        os.kill(victim, signal.SIGKILL)
        while ledger.members(f"ft-{RUN}-1"):
            time.sleep(0.01)
        with pytest.raises(LinkError, match=rf"host b: the delay process \(pid {victim}\) ended with code -9"):
            network.check()


def test_a_window_that_tcp_cannot_have_is_refused(tmp_path):
    world = written(tmp_path, "  - {between: [s, s], delay: 5 ms, window: 100 kB}\n")
    with pytest.raises(TopologyError, match=r"world.yaml:8: .* window of 100000 bytes \(a -> b\).* 64 KiB, 128 KiB"):
        netns.refuse(world, ["a", "b"])


def test_without_root_one_sentence_says_so(world, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LinkError, match=r"needs root, or .*; run the same command with sudo"):
        Network(world, RUN).up()


def test_a_missing_program_is_named_with_its_package(world, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LinkError, match=r"the program ip is missing; install it \(apt install iproute2\)"):
        Network(world, RUN).up()


def test_an_unknown_engine_is_refused(world):
    with pytest.raises(ValueError, match="no delay engine 'netm'; there are auto, netem, nfqueue, tun"):
        engines.choose("netm")


@pytest.mark.parametrize("name", ["", "a/b", "Run", "a-", "-a", "x" * 41, ".."])
def test_names_that_are_no_names(world, name):
    with pytest.raises(ValueError, match="is no name for a run"):
        Network(world, name)


@pytest.mark.root
def test_a_run_in_use_goes_only_by_its_name(world):
    with Network(world, RUN):
        assert any(f"run {RUN} is in use" in line for line in netns.down())
        assert ours()
        netns.down(RUN)
        assert not ours()
