"""What several test files need (pyproject.toml has this folder on their path)."""

import time
from datetime import timedelta

import torch.distributed as dist

from frogtorch.memory.cells import Reading, Tally
from frogtorch.telemetry import Record

GIVE_UP = 60.0
"""Seconds after which something that was to come counts as missing."""


def group():
    return dist.distributed_c10d._get_default_group()


def failure(call, kind=RuntimeError):
    try:
        call()
    except kind as error:
        return str(error)
    return None


def brief_timeout(seconds):
    """Let what this rank begins from now on time out after `seconds`, in which not every rank need have started."""
    group().set_timeout(timedelta(seconds=seconds))


def store():
    return dist.distributed_c10d._get_default_store()


def tell(name):
    store().set(name, "1")


def passed(name):
    """Wait for a word from another rank."""
    store().wait([name], timedelta(seconds=GIVE_UP))


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
