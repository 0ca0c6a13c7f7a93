"""Real links: what makes a directed path between two network namespaces have its rate, queue, window and delay.

:mod:`~emulator.links.shaping` is the kernel's HTB, written as text for ``tc -batch``. What holds packets for the delay,
or loses them, is an engine (:mod:`~emulator.links.engines`): the kernel's :mod:`~emulator.links.netem`, or a process
that sees their ids (:mod:`~emulator.links.nfqueue`) or the packets themselves (:mod:`~emulator.links.tun`).
:mod:`~emulator.links.ping`, :mod:`~emulator.links.flows` and :mod:`~emulator.links.loss` measure what came of it, and
:mod:`~emulator.links.fidelity` compares it with the topology. Where the hosts come from is the business of
``emulator.hosts``.
"""
