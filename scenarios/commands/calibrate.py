"""``frogtorch calibrate``: what predictions may know of links and machine, measured without a collective."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.hosts.runtime import chosen
from emulator.topology import Topology
from emulator.units import format_size
from scenarios.calibration import Calibration
from scenarios.commands import command, console, link_options
from scenarios.progress import Stages
from scenarios.scenario import Scenario, load

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    calibrating = command(commands, "calibrate", _calibrate,
                          "measure links and machine for a scenario's predictions, without running a collective")
    calibrating.set_defaults(interrupted="the network is gone, and nothing was written")
    calibrating.add_argument("scenario", type=Path, help="a scenario, as YAML (scenarios/*.yaml)")
    link_options(calibrating)
    calibrating.add_argument("--output", type=Path, default=Path("calibration.json"), metavar="FILE",
                             help="what is written, and `predict` and `compare` take as --calibration (default: "
                                  "%(default)s)")


def measured(scenario: Scenario, options: argparse.Namespace) -> Calibration:
    """Calibrate a scenario on the links that the options name; refused first if this machine cannot make them."""
    from emulator.hosts import userns
    from scenarios.calibrate import calibrate, speedups

    if options.runtime == "netns":
        userns.again()
    runtime = chosen(options.runtime)
    for speedup in speedups(scenario):
        runtime.preflight(scenario.network.faster(speedup), options.engine)
    run = secrets.token_hex(3)
    print(f"run {run}, calibrating (if it is killed: frogtorch down {run})", file=sys.stderr)
    with Stages() as stages:
        return calibrate(scenario, run, options.engine, stages, runtime.Network)


def _calibrate(options: argparse.Namespace) -> int:
    scenario = load(options.scenario)
    if options.output.is_dir() or not options.output.parent.is_dir():
        raise ValueError(f"{options.output} cannot be written: name a file in a directory that is there")
    found = measured(scenario, options)
    found.save(options.output)
    _print(found, scenario.network)
    print(f"{options.output}: take it as --calibration of `frogtorch predict` or `compare`")
    return 0


def _print(found: Calibration, network: Topology) -> None:
    from scenarios.calibrate import simulated

    work = Table("W", "copy GB/s", "combine GB/s", "gloo's message µs", "frogtorch's message µs",
                 title=f"A rank's own work, CPU time, on {found.cores} cores that all ranks share")
    for world, own in found.costs.items():
        work.add_row(str(world), f"{1e-9 / own['copy']:.1f}", f"{1e-9 / own['combine']:.1f}",
                     *(f"{own[f'message {backend}'] * 1e6:.0f}" for backend in ("gloo", "frogtorch")))
    links = Table("speed-up", "paths", "goodput, furthest off", "round trip, furthest off", title="Links")
    for speedup, paths in found.paths.items():
        goodput = [path.goodput / path.expected_goodput - 1 for path in paths if path.expected_goodput]
        trip = [path.rtt - path.expected_rtt for path in paths]
        links.add_row(f"{speedup:g}", str(len(paths)), f"{max(goodput, key=abs):+.2%}" if goodput else "",
                      f"{max(trip, key=abs) * 1e3:+.2f} ms")
    cold = Table("path", "first", "seconds", "simulated", title="A new connection, at life size")
    for source, target, nbytes, seconds in found.cold:
        cold.add_row(f"{source} -> {target}", format_size(nbytes), f"{seconds:.4f}",
                     f"{simulated(network, source, target, nbytes):.4f}")
    console().print(work, links, cold)
