"""The network, simulated: exchanges of gradients in virtual time, on fluid links.

:func:`all_reduce` runs one all-reduce, :func:`collective` any collective, :func:`step` one training step,
:func:`train` many of them on a network that changes under way; :func:`closed_form` says what bytes over rates alone
would take. The rooms: ``fair`` divides links among flows, ``network`` moves flows, ``connection`` makes TCP connections
of them, ``rank`` is FrogNet Memory without the bytes, ``sending`` is Send and Receive, ``driver`` runs a collective's
generator, ``gloo`` describes Gloo's collectives, ``world`` puts ranks together, ``exchange`` and ``training`` let them
run.
"""

from emulator.sim.closed_form import closed_form
from emulator.sim.exchange import Outcome, Phases, all_reduce, collective, step
from emulator.sim.rank import MEASURED, Costs, Peer
from emulator.sim.training import Step, train
from emulator.sim.workload import Bucket, Workload

__all__ = ["MEASURED", "Bucket", "Costs", "Outcome", "Peer", "Phases", "Step", "Workload", "all_reduce", "closed_form",
           "collective", "step", "train"]
