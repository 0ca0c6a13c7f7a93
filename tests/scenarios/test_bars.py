"""Bars: on runs whose times are known, a tenth is seen, and one disturbed repetition is not taken for a regression."""

import json

import pytest

from scenarios.bars import checks
from scenarios.report import report
from scenarios.results import Results

BARS = """
bars:
  - {arm: gloo, over: predicted, at_least: 0.95, at_most: 1.06}
  - {arm: shard, over: predicted, at_most: 1.06}
  - {arm: shard, over: theory, world: 4, at_most: 1.06}
  - {arm: gloo, over: shard, world: 4, size: 16.9 MB, at_least: 2.8, at_most: 3.1}
"""


@pytest.fixture
def run(make_run):
    directory = make_run(noise=0.005, sizes=(2, 4))
    with (directory / "scenario.yaml").open("a") as scenario:
        scenario.write(BARS)
    return directory


def slow(directory, arm, factor, repetitions=range(6)):
    """Make the measured times of an arm's all-reduces longer, in these repetitions."""
    file = directory / "measurements.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if (line["arm"], line["workload"]) == (arm, "all_reduce") and line["repetition"] in repetitions:
            line["seconds"] *= factor
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_as_predicted_keeps_its_bars(run):
    held = checks(Results.load(run))
    # Seven sizes in two worlds for each of the first two bars, one world's b, one point.
    assert [check.bar.arm for check in held] == ["gloo"] * 14 + ["shard"] * 14 + ["shard"] + ["gloo"]
    assert not any(check.broken for check in held)
    # The run is 1.03 times its predictions, and its b so many times the theory's.
    assert all(check.ratio.value == pytest.approx(1.03, rel=0.005) for check in held[:29])
    # a + b·n of both arms at W = 4, b by DESIGN's theory, a as the run was made: 0.6 s and 0.09 s.
    per_byte = 2 / 4 / (0.7e6 * 1448 / 1514)
    ring, shard = 0.6 + 3 * per_byte * 16_900_000, 0.09 + per_byte * 16_900_000
    assert held[-1].ratio.value == pytest.approx(ring / shard, rel=0.01)
    assert report(run)[1]


def test_a_collective_that_is_a_tenth_slower_breaks_them_and_the_points_are_named(run):
    slow(run, "shard", 1.1)
    broken = [(str(check.bar), check.where) for check in checks(Results.load(run)) if check.broken]
    over_prediction = "shard ÷ predicted at most 1.06"
    assert broken[:3] == [(over_prediction, "W = 2, 4 KiB"), (over_prediction, "W = 2, 64 KiB"),
                          (over_prediction, "W = 2, 256 KiB")]
    assert len(broken) == 14 + 1 + 1
    assert broken[-2:] == [("shard ÷ theory at most 1.06", "W = 4, b"),
                           ("gloo ÷ shard at least 2.8 and at most 3.1", "W = 4, 16.9 MB")]
    assert not report(run)[1]


def test_half_of_the_repetitions_disturbed_is_no_regression(run):
    slow(run, "shard", 1.5, repetitions=[0, 2, 4])
    assert not any(check.broken for check in checks(Results.load(run)) if check.bar.over == "predicted")


def test_one_that_is_faster_than_it_can_be_is_as_wrong(run):
    slow(run, "gloo", 0.9)
    broken = [check for check in checks(Results.load(run)) if check.broken]
    assert {str(check.bar) for check in broken} == {"gloo ÷ predicted at least 0.95 and at most 1.06",
                                                    "gloo ÷ shard at least 2.8 and at most 3.1"}
