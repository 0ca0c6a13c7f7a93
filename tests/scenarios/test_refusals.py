"""Commands that are given what they cannot use, or would not read: one sentence, exit status 1, nothing changed."""

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
