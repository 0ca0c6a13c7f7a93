"""``frogtorch links``: make a network's links, and say whether they are what the topology says."""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.hosts.runtime import Runtime, chosen
from emulator.topology import load, round_trip
from emulator.units import format_loss, format_rate, format_time
from scenarios.commands import command, console, link_options, speedup
from scenarios.progress import Stages

if TYPE_CHECKING:
    from emulator.links.fidelity import PathFidelity
    from scenarios.commands import Commands

_EPILOG = """\
Every directed path's goodput (one TCP flow, 8 MB or four seconds) and idle round trip is compared with what the
topology says: within 1 %, and within 0.3 ms or 3 %. Times and rates are those on the wire, at the speed-up. The exit
status is 1 if a path is off.

examples:
  sudo frogtorch links topologies/seattle-newyork.yaml --speedup 5
  sudo frogtorch links topologies/lan.yaml --engine tun --load"""

_ECHOES = 100
_WIDTH = 140
_LOSS_TOLERANCE = 0.0015      # of the packets
Pair = tuple[str, str]


def add(commands: Commands) -> None:
    """Add the command."""
    making = command(commands, "links", _links, "make a network's links, and say whether they are what they should be",
                     _EPILOG)
    making.add_argument("topology", type=Path, help="a topology, as YAML (topologies/*.yaml)")
    link_options(making)
    making.add_argument("--speedup", type=speedup, default=1.0, metavar="K", help="rates x K, delays / K (default: 1)")
    making.add_argument("--load", action="store_true",
                        help="also take round trips beside as many busy processes as there are hosts")
    making.add_argument("--loss-datagrams", type=int, default=0, metavar="N",
                        help="also count what is lost of N small datagrams, on every path with loss")
    making.set_defaults(interrupted="the network is gone")


def _links(options: argparse.Namespace) -> int:
    from emulator.hosts import userns

    if options.runtime == "netns":
        userns.again()
    topology = load(options.topology)
    run = secrets.token_hex(3)
    print(f"run {run} (if it is killed: frogtorch down {run})", file=sys.stderr)
    make = chosen(options.runtime).Network
    with Stages() as stages, make(topology, run, options.engine, options.speedup) as network:
        stages.stage(f"probing every path of {topology.name}, k = {options.speedup:g}", 1)
        found = network.probe(stages.at)
        idle = _echoes(network, stages, "idle round trips")
        loaded = _loaded(network, stages) if options.load else None
        losses = dict(_losses(network, stages, options.loss_datagrams)) if options.loss_datagrams else {}
        network.check()
    _print(network, found, idle, loaded, losses)
    return _verdict(found, losses, options.loss_datagrams)


def _echoes(network: Runtime, stages: Stages, text: str) -> dict[Pair, list[float]]:
    from emulator.links.ping import echoes

    stages.stage(f"{text}, {_ECHOES} a path", 1)
    topology = network.shaped
    expected = {(path.source, path.target): round_trip(topology, path) for path in topology.paths}
    return echoes(network.namespaces, network.addresses, expected, _ECHOES)


def _loaded(network: Runtime, stages: Stages) -> dict[Pair, list[float]]:
    from emulator.links.load import busy

    count = len(network.shaped.hosts)
    with busy(count):
        return _echoes(network, stages, f"round trips beside {count} busy processes")


def _losses(network: Runtime, stages: Stages, count: int) -> Iterator[tuple[Pair, tuple[float, float]]]:
    """For each path that loses packets the share that it should lose, and that it lost."""
    from emulator.links.loss import lost

    paths = [path for path in network.shaped.paths if 0 < path.loss < 1]
    stages.stage(f"losses of {count} datagrams a path", len(paths))
    for path in paths:
        yield (path.source, path.target), (path.loss, len(lost(network, path, count)) / count)
        stages.advance()


def _print(network: Runtime, found: list[PathFidelity], idle: dict[Pair, list[float]],
           loaded: dict[Pair, list[float]] | None, losses: dict[Pair, tuple[float, float]]) -> None:
    table = Table("from", "to", "RTT ms", "median", "p50, p99", title=f"{network.topology.name}: {len(found)} paths")
    if loaded is not None:
        table.add_column("under load")
    for title in ("goodput", "measured", "off by", *(("lost",) if losses else ()), ""):
        table.add_column(title)
    for path in found:
        pair = path.source, path.target
        expected = "any" if path.expected_goodput is None else format_rate(path.expected_goodput)
        error = "" if path.expected_goodput is None else f"{path.goodput_error:+.2%}"
        row = [*pair, _ms(path.expected_rtt), _ms(path.rtt), _percentiles(idle[pair])]
        if loaded is not None:
            row.append(_percentiles(loaded[pair]))
        row += [expected, format_rate(path.goodput), error]
        if losses:
            row.append(format_loss(losses[pair][1]) if pair in losses else "")
        table.add_row(*row, "ok" if path.valid else "OFF")
    console(_WIDTH).print(table)
    stamp = network.stamp
    print(f"{stamp['runtime']}, engine {stamp['engine']} ({stamp['scheduling']}), k = {network.speedup:g}; "
          f"calibrated by {format_time(float(str(stamp['bias'])))} a path; chance is "
          f"{'seeded' if stamp['seeded'] else 'not seeded: this kernel does not take it'}")


def _verdict(found: list[PathFidelity], losses: dict[Pair, tuple[float, float]], count: int) -> int:
    """Say it; returns the exit status."""
    off = {(path.source, path.target): f"goodput off by {path.goodput_error:+.2%}, round trip by "
                                       f"{_ms(path.rtt_error)} ms" for path in found if not path.valid}
    for pair, (expected, share) in losses.items():
        # Three and a half standard errors of a share of so many.
        if abs(share - expected) > max(_LOSS_TOLERANCE, 3.5 * math.sqrt(expected * (1 - expected) / count)):
            off[pair] = "; ".join([*filter(None, [off.get(pair)]), f"lost {share:.3%}, not {expected:.3%}"])
    print("\n".join([f"OFF: {len(off)} of {len(found)} paths",
                     *(f"{source} -> {target}: {what}" for (source, target), what in off.items())]) if off
          else f"all {len(found)} paths are what the topology says")
    return 1 if off else 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _percentiles(times: list[float]) -> str:
    cuts = quantiles(times, n=100, method="inclusive")
    return f"{_ms(cuts[49])}, {_ms(cuts[98])}"
