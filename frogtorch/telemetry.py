"""What the backend saw: one record a finished collective, always on.

A record is a dict, schema 1 (times in seconds, sizes in bytes)::

    {"schema": 1, "group": str, "rank": r, "world_size": W, "round": n, "collective": "all_reduce",
     "algorithm": "shard", "op": "sum", "dtype": "float32", "nbytes": S,
     "start": by the monotonic clock, "seconds": to the end,
     "publish": spent publishing, "phase1": from the start to the end of the last Combine, null without one,
     "phase2": from the first byte of a reduced cell to the end, null without one (the phases overlap if pipelined),
     "peers": {"1": {"wait": from the start to the first byte, "transfer": first to last byte, "bytes": payload}},
     "payload_received": B, "payload_sent": B, "socket_received": B, "socket_sent": B}

``socket_*`` is everything of the round on the group's sockets: payload, headers, requests. ``*_sent`` counts what the
kernel has accepted by the time the record is taken: the last peer may read after the collective has ended here.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frogtorch.memory.cells import Reading, Tally

__all__ = ["Record", "Telemetry"]

KEPT = 100_000
"""Records that are kept until they are taken; older ones go."""

REDUCED = b"arr."
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
    peers: dict[int, list[float]] = field(default_factory=dict)  # rank: first byte, last byte, bytes
    tally: Tally = field(default_factory=Tally)

    def read(self, reading: Reading) -> None:
        """Take in a read that is filled."""
        first, last, count = reading.first or self.start, reading.last, len(reading.view)
        if reading.name.startswith(REDUCED) and (self.reduced is None or first < self.reduced):
            self.reduced = first
        seen = self.peers.get(reading.owner)
        if seen is None:
            self.peers[reading.owner] = [first, last, count]
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
            # What came before this rank began was not waited for.
            "peers": {str(peer): {"wait": max(0.0, first - self.start), "transfer": last - first, "bytes": int(count)}
                      for peer, (first, last, count) in sorted(self.peers.items())},
            "payload_received": self.tally.payload_received, "payload_sent": self.tally.payload_sent,
            "socket_received": self.tally.socket_received, "socket_sent": self.tally.socket_sent,
        }


class Telemetry:
    """The records of one group on one rank."""

    def __init__(self, directory: Path | None, rank: int) -> None:
        """Keep records to be taken; with a `directory`, :meth:`close` adds all to its file rank<rank>.jsonl."""
        self._file = None if directory is None else directory / f"rank{rank}.jsonl"
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._unwritten: deque[Record] = deque(maxlen=KEPT)

    def add(self, record: Record) -> None:
        """Keep a record of a collective that has ended."""
        self._records.append(record)
        if self._file is not None:
            self._unwritten.append(record)

    def take(self) -> list[dict[str, Any]]:
        """The records since the last call, oldest first."""
        taken = []
        while self._records:
            taken.append(self._records.popleft().as_dict())
        return taken

    def close(self) -> None:
        """Write the file, if there is a directory for it."""
        if self._file is not None and self._unwritten:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(record.as_dict()) + "\n" for record in self._unwritten)
            self._unwritten.clear()
