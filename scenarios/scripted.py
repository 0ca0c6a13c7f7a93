"""A rank that runs a user's training script: see :mod:`scenarios.script`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import frogtorch
from scenarios.arms import Arm
from scenarios.ranks import Place
from scenarios.script import loss_in
from scenarios.store import join

__all__ = ["run"]

PRINTED_MAX = 1 << 20
"""Most characters that are kept of what a script prints."""

_kept: list[Any] = []
"""What scripts have left: a model under DDP holds its group, and who frees Gloo's last can wait for ever, with the
interpreter's lock, for a thread that wants that lock. The rank ends soon."""


def run(path: str, arguments: Sequence[str], arm: Arm, place: Place, master: str,
        on_step: Callable[[int], None]) -> dict[str, Any]:
    """Run the script to its end, with no process group there is before; what it did, as a workload's training has it.

    `master` is the address of rank 0. `on_step` is told every step that has ended. What the script raises comes
    through, but for a ``SystemExit`` of 0.
    """
    steps = _Steps(on_step)
    backend = _Backend(arm, place)
    printed = io.StringIO()
    os.environ |= {"RANK": str(place.rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(place.world_size),
                   "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(place.rank), "MASTER_ADDR": master,
                   "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "frogtorch"}
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).parent)
    init, dist.init_process_group = dist.init_process_group, backend.init_process_group
    handle = register_optimizer_step_post_hook(steps)
    try:
        with contextlib.redirect_stdout(printed):
            left = runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
        left = {}
    finally:
        handle.remove()
        dist.init_process_group = init
    _kept.append((backend, left))
    said = printed.getvalue()[-PRINTED_MAX:]
    loss = left.get("held_out_loss")
    return {"steps": steps.spans, "nbytes": steps.nbytes, "telemetry": backend.telemetry(), "printed": said,
            "held_out_loss": loss_in(said) if loss is None else float(loss),
            "parameters_sha256": steps.parameters_sha256()}


class _Backend:
    """The one call that is not the script's own."""

    def __init__(self, arm: Arm, place: Place) -> None:
        self._arm = arm
        self._place = place
        self._init = dist.init_process_group
        self._group: dist.ProcessGroup | None = None

    def init_process_group(self, backend: str | None = None, init_method: str | None = None,
                           timeout: timedelta | None = None, *_: Any, **__: Any) -> None:
        """As torch's, but for the backend, and where ranks meet. Raises ValueError for a backend that is not Gloo."""
        if backend is not None and str(backend).lower() not in ("gloo", "cpu:gloo", "frogtorch"):
            raise ValueError(f"the script asks for the backend {backend!r}; here are CPUs, whose backend is the arm's: "
                             f"leave it out, or write 'gloo'")
        arm, place = self._arm, self._place
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join([place.interface] * arm.connections)
        timeout = timeout or timedelta(seconds=place.timeout)
        self._init(arm.backend, store=join(f"{place.store}.script", place.world_size, timeout), rank=place.rank,
                   world_size=place.world_size, timeout=timeout,
                   pg_options=frogtorch.Options(all_reduce=arm.all_reduce) if arm.backend == "frogtorch" else None)
        self._group = dist.distributed_c10d._get_default_group()

    def telemetry(self) -> list[dict[str, Any]]:
        """What the backend of the script's world saw. Raises RuntimeError if it never asked for one."""
        if self._group is None:
            raise RuntimeError("the script has ended and never called torch.distributed.init_process_group")
        records = getattr(self._group, "telemetry", None)
        return [] if records is None else records.take()


class _Steps:
    """When steps end: with those of the first optimiser that makes one."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._optimiser: Optimizer | None = None
        self._last = time.monotonic()
        self.spans: list[tuple[float, float]] = []
        self.nbytes = 0
        """Of its gradients."""

    def __call__(self, optimiser: Optimizer, args: object, named: object) -> None:
        if self._optimiser is None:
            self._optimiser = optimiser
            self.nbytes = sum(p.grad.nbytes for p in self._parameters() if p.grad is not None)
        if optimiser is self._optimiser:
            now = time.monotonic()
            self.spans.append((self._last, now))
            self._on_step(len(self.spans) - 1)
            self._last = now

    def _parameters(self) -> list[torch.Tensor]:
        return [] if self._optimiser is None else [p for g in self._optimiser.param_groups for p in g["params"]]

    @torch.no_grad()
    def parameters_sha256(self) -> str:
        """SHA-256 of the optimiser's parameters as they are now, in its order."""
        digest = hashlib.sha256()
        for parameter in self._parameters():
            digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
