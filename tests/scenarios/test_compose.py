"""compose.yaml: that it is what the topology gives, that both Composes take it, and that it runs and leaves nothing."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from emulator.topology import TopologyError, load
from scenarios.compose_file import compose
from scenarios.founding import scenario
from scenarios.scenario import load as load_scenario

ROOT = Path(__file__).parents[2]
HOSTS = ("seattle-ai", "seattle-gateway", "seattle-2", "newyork-1", "newyork-2", "chicago-1")
PROJECT = f"frogtorch-test-{os.getpid()}"


@pytest.fixture
def topology(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load("topologies/seattle-newyork.yaml")


def test_the_committed_file_is_the_generated_one(topology):
    assert (ROOT / "compose.yaml").read_text() == compose(topology)


def test_every_host_is_on_the_internal_network_alone_and_never_privileged(topology):
    services = yaml.safe_load(compose(topology))["services"]
    assert set(services) == {*HOSTS, "director", "sweep"}
    addresses = {services[host]["networks"]["links"]["ipv4_address"] for host in HOSTS}
    assert len(addresses) == 6
    for name, service in services.items():
        assert not service.get("privileged")
        assert set(service.get("cap_add", ())) <= {"NET_ADMIN", "SYS_NICE"}
        assert (name in HOSTS) == ("networks" in service)
        assert name in HOSTS or service["network_mode"] == "none"
    assert yaml.safe_load(compose(topology))["networks"]["links"]["internal"] is True
    assert [name for name in HOSTS if services[name].get("profiles") == ["six"]] == ["newyork-2", "chicago-1"]


def test_what_it_cannot_hold_is_refused(tmp_path):
    few = tmp_path / "few.yaml"
    few.write_text("name: few\nsites: [s]\nhosts:\n  a: {site: s}\n  b: {site: s}\npaths:\n"
                   "  - {between: [s, s], delay: 1 ms}\n")
    with pytest.raises(TopologyError, match=r"few.yaml:4: compose.yaml is for 4 to 12 hosts, and here are 2"):
        compose(load(few))
    few.write_text(few.read_text() + "groups:\n  trunk: {rate: 1 MB/s, paths: [{from: a, to: b}]}\n")
    with pytest.raises(TopologyError, match=r"few.yaml:9: compose.yaml cannot hold group 'trunk'; use .* docker"):
        compose(load(few))


@pytest.mark.parametrize(("present", "world", "speedup", "sweeps"), [
    (HOSTS[:4], 4, 10, False),
    (HOSTS, 6, 5, False),
    ((*HOSTS[:4], "sweep"), 4, 10, True),
])
def test_the_scenario_is_that_of_the_containers_that_are_there(tmp_path, present, world, speedup, sweeps):
    file = tmp_path / "scenario.yaml"
    file.write_text(scenario(ROOT / "topologies/seattle-newyork.yaml", HOSTS, present, "", 48))
    read = load_scenario(file)
    assert read.worlds == {world: HOSTS[:world]}
    assert read.speedups == {world: speedup}
    assert (read.training.steps, read.training.warmup) == (48, 8)
    assert bool(read.all_reduce) == sweeps


def test_a_host_that_did_not_come_is_named():
    with pytest.raises(ValueError, match=r"newyork-1 did not come up .*docker compose logs newyork-1"):
        scenario(ROOT / "topologies/seattle-newyork.yaml", HOSTS, HOSTS[:3], "", 48)


def composes():
    """The Composes of this machine, as commands."""
    found = [["docker-compose"]] if shutil.which("docker-compose") else []
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False) \
        if shutil.which("docker") else None
    return found + ([["docker", "compose"]] if plugin is not None and plugin.returncode == 0 else [])


def test_each_compose_takes_the_file(need):
    if not composes():
        need("docker", "neither docker-compose nor docker compose is here")
    for command in composes():
        done = subprocess.run([*command, "--profile", "six", "--profile", "sweep", "config", "-q"], cwd=ROOT,
                              capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(700)      # a campaign whose links were off is measured twice
def test_up_trains_both_arms_and_down_leaves_nothing(need, tmp_path, status_of):
    docker = pytest.importorskip("docker")
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        need("docker", f"no daemon answers: {error}")
    if not composes():
        need("docker", "neither docker-compose nor docker compose is here")
    subprocess.run(["make", "image"], cwd=ROOT, check=True, capture_output=True)
    command = [*composes()[0], "--project-name", PROJECT, "--project-directory", str(tmp_path), "--file",
               str(ROOT / "compose.yaml")]
    # DDP's first step has other buckets than its second, which is like all that follow.
    environment = {**os.environ, "STEPS": "2", "SUBNET": "10.79.3"}
    try:
        done = subprocess.run([*command, "up", "--no-build", "--exit-code-from", "director"], env=environment,
                              capture_output=True, text=True, timeout=600)
        said = done.stdout[-3000:] + done.stderr[-1000:]
        assert (tmp_path / "runs").exists(), said
        run, = (tmp_path / "runs").iterdir()
        assert done.returncode == status_of(run), said
        outcomes = [json.loads(line) for line in (run / "outcomes.jsonl").read_text().splitlines()]
        assert sorted((outcome["arm"], outcome["rank"]) for outcome in outcomes) == [
            (arm, rank) for arm in ("gloo", "shard") for rank in range(4)]
        assert len({outcome["parameters_sha256"] for outcome in outcomes if outcome["arm"] == "shard"}) == 1
        stamps = json.loads((run / "environment.json").read_text())["networks"]
        assert {(stamp["runtime"], stamp["speedup"]) for stamp in stamps} == {("compose", 10)}
    finally:
        subprocess.run([*command, "down"], env=environment, capture_output=True, check=False)
    mine = {"label": f"com.docker.compose.project={PROJECT}"}
    assert client.containers.list(all=True, filters=mine) == []
    assert client.networks.list(filters=mine) == []
    assert client.volumes.list(filters=mine) == []
