"""What the backend saw: one record a finished collective, always on.

A record is a dict, schema 1 (times in seconds, sizes in bytes)::

    {"schema": 1, "group": str, "rank": r, "world_size": W, "round": n, "collective": "all_reduce",
     "algorithm": "shard", "op": "sum", "dtype": "float32", "nbytes": S,
     "start": by the monotonic clock, "seconds": to the end,
     "publish": spent publishing, "phase1": from the start to the end of the last Combine, null without one,
     "phase2": from the first byte of a reduced cell to the end, null without one (the phases overlap if pipelined),
     "peers": {"1": {"wait": from the start to the first byte, "transfer": first to last byte, "bytes": payload,
                     "phase1": the same three of the contributions alone, null if none was read,
                     "phase2": of the sums (in phase 2 even a fast transfer may have waited for all of phase 1)}},
     "payload_received": B, "payload_sent": B, "socket_received": B, "socket_sent": B}

``socket_*`` is everything of the round on the group's sockets: payload, headers, requests. ``*_sent`` counts what the
kernel has accepted by the time the record is taken: the last peer may read after the collective has ended here.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frogtorch.collectives.shard import SUM
from frogtorch.memory.cells import Reading, Tally

__all__ = ["Record", "Telemetry"]

KEPT = 10_000
"""Records that are kept until they are taken; older ones go."""

BATCH = 1_000
"""Records that are written to the file at a time."""

REDUCED = f"{SUM}.".encode()
"""What the names of reduced cells begin with: those that the second phase reads."""


@dataclass(slots=True)
class Record:
    """One collective, as it goes on."""

    group: str
    rank: int
    world_size: int
    collective: str
    algorithm: str | None
    op: str | None
    dtype: str
    nbytes: int
    start: float
    round: int = -1
    end: float = 0.0
    publish: float = 0.0
    combined: float | None = None
    reduced: float | None = None
    peers: dict[int, list[list[float] | None]] = field(default_factory=dict)  # rank: by phase, first, last byte, bytes
    tally: Tally = field(default_factory=Tally)

    def read(self, reading: Reading) -> None:
        """Take in a read that is filled."""
        first, last, count = reading.first or self.start, reading.last, len(reading.view)
        second = reading.name.startswith(REDUCED)
        if second and (self.reduced is None or first < self.reduced):
            self.reduced = first
        phases = self.peers.setdefault(reading.owner, [None, None])
        seen = phases[second]
        if seen is None:
            phases[second] = [first, last, count]
        else:
            seen[0] = min(seen[0], first)
            seen[1] = max(seen[1], last)
            seen[2] += count

    def as_dict(self) -> dict[str, Any]:
        """The record in schema 1."""
        return {
            "schema": 1, "group": self.group, "rank": self.rank, "world_size": self.world_size, "round": self.round,
            "collective": self.collective, "algorithm": self.algorithm, "op": self.op, "dtype": self.dtype,
            "nbytes": self.nbytes, "start": self.start, "seconds": self.end - self.start, "publish": self.publish,
            "phase1": None if self.combined is None else self.combined - self.start,
            "phase2": None if self.reduced is None else self.end - self.reduced,
            "peers": {str(peer): self._peer(phases) for peer, phases in sorted(self.peers.items())},
            "payload_received": self.tally.payload_received, "payload_sent": self.tally.payload_sent,
            "socket_received": self.tally.socket_received, "socket_sent": self.tally.socket_sent,
        }

    def _peer(self, phases: list[list[float] | None]) -> dict[str, Any]:
        read = [seen for seen in phases if seen is not None]
        first, second = (None if seen is None else self._span(*seen) for seen in phases)
        return {**self._span(min(seen[0] for seen in read), max(seen[1] for seen in read),
                             sum(seen[2] for seen in read)), "phase1": first, "phase2": second}

    def _span(self, first: float, last: float, count: float) -> dict[str, Any]:
        # What came before this rank began was not waited for.
        return {"wait": max(0.0, first - self.start), "transfer": last - first, "bytes": int(count)}


class Telemetry:
    """The records of one group on one rank."""

    def __init__(self, directory: Path | None, rank: int, submit: Callable[[Callable[[], None]], None]) -> None:
        """Keep records to be taken; with a `directory`, add all to its file rank<rank>.jsonl, now and then.

        `submit` runs a function on another thread, where it may write.
        """
        self._file = None if directory is None else directory / f"rank{rank}.jsonl"
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._unwritten: deque[Record] = deque()
        self._submit = submit
        self._writing = threading.Lock()

    def add(self, record: Record) -> None:
        """Keep a record of a collective that has ended."""
        self._records.append(record)
        if self._file is not None:
            self._unwritten.append(record)
            if len(self._unwritten) == BATCH:
                self._submit(self.write)

    def take(self) -> list[dict[str, Any]]:
        """The records since the last call, oldest first."""
        taken = []
        while self._records:
            taken.append(self._records.popleft().as_dict())
        return taken

    def write(self) -> None:
        """Write what the file has not yet, if there is a directory for it."""
        if self._file is None or not self._unwritten:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._writing, self._file.open("a", encoding="utf-8") as lines:
            while self._unwritten:
                lines.write(json.dumps(self._unwritten.popleft().as_dict()) + "\n")
