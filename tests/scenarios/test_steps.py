"""Steps beside the network that they ran on."""

import io
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from emulator.ethernet import PAYLOAD
from emulator.topology import load
from scenarios.compare import join
from scenarios.predict import predict
from scenarios.records import Applied, Measurement, Prediction, append, sha256
from scenarios.records import load as load_records
from scenarios.report import report
from scenarios.scenario import load as load_scenario
from scenarios.steps import histories

ROOT = Path(__file__).parent.parent.parent

TOPOLOGY = """\
name: pair
sites: [here, there]
hosts:
  one: {site: here, access: {up: 5 MB/s}}
  far: {site: there}
paths: [{between: [here, there], rate: 2 MB/s, delay: 20 ms}]
timeline:
  changes:
    - {at: 20 s, between: [here, there], rate: 10 %}
    - {at: 30 s, from: one, to: far, rate: 100 %}
    - {at: 40 s, host: one, up: 50 %}
  traffic: [{from: far, to: one, start: 12 s, end: 21 s}]
"""


SCENARIO = """\
name: cut
topology: topology.yaml
worlds: {2: [one, two]}
arms: [gloo, shard]
speedup: 10
training: {steps: 5, warmup: 1}
"""

CUT = """\
name: three
sites: [here]
hosts: {one: {site: here}, two: {site: here}, three: {site: here}}
paths: [{between: [here, here], rate: 10 MB/s, delay: 10 ms}]
timeline:
  changes: [{at: 4 s, between: [one, two], rate: 10 %}]
  traffic: [{from: three, to: one, start: 1 s, end: 2 s}]
"""


def predicted(directory, topology=CUT):
    (directory / "topology.yaml").write_text(topology)
    (directory / "scenario.yaml").write_text(SCENARIO)
    return load_scenario(directory / "scenario.yaml")


def test_every_step_of_a_training_is_predicted(tmp_path):
    scenario = predicted(tmp_path)
    # Two ranks move the whole tensor over each path, at 10 and then at 1 MB/s; without computation that is all.
    whole = 16_867_332 / (10e6 * PAYLOAD)
    for prediction in predict(scenario):
        begins, times = zip(*prediction.detail["steps"], strict=True)
        assert begins[0] == 0
        assert begins[1:] == pytest.approx([begin + time for begin, time in zip(begins[:-1], times[:-1], strict=True)])
        assert times[:2] == pytest.approx([whole, whole], rel=0.06)
        assert times[3:] == pytest.approx([10 * whole, 10 * whole], rel=0.06)
        # The third begins before the cut: what is left then takes ten times as long.
        assert times[2] == pytest.approx(4 - begins[2] + 10 * (whole - (4 - begins[2])), rel=0.06)
        assert prediction.seconds == statistics.median(times[1:])


def test_a_network_that_stays_is_predicted_by_one_step(tmp_path):
    scenario = predicted(tmp_path, CUT.partition("timeline:")[0])
    assert ["steps" in prediction.detail for prediction in predict(scenario)] == [False, False]


def test_hosts_that_only_have_traffic_are_part_of_the_network(tmp_path):
    assert [host.name for host in predicted(tmp_path).network.hosts] == ["one", "two", "three"]


def test_a_trace_may_not_take_the_place_of_what_a_report_writes(tmp_path):
    (tmp_path / "points.csv").write_text("second,rate MB/s\n0,10\n5,1\n")
    (tmp_path / "topology.yaml").write_text(CUT.partition("  changes")[0]
                                            + "  traces: [{file: points.csv, between: [one, two]}]\n")
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    run = subprocess.run([sys.executable, "-m", "frogtorch", "predict", str(tmp_path / "scenario.yaml"), "--output",
                          str(tmp_path / "run")], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 1
    assert "a trace is called points.csv, as is what a report writes beside its copy; name it otherwise" in run.stderr
    assert not (tmp_path / "run").exists()


def test_each_step_is_beside_its_prediction_and_the_network(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    topology = load(tmp_path / "topology.yaml")
    point = {"world_size": 2, "hosts": ("one", "far"), "workload": "training", "nbytes": 8, "speedup": 10}
    predictions = [Prediction(**point, arm="shard", basis="blind", seconds=9, date="", topology_sha256="",
                              detail={"steps": [[0, 9], [10, 9], [20, 20], [41, 9]]})]
    # At k = 10 the clock runs for a tenth of the timeline's seconds; computing makes `seconds` less than that.
    measured = [Measurement(**point, arm="shard", repetition=number, second=second, clock_seconds=clock,
                            seconds=seconds, rank_seconds=(clock, clock), prediction="d")
                for number, second, clock, seconds in ((1, 9.5, 1, 9), (2, 19.5, 1.5, 18), (3, 34.5, 1, 9.9))]
    history, = histories({None: topology}, join(predictions, measured, "d"), predictions)
    assert (history.row.arm, history.row.world_size) == ("shard", 2)
    assert [(step.number, step.predicted_second, step.predicted, step.measured_second, step.measured)
            for step in history.steps] == [(1, 10, 9, 9.5, 9), (2, 20, 20, 19.5, 18), (3, 41, 9, 34.5, 9.9)]
    assert history.steps[2].error == pytest.approx(math.log(1.1))
    assert [step.network for step in history.steps] == [
        "as at second 0; traffic far -> one",
        "as at second 0; from 20 s on 2 paths: rate 0.2 MB/s (2 MB/s before); "
        "from 30 s on far -> one: rate 0.2 MB/s (2 MB/s before); traffic far -> one",
        "far -> one: rate 0.2 MB/s (2 MB/s before); from 40 s on 2 limits are not as at second 0"]


def test_the_report_shows_steps_and_what_was_applied(tmp_path):
    scenario = predicted(tmp_path)
    append(tmp_path / "predictions.jsonl", predict(scenario))
    predictions = load_records(tmp_path / "predictions.jsonl", Prediction)
    for p in predictions:
        point = {"arm": p.arm, "world_size": 2, "hosts": p.hosts, "workload": "training", "nbytes": p.nbytes,
                 "bucket_view": p.bucket_view, "speedup": 10}
        append(tmp_path / "measurements.jsonl", [
            Measurement(**point, repetition=step, second=second, seconds=2 * seconds, clock_seconds=seconds / 10,
                        rank_seconds=(seconds / 10,) * 2, prediction=sha256(tmp_path / "predictions.jsonl"))
            for step, (second, seconds) in enumerate(p.detail["steps"]) if step])
        done = {"campaign": 0, "speedup": 10, "arm": p.arm, "world_size": 2, "bucket_view": p.bucket_view}
        append(tmp_path / "applied.jsonl", [
            Applied(**done, what=("traffic three -> one, 1 MB/s",), second=1, applied_second=1.5, ended_second=2,
                    received_bytes=500_000),
            Applied(**done, what=("one -> two: rate 1 MB/s (10 MB/s before)",), second=4, applied_second=4.25)])
    shown, _ = report(tmp_path)
    console = Console(width=160, file=io.StringIO())
    console.print(shown)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    begins, takes = predictions[1].detail["steps"][4]
    assert (f"4 {begins:.1f} {begins:.1f} {takes:.3f} {2 * takes:.3f} +100.0% 2 paths: rate 1 MB/s (10 MB/s before)"
            in lines)
    # A quarter of a second late in the timeline's time is 25 ms by the clock.
    assert "2 shard off 1 25.0 25.0 traffic three -> one, 1 MB/s: 500 kB arrived from 1.5 to 2.0 s" in lines
    assert (tmp_path / "steps.png").stat().st_size > 0
