"""Merge the Chrome traces of a dump, one a rank, into one that shows all ranks on one time line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from frogtorch.telemetry.chrome import merge


def main() -> None:
    """Read DIRECTORY/rank*.trace.json, write DIRECTORY/trace.json."""
    parser = argparse.ArgumentParser(prog="python -m frogtorch.telemetry", description=__doc__)
    parser.add_argument("directory", type=Path, help="what FROGTORCH_DUMP was; of several hosts, copied together")
    directory = parser.parse_args().directory
    files = sorted(directory.glob("rank*.trace.json"))
    if not files:
        parser.error(f"{directory} holds no rank<r>.trace.json")
    merged = directory / "trace.json"
    merged.write_text(json.dumps(merge(json.loads(file.read_text()) for file in files)))
    print(f"{merged}: {len(files)} ranks; open it at https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
