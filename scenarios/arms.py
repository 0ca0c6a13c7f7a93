"""The arms: every way to exchange gradients that a scenario may name. Imports no torch.

===================  ===================================================================================
gloo                 PyTorch's own ring
gloo2, gloo4         the same with two or four connections a pair of ranks: collectives take turns on them
shard, pipelined,    frogtorch's all-reduce algorithms (:data:`frogtorch.collectives.ALL_REDUCE`);
whole, direct        ``direct`` is the control: shard's bytes and paths without the memory
faithful             frogtorch's comm hooks (:mod:`frogtorch.hooks`): whole buckets of all ranks,
fresh_only,          of those that have published something new,
every_k              and of all ranks in every k-th step
fp16-gloo, -shard    PyTorch's hook that exchanges gradients in half precision
powersgd-gloo, -…    PyTorch's hook that exchanges an approximation of rank 1, all gradients in one bucket
===================  ===================================================================================

What an arm keeps decides what it may be held against: arms that keep the sum are never in one table with others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frogtorch.collectives import ALL_REDUCE

__all__ = ["ARMS", "Arm", "Keeps", "kept"]


class Keeps(StrEnum):
    """What of a synchronous mean of gradients an arm keeps."""

    SUM = "the sum"
    """All ranks end with the same parameters, and with the same held-out loss as with any other such arm."""
    SYNCHRONY = "synchrony"
    """All ranks end with the same parameters; what they exchange is an approximation."""
    NOTHING = "neither"
    """Contributions are skipped: ranks may end with different parameters."""


@dataclass(frozen=True)
class Arm:
    """One way to exchange gradients."""

    name: str
    backend: str
    """gloo or frogtorch."""
    all_reduce: str = "shard"
    """frogtorch's algorithm."""
    connections: int = 1
    """Of gloo: TCP connections between two ranks."""
    hook: str | None = None
    """The comm hook that is registered with DDP: a name in :mod:`scenarios.replica`. Then the arm only trains."""
    keeps: Keeps = Keeps.SUM
    simulated: str | None = None
    """As what the simulator runs it: gloo, or an algorithm of frogtorch. None: it does not."""
    compression: int = 1
    """How many times fewer bytes are exchanged than there are gradients."""

    @property
    def only_trains(self) -> bool:
        """Whether it is a way to train, and no all-reduce."""
        return self.hook is not None


_GLOO = (Arm("gloo", "gloo", simulated="gloo"),
         *(Arm(f"gloo{n}", "gloo", connections=n, simulated="gloo") for n in (2, 4)))
_FROGTORCH = tuple(Arm(name, "frogtorch", name, simulated=name) for name in ALL_REDUCE)
_HOOKS = (Arm("faithful", "frogtorch", hook="faithful", simulated="whole"),
          *(Arm(name, "frogtorch", hook=name, keeps=Keeps.NOTHING) for name in ("fresh_only", "every_k")))
_FP16 = tuple(Arm(f"fp16-{base}", backend, hook="fp16", keeps=Keeps.SYNCHRONY, simulated=base, compression=2)
              for base, backend in (("gloo", "gloo"), ("shard", "frogtorch")))
_POWERSGD = tuple(Arm(f"powersgd-{base}", backend, hook="powersgd", keeps=Keeps.SYNCHRONY)
                  for base, backend in (("gloo", "gloo"), ("shard", "frogtorch")))

ARMS = {arm.name: arm for arm in (*_GLOO, *_FROGTORCH, *_HOOKS, *_FP16, *_POWERSGD)}
"""By name."""


def kept(arm: str) -> Keeps:
    """What the arm of that name keeps; the sum, if a run has an arm that is not known here."""
    return ARMS[arm].keeps if arm in ARMS else Keeps.SUM
