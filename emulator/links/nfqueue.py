"""Delay, jitter and loss by netfilter queues, for kernels without netem.

Packets wait in the kernel, only their ids pass through a process (:mod:`~emulator.links.queues`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from emulator.links.namespace import LinkError, Namespace, scratch
from emulator.links.userspace import Daemon, Pair, UserSpace

_FIRST_QUEUE = 100


def why_not(place: Namespace | None = None) -> str | None:
    """Try it in `place`, or in a namespace of its own: None if this machine can, else the reason."""
    if place is None and shutil.which("iptables-restore") is None:
        return "the program iptables-restore is missing (apt install iptables)"
    try:
        with scratch() if place is None else nullcontext(place) as trial:
            daemon = Daemon(trial, Nfqueue.name, "a trial", None)
            try:
                daemon.configure({str(_FIRST_QUEUE): (0.001, 0, 0, 0)})
                trial.run(["iptables-restore", "--noflush"], _rules({"10.0.0.1": str(_FIRST_QUEUE)}, "eth0"))
            finally:
                daemon.end()
    except (LinkError, OSError) as error:
        return str(error)
    return None


class Nfqueue(UserSpace):
    """A queue a path, in the receiver's namespace."""

    name = "nfqueue"
    FLOOR = 150e-6

    def _key(self, pair: Pair) -> str:
        return str(_FIRST_QUEUE + list(self._addresses).index(pair[0]))

    def _lead(self, namespace: Namespace, pairs: Iterable[Pair]) -> None:
        queues = {self._addresses[pair[0]]: self._key(pair) for pair in pairs}
        namespace.run(["iptables-restore", "--noflush"], _rules(queues, self._device))

    def _lost(self, namespace: Namespace) -> int:
        # Columns: queue, port id, waiting, copy mode, range, dropped (full), dropped (our socket full), id, 1
        rows = namespace.run(["cat", "/proc/net/netfilter/nfnetlink_queue"]).splitlines()
        return sum(sum(map(int, row.split()[5:7])) for row in rows)


def _rules(queues: Mapping[str, str], device: str) -> str:
    lines = [f"-A INPUT -i {device} -s {address}/32 -j NFQUEUE --queue-num {queue}"
             for address, queue in queues.items()]
    return "\n".join(["*mangle", *lines, "COMMIT", ""])
