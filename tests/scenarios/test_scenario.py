"""Scenarios: what a file becomes, and what is refused, with line and mend."""

import subprocess
import sys
from pathlib import Path

import pytest

from emulator.topology import TopologyError
from scenarios.scenario import AllReduce, Scenario, ScenarioError, Training, Until, load
from scenarios.workloads import FOUNDING

ROOT = Path(__file__).parents[2]
BROKEN = sorted((ROOT / "tests/broken/scenarios").glob("*.yaml"))

NETWORK = """\
name: pair
sites: [lab]
hosts: {left: {site: lab, slots: 2}, right: {site: lab}}
paths: [{between: [lab, lab], delay: 1 ms, rate: 1 MB/s}]
"""

EVERYTHING = """\
name: everything
topology: networks/pair.yaml
worlds:
  3: [left, right, left]
  2: [right, left]
arms: [gloo, shard, pipelined, whole]
repetitions: 6
speedup: 5
timeout: 60 s
all_reduce:
  intercept: 4 KiB
  slope: [2.1 MB, 8.4 MB, 4.2 MB, 1 MiB]
  beside: [4 KiB, 256 KiB, 4.2 MB]
training: {steps: 48, warmup: 8, bucket_view: true}
"""


def read(directory: Path, text: str) -> Scenario:
    (directory / "networks").mkdir()
    (directory / "networks/pair.yaml").write_text(NETWORK)
    file = directory / "scenario.yaml"
    file.write_text(text)
    return load(file)


def test_everything_that_a_scenario_says(tmp_path: Path) -> None:
    scenario = read(tmp_path, EVERYTHING)
    assert scenario.name == "everything"
    assert scenario.file == str(tmp_path / "scenario.yaml")
    assert scenario.text == EVERYTHING
    assert scenario.topology.name == "pair"
    assert list(scenario.worlds.items()) == [(3, ("left", "right", "left")), (2, ("right", "left"))]
    assert scenario.arms == ("gloo", "shard", "pipelined", "whole")
    assert (scenario.repetitions, scenario.speedups, scenario.timeout) == (6, {3: 5.0, 2: 5.0}, 60.0)
    assert scenario.all_reduce == AllReduce(4096, (2_100_000, 8_400_000, 4_200_000, 1_048_576),
                                            (4096, 262_144, 4_200_000))
    assert scenario.all_reduce.sizes == (4096, 262_144, 1_048_576, 2_100_000, 4_200_000, 8_400_000)
    assert scenario.training == Training(FOUNDING, steps=48, warmup=8, bucket_views=(True,), staleness_bound=64, k=4)


def test_what_may_be_left_out(tmp_path: Path) -> None:
    scenario = read(tmp_path, """\
name: short
topology: networks/pair.yaml
worlds: {2: [left, left]}
arms: [shard]
training: {steps: 1, warmup: 0}
""")
    assert (scenario.repetitions, scenario.speedups, scenario.timeout) == (1, {2: 1.0}, 300.0)
    assert scenario.all_reduce is None
    assert scenario.training == Training(FOUNDING, steps=1, warmup=0, bucket_views=(False,), staleness_bound=64, k=4)


def test_hosts_may_be_slow(tmp_path: Path) -> None:
    scenario = read(tmp_path, """\
name: slow
topology: networks/pair.yaml
worlds: {2: [left, left], 3: [left, left, right]}
arms: [shard]
speedup: {2: 5, 3: 1}
training: {steps: 2, warmup: 1, stragglers: {right: 2.5}}
""")
    # Only worlds that have a slow host are bound to life size.
    assert scenario.training == Training(FOUNDING, 2, 1, (False,), staleness_bound=64, k=4, stragglers={"right": 2.5})


def test_the_network_is_what_the_worlds_use() -> None:
    scenario = load(ROOT / "scenarios/quick.yaml")
    assert [host.name for host in scenario.network.hosts] == ["seattle-ai", "seattle-gateway", "newyork-1"]
    assert len(scenario.topology.hosts) == 6


def test_sizes_below_1_mib_run_at_life_size(tmp_path: Path) -> None:
    scenario = read(tmp_path, EVERYTHING.replace("speedup: 5", "speedup: {3: 4, 2: 5}"))
    sizes = (4096, 1_048_575, 1_048_576, 16_900_000)
    assert [scenario.speedup_for(nbytes, 2) for nbytes in sizes] == [1, 1, 5, 5]
    assert [scenario.speedup_for(nbytes, 3) for nbytes in sizes] == [1, 1, 4, 4]


def test_a_run_directory_has_its_own_copy_of_the_topology(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(NETWORK)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(EVERYTHING)
    with pytest.raises(ScenarioError, match=r"scenario\.yaml:2: topology: there is no file"):
        load(scenario)
    assert load(scenario, tmp_path / "topology.yaml").topology.file == str(tmp_path / "topology.yaml")


def test_a_broken_topology_is_refused_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(NETWORK.replace("1 MB/s", "1"))
    (tmp_path / "scenario.yaml").write_text(EVERYTHING)
    with pytest.raises(TopologyError, match=r"topology\.yaml:4: rate: 1 is a bare number"):
        load(tmp_path / "scenario.yaml", tmp_path / "topology.yaml")


def test_a_host_has_no_more_ranks_than_slots(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r":4: rank 2 of W = 3 is on 'right', which has slots for 1 and"):
        read(tmp_path, EVERYTHING.replace("3: [left, right, left]", "3: [left, right, right]"))


def test_the_main_job_is_the_sweep_that_tests_the_theory() -> None:
    scenario = load(ROOT / "scenarios/seattle-newyork.yaml")
    assert scenario.topology.name == "seattle-newyork"
    index = {host.name: number for number, host in enumerate(scenario.topology.hosts)}
    assert {size: [index[host] for host in world] for size, world in scenario.worlds.items()} == {
        2: [0, 3], 3: [0, 1, 3], 4: [0, 1, 2, 3], 6: [0, 1, 2, 3, 4, 5]}
    assert (scenario.arms, scenario.repetitions) == (("gloo", "shard"), 6)
    assert scenario.speedups == {2: 10, 3: 10, 4: 10, 6: 5}
    assert scenario.all_reduce == AllReduce(
        4096, (2_097_152, 4_194_304, 8_388_608, 16_867_332),
        tuple(4 * elements for elements in (1024, 4096, 16_384, 65_536, 262_144, 1_048_576)))
    assert scenario.training is None


@pytest.mark.parametrize(("name", "sizes", "arms"), [
    ("uniform-access", [2, 3, 4, 6], ("gloo", "shard")),
    ("seattle-newyork-access", [4, 6], ("gloo", "shard", "pipelined")),
    ("seattle-newyork-window", [2, 3, 4, 6], ("gloo", "shard")),
])
def test_the_other_sweeps_run_on_the_network_of_their_name(name: str, sizes: list[int], arms: tuple[str, ...]) -> None:
    scenario = load(ROOT / f"scenarios/{name}.yaml")
    assert (scenario.name, scenario.topology.name, list(scenario.worlds), scenario.arms) == (name, name, sizes, arms)


def test_training_is_the_founding_workload() -> None:
    scenario = load(ROOT / "scenarios/training.yaml")
    assert (list(scenario.worlds), scenario.arms, scenario.speedups) == ([4], ("gloo", "shard"), {4: 10})
    assert scenario.training == Training(FOUNDING, 48, 8, bucket_views=(False,), staleness_bound=64, k=4)


def test_every_shipped_scenario_is_valid() -> None:
    names = {load(file).name for file in (ROOT / "scenarios").glob("*.yaml")}
    assert names >= {"quick", "training", "seattle-newyork"}


def test_reading_a_scenario_imports_no_torch() -> None:
    code = "import sys, scenarios.scenario; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_a_broken_scenario_is_refused_with_its_line_and_the_mend(file: Path) -> None:
    # The first line of each file says how: "# line: what is wrong; the mend", with " ... " for what is left out.
    expected = file.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(ScenarioError) as refused:
        load(file)
    message = str(refused.value)
    start, *rest = expected.split(" ... ")
    assert message.startswith(f"{file}:{start}")
    assert all(part in message for part in rest)


@pytest.mark.parametrize(("field", "refusal"), [
    ("worlds: {%s: [seattle-ai, newyork-1]}", "W = 1{zeros}… is more ranks than the "),
    ("speedup: {2: %s}", "speedup: 1{zeros}… for W = 2 is refused"),
    ("timeout: %s", "timeout: 1{zeros}… is a bare number; "),
    ("training: {steps: 3, warmup: %s}", "warmup: of 3 steps 1{zeros}… are warm-up"),
])
def test_what_is_long_is_not_repeated_whole(tmp_path: Path, field: str, refusal: str) -> None:
    fields = {"name": "long", "topology": ROOT / "topologies/seattle-newyork.yaml",
              "worlds": "{2: [seattle-ai, newyork-1]}", "arms": "[gloo]", "training": "{steps: 3, warmup: 1}"}
    name, _, text = field.partition(": ")
    fields[name] = text % ("1" + "0" * 1000)
    (tmp_path / "s.yaml").write_text("".join(f"{name}: {text}\n" for name, text in fields.items()))
    with pytest.raises(ScenarioError) as refused:
        load(tmp_path / "s.yaml")
    assert refusal.replace("{zeros}", "0" * 59) in str(refused.value)
    assert len(str(refused.value)) < 500


def test_there_are_twenty_broken_scenarios() -> None:
    assert len(BROKEN) >= 20


def test_blocks_until_medians_are_sure(tmp_path: Path) -> None:
    text = EVERYTHING.replace("repetitions: 6", "repetitions: 8\nuntil: {within: 5 %, budget: 600 s}")
    scenario = read(tmp_path, text)
    assert scenario.repetitions == 8
    assert scenario.until == Until(0.05, 600.0)
    (tmp_path / "scenario.yaml").write_text(text.replace("repetitions: 8", "repetitions: 5"))
    with pytest.raises(ScenarioError, match=r"scenario\.yaml:8: until: .* 5 repetitions have no interval; make"):
        load(tmp_path / "scenario.yaml")
