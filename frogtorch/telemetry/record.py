"""One collective, as it goes on. What comes of it, as a dict, is described at the top of the package."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from frogtorch.collectives.interest import SUMS
from frogtorch.memory.cells import Reading, Span, Tally
from frogtorch.memory.endpoint import Endpoint

REDUCED = tuple(f"{kind}.".encode() for kind in SUMS)
"""What the names of reduced cells begin with: those that the second phase reads."""

_WALL_NS = time.time_ns() - time.monotonic_ns()
"""The wall clock less the monotonic one. Taken once: a clock that is set in between does not tear a trace apart."""


def wall_ns(moment: float) -> int:
    """A time of ``time.monotonic`` by the wall clock, in nanoseconds since 1970."""
    return int(moment * 1e9) + _WALL_NS


@dataclass(slots=True)
class GroupInfo:
    """What all records of a group have in common."""

    name: str
    space: str
    """The name with a mark of this run of the group: another group may get the same name later."""
    rank: int
    """Ours, in the group."""
    ranks: tuple[int, ...]
    """The global rank of each member, by its rank in the group."""
    desc: str = "undefined"
    ends: dict[int, tuple[Endpoint, Endpoint]] = field(default_factory=dict)
    """Our end and theirs of the connection to each peer: what a packet capture shows."""

    def as_dict(self) -> dict[str, Any]:
        """The group, as the first lines of a dump have it."""
        return {"schema": 1, "group": self.name, "space": self.space, "desc": self.desc, "rank": self.rank,
                "global_ranks": list(self.ranks),
                "endpoints": {str(peer): self.connection(peer) for peer in sorted(self.ends)}}

    def connection(self, peer: int) -> dict[str, str]:
        """Both ends of the connection to a peer."""
        local, remote = self.ends[peer]
        return {"local": str(local), "remote": str(remote)}


@dataclass(slots=True)
class Record:
    """One collective."""

    group: str
    rank: int
    world_size: int
    collective: str
    algorithm: str | None
    op: str | None
    dtype: str
    nbytes: int
    start: float
    input_sizes: Sequence[Sequence[int]] = ()
    output_sizes: Sequence[Sequence[int]] = ()
    info: GroupInfo | None = None
    id: int = -1
    round: int = -1
    peer: int | None = None
    """Of a message: the rank at its other end; None while any may be its source."""
    tag: int | None = None
    number: int | None = None
    """Which message of its pair, direction and tag it is."""
    step: int | None = None
    """Of a comm hook: the step, as the hook counts them."""
    bucket: int | None = None
    """Of a comm hook: which of the step's buckets it is."""
    ages: dict[int, int] | None = None
    """Of a comm hook: by peer whose bucket is in the mean, how many steps old it is."""
    timeout: float | None = None
    end: float = 0.0
    state: str = "started"
    error: str | None = None
    publish: float = 0.0
    combined: float | None = None
    reduced: float | None = None
    contributions: dict[int, Span] = field(default_factory=dict)  # what was read, by peer
    sums: dict[int, Span] = field(default_factory=dict)
    waiting: Collection[Reading] = ()  # reads that are not filled yet
    tally: Tally = field(default_factory=Tally)

    def read(self, reading: Reading) -> None:
        """Take in a read that is filled."""
        first, last, count = reading.first or self.start, reading.last, len(reading.view)
        spans = self.contributions
        if reading.name.startswith(REDUCED):
            spans = self.sums
            if self.reduced is None or first < self.reduced:
                self.reduced = first
        span = spans.get(reading.owner)
        if span is None:
            spans[reading.owner] = Span(first, last, count, reading.head)
        else:
            span.add(first, last, count, reading.head)

    def finish(self, error: BaseException | None) -> None:
        """It has ended, well or with `error`."""
        if not self.end:
            self.end = time.monotonic()
        if error is None:
            self.state = "completed"
        else:
            self.error = str(error)
            self.state = "failed"

    def received(self) -> dict[int, Span]:
        """What was read, by peer, in both phases together."""
        found: dict[int, Span] = {}
        # A dump looks at collectives that are under way: it takes copies, each in one step of the interpreter.
        for spans in (self.contributions, self.sums):
            for peer, seen in sorted(spans.items()):
                span = found.setdefault(peer, Span(seen.first, seen.last, 0, seen.head))
                span.add(seen.first, seen.last, seen.bytes, seen.head)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The record in schema 1."""
        tally = self.tally
        over = self.state != "started"
        return {
            "schema": 1, "id": self.id, "group": self.group, "rank": self.rank, "world_size": self.world_size,
            "round": self.round, "peer": self.peer, "tag": self.tag, "number": self.number,
            "collective": self.collective, "algorithm": self.algorithm, "op": self.op, "dtype": self.dtype,
            "nbytes": self.nbytes, "input_sizes": [list(shape) for shape in self.input_sizes],
            "output_sizes": [list(shape) for shape in self.output_sizes], "state": self.state, "error": self.error,
            "timeout": self.timeout, "start": self.start, "time_ns": wall_ns(self.start),
            "seconds": self.end - self.start if over else None, "publish": self.publish,
            "phase1": None if self.combined is None else self.combined - self.start,
            "phase2": None if self.reduced is None or not over else self.end - self.reduced,
            "peers": {str(peer): {**self._times(span), "phase1": self._times(self.contributions.get(peer)),
                                  "phase2": self._times(self.sums.get(peer))}
                      for peer, span in sorted(self.received().items())},
            "sent": {str(peer): self._times(span) for peer, span in sorted(tally.sent.items())},
            "waiting": self._missing(), "payload_offered": tally.payload_offered,
            "payload_received": tally.payload_received, "payload_sent": tally.payload_sent,
            "socket_received": tally.socket_received, "socket_sent": tally.socket_sent,
            "step": self.step, "bucket": self.bucket,
            "incorporated": None if self.ages is None else {str(peer): age for peer, age in sorted(self.ages.items())},
        }

    def _times(self, span: Span | None) -> Any:
        if span is None:
            return None
        transfer = span.last - span.first
        # What came before this rank began was not waited for.
        return {"wait": max(0.0, span.first - self.start), "transfer": transfer, "bytes": span.bytes,
                "rate": (span.bytes - span.head) / transfer if transfer > 0 else None}

    def _missing(self) -> dict[str, int]:
        missing: dict[str, int] = {}
        for reading in list(self.waiting):
            peer = str(reading.owner)
            missing[peer] = missing.get(peer, 0) + len(reading.view) - reading.got
        return missing
