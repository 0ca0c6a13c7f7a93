"""``frogtorch doctor``: what this machine has, and how to get the rest."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from scenarios.commands import command, console

if TYPE_CHECKING:
    from emulator.doctor import Examination
    from scenarios.commands import Commands

_EPILOG = """\
Everything is tried, not read from version numbers: as root, or, for an ordinary user, as root of a user namespace where
the system allows that. Nothing is left behind. The exit status is 0 if the main job can run here (frogtorch compare on
network namespaces), and 1 if not. What only other jobs need may be missing: docker and compose (--runtime docker), all
engines but one."""


def add(commands: Commands) -> None:
    """Add the command."""
    examining = command(commands, "doctor", _doctor, "say what this machine has, and how to get what it lacks", _EPILOG)
    examining.add_argument("--json", action="store_true", help="as one JSON object, for scripts")


def _doctor(options: argparse.Namespace) -> int:
    from emulator.doctor import examine

    seen = examine()
    if options.json:
        print(json.dumps({"schema": 1, "ready": seen.ready, "engine": seen.engine, "lacking": seen.lacking,
                          "findings": [asdict(finding) for finding in seen.findings]}, indent=2))
    else:
        _print(seen)
    return 0 if seen.ready else 1


def _print(seen: Examination) -> None:
    table = Table.grid("", "", "", padding=(0, 2))
    for finding in seen.findings:
        table.add_row("ok" if finding.ok else "missing", finding.name, escape(finding.found))
        if finding.remedy:
            table.add_row("", "", escape(f"→ {finding.remedy}"))
    console().print(table)
    print(f"the main job can run here, with engine {seen.engine}" if seen.ready
          else f"the main job cannot run here; it lacks {', '.join(seen.lacking)}")
