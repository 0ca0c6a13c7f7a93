"""The founding workload at half its width, and so with a quarter of its bytes: for machines that are slow.

1,059,841 parameters (4.239 MB in fp32).
"""

from __future__ import annotations

from torch import nn

from scenarios.workloads import founding
from scenarios.workloads.founding import batches, held_out, loss, optimiser

__all__ = ["batches", "held_out", "loss", "model", "optimiser"]


def model() -> nn.Module:
    """The model, initialised alike on every rank. Sets torch's seed."""
    return founding.model(width=512)
