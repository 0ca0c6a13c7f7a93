"""What is trained: models, and data by rank.

Each workload is a module of this folder with these functions (all ranks call them alike; times are theirs alone)::

    model() -> nn.Module                                  initialised alike on every rank; sets torch's seed
    optimiser(model) -> torch.optim.Optimizer
    batches(rank, world_size) -> Iterator[(inputs, targets)]     this rank's, without end
    loss(outputs, targets) -> Tensor
    held_out(model) -> {"loss": …, "accuracy": …}         on samples that no rank trains on; accuracy where it has one

What has to be known of one without building it (a prediction imports no torch) is in :data:`WORKLOADS`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

__all__ = ["DIGITS", "FOUNDING", "SMALL", "WORKLOADS", "Workload"]


@dataclass(frozen=True)
class Workload:
    """A workload's sizes; a test holds them and the model together."""

    name: str
    buckets: tuple[int, ...]
    """Bytes of the buckets that DDP makes from the second step on, in the order in which they become ready."""
    first: int
    """How many of the model's last parameters are in the first of these."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, fp32."""
        return sum(self.buckets)

    def load(self) -> ModuleType:
        """The module, which imports torch."""
        return importlib.import_module(f"scenarios.workloads.{self.name}")


FOUNDING = Workload("founding", (4_202_500, 12_664_832), 4)
DIGITS = Workload("digits", (153_128,), 8)
SMALL = Workload("small", (1_052_676, 3_186_688), 4)

WORKLOADS = {workload.name: workload for workload in (FOUNDING, DIGITS, SMALL)}
"""By the name that a scenario uses."""
