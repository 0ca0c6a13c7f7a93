"""``frogtorch predict``, ``measure`` and ``compare``: a scenario becomes a run directory."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.hosts.runtime import EXTERNAL, chosen
from scenarios import records, timelines
from scenarios.calibration import Calibration
from scenarios.calibration import load as load_calibration
from scenarios.commands import (
    MACHINE,
    command,
    console,
    link_options,
    machine_options,
    place_of,
    refuse_ignored,
    report,
)
from scenarios.compare import BASES, BLIND, Key
from scenarios.environment import environment
from scenarios.predict import Compute, computed, predict
from scenarios.progress import Stages
from scenarios.scenario import Scenario
from scenarios.scenario import load as load_scenario
from scenarios.script import Script, as_predicted, read, scripted
from scenarios.tables import on_off

if TYPE_CHECKING:
    from emulator.hosts.external import Machines
    from scenarios.commands import Commands

_ON_MACHINES = """\
On machines of your own (--runtime external) the same command is started on each, with its rank, or by torchrun, srun
or a loop. Rank 0 measures and has the run directory; the others serve it, and end when it does. They prove to each
other that they know a secret, which FROGTORCH_SECRET or a file holds. The network is left as it is. A machine is
the host of its own name, as `frogtorch probe` has it.

examples:
  frogtorch measure RUN --runtime external --rank 0 --world 4 --master 10.0.0.1:29600          and ranks 1, 2, 3
  torchrun --nnodes 4 --nproc-per-node 1 ... -m frogtorch measure RUN --runtime external"""


def add(commands: Commands) -> None:
    """Add the three commands."""
    predicting = command(commands, "predict", _predict,
                         "predict every point of a scenario, and write a run directory for it")
    _scenario(predicting)
    predicting.add_argument("--compute", type=Path, metavar="FILE",
                            help="compute.json of an earlier run of this machine: what a training step computes; "
                                 "without it, training steps are predicted as their exchange alone")
    _calibration(predicting)
    measuring = command(commands, "measure", _measure, "measure a run directory whose predictions are written",
                        _ON_MACHINES)
    measuring.add_argument("run", type=Path, help="a run directory that `frogtorch predict` wrote")
    measuring.add_argument("--resume", action="store_true",
                           help="go on with a run that was ended, from its last finished point; points that a rank's "
                                "error has ended are tried again")
    link_options(measuring, external=True)
    machine_options(measuring)
    comparing = command(commands, "compare", compare,
                        "predict, then measure, a scenario, and report both side by side; or say what changed from "
                        "one run to another")
    _scenario(comparing)
    comparing.add_argument("other", type=Path, nargs="?", metavar="RUN",
                           help="a run directory: then the first argument is one too, and this one is held against it")
    link_options(comparing)
    _calibration(comparing)
    comparing.add_argument("--calibrate", action="store_true",
                           help="calibrate first, on the same links, and predict with that too")


def _scenario(of: argparse.ArgumentParser) -> None:
    of.add_argument("scenario", type=Path, help="a scenario, as YAML (scenarios/*.yaml)")
    of.add_argument("--output", type=_directory, metavar="DIR",
                    help="the run directory, which must not exist yet (default: runs/<name>-<date>)")
    of.add_argument("--script", type=Path, metavar="FILE",
                    help="a training script of yours, run unchanged in place of the scenario's workload: it calls "
                         "torch.distributed.init_process_group, and each arm is its backend (scenarios/script.py); its "
                         "steps are measured, not predicted")
    of.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], metavar="...",
                    help="what comes behind goes to the script")


def _directory(text: str) -> Path:
    """A directory, as an option names it; argparse prints what is wrong with it."""
    if not text:  # which Path takes for the directory one is in
        raise argparse.ArgumentTypeError("it is empty; name a directory that does not exist yet, or leave it out")
    return Path(text)


def _calibration(of: argparse.ArgumentParser) -> None:
    of.add_argument("--calibration", type=Path, metavar="FILE",
                    help="what `frogtorch calibrate` wrote of the same topology on this machine: every point is "
                         "predicted with it too")


def _predict(options: argparse.Namespace) -> int:
    scenario, script = _loaded(options)
    calibration = _known(options, scenario)
    if script or not scenario.training:
        refuse_ignored(options, ["compute"], f"is about the training of a workload, and {scenario.file} has none here: "
                                             "leave it out")
    compute = computed(options.compute, scenario.worlds) if options.compute else _compute(scenario, script, calibration)
    if scenario.training and scenario.training.stragglers and compute is None:
        raise ValueError(f"{scenario.file}: stragglers compute longer than others, and how long those do is not known; "
                         "give --compute or --calibration, or let `frogtorch compare` measure it")
    with _new_run(scenario, script, options) as directory:
        _write_predictions(scenario, directory, compute, calibration)
    if scenario.training and not script and compute is None:
        print("training steps are predicted as their exchange alone: no --compute was given", file=sys.stderr)
    _print_predictions(directory)
    print(f"{directory}: predictions.jsonl, SHA-256 {records.sha256(directory / 'predictions.jsonl')}")
    return 0


def _measure(options: argparse.Namespace) -> int:
    if options.runtime != EXTERNAL:
        refuse_ignored(options, MACHINE, "is about machines of your own: add --runtime external")
        return _measure_run(options, None)
    from scenarios import external

    place = place_of(options)
    if place.rank:
        options.interrupted = "this machine has left the run; rank 0 keeps what was measured"
        external.follow(place)
        return 0
    with external.lead(place) as machines:
        return _measure_run(options, machines)


def _measure_run(options: argparse.Namespace, machines: Machines | None) -> int:
    """Measure ``options.run``, on `machines` of the user's or on this one."""
    scenario = as_predicted(options.run)
    if script := read(options.run):
        script.check()
    if not (options.run / "predictions.jsonl").exists():
        raise ValueError(f"{options.run} has no predictions.jsonl: run `frogtorch predict SCENARIO` first")
    if (options.run / "fidelity.jsonl").exists() and not options.resume:
        raise ValueError(f"{options.run} is measured already, or was begun: go on with --resume, or predict into a new "
                         "run directory")
    _preflight(scenario, options, machines)
    options.directory = options.run
    return 1 if _run(scenario, options.run, options, machines) else 0


def compare(options: argparse.Namespace) -> int:
    """Predict ``options.scenario``, measure it and report; 1 if links were invalid or a bar is broken.

    With ``options.other`` both are run directories, and what changed is printed; 1 if one of them is in doubt.
    """
    if options.other is not None:
        from scenarios.changes import changes

        refuse_ignored(options, ("output", "script", "arguments", "runtime", "engine", "calibration", "calibrate"),
                       "is for measuring, and two runs are compared as they are: leave it out")
        shown, well = changes(options.scenario, options.other)
        console().print(shown)
        return 0 if well else 1
    if options.scenario.is_dir():
        raise ValueError(f"{options.scenario} is a directory, and to compare takes a scenario, or two run directories: "
                         f"frogtorch compare {options.scenario} OTHER; `frogtorch report {options.scenario}` shows one")
    scenario, script = _loaded(options)
    if options.calibration and options.calibrate:
        raise ValueError("--calibration takes what was calibrated before, --calibrate does it now: give one of them")
    calibration = _known(options, scenario)
    _preflight(scenario, options)
    with _new_run(scenario, script, options) as directory:
        if options.calibrate:
            from scenarios.commands.calibrate import measured

            calibration = measured(scenario, options)
        compute = _compute(scenario, script, calibration)
        if scenario.training and not script and compute is None:
            from scenarios.calibrate import computing

            with Stages() as stages:
                compute = {str(world): parts for world, parts in computing(scenario, stages).items()}
        _write_predictions(scenario, directory, compute, calibration)
    _run(scenario, directory, options)
    options.run = directory
    return report.show(options)


def _loaded(options: argparse.Namespace) -> tuple[Scenario, Script | None]:
    """The scenario, and the script that stands in for its workload, if one was given."""
    scenario = load_scenario(options.scenario)
    if options.script is None:
        refuse_ignored(options, ["arguments"], "go to a script: add --script FILE")
        return scenario, None
    return scripted(scenario, options.script, tuple(options.arguments))


@contextmanager
def _new_run(scenario: Scenario, script: Script | None, options: argparse.Namespace) -> Iterator[Path]:
    """Make a run directory that holds the scenario, its topology, the environment, and the script if there is one.

    Whoever has it writes its predictions; if that fails, the directory is gone again.
    """
    if any(trace.name == "points.csv" for trace in scenario.topology.traces):
        raise ValueError(f"{scenario.topology.file}: a trace is called points.csv, as is what a report writes beside "
                         "its copy; name it otherwise")
    directory = options.output or Path("runs") / f"{scenario.name}-{datetime.now():%Y%m%d-%H%M%S}"
    with records.new_directory(directory, "a run directory is written once"):
        options.directory = directory
        try:
            (directory / "scenario.yaml").write_text(scenario.text, encoding="utf-8")
            (directory / "topology.yaml").write_text(scenario.topology.text, encoding="utf-8")
            for trace in scenario.topology.traces:
                (directory / trace.name).parent.mkdir(parents=True, exist_ok=True)
                (directory / trace.name).write_text(trace.text, encoding="utf-8")
            timelines.record(directory, scenario.timelines)
            if script is not None:
                script.write(directory)
            (directory / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
            yield directory
        except BaseException:
            options.interrupted = "nothing was measured yet, and no run directory is kept"
            raise


def _known(options: argparse.Namespace, scenario: Scenario) -> Calibration | None:
    """The calibration that the options name. Raises CalibrationError if it says too little for the scenario."""
    if options.calibration is None:
        return None
    known = load_calibration(options.calibration, scenario.topology)
    for world, speedup in scenario.speedups.items():
        known.costs_of("gloo", world)
        known.as_found(scenario.network, speedup)
    return known


def _compute(scenario: Scenario, script: Script | None, calibration: Calibration | None) -> Compute | None:
    """What a calibration says of the scenario's training, as compute.json has it."""
    if calibration is None or script is not None or not scenario.training:
        return None
    return {str(world): dict(calibration.computed(world)) for world in scenario.worlds}


def _write_predictions(scenario: Scenario, directory: Path, compute: Compute | None,
                       calibration: Calibration | None) -> None:
    """Write what was calibrated, and what is predicted of it. Nothing is measured until that is written."""
    if compute is not None:
        (directory / "compute.json").write_text(json.dumps(compute, indent=2) + "\n")
    if calibration is not None:
        calibration.save(directory / "calibration.json")
    with Stages() as stages:
        stages.stage("predicting", 1)
        records.append(directory / "predictions.jsonl", predict(scenario, compute, calibration))


def _preflight(scenario: Scenario, options: argparse.Namespace, machines: Machines | None = None) -> None:
    """Refuse what this machine, or these, cannot measure, before anything is made or written."""
    if machines is not None:
        from scenarios import external

        external.preflight(scenario, machines, options.engine)
        return
    from emulator.hosts import userns
    from scenarios.campaigns import campaigns

    if options.runtime == "netns":
        userns.again()
    runtime = chosen(options.runtime)
    for campaign in campaigns(scenario):
        runtime.preflight(scenario.used(campaign.topology).faster(campaign.speedup), options.engine)


def _run(scenario: Scenario, directory: Path, options: argparse.Namespace,
         machines: Machines | None = None) -> list[records.Failure]:
    """Measure; the points that failed."""
    from scenarios import external, resume
    from scenarios.runner import Runner

    run = secrets.token_hex(3)
    ended = (f"if it is killed: frogtorch down {run}; to go on: frogtorch measure --resume {directory}"
             if machines is None else "to go on: the same command with --resume, on every machine")
    make = chosen(options.runtime).Network if machines is None else external.network(machines)
    stages = Stages()
    with resume.alone(directory):
        # A network that is not ours does not get better by measuring it again.
        runner = Runner(scenario, directory, run, options.engine, stages, make,
                        resume.RERUNS if machines is None else 0)
        # Only now: it refuses records that are broken, and then there is no run.
        print(f"run {run}: results in {directory} ({ended})", file=sys.stderr)
        with stages:
            return runner.measure()


def _print_predictions(directory: Path) -> None:
    rows: dict[Key, dict[str, float]] = {}
    for prediction in records.load(directory / "predictions.jsonl", records.Prediction):
        rows.setdefault(prediction.key, {})[prediction.basis] = prediction.seconds
    bases = [basis for basis in BASES if any(basis in by for by in rows.values())] or BASES
    drawn = any(key[5] is not None for key in rows)
    table = Table("W", *["timeline"] * drawn, "arm", "workload", "bucket view", "size", *(
        "predicted s" if basis == BLIND else f"{basis} s" for basis in bases))
    for (arm, size, workload, nbytes, view, timeline), by in rows.items():
        table.add_row(str(size), *[str(timeline)] * drawn, arm, workload, on_off(view), f"{nbytes:,} B",
                      *(f"{by[basis]:.4f}" if basis in by else "" for basis in bases))
    console().print(table)
