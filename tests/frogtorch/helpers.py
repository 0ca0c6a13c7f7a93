"""What several test files need (pyproject.toml has this folder on their path)."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from frogtorch.memory.cells import Reading, Tally
from frogtorch.telemetry import Record

GIVE_UP = 60.0
"""Seconds after which something that was to come counts as missing."""


SMALL, LONG = 10, 300_000
"""Counts of fp32: one that goes unasked, one that is asked for."""


def model():
    # 7 and 5: no world divides them.
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)).double()


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (torch.randn(4, 6, generator=generator, dtype=torch.float64),
            torch.randn(4, 5, generator=generator, dtype=torch.float64))


def loss(net, rank, step):
    x, y = batch(rank, step)
    return mse_loss(net(x), y)


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
