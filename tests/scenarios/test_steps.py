"""Steps beside the network that they ran on."""

import math

import pytest

from emulator.topology import load
from scenarios.compare import join
from scenarios.records import Measurement, Prediction
from scenarios.steps import courses

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
    course, = courses(topology, join(predictions, measured, "d"), predictions)
    assert (course.row.arm, course.row.world_size) == ("shard", 2)
    assert [(step.number, step.predicted_second, step.predicted, step.measured_second, step.measured)
            for step in course.steps] == [(1, 10, 9, 9.5, 9), (2, 20, 20, 19.5, 18), (3, 41, 9, 34.5, 9.9)]
    assert course.steps[2].error == pytest.approx(math.log(1.1))
    assert [step.network for step in course.steps] == [
        "as at second 0; traffic far -> one",
        "as at second 0; from 20 s on 2 paths: rate 0.2 MB/s (2 MB/s before); "
        "from 30 s on far -> one: rate 0.2 MB/s (2 MB/s before); traffic far -> one",
        "far -> one: rate 0.2 MB/s (2 MB/s before); from 40 s on 2 limits are not as at second 0"]
