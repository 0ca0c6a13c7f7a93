"""Ranks on slow hosts: how much slower they compute, that gradients come late one by one, and no bit else."""

import json
import statistics
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from made import PAIR

from scenarios import records
from scenarios.arms import ARMS
from scenarios.ranks import Place, Ranks
from scenarios.replica import Replica
from scenarios.scenario import load
from scenarios.script import scripted
from scenarios.workloads import SMALL

ROOT = Path(__file__).parents[2]


class Clock:
    """Counts what was to be slept, without sleeping, and nothing else."""

    def __init__(self):
        self.slept = 0.0

    def monotonic(self):
        return self.slept

    def sleep(self, seconds):
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("replica", "slowdown"):
        monkeypatch.setattr(f"scenarios.{module}.time", made)
    return made


@pytest.fixture
def alone():
    """A world of one rank: what DDP exchanges goes nowhere."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=20))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield dist.group.WORLD
    torch.set_num_threads(threads)
    dist.destroy_process_group()


def test_a_step_takes_so_much_longer_and_ends_with_the_same_parameters(clock, alone):
    longer = {"forward": 1.0, "first_bucket": 2.0, "backward": 6.0, "optimiser": 0.5}
    replicas = [Replica(SMALL, ARMS["gloo"], alone, bucket_view=True, longer=of) for of in (None, longer)]
    for _ in range(3):
        for replica, expected in zip(replicas, ((0, 0, 0), (3, 7, 7.5)), strict=True):
            began = clock.monotonic()
            ready, exchanged = replica.step()
            # The first bucket's gradients come so much later, forward and backward are, and the whole step is.
            assert (ready - began, exchanged - began, clock.monotonic() - began) == pytest.approx(expected, rel=0.001)
            assert replica.slept == pytest.approx(expected[2], rel=0.001)
    assert replicas[0].outcome() == replicas[1].outcome()


def test_gradients_come_late_one_by_one(clock, alone):
    longer = {"forward": 10.0, "first_bucket": 20.0, "backward": 50.0, "optimiser": 40.0}
    replica = Replica(SMALL, ARMS["gloo"], alone, bucket_view=False, longer=longer)
    came = []
    for parameter in replica.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: came.append(clock.slept))
    replica.step()
    # From the last parameter to the first: four of twelve in the first bucket, 5 s each; 30 s over the eight others.
    assert came == pytest.approx([15, 20, 25, 30, *(30 + 3.75 * n for n in range(1, 9))], rel=0.001)
    assert clock.slept == pytest.approx(100, rel=0.001)


def test_a_sleep_that_was_too_long_is_taken_off_the_next(clock, alone):
    clock.sleep = lambda seconds: Clock.sleep(clock, seconds + 0.5)
    replica = Replica(SMALL, ARMS["gloo"], alone, bucket_view=False, longer={
        "forward": 1.0, "first_bucket": 4.0, "backward": 12.0, "optimiser": 1.0})
    for _ in range(2):
        before = clock.slept
        replica.step()
        assert clock.slept - before == pytest.approx(14.5, rel=0.001)


def test_ranks_of_every_kind_of_arm_end_as_without_stragglers(tmp_path):
    arms = ("gloo", "shard", "faithful")
    compute = {"forward": 0.01, "first_bucket": 0.02, "backward": 0.02, "optimiser": 0.01}
    with Ranks([Place(rank=rank, world_size=2, host="here", store=str(tmp_path / "store"), arms=arms, timeout=60.0,
                      slowness=(1.0, 3.0)[rank]) for rank in range(2)]) as ranks:
        for arm in arms:
            usual, slow = (ranks.tell("train", arm=arm, steps=4, bucket_view=False, workload="digits", **more)
                           for more in ({}, {"compute": compute}))
            assert len({result["parameters_sha256"] for result in (*usual, *slow)}) == 1
            assert [result["slept"] for result in (*usual, slow[0])] == [[0.0] * 4] * 3
            # Twice 0.04 s more, of which none is lost, and no rank ends a step before.
            assert min(slow[1]["slept"]) > 0.99 * 0.08
            assert min(end - start for result in slow for start, end in result["steps"][1:]) > 0.06


def test_a_script_has_no_stragglers(tmp_path):
    (tmp_path / "train.py").write_text("")
    scenario = tmp_path / "slow.yaml"
    scenario.write_text(f"name: slow\ntopology: {ROOT}/topologies/seattle-newyork.yaml\narms: [gloo]\n"
                        "worlds: {2: [seattle-ai, newyork-1]}\n"
                        "training: {steps: 2, warmup: 1, stragglers: {newyork-1: 2}}\n")
    with pytest.raises(ValueError, match="of a script's step nobody knows what that is; leave stragglers out"):
        scripted(load(scenario), tmp_path / "train.py")


TOPOLOGY = PAIR + """\
paths: [{between: [here, there], delay: 2 ms, rate: 20 MB/s}]
"""

SCENARIO = """\
name: slow
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo, shard]
training: {workload: small, steps: 8, warmup: 2}
"""


def test_a_prediction_has_to_know_what_hosts_compute(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "slow.yaml").write_text(SCENARIO.replace("warmup: 2", "warmup: 2, stragglers: {far: 11}"))
    refused = frogtorch("predict", tmp_path / "slow.yaml", "--output", tmp_path / "run")
    assert refused.returncode == 1
    assert "how long those do is not known; give --compute" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_straggler_is_predicted_and_measured(tmp_path, status_of):
    """The same training with a slow host and without, predicted from the same seconds of computing."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    scenario, usual, slow = tmp_path / "slow.yaml", tmp_path / "usual", tmp_path / "slowed"
    scenario.write_text(SCENARIO)
    done = frogtorch("compare", scenario, "--output", usual)
    assert done.returncode == status_of(usual), done.stderr
    scenario.write_text(SCENARIO.replace("warmup: 2", "warmup: 2, stragglers: {far: 11}"))
    assert frogtorch("predict", scenario, "--output", slow, "--compute", usual / "compute.json").returncode == 0
    done = frogtorch("measure", slow)
    assert done.returncode == 0, done.stderr
    assert "Stragglers: far computes 11 times as long as others" in frogtorch("report", slow).stdout
    compute = json.loads((usual / "compute.json").read_text())["2"]
    longer = 10 * (compute["forward"] + compute["backward"] + compute["optimiser"])
    runs = usual, slow
    predicted = [{p.arm: p.seconds for p in records.load(run / "predictions.jsonl", records.Prediction)}
                 for run in runs]
    measured = [records.load(run / "measurements.jsonl", records.Measurement) for run in runs]
    hashes = {o.parameters_sha256 for run in runs for o in records.load(run / "outcomes.jsonl", records.Outcome)}
    assert len(hashes) == 1      # of two ranks sums have one order
    assert all(m.slept_seconds is None for m in measured[0])
    for m in measured[1]:
        assert m.slept_seconds[0] == 0
        assert m.slept_seconds[1] > 0.99 * longer
    for arm in ("gloo", "shard"):
        took = [statistics.median(m.seconds for m in of if m.arm == arm) for of in measured]
        assert 0.75 < (took[1] / took[0]) / (predicted[1][arm] / predicted[0][arm]) < 1.33, (arm, took, predicted)
    # The other host waits for its first bytes so much longer.
    late = 10 * (compute["forward"] + compute["first_bucket"])
    waits = [statistics.median(c.peers[1].wait for c in collectives(run, rank=0) if c.nbytes == SMALL.buckets[0])
             for run in runs]
    assert 0.7 * late < waits[1] - waits[0] < 1.5 * late


def collectives(run, rank):
    """What the backend saw of shard in the steps, of which the first is the only one with a single bucket."""
    return [c for c in records.load(run / f"telemetry/rank{rank}.jsonl", records.Collective)
            if c.arm == "shard" and c.collective == "all_reduce"]


def frogtorch(*arguments):
    return subprocess.run([sys.executable, "-m", "frogtorch", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, check=False)
