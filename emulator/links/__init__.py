"""Real links: what makes a directed path between two network namespaces have its rate, queue, window and delay.

:mod:`~emulator.links.shaping` is the kernel's HTB, written as text for ``tc -batch``;
:mod:`~emulator.links.netem` and :mod:`~emulator.links.nfqueue` hold packets for the delay;
:mod:`~emulator.links.ping` and :mod:`~emulator.links.fidelity` measure what came of it.
Where the hosts come from is the business of ``emulator.hosts``.
"""
