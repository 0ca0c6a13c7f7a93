"""A run's telemetry as a Chrome trace, for Perfetto (ui.perfetto.dev), which needs the recorded lines alone.

A process is a rank; its tracks are the collectives, and one for each peer that it reads from, with ``wait`` and
``transfer``: Perfetto colours slices by their names, so these two differ everywhere. Times are those of the wall clock.
What overlaps on a track goes to a second one of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def write(directory: Path, file: Path) -> None:
    """Write the trace of ``directory``/telemetry. Lines without a wall clock's time are left out."""
    events = [event for lines in sorted((directory / "telemetry").glob("*.jsonl")) for event in _rank(lines)]
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _rank(lines: Path) -> Iterator[Event]:
    """The events of a rank's lines."""
    busy: dict[str, list[float]] = {}
    threads: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    with lines.open(encoding="utf-8") as records:
        for text in records:
            if not text.endswith("\n"):
                break
            line = json.loads(text)
            if line.get("time_ns") is None or line.get("seconds") is None:
                continue
            rank = line.get("rank", 0)
            if rank not in seen:
                seen.add(rank)
                yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
            start = line["time_ns"] / 1e3
            title = f"{line['collective']} {line.get('algorithm') or ''}".strip()
            about = {name: line.get(name) for name in ("round", "nbytes", "arm", "bucket_view", "step", "bucket")}
            spans = [("collectives", [(title, start, line["seconds"] * 1e6)])]
            for peer, part in line.get("peers", {}).items():
                wait, transfer = part["wait"] * 1e6, part["transfer"] * 1e6
                spans.append((f"from rank {peer}", [("wait", start, wait), ("transfer", start + wait, transfer)]))
            for track, parts in spans:
                ends = busy.setdefault(track, [])
                end = parts[-1][1] + parts[-1][2]
                lane = next((index for index, free in enumerate(ends) if free <= start), len(ends))
                ends[lane:lane + 1] = [end]
                if (track, lane) not in threads:
                    threads[track, lane] = len(threads) + 1
                    yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": threads[track, lane],
                           "args": {"name": track}}
                for name, begins, lasts in parts:
                    yield {"ph": "X", "name": name, "cat": "frogtorch", "pid": rank, "tid": threads[track, lane],
                           "ts": begins, "dur": lasts, "args": about}
