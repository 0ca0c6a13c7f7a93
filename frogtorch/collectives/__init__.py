"""The collectives, each a pure generator of effects: one file an algorithm.

A collective takes a :class:`~frogtorch.effects.Group` and regions, and leaves its result in the regions. Per-rank
traffic is given in tensor equivalents *received*, for W ranks and a tensor of S bytes; of collectives that take or
make one part a rank, the tensor is all parts of a rank together.

==============  =============================  ============================================================
all-reduce      :func:`shard`                  2(W-1)/W: read my slice from all, sum, publish; read the sums
all-reduce      :func:`pipelined`              the same, in chunks that flow through both phases side by side
all-reduce      :func:`whole`                  W-1: read everything from all, sum
all-reduce      :func:`direct`                 2(W-1)/W: as shard, but sent and received, without the memory
reduce          :func:`reduce`                 2(W-1)/W at the root, (W-1)/W elsewhere: as shard, but the root
                                               alone reads the sums; up to 16 KiB: W-1 at the root, else 0
reduce-scatter  :func:`reduce_scatter`         (W-1)/W: read my part from all, sum
broadcast       :func:`broadcast`              1 (0 at the root)
all-gather      :func:`all_gather`             (W-1)/W of what is gathered
all-gather      :func:`all_gather_entries`     the same, and 8 bytes from every peer: how long its share is
gather          :func:`gather`                 (W-1)/W at the root, 0 elsewhere
scatter         :func:`scatter`                1/W (0 at the root)
all-to-all      :func:`all_to_all`             (W-1)/W
barrier         :func:`barrier`                no tensor; one byte from every peer
a message       :mod:`.messages`               1 at the receiver, 0 at the sender
==============  =============================  ============================================================

Those that reduce take an order of summation (:mod:`frogtorch.collectives.order`).
"""

from collections.abc import Callable

from frogtorch.collectives.all_gather import all_gather
from frogtorch.collectives.all_to_all import all_to_all
from frogtorch.collectives.barrier import barrier
from frogtorch.collectives.broadcast import broadcast
from frogtorch.collectives.direct import direct
from frogtorch.collectives.entries import all_gather_entries
from frogtorch.collectives.gather import gather
from frogtorch.collectives.order import GLOO, ORDERS, RANK, Order
from frogtorch.collectives.reduce import reduce
from frogtorch.collectives.reduce_scatter import reduce_scatter
from frogtorch.collectives.scatter import scatter
from frogtorch.collectives.shard import pipelined, shard
from frogtorch.collectives.whole import whole
from frogtorch.effects import Collective

ALL_REDUCE: dict[str, Callable[..., Collective]] = {"shard": shard, "pipelined": pipelined, "whole": whole,
                                                    "direct": direct}
"""All-reduce algorithms by the name that the backend's settings and the arms of a scenario use: called with a group,
the tensor's region, the operation, and an order of summation or none."""

__all__ = [
    "ALL_REDUCE", "GLOO", "ORDERS", "RANK", "Order", "all_gather", "all_gather_entries", "all_to_all", "barrier",
    "broadcast", "direct", "gather", "pipelined", "reduce", "reduce_scatter", "scatter", "shard", "whole",
]
