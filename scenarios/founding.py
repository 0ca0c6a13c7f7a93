"""Directs a run in Compose: waits for the hosts, and measures the founding workload on them; they end with it.

Usage: ``python -m scenarios.founding TOPOLOGY HOST...``. The world is the first four of the hosts, or all of them if
others are up (their profile is on); with the profile ``sweep`` all-reduces of several sizes are measured too. SPEEDUP,
STEPS and ENGINE come from the environment.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from emulator.hosts import composed
from emulator.hosts.door import Door
from emulator.links.namespace import LinkError
from scenarios.commands import run
from scenarios.compose_file import DEFAULT

_PATIENCE = 60.0
"""Seconds for the hosts to come."""
_SETTLED = 4.0
"""Seconds without another one, after which those that are there are all."""
_RUNS = Path("runs")
_WARMUP = 8


def scenario(topology: Path, hosts: Sequence[str], present: Collection[str], speedup: str, steps: int) -> str:
    """The scenario for the containers that are there, as YAML. Raises ValueError if some of the hosts are not."""
    world = hosts if set(hosts[DEFAULT:]) & set(present) else hosts[:DEFAULT]
    if missing := [host for host in world if host not in present]:
        raise ValueError(f"{', '.join(missing)} did not come up in {_PATIENCE:.0f} s: look at what its container says "
                         f"(docker compose logs {missing[0]})")
    lines = [f"name: founding-{len(world)}", f"topology: {topology}", f"worlds: {{{len(world)}: [{', '.join(world)}]}}",
             "arms: [gloo, shard]", f"speedup: {speedup or (10 if len(world) == DEFAULT else 5)}",
             f"training: {{steps: {steps}, warmup: {min(_WARMUP, steps - 1)}}}"]
    if "sweep" in present:
        lines += ["repetitions: 3", "all_reduce: {intercept: 4 KiB, slope: [2.1 MB, 4.2 MB, 8.4 MB], beside: [64 KiB]}"]
    return "\n".join(lines) + "\n"


def gather(hosts: Sequence[str]) -> set[str]:
    """Wait for the hosts of the smallest world at least, and until no more come; the containers that are there."""
    deadline = time.monotonic() + _PATIENCE
    known: set[str] = set()
    changed = time.monotonic()
    while time.monotonic() < deadline:
        present = composed.doors()
        if present != known:
            known, changed = present, time.monotonic()
        if set(hosts[:DEFAULT]) <= known and time.monotonic() - changed > _SETTLED:
            break
        time.sleep(0.1)
    return known


def direct(topology: Path, hosts: Sequence[str], tied: dict[str, Door]) -> int:
    """Measure on the hosts that are there; the exit status. Raises ValueError, OSError or RuntimeError."""
    present = gather(hosts)
    tied.update({name: composed.tie(name) for name in present})
    text = scenario(topology, hosts, present, os.environ.get("SPEEDUP", ""), int(os.environ.get("STEPS", "48")))
    with tempfile.TemporaryDirectory() as room:
        file = Path(room, "scenario.yaml")
        file.write_text(text)
        parser = argparse.ArgumentParser()
        run.add(parser.add_subparsers())
        options = parser.parse_args(["compare", str(file), "--engine", os.environ.get("ENGINE", "auto")])
        options.runtime = "compose"
        status = run.compare(options)
    if late := composed.doors() - present:
        raise ValueError(f"{', '.join(sorted(late))} came up when the run had begun without it: run it again")
    return status


def leave(tied: dict[str, Door]) -> None:
    """See that no container stays, and give what was written to whom the directory belongs."""
    for name in composed.doors() - set(tied):
        with suppress(LinkError, OSError):
            tied[name] = composed.tie(name)
    owner = _RUNS.stat()
    for path in _RUNS.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def main() -> int:
    """Direct a run, whatever comes of it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    topology, *hosts = sys.argv[1:]
    tied: dict[str, Door] = {}  # closed by our end, and by nothing before: Compose takes the first that ends
    try:
        return direct(Path(topology).absolute(), hosts, tied)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        print(f"frogtorch: {error}", file=sys.stderr)
        return 1
    finally:
        leave(tied)


if __name__ == "__main__":
    sys.exit(main())
