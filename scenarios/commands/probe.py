"""``frogtorch probe``: what limits the paths of a network that is not known."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.hosts.runtime import chosen
from emulator.probe import meet
from emulator.probe.classify import DOWN, GROUP, UP, Known
from emulator.probe.coordinate import Coordinator, probe
from emulator.probe.peer import serve
from emulator.probe.survey import Survey
from emulator.probe.write import Findings, interval, topology_text
from emulator.topology import load
from emulator.units import format_rate, format_time
from scenarios.commands import (
    MACHINE,
    command,
    console,
    link_options,
    machine_options,
    place_of,
    refuse_ignored,
    speedup,
)
from scenarios.progress import Stages

if TYPE_CHECKING:
    from scenarios.commands import Commands

_EPILOG = """\
On your own machines, start the same command on each of them, with its rank; rank 0 coordinates, and writes. They prove
to each other that they know a secret, which FROGTORCH_SECRET or a file holds. Traffic flows only between them, at
full rate, for some minutes: ask whoever else uses the network. Under torchrun (one process a machine) rank, world and
master are taken from its environment.

examples:
  sudo frogtorch probe --topology topologies/seattle-newyork.yaml --speedup 10       learn the tool on a known network
  FROGTORCH_SECRET=... frogtorch probe --rank 0 --world 4 --master 10.0.0.1:29600         and ranks 1, 2, 3
  torchrun --nnodes 4 --nproc-per-node 1 --no-python ... frogtorch probe"""


def add(commands: Commands) -> None:
    """Add the command."""
    probing = command(commands, "probe", _probe,
                      "measure an unknown network, say what limits each path, and write a topology of it", _EPILOG)
    probing.set_defaults(interrupted="the network or the peers are gone, and nothing was written")
    probing.add_argument("--topology", type=Path, metavar="FILE",
                         help="bring this network up and probe it blind: of the file the probe sees the hosts' names "
                              "alone")
    link_options(probing)
    probing.add_argument("--speedup", type=speedup, default=1.0, metavar="K",
                         help="run the network K times faster than life (default: 1)")
    machine_options(probing)
    probing.add_argument("--output", type=Path, metavar="DIR",
                         help="for topology.yaml and measurements.jsonl; must not exist yet "
                              "(default: runs/probe-<date>)")


def _probe(options: argparse.Namespace) -> int:
    if options.output is not None and options.output.exists():
        raise ValueError(f"{options.output} exists: a directory of measurements is written once; give another --output")
    if options.topology is not None:
        refuse_ignored(options, MACHINE, "is about machines of your own, and --topology makes a network on this one: "
                                         "give one or the other")
        survey, known = _of_topology(options)
    else:
        if options.rank is None and "RANK" not in os.environ:
            raise ValueError("which network? Give --topology FILE, or on each of your machines --rank, --world and "
                             "--master")
        refuse_ignored(options, ("runtime", "engine", "speedup"), "is about a network that is made for the probe: add "
                                                                  "--topology FILE, or leave it out")
        place = place_of(options)
        if place.rank:
            with meet.follow(place, "probe") as channel:
                serve(channel)
            return 0
        with Stages() as stages, meet.lead(place, "probe", stages.at) as meeting, meet.peers(meeting) as (
                channels, addresses):
            survey, known = Coordinator(channels, addresses, stages.at).probe()
    findings = Findings(survey, known)
    directory = options.directory = _write(findings, options.output)
    _print(findings)
    print(f"{directory}: topology.yaml, measurements.jsonl")
    return 0


def _of_topology(options: argparse.Namespace) -> tuple[Survey, Known]:
    from emulator.hosts import userns

    if options.runtime == "netns":
        userns.again()
    topology = load(options.topology)
    run = secrets.token_hex(3)
    print(f"run {run} (if it is killed: frogtorch down {run})", file=sys.stderr)
    make = chosen(options.runtime).Network
    with Stages() as stages, make(topology, run, options.engine, options.speedup) as network:
        return probe(network, stages.at)


def _write(findings: Findings, output: Path | None) -> Path:
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    directory = output or Path("runs") / f"probe-{now}"
    directory.mkdir(parents=True)
    (directory / "topology.yaml").write_text(topology_text(f"probed-{now}", findings), encoding="utf-8")
    with (directory / "measurements.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in findings.survey.lines())
    return directory


def _print(findings: Findings) -> None:
    hosts = Table("host", "site", "up", "down", title=f"{len(findings.survey.hosts)} hosts")
    for host, site in findings.sites().items():
        limits = (findings.access(kind, host) for kind in (UP, DOWN))
        hosts.add_row(host, site, *("" if limit is None else interval(limit) for limit in limits))
    paths = Table("from", "to", "limited by", "one connection", "two", "RTT",
                  title=f"{len(findings.verdicts)} directed paths; 95 % intervals")
    for pair, verdict in findings.verdicts.items():
        kinds = " + ".join(kind for kind in verdict.kinds if kind != GROUP)
        shared = [findings.name(limit) for limit in verdict.shared if limit.kind == GROUP]
        paths.add_row(*pair, " + ".join([*([kinds] if kinds else []), *shared]),
                      interval(findings.rate(verdict.one)), format_rate(findings.rate(verdict.two).value),
                      format_time(findings.rtt(pair).value))
    console().print(hosts, paths)
    for limit, name in findings.groups.items():
        console().print(f"{name}, {interval(findings.rate(limit.rate))}: "
                        + ", ".join(f"{source} -> {target}" for source, target in sorted(limit.paths)))
    for note in findings.known.notes:
        console().print(note)
