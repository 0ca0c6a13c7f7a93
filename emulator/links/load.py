"""Processes that compute and do nothing else, to see what links are beside busy ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes computing; they also end with this one, however it does."""
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            spinning.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", _SPIN]))
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
