"""Traces: how a path went, second by second, recorded in a CSV file.

The first line names the columns and their units; every other line is what the path is like from its second on::

    second,rate MB/s,delay ms,loss %
    0,0.7,35,0
    1.5,0.42,48,0.1
    2,0,48,0

`second` is needed, and ascends; any of the others may be left out: they leave the path as it is. A rate of 0 is an
outage until the next line. The last line holds for ever. Units are those of a topology's YAML, without quotes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path as File

from emulator.document import DocumentError, suggest
from emulator.topology_file import held_delay, held_rate
from emulator.units import parse_loss, parse_time

COLUMNS: Mapping[str, Callable[[object], float]] = {"rate": held_rate, "delay": held_delay, "loss": parse_loss}

MOST_LINES = 10_000
"""A line changes the network: more of them in one training than this is a unit mistaken."""


@dataclass(frozen=True)
class Moment:
    """The path from `second` on."""

    second: float
    fields: dict[str, float]
    """Of :data:`COLUMNS` those that the file has; no rate in an outage."""
    out: bool
    """Is it an outage?"""
    line: int


@dataclass(frozen=True)
class Trace:
    """A trace file: its `name` relative to the topology's directory, its text, and its moments."""

    name: str
    text: str
    moments: tuple[Moment, ...]


def read(directory: File, name: str, refusal: type[DocumentError]) -> Trace:
    """Read a trace; raises `refusal`, with file, line and mend, for what is wrong with its content.

    Raises ValueError for a name that is not below the directory, and for a file that cannot be read: the mistake is
    where it is named.
    """
    if File(name).is_absolute() or ".." in File(name).parts or File(name).suffix != ".csv":
        raise ValueError(f"{name!r} is not a CSV file below the topology's own directory, with which it is copied; "
                         "write a relative path such as 'traces/train.csv'")
    file = directory / name
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the trace {file} cannot be read ({error}); give its path relative to the topology's own "
                         "directory") from None
    lines = list(csv.reader(text.splitlines()))

    def refuse(line: int, message: str) -> DocumentError:
        return refusal(f"{file}:{line}: {message}")

    if len(lines) < 2:
        raise refuse(1, "no trace; write a line of column names, such as 'second,rate MB/s,delay ms', and a line for "
                        "each moment")
    if len(lines) > MOST_LINES:
        raise refuse(MOST_LINES, f"a trace has at most {MOST_LINES:,} lines, and this one {len(lines):,}; thin it out")
    columns = [_column(cell, lambda message: refuse(1, message)) for cell in lines[0]]
    names = [column for column, _ in columns]
    if names[:1] != ["second"] or len(names) == 1 or len(set(names)) < len(names):
        raise refuse(1, "the columns are 'second', then each at most once, rate, delay and loss with their units; "
                        "write them so")
    moments: list[Moment] = []
    for line, cells in enumerate(lines[1:], 2):
        if len(cells) != len(columns):
            raise refuse(line, f"{len(cells)} values for {len(columns)} columns; write one for each")
        try:
            second, *values = (_value(column, unit, cell) for (column, unit), cell in zip(columns, cells, strict=True))
        except ValueError as error:
            raise refuse(line, str(error)) from None
        if moments and second <= moments[-1].second:
            raise refuse(line, f"second {second:g} is not after {moments[-1].second:g}; put the lines in order")
        fields = dict(zip(names[1:], values, strict=True))
        out = fields.get("rate") == 0
        if out:
            del fields["rate"]
        moments.append(Moment(second, fields, out, line))
    return Trace(name, text, tuple(moments))


def _column(cell: str, refuse: Callable[[str], DocumentError]) -> tuple[str, str]:
    """Name and unit of a column."""
    name, _, unit = cell.strip().partition(" ")
    if name not in ("second", *COLUMNS):
        raise refuse(f"unknown column {name!r}; {suggest(name, ('second', *COLUMNS))}")
    if (name == "second") == bool(unit):
        raise refuse(f"column {cell.strip()!r}: write 'second' without a unit, and the others with one, such as "
                     "'rate MB/s', 'delay ms', 'loss %'")
    return name, unit.strip()


def _value(column: str, unit: str, cell: str) -> float:
    if column == "second":
        return parse_time(f"{cell.strip()} s")
    if column == "rate" and cell.strip() in ("0", "0.0"):
        return 0.0
    return COLUMNS[column](f"{cell} {unit}".strip())
