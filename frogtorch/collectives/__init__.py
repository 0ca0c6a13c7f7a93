"""The collectives, each a pure generator of effects: one file an algorithm.

A collective takes a :class:`~frogtorch.effects.Group` and regions, and leaves its result in the regions. Per-rank
traffic is given in tensor equivalents *received*, for W ranks and a tensor of S bytes.

==============  =============================  ============================================================
all-reduce      :func:`shard`                  2(W-1)/W: read my slice from all, sum, publish; read the sums
all-reduce      :func:`pipelined`              the same, in chunks that flow through both phases side by side
all-reduce      :func:`whole`                  W-1: read everything from all, sum
broadcast       :func:`broadcast`              1 (0 at the root)
all-gather      :func:`all_gather`             W-1, of one rank's share
barrier         :func:`barrier`                no tensor; one byte from every peer
==============  =============================  ============================================================
"""

from collections.abc import Callable

from frogtorch.collectives.barrier import barrier
from frogtorch.collectives.broadcast import broadcast
from frogtorch.collectives.gather import all_gather
from frogtorch.collectives.shard import pipelined, shard
from frogtorch.collectives.whole import whole
from frogtorch.effects import Collective, Group, Region

ALL_REDUCE: dict[str, Callable[[Group, Region, str], Collective]] = {
    "shard": shard, "pipelined": pipelined, "whole": whole,
}
"""All-reduce algorithms by the name that the backend's settings and the arms of a scenario use."""

__all__ = ["ALL_REDUCE", "all_gather", "barrier", "broadcast", "pipelined", "shard", "whole"]
