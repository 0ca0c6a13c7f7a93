"""The same scenario on machines that the testbed did not make: probe, predict, measure, report."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path

import pytest
from patience import assert_becomes

from emulator.topology import load as load_topology
from scenarios.clocks import Sight, ours, translated
from scenarios.records import Fidelity, Measurement, Outcome, load

SECRET = "a secret of the test"
BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


def test_a_clock_that_is_ahead_and_drifts_is_read_as_ours():
    # Ours says 100 when theirs says 1000, and 110 when theirs says 1010.5; a way takes 0.25 s, one after the other 0.5.
    before, after = Sight.of(99.75, 1000.0, 100.25), Sight.of(109.5, 1010.5, 110.5)
    assert (before.ahead, before.trip, after.ahead, after.trip) == (900.0, 0.5, 900.5, 1.0)
    assert ours(1000.0, before, after) == 100.0
    assert ours(1010.5, before, after) == 110.0
    assert ours(1005.25, before, after) == pytest.approx(105.0, abs=0.02)      # half of the way is half of the drift
    result = {"start": 1000.0, "end": 1010.5, "steps": [(1000.0, 1010.5)], "seconds": [5.0], "telemetry": []}
    assert translated(result, before, after) == {"start": 100.0, "end": 110.0, "steps": [[100.0, 110.0]],
                                                 "seconds": [5.0], "telemetry": []}


# What follows starts commands as a user would, on machines that are network namespaces.

RATES = {frozenset(("near-1", "near-2")): 12.0}
"""MB/s of each of the two paths; between all others it is:"""
FAR = 4.0
NAMES = ("near-1", "near-2", "far-1", "far-2")


def made(source, target):
    """MB/s of the link from one machine to another, in Ethernet frames."""
    return RATES.get(frozenset((source, target)), FAR)


class Cluster:
    """Four machines on a switch, whose links are limited by destination; made with ip and tc alone."""

    def __init__(self):
        self.names = {name: f"machine-{os.getpid()}-{index}" for index, name in enumerate(NAMES)}
        self.switch = f"machine-{os.getpid()}-switch"
        self.addresses = {name: f"10.79.0.{index + 1}" for index, name in enumerate(NAMES)}

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for namespace in (*self.names.values(), self.switch):
            subprocess.run(["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL, check=False)

    def _make(self):
        def run(command):
            subprocess.run(command.split(), check=True)

        run(f"ip netns add {self.switch}")
        run(f"ip -n {self.switch} link add bridge0 type bridge")
        run(f"ip -n {self.switch} link set bridge0 up")
        for index, (name, namespace) in enumerate(self.names.items()):
            run(f"ip netns add {namespace}")
            run(f"ip link add eth0 netns {namespace} type veth peer name port{index} netns {self.switch}")
            run(f"ip -n {self.switch} link set port{index} master bridge0 up")
            run(f"ip -n {namespace} address add {self.addresses[name]}/24 dev eth0")
            run(f"ip -n {namespace} link set lo up")
            run(f"ip -n {namespace} link set eth0 gso_max_segs 2 up")
            run(f"tc -n {namespace} qdisc add dev eth0 root handle 1: htb")
            for number, (other, address) in enumerate(self.addresses.items(), 1):
                if other == name:
                    continue
                run(f"tc -n {namespace} class add dev eth0 parent 1: classid 1:{number} htb "
                    f"rate {made(name, other) * 8}mbit burst 4000 cburst 4000 quantum 3028")
                run(f"tc -n {namespace} qdisc add dev eth0 parent 1:{number} bfifo limit 60000")
                run(f"tc -n {namespace} filter add dev eth0 parent 1: protocol ip u32 match ip dst {address}/32 "
                    f"flowid 1:{number}")

    def start(self, name, command, directory, **environment):
        """A command on a machine, by whoever is logged in there."""
        inside = ["ip", "netns", "exec", self.names[name], "unshare", "--uts", "sh", "-c",
                  f'hostname {name} && exec "$@"', "sh"]
        return subprocess.Popen([*inside, *command], cwd=directory, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                env={**os.environ, "PYTHONPATH": str(ROOT), "FROGTORCH_SECRET": SECRET,
                                     **environment})


def ended(programs, seconds=400):
    """What each has printed, when all have ended well."""
    deadline = time.monotonic() + seconds
    said = []
    try:
        for program in programs:
            said.append(program.communicate(timeout=deadline - time.monotonic())[0])
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0] * len(programs), "\n".join(said)
    return said


SCENARIO = """\
name: mine
topology: probed/topology.yaml
worlds: {4: [near-1, near-2, far-1, far-2]}
arms: [gloo, shard]
repetitions: 2
timeout: 60 s
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.2 MB, 1.4 MB]}
training: {workload: small, steps: 2, warmup: 1}
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)      # a path that is off is measured again
def test_four_machines_are_probed_predicted_measured_and_reported_by_the_commands_of_a_user(tmp_path):
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    frogtorch = str(BIN / "frogtorch")
    with Cluster() as cluster:
        master = cluster.addresses["far-2"]      # any machine may lead
        order = ("far-2", "near-1", "near-2", "far-1")

        def probed():
            shutil.rmtree(tmp_path / "probed", ignore_errors=True)
            ended([cluster.start(name, [frogtorch, "probe", "--output", "probed"], tmp_path, RANK=str(rank),
                                 WORLD_SIZE="4", MASTER_ADDR=master, MASTER_PORT="29500")
                   for rank, name in enumerate(order)])
            found = load_topology(tmp_path / "probed" / "topology.yaml")
            assert {host.name for host in found.hosts} == {*NAMES}
            return {(path.source, path.target): path.rate for path in found.paths}

        # Within what a path that nobody shaped for us may be off by in a run.
        assert_becomes(pytest.approx({pair: made(*pair) * 1e6 for pair in permutations(NAMES, 2)}, rel=0.05), probed)
        subprocess.run([frogtorch, "predict", "scenario.yaml", "--output", "run"], cwd=tmp_path, check=True)
        ended([cluster.start(name, [
            str(BIN / "torchrun"), "--nnodes", "4", "--nproc-per-node", "1", "--node-rank", str(rank), "--master-addr",
            master, "--master-port", "29500", "-m", "frogtorch", "measure", "run", "--runtime", "external"], tmp_path)
            for rank, name in enumerate(order)])
    report = subprocess.run([frogtorch, "report", "run"], cwd=tmp_path, text=True, capture_output=True, check=False)
    print(report.stdout)
    run = tmp_path / "run"
    measured = load(run / "measurements.jsonl", Measurement)
    seen = [(m.arm, m.world_size, m.nbytes, m.repetition) for m in measured if m.workload == "all_reduce"]
    assert len(seen) == len({*seen}) == 2 * 4 * 2
    assert {m.hosts for m in measured} == {NAMES}
    # The far paths bind both arms. By bytes alone Gloo takes three times as long as shard, of which a quarter of the
    # tensor goes along each path, twice, in Ethernet frames.
    gloo, shard = (min(m.seconds for m in measured if (m.arm, m.nbytes) == (arm, 1_400_000))
                   for arm in ("gloo", "shard"))
    assert gloo > 1.5 * shard
    assert shard > 0.95 * 2 * 1.4 / 4 / FAR * 1514 / 1448

    probes = load(run / "fidelity.jsonl", Fidelity)
    assert sorted((p.when, p.source, p.target) for p in probes) == sorted(
        (when, *pair) for when in ("before", "after") for pair in permutations(NAMES, 2))
    for pair in permutations(NAMES, 2):      # before or after: a busy machine can hold up one
        goodput = max(p.goodput for p in probes if (p.source, p.target) == pair)
        assert goodput == pytest.approx(made(*pair) * 1e6 * 1448 / 1514, rel=0.1)
    outcomes = load(run / "outcomes.jsonl", Outcome)
    assert sorted((o.arm, o.rank) for o in outcomes) == [(arm, rank) for arm in ("gloo", "shard") for rank in range(4)]
    assert [len({o.parameters_sha256 for o in outcomes if o.arm == arm}) for arm in ("gloo", "shard")] == [1, 1]
    environment = json.loads((run / "environment.json").read_text())
    assert {name: one["address"] for name, one in environment["networks"][0]["machines"].items()} == cluster.addresses
    assert [rank["host"] for rank in environment["ranks"]] == [*NAMES]
    assert report.returncode == (0 if all(p.valid for p in probes) else 1), report.stderr
    assert "Network: runtime external" in report.stdout
    assert (run / "report.html").exists()


LOOP = """\
name: loop
sites: [s]
hosts: {a: {site: s}, b: {site: s}, c: {site: s}}
paths: [{between: [s, s], delay: 0.02 ms}]
"""
LOOPED = """\
name: loop
topology: loop.yaml
worlds: {2: [a, b]}
arms: [gloo, shard]
repetitions: 40
timeout: 60 s
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.2 MB, 1.4 MB]}
"""


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_run_whose_machine_dies_names_it_and_goes_on_when_all_are_there_again(tmp_path):
    (tmp_path / "loop.yaml").write_text(LOOP)
    (tmp_path / "scenario.yaml").write_text(LOOPED)
    frogtorch = [sys.executable, "-m", "frogtorch"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FROGTORCH_SECRET": SECRET}
    subprocess.run([*frogtorch, "predict", "scenario.yaml", "--output", "run"], cwd=tmp_path, env=environment,
                   check=True)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

    def start(*more):
        return [subprocess.Popen([*frogtorch, "measure", "run", "--runtime", "external", "--name", name, "--rank",
                                  str(rank), "--world", "3", "--master", f"127.0.0.1:{port}", *more], cwd=tmp_path,
                                 env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                for rank, name in enumerate("cab")]      # the one that leads has no rank of the world

    lines = tmp_path / "run" / "measurements.jsonl"
    programs = leader, other, idle = start()
    try:
        deadline = time.monotonic() + 200
        while not lines.exists() or lines.read_bytes().count(b"\n") < 20:
            assert leader.poll() is None, leader.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other.kill()
        said, heard = (program.communicate(timeout=200)[0] for program in (leader, idle))
    finally:
        for program in programs:
            program.kill()
    assert (leader.returncode, idle.returncode) == (1, 1)
    assert "a machine is lost: a (rank 1, 127.0.0.1)" in said
    assert "--resume" in said
    assert "rank 0 has ended the run: a machine is lost: a (rank 1, 127.0.0.1)" in heard
    assert 20 <= len(load(lines, Measurement)) < 2 * 4 * 40
    ended(start("--resume"))
    seen = [(m.arm, m.nbytes, m.repetition) for m in load(lines, Measurement)]
    assert len(seen) == len({*seen}) == 2 * 4 * 40
