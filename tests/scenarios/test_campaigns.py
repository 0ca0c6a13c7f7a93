"""The runner's campaigns on a network and ranks that are made up: a rank that dies, links that are off, mixed code."""

import json
from collections import Counter

import pytest
from made import Network

from scenarios import resume, runner
from scenarios.compare import CompareError
from scenarios.predict import predict
from scenarios.progress import Stages
from scenarios.ranks import RankError
from scenarios.records import Failure, Fidelity, Measurement, RecordError, append, load
from scenarios.scenario import load as load_scenario

TOPOLOGY = """\
name: pair
sites: [here]
hosts: {one: {site: here}, two: {site: here}}
defaults: {rate: 2 MB/s}
paths: [{between: [here, here], delay: 2 ms}]
"""
SCENARIO = """\
name: small
topology: topology.yaml
worlds: {2: [one, two]}
arms: [gloo, shard]
repetitions: 2
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.5 MB, 2 MB]}
"""
SIZES = (4096, 1_050_000, 1_500_000, 2_000_000)
EVERY = {(arm, nbytes, n): 1 for arm in ("gloo", "shard") for nbytes in SIZES for n in (0, 1)}


class World:
    """What the made-up network and ranks do; each test says what goes wrong."""

    def __init__(self):
        self.probes = []            # validity of each probing that is to come; then all are valid
        self.told = []
        self.fails = lambda arm, nbytes, repetition: False
        self.modules = [{"frogtorch": "a"}, {"frogtorch": "a"}]


class Ranks:
    def __init__(self, world):
        self.world, self.modules = world, world.modules

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def tell(self, command, arm, nbytes, repetition):
        self.world.told.append((arm, nbytes, repetition))
        if self.world.fails(arm, nbytes, repetition):
            raise RankError("rank 1 on two failed: all_reduce\nTraceback: its own")
        return [{"start": 0.0, "end": 1.0, "telemetry": [{"rank": rank, "world_size": 2, "nbytes": nbytes}]}
                for rank in range(2)]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def measure(tmp_path, monkeypatch, world):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "environment.json").write_text("{}")
    scenario = load_scenario(tmp_path / "scenario.yaml")
    append(tmp_path / "predictions.jsonl", predict(scenario, None))
    monkeypatch.setattr(runner, "Ranks", lambda places: Ranks(world))

    def measure():
        with Stages() as stages:
            return runner.Runner(scenario, tmp_path, "run", "auto", stages, lambda *_: Network(world, "two")).measure()

    return measure


def measured(run):
    return Counter((m.arm, m.nbytes, m.repetition) for m in load(run / "measurements.jsonl", Measurement))


def test_everything_is_measured_once_and_a_second_time_nothing(measure, world, tmp_path, capfd):
    assert measure() == []
    assert measured(tmp_path) == EVERY
    assert "measured already" not in capfd.readouterr().err
    told = len(world.told)
    assert measure() == []
    assert "all was measured already; `frogtorch report" in capfd.readouterr().err
    assert (measured(tmp_path), len(world.told)) == (EVERY, told)


def test_a_run_whose_predictions_were_changed_is_not_resumed(measure, world, tmp_path):
    world.fails = lambda arm, nbytes, repetition: arm == "gloo"
    measure()
    told, file = len(world.told), tmp_path / "predictions.jsonl"
    file.write_text(file.read_text().replace('"seconds":', '"seconds": ', 1))
    with pytest.raises(CompareError, match=r"8 of 8 measurements answer other predictions: .* put them back"):
        measure()
    assert len(world.told) == told


def test_a_run_whose_environment_is_broken_is_not_resumed(measure, world, tmp_path):
    (tmp_path / "environment.json").write_text('{"ranks": [{}]}')
    with pytest.raises(RecordError, match=r"environment\.json: ranks\.0\.world_size: Field required"):
        measure()
    assert world.told == []


def test_a_rank_that_fails_ends_its_point_and_its_error_is_kept(measure, world, tmp_path):
    world.fails = lambda arm, nbytes, repetition: (arm, nbytes, repetition) == ("shard", 1_500_000, 1)
    (failure,) = measure()
    assert load(tmp_path / "failures.jsonl", Failure) == [failure]
    assert (failure.arm, failure.nbytes, failure.repetition) == ("shard", 1_500_000, 1)
    assert "Traceback: its own" in failure.error
    assert measured(tmp_path) == {point: 1 for point in EVERY if point != ("shard", 1_500_000, 1)}
    # Resumed with what was wrong mended, only that repetition is missing.
    world.fails = lambda *_: False
    assert measure() == []
    assert measured(tmp_path) == EVERY


def test_an_arm_that_always_fails_leaves_the_others(measure, world, tmp_path):
    world.fails = lambda arm, nbytes, repetition: arm == "gloo"
    failures = measure()
    assert {failure.arm for failure in failures} == {"gloo"}
    assert len(failures) == 1        # at its warm-up: all of its points end with it
    assert measured(tmp_path) == {point: 1 for point in EVERY if point[0] == "shard"}


def test_a_campaign_whose_links_were_off_is_void_and_measured_again(measure, world, tmp_path):
    world.probes = [True, False]
    assert measure() == []
    assert measured(tmp_path) == EVERY
    ((campaign, kept),) = resume.voids(tmp_path)
    assert (campaign, measured(kept)) == (0, EVERY)
    assert all(probe.valid for probe in load(tmp_path / "fidelity.jsonl", Fidelity))


def test_links_that_stay_off_are_measured_twice_and_then_called_invalid(measure, world, tmp_path):
    world.probes = [False] * 20
    measure()
    assert measured(tmp_path) == EVERY
    assert len(list(resume.voids(tmp_path))) == 1
    assert not any(probe.valid for probe in load(tmp_path / "fidelity.jsonl", Fidelity))
    told = len(world.told)
    measure()                        # resumed: it has come to its end
    assert len(world.told) == told


def test_ranks_that_run_other_code_than_each_other_measure_nothing(measure, world, tmp_path):
    world.modules = [{"frogtorch": "a"}, {"frogtorch": "b"}]
    with pytest.raises(ValueError, match="mixed code: rank 1 on two does not run the same frogtorch as rank 0 on one"):
        measure()
    assert world.told == []


def test_a_run_is_not_resumed_with_other_code(measure, world, tmp_path):
    world.fails = lambda arm, nbytes, repetition: arm == "gloo"
    measure()
    assert json.loads((tmp_path / "environment.json").read_text())["ranks"][1]["host"] == "two"
    world.fails = lambda *_: False
    world.modules = [{"frogtorch": "new"}] * 2
    with pytest.raises(ValueError, match="mixed code"):
        measure()
