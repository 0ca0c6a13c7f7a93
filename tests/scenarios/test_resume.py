"""A run that is ended in the middle: what counts as measured, what is removed, and that it goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from made import PAIR

from scenarios import resume
from scenarios.progress import Estimate
from scenarios.records import Fidelity, Measurement, Outcome, RecordError, load

ROOT = Path(__file__).parent.parent.parent
REDUCED = {"schema": 1, "workload": "all_reduce", "campaign": 0, "world_size": 2, "arm": "shard", "nbytes": 8}
TRAINED = {"schema": 1, "workload": "training", "campaign": 0, "world_size": 2, "arm": "gloo", "bucket_view": True}


def written(file, *lines, cut=""):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)


def measurement(of, repetition, nbytes=8):
    return {**of, "nbytes": nbytes, "hosts": ["a", "b"], "repetition": repetition, "seconds": 1.0,
            "clock_seconds": 1.0, "rank_seconds": [1.0, 1.0], "prediction": "d"}


def outcome(rank):
    return {**TRAINED, "nbytes": 8, "hosts": ["a", "b"], "rank": rank, "steps": 2, "parameters_sha256": "ab",
            "held_out_loss": 0.5, "all_reduces": None}


def probe(campaign, when, valid=True):
    return {"schema": 1, "campaign": campaign, "when": when, "speedup": 1.0, "source": "a", "target": "b",
            "rtt_seconds": 0.1, "expected_rtt_seconds": 0.1, "goodput": 1.0, "expected_goodput": 1.0, "valid": valid}


def numbers(file):
    return [json.loads(line)["repetition"] for line in file.read_text().splitlines()]


def test_what_was_cut_off_and_what_no_measurement_belongs_to_is_removed(tmp_path):
    written(tmp_path / "measurements.jsonl", measurement(REDUCED, 0), measurement(REDUCED, 1), cut='{"schema": 1, "a')
    written(tmp_path / "telemetry/rank0.jsonl", *({**REDUCED, "repetition": n, "error": None} for n in (0, 1, 2)))
    resume.mend(tmp_path)
    assert numbers(tmp_path / "measurements.jsonl") == [0, 1]
    assert numbers(tmp_path / "telemetry/rank0.jsonl") == [0, 1]
    assert resume.finished(tmp_path) == {(0, "all_reduce", 2, "shard", 8, n) for n in (0, 1)}


@pytest.mark.parametrize(("ranks", "left"), [((0, 1), 2), ((0,), 0), ((), 0)])
def test_a_training_counts_with_the_outcomes_of_all_its_ranks(tmp_path, ranks, left):
    written(tmp_path / "measurements.jsonl", measurement(TRAINED, 8), measurement(TRAINED, 9))
    written(tmp_path / "outcomes.jsonl", *map(outcome, ranks))
    written(tmp_path / "telemetry/rank0.jsonl", TRAINED, TRAINED)
    resume.mend(tmp_path)
    assert len(load(tmp_path / "measurements.jsonl", Measurement)) == left
    assert len(load(tmp_path / "outcomes.jsonl", Outcome)) == left
    assert len((tmp_path / "telemetry/rank0.jsonl").read_text().splitlines()) == left


def test_mending_twice_changes_nothing_more(tmp_path):
    written(tmp_path / "measurements.jsonl", measurement(REDUCED, 0), measurement(TRAINED, 8), cut="{")
    written(tmp_path / "fidelity.jsonl", probe(0, "before"), cut="{")
    resume.mend(tmp_path)
    once = [(tmp_path / name).read_bytes() for name in ("measurements.jsonl", "fidelity.jsonl")]
    resume.mend(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("measurements.jsonl", "fidelity.jsonl")] == once
    assert once[1].count(b"\n") == 1


@pytest.mark.parametrize(("line", "what"), [("{oops}", "JSONDecodeError"), ("[1]", "TypeError"),
                                            ('{"workload": "all_reduce"}', "KeyError"),
                                            ("\udcff", "UnicodeDecodeError")])
def test_a_broken_line_is_named_and_nothing_is_removed(tmp_path, line, what):
    written(tmp_path / "measurements.jsonl", measurement(REDUCED, 0), cut="{")
    file = tmp_path / "telemetry/rank0.jsonl"
    written(file, {**REDUCED, "repetition": 0})
    file.write_bytes(file.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    before = (tmp_path / "measurements.jsonl").read_bytes()
    with pytest.raises(RecordError, match=rf"rank0\.jsonl:2: this is no record of a run \({what}.*take the line out"):
        resume.mend(tmp_path)
    assert (tmp_path / "measurements.jsonl").read_bytes() == before


def test_a_void_campaign_goes_whole_and_the_others_stay(tmp_path):
    other = {**REDUCED, "campaign": 1}
    written(tmp_path / "measurements.jsonl", measurement(REDUCED, 0), measurement(other, 0))
    written(tmp_path / "telemetry/rank0.jsonl", {**REDUCED, "repetition": 0}, {**other, "repetition": 0})
    written(tmp_path / "fidelity.jsonl", probe(0, "before"), probe(0, "after", valid=False), probe(1, "before"))
    assert resume.off(tmp_path, 0) == ["a -> b"]
    assert resume.off(tmp_path, 1) == []
    kept = resume.void(tmp_path, 0)
    assert list(resume.voids(tmp_path)) == [(0, kept)]
    assert [m.campaign for m in load(tmp_path / "measurements.jsonl", Measurement)] == [1]
    assert [m.campaign for m in load(kept / "measurements.jsonl", Measurement)] == [0]
    assert [p.valid for p in load(kept / "fidelity.jsonl", Fidelity)] == [True, False]
    assert [p.campaign for p in load(tmp_path / "fidelity.jsonl", Fidelity)] == [1]
    assert len((kept / "telemetry/rank0.jsonl").read_text().splitlines()) == 1
    assert resume.off(tmp_path, 0) == []


def test_time_left_is_the_prediction_times_how_wrong_it_was(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left = Estimate({"a": 10.0, "b": 100.0, "c": 50.0})
    assert str(left) == "about 0:02:40 left in all"
    now[0] = 20.0          # a took twice as long as predicted, so b and c should take 300 s
    left.finished("a")
    assert str(left) == "about 0:05:00 left in all"
    now[0] = 30.0
    assert str(left) == "about 0:04:50 left in all"


SCENARIO = """\
name: small
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo, shard, direct]
repetitions: 3
speedup: 10
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.5 MB, 2 MB]}
training: {workload: small, steps: 12, warmup: 2}
"""
TOPOLOGY = PAIR + """\
defaults: {rate: 2 MB/s}
paths:
  - {between: [here, there], delay: 20 ms}
"""


def frogtorch(*arguments):
    return subprocess.run([sys.executable, "-m", "frogtorch", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, check=False)


def points(run):
    return Counter((m.workload, m.arm, m.nbytes, m.repetition)
                   for m in load(run / "measurements.jsonl", Measurement))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)      # campaigns whose links were off are measured twice
def test_a_run_that_is_killed_in_the_middle_of_an_arm_goes_on_and_counts_everything_once(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    run = tmp_path / "run"
    assert frogtorch("predict", tmp_path / "small.yaml", "--output", run).returncode == 0
    runner = subprocess.Popen([sys.executable, "-m", "frogtorch", "measure", str(run)], cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    name = None
    for line in runner.stderr:
        if line.startswith("run "):
            name = line.split()[1].rstrip(":")
        if "training, shard" in line:       # gloo has trained, shard is at it
            os.kill(runner.pid, signal.SIGKILL)
            break
    runner.wait()
    runner.stderr.close()
    assert frogtorch("down", name).returncode == 0
    # A report of what there is says what is missing.
    report = frogtorch("report", run)
    assert report.returncode == 1
    assert "INCOMPLETE" in report.stdout
    assert "not measured: shard, W=2, training" in report.stdout
    before = points(run)
    done = frogtorch("measure", "--resume", run)
    assert done.returncode == 0, done.stderr
    after = points(run)
    assert before <= after
    expected = {("all_reduce", arm, nbytes, n) for arm in ("gloo", "shard", "direct")
                for nbytes in (4096, 1_050_000, 1_500_000, 2_000_000) for n in range(3)}
    steps = {(workload, arm, step) for workload, arm, _, step in after if workload == "training"}
    assert set(after.values()) == {1}
    assert {point for point in after if point[0] == "all_reduce"} == expected
    assert steps == {("training", arm, step) for arm in ("gloo", "shard", "direct") for step in range(2, 12)}
    assert Counter((o.arm, o.rank) for o in load(run / "outcomes.jsonl", Outcome)) == {
        (arm, rank): 1 for arm in ("gloo", "shard", "direct") for rank in (0, 1)}
    telemetry = [json.loads(line) for line in (run / "telemetry/rank0.jsonl").read_text().splitlines()]
    assert set(Counter((t["arm"], t["nbytes"], t["repetition"]) for t in telemetry
                       if t["workload"] == "all_reduce").values()) == {1}
    assert "INCOMPLETE" not in frogtorch("report", run).stdout
