"""What a run was made with: recorded beside its results, so that two runs can be told apart."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import emulator
import frogtorch
import scenarios

_LIBRARIES = ("torch", "simpy", "numpy", "scipy", "networkx", "pydantic")


def environment() -> dict[str, Any]:
    """Machine, kernel, versions, and one SHA-256 a package over its module files."""
    return {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("frogtorch", *_LIBRARIES)},
        "modules_sha256": {package.__name__: _modules_sha256(package.__path__[0])
                           for package in (frogtorch, emulator, scenarios)},
    }


def modules() -> dict[str, str]:
    """SHA-256 of what a rank runs: the backend, and the training. Read when the rank's modules are."""
    scenario = Path(scenarios.__path__[0])
    return {"frogtorch": _modules_sha256(frogtorch.__path__[0]),
            "workloads": _modules_sha256(str(scenario / "workloads")),
            "rank": hashlib.sha256(b"".join((scenario / name).read_bytes()
                                            for name in ("rank.py", "replica.py", "slowdown.py",
                                                         "arms.py"))).hexdigest()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _modules_sha256(package: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(package).rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
