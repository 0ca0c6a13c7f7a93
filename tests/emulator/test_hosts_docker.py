"""Hosts as containers: what they are, that their links are those of namespaces, and that nothing stays."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import assert_becomes

from emulator.ethernet import PAYLOAD
from emulator.hosts import behind_doors, upkeep
from emulator.links.fidelity import goodputs
from emulator.links.namespace import LinkError
from emulator.topology import TopologyError, load

docker = pytest.importorskip("docker")
from emulator.hosts import containers  # noqa: E402

ROOT = Path(__file__).parents[2]
RUN = f"d{os.getpid()}"

# Brings a network up in a process that is killed at the moment given by number: before a request to the daemon (odd),
# or while the daemon carries one out (even); or when all is up (-1); or when it has taken one container down (-2).
DOOMED = """
import os, signal, sys, threading, time
from emulator.hosts import containers
from emulator.topology import load

file, run, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
making, number = containers._Docker._making, 0

def counted(docker, kind, name):
    global number
    number += 1
    if number == (moment + 1) // 2:
        if moment % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=lambda: (time.sleep(0.02), os.kill(os.getpid(), signal.SIGKILL))).start()
    return making(docker, kind, name)

containers._Docker._making = counted
network = containers.Network(load(file), run)
network.up()
program = network.spawn("b", ["sleep", "600"])
print("up", flush=True)
if moment == -2:
    gone = containers._gone
    containers._gone = lambda *what, **how: (gone(*what, **how), os.kill(os.getpid(), signal.SIGKILL))
    network.down()
signal.pause()
"""


@pytest.fixture(scope="module")
def daemon(need):
    """The daemon, with an image of this very code."""
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        need("docker", f"no daemon answers: {error}")
    done = subprocess.run(["make", "image"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        need("docker", f"the image cannot be built (make image): {done.stderr[-300:]}")
    return client


@pytest.fixture
def world(tmp_path):
    return written(tmp_path, "  - {between: [s, s], delay: 5 ms, rate: 10 MB/s}\n")


@pytest.fixture(autouse=True)
def nothing_left(request):
    yield
    if "daemon" in request.fixturenames:
        containers.down(RUN)


def written(tmp_path, paths, more="", hosts="  a: {site: s}\n  b: {site: s}\n  c: {site: s}\n"):
    file = tmp_path / "world.yaml"
    file.write_text(f"name: world\nsites: [s]\nhosts:\n{hosts}paths:\n{paths}{more}")
    return load(file)


def ours(daemon):
    names = [container.name for container in daemon.containers.list(all=True)] + \
        [network.name for network in daemon.networks.list()]
    return sorted(name for name in names if name.startswith(f"ft-{RUN}"))


def output(network, host, *command):
    program = network.spawn(host, command)
    program.stdin.close()
    said = program.stdout.read().decode()
    assert program.wait(60) == 0
    return said


def test_paths_of_containers_are_what_the_topology_says(daemon, world):
    with containers.Network(world, RUN, speedup=2) as network:
        assert ours(daemon) == [f"ft-{RUN}", *(f"ft-{RUN}-{index}" for index in range(3))]
        assert network.stamp["runtime"] == "docker"
        assert_becomes([], lambda: [path for path in network.probe() if not path.valid])
        routes = output(network, "b", "ip", "route")
        assert "default" not in routes
        assert routes.count("congctl cubic") == 2
        assert routes.count("rto_min lock 100ms") + routes.count("rto_min 100ms") == 2
    assert ours(daemon) == []
    assert not containers.Ledger(RUN).room.exists()
    network.down()


def test_a_rank_is_nobody(daemon, world):
    with containers.Network(world, RUN) as network:
        status = output(network, "a", "cat", "/proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(fields["Uid"].split()) == {"1000"}
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapInh"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        attributes = daemon.api.inspect_container(f"ft-{RUN}-0")
        assert not attributes["HostConfig"]["Privileged"]
        assert daemon.api.inspect_network(f"ft-{RUN}")["Internal"]


def test_links_change_while_they_are_up(daemon, tmp_path):
    world = written(tmp_path, "  - {between: [s, s], delay: 5 ms, rate: 10 MB/s}\n")
    other = written(tmp_path, "  - {between: [s, s], delay: 9 ms, rate: 5 MB/s}\n")
    with containers.Network(world, RUN) as network:
        network.change(other)
        assert {path.expected_rtt for path in network.probe()} == {0.018}
        assert_becomes([], lambda: [path for path in network.probe() if not path.valid])


def test_paths_of_a_host_share_its_access_and_those_of_a_group_its_rate(daemon, tmp_path):
    hosts = "  a: {site: s, access: {down: 8 MB/s}}\n  b: {site: s}\n  c: {site: s}\n"
    group = "groups:\n  trunk: {rate: 6 MB/s, paths: [{from: a, to: b}, {from: c, to: b}]}\n"
    world = written(tmp_path, "  - {between: [s, s], delay: 2 ms, rate: 20 MB/s}\n", group, hosts)
    with containers.Network(world, RUN) as network:
        # Each path alone has the whole of what it shares.
        expected = {("b", "a"): 8e6, ("c", "a"): 8e6, ("a", "b"): 6e6, ("c", "b"): 6e6, ("a", "c"): 20e6,
                    ("b", "c"): 20e6}
        assert_becomes(pytest.approx(expected, rel=0.02), lambda: goodput(network))
        # Two at once share it.
        for target, rate in (("a", 8e6), ("b", 6e6)):
            paths = [path for path in world.paths if path.target == target]
            assert_becomes(pytest.approx(rate, rel=0.02),
                           lambda paths=paths: sum(goodputs(network, paths).values()) / PAYLOAD)


def goodput(network):
    """Bytes of frames per second of one flow on each path, one after another."""
    return {pair: rate / PAYLOAD for path in network.shaped.paths for pair, rate in goodputs(network, [path]).items()}


def test_a_dead_delay_process_is_noticed_and_named(daemon, world):
    with containers.Network(world, RUN, engine="nfqueue") as network:
        daemon.containers.get(f"ft-{RUN}-1").exec_run(
            ["python3", "-c", "import os, signal\nfor p in filter(str.isdigit, os.listdir('/proc')):\n"
             "    if b'links.delayd' in open(f'/proc/{p}/cmdline', 'rb').read() and int(p) != os.getpid():\n"
             "        os.kill(int(p), signal.SIGKILL)"])
        with pytest.raises(LinkError, match=r"host b: the delay process .* ended with code -9"):
            network.check()


@pytest.mark.parametrize("moment", [1, 2, 4, 5, 6, 8, 9, -1, -2])
def test_down_after_a_kill_leaves_nothing_and_touches_nothing_else(daemon, world, moment):
    foreign = f"ft-{RUN}x-0"      # begins like ours, and is not
    guest = daemon.containers.run("frogtorch", ["sleep", "600"], name=foreign, detach=True, init=True)
    other = daemon.networks.create(f"ft-{RUN}x")
    try:
        maker = subprocess.Popen([sys.executable, "-c", DOOMED, world.file, RUN, str(moment)],
                                 stdout=subprocess.PIPE, text=True, cwd=ROOT)
        if moment < 0:
            assert maker.stdout.readline() == "up\n"
        if moment == -1:
            maker.kill()
        assert maker.wait(200) == -signal.SIGKILL
        maker.stdout.close()
        assert upkeep.down(RUN) or moment == 1
        assert upkeep.down(RUN) == []
        time.sleep(0.5)      # nobody who was still at work brings anything back
        assert ours(daemon) == [f"ft-{RUN}x", foreign]
        assert daemon.containers.get(foreign).status == "running"
    finally:
        guest.remove(force=True)
        other.remove()


def test_a_foreign_container_or_network_of_such_a_name_is_refused_and_kept(daemon, world):
    guest = daemon.containers.create("frogtorch", ["true"], name=f"ft-{RUN}-1")
    try:
        with pytest.raises(LinkError, match=f"container ft-{RUN}-1 exists"):
            containers.Network(world, RUN).up()
        assert ours(daemon) == [f"ft-{RUN}-1"]
    finally:
        guest.remove()
    foreign = daemon.networks.create(f"ft-{RUN}")
    try:
        with pytest.raises(LinkError, match=f"network ft-{RUN} exists"):
            containers.Network(world, RUN).up()
        assert ours(daemon) == [f"ft-{RUN}"]
    finally:
        foreign.remove()


def test_what_is_up_is_listed_and_left_alone_while_it_is_in_use(daemon, world):
    with containers.Network(world, RUN):
        mine = next(run for run in upkeep.up() if run.run == RUN)
        assert (mine.runtime, mine.in_use) == ("docker", True)
        assert mine.things[-1] == f"network ft-{RUN}"
        assert len(mine.things) == 4
    assert RUN not in [run.run for run in upkeep.up()]


def test_an_image_of_other_code_is_refused(daemon, world, monkeypatch):
    monkeypatch.setattr(containers.code, "sha256", lambda: "0" * 64)
    with pytest.raises(LinkError, match=r"holds other code than this checkout; build it again \(make image\)"):
        containers.Network(world, RUN).up()
    assert ours(daemon) == []


def test_no_image_says_what_to_do(daemon, world, monkeypatch):
    monkeypatch.setattr(containers, "IMAGE", "frogtorch-that-is-not-there")
    with pytest.raises(LinkError, match=r"there is no image 'frogtorch-that-is-not-there': build it \(make image\)"):
        containers.preflight(world)


def test_no_daemon_says_what_to_do(world, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(LinkError, match=r"no Docker daemon answers .*systemctl start docker.*--runtime netns"):
        containers.preflight(world)


def test_an_access_down_needs_the_place_of_other_engines(tmp_path):
    world = written(tmp_path, "  - {between: [s, s], delay: 2 ms}\n", hosts="  a: {site: s, access: {down: 4 MB/s}}\n"
                    "  b: {site: s}\n")
    assert behind_doors.refuse(world) == "nfqueue"
    with pytest.raises(TopologyError, match=r"world.yaml:4: in a container engine netem and .* access down \(a\)"):
        behind_doors.refuse(world, "netem")


def test_the_door_takes_messages_alone(tmp_path):
    """What is no message, or asks for what there is not, closes the connection or is answered; the door stays."""
    import socket

    from emulator.hosts import doorkeeper
    from emulator.hosts.door import Door, await_doors

    (tmp_path / "gate").touch()
    keeper = subprocess.Popen([sys.executable, "-m", "emulator.hosts.doorkeeper", str(tmp_path / "door")], cwd=ROOT)
    try:
        door = Door("box", tmp_path / "door", tmp_path / "gate")
        assert await_doors([door], 60) is None
        for nonsense in (b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1{"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(tmp_path / "door"))
                stranger.settimeout(60)
                stranger.sendall(nonsense)
                assert stranger.recv(1) == b""
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / "door"))
            doorkeeper.send(stranger, {"do": "dance"})
            assert "there is no 'dance'" in doorkeeper.receive(stranger)[0]["error"]
        assert json.loads(door.run(["cat"], '{"a": 1}')) == {"a": 1}
        with pytest.raises(LinkError, match="box: false:"):
            door.run(["false"])
        assert (tmp_path / "door").stat().st_mode & 0o777 == 0o600
        door.close()
    finally:
        keeper.terminate()
        keeper.wait()
