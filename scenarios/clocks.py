"""Times on the clock of another machine, as times on ours.

A rank on a machine of its own is asked what its clock says, several times; the answer that came back soonest tells
most. If both ways took equally long its clock was read half a round trip ago: wrong by half the difference of the two
ways, and never by more than half of the round trip (NTP's rule, RFC 5905, section 8). Between two sights a clock is
taken to have drifted evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LOOKS = 5
"""Questions in one sight of a clock."""
TIMES = ("start", "end", "steps", "exchanges")
"""What of a rank's results are times, or lists of them, and no durations."""


@dataclass(frozen=True)
class Sight:
    """One clock, seen from ours."""

    at: float
    """When, on our clock."""
    ahead: float
    """Seconds by which it was ahead."""
    trip: float
    """Seconds of the round trip in which it was seen."""

    @classmethod
    def of(cls, asked: float, said: float, heard: float) -> Sight:
        """It said so to a question that was `asked` and answered (`heard`) at these times of ours."""
        return cls((asked + heard) / 2, said - (asked + heard) / 2, heard - asked)


def ours(time: float, before: Sight, after: Sight) -> float:
    """A time of a clock that was seen twice, as a time of ours."""
    span = after.at - before.at
    share = min(1.0, max(0.0, (time - before.ahead - before.at) / span)) if span > 0 else 1.0
    return time - before.ahead - share * (after.ahead - before.ahead)


def translated(result: Any, before: Sight, after: Sight) -> Any:
    """A rank's result, with its times on our clock."""
    def moved(value: Any) -> Any:
        return [moved(one) for one in value] if isinstance(value, list | tuple) else ours(value, before, after)

    return {name: moved(value) if name in TIMES else value for name, value in result.items()}
