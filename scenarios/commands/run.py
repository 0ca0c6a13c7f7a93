"""``frogtorch predict``, ``measure`` and ``compare``: a scenario becomes a run directory."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.hosts.runtime import chosen
from scenarios import records
from scenarios.commands import command, console, link_options, report
from scenarios.compare import Key
from scenarios.environment import environment
from scenarios.predict import predict
from scenarios.progress import Stages
from scenarios.scenario import Scenario
from scenarios.scenario import load as load_scenario
from scenarios.script import Script, read, scripted
from scenarios.tables import on_off

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the three commands."""
    predicting = command(commands, "predict", _predict,
                         "predict every point of a scenario, and write a run directory for it")
    _scenario(predicting)
    predicting.add_argument("--compute", type=Path, metavar="FILE",
                            help="compute.json of an earlier run of this machine: what a training step computes; "
                                 "without it, training steps are predicted as their exchange alone")
    measuring = command(commands, "measure", _measure, "measure a run directory whose predictions are written")
    measuring.add_argument("run", type=Path, help="a run directory that `frogtorch predict` wrote")
    link_options(measuring)
    comparing = command(commands, "compare", compare,
                        "predict, then measure, a scenario, and report both side by side")
    _scenario(comparing)
    link_options(comparing)


def _scenario(of: argparse.ArgumentParser) -> None:
    of.add_argument("scenario", type=Path, help="a scenario, as YAML (scenarios/*.yaml)")
    of.add_argument("--output", type=Path, metavar="DIR",
                    help="the run directory, which must not exist yet (default: runs/<name>-<date>)")
    of.add_argument("--script", type=Path, metavar="FILE",
                    help="a training script of yours, run unchanged in place of the scenario's workload: it calls "
                         "torch.distributed.init_process_group, and each arm is its backend (scenarios/script.py); its "
                         "steps are measured, not predicted")
    of.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], metavar="...",
                    help="what comes behind goes to the script")


def _predict(options: argparse.Namespace) -> int:
    scenario, script = _loaded(options)
    compute = json.loads(options.compute.read_text()) if options.compute else None
    directory = options.directory = _new_run(scenario, script, options.output)
    if options.compute:
        shutil.copyfile(options.compute, directory / "compute.json")
    _write_predictions(scenario, directory, compute)
    if scenario.training and not script and compute is None:
        print("training steps are predicted as their exchange alone: no --compute was given", file=sys.stderr)
    _print_predictions(directory)
    print(f"{directory}: predictions.jsonl, SHA-256 {records.sha256(directory / 'predictions.jsonl')}")
    return 0


def _measure(options: argparse.Namespace) -> int:
    scenario = load_scenario(options.run / "scenario.yaml", options.run / "topology.yaml")
    if script := read(options.run):
        script.check()
        scenario, _ = scripted(scenario, Path(script.path), script.arguments)
    if not (options.run / "predictions.jsonl").exists():
        raise ValueError(f"{options.run} has no predictions.jsonl: run `frogtorch predict SCENARIO` first")
    if (options.run / "fidelity.jsonl").exists():
        raise ValueError(f"{options.run} is measured already, or was begun: predict into a new run directory")
    _preflight(scenario, options)
    options.directory = options.run
    _run(scenario, options.run, options)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Predict ``options.scenario``, measure it and report; 1 if links were invalid or a bar is broken."""
    scenario, script = _loaded(options)
    _preflight(scenario, options)
    directory = options.directory = _new_run(scenario, script, options.output)
    compute = None
    if scenario.training and not script:
        from scenarios.runner import calibrate

        with Stages() as stages:
            calibrate(scenario, directory, stages)
        compute = json.loads((directory / "compute.json").read_text())
    _write_predictions(scenario, directory, compute)
    _run(scenario, directory, options)
    options.run = directory
    return report.show(options)


def _loaded(options: argparse.Namespace) -> tuple[Scenario, Script | None]:
    """The scenario, and the script that stands in for its workload, if one was given."""
    scenario = load_scenario(options.scenario)
    if options.script is None:
        return scenario, None
    return scripted(scenario, options.script, tuple(options.arguments))


def _new_run(scenario: Scenario, script: Script | None, output: Path | None) -> Path:
    """Make a run directory that holds the scenario, its topology, the environment, and the script if there is one."""
    if any(trace.name == "points.csv" for trace in scenario.topology.traces):
        raise ValueError(f"{scenario.topology.file}: a trace is called points.csv, as is what a report writes beside "
                         "its copy; name it otherwise")
    directory = output or Path("runs") / f"{scenario.name}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(f"{directory} exists: a run directory is written once; give another --output") from None
    (directory / "scenario.yaml").write_text(scenario.text, encoding="utf-8")
    (directory / "topology.yaml").write_text(scenario.topology.text, encoding="utf-8")
    for trace in scenario.topology.traces:
        (directory / trace.name).parent.mkdir(parents=True, exist_ok=True)
        (directory / trace.name).write_text(trace.text, encoding="utf-8")
    if script is not None:
        script.write(directory)
    (directory / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
    return directory


def _write_predictions(scenario: Scenario, directory: Path, compute: dict[str, dict[str, float]] | None) -> None:
    with Stages() as stages:
        stages.stage("predicting", 1)
        records.append(directory / "predictions.jsonl", predict(scenario, compute))


def _preflight(scenario: Scenario, options: argparse.Namespace) -> None:
    """Refuse what this machine cannot measure, before anything is made or written."""
    from emulator.hosts import userns
    from scenarios.runner import campaigns

    if options.runtime == "netns":
        userns.again()
    runtime = chosen(options.runtime)
    for campaign in campaigns(scenario):
        runtime.preflight(scenario.network.faster(campaign.speedup), options.engine)


def _run(scenario: Scenario, directory: Path, options: argparse.Namespace) -> None:
    from scenarios.runner import Runner

    run = secrets.token_hex(3)
    print(f"run {run}: results in {directory} (if it is killed: frogtorch down {run})", file=sys.stderr)
    with Stages() as stages:
        Runner(scenario, directory, run, options.engine, stages, chosen(options.runtime).Network).measure()


def _print_predictions(directory: Path) -> None:
    table = Table("W", "arm", "workload", "bucket view", "size", "predicted s", "closed form s")
    rows: dict[Key, dict[str, float]] = {}
    for prediction in records.load(directory / "predictions.jsonl", records.Prediction):
        rows.setdefault(prediction.key, {})[prediction.basis] = prediction.seconds
    for (arm, size, workload, nbytes, view), by in rows.items():
        table.add_row(str(size), arm, workload, on_off(view), f"{nbytes:,} B", f"{by['blind']:.4f}",
                      f"{by['closed form']:.4f}" if "closed form" in by else "")
    console().print(table)
