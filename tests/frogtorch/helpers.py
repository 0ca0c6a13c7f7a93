"""What several test files need (pyproject.toml has this folder on their path)."""

import time

import torch.distributed as dist

from frogtorch.memory.cells import Reading, Tally
from frogtorch.telemetry import Record

GIVE_UP = 30.0
"""Seconds after which something that was to come counts as missing."""


def group():
    return dist.distributed_c10d._get_default_group()


def failure(call, kind=RuntimeError):
    try:
        call()
    except kind as error:
        return str(error)
    return None


def eventually(condition):
    """Whether `condition` becomes true."""
    until = time.monotonic() + GIVE_UP
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def record(**fields):
    return Record(**{"group": "0", "rank": 0, "world_size": 3, "collective": "all_reduce", "algorithm": "shard",
                     "op": "sum", "dtype": "float32", "nbytes": 12, "start": 100.0} | fields)


def reading(name, owner, first, last, nbytes, head):
    one = Reading(7, name, owner, b"", memoryview(bytes(nbytes)), Tally(), lambda reading, error: None)
    one.first, one.last, one.got, one.head = first, last, nbytes, head
    return one
