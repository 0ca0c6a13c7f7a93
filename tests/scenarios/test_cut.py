"""A path falls to a tenth and recovers: the steps that are measured show it, and those that are predicted, alike."""

import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from made import PAIR

from emulator.ethernet import PAYLOAD
from scenarios import records
from scenarios.workloads import SMALL

ROOT = Path(__file__).parent.parent.parent

TOPOLOGY = PAIR + """\
paths: [{between: [here, there], rate: 10 MB/s, delay: 10 ms}]
timeline:
  traces: [{file: traces/cut.csv, between: [one, far]}]
"""
TRACE = "second,rate MB/s\n0,10\n5,1\n25,10\n"

SCENARIO = """\
name: cut
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo, shard]
speedup: 5
training: {workload: small, steps: 20, warmup: 0}
"""

CUT = SMALL.gradient_bytes / (1e6 * PAYLOAD)
"""Seconds of a step at 1 MB/s: both arms move 2(W−1)/W = 1 tensor over each path."""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)      # a campaign whose links were off is measured twice
def test_a_cut_shows_in_measured_and_predicted_steps_alike(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/cut.csv").write_text(TRACE)
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, "-m", "frogtorch", "compare", str(tmp_path / "scenario.yaml"), "--output",
                           str(run)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run / "measurements.jsonl").exists(), done.stderr
    assert (run / "traces/cut.csv").read_text() == TRACE
    predictions = {p.arm: p.detail["steps"] for p in records.load(run / "predictions.jsonl", records.Prediction)}
    measured = records.load(run / "measurements.jsonl", records.Measurement)
    applied = records.load(run / "applied.jsonl", records.Applied)
    first = []
    for arm in ("gloo", "shard"):
        seen = [(m.second, m.seconds, m.clock_seconds) for m in measured if m.arm == arm]
        first.append(seen[0][0])
        # A step begins where the one before has ended; a busy machine holds some of them up.
        assert statistics.median(following - begins - 5 * clock for (begins, _, clock), (following, _, _)
                                 in pairwise(seen)) == pytest.approx(0, abs=1)
        # Computing takes time of the timeline, and a busy machine more of it: steps are told apart by where they begin.
        fell = next(a.applied_second for a in applied if a.arm == arm)
        for steps, falls in (([(begins, seconds) for begins, seconds, _ in seen], fell), (predictions[arm], 5)):
            cut = [seconds for begins, seconds in steps if begins >= falls and begins + seconds <= 25]
            whole = [seconds for begins, seconds in steps if begins + seconds <= 5 or begins >= 25]
            assert min(cut) == pytest.approx(CUT, rel=0.15)
            assert min(whole) < CUT / 4
    assert min(first) == pytest.approx(0, abs=1)
    assert [(a.arm, a.second, a.what) for a in applied] == [
        (arm, second, tuple(f"{path}: rate {now} ({then} before)" for path in ("one -> far", "far -> one")))
        for arm in ("gloo", "shard") for second, now, then in ((5, "1 MB/s", "10 MB/s"), (25, "10 MB/s", "1 MB/s"))]
    assert all(a.late > 0 for a in applied)
    assert "Training step by step, shard, W = 2" in done.stdout
