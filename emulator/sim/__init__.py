"""The network, simulated: exchanges of gradients in virtual time, on fluid links.

:func:`all_reduce` runs one all-reduce, :func:`step` one training step, :func:`closed_form` says what bytes over rates
alone would take. The rooms: ``fair`` divides links among flows, ``network`` moves flows, ``connection`` makes TCP
connections of them, ``rank`` is FrogNet Memory without the bytes, ``sending`` is Send and Receive, ``driver`` runs a
collective's generator, ``gloo`` describes Gloo's ring, ``exchange`` puts ranks together.
"""

from emulator.sim.closed_form import closed_form
from emulator.sim.exchange import Bucket, Outcome, Phases, Workload, all_reduce, step
from emulator.sim.rank import MEASURED, Costs, Peer

__all__ = ["MEASURED", "Bucket", "Costs", "Outcome", "Peer", "Phases", "Workload", "all_reduce", "closed_form", "step"]
