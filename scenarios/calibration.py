"""What links and machine are, measured by probes that never run a collective, and kept apart from what they predict.

``calibration.json`` holds: one-flow goodput and idle round trip of every path at every speed-up that a scenario runs
at; what a rank's own work costs, and what it computes, with W ranks at it together; the cores that they share; and how
long a new connection takes for its first bytes. :mod:`scenarios.calibrate` measures all that. A prediction made with it
has the basis ``calibrated``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path as File
from statistics import median
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from emulator.links.fidelity import PathFidelity
from emulator.links.shaping import ceiling
from emulator.sim import Costs
from emulator.topology import Host, Path, Topology
from scenarios.records import RecordError, first, read, rewrite

SCHEMA = 1

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Took = Annotated[float, Field(ge=0, le=3600)]
"""Seconds: more than an hour is another unit. NaN is refused too."""


def _parts(*names: str) -> AfterValidator:
    def check(parts: Mapping[str, float]) -> Mapping[str, float]:
        if missing := set(names) - set(parts):
            raise ValueError(f"nothing is said of {min(missing)!r}")
        return parts

    return AfterValidator(check)


Work = Annotated[Mapping[str, Took], _parts("copy", "combine", "message gloo", "message frogtorch")]
"""CPU seconds of a rank: a byte copied, a byte combined, a message by either backend, both its ends."""
Step = Annotated[Mapping[str, Took], _parts("forward", "first_bucket", "backward", "optimiser")]
"""Seconds of the parts of a training step; the first bucket's from the start of backward."""


class CalibrationError(ValueError):
    """A file that is no calibration, or one of something else: says which file, and what it lacks."""


@dataclass(frozen=True)
class PathSeen:
    """One path as it was found, in the shaped network's own time: payload bytes per second, seconds."""

    source: str
    target: str
    goodput: Positive
    expected_goodput: Positive | None
    rtt: Positive
    expected_rtt: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Calibration:
    """All that was measured; keys of JSON objects are text, those of these mappings numbers."""

    topology_sha256: str
    date: str
    network: Mapping[str, Any]
    """How the links were made (their stamp)."""
    cores: Annotated[int, Field(ge=1)]
    paths: Mapping[Positive, Sequence[PathSeen]]
    """By speed-up."""
    costs: Mapping[int, Work]
    """By world size: medians over the ranks, which are at it together."""
    compute: Mapping[int, Step]
    """By world size. Empty if the scenario trains nothing."""
    cold: Sequence[tuple[str, str, int, Took]]
    """Source, target, payload bytes and seconds until the last of them had come, on a new connection at life size."""

    def costs_of(self, arm: str, world: int) -> Costs:
        """What a rank's own work takes in that world, for the simulator. Raises CalibrationError for one not measured.

        `arm` is as the simulator calls it.
        """
        own = _of(self.costs, world)
        message = own["message gloo" if arm == "gloo" else "message frogtorch"]
        return Costs(copy=own["copy"], combine=own["combine"], message=message, cores=self.cores)

    def as_found(self, topology: Topology, speedup: float) -> Topology:
        """The shaped topology with what was found of its paths: ``topology.faster(speedup)``, corrected.

        `topology` may be the part of the calibrated one that is used. A path's two delays are scaled to the round trip.
        A goodput corrects what binds the path: its own rate, or an access, whose correction is the median over the
        paths that it binds. Raises CalibrationError for a speed-up or a path that was not calibrated.
        """
        if speedup not in self.paths:
            raise CalibrationError(f"the calibration knows nothing of speed-up {speedup:g}, only of "
                                   f"{', '.join(f'{k:g}' for k in self.paths)}; calibrate this scenario")
        shaped = topology.faster(speedup)
        seen = {(path.source, path.target): path for path in self.paths[speedup]}
        if missing := [path for path in shaped.paths if (path.source, path.target) not in seen]:
            raise CalibrationError(f"the calibration knows nothing of {missing[0].source} -> {missing[0].target}; "
                                   "calibrate this scenario")
        factors: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for path in shaped.paths:
            found = seen[path.source, path.target]
            if found.expected_goodput:
                factors[_binding(shaped, path)].append(found.goodput / found.expected_goodput)
        factor = {name: median(of) for name, of in factors.items()}

        def corrected(rate: float | None, *name: str) -> float | None:
            return None if rate is None else rate * factor.get(name, 1.0)

        def path_as_found(path: Path) -> Path:
            found = seen[path.source, path.target]
            trip = found.rtt / found.expected_rtt if found.expected_rtt else 1.0
            return replace(path, delay=path.delay * trip, rate=corrected(path.rate, "path", path.source, path.target))

        def host_as_found(host: Host) -> Host:
            return replace(host, up=corrected(host.up, "up", host.name), down=corrected(host.down, "down", host.name))

        return replace(shaped, paths=tuple(map(path_as_found, shaped.paths)),
                       hosts=tuple(map(host_as_found, shaped.hosts)))

    def computed(self, world: int) -> Mapping[str, float]:
        """Seconds of the parts of a training step in that world. Raises CalibrationError for one not measured."""
        return _of(self.compute, world)

    def save(self, file: File) -> None:
        """Write it as JSON; a file that is there is replaced at once or, if that fails, kept."""
        rewrite(file, (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n").encode())


_CALIBRATION = TypeAdapter(Calibration)


def _of(measured: Mapping[int, Mapping[str, float]], world: int) -> Mapping[str, float]:
    if world not in measured:
        raise CalibrationError(f"the calibration knows nothing of W = {world}, only of "
                               f"{', '.join(map(str, measured)) or 'no world'}; calibrate this scenario")
    return measured[world]


def _binding(topology: Topology, path: Path) -> tuple[str, ...]:
    """The name of the limit that one flow on the path meets first."""
    limits = {("path", path.source, path.target): path.rate, ("up", path.source): topology.host(path.source).up,
              ("down", path.target): topology.host(path.target).down}
    known = {name: rate for name, rate in limits.items() if rate is not None}
    least = ceiling(topology, path)
    return min(known, key=lambda name: known[name]) if known and min(known.values()) == least else ("other",)


def load(file: File, topology: Topology) -> Calibration:
    """Read a calibration of that topology. Raises CalibrationError."""
    try:
        content = read(file, dict[str, Any])
        version = content.pop("schema", None)
        if version is None:
            raise RecordError(f"{file}: this is no calibration: it says no schema")
        if type(version) is not int or version != SCHEMA:
            raise CalibrationError(f"{file}: written by another version of this program; calibrate again")
        found = _CALIBRATION.validate_python(content)
    except RecordError as error:
        raise CalibrationError(f"{error}; `frogtorch calibrate SCENARIO` writes one") from None
    except ValidationError as error:
        raise CalibrationError(f"{file}: this is no calibration: {first(error)}; `frogtorch calibrate SCENARIO` writes "
                               "one") from None
    if found.topology_sha256 != topology.sha256:
        raise CalibrationError(f"{file}: it is of another topology than {topology.file}; calibrate again")
    return found


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def as_seen(probes: Sequence[PathFidelity]) -> list[PathSeen]:
    """What of a fidelity probe is calibration."""
    return [PathSeen(p.source, p.target, p.goodput, p.expected_goodput, p.rtt, p.expected_rtt) for p in probes]
