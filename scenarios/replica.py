"""A model under DDP as an arm has it: in the arm's group, with the arm's comm hook."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import frogtorch
from frogtorch import hooks
from scenarios.arms import Arm
from scenarios.slowdown import Slowdown
from scenarios.workloads import Workload

__all__ = ["FirstBucket", "Replica", "group", "parameters_sha256"]


def group(arm: Arm, interface: str, timeout: timedelta) -> dist.ProcessGroup:
    """Make the arm's group, of all ranks; Gloo talks over `interface`."""
    if arm.backend == "frogtorch":
        made = dist.new_group(backend="frogtorch", timeout=timeout,
                              pg_options=frogtorch.Options(all_reduce=arm.all_reduce))
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join([interface] * arm.connections)  # a device, and a connection, each
        made = dist.new_group(backend="gloo", timeout=timeout)
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    assert isinstance(made, dist.ProcessGroup)
    return made


class FirstBucket:
    """Notes when a backward pass has the gradients of a model's last `count` parameters: DDP's buckets begin there."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.ready = 0.0
        """When they were all there last, on the clock that the ranks of a machine share."""
        self._count = self._missing = count
        for parameter in list(model.parameters())[-count:]:
            parameter.register_post_accumulate_grad_hook(self._one)

    def _one(self, _: Tensor) -> None:
        self._missing -= 1
        if not self._missing:
            self.ready = time.monotonic()
            self._missing = self._count


class Replica:
    """A rank's copy of a workload's model in training, step by step."""

    def __init__(self, workload: Workload, arm: Arm, group: dist.ProcessGroup, *, bucket_view: bool, bound: int = 64,
                 k: int = 4, longer: Mapping[str, float] | None = None) -> None:
        """`bound` is fresh_only's staleness bound, `k` that of every_k; `longer` is for :class:`Slowdown`."""
        self._workload = workload.load()
        self.model: nn.Module = self._workload.model()
        self._optimiser: torch.optim.Optimizer = self._workload.optimiser(self.model)
        self._batches: Iterator[tuple[Tensor, Tensor]] = self._workload.batches(group.rank(), group.size())
        # PowerSGD issues collectives from callbacks. With two buckets under way their order differs from rank to rank,
        # which no backend can work with, and Gloo aborts the process: so it gets all gradients in one.
        whole = sum(p.nbytes for p in self.model.parameters()) / (1 << 20) if arm.hook == "powersgd" else None
        self._replica = DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=whole,
                                                gradient_as_bucket_view=bucket_view)
        self._slowdown = Slowdown(longer, self.model, workload.first)
        self._first = FirstBucket(self.model, workload.first if whole is None else len(list(self.model.parameters())))
        self._state: Any = None
        if arm.hook is not None:
            self._state, hook = _hook(arm.hook, group, bound, k)
            self._replica.register_comm_hook(self._state, hook)

    def step(self) -> tuple[float, float]:
        """One step whole: data, forward, backward (in which DDP exchanges the gradients), optimiser.

        Returns when this rank had the gradients of the first bucket, and when it had all of them, exchanged.
        """
        self._slowdown.begin()
        inputs, targets = next(self._batches)
        self._optimiser.zero_grad(set_to_none=True)
        loss = self._workload.loss(self._replica(inputs), targets)
        self._slowdown.end("forward")
        loss.backward()
        exchanged = time.monotonic()
        self._optimiser.step()
        self._slowdown.end("optimiser")
        return self._first.ready, exchanged

    @property
    def slept(self) -> float:
        """Seconds of the last step that it slept, to be as slow as it is."""
        return self._slowdown.slept

    def outcome(self) -> dict[str, Any]:
        """What this rank has: parameters, held-out loss (and accuracy), and how many contributions each mean had.

        The last, one number a bucket in the order of time, this rank's own counted, only of frogtorch's hooks.
        """
        held_out = self._workload.held_out(self.model)
        taken = getattr(self._state, "taken", None)
        return {"parameters_sha256": parameters_sha256(self.model), "held_out_loss": held_out["loss"],
                "held_out_accuracy": held_out.get("accuracy"),
                "incorporated": None if taken is None else [1 + len(one.ages) for one in taken]}


def _hook(name: str, group: dist.ProcessGroup, bound: int, k: int) -> tuple[Any, Any]:
    """A hook for one model, and its state."""
    if name == "faithful":
        return hooks.Faithful(group), hooks.faithful
    if name == "fresh_only":
        return hooks.FreshOnly(group, bound=bound), hooks.fresh_only
    if name == "every_k":
        return hooks.EveryK(k, group), hooks.every_k
    if name == "fp16":
        return group, default_hooks.fp16_compress_hook
    # From its third step on: in the first two DDP has not settled the buckets, whose errors it keeps.
    return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook


@torch.no_grad()
def parameters_sha256(model: nn.Module) -> str:
    """SHA-256 of the flattened parameters: equal on two ranks only if every bit is."""
    flat = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
