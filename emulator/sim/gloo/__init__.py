"""Gloo's collectives on CPU tensors, as PyTorch 2.13 runs them: our description of somebody else's code.

Each is a generator of effects like those of :mod:`frogtorch.collectives`, so the simulator runs it as it runs them;
what a Send and a Receive cost on Gloo's connections says :class:`emulator.sim.sending.Handshake`. Held against the
messages that the real one puts on the wire, kind by kind, byte by byte (``tests/emulator/test_wire.py``).

==============  =====================================================================================
``ring``        all-reduce: a ring in segments, sums first, then what they add up to
``reduce``      the first half of that ring, then every rank's chunk straight to the root
``broadcast``   a binomial tree, the tensor in one message
``all_gather``  a ring; every share in two halves
``gather``      straight to the root
``scatter``     straight from the root
``all_to_all``  straight to everybody
``barrier``     dissemination: ⌈log2 W⌉ rounds of empty messages
==============  =====================================================================================

Its reduce-scatter is :func:`ring` on all parts together, of which a rank keeps its own.
"""

from emulator.sim.gloo.movements import all_gather, all_to_all, barrier, broadcast, gather, scatter
from emulator.sim.gloo.ring import reduce, ring

__all__ = ["all_gather", "all_to_all", "barrier", "broadcast", "gather", "reduce", "ring", "scatter"]
