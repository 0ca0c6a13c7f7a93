"""Commands that are given what they cannot use, or would not read: one sentence, exit status 1, nothing changed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from scenarios import resume
from scenarios.cli import main

SCENARIO = """\
name: small
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo, shard]
all_reduce: {intercept: 4 KiB, slope: [1.05 MB, 1.5 MB, 2 MB]}
"""
TOPOLOGY = """\
name: pair
sites: [here, there]
hosts: {one: {site: here}, far: {site: there}}
paths: [{between: [here, there], delay: 20 ms, rate: 2 MB/s}]
"""


@pytest.fixture
def said(capfd):
    """What a command has printed as its error, with status 1."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def said(*arguments):
        assert main([str(argument) for argument in arguments]) == 1
        return capfd.readouterr().err.replace("\n", " ")

    yield said
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def predicted(tmp_path, capfd):
    """A run directory that is predicted, and not measured."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    assert main(["predict", str(tmp_path / "scenario.yaml"), "--output", str(tmp_path / "run")]) == 0
    capfd.readouterr()
    return tmp_path / "run"


@pytest.mark.parametrize(("option", "value"), [
    ("--rank", "1"), ("--world", "2"), ("--master", "h:1"), ("--name", "a"), ("--address", "h"),
    ("--secret-file", "f")])
def test_options_of_machines_want_the_external_runtime(said, predicted, option, value):
    assert said("measure", predicted, option, value) == (
        f"frogtorch: {option} is about machines of your own: add --runtime external ")
    assert not (predicted / "fidelity.jsonl").exists()


@pytest.mark.parametrize("options", [["--calibrate"], ["--engine", "tun"], ["--runtime", "docker"],
                                     ["--output", "x"], ["--calibration", "x"], ["--script", "x"]])
def test_two_runs_are_compared_without_options(said, make_run, options):
    run = make_run(sizes=(2,))
    assert said("compare", run, run, *options) == (
        f"frogtorch: {options[0]} is for measuring, and two runs are compared as they are: leave it out ")


@pytest.mark.parametrize("options", [[], ["--calibrate"]])
def test_to_compare_takes_two_runs(said, predicted, options):
    assert said("compare", predicted, *options) == (
        f"frogtorch: {predicted} is a directory, and to compare takes a scenario, or two run directories: frogtorch "
        f"compare {predicted} OTHER; `frogtorch report {predicted}` shows one ")


def test_a_run_directory_has_a_name(tmp_path, predicted, capfd):
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path / "scenario.yaml"), "--output", ""])
    assert "argument --output: it is empty; name a directory that does not exist yet, or leave it out" in (
        capfd.readouterr().err)


def test_a_run_directory_in_a_file_is_refused_with_its_path(said, tmp_path, predicted):
    assert said("predict", tmp_path / "scenario.yaml", "--output", tmp_path / "scenario.yaml/x") == (
        f"frogtorch: {tmp_path / 'scenario.yaml/x'}: Not a directory; a part of this path is a file, and no directory: "
        "name another path ")


FULL = ("free some space; a run that was being measured goes on with `frogtorch measure --resume RUN`, all else is "
        "done by giving the command again ")


@pytest.mark.parametrize(("error", "message"), [
    (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left on device; " + FULL),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device (run directory: {run}); " + FULL),
    (OSError(errno.EDQUOT, "Disk quota exceeded", "b"), "b: Disk quota exceeded; " + FULL),
    (OSError(errno.EROFS, "Read-only file system", "a/b"), "a/b: Read-only file system; nothing can be written there: "
                                                           "name a directory elsewhere, or a copy of this one "),
    (OSError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied; give the command as whom the file "
                                                        "belongs to, or name another file "),
    (OSError(errno.ENOENT, "No such file or directory", "a/b"), "a/b: No such file or directory "),
    (OSError(errno.EACCES, "cannot write /proc/self/uid_map: Permission denied"),
     "[Errno 13] cannot write /proc/self/uid_map: Permission denied "),
    (OSError(errno.EADDRINUSE, "Address already in use"), "[Errno 98] Address already in use "),
    (OSError("this kernel counts nothing"), "this kernel counts nothing "),
])
def test_what_the_system_refuses_is_named_with_the_mend(said, tmp_path, predicted, monkeypatch, error, message):
    def fails(*_):
        raise error
        yield

    monkeypatch.setattr("scenarios.commands.run.predict", fails)
    run = tmp_path / "new"
    assert said("predict", tmp_path / "scenario.yaml", "--output", run) == (
        "predicting frogtorch: " + message.format(run=run))


def test_arguments_want_a_script(said, tmp_path, predicted):
    assert "--arguments go to a script: add --script FILE" in said(
        "predict", tmp_path / "scenario.yaml", "--output", tmp_path / "new", "--arguments", "x")
    assert not (tmp_path / "new").exists()


HOLDS = """\
import sys
from pathlib import Path
from scenarios import resume
with resume.alone(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


def test_one_process_measures_into_a_run_directory_and_when_it_is_killed_another_may(predicted):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(predicted)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            files = {*predicted.iterdir()}
            with pytest.raises(ValueError, match=rf"{predicted}: another process, number {other.pid}, measures into "
                                                 "this run"), resume.alone(predicted):
                pass
        finally:
            other.kill()
    with resume.alone(predicted):      # what was killed holds nothing
        assert {*predicted.iterdir()} == files


@pytest.mark.root
def test_a_run_that_is_measured_elsewhere_is_not_resumed(said, predicted):
    with (predicted / "predictions.jsonl").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert f"number {os.getpid()}, measures into this run directory" in said("measure", predicted, "--resume")
    assert not (predicted / "telemetry").exists()


@pytest.mark.root
def test_a_run_whose_records_are_broken_is_refused_before_it_is_begun(said, predicted):
    (predicted / "measurements.jsonl").write_text("{oops}\n")
    refused = said("measure", predicted, "--resume")
    assert refused.startswith(f"frogtorch: {predicted}/measurements.jsonl:1: no Measurement of schema 1: ")
    assert "results in" not in refused


@pytest.mark.parametrize("command", ["report", "measure"])
def test_a_repetition_that_is_there_twice_is_refused_by_line(said, make_run, command):
    if command == "measure" and os.geteuid():
        pytest.skip("measuring makes network namespaces")
    run = make_run(sizes=(2,))
    lines = (run / "measurements.jsonl").read_text().splitlines(keepends=True)
    (run / "measurements.jsonl").write_text("".join([*lines, lines[2]]))
    assert f"{run}/measurements.jsonl:{len(lines) + 1}: line 3 has this repetition already (" in said(
        command, run, *["--resume"] * (command == "measure"))


def replace(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_run_whose_topology_was_changed_is_not_read(said, make_run, command):
    run = make_run(sizes=(2,))
    replace(run / "topology.yaml", "name: ", "name:  ")
    assert "predictions.jsonl:1: predictions are about another topology.yaml (SHA-256 " in said(
        command, *[run] * (1 + (command == "compare")))


def test_a_run_whose_predictions_were_changed_is_not_read(said, make_run):
    run = make_run(sizes=(2,))
    replace(run / "predictions.jsonl", '"seconds":', '"seconds": ')
    assert "predictions must not change after measuring: put them back" in said("report", run)


def test_a_run_that_was_only_predicted_says_what_to_do(said, predicted):
    assert said("report", predicted) == (
        f"frogtorch: {predicted}: nothing is measured yet; `frogtorch measure` does that ")


@pytest.mark.parametrize(("content", "message"), [
    ("[1]", ": the whole: Input should be a valid dictionary or instance of Environment"),
    ("null", ": the whole: Input should be a valid dictionary or instance of Environment"),
    ('{"ranks": [{}]}', ": ranks.0.world_size: Field required"),
    ('{"networks": [3]}', ": networks.0: Input should be a valid dictionary"),
    ('{\n"a": "\xff"}', ":2: byte 0xff is no UTF-8"),
    ('{\n"schema": 1,\n', ":3: no JSON: "),
])
def test_an_environment_that_is_none_is_refused_by_file(said, make_run, content, message):
    run = make_run(sizes=(2,))
    (run / "environment.json").write_bytes(content.encode("latin-1"))
    assert said("report", run).startswith(f"frogtorch: {run / 'environment.json'}{message}")


TRAINING = """\
name: moving
topology: topology.yaml
worlds: {2: [one, far]}
arms: [gloo]
training: {workload: small, steps: 3, warmup: 1}
"""


def measured(run, **more):
    """A training of one step that was measured on the topology, or on a campaign's, as its file says."""
    from scenarios.records import Measurement, Prediction, append, load, sha256

    (p,) = load(run / "predictions.jsonl", Prediction)[-1:]
    append(run / "measurements.jsonl", [Measurement(
        arm="gloo", world_size=2, hosts=p.hosts, workload="training", nbytes=p.nbytes, bucket_view=False,
        timeline=p.timeline, repetition=1, seconds=1, clock_seconds=1, rank_seconds=(1, 1),
        prediction=sha256(run / "predictions.jsonl"), **more)])


def trained(tmp_path, more=""):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(TRAINING + more)
    run = tmp_path / "run"
    assert main(["predict", str(tmp_path / "scenario.yaml"), "--output", str(run)]) == 0
    return run


CAMPAIGNS = "campaigns: {number: 2, seed: 1, length: 10 s}\n"


def test_a_measurement_on_a_timeline_says_when(said, tmp_path):
    run = trained(tmp_path, CAMPAIGNS)
    measured(run, second=0.5)
    measured(run)
    assert f"{run}/measurements.jsonl:2: it lacks 'second', which says when" in said("report", run)


def test_a_run_has_all_the_campaigns_that_its_records_are_about(said, tmp_path):
    run = trained(tmp_path, CAMPAIGNS.replace("2", "3"))
    measured(run, second=0.5)
    replace(run / "scenario.yaml", "number: 3", "number: 2")
    assert f"{run}/predictions.jsonl:3: it is about campaigns/2.yaml, which the scenario does not have" in said(
        "report", run)


def test_telemetry_without_the_times_of_a_peer_is_refused_by_line(said, make_run):
    run = make_run(sizes=(2,))
    file = run / "telemetry/rank0.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"peers": {}', '"peers": {"1": {}}')
    file.write_text("".join(lines))
    assert f"{file}:3: no Collective of schema 1: peers.1.wait: Field required" in said("report", run)


@pytest.mark.parametrize(("content", "message"), [
    ("3", ": the whole: Input should be a valid dictionary"),
    ("null", ": the whole: Input should be a valid dictionary"),
    ('{"2": {"forward": 1}}', ": 2: Value error, 'first_bucket' is missing"),
    ('{"2": {"forward": "x"}}', ": 2.forward: Input should be a valid number"),
    ('{"3": {"forward": 1, "first_bucket": 1, "backward": 1, "optimiser": 1}}', " says nothing of W = 2; take one of"),
    ("{", ":1: no JSON: "),
    (None, " cannot be read: No such file or directory"),
])
def test_a_compute_json_that_is_none_is_refused_by_file_and_nothing_is_left(said, tmp_path, content, message):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(TRAINING)
    file = tmp_path / "compute.json"
    if content is not None:
        file.write_text(content)
    assert said("predict", tmp_path / "scenario.yaml", "--output", tmp_path / "run", "--compute", file).startswith(
        f"frogtorch: {file}{message}")
    assert not (tmp_path / "run").exists()


def test_a_prediction_that_fails_leaves_no_run_directory(said, tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("no more of it")
        yield

    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    monkeypatch.setattr("scenarios.commands.run.predict", fails)
    assert "no more of it" in said("predict", tmp_path / "scenario.yaml", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["report", "measure"])
def test_what_is_no_run_directory_says_what_one_is(said, tmp_path, command):
    assert said(command, tmp_path / "absent") == (
        f"frogtorch: {tmp_path / 'absent'} is no run directory, as it has no scenario.yaml: give one that `frogtorch "
        "predict` or `frogtorch compare` wrote ")


def test_a_script_json_that_is_none_is_refused_by_file(said, predicted):
    (predicted / "script.json").write_text('{"path": "x"}')
    assert f"{predicted / 'script.json'}: arguments: Field required" in said("report", predicted)


@pytest.mark.parametrize("command", ["probe --topology", "links"])
@pytest.mark.parametrize("speedup", ["inf", "1e9", "0.5", "0", "nan", "x"])
def test_a_network_runs_from_1_to_10_times_faster_than_life(capfd, command, speedup):
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), "t.yaml", "--speedup", speedup])
    assert f"'{speedup}' is no speed-up: write a number from 1 to 10" in capfd.readouterr().err


@pytest.mark.parametrize(("options", "message"), [
    (["--topology", "t.yaml", "--name", "a"], "--name is about machines of your own, and --topology makes a network"),
    (["--rank", "0", "--speedup", "2"], "--speedup is about a network that is made for the probe: add --topology"),
    (["--rank", "0", "--engine", "tun"], "--engine is about a network that is made for the probe: add --topology"),
])
def test_a_probe_is_of_a_network_here_or_of_machines(said, options, message):
    assert message in said("probe", *options)


def test_a_topology_that_no_links_can_be_made_of_is_shown_with_that(tmp_path, capfd):
    groups = "".join(f"  {name}: {{rate: 1 MB/s, paths: [{{from: one, to: far}}]}}\n" for name in ("a", "b", "c"))
    (tmp_path / "t.yaml").write_text(TOPOLOGY + "groups:\n" + groups)
    assert main(["topology", "show", str(tmp_path / "t.yaml")]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "It can be predicted, and not made on this machine: " in said
    assert "path one -> far is in 3 groups (a, b, c)" in said


def test_what_a_step_computes_is_of_a_training(said, tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    assert "--compute is about the training of a workload, and " in said(
        "predict", tmp_path / "scenario.yaml", "--compute", "c", "--output", tmp_path / "run")
