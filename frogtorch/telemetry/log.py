"""The records of one group on one rank: kept until they are taken, and written to a file if there is one."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frogtorch.telemetry import dump
from frogtorch.telemetry.record import GroupInfo, Record
from frogtorch.telemetry.ring import RING

KEPT = 10_000
"""Records that are kept until they are taken; older ones go."""

KEPT_UNASKED = 1_000
"""The same, as long as nobody has taken any: most never do, and the ring has these anyhow."""

BATCH = 1_000
"""Records that are written to the file at a time."""


_log = logging.getLogger("frogtorch")


class Telemetry:
    """The records of one group on one rank."""

    def __init__(self, info: GroupInfo, directory: Path | None, submit: Callable[[Callable[[], None]], None]) -> None:
        """Keep records to be taken; with a `directory`, add all to its file rank<global rank>.jsonl, now and then.

        `submit` runs a function on another thread, where it may write.
        """
        self.info = info
        self._file = None if directory is None else directory / f"rank{info.ranks[info.rank]}.jsonl"
        self._records: deque[Record] = deque()
        self._kept = KEPT_UNASKED
        self._unwritten: deque[Record] = deque()
        self._submit = submit
        self._writing = threading.Lock()

    def begin(self, record: Record) -> None:
        """A collective begins."""
        record.info = self.info
        RING.begin(record)

    def end(self, record: Record, error: BaseException | None = None) -> None:
        """It has ended, well or with `error`: keep its record."""
        record.finish(error)
        RING.end(record)
        self._records.append(record)
        if len(self._records) > self._kept:
            self._records.popleft()
        if self._file is not None:
            self._unwritten.append(record)
            if len(self._unwritten) == BATCH:
                self._submit(self.write)
        if error is not None:
            dump.after_failure()

    def take(self) -> list[dict[str, Any]]:
        """The records since the last call, oldest first."""
        self._kept = KEPT
        taken = []
        while self._records:
            taken.append(self._records.popleft().as_dict())
        return taken

    def write(self) -> None:
        """Write what the file has not yet, if there is a directory for it. If it cannot be, warn, and write no more."""
        with self._writing:
            file = self._file
            if file is None or not self._unwritten:
                return
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as lines:
                    while self._unwritten:
                        lines.write(json.dumps(self._unwritten.popleft().as_dict()) + "\n")
            except OSError as error:
                _log.warning("no more telemetry of group %s is written to %s: %s", self.info.name, file, error)
                self._file = None
                self._unwritten.clear()
