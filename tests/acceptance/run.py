"""PyTorch's own distributed suite against `frogtorch`, beside gloo's results."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

SUITE = Path(__file__).with_name("suite.py")

OUTCOMES = ("pass", "skip", "refused", "fail")

DESCRIPTION = __doc__ + """

The 285 tests of torch.testing._internal.distributed.distributed_test ship in the torch wheel. Each starts W ranks on
this machine, which meet through a file and do real collectives over loopback. Nothing of torch is replaced."""

EPILOG = """what the outcomes mean:
  pass      the test ran, and every rank ended well
  skip      the suite skipped it: on this machine (no GPU), at this world size, or on Linux
  refused   PyTorch's front fails it for every backend that is not gloo, without asking the backend; it was run, and
            failed with exactly that text
  fail      anything else; the results file has its error, and all that its ranks printed

Some tests are skipped by the suite for every backend but one, by name. For frogtorch these gates are opened, and the
report says how many passed that way: "as gloo" are tests that only gloo runs, "as mpi" all_to_all on a CPU, which gloo
itself does not run here. Gloo runs with its own gates only.

examples:
  python tests/acceptance/run.py --world 3                           both backends, some ten minutes
  python tests/acceptance/run.py --world 4 --backend frogtorch       ours alone
  python tests/acceptance/run.py --world 3 -k all_to_all             the tests whose name this is in (a pattern)

exit code: 0 if no test failed, 1 if one did, 2 if nothing was to run"""


class Worker:
    """A process that runs tests of one backend, one after the other."""

    def __init__(self, backend: str, world: int) -> None:
        self.process = subprocess.Popen([sys.executable, SUITE, backend, str(world)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        names = self.process.stdout.readline()
        if not names:
            sys.exit(f"{SUITE.name} ended before its first test, with exit code {self.process.wait()}")
        self.names: list[str] = json.loads(names)

    def run(self, test: str) -> dict[str, Any] | None:
        """The record of one test; None if the process itself ended in it."""
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else None

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def records(backend: str, world: int, pattern: str, jobs: int) -> Iterator[dict[str, Any]]:
    """The records of all tests that match `pattern`, as they end; `jobs` of them run at a time."""
    first = Worker(backend, world)
    left = iter([name for name in first.names if re.search(pattern, name)])
    ended: list[dict[str, Any] | None] = []
    changed = threading.Condition()

    def work(worker: Worker) -> None:
        while True:
            with changed:
                test = next(left, None)
            if test is None:
                break
            record = worker.run(test)
            if record is None:
                reason = f"the process that runs the tests ended, with exit code {worker.process.wait()}"
                record = {"test": test, "outcome": "fail", "reason": reason, "gate": backend, "seconds": 0.0}
                worker = Worker(backend, world)
            with changed:
                ended.append(record)
                changed.notify()
        worker.close()
        with changed:
            ended.append(None)
            changed.notify()

    for number in range(jobs):
        threading.Thread(target=work, args=(Worker(backend, world) if number else first,)).start()
    working = jobs
    while working:
        with changed:
            changed.wait_for(lambda: ended)
            record = ended.pop(0)
        if record is None:
            working -= 1
        else:
            yield {"backend": backend, "world": world, **record}


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """What came out, backends side by side."""
    counts = {}
    for backend, tests in found.items():
        counts[backend] = Counter(record["outcome"] for record in tests.values())
        counts[backend].update(f"  as {record['gate']}" for record in tests.values()
                               if record["outcome"] == "pass" and record["gate"] != backend)
        counts[backend]["total"] = len(tests)
    rows = ["", *OUTCOMES, "total"]
    rows[2:2] = sorted({row for count in counts.values() for row in count if row.startswith(" ")})
    lines = [f"{row:<10}" + "".join(f"{counts[backend][row] if row else backend:>12}" for backend in found)
             for row in rows]
    return "\n".join(lines)


def reasons(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Why frogtorch skipped or was refused: first what gloo passes, then the rest, counted by reason."""
    theirs = found.get("gloo", {})
    listed, rest = [], Counter[str]()
    for test, record in sorted(found.get("frogtorch", {}).items()):
        if record["outcome"] in ("skip", "refused"):
            if theirs.get(test, {}).get("outcome") == "pass":
                listed.append(f"  {test}: {record['outcome']}: {record['reason']}")
            else:
                rest[f"{record['outcome']}: {record['reason']}"] += 1
    if theirs:
        listed.insert(0, f"frogtorch skips or is refused, gloo passes: {len(listed)}")
    listed += ["frogtorch's others, by reason:", *(f"  {count:>4}  {reason}" for reason, count in rest.most_common())]
    return "\n".join(listed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py", description=DESCRIPTION, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=3, metavar="W", help="ranks a test has (default: 3)")
    parser.add_argument("--backend", nargs="+", choices=("frogtorch", "gloo"), default=["frogtorch", "gloo"],
                        help="which to run (default: both)")
    parser.add_argument("-k", default="", metavar="PATTERN", help="only tests in whose name this regular expression is")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="tests that run at a time (default: 1); some are about time, so leave a core to each rank")
    parser.add_argument("--results", type=Path, metavar="FILE",
                        help="where the records go, as JSON lines (default: acceptance-<W>.jsonl, here)")
    options = parser.parse_args()
    path = options.results or Path(f"acceptance-{options.world}.jsonl")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with path.open("w") as results:
        head = {"torch": version("torch"), "world": options.world, "began": datetime.now().astimezone().isoformat()}
        results.write(json.dumps(head) + "\n")
        for backend in dict.fromkeys(options.backend):
            begin = time.monotonic()
            tests = found[backend] = {}
            for record in records(backend, options.world, options.k, options.jobs):
                results.write(json.dumps(record) + "\n")
                results.flush()
                tests[record["test"]] = record
                print(f"{backend} {len(tests):>3} {record['outcome']:>8} {record['seconds']:>6.1f} s  {record['test']}",
                      flush=True)
            print(f"{backend}: {time.monotonic() - begin:.0f} s\n", flush=True)
    if not any(found.values()):
        print(f"no test has {options.k!r} in its name", file=sys.stderr)
        return 2
    print(f"torch {head['torch']}, W = {options.world}\n{table(found)}\n\nrecords: {path}")
    if "frogtorch" in found:
        print(f"\n{reasons(found)}")
    failed = [record for tests in found.values() for record in tests.values() if record["outcome"] == "fail"]
    for record in failed:
        said = "\n  ".join(record.get("log", "").splitlines()[-20:])
        print(f"\nFAILED {record['backend']} {record['test']}\n{record['reason'].rstrip()}\nits ranks said last:\n"
              f"  {said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
