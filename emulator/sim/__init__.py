"""The network, simulated: exchanges of gradients in virtual time, on fluid links.

:func:`all_reduce` runs one all-reduce, :func:`collective` any other, :func:`step` one training step, :func:`train` many
of them on a network that changes under way; :func:`closed_form` says what bytes over rates alone would take.

The rooms, from below: ``fair`` divides links among flows and ``reshare`` does so where something changed, ``flow`` is
links and flows, ``network`` moves them; ``channel`` makes messages of flows, ``law`` says what loss and jitter do to
them, ``connection`` lays channels over a topology and its timeline; ``rank`` is FrogNet Memory without the bytes,
``sending`` is Send and Receive, ``cores`` is what the ranks of a box share, ``driver`` runs a collective's generator,
``gloo`` describes Gloo's; ``world`` puts ranks together, ``exchange`` and ``training`` let them run.
"""

from emulator.sim.closed_form import closed_form
from emulator.sim.connection import LEAST_TIMEOUT
from emulator.sim.exchange import Outcome, Phases, all_reduce, collective, step
from emulator.sim.rank import MEASURED, Costs, Peer
from emulator.sim.training import Step, train
from emulator.sim.workload import Bucket, Workload

__all__ = ["LEAST_TIMEOUT", "MEASURED", "Bucket", "Costs", "Outcome", "Peer", "Phases", "Step", "Workload",
           "all_reduce", "closed_form", "collective", "step", "train"]
