"""The course of a path, of a host's access or of a group: what it is from which second on.

**Drift** is a random walk of the logarithm of a value, which comes back to where it started: the Ornstein–Uhlenbeck
process, in steps of `every` seconds that are exact for any length of step (Gillespie, "Exact numerical simulation of
the Ornstein–Uhlenbeck process and its integral", Physical Review E 54, 1996, eq. 1.9)::

    x(0) = 0,    x(n + 1) = m x(n) + s √(1 − m²) z(n),    m = e^(−every / memory)

with z(n) drawn from the standard normal distribution. The value is e^x times what it would be without drift: in the
long run log-normal about that, `spread` s being the standard deviation of its logarithm; after `memory` seconds 1/e of
a departure is left.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from emulator.timeline import name
from emulator.topology_file import BOUNDS, Share, check_held, format_held

if TYPE_CHECKING:
    from emulator.topology import Group, Host, Path

MOST_STEPS = 10_000
"""Of one walk: more would be a unit mistaken."""

OUT = 1.0
"""The loss of a path in an outage."""
MOST_LOSS = 0.99
"""Where drift ends that would make a loss an outage."""

S = TypeVar("S", "Path", "Host", "Group")


def walk(seed: str, spread: float, every: float, memory: float, until: float) -> dict[float, float]:
    """The factors, by the second from which each holds: from `every` to `until`.

    The same on every machine: the factors are drawn from Python's generator, which is the same everywhere, and rounded
    to six digits, as the last ones of a logarithm may differ from one C library to another. Raises ValueError for more
    than MOST_STEPS steps.
    """
    steps = math.floor(until / every + 1e-9)
    if steps > MOST_STEPS:
        raise ValueError(f"{steps:,} steps of {every:g} s up to second {until:g} are more than {MOST_STEPS:,}; write "
                         "longer steps, or an earlier end")
    keep = math.exp(-every / memory)
    draw, normal = random.Random(seed), NormalDist()
    logarithm = 0.0
    found = {}
    for step in range(1, steps + 1):
        between_0_and_1 = (draw.getrandbits(52) + 0.5) / 2 ** 52
        logarithm = keep * logarithm + spread * math.sqrt(1 - keep ** 2) * normal.inv_cdf(between_0_and_1)
        found[round(step * every, 9)] = float(f"{math.exp(logarithm):.6g}")
    return found


@dataclass(frozen=True)
class Setting:
    """From `second` on these fields have these values; `place` is its file and line."""

    second: float
    fields: dict[str, float | Share]
    place: str


class Course(Generic[S]):
    """What happens to one path, host or group: filled by who reads the timeline, then asked for its states."""

    def __init__(self, subject: S) -> None:
        self.subject: S = subject
        self.settings: list[Setting] = []
        """At one second, the later wins."""
        self.outages: list[tuple[float, float]] = []
        """Of a path: from the first second on, before the other."""
        self.walks: dict[str, dict[float, float]] = {}
        """By field: the factors by second. A walk of the delay takes the jitter along."""

    def states(self) -> Iterator[tuple[float, S]]:
        """Each second at which it becomes another, ascending, and what it then is. The first is second 0.

        Raises ValueError, with file and line, where a jitter would be more than its delay, or a share makes of a value
        what links cannot hold; drift ends there.
        """
        settings: deque[Setting] = deque(sorted(self.settings, key=lambda setting: setting.second))
        values: dict[str, float] = {}
        factors: dict[str, float] = {}
        last = None
        seconds = {0.0, *(setting.second for setting in settings), *chain(*self.outages, *self.walks.values())}
        for second in sorted(seconds - {math.inf}):
            while settings and settings[0].second <= second:
                self._set(values, settings.popleft())
            factors |= {field: walk[second] for field, walk in self.walks.items() if second in walk}
            state = self._state(second, values, factors)
            if state != last:
                yield second, state
            last = state

    def _set(self, values: dict[str, float], setting: Setting) -> None:
        for field, value in setting.fields.items():
            if isinstance(value, Share):
                values[field] = value.of_own * getattr(self.subject, field)
                check_held(field, values[field], f"{setting.place}: {format_held(field, values[field])}, which the "
                                                 f"{field} of {name(self.subject)} is from second "
                                                 f"{setting.second:g} on,")
            else:
                values[field] = value
        if self._of(values, "jitter") > self._of(values, "delay"):
            raise ValueError(f"{setting.place}: from second {setting.second:g} on a path's jitter is more than its "
                             "delay; write a jitter of at most the delay")

    def _of(self, values: dict[str, float], field: str) -> float:
        """The value of a field, without drift; 0 of one that a host or a group has not."""
        value: float = values.get(field, getattr(self.subject, field, 0.0))
        return value

    def _state(self, second: float, values: dict[str, float], factors: dict[str, float]) -> S:
        fields: dict[str, Any] = dict(values)
        for field, factor in factors.items():
            for moved in ("delay", "jitter") if field == "delay" else (field,):
                least, most = BOUNDS.get(moved, (0.0, math.inf))
                fields[moved] = min(most, max(least, self._of(values, moved) * factor))
        if "loss" in fields:
            fields["loss"] = min(MOST_LOSS, fields["loss"])
        if any(start <= second < end for start, end in self.outages):
            fields["loss"] = OUT
        return dataclasses.replace(self.subject, **fields)
