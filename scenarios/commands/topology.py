"""``frogtorch topology``: look at a network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.timeline import happenings
from emulator.topology import Topology, TopologyError, load
from emulator.topology import rows as topology_rows
from emulator.units import format_rate
from scenarios.commands import command, console

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command, which has commands of its own."""
    topologies = commands.add_parser("topology", help="look at a topology").add_subparsers(
        metavar="COMMAND", required=True)
    showing = command(topologies, "show", _show, "check a topology, and print its hosts, paths and timeline")
    showing.add_argument("topology", type=Path, help="a topology, as YAML (topologies/*.yaml)")


def _show(options: argparse.Namespace) -> int:
    from emulator.links.shaping import refuse

    topology = load(options.topology)
    _print(topology)
    try:
        refuse(topology)
    except TopologyError as error:
        console().print(f"It can be predicted, and not made on this machine: {error}", style="bold", markup=False)
    return 0


def _print(topology: Topology) -> None:
    hosts = Table("", "host", "site", "up", "down", "slots", title=f"{topology.name}: {len(topology.hosts)} hosts")
    for index, host in enumerate(topology.hosts):
        limits = ("unlimited" if rate is None else format_rate(rate) for rate in (host.up, host.down))
        hosts.add_row(str(index), host.name, host.site, *limits, str(host.slots))
    console().print(hosts)
    table = Table("from", "to", "rate", "one way", "RTT", "limits",
                  title=f"{len(topology.paths)} directed paths")
    for row in topology_rows(topology):
        table.add_row(row.source, row.target, row.rate, row.delay, row.rtt, row.limits)
    console().print(table)
    if topology.timeline:
        later = Table("second", "what happens", title="from the start of a training on")
        for second, what in happenings(topology):
            later.add_row(f"{second:g}", what)
        console().print(later)
