"""PyTorch's own distributed suite, one test at a time, against any backend; what `run.py` starts.

The tests are those that ship in the torch wheel, ``torch.testing._internal.distributed.distributed_test``, as they
are: nothing in torch is replaced. PyTorch's own front for them refuses backends it does not know, hence this one.

    python tests/acceptance/suite.py frogtorch 3

reads names of tests from standard input, runs each with that many ranks, and answers with one JSON line each. An empty
standard input gets the names of all tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any

SUITE = "torch.testing._internal.distributed.distributed_test"

GATES = {"frogtorch": ("frogtorch", "gloo", "mpi"), "gloo": ("gloo",)}
"""The names under which a backend's tests are looked for.

Decorators of the suite skip a test for backends that are not on a list of names, such as "Only Gloo backend supports
sparse all reduce". They are evaluated when the module is imported, so it is imported once under each name; a test runs
in the first copy that lets it through. The groups in it are always those of the backend under test.
"""

FEATURES = ("plugin", "ddp", "subgroup", "gpu", "cuda")
"""What a backend from outside says it has, in PyTorch's own table of features (``DistTestCases.backend_feature``).

"gpu" and "cuda" open tests that want a device, which gloo is said to have too; without one they skip themselves.
"""

ASK_AGAIN = ("test_accumulate_gradients_no_sync",)
"""Beginnings of tests that ask in their body for the name once more, and prepare a model for gloo and mpi alone.

They are told the name that opened the gate; their group is the one they are given, of the backend under test.
"""

REFUSED = {
    "test_monitored_barrier_": (
        r"monitored_barrier is only implemented for GLOO backend",
        "torch.distributed.monitored_barrier refuses every backend whose name is not gloo, without asking it"),
}
"""Tests that PyTorch's Python front fails, by the beginning of their names: the text it fails with, and why.

Such a test is still run, and counts as refused only if it fails with this text.
"""


def load(name: str, backend: str) -> Any:
    """The suite as a test case: skips were decided for the backend `name`, and its groups are of `backend`."""
    os.environ["BACKEND"] = name
    found = importlib.util.find_spec(SUITE)
    spec = importlib.util.spec_from_file_location(f"distributed_test_as_{name}", found.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # what its tests pickle is found again by this name
    spec.loader.exec_module(module)
    os.environ["BACKEND"] = module.BACKEND = backend

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Not by spawn, as PyTorch does: every rank would import torch anew, for ten seconds a test.
            self._start_processes(module.torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *args, **kwargs):
            module.INIT_METHOD = os.environ["INIT_METHOD"]  # a file for each test
            super()._run(*args, **kwargs)

        def run_test(self, test_name, parent_pipe):
            if test_name.startswith(ASK_AGAIN):
                module.BACKEND = name
            super().run_test(test_name, parent_pipe)

        def _check_return_codes(self, fn, elapsed_time):
            super()._check_return_codes(fn, elapsed_time)
            # PyTorch looks at the first rank's alone.
            codes = [process.exitcode for process in self.processes]
            if len(set(codes)) > 1 and fn not in self.skip_return_code_checks:
                raise RuntimeError(f"the ranks ended with different exit codes: {codes}")

    return Suite


class Outcome(unittest.TestResult):
    """What came of one test."""

    outcome = "pass"
    reason = ""

    def addSkip(self, test, reason):  # noqa: N802 - unittest's name
        self.outcome, self.reason = "skip", reason

    def addFailure(self, test, error):  # noqa: N802
        self.outcome = "fail"
        self.reason = "".join(traceback.format_exception(*error))

    addError = addFailure  # noqa: N815


def run(suites: dict[str, Any], test: str) -> dict[str, Any]:
    """Run one test under the first name that lets it through; the result as a record."""
    gate, suite = next(((name, one) for name, one in suites.items()
                        if not getattr(getattr(one, test), "__unittest_skip__", False)), next(iter(suites.items())))
    result = Outcome()
    begin = time.monotonic()
    suite(test).run(result)
    outcome, reason = result.outcome, result.reason
    if outcome == "fail":
        for beginning, (text, why) in REFUSED.items():
            if test.startswith(beginning) and re.search(text, reason):
                outcome, reason = "refused", why
    return {"test": test, "outcome": outcome, "reason": reason, "gate": gate,
            "seconds": round(time.monotonic() - begin, 2)}


def main(backend: str, world: str) -> None:
    """Answer the names on standard input with records on what was standard output."""
    os.environ.setdefault("FROGTORCH_ADDRESS", "127.0.0.1")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "100")  # seconds after which a test hangs
    os.environ.update(WORLD_SIZE=world, INIT_METHOD="file://")

    from torch.testing._internal.common_distributed import DistTestCases

    if backend != "gloo":
        import frogtorch.process_group  # noqa: F401 - once, and not in every forked rank

        for feature in FEATURES:
            DistTestCases.backend_feature[feature].add(backend)
    suites = {name: load(name, backend) for name in GATES[backend]}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What tests and their ranks print is kept for the case that one fails.
    log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - until the process ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    answers.write(json.dumps(unittest.TestLoader().getTestCaseNames(next(iter(suites.values())))) + "\n")
    for line in sys.stdin:
        log.seek(0)
        log.truncate()
        record = run(suites, line.strip())
        if record["outcome"] == "fail":
            log.seek(0)
            record["log"] = log.read()[-20_000:]
        answers.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
