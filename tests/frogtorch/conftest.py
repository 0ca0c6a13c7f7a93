"""Worlds of real ranks: forked processes that meet over loopback."""

import os
import pickle
import selectors
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

import frogtorch.process_group  # noqa: F401 - once, and not in every forked rank

GUARD = 120.0
"""Seconds after which a world counts as hung."""


class RankFailed(Exception):  # noqa: N818 - a result, never raised
    """A rank raised: the text is its traceback."""


class World:
    """`size` forked ranks, each running ``function(rank, size)`` in a group of its own."""

    def __init__(self, size, function, *, backend="frogtorch", timeout=20.0, options=None, environment=None,
                 absent=(), guard=GUARD):
        self.size = size
        self.guard = guard
        self.folder = tempfile.TemporaryDirectory()
        self.pids = []
        self.pipes = []
        for rank in range(size):
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                if rank in absent:
                    os._exit(0)
                self._child(rank, function, backend, timeout, options, environment or {}, theirs)
            os.close(theirs)
            self.pids.append(pid)
            self.pipes.append(ours)

    def _child(self, rank, function, backend, timeout, options, environment, pipe):
        status = 1
        try:
            os.environ.update(environment)
            os.environ.setdefault("FROGTORCH_ADDRESS", "127.0.0.1")
            import torch
            import torch.distributed as dist

            torch.set_num_threads(1)
            dist.init_process_group(backend, init_method=f"file://{self.folder.name}/store", rank=rank,
                                    world_size=self.size, timeout=timedelta(seconds=timeout), pg_options=options)
            result = True, function(rank, self.size)
            dist.destroy_process_group()
            status = 0
        except BaseException:
            result = False, traceback.format_exc()
        with os.fdopen(pipe, "wb") as out:
            pickle.dump(result, out)
        os._exit(status)

    def results(self, expected_dead=(), guard=GUARD):
        """What the ranks returned, in rank order: an exception is returned as RankFailed, a dead rank as None."""
        data = [b""] * self.size
        until = time.monotonic() + guard
        with selectors.DefaultSelector() as selector:
            for rank, pipe in enumerate(self.pipes):
                if rank not in expected_dead:
                    selector.register(pipe, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    late = [key.data for key in selector.get_map().values()]
                    raise AssertionError(f"ranks {late} hang after {guard} s")
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 20)
                    data[key.data] += chunk
                    if not chunk:
                        selector.unregister(key.fd)
        found = []
        for text in data:
            good, value = pickle.loads(text) if text else (True, None)
            found.append(value if good else RankFailed(value))
        return found

    def close(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in self.pipes:
            os.close(pipe)
        self.folder.cleanup()


@pytest.fixture
def world():
    """Start worlds: ``world(size, function, ...)`` returns a World; all are gone after the test."""
    started = []

    def start(*args, **kwargs):
        started.append(World(*args, **kwargs))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ranks(world):
    """Run ``function(rank, size)`` on every rank and return the results; a rank that raised fails the test."""

    def run(size, function, *, guard=GUARD, **kwargs):
        found = world(size, function, **kwargs).results(guard=guard)
        for rank, result in enumerate(found):
            if isinstance(result, RankFailed):
                pytest.fail(f"rank {rank}:\n{result}")
        return found

    return run


@pytest.fixture
def project():
    """The project's root."""
    return Path(__file__).parents[2]
