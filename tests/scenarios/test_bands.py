"""Campaigns on networks of their own: each predicted and measured on its timeline, and every arm's band."""

import io
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import made
import pytest
from rich.console import Console

from scenarios import accounts, original, resume, runner, timelines
from scenarios.page.page import headline
from scenarios.predict import predict
from scenarios.progress import Stages
from scenarios.ranks import RankError
from scenarios.records import Applied, Failure, Fidelity, Measurement, Outcome, Prediction, append, load, sha256
from scenarios.report import report
from scenarios.results import Results
from scenarios.scenario import load as load_scenario

ROOT = Path(__file__).parent.parent.parent

TOPOLOGY = made.PAIR + """\
paths: [{between: [here, there], rate: 2 MB/s, delay: 20 ms}]
"""
SCENARIO = """\
name: moving
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo, shard]
speedup: 10
training: {workload: small, steps: 4, warmup: 1}
campaigns: {number: 3, seed: 5, length: 40 s}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return load_scenario(tmp_path / "scenario.yaml")


@pytest.fixture
def run(tmp_path, scenario):
    """A run directory with its predictions, as `frogtorch predict` writes it."""
    timelines.record(tmp_path, scenario.timelines)
    append(tmp_path / "predictions.jsonl", predict(scenario))
    (tmp_path / "environment.json").write_text("{}")
    return tmp_path


def test_each_campaign_is_predicted_as_its_network_alone_would_be(scenario, tmp_path):
    found = {(p.arm, p.timeline): p for p in predict(scenario)}
    assert found.keys() == {(arm, timeline) for arm in ("gloo", "shard") for timeline in range(3)}
    for arm in ("gloo", "shard"):
        assert len({found[arm, timeline].seconds for timeline in range(3)}) == 3
    for timeline, topology in enumerate(scenario.timelines):
        alone = tmp_path / f"alone{timeline}"
        alone.mkdir()
        (alone / "topology.yaml").write_text(topology.text)
        (alone / "scenario.yaml").write_text(SCENARIO.partition("campaigns")[0])
        for p in predict(load_scenario(alone / "scenario.yaml")):
            of = found[p.arm, timeline]
            assert (p.seconds, p.detail["steps"], p.topology_sha256) == (
                of.seconds, of.detail["steps"], of.topology_sha256)
            assert p.timeline is None


def test_a_run_directory_has_the_networks_that_were_drawn_and_they_count(run, scenario):
    file = run / "campaigns/1.yaml"
    kept = load_scenario(run / "scenario.yaml", run / "topology.yaml")
    assert [topology.sha256 for topology in kept.timelines] == [topology.sha256 for topology in scenario.timelines]
    file.write_text(re.sub(r"rate: [0-9.]+ %", "rate: 55 %", file.read_text(), count=1))
    changed = load_scenario(run / "scenario.yaml", run / "topology.yaml")
    assert changed.timelines[1].path("one", "far").rate == pytest.approx(1.1e6)
    with pytest.raises(ValueError, match=r"predictions are about another campaigns/1\.yaml \(SHA-256 .*predict again"):
        runner.Runner(changed, run, "run", "auto", Stages())


class World:
    """What the made-up networks and ranks do; each test says what goes wrong."""

    def __init__(self):
        self.brought_up = []     # a topology a network
        self.told = []           # the campaign's rate at second 0, and the arm
        self.probes = []         # validity of each probing that is to come; then all are valid
        self.fails = lambda index, arm: False


class Network(made.Network):
    def __init__(self, world, topology, speedup):
        super().__init__(world, "far", speedup)
        self.topology = topology
        world.brought_up.append(topology)
        world.network = self


class Ranks:
    def __init__(self, world):
        self.world, self.modules = world, [{"frogtorch": "a"}] * 2

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def tell(self, command, on_step, on_start, arm, steps, **rest):
        index = len(self.world.brought_up) - 1
        self.world.told.append((self.world.network.topology.path("one", "far").rate, arm))
        if self.world.fails(index, arm):
            raise RankError("rank 1 on far failed: train")
        on_start(0.0)
        return [{"steps": [(float(n), n + 0.5) for n in range(steps)], "telemetry": [], "parameters_sha256": "ab",
                 "held_out_loss": 0.5, "exchanges": [(float(n), n + 0.4) for n in range(steps)]} for _ in range(2)]


class Conductor:
    """Has nothing to play, and says which timeline it was given."""

    played = None

    def __init__(self, network, topology, record):
        Conductor.played.append(topology.timeline)
        self.applied = (record(what=("a change",), second=1.0, applied_second=1.1),)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def begin(self, start):
        pass

    def second(self, clock):
        return 10 * clock


@pytest.fixture
def world():
    return World()


@pytest.fixture
def measure(run, monkeypatch, world):
    monkeypatch.setattr(runner, "Ranks", lambda places: Ranks(world))
    monkeypatch.setattr(runner, "Conductor", Conductor)
    monkeypatch.setattr(Conductor, "played", [])

    def measure():
        known = load_scenario(run / "scenario.yaml", run / "topology.yaml")
        with Stages() as stages:
            return runner.Runner(known, run, "run", "auto", stages,
                                 lambda topology, name, engine, k: Network(world, topology, k)).measure()

    return measure


def measured(run):
    return Counter((m.campaign, m.timeline, m.arm, m.repetition)
                   for m in load(run / "measurements.jsonl", Measurement))


EVERY = {(campaign, campaign, arm, step): 1 for campaign in range(3) for arm in ("gloo", "shard") for step in (1, 2, 3)}


def test_every_arm_of_a_campaign_trains_on_its_own_network_and_timeline(measure, world, run, scenario):
    assert measure() == []
    assert measured(run) == EVERY
    # Brought up as it is at second 0, which is what its probes expect; no campaign begins like another.
    rates = [topology.path("one", "far").rate for topology in scenario.timelines]
    assert len(set(rates)) == 3
    assert [topology.path("one", "far").rate for topology in world.brought_up] == rates
    assert world.told == [(rate, arm) for rate in rates for arm in ("gloo", "shard")]
    assert Conductor.played == [topology.timeline for topology in scenario.timelines for _ in range(2)]
    assert {m.second for m in load(run / "measurements.jsonl", Measurement)} == {10.0, 20.0, 30.0}
    assert Counter((a.campaign, a.arm) for a in load(run / "applied.jsonl", Applied)) == {
        (campaign, arm): 1 for campaign in range(3) for arm in ("gloo", "shard")}
    assert {(o.campaign, o.timeline) for o in load(run / "outcomes.jsonl", Outcome)} == {(0, 0), (1, 1), (2, 2)}
    told = len(world.told)
    assert measure() == []                       # resumed, there is nothing left
    assert len(world.told) == told


def test_a_run_that_is_ended_goes_on_in_the_campaign_that_it_was_in(measure, world, run):
    world.fails = lambda index, arm: (index, arm) == (1, "shard")
    (failure,) = measure()
    assert (failure.campaign, failure.arm) == (1, "shard")
    assert load(run / "failures.jsonl", Failure) == [failure]
    assert measured(run) == {point: 1 for point in EVERY if (point[0], point[2]) != (1, "shard")}
    world.fails, told = (lambda *_: False), len(world.told)
    assert measure() == []
    assert measured(run) == EVERY
    assert world.told[told:] == [world.told[3]]  # that arm of that campaign, on its network, and nothing else


def test_a_void_campaign_is_measured_again_on_the_same_network(measure, world, run):
    world.probes = [True, True, True, False]     # after the second campaign
    assert measure() == []
    assert measured(run) == EVERY
    ((campaign, kept),) = resume.voids(run)
    assert (campaign, measured(kept)) == (1, {point: 1 for point in EVERY if point[0] == 1})
    rates = [topology.path("one", "far").rate for topology in world.brought_up]
    assert rates[1] == rates[2]
    assert len(set(rates)) == 3


FOUNDING = """\
name: made
topology: topology.yaml
worlds: {4: [one, two, three, four]}
arms: [gloo, shard, direct]
training: {steps: 4, warmup: 1}
campaigns: {number: 3, seed: 5, length: 40 s}
"""
FOUR = """\
name: four
sites: [here]
hosts: {one: {site: here}, two: {site: here}, three: {site: here}, four: {site: here}}
paths: [{between: [here, here], rate: 1 MB/s, delay: 1 ms}]
"""
TIMES = {"gloo": ((20, 30, 70), (21, 28, 63)), "shard": ((12, 18, 15), (12.5, 17.5, 15)),
         "direct": ((8, 8, 10), (8, 9, 10))}
"""Median seconds by campaign: predicted and measured."""


@pytest.fixture
def made(tmp_path):
    """A run of three campaigns with those medians: of the three measured steps one is far above, one far below."""
    (tmp_path / "topology.yaml").write_text(FOUR)
    (tmp_path / "scenario.yaml").write_text(FOUNDING)
    scenario = load_scenario(tmp_path / "scenario.yaml")
    timelines.record(tmp_path, scenario.timelines)
    point = {"world_size": 4, "hosts": ("one", "two", "three", "four"), "workload": "training", "nbytes": 16_867_332,
             "bucket_view": False}
    append(tmp_path / "predictions.jsonl", [
        Prediction(**point, arm=arm, timeline=timeline, basis="blind", seconds=seconds, date="",
                   topology_sha256=scenario.timelines[timeline].sha256,
                   detail={"steps": [[seconds * n, seconds] for n in range(4)]})
        for timeline in range(3) for arm, (predicted, _) in TIMES.items() for seconds in [predicted[timeline]]])
    append(tmp_path / "measurements.jsonl", [
        Measurement(**point, arm=arm, timeline=timeline, campaign=timeline, repetition=step, seconds=seconds * factor,
                    clock_seconds=seconds * factor, rank_seconds=(seconds,) * 4, second=seconds * step,
                    prediction=sha256(tmp_path / "predictions.jsonl"))
        for timeline in range(3) for arm, (_, of) in TIMES.items() for seconds in [of[timeline]]
        for step, factor in ((1, 5), (2, 0.2), (3, 1))])
    append(tmp_path / "fidelity.jsonl", [
        Fidelity(campaign=campaign, when=when, speedup=1, source="one", target="two", rtt_seconds=0.002,
                 expected_rtt_seconds=0.002, goodput=1e6, expected_goodput=1e6, valid=True)
        for campaign in range(3) for when in ("before", "after")])
    return tmp_path


def lines(renderable):
    out = io.StringIO()
    Console(file=out, width=100).print(renderable)
    return [line.split() for line in out.getvalue().splitlines()]


def test_bands_stand_beside_their_predictions_and_the_original_s(made):
    (table,) = accounts.bands(Results.load(made))
    assert lines(table)[-4:-1] == [
        ["4", "gloo", "off", "3", "21.000–63.000", "3.000", "20.000–70.000", "3.500", "13.1–62.0"],
        ["4", "shard", "off", "3", "12.500–17.500", "1.400", "12.000–18.000", "1.500", "12.3–15.3"],
        ["4", "direct", "off", "3", "8.000–10.000", "1.250", "8.000–10.000", "1.250", "–"]]


def test_a_band_has_a_campaign_s_median_each(made):
    gloo, shard, direct = accounts.across(Results.load(made))
    assert (gloo.measured, gloo.predicted) == ({0: 21, 1: 28, 2: 63}, {0: 20, 1: 30, 2: 70})
    assert (shard.arm, shard.original, direct.original) == ("shard", (12.3, 12.9, 13.0, 13.4, 15.3), ())


def test_pairs_and_errors_are_of_one_campaign_each(made):
    results = Results.load(made)
    pairs = accounts.ratios_of_steps(results)
    assert [(pair.campaign, pair.above, pair.below, pair.ratio.value) for pair in pairs] == [
        (0, 21, 12.5, pytest.approx(1.68)), (1, 28, 17.5, pytest.approx(1.6)), (2, 63, 15, pytest.approx(4.2))]
    assert {(row.arm, row.timeline): row.error("blind") for row in results.rows if row.arm == "direct"} == {
        ("direct", 0): 0, ("direct", 1): pytest.approx(0.11778, abs=1e-5), ("direct", 2): 0}  # ln(9 / 8)


def test_the_report_and_its_page_show_the_bands(made):
    shown, well = report(made)
    text = "\n".join(" ".join(line) for line in lines(shown))
    assert well is True
    assert "INCOMPLETE" not in text
    assert "4 gloo off 3 21.000–63.000 3.000 20.000–70.000 3.500 13.1–62.0" in text
    band = next(row for row in original.rows(Results.load(made)) if row.figure.startswith("band of gloo"))
    assert (band.measured, band.predicted) == ("21.0–63.0 s: 200%", "20.0–70.0 s: 250%")
    assert band.network.endswith(", changing")
    assert "Training step by step" not in text
    page = (made / "report.html").read_text()
    assert "Bands across campaigns" in page
    assert "drift apart" in page
    assert (made / "bands.png").stat().st_size > 0
    assert ("Over 3 campaigns gloo's median of a step goes from 21.000 to 63.000 s, 3.00 times that, W = 4, "
            "bucket view off.") in str(headline(Results.load(made)))


def test_a_campaign_that_is_not_measured_is_missing(made):
    file = made / "measurements.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True)
                            if '"timeline":2' not in line or '"arm":"gloo"' not in line))
    assert Results.load(made).missing == (
        "not measured: gloo, W=4, training of 16867332 bytes, bucket view off, timeline 2",)


@pytest.mark.root
@pytest.mark.slow
def test_two_campaigns_are_drawn_predicted_and_measured(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "moving.yaml").write_text(SCENARIO.replace("number: 3", "number: 2").replace("steps: 4", "steps: 3"))
    run = tmp_path / "run"
    for command in (["predict", str(tmp_path / "moving.yaml"), "--output", str(run)], ["measure", str(run)]):
        done = subprocess.run([sys.executable, "-m", "frogtorch", *command], cwd=ROOT, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
    networks = timelines.recorded(run, 2)
    found = load(run / "measurements.jsonl", Measurement)
    assert Counter((m.timeline, m.arm) for m in found) == {(n, arm): 2 for n in (0, 1) for arm in ("gloo", "shard")}
    # Each path's probes are held against the links as they were at second 0 of that campaign.
    probes = [json.loads(line) for line in (run / "fidelity.jsonl").read_text().splitlines()]
    for probe in probes:
        path = networks[probe["campaign"]].path(probe["source"], probe["target"])
        assert probe["expected_goodput"] == pytest.approx(path.rate * 10 * 1448 / 1514, rel=1e-3)
    # Every arm had its campaign's changes from the first on, as far as its training went.
    applied = load(run / "applied.jsonl", Applied)
    for campaign, arm in product((0, 1), ("gloo", "shard")):
        seconds = [a.second for a in applied if (a.campaign, a.arm) == (campaign, arm) and a.received_bytes is None]
        assert len(seconds) > 1
        assert tuple(seconds) == networks[campaign].timeline.moments[:len(seconds)]
    # Two terms have one order of summation, and no network changes them.
    assert len({o.parameters_sha256 for o in load(run / "outcomes.jsonl", Outcome)}) == 1
