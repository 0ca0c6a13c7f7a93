"""Ranks on slow hosts: how much slower they compute, that gradients come late one by one, and no bit else."""

import json
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scenarios import records
from scenarios.arms import ARMS
from scenarios.ranks import Place, Ranks
from scenarios.replica import Replica
from scenarios.scenario import load
from scenarios.script import scripted
from scenarios.slowdown import Slowdown
from scenarios.workloads import SMALL

ROOT = Path(__file__).parents[2]
FACTOR = 3.0


@pytest.fixture
def alone():
    """A world of one rank: what DDP exchanges goes nowhere."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=20))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield dist.group.WORLD
    torch.set_num_threads(threads)
    dist.destroy_process_group()


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_forward_and_backward_take_so_many_times_longer_and_end_with_the_same_parameters(alone):
    replicas = [Replica(SMALL, ARMS["gloo"], alone, bucket_view=True, slowness=of) for of in (1.0, FACTOR)]
    parts = [[], []]
    for _ in range(60):
        for replica, seen in zip(replicas, parts, strict=True):
            began = time.monotonic()
            ready, exchanged = replica.step()
            seen.append((exchanged - began, (ready - began) / (exchanged - began)))
    (usual, usual_share), (slow, slow_share) = ([statistics.median(part) for part in zip(*seen[10:], strict=True)]
                                                for seen in parts)
    assert 2.5 < slow / usual < 3.5
    # The first bucket is ready when the same share of it is over. Were it asleep at the end of backward alone, that
    # would be a third of the share.
    assert 0.6 < slow_share / usual_share < 1.4
    outcomes = [replica.outcome() for replica in replicas]
    assert outcomes[0] == outcomes[1]
    assert replicas[0].slept == 0
    assert replicas[1].slept > 0


def test_it_sleeps_for_what_is_computed_and_for_no_wait():
    slowdown = Slowdown(FACTOR, torch.nn.Linear(1, 1))
    slowdown.step()
    began = time.monotonic()
    for _ in range(20):
        with slowdown:
            busy(0.002)
        time.sleep(0.005)
    took = time.monotonic() - began
    assert slowdown.slept >= 20 * 0.002 * (FACTOR - 1) * 0.99
    # All else are the waits, 0.1 s at the least, which are not multiplied.
    assert slowdown.slept < took - 0.1 - 20 * 0.002


def test_what_a_hook_of_ddp_takes_is_no_computing(alone):
    def late(_, bucket):
        busy(0.1)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    slept = {}
    for hook in (None, late):
        model = SMALL.load().model()
        replica = DistributedDataParallel(model, process_group=alone)
        if hook:
            replica.register_comm_hook(None, hook)
        slowdown = Slowdown(FACTOR, model)
        inputs = torch.ones(64, 16)
        seen = []
        for _ in range(10):
            slowdown.step()
            replica(inputs).sum().backward()
            seen.append(slowdown.slept)
        slept[hook] = statistics.median(seen)
    # It would sleep 0.2 s more for the first of two buckets; the second is the last of what it computes.
    assert slept[late] < slept[None] + 0.1


def test_ranks_of_every_kind_of_arm_end_as_without_stragglers(tmp_path):
    arms = ("gloo", "shard", "faithful")
    ended = {}
    for slowness in (1.0, FACTOR):
        with Ranks([Place(rank=rank, world_size=2, host="here", store=str(tmp_path / f"store{slowness}"), arms=arms,
                          timeout=60.0, slowness=slowness if rank else 1.0) for rank in range(2)]) as ranks:
            ended[slowness] = {arm: ranks.tell("train", arm=arm, steps=4, bucket_view=False, workload="digits")
                               for arm in arms}
    for arm in arms:
        usual, slow = ended[1.0][arm], ended[FACTOR][arm]
        assert len({result["parameters_sha256"] for result in (*usual, *slow)}) == 1
        assert [any(result["slept"]) for result in (*usual, *slow)] == [False, False, False, True]
        assert min(slow[1]["slept"]) > 0


def test_a_script_has_no_stragglers(tmp_path):
    (tmp_path / "train.py").write_text("")
    scenario = tmp_path / "slow.yaml"
    scenario.write_text(f"name: slow\ntopology: {ROOT}/topologies/seattle-newyork.yaml\narms: [gloo]\n"
                        "worlds: {2: [seattle-ai, newyork-1]}\n"
                        "training: {steps: 2, warmup: 1, stragglers: {newyork-1: 2}}\n")
    with pytest.raises(ValueError, match="of a script's step nobody knows what that is; leave stragglers out"):
        scripted(load(scenario), tmp_path / "train.py")


TOPOLOGY = """\
name: trio
sites: [here, there]
hosts:
  one: {site: here}
  two: {site: here}
  far: {site: there}
defaults: {rate: 20 MB/s}
paths:
  - {between: [here, here], delay: 2 ms}
  - {between: [here, there], delay: 10 ms}
"""

SCENARIO = """\
name: slow
topology: topology.yaml
worlds: {3: [one, two, far]}
arms: [gloo, shard, faithful]
training: {workload: small, steps: 14, warmup: 4}
"""


@pytest.mark.root
@pytest.mark.slow
def test_a_straggler_is_predicted_and_measured(tmp_path, status_of):
    """The same training with a slow host and without, predicted from the same seconds of computing."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    scenario, usual, slow = tmp_path / "slow.yaml", tmp_path / "usual", tmp_path / "slowed"
    scenario.write_text(SCENARIO)
    done = frogtorch("compare", scenario, "--output", usual)
    assert done.returncode == status_of(usual), done.stderr
    scenario.write_text(SCENARIO.replace("warmup: 4", "warmup: 4, stragglers: {two: 40}"))
    assert frogtorch("predict", scenario, "--output", slow, "--compute", usual / "compute.json").returncode == 0
    done = frogtorch("measure", slow)
    assert done.returncode == status_of(slow), done.stderr
    assert "Stragglers: two computes 40 times as long as others" in frogtorch("report", slow).stdout
    compute = json.loads((usual / "compute.json").read_text())["3"]
    late = 39 * (compute["forward"] + compute["first_bucket"])
    runs = usual, slow
    predicted = [{p.arm: p.seconds for p in records.load(run / "predictions.jsonl", records.Prediction)}
                 for run in runs]
    measured = [records.load(run / "measurements.jsonl", records.Measurement) for run in runs]
    hashes = [{(o.arm, o.parameters_sha256) for o in records.load(run / "outcomes.jsonl", records.Outcome)}
              for run in runs]
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 3
    assert all(m.slept_seconds is None for m in measured[0])
    assert all(m.slept_seconds[0] == m.slept_seconds[2] == 0 < m.slept_seconds[1] for m in measured[1])
    for arm in ("gloo", "shard", "faithful"):
        took = [statistics.median(m.seconds for m in of if m.arm == arm) for of in measured]
        # By how much a step is longer. Machines are busy now and then, with what is computed too: 40 times as much.
        assert took[1] - took[0] > 0.5 * (predicted[1][arm] - predicted[0][arm]) > 0.4 * late
        assert 0.7 < (took[1] / took[0]) / (predicted[1][arm] / predicted[0][arm]) < 1.4, (arm, took, predicted)
    # Those on the other hosts wait for its first bytes so much longer.
    waits = [statistics.median(c.peers[1]["wait"] for c in collectives(run, rank=0) if c.nbytes == SMALL.buckets[0])
             for run in runs]
    assert waits[1] - waits[0] > 0.5 * late


def collectives(run, rank):
    """What the backend saw of shard in the steps, of which the first is the only one with a single bucket."""
    return [c for c in records.load(run / f"telemetry/rank{rank}.jsonl", records.Collective)
            if c.arm == "shard" and c.collective == "all_reduce"]


def frogtorch(*arguments):
    return subprocess.run([sys.executable, "-m", "frogtorch", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, check=False)
