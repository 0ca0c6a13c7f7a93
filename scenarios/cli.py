"""The command line of the testbed."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from emulator.topology import Topology, load
from emulator.topology import rows as topology_rows
from emulator.units import format_rate, parse_size
from scenarios import records
from scenarios.environment import environment
from scenarios.predict import predict
from scenarios.progress import Stages
from scenarios.scenario import Scenario
from scenarios.scenario import load as load_scenario

_DESCRIPTION = """\
How long does a PyTorch training step take on a network, with a way of exchanging gradients, and why? Predicted by a
simulator, and measured on real packets over links shaped to the same description, side by side."""

_EPILOG = """\
examples:
  frogtorch topology show topologies/seattle-newyork.yaml     what the network is
  frogtorch predict scenarios/quick.yaml                      a second; touches nothing
  sudo frogtorch compare scenarios/quick.yaml                 predict, measure, and show both
  frogtorch report runs/quick-20260102-030405                 the tables and figures of a run, again
  frogtorch bench --world 2 --sizes 4B 1MiB                   the backend beside gloo on loopback; needs no root
  sudo frogtorch down                                         remove what a killed run left

Measuring makes network namespaces, so it needs root; nothing outside them is touched."""

_BENCH_EPILOG = """\
Every (size, arm) runs once a block, in random order, in processes that hold a gloo and a frogtorch group each; the
ratio is of medians over all blocks, its interval resamples blocks. algbw is bytes over time; busbw is algbw x 2(W-1)/W,
what an ideal all-reduce would put on each rank's link. Other load on the machine hits both: trust ratios, not times.

examples:
  frogtorch bench                                          everything: about two minutes on two cores
  frogtorch bench --world 2 --sizes 4B 1KiB --arm shard whole --repetitions 40
  frogtorch bench --ddp --json steps.jsonl                 training steps, four ranks"""

_INTERRUPTED = "the network is gone, what was measured is kept in the run directory (a report needs all points)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0 well, 1 an error that was explained, 130 interrupted."""
    options = _parser().parse_args(arguments)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # a terminated run cleans up as an interrupted one does
        signal.signal(ending, _interrupt)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return _for_the_caller(command, options)
    except KeyboardInterrupt:
        print(f"frogtorch: interrupted; {getattr(options, 'interrupted', _INTERRUPTED)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, RuntimeError) as error:
        print(f"frogtorch: {error}", file=sys.stderr)
        return 1


def _for_the_caller(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; under sudo, what it writes belongs to who called sudo, who may want to report on it without."""
    try:
        return command(options)
    finally:
        owner = os.environ.get("SUDO_UID")
        directory = getattr(options, "directory", None)
        if owner and os.geteuid() == 0 and directory is not None and directory.exists():
            user, group = int(owner), int(os.environ.get("SUDO_GID", "-1"))
            default = [directory.parent] if directory.parent == Path("runs") else []
            for path in (*default, directory, *directory.rglob("*")):
                os.chown(path, user, group, follow_symlinks=False)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="frogtorch", description=_DESCRIPTION, epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=command)
        return added

    def scenario(of: argparse.ArgumentParser) -> None:
        of.add_argument("scenario", type=Path, help="a scenario, as YAML (scenarios/*.yaml)")
        of.add_argument("--output", type=Path, metavar="DIR",
                        help="the run directory, which must not exist yet (default: runs/<name>-<date>)")

    def engine(of: argparse.ArgumentParser) -> None:
        of.add_argument("--engine", choices=("auto", "netem", "nfqueue"), default="auto",
                        help="what holds packets for a path's delay (default: netem where the kernel has it, "
                             "else nfqueue)")

    predicting = add("predict", _predict, "predict every point of a scenario, and write a run directory for it")
    scenario(predicting)
    predicting.add_argument("--compute", type=Path, metavar="FILE",
                            help="compute.json of an earlier run of this machine: what a training step computes; "
                                 "without it, training steps are predicted as their exchange alone")
    measuring = add("measure", _measure, "measure a run directory whose predictions are written")
    measuring.add_argument("run", type=Path, help="a run directory that `frogtorch predict` wrote")
    engine(measuring)
    comparing = add("compare", _compare, "predict, then measure, a scenario, and report both side by side")
    scenario(comparing)
    engine(comparing)
    reporting = add("report", _report, "print the tables of a run, and write its figures (PNG) and points.csv")
    reporting.add_argument("run", type=Path, help="a run directory")
    benching = add("bench", _bench, "time the backend beside gloo, in the same processes, on unshaped loopback")
    benching.formatter_class = argparse.RawDescriptionHelpFormatter
    benching.epilog = _BENCH_EPILOG
    benching.set_defaults(interrupted="the ranks are gone; worlds that were done are printed, and in the --json file")
    benching.add_argument("--world", type=_world, nargs="+", metavar="W",
                          help="numbers of ranks, all on this machine (default: 2 3 4; of --ddp: 4)")
    work = benching.add_mutually_exclusive_group()
    work.add_argument("--sizes", type=_size, nargs="+", metavar="SIZE",
                      help="sizes of the fp32 tensor (default: 4B 1KiB 16KiB 64KiB 1MiB 16.9MB 100MiB)")
    work.add_argument("--ddp", action="store_true",
                      help="time training steps of the founding workload under DistributedDataParallel instead")
    benching.add_argument("--arm", choices=("shard", "pipelined", "whole"), nargs="+", default=["shard"],
                          help="all-reduce algorithms of frogtorch (default: shard)")
    benching.add_argument("--repetitions", type=_repetitions, default=20, metavar="N",
                          help="blocks; each holds every size and arm once (default: 20)")
    benching.add_argument("--json", type=Path, metavar="FILE",
                          help="add a line a result to this file (scenarios/bench.py: Result)")
    topologies = commands.add_parser("topology", help="look at a topology").add_subparsers(
        metavar="COMMAND", required=True)
    showing = topologies.add_parser("show", help="check a topology, and print its hosts and paths")
    showing.add_argument("topology", type=Path, help="a topology, as YAML (topologies/*.yaml)")
    showing.set_defaults(command=_show)
    removing = add("down", _down, "remove what a run left up (after kill -9, say); twice is not an error")
    removing.add_argument("run", nargs="?",
                          help="the run's id, as `measure` printed it (default: all whose makers are gone)")
    return parser


def _predict(options: argparse.Namespace) -> int:
    scenario = load_scenario(options.scenario)
    compute = json.loads(options.compute.read_text()) if options.compute else None
    directory = options.directory = _new_run(scenario, options.output)
    if options.compute:
        shutil.copyfile(options.compute, directory / "compute.json")
    _write_predictions(scenario, directory, compute)
    if scenario.training and compute is None:
        print("training steps are predicted as their exchange alone: no --compute was given", file=sys.stderr)
    _print_predictions(directory)
    print(f"{directory}: predictions.jsonl, SHA-256 {records.sha256(directory / 'predictions.jsonl')}")
    return 0


def _measure(options: argparse.Namespace) -> int:
    scenario = load_scenario(options.run / "scenario.yaml", options.run / "topology.yaml")
    if not (options.run / "predictions.jsonl").exists():
        raise ValueError(f"{options.run} has no predictions.jsonl: run `frogtorch predict SCENARIO` first")
    if (options.run / "fidelity.jsonl").exists():
        raise ValueError(f"{options.run} is measured already, or was begun: predict into a new run directory")
    _preflight(scenario, options.engine)
    options.directory = options.run
    _run(scenario, options.run, options.engine)
    return 0


def _compare(options: argparse.Namespace) -> int:
    scenario = load_scenario(options.scenario)
    _preflight(scenario, options.engine)
    directory = options.directory = _new_run(scenario, options.output)
    compute = None
    if scenario.training:
        from scenarios.runner import calibrate

        with Stages() as stages:
            calibrate(scenario, directory, stages)
        compute = json.loads((directory / "compute.json").read_text())
    _write_predictions(scenario, directory, compute)
    _run(scenario, directory, options.engine)
    options.run = directory
    return _report(options)


def _report(options: argparse.Namespace) -> int:
    from scenarios.report import report

    options.directory = options.run
    _console().print(report(options.run))
    return 0


def _show(options: argparse.Namespace) -> int:
    topology = load(options.topology)
    _print_topology(topology)
    return 0


def _down(options: argparse.Namespace) -> int:
    from emulator.hosts import netns

    if os.geteuid() != 0:
        raise ValueError("removing namespaces needs root; run the same command with sudo")
    removed = netns.down(options.run)
    print("\n".join(removed) if removed else "nothing of ours is up")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from scenarios import bench

    worlds = options.world or ([4] if options.ddp else [2, 3, 4])
    console = _console()
    with Stages() as stages:
        for results in bench.bench(worlds, options.sizes or bench.SIZES, options.arm, options.repetitions, options.ddp,
                                   stages):
            if options.json:
                records.append(options.json, results)
            console.print(bench.table(results))
    return 0


def _world(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks: write 2 to 64")
    return int(text)


def _repetitions(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of blocks: write 2 or more; an interval needs them")
    return int(text)


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of fp32 elements of 4 bytes")
    return size


def _new_run(scenario: Scenario, output: Path | None) -> Path:
    """Make a run directory that holds the scenario, its topology and the environment."""
    directory = output or Path("runs") / f"{scenario.name}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(f"{directory} exists: a run directory is written once; give another --output") from None
    (directory / "scenario.yaml").write_text(scenario.text, encoding="utf-8")
    (directory / "topology.yaml").write_text(scenario.topology.text, encoding="utf-8")
    (directory / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
    return directory


def _write_predictions(scenario: Scenario, directory: Path, compute: dict[str, dict[str, float]] | None) -> None:
    with Stages() as stages:
        stages.stage("predicting", 1)
        records.append(directory / "predictions.jsonl", predict(scenario, compute))


def _preflight(scenario: Scenario, engine: str) -> None:
    """Refuse what this machine cannot measure, before anything is made or written."""
    from emulator.hosts import netns
    from scenarios.runner import campaigns

    for campaign in campaigns(scenario):
        netns.preflight(scenario.network.faster(campaign.speedup), engine)


def _run(scenario: Scenario, directory: Path, engine: str) -> None:
    from scenarios.runner import Runner

    run = secrets.token_hex(3)
    print(f"run {run}: results in {directory} (if it is killed: frogtorch down {run})", file=sys.stderr)
    with Stages() as stages:
        Runner(scenario, directory, run, engine, stages).measure()


def _console() -> Console:
    """For results: as wide as the terminal, or as the tables want in a pipe."""
    return Console(width=None if sys.stdout.isatty() else 100)


def _print_predictions(directory: Path) -> None:
    table = Table("W", "arm", "workload", "size", "predicted s", "closed form s")
    rows: dict[tuple[str, int, str, int], dict[str, float]] = {}
    for prediction in records.load(directory / "predictions.jsonl", records.Prediction):
        rows.setdefault(prediction.key, {})[prediction.basis] = prediction.seconds
    for (arm, size, workload, nbytes), by in rows.items():
        table.add_row(str(size), arm, workload, f"{nbytes:,} B", f"{by['blind']:.4f}",
                      f"{by['closed form']:.4f}" if "closed form" in by else "")
    _console().print(table)


def _print_topology(topology: Topology) -> None:
    hosts = Table("", "host", "site", "up", "down", "slots", title=f"{topology.name}: {len(topology.hosts)} hosts")
    for index, host in enumerate(topology.hosts):
        limits = ("unlimited" if rate is None else format_rate(rate) for rate in (host.up, host.down))
        hosts.add_row(str(index), host.name, host.site, *limits, str(host.slots))
    _console().print(hosts)
    table = Table("from", "to", "rate", "one way", "RTT", "limits",
                  title=f"{len(topology.paths)} directed paths")
    for row in topology_rows(topology):
        table.add_row(row.source, row.target, row.rate, row.delay, row.rtt, row.limits)
    _console().print(table)
