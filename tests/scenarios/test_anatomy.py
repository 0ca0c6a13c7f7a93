"""a and b taken apart, against sums done by hand."""

import dataclasses
import io
import json
from itertools import islice

import pytest
from rich.console import Console

from emulator.topology import load
from scenarios import anatomy
from scenarios.campaigns import campaigns
from scenarios.progress import Stages
from scenarios.results import Results
from scenarios.runner import Runner
from scenarios.scenario import Until
from scenarios.scenario import load as load_scenario

TOPOLOGY = """\
name: made
sites: [here]
hosts: {a: {site: here}, b: {site: here}, c: {site: here}}
defaults: {rate: 1 MB/s, delay: 10 ms}
paths:
  - {between: [here, here]}
"""


@pytest.fixture
def topology(tmp_path):
    (tmp_path / "made.yaml").write_text(TOPOLOGY)
    return load(tmp_path / "made.yaml")


def test_busbw_is_twice_the_others_share_of_algbw():
    # 1 s/MB is an algbw of 1 MB/s; × 2·3/4.
    assert anatomy.busbw(1e-6, 4) == pytest.approx(1.5e6)


def test_a_is_delays_bytes_and_the_rest(topology):
    # shard: two one-way delays, one after the other, where nothing limits; small cells go unasked.
    of = anatomy.split(topology, ["a", "b", "c"], "shard", 48_000, 0.08)
    assert of.delays == pytest.approx(0.020)
    # Two messages of 16 kB a path, one after the other: 16 ms each, and headers, less what a burst lets pass at once.
    assert 0.5 * 0.032 < of.bytes < 1.1 * 0.032
    assert of.delays + of.bytes + of.rest == pytest.approx(0.08)


def test_whole_waits_for_one_delay(topology):
    assert anatomy.split(topology, ["a", "b", "c"], "whole", 4092, 0.03).delays == pytest.approx(0.010)


def test_nothing_but_delays_is_left(topology):
    left = anatomy.unlimited(topology)
    assert {(path.rate, path.window, path.delay) for path in left.paths} == {(None, None, 0.01)}


def disturb(measurements, nbytes):
    """Make one repetition of shard's a fifth longer."""
    lines = [json.loads(line) for line in measurements.read_text().splitlines()]
    next(line for line in lines if (line["nbytes"], line["arm"]) == (nbytes, "shard"))["seconds"] *= 1.2
    measurements.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_how_a_scenario_that_repeats_ended_is_said(make_run):
    run = make_run(noise=0.0, sizes=(2,))
    scenario = run / "scenario.yaml"
    scenario.write_text(scenario.read_text() + "until: {within: 5 %, budget: 60 s}\n")
    said = str(anatomy.sureness(Results.load(run)))
    assert said.splitlines() == [
        "W = 2, speed-up 1: 6 blocks; the 95 % interval of every median is within 5%.",
        "W = 2, speed-up 10: 6 blocks; the 95 % interval of every median is within 5%."]
    # Of six values the 95 % interval is from the least to the greatest: one of them 20 % off, and it reaches that far.
    disturb(run / "measurements.jsonl", 65536)
    assert str(anatomy.sureness(Results.load(run))).splitlines()[0] == (
        "W = 2, speed-up 1: 6 blocks; the time was over, with the interval of shard at 64 KiB reaching 20.0%.")


def test_blocks_go_on_until_medians_are_sure_or_the_time_is_over(make_run):
    run = make_run(noise=0.0, sizes=(2,))
    scenario = load_scenario(run / "scenario.yaml", run / "topology.yaml")
    predictions = run / "predictions.jsonl"
    predictions.write_text(predictions.read_text().replace("7" * 64, scenario.topology.sha256))
    campaign, world = campaigns(scenario)[0], scenario.worlds[2]

    def blocks(within, budget):
        until = dataclasses.replace(scenario, until=Until(within, budget))
        return list(islice(Runner(until, run, "made", "auto", Stages())._blocks(campaign, world, ""), 9))

    assert blocks(0.05, 600) == [0, 1, 2, 3, 4, 5]      # without noise they are sure
    disturb(run / "measurements.jsonl", 2_100_000)
    assert blocks(0.05, 600) == [0, 1, 2, 3, 4, 5, 6, 7, 8]      # and on: nothing new is measured here
    assert blocks(0.25, 600) == [0, 1, 2, 3, 4, 5]
    assert blocks(0.05, 1e-9) == [0, 1, 2, 3, 4, 5]


def test_bounds_stand_beside_b(exact_run):
    out = io.StringIO()
    Console(file=out, width=100).print(anatomy.bounds(Results.load(exact_run)))
    (line,) = [line.split() for line in out.getvalue().splitlines() if line.split()[:2] == ["4", "shard"]]
    # B = 0.6695 MB/s: shard 2/4B = 0.7468 s/MB, the ring three times that, measured 1.03 × the first; busbw 2·3/4 ÷ b.
    assert line[:6] == ["4", "shard", "0.7692", "1.950", "2.241", "0.7468"]
    # As worked out apart: 9.64 s for 16.867 MB at W = 4, headers apart.
    assert float(line[6]) == pytest.approx(9.64 / 16.867332 * 1514 / 1448, rel=1e-3)
