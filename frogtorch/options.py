"""The backend's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frogtorch.collectives import ALL_REDUCE
from frogtorch.collectives.shard import CHUNK_BYTES

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Settings of a group, for ``init_process_group("frogtorch", pg_options=Options(...))``.

    What is left None is taken from the environment, variable by variable, else from the default. All ranks of a
    group must have the same `all_reduce` and `chunk_bytes`; they find out if they have not. Raises ValueError for a
    value that cannot be.
    """

    all_reduce: str | None = None
    """Algorithm of all-reduce: ``shard`` (the default), ``pipelined`` or ``whole``; FROGTORCH_ALL_REDUCE."""

    chunk_bytes: int | None = None
    """Largest chunk of a slice in ``pipelined``, in bytes; 1 MiB by default; FROGTORCH_CHUNK_BYTES."""

    address: str | None = None
    """IP address of this host to listen on, and to tell the others; FROGTORCH_ADDRESS. By default the address of the
    route to the c10d store's host, or else of the first interface that is up."""

    telemetry: str | os.PathLike[str] | None = None
    """Directory for a file of telemetry a rank; FROGTORCH_TELEMETRY. By default none is written."""

    def __post_init__(self) -> None:
        if self.all_reduce is not None and self.all_reduce not in ALL_REDUCE:
            raise ValueError(f"all_reduce (FROGTORCH_ALL_REDUCE) is one of {', '.join(ALL_REDUCE)}, not "
                             f"{self.all_reduce!r}")
        if self.chunk_bytes is not None and (not isinstance(self.chunk_bytes, int) or self.chunk_bytes < 1):
            raise ValueError(f"chunk_bytes (FROGTORCH_CHUNK_BYTES) is a whole number of bytes, 1 or more, not "
                             f"{self.chunk_bytes!r}")

    def resolved(self, environment: Mapping[str, str] = os.environ) -> Settings:
        """These options, completed from the environment."""
        named = {key: environment.get(f"FROGTORCH_{key.upper()}") or None
                 for key in ("all_reduce", "chunk_bytes", "address", "telemetry")}
        chunk_bytes, text = self.chunk_bytes, named["chunk_bytes"]
        if chunk_bytes is None and text is not None:
            if not text.isdecimal():
                raise ValueError(f"FROGTORCH_CHUNK_BYTES is a whole number of bytes, such as {CHUNK_BYTES}, not "
                                 f"{text!r}")
            chunk_bytes = int(text)
        found = Options(self.all_reduce or named["all_reduce"], chunk_bytes, self.address or named["address"],
                        self.telemetry or named["telemetry"])
        return Settings(found.all_reduce or "shard", found.chunk_bytes or CHUNK_BYTES, found.address,
                        None if found.telemetry is None else Path(found.telemetry))


@dataclass(frozen=True)
class Settings:
    """Options with nothing left open."""

    all_reduce: str
    chunk_bytes: int
    address: str | None
    telemetry: Path | None
