"""The networks of campaigns: a topology, each time in another state and with another timeline, drawn from a seed alone.

A campaign's network is the scenario's topology and a timeline of its own, all of it in one YAML file that anything
here can read. Every arm of the campaign trains on that timeline from its second 0 on. It is drawn before anything is
predicted, and recorded with the run. The seed, the number of the campaign, the topology and the hosts that are used are
all that it depends on: neither arms nor steps are asked. With `length` seconds L, and all chances even unless said:

- **At second 0** every limit (the rate of a path or group, up and down of a host) and every delay is its own share of
  what the topology says; the logarithm of the share is normal about 0, with the spread :data:`LEVEL`.
- **Until L** each of them drifts about that by itself, as :mod:`emulator.course` has it, with the spread :data:`DRIFT`.
- **One limit falls to a tenth**, and recovers: a pair of hosts with the paths of both directions, or a host's access,
  or a group. It falls within the first half of L, for a quarter to a half of L.
- **One path loses packets** from a second within the first half of L on, a share of :data:`LOSS`, its logarithm even;
  that drifts too. It leaves a host without a fast path, if there is one: where packets are lost, real links take each
  by itself (:func:`emulator.links.shaping.segments`), on all of the host's paths, and so they cannot be fast.
- **Two paths have traffic** of others, which begins within the first half of L and lasts a quarter to a half of L, at a
  rate of :data:`TRAFFIC`, as shares of the slowest path's.

These numbers are round ones, chosen before anything was predicted or measured with them, and they stay: a band that
somebody wanted could be had by turning them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path as File
from random import Random
from statistics import NormalDist
from typing import Any

import yaml

from emulator.links.shaping import ceiling
from emulator.topology import Topology, load
from emulator.units import parse_share, parse_time

LEVEL = {"rate": 0.3, "up": 0.3, "down": 0.3, "delay": 0.1}
"""Standard deviation of the logarithm of what a campaign begins with, over what the topology says."""
DRIFT = {"rate": 0.1, "up": 0.1, "down": 0.1, "delay": 0.03, "loss": 0.3}
"""Standard deviation of the logarithm that drift comes to in the long run."""
STEPS, MEMORY = 20, 1 / 3
"""Of the drift: steps until the end; and its memory, as a share of that time."""
LOSS = 0.0001, 0.003
"""The least and the greatest share of packets that is lost."""
FAST = 10
"""Times the slowest path's rate, above which a path is fast."""
TRAFFIC = 0.2, 0.8
"""The least and the greatest rate of traffic, as a share of the slowest path's."""

_FOLDER = "campaigns"

Subject = tuple[dict[str, str], tuple[str, ...]]
"""What a timeline's entry speaks of, as that says it, and which of its fields are limits."""


def draw(topology: Topology, hosts: Iterable[str], number: int, seed: int, length: float) -> tuple[Topology, ...]:
    """The networks of so many campaigns, whose timelines go on for `length` seconds; what `hosts` do not use stays.

    Raises ValueError for a network without a limit that could fall.
    """
    used = topology.select(hosts)
    return tuple(load(f"{topology.file}, campaign {index}", _text(topology, used, f"{seed} {index}", index, length))
                 for index in range(number))


def record(directory: File, timelines: Sequence[Topology]) -> None:
    """Write them into a run directory, as campaigns/<number>.yaml; none, no folder."""
    for index, topology in enumerate(timelines):
        (directory / _FOLDER).mkdir(exist_ok=True)
        (directory / _FOLDER / f"{index}.yaml").write_text(topology.text, encoding="utf-8")


def recorded(directory: File, number: int) -> tuple[Topology, ...]:
    """Those of a run directory. Raises TopologyError for one that is not there or wrong."""
    return tuple(load(directory / _FOLDER / f"{index}.yaml") for index in range(number))


def in_words(topology: Topology) -> list[tuple[float, str]]:
    """What was drawn, drift apart, by the second from which it is so."""
    timeline = yaml.safe_load(topology.text)["timeline"]
    begins: dict[str, list[float]] = {}
    found = []
    for change in timeline["changes"]:
        fields = {name: value for name, value in change.items() if name not in ("at", "from", "to", "host", "group")}
        if (second := parse_time(change["at"])) or "loss" in fields:
            found.append((second, f"{_named(change)}: " + ", ".join(f"{name} {value}"
                                                                    for name, value in fields.items())))
            continue
        for name, value in fields.items():
            begins.setdefault("rate" if name in ("up", "down") else name, []).append(100 * parse_share(value))
    found += [(0.0, f"each {name} is {min(shares):.1f}–{max(shares):.1f} % of the topology's")
              for name, shares in begins.items()]
    found += [(parse_time(flow["start"]), f"traffic {_named(flow)}, {flow['rate']}, until {flow['end']}")
              for flow in timeline["traffic"]]
    return sorted(found)


def _named(entry: dict[str, str]) -> str:
    return f"{entry['from']} → {entry['to']}" if "from" in entry else entry.get("host") or entry["group"]


def _text(topology: Topology, used: Topology, seed: str, index: int, length: float) -> str:
    """The YAML of a campaign's network."""
    subjects = list(_subjects(used))
    levels = {(_named(entry), field): float(f"{100 * math.exp(LEVEL[field] * _normal(seed, _named(entry), field)):.1f}")
              for entry, limits in subjects for field in _moving(entry, limits)}

    def level(entry: dict[str, str], limits: Iterable[str], share: float, digits: int) -> dict[str, str]:
        return {field: f"{levels[_named(entry), field] * share:.{digits}f} %" for field in limits}

    start = [{"at": "0 s", **entry, **level(entry, _moving(entry, limits), 1, 1), **_jitter(used, entry, levels)}
             for entry, limits in subjects]
    chance = Random(f"{seed} fall")
    falls, fallen = _span(chance, length), _one_of(_falling(used, subjects), chance)
    tenth = [{"at": at, **entry, **level(entry, limits, share, 2)} for at, share in zip(falls, (0.1, 1), strict=True)
             for entry, limits in fallen]
    timeline = {
        "changes": [*start, *tenth, _lossy(used, Random(f"{seed} loss"), length)],
        "drift": [{**entry, **{field: f"{100 * DRIFT[field]:g} %" for field in
                               (*_moving(entry, limits), *["loss"] * ("from" in entry))},
                   "every": _seconds(length / STEPS), "memory": _seconds(length * MEMORY), "until": _seconds(length),
                   "seed": Random(f"{seed} drift").getrandbits(31)} for entry, limits in subjects],
        "traffic": _traffic(used, Random(f"{seed} traffic"), length),
    }
    content = yaml.safe_load(topology.text) | {"timeline": timeline}
    return (f"# {topology.name} and timeline {index}, drawn before anything was predicted (scenarios/timelines.py).\n"
            + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


def _subjects(topology: Topology) -> Iterator[Subject]:
    for path in topology.paths:
        yield {"from": path.source, "to": path.target}, ("rate",) * (path.rate is not None)
    for host in topology.hosts:
        if limits := tuple(field for field in ("up", "down") if getattr(host, field) is not None):
            yield {"host": host.name}, limits
    for group in topology.groups:
        yield {"group": group.name}, ("rate",)


def _moving(entry: dict[str, str], limits: tuple[str, ...]) -> tuple[str, ...]:
    """The fields that begin at a share of their own, and drift; a loss apart."""
    return (*limits, *["delay"] * ("from" in entry))


def _jitter(topology: Topology, entry: dict[str, str], levels: dict[tuple[str, str], float]) -> dict[str, str]:
    """A path's jitter keeps its share of the delay."""
    if "from" not in entry or not topology.path(entry["from"], entry["to"]).jitter:
        return {}
    return {"jitter": f"{levels[_named(entry), 'delay']:.1f} %"}


def _falling(topology: Topology, subjects: Sequence[Subject]) -> list[list[Subject]]:
    """What may fall, each as all that falls with it."""
    of = {_named(entry): (entry, limits) for entry, limits in subjects}
    pairs = [[of[f"{one} → {other}"], of[f"{other} → {one}"]]
             for one, other in combinations((host.name for host in topology.hosts), 2)]
    alone = [[subject] for subject in subjects if "from" not in subject[0]]
    found = [together for together in (*pairs, *alone) if all(limits for _, limits in together)]
    if not found:
        raise ValueError(f"topology {topology.name!r} has no rate that could fall to a tenth; give its paths, accesses "
                         "or groups one")
    return found


def _lossy(topology: Topology, chance: Random, length: float) -> dict[str, str]:
    at, loss = _even(chance, 0, length / 2), math.exp(_even(chance, *map(math.log, LOSS)))
    most = FAST * _slowest(topology)
    fast = {path.source for path in topology.paths if (rate := ceiling(topology, path)) is None or rate > most}
    path = _one_of([path for path in topology.paths if path.source not in fast] or topology.paths, chance)
    return {"at": _seconds(round(at, 1)), "from": path.source, "to": path.target, "loss": f"{100 * loss:.4f} %"}


def _traffic(topology: Topology, chance: Random, length: float) -> list[dict[str, str]]:
    slowest = _slowest(topology)
    found = []
    for source, target in chance.sample(list(permutations((host.name for host in topology.hosts), 2)), 2):
        start, end = _span(chance, length)
        found.append({"from": source, "to": target, "start": start, "end": end,
                      "rate": f"{_even(chance, *TRAFFIC) * slowest / 1e3:.1f} kB/s"})
    return found


def _slowest(topology: Topology) -> float:
    return min(rate for path in topology.paths if (rate := ceiling(topology, path)) is not None)


def _span(chance: Random, length: float) -> tuple[str, str]:
    """When something begins and ends: within the first half, for a quarter to a half."""
    start = _even(chance, 0, length / 2)
    end = start + _even(chance, length / 4, length / 2)
    return _seconds(round(start, 1)), _seconds(round(end, 1))


def _even(chance: Random, low: float, high: float) -> float:
    return low + (high - low) * chance.random()


def _one_of(of: Sequence[Any], chance: Random) -> Any:
    return of[int(len(of) * chance.random())]


def _normal(*seed: str) -> float:
    """Of mean 0 and spread 1, the same on every machine but for its last digits."""
    return NormalDist().inv_cdf((Random(" ".join(seed)).getrandbits(52) + 0.5) / 2 ** 52)


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + " s"
