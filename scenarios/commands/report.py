"""``frogtorch report``: the tables and figures of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.commands import command, console

if TYPE_CHECKING:
    from scenarios.commands import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    reporting = command(commands, "report", show,
                        "print the tables of a run, and write report.html, its figures (PNG), points.csv and, for "
                        "ui.perfetto.dev, timeline.json")
    reporting.add_argument("run", type=Path, help="a run directory")


def show(options: argparse.Namespace) -> int:
    """Print the tables of ``options.run``, and write its files there; 1 if links, bars or points are not well."""
    from scenarios.report import report

    options.directory = options.run
    text, well = report(options.run)
    console().print(text)
    return 0 if well else 1
