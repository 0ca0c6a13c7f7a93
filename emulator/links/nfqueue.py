"""Delay by netfilter queues, for kernels without netem: :mod:`~emulator.links.delayd` in each receiver's namespace.

A constant delay only: jitter and loss are netem's. The queue stands where packets come in, not where they go out: there
a packet held back would still count as unsent, and TCP would send no more (TCP small queues).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path as File

from emulator.links.namespace import LinkError, Namespace, run, scratch
from emulator.topology import Topology

FLOOR = 150e-6
"""Seconds: what a passage through the queue costs even with nothing to wait for, so shorter delays are left alone."""
_FIRST_QUEUE = 100
_PATIENCE = 10.0      # seconds for the process to start or to answer

Pair = tuple[str, str]


def why_not() -> str | None:
    """Try it, in a namespace of its own: None if this machine can, else the reason."""
    if shutil.which("iptables-restore") is None:
        return "the program iptables-restore is missing (apt install iptables)"
    try:
        with scratch():
            daemon = _Daemon("a trial", None)
            try:
                daemon.configure({_FIRST_QUEUE: 0.001})
                run(["iptables-restore", "--noflush"], _rules({"10.0.0.1": _FIRST_QUEUE}, "eth0"))
            finally:
                daemon.end()
    except (LinkError, OSError) as error:
        return str(error)
    return None


class Nfqueue:
    """The delays of all paths of a network, by :data:`Pair` (source, target)."""

    name = "nfqueue"

    def __init__(self, namespaces: Mapping[str, Namespace], addresses: Mapping[str, str], device: str,
                 logs: File) -> None:
        self._namespaces = namespaces
        self._addresses = addresses
        self._device = device
        self._logs = logs
        self._daemons: dict[str, _Daemon] = {}
        self._queues: dict[Pair, int] = {}

    def up(self, topology: Topology) -> None:
        """Start holding packets on each path whose delay is not below :data:`FLOOR`. Raises LinkError."""
        paths = [path for path in topology.paths if path.delay >= FLOOR]
        for path in paths:
            if path.target not in self._daemons:
                with self._namespaces[path.target].inside():
                    self._daemons[path.target] = _Daemon(f"host {path.target}", self._logs / f"{path.target}.log")
            self._queues[path.source, path.target] = _FIRST_QUEUE + len(self._queues)
        self.hold({(path.source, path.target): path.delay for path in paths})
        # Only now may packets go there: a queue without a process drops them.
        for target in self._daemons:
            queues = {self._addresses[path.source]: self._queues[path.source, target]
                      for path in paths if path.target == target}
            self._namespaces[target].run(["iptables-restore", "--noflush"], _rules(queues, self._device))

    @property
    def held(self) -> set[Pair]:
        """The paths that pass a queue."""
        return set(self._queues)

    def hold(self, seconds: Mapping[Pair, float]) -> None:
        """Hold packets of those paths that long from now on. Raises LinkError if a process has died."""
        for target, daemon in self._daemons.items():
            holds = {self._queues[pair]: max(0.0, wait) for pair, wait in seconds.items() if pair[1] == target}
            if holds:
                daemon.configure(holds)

    @property
    def scheduling(self) -> str:
        """How the processes are scheduled: the least of fifo, nice and normal; none if no path is long enough."""
        kinds = {daemon.scheduling for daemon in self._daemons.values()}
        return next((kind for kind in ("normal", "nice", "fifo") if kind in kinds), "none")

    def check(self) -> None:
        """Raise LinkError if a process has died, since nothing would pass its queues, or a queue has lost packets."""
        for target, daemon in self._daemons.items():
            daemon.check()
            with self._namespaces[target].inside():
                # Columns: queue, port id, waiting, copy mode, range, dropped (full), dropped (our socket full), id, 1
                for row in File("/proc/thread-self/net/netfilter/nfnetlink_queue").read_text().splitlines():
                    lost = sum(map(int, row.split()[5:7]))
                    if lost:
                        raise LinkError(f"host {target}: the delay process fell behind, and {lost} packets were lost")

    def down(self) -> None:
        """End the processes. Twice is fine."""
        for daemon in self._daemons.values():
            daemon.end()
        self._daemons.clear()
        self._queues.clear()


def _rules(queues: Mapping[str, int], device: str) -> str:
    lines = [f"-A INPUT -i {device} -s {address}/32 -j NFQUEUE --queue-num {queue}"
             for address, queue in queues.items()]
    return "\n".join(["*mangle", *lines, "COMMIT", ""])


class _Daemon:
    """A delayd, in the namespace that the calling thread is in now; `where` names it in errors."""

    def __init__(self, where: str, log: File | None) -> None:
        self.where = where
        self.log = log
        self.scheduling = "normal"
        script = File(__file__).with_name("delayd.py")
        # -I -S: no site-packages, no environment; it starts in some 20 ms and cannot pull in torch.
        with open(log or os.devnull, "wb") as errors:
            self._process = subprocess.Popen([sys.executable, "-I", "-S", str(script), str(os.getpid())],
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def configure(self, holds: Mapping[int, float]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(holds).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        if not select.select([self._process.stdout], [], [], _PATIENCE)[0]:
            raise LinkError(f"{self.where}: the delay process (pid {self._process.pid}) has not answered for "
                            f"{_PATIENCE:.0f} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise self._died()
        self.scheduling = json.loads(answer)["scheduling"]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise self._died()

    def _died(self) -> LinkError:
        code = self._process.wait(_PATIENCE)
        said = self.log.read_text().strip().splitlines()[-1:] if self.log and self.log.exists() else []
        return LinkError(f"{self.where}: the delay process (pid {self._process.pid}) ended with code {code}"
                         f"{': ' + said[0] if said else ''}; what is sent there is lost")

    def end(self) -> None:
        self._process.kill()      # it has nothing to put in order
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
