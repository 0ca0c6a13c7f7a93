"""One rank of a measured run: a process that enters its host, joins the groups, and does what the runner says.

The runner and its ranks talk over pipes, which no shaped link carries. A command is ``(name, arguments)``; the rank
prepares, says ``("ready", None)``, gets a time on its monotonic clock, which all ranks of one machine share, begins
then, and answers ``("done", result)``, or ``("failed", text)`` with its own traceback. Its first word, when it has
joined the groups, is ``("done", SHA-256 of the modules that it runs)``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

import frogtorch
from emulator.hosts.machine import device_of
from scenarios import costs, scripted
from scenarios.arms import ARMS
from scenarios.environment import modules
from scenarios.ranks import Place, Talk, Words
from scenarios.replica import FirstBucket, Replica, group
from scenarios.script import Script
from scenarios.store import join
from scenarios.workloads import FOUNDING, WORKLOADS

_PR_SET_PDEATHSIG = 1
_MODULES = modules()
"""As they were imported: ranks are forked from a server that did so once, whatever became of the files since."""


def serve(connection: Talk, place: Place) -> None:
    """Be the rank until the runner closes the pipe: the main function of the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the runner, which ends its ranks
    try:
        rank = Rank(place, connection)
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
        return
    connection.send(("done", _MODULES))
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
        try:
            connection.send(("done", getattr(rank, name)(**arguments)))
        except BaseException:
            connection.send(("failed", traceback.format_exc()))
    rank.leave()


class Rank:
    """The process groups of a rank, one an arm, and the commands it knows."""

    def __init__(self, place: Place, connection: Talk) -> None:
        if place.enter is not None:
            place.enter()
        if not place.interface:
            place = replace(place, interface=device_of(place.address))
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
        os.environ["FROGTORCH_ADDRESS"] = place.address
        torch.set_num_threads(1)  # ranks share the machine's cores
        self.place = place
        self.connection = connection
        timeout = timedelta(seconds=place.timeout)
        store = join(place.store, place.world_size, timeout)
        dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
        self.groups = {arm: group(ARMS[arm], place.interface, timeout) for arm in place.arms}
        self._trained: dict[str, Replica] = {}

    @staticmethod
    def clock() -> float:
        """What this machine's monotonic clock says."""
        return time.monotonic()

    def leave(self) -> None:
        """Leave all groups."""
        if dist.is_initialized():  # a script may have left them by itself
            dist.destroy_process_group()

    def all_reduce(self, arm: str, nbytes: int, repetition: int) -> dict[str, Any]:
        """Sum one fp32 tensor of `nbytes` over the ranks; its times, and what the backend saw.

        Raises ArithmeticError if the sum is not what it must be: the values are small integers, exact in any order.
        """
        count = nbytes // 4
        pattern = torch.arange(count, dtype=torch.float32).remainder_(97).add_(repetition)
        tensor = pattern * (self.place.rank + 1)
        self._take_telemetry(arm)
        self._await_start()
        start = time.monotonic()
        dist.all_reduce(tensor, group=self.groups[arm])
        end = time.monotonic()
        if not torch.equal(tensor, pattern * (self.place.world_size * (self.place.world_size + 1) // 2)):
            raise ArithmeticError(f"all-reduce of {nbytes} B by {arm} at W={self.place.world_size}: rank "
                                  f"{self.place.rank} has a wrong sum")
        return {"start": start, "end": end, "telemetry": self._take_telemetry(arm)}

    def repeat(self, arm: str, nbytes: int, count: int) -> dict[str, Any]:
        """All-reduce one fp32 tensor of `nbytes` in place 1 + `count` times, one straight after the other.

        The first brings the ranks together, and is not counted. Returns the seconds of each other on this rank, the
        CPU seconds of them all (of all threads of the process), and what the backend saw. Raises ArithmeticError unless
        the ranks' values, which add up to nothing, do.
        """
        share = 2 * self.place.rank - (self.place.world_size - 1)
        tensor = torch.arange(nbytes // 4, dtype=torch.float32).remainder_(97).add_(1).mul_(share)
        group = self.groups[arm]
        self._await_start()
        dist.all_reduce(tensor, group=group)
        self._take_telemetry(arm)
        result = self._timed(lambda: dist.all_reduce(tensor, group=group), count)
        if tensor.any():
            raise ArithmeticError(f"all-reduce of {nbytes} B by {arm} at W={self.place.world_size}: rank "
                                  f"{self.place.rank} has a wrong sum")
        return {**result, "telemetry": self._take_telemetry(arm)}

    def repeat_step(self, arm: str, count: int) -> dict[str, Any]:
        """Train the founding workload under DDP for 1 + `count` steps more; the same times as :meth:`repeat`.

        Every arm trains a replica of its own, from one call to the next.
        """
        if arm not in self._trained:
            self._trained[arm] = Replica(FOUNDING, ARMS[arm], self.groups[arm], bucket_view=True)
        step = self._trained[arm].step
        self._await_start()
        step()
        self._take_telemetry(arm)
        return {**self._timed(step, count), "telemetry": self._take_telemetry(arm)}

    def _timed(self, act: Callable[[], object], count: int) -> dict[str, Any]:
        cpu = time.process_time()
        stamps = [time.perf_counter()]
        for _ in range(count):
            act()
            stamps.append(time.perf_counter())
        return {"seconds": [end - start for start, end in pairwise(stamps)], "cpu": time.process_time() - cpu}

    def train(self, arm: str, steps: int, bucket_view: bool, workload: str = FOUNDING.name,
              compute: Mapping[str, float] | None = None, **parameters: int) -> dict[str, Any]:
        """Train a workload under DDP; times of each step and its exchange, the outcome, and what the backend saw.

        With `compute`, seconds of a step's parts, this host is as slow as its place says; `slept` is what of each step
        it slept for that. `parameters` are those of the arm's hook: see :class:`scenarios.replica.Replica`.
        """
        slow = self.place.slowness - 1
        longer = {part: slow * seconds for part, seconds in compute.items()} if compute and slow else None
        replica = Replica(WORKLOADS[workload], ARMS[arm], self.groups[arm], bucket_view=bucket_view,
                          longer=longer, **parameters)
        self._take_telemetry(arm)
        self._await_start()
        stamps, exchanges, slept = [], [], []
        for step in range(steps):
            start = time.monotonic()
            exchanges.append(replica.step())
            stamps.append((start, time.monotonic()))
            slept.append(replica.slept)
            self.connection.send(("step", step))
        return {"steps": stamps, "exchanges": exchanges, "slept": slept, "telemetry": self._take_telemetry(arm),
                **replica.outcome()}

    def script(self, path: str, sha256: str, arguments: list[str], arm: str, master: str) -> dict[str, Any]:
        """Run a user's training script in place of a workload: the same results. It is the last that a rank does.

        Raises ValueError if it is not the one that the runner has.
        """
        Script(path, tuple(arguments), sha256).check()
        dist.destroy_process_group()  # the script makes its own
        self._await_start()
        return scripted.run(path, arguments, ARMS[arm], self.place, master,
                            lambda step: self.connection.send(("step", step)))

    def compute(self, steps: int, workload: str = FOUNDING.name) -> list[dict[str, float]]:
        """Seconds that each part of a step takes without any exchange, with all ranks of the machine at it together.

        ``backward`` ends with the last gradient; ``first_bucket`` is when, inside it, the gradients of DDP's first
        bucket are all there.
        """
        module = WORKLOADS[workload].load()
        model = module.model()
        optimiser = module.optimiser(model)
        batches = module.batches(self.place.rank, self.place.world_size)
        first_bucket = FirstBucket(model, WORKLOADS[workload].first)
        self._await_start()
        parts = []
        for _ in range(steps):
            begin = time.monotonic()
            inputs, targets = next(batches)
            optimiser.zero_grad(set_to_none=True)
            loss = module.loss(model(inputs), targets)
            forward = time.monotonic()
            loss.backward()
            backward = time.monotonic()
            optimiser.step()
            parts.append({"forward": forward - begin, "first_bucket": first_bucket.ready - forward,
                          "backward": backward - forward, "optimiser": time.monotonic() - backward})
        return parts

    def costs(self) -> dict[str, float]:
        """What this rank's own work costs, with all ranks at it together: see :mod:`scenarios.costs`.

        A message's cost is by backend, so one arm of each will do.
        """
        self._await_start()
        seen = costs.work()
        return seen | {f"message {ARMS[arm].backend}": costs.messages(group) for arm, group in self.groups.items()}

    def _await_start(self) -> None:
        """Say that this rank is ready, and begin when the runner says: all ranks at one time of the shared clock."""
        self.connection.send(("ready", None))
        start: float = self.connection.recv()
        while (left := start - time.monotonic()) > 0:
            time.sleep(left)

    def _take_telemetry(self, arm: str) -> list[dict[str, Any]]:
        telemetry = getattr(self.groups[arm], "telemetry", None)
        return telemetry.take() if telemetry is not None else []


def main() -> None:
    """Be a rank that is a program: the runner's word comes from standard input, the rank's goes to standard output."""
    words = Words(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints is none of the rank's words
    frogtorch.register()  # where it is on the path without being installed, torch does not know of it
    said = words.recv()
    serve(words, Place(**{**said, "arms": tuple(said["arms"])}))


if __name__ == "__main__":
    main()
