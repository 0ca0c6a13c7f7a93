"""Records as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Format: "Trace Event Format", the JSON that both read: complete events (``"ph": "X"``) with a start and a duration in
microseconds, on threads that metadata events name. A process is a rank; its threads are tracks: the collectives, their
phases, and one for each peer and direction. Spans of one thread must nest or be apart, so what overlaps (two
collectives of a group in flight) goes to a second track of the same name. Times are those of the wall clock, so traces
of ranks whose clocks agree need only be put together: :func:`merge`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any

from frogtorch.memory.cells import Span
from frogtorch.telemetry.record import Record, wall_ns

__all__ = ["merge", "trace"]


class _Tracks:
    """The tracks of one process, made as they are asked for; `events` is what the trace holds."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ends: dict[str, list[float]] = {}  # by name of a track: when each of those of this name is free again
        self._threads: dict[tuple[str, int], int] = {}
        self.events: list[dict[str, Any]] = [
            self._meta("process_name", 0, f"rank {rank} ({socket.gethostname()}, process {os.getpid()})"),
            {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        ]

    def spans(self, track: str, parts: list[tuple[str, float, float, dict[str, Any]]]) -> None:
        """Add what follows one another on a track: names, beginnings and ends (monotonic), and what else to show."""
        parts = [part for part in parts if part[2] >= part[1]]
        if not parts:
            return
        begin, end = parts[0][1], parts[-1][2]
        ends = self._ends.setdefault(track, [])
        lane = next((i for i, free in enumerate(ends) if free <= begin), len(ends))
        ends[lane:lane + 1] = [end]
        thread = self._thread(track, lane)
        for name, start, stop, args in parts:
            self.events.append({"ph": "X", "name": name, "cat": "frogtorch", "pid": self._rank, "tid": thread,
                                "ts": wall_ns(start) / 1e3, "dur": (stop - start) * 1e6, "args": args})

    def _thread(self, track: str, lane: int) -> int:
        found = self._threads.get((track, lane))
        if found is None:
            found = self._threads[track, lane] = len(self._threads) + 1
            self.events.append(self._meta("thread_name", found, track))
        return found

    def _meta(self, name: str, thread: int, value: str) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": self._rank, "tid": thread, "args": {"name": value}}


def trace(records: Iterable[Record], rank: int, now: float) -> dict[str, Any]:
    """The trace of the process with the global rank `rank`; what is under way ends `now` (monotonic) in it."""
    tracks = _Tracks(rank)
    for record in records:
        _collective(tracks, record, now)
        for peer, span in sorted(record.received().items()):
            _transfer(tracks, record, peer, span, "from")
        for peer, span in sorted(record.tally.sent.items()):
            _transfer(tracks, record, peer, span, "to")
    return {"traceEvents": tracks.events, "displayTimeUnit": "ms"}


def merge(traces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One trace of several ranks'."""
    return {"traceEvents": [event for one in traces for event in one["traceEvents"]], "displayTimeUnit": "ms"}


def _title(record: Record) -> str:
    if record.step is not None:
        return f"{record.collective} step {record.step}, bucket {record.bucket}"
    if record.tag is None:
        return f"{record.collective} {record.round}"
    peer = "any rank" if record.peer is None else _rank(record, record.peer)
    return f"{record.collective} {'to' if record.collective == 'send' else 'from'} {peer}, tag {record.tag}"


def _rank(record: Record, peer: int) -> str:
    """A rank of the record's group, by its global number, as processes and tracks are named."""
    return f"rank {peer if record.info is None else record.info.ranks[peer]}"


def _collective(tracks: _Tracks, record: Record, now: float) -> None:
    shown = record.as_dict()
    end = record.end or now
    args = {name: shown[name] for name in (
        "group", "round", "number", "algorithm", "op", "dtype", "nbytes", "state", "error", "waiting", "publish",
        "payload_offered", "payload_received", "payload_sent", "socket_received", "socket_sent", "incorporated")}
    tracks.spans("collectives", [(_title(record), record.start, end, args)])
    if record.combined is not None:
        tracks.spans("phases", [(f"{_title(record)}: phase 1", record.start, record.combined, {})])
    if record.reduced is not None:
        tracks.spans("phases", [(f"{_title(record)}: phase 2", max(record.start, record.reduced), end, {})])


def _transfer(tracks: _Tracks, record: Record, peer: int, span: Span, way: str) -> None:
    args: dict[str, Any] = {"bytes": span.bytes}
    if record.info is not None and peer in record.info.ends:
        args |= record.info.connection(peer)
    first = max(record.start, span.first)
    parts = [(f"{_title(record)}: transfer", first, max(first, span.last), args)]
    if way == "from":
        parts.insert(0, (f"{_title(record)}: wait", record.start, first, {}))
    tracks.spans(f"{way} {_rank(record, peer)}", parts)
