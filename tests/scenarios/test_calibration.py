"""What is calibrated is kept, corrects the network and the ranks, and makes predictions of a third basis."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.topology import load as load_topology
from scenarios.calibrate import COLD, extremes, simulated, speedups
from scenarios.calibration import Calibration, CalibrationError, PathSeen, load
from scenarios.predict import predict
from scenarios.scenario import load as load_scenario

ROOT = Path(__file__).parents[2]
PAYLOAD = 1448 / 1514
TOPOLOGY = """\
name: made
sites: [here]
hosts:
  a: {site: here}
  b: {site: here%s}
defaults: {delay: 10 ms}
paths:
  - {between: [here, here]%s}
"""
SCENARIO = """\
name: made
topology: topology.yaml
worlds: {2: [a, b]}
arms: [gloo, shard]
speedup: 10
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 2.1 MB, 4.2 MB]}
"""
COSTS = {"copy": 1e-10, "combine": 2e-10, "message gloo": 3e-5, "message frogtorch": 4e-5}


def made(directory, host="", path=", rate: 1 MB/s"):
    (directory / "topology.yaml").write_text(TOPOLOGY % (host, path))
    return load_topology(directory / "topology.yaml")


def calibration(topology, goodput=1.0, trip=1.0, speedups=(10.0, 1.0), worlds=(2,), **fields):
    """As if every path had that much of the goodput and of the round trip that the topology has."""
    seen = {k: [PathSeen(path.source, path.target, goodput * PAYLOAD * 1e6 * k, PAYLOAD * 1e6 * k, trip * 0.02 / k,
                         0.02 / k) for path in topology.paths] for k in speedups}
    return Calibration(topology.sha256, "2026-01-02T03:04:05+00:00", {"engine": "netem"}, 2, seen,
                       dict.fromkeys(worlds, COSTS), {}, [("a", "b", 4096, 0.0123)], **fields)


def test_a_path_is_as_it_was_found(tmp_path):
    topology = made(tmp_path)
    found = calibration(topology, 0.99, 1.02).as_found(topology, 10)
    # 1 MB/s × 10 × 0.99, 10 ms ÷ 10 × 1.02.
    assert found.path("a", "b").rate == pytest.approx(9.9e6)
    assert found.path("b", "a").delay == pytest.approx(1.02e-3)


def test_a_goodput_corrects_the_limit_that_binds(tmp_path):
    # b's access binds both paths: its down that of a -> b, its up that of b -> a; the paths' own rates stay.
    topology = made(tmp_path, ", access: {up: 1 MB/s, down: 1 MB/s}", ", rate: 5 MB/s")
    found = calibration(topology, 0.98).as_found(topology, 1)
    assert (found.host("b").up, found.host("b").down) == (pytest.approx(0.98e6), pytest.approx(0.98e6))
    assert found.path("a", "b").rate == 5e6


def test_a_message_costs_what_its_backend_takes(tmp_path):
    found = calibration(made(tmp_path))
    assert dataclasses.astuple(found.costs_of("gloo", 2)) == (1e-10, 2e-10, 3e-5, 2)
    assert found.costs_of("shard", 2).message == 4e-5


def test_it_is_read_as_it_was_written(tmp_path):
    topology = made(tmp_path)
    written = calibration(topology)
    written.save(tmp_path / "calibration.json")
    assert load(tmp_path / "calibration.json", topology) == written


@pytest.mark.parametrize(("text", "says"), [
    ("{\n", ":2: no JSON: .*calibrate SCENARIO. writes one"),
    ("[]", ": the whole: Input should be a valid dictionary; .*calibrate SCENARIO. writes one"),
    ('{"schema": 2}', ": written by another version"), ('{"schema": true}', ": written by another version"),
    ('{"2": {"forward": 0.1}}', ": this is no calibration: it says no schema; .*calibrate SCENARIO. writes one"),
    ('{"schema": 1' + "0" * 5000 + "}", ": a number in it has too many digits; .*calibrate SCENARIO. writes one"),
    ('{"schema": 1}', ": this is no calibration: topology_sha256: Field required"),
    (None, " cannot be read: No such file.*calibrate SCENARIO. writes one")])
def test_what_is_no_calibration_is_refused(tmp_path, text, says):
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationError, match=rf"c\.json{says}"):
        load(tmp_path / "c.json", made(tmp_path))


@pytest.mark.parametrize(("where", "value", "says"), [
    (("paths", "10.0", 0, "rtt"), -1.0, "paths.10.0.0.rtt: Input should be greater than 0"),
    (("paths", "10.0", 1, "goodput"), 0, "paths.10.0.1.goodput: Input should be greater than 0"),
    (("paths", "10.0", 0, "goodput"), float("inf"), "paths.10.0.0.goodput: Input should be a finite number"),
    (("costs", "2", "copy"), "fast", "costs.2.copy: Input should be a valid number"),
    (("costs", "2", "copy"), -1.0, "costs.2.copy: Input should be greater than or equal to 0"),
    (("costs", "2", "message gloo"), float("nan"), "costs.2.message gloo: Input should be"),
    (("costs", "2", "combine"), 1e300, "costs.2.combine: Input should be less than or equal to 3600"),
    (("costs", "2"), None, "costs.2: Input should be a valid"),
    (("costs", "2"), {"copy": 0, "combine": 0, "message gloo": 0}, "costs.2: .*nothing is said of 'message frogtorch'"),
    (("compute", "2"), {"forward": 0.1}, "compute.2: .*nothing is said of 'backward'"),
    (("cores",), 0, "cores: Input should be greater than or equal to 1"),
    (("cores",), "two", "cores: Input should be a valid integer"),
])
def test_values_that_cannot_have_been_measured_are_refused(tmp_path, where, value, says):
    topology = made(tmp_path)
    calibration(topology).save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    *path, last = where
    part = content
    for step in path:
        part = part[step]
    part[last] = value
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match=rf"c\.json: this is no calibration: {says}.*calibrate SCENARIO. writes"):
        load(tmp_path / "c.json", topology)


def test_one_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    topology = made(tmp_path)
    calibration(topology).save(tmp_path / "c.json")

    def full(file, content):
        with file.open("wb") as opened:
            opened.write(content[:len(content) // 2])
        raise OSError(28, "No space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left: '.*/c\.json'"):
        calibration(topology, 0.5).save(tmp_path / "c.json")
    assert load(tmp_path / "c.json", topology) == calibration(topology)
    assert [file.name for file in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EINVAL])      # of a group that is another's, or not mapped
def test_one_whose_owner_cannot_be_kept_is_written(tmp_path, monkeypatch, refusal):
    def refuse(*_):
        raise OSError(refusal, "No")

    topology = made(tmp_path)
    calibration(topology).save(tmp_path / "c.json")
    monkeypatch.setattr(os, "chown", refuse)
    calibration(topology, 0.5).save(tmp_path / "c.json")
    assert load(tmp_path / "c.json", topology) == calibration(topology, 0.5)


def test_a_link_to_a_file_and_its_mode_stay(tmp_path):
    topology = made(tmp_path)
    (tmp_path / "kept.json").write_text("")
    (tmp_path / "kept.json").chmod(0o640)
    (tmp_path / "c.json").symlink_to(tmp_path / "kept.json")
    calibration(topology).save(tmp_path / "c.json")
    assert (tmp_path / "c.json").is_symlink()
    assert (tmp_path / "kept.json").stat().st_mode & 0o777 == 0o640
    assert load(tmp_path / "c.json", topology) == calibration(topology)


def test_what_is_no_regular_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    calibration(made(tmp_path)).save(tmp_path / "pipe")
    assert json.loads(os.read(reader, 65536))["schema"] == 1
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_one_of_another_topology_is_refused(tmp_path):
    calibration(made(tmp_path)).save(tmp_path / "c.json")
    with pytest.raises(CalibrationError, match="another topology"):
        load(tmp_path / "c.json", made(tmp_path, path=", rate: 2 MB/s"))


def test_what_was_not_calibrated_is_not_guessed(tmp_path):
    topology = made(tmp_path)
    found = calibration(topology)
    with pytest.raises(CalibrationError, match="knows nothing of speed-up 5, only of 10, 1"):
        found.as_found(topology, 5)
    with pytest.raises(CalibrationError, match="knows nothing of W = 3, only of 2"):
        found.costs_of("gloo", 3)
    with pytest.raises(CalibrationError, match="knows nothing of W = 2, only of no world"):
        found.computed(2)
    cut = dataclasses.replace(found, paths={1.0: found.paths[1.0][:1]})
    with pytest.raises(CalibrationError, match="knows nothing of b -> a"):
        cut.as_found(topology, 1)


def test_every_point_is_predicted_with_it_too(tmp_path):
    topology = made(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    scenario = load_scenario(tmp_path / "s.yaml")
    points = list(predict(scenario, calibration=calibration(topology, 0.5)))
    assert [p.basis for p in points] == ["blind", "calibrated", "closed form"] * 8
    by = {(p.basis, p.arm, p.nbytes): p.seconds for p in points}
    for arm in ("gloo", "shard"):
        # Half the rate: the bytes of 4.2 MB, 2/2 of them over each path, take 4.2 ÷ 0.478 s in place of ÷ 0.956.
        assert by["calibrated", arm, 4_200_000] - by["blind", arm, 4_200_000] == pytest.approx(4.2 / PAYLOAD, rel=0.02)
    # What is not calibrated is as without a calibration.
    assert [p.seconds for p in points if p.basis != "calibrated"] == [p.seconds for p in predict(scenario)]


def test_new_connections_are_looked_at_at_life_size_on_the_slowest_path_and_the_fastest(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    made(tmp_path)
    assert speedups(load_scenario(tmp_path / "s.yaml")) == [10, 1]
    founding = load_topology(ROOT / "topologies/seattle-newyork.yaml")
    slow, fast = extremes(founding)
    assert (slow.rate, fast.rate) == (0.7e6, 30e6)
    assert len(extremes(load_topology(ROOT / "topologies/lan.yaml"))) == 1


def test_a_new_connection_is_simulated_beside_it(tmp_path):
    topology = made(tmp_path)
    # Four kilobytes are within any first window: one way of 10 ms, and their bytes at 1 MB/s at the most.
    assert 0.010 <= simulated(topology, "a", "b", 4096) < 0.016
    # A mebibyte takes its bytes at the rate, and no more than some round trips until the window is open.
    assert 0.010 + 0.9 * 2**20 / 1e6 / PAYLOAD < simulated(topology, "a", "b", 2**20) < 0.16 + 2**20 / 1e6 / PAYLOAD


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)      # a path that is off is measured again
def test_a_network_is_calibrated_and_predicted_with(tmp_path):
    made(tmp_path, path=", rate: 8 MB/s, delay: 4 ms")
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("10", "2"))

    def frogtorch(*arguments):
        return subprocess.run([sys.executable, "-m", "frogtorch", *map(str, arguments)], capture_output=True, text=True,
                              cwd=ROOT, check=False)

    file = tmp_path / "c.json"
    done = frogtorch("calibrate", tmp_path / "s.yaml", "--output", file)
    assert done.returncode == 0, done.stderr
    found = load(file, load_topology(tmp_path / "topology.yaml"))
    assert list(found.paths) == [2, 1]
    for k, paths in found.paths.items():
        for path in paths:
            assert path.goodput == pytest.approx(8e6 * k * PAYLOAD, rel=0.05)
            assert path.rtt == pytest.approx(0.008 / k, abs=0.0012)
    assert all(value > 0 for value in found.costs[2].values())
    # A new connection: never before one way and the bytes at the path's rate, and longer for more.
    curve = {nbytes: seconds for _, _, nbytes, seconds in found.cold}
    assert list(curve) == list(COLD)
    for nbytes, seconds in curve.items():
        assert 0.004 + 0.9 * max(0, nbytes - 65536) / 8e6 < seconds < 1 + nbytes / 8e6
    run = tmp_path / "run"
    assert frogtorch("predict", tmp_path / "s.yaml", "--calibration", file, "--output", run).returncode == 0
    assert json.loads((run / "calibration.json").read_text()) == json.loads(file.read_text())
    bases = {json.loads(line)["basis"] for line in (run / "predictions.jsonl").read_text().splitlines()}
    assert bases == {"blind", "calibrated", "closed form"}
