"""The backend's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from frogtorch.collectives import ALL_REDUCE, ORDERS
from frogtorch.collectives.shard import CHUNK_BYTES
from frogtorch.memory.endpoint import Endpoint, parse_address, parse_advertise

__all__ = ["Options", "Settings"]


@dataclass(frozen=True)
class Options:
    """Settings of a group, for ``init_process_group("frogtorch", pg_options=Options(...))``.

    What is left None is taken from the environment, variable by variable (``FROGTORCH_`` and the option's name in
    capitals), else from the default. All ranks of a group must have the same `all_reduce`, `chunk_bytes` and `order`;
    they find out if they have not. Raises ValueError for a value that cannot be.
    """

    all_reduce: str | None = None
    """Algorithm of all-reduce: ``shard`` (the default), ``pipelined``, ``whole``, or ``direct``, shard's control."""

    chunk_bytes: int | None = None
    """Largest chunk of a slice in ``pipelined``, in bytes; 1 MiB by default."""

    order: str | None = None
    """Order of summation: ``rank`` (the default: 0, 1, 2, …) or ``gloo``, which gives the bits of Gloo's ring."""

    address: str | None = None
    """IP address of this host to listen on, and to connect from; no other is listened on then. ``0.0.0.0`` and ``::``
    mean all. By default a rank listens on those at which others may reach it: on that of the route to the c10d store's
    host, which is tried first, and those of the other interfaces; on loopback alone if the store is there."""

    advertise: str | None = None
    """What the others are told to connect to, where that is not `address`: an IP address, or ``address:port`` (in
    front of a container whose port is published; `ports` is that port inside)."""

    ports: str | None = None
    """Port to listen on, or a range of them such as ``29600-29699``, of which each group takes a free one. By default
    the kernel chooses."""

    telemetry: str | os.PathLike[str] | None = None
    """Directory for a file of telemetry a rank. By default none is written."""

    dump: str | os.PathLike[str] | None = None
    """Directory to which a rank dumps its last 1,000 collectives when one fails, and when it gets SIGUSR1. By default
    nothing is dumped, and the signal is left alone. One directory a process."""

    dump_at_exit: bool | None = None
    """Whether to dump at the end of the process, too; not by default."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                _CHECKS.get(field.name, lambda value: value)(value)

    def resolved(self, environment: Mapping[str, str] = os.environ) -> Settings:
        """These options, completed from the environment."""
        given: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                value = environment.get(f"FROGTORCH_{field.name.upper()}") or None
            if value is not None:
                given[field.name] = _CHECKS.get(field.name, lambda value: value)(value)
        return Settings(**given)


@dataclass(frozen=True)
class Settings:
    """Options with nothing left open."""

    all_reduce: str = "shard"
    chunk_bytes: int = CHUNK_BYTES
    order: str = "rank"
    address: str | None = None
    advertise: Endpoint | None = None
    ports: tuple[int, int] = (0, 0)
    telemetry: Path | None = None
    dump: Path | None = None
    dump_at_exit: bool = False

    def __post_init__(self) -> None:
        if self.advertise is not None and self.advertise.port and (not self.ports[0] or self.ports[0] != self.ports[1]):
            raise ValueError(f"advertise (FROGTORCH_ADVERTISE) is {self.advertise}, whose port leads to one port of "
                             f"this host: set ports (FROGTORCH_PORTS) to that one, or advertise the address alone")
        if self.dump_at_exit and self.dump is None:
            raise ValueError("dump_at_exit (FROGTORCH_DUMP_AT_EXIT) needs a directory: dump (FROGTORCH_DUMP)")
        if self.dump is not None and self.dump == self.telemetry:
            raise ValueError(f"telemetry and dump are two directories, as both hold a rank<r>.jsonl; both are "
                             f"{self.dump}")


def _one_of(name: str, known: tuple[str, ...]) -> Any:
    def check(value: Any) -> str:
        if value not in known:
            raise ValueError(f"{name} (FROGTORCH_{name.upper()}) is one of {', '.join(known)}, not {value!r}")
        return str(value)
    return check


def _switch(name: str) -> Any:
    def check(value: Any) -> bool:
        text = str(value).lower()
        if text not in ("1", "0", "true", "false"):
            raise ValueError(f"{name} (FROGTORCH_{name.upper()}) is 1 or 0, not {value!r}")
        return text in ("1", "true")
    return check


def _chunk_bytes(value: Any) -> int:
    if not re.fullmatch(r"[0-9]+", str(value)) or int(value) < 1:
        raise ValueError(f"chunk_bytes (FROGTORCH_CHUNK_BYTES) is a whole number of bytes, 1 or more, such as "
                         f"{CHUNK_BYTES}, not {value!r}")
    return int(value)


def _ports(value: Any) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", str(value).strip())
    first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"ports (FROGTORCH_PORTS) is a port or a range of them from 1 to 65535, such as 29600-29699, "
                         f"not {value!r}")
    return first, last


_CHECKS: dict[str, Any] = {
    "all_reduce": _one_of("all_reduce", tuple(ALL_REDUCE)),
    "chunk_bytes": _chunk_bytes,
    "order": _one_of("order", tuple(ORDERS)),
    "address": parse_address,
    "advertise": parse_advertise,
    "ports": _ports,
    "telemetry": Path,
    "dump": Path,
    "dump_at_exit": _switch("dump_at_exit"),
}
"""What makes of a value, given in Python or as text, what the settings hold; or raises ValueError."""
