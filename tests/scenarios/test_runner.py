"""The main job on real packets, small; and what is left of it when it is killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scenarios import records
from scenarios.campaigns import campaigns
from scenarios.scenario import load

ROOT = Path(__file__).parent.parent.parent

TOPOLOGY = """\
name: pair
sites: [here, there]
hosts:
  one: {site: here}
  two: {site: here}
  far: {site: there}
defaults: {rate: 2 MB/s}
paths:
  - {between: [here, here], delay: 2 ms}
  - {between: [here, there], delay: 20 ms}
"""

SCENARIO = """\
name: small
topology: topology.yaml
worlds:
  2: [one, far]
  3: [one, two, far]
arms: [gloo, shard]
repetitions: 2
speedup: 10
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.5 MB, 2.1 MB]}
scaling: {world: 3, size: 2.1 MB, speedups: [5]}
"""


def frogtorch(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "frogtorch", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, **options)


ALONE = ["unshare", "--mount", "sh", "-c", 'mkdir -p /run/netns && mount -t tmpfs none /run/netns && "$@"; '
         'status=$?; ls /run/netns >"$0"; exit $status']
"""Lines of shell that do a command where there are no other namespaces, and say which it has left, in a file."""


def frogtorch_alone(left, *arguments):
    """The command, done; and the names of the namespaces that were left, for which `left` is a file."""
    done = subprocess.run([*ALONE, left, sys.executable, "-m", "frogtorch", *arguments], capture_output=True, text=True,
                          cwd=ROOT)
    return done, left.read_text().split()


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path / "small.yaml"


@pytest.fixture
def foreign():
    """A namespace, a device and a qdisc that are not ours."""
    name = f"foreign{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "add", "d0", "type", "veth", "peer", "name", "d1"], check=True)
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "d0", "root", "tbf", "rate", "1mbit", "burst", "10k",
                        "latency", "50ms"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_points_of_one_speedup_are_one_campaign(scenario):
    large = (1_050_000, 1_500_000, 2_100_000)
    planned = [(campaign.speedup, campaign.sizes) for campaign in campaigns(load(scenario))]
    assert planned == [(10, {2: large, 3: large}), (5, {3: (2_100_000,)}), (1, {2: (4096,), 3: (4096,)})]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_scenario_is_predicted_then_measured(scenario, tmp_path, status_of):
    run = tmp_path / "run"
    done, left = frogtorch_alone(tmp_path / "left", "compare", scenario, "--output", run)
    assert done.returncode == status_of(run), done.stderr
    assert left == []
    digest = records.sha256(run / "predictions.jsonl")
    measured = records.load(run / "measurements.jsonl", records.Measurement)
    # 2 repetitions x 2 arms x (3 sizes and the small one, in 2 worlds; the scaling point at k = 5).
    assert len(measured) == 2 * 2 * (2 * 4 + 1)
    assert {m.prediction for m in measured} == {digest}
    assert {(m.nbytes >= 1 << 20, m.speedup) for m in measured} == {(True, 10.0), (True, 5.0), (False, 1.0)}
    for m in measured:
        assert m.seconds == pytest.approx(m.clock_seconds * m.speedup)
        # No exchange is faster than one one-way delay and the bytes of its slowest path.
        assert m.seconds > 0.02
        assert m.seconds > 2 * m.nbytes / m.world_size / 2e6 or m.nbytes == 4096
    # By bytes over rates: at W=3 the ring needs twice the seconds of shard (2(W-1)/W against 2/W); at W=2 as many.
    # Bounds far from 1 and 2, as the machine may be busy: who has the arms mixed up sees 0.5 or 1.
    for world, (low, high) in {2: (0.8, 1.25), 3: (1.5, 2.6)}.items():
        gloo, shard = (sorted(m.seconds for m in measured if (m.arm, m.world_size, m.nbytes, m.speedup)
                              == (arm, world, 2_100_000, 10.0)) for arm in ("gloo", "shard"))
        assert low < gloo[0] / shard[0] < high
    # Every path of the three hosts, before and after each of the three campaigns.
    probed = records.load(run / "fidelity.jsonl", records.Fidelity)
    assert sorted((p.campaign, p.when) for p in probed) == sorted(
        (campaign, when) for campaign in range(3) for when in ("before", "after") for _ in range(6))
    environment = json.loads((run / "environment.json").read_text())
    # One a campaign, and another each time that one was void.
    assert [k for k, _ in itertools.groupby(network["speedup"] for network in environment["networks"])] == [10, 5, 1]
    assert (run / "predictions.jsonl").stat().st_mtime < (run / "fidelity.jsonl").stat().st_mtime
    telemetry = [json.loads(line) for line in (run / "telemetry" / "rank0.jsonl").read_text().splitlines()]
    received = {seen["payload_received"] for seen in telemetry
                if (seen["world_size"], seen["nbytes"]) == (3, 2_100_000) and seen["collective"] == "all_reduce"}
    assert received == {2_800_000}  # 2(W-1)/W of the tensor
    assert "W = 3" in done.stdout
    assert {"points.csv", "times.png", "slopes.png"} <= {file.name for file in run.iterdir()}


@pytest.mark.root
@pytest.mark.slow
def test_a_training_is_calibrated_predicted_and_measured(scenario, tmp_path, status_of):
    scenario.write_text("name: train\ntopology: topology.yaml\nworlds: {2: [one, far]}\narms: [gloo, shard]\n"
                        "speedup: 10\ntraining: {steps: 4, warmup: 2}\n")
    run = tmp_path / "run"
    done = frogtorch("compare", scenario, "--output", run)
    assert done.returncode == status_of(run), done.stderr
    compute = json.loads((run / "compute.json").read_text())["2"]
    assert 0 < compute["first_bucket"] < compute["backward"]
    computing = compute["forward"] + compute["backward"] + compute["optimiser"]
    measured = records.load(run / "measurements.jsonl", records.Measurement)
    assert sorted((m.arm, m.repetition) for m in measured) == [(arm, n) for arm in ("gloo", "shard") for n in (2, 3)]
    for m in measured:
        assert m.nbytes == 16_867_332
        assert m.seconds == pytest.approx((m.clock_seconds - computing) * 10 + computing)
        # Each rank's half goes over the path of 2 MB/s, twice: at k = 10, and computing comes on top.
        assert m.clock_seconds * 10 > 16_867_332 / 2e6
    outcomes = records.load(run / "outcomes.jsonl", records.Outcome)
    assert sorted((o.arm, o.rank) for o in outcomes) == [(arm, rank) for arm in ("gloo", "shard") for rank in (0, 1)]
    # Two terms have one order of summation, so even the arms agree to the bit.
    assert len({o.parameters_sha256 for o in outcomes}) == 1
    # One bucket in the first step, two in each of the three others.
    assert {o.all_reduces for o in outcomes if o.arm == "shard"} == {7}
    # The same step, predicted again from what was calibrated, is the same; measured from there, it is a run as well.
    again = tmp_path / "again"
    assert frogtorch("predict", scenario, "--output", again, "--compute", run / "compute.json").returncode == 0
    assert [p.seconds for p in records.load(again / "predictions.jsonl", records.Prediction)] == [
        p.seconds for p in records.load(run / "predictions.jsonl", records.Prediction)]
    (again / "topology.yaml").write_text(TOPOLOGY.replace("2 MB/s", "3 MB/s"))
    other = frogtorch("measure", again)
    assert other.returncode == 1
    assert "predictions are about another topology.yaml" in other.stderr


@pytest.mark.root
@pytest.mark.slow
def test_what_a_killed_run_leaves_goes_with_down_and_nothing_else_does(scenario, tmp_path, foreign):
    run = tmp_path / "run"
    runner = subprocess.Popen([sys.executable, "-m", "frogtorch", "compare", scenario, "--output", run], cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        name = next(line for line in runner.stderr if line.startswith("run ")).split()[1].rstrip(":")
        until = time.monotonic() + 120
        while not (run / "measurements.jsonl").exists():
            assert time.monotonic() < until
            assert runner.poll() is None
            time.sleep(0.05)
        started = descendants(runner.pid)
        assert len(started) >= 4  # ranks and links at the least
        assert any(space.startswith(f"ft-{name}-") for space in namespaces())
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        assert frogtorch("down", name).returncode == 0
        assert not [space for space in namespaces() if space.startswith(f"ft-{name}-")]
        # The server that ranks are forked from ends by itself, when it finds the runner's pipe closed.
        until = time.monotonic() + 60
        while any(map(alive, started)) and time.monotonic() < until:
            time.sleep(0.05)
        assert [pid for pid in started if alive(pid)] == []
        again = frogtorch("down", name)
        assert (again.returncode, again.stderr) == (0, "")
        assert foreign in namespaces()
        qdiscs = subprocess.run(["tc", "-n", foreign, "qdisc"], capture_output=True, text=True, check=True).stdout
        assert "tbf" in qdiscs
    finally:
        runner.kill()
        runner.wait()


@pytest.mark.root
def test_a_bad_scenario_is_refused_before_anything_is_touched(scenario, tmp_path):
    scenario.write_text(SCENARIO.replace("3: [one, two, far]", "3: [one, two, fra]"))
    done, left = frogtorch_alone(tmp_path / "left", "compare", scenario, "--output", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr == (f"frogtorch: {scenario}:5: unknown host 'fra' for rank 2 of W = 3; did you mean "
                           "'far'? Use one of: one, two, far\n")
    assert not (tmp_path / "run").exists()
    assert left == []


def test_a_run_directory_is_written_once(scenario, tmp_path):
    assert frogtorch("predict", scenario, "--output", tmp_path / "run").returncode == 0
    again = frogtorch("predict", scenario, "--output", tmp_path / "run")
    assert again.returncode == 1
    assert again.stderr.endswith(f"{tmp_path / 'run'} exists: a run directory is written once; give another --output\n")


def descendants(pid):
    """Processes that came from `pid`, by their parents in /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except FileNotFoundError:
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
