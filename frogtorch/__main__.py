"""The console command: the testbed's, where there is one."""

from __future__ import annotations

import importlib
import importlib.util
import sys


def main() -> int:
    """Run the testbed's command line; on a node that has only the backend, say how to get the testbed."""
    try:
        return _main()
    except KeyboardInterrupt:  # while the command line was imported: of later ones it says itself what becomes of a run
        print("frogtorch: interrupted; `frogtorch down` removes what a run may have left", file=sys.stderr)
        return 130


def _main() -> int:
    if any(importlib.util.find_spec(name) is None for name in ("scenarios", "simpy", "pydantic", "rich")):
        print("This host has the frogtorch backend alone, which init_process_group('frogtorch') uses; to predict and "
              "measure, check out the project and run: pip install -e '.[testbed]'", file=sys.stderr)
        return 2
    # By name: the backend imports nothing of the testbed (see CONTRIBUTING.md).
    status: int = importlib.import_module("scenarios.cli").main()
    return status


if __name__ == "__main__":
    sys.exit(main())
