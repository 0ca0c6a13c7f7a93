"""Is the network what its topology says? Every directed path's idle round trip and the goodput of one flow, measured.

Paths are measured side by side where one flow cannot feel the other: the two directions of a pair never are, since
acknowledgements ride on the way back; flows of a host with an access limit never are; and a fast path has the machine
to itself.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.ethernet import PAYLOAD
from emulator.links.calibration import Calibrated
from emulator.links.namespace import LinkError
from emulator.links.ping import round_trips, undisturbed
from emulator.topology import Path, Topology, round_trip

GOODPUT_TOLERANCE = 0.01
RTT_TOLERANCE = 0.03
RTT_SLACK = 0.3e-3           # seconds
ECHOES = 21
ATTEMPTS = 3
LEAST_BYTES = 8_000_000      # of payload a path
LEAST_TIME = 0.6             # seconds of it: else a stall of a few milliseconds makes a fast path slow
SETTLING = 0.1               # seconds at the least before it counts
FAST = 20e6                  # bytes per second, above which a path is measured alone
_SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 32, 35
_TIMESPEC = struct.Struct("@ll")
_SEND_BUFFER = 2 << 20
_TCP_CA_OPEN = 0
_LOSSY_BYTES = 500_000
_UNLIMITED = 1e9             # bytes per second, to choose how much is sent where nothing limits
_PATIENCE = 10.0             # seconds without a byte on any path

Progress = Callable[[int, int, str], None]


class Probed(Calibrated, Protocol):
    """What :func:`probe` needs of a network."""

    def check(self) -> None:
        """Raise LinkError if the links no longer do what they should."""


@dataclass(frozen=True)
class PathFidelity:
    """One directed path, measured; seconds and bytes of payload per second, in the shaped network's own time.

    An `expected_goodput` of None is a path that nothing limits, or that loses or reorders packets: how much TCP then
    makes of it is TCP's affair.
    """

    source: str
    target: str
    rtt: float
    expected_rtt: float
    goodput: float
    expected_goodput: float | None
    attempts: int = 1
    """How often it was measured; the values are the last ones."""

    @property
    def rtt_error(self) -> float:
        """Seconds by which the round trip is too long."""
        return self.rtt - self.expected_rtt

    @property
    def goodput_error(self) -> float:
        """Fraction by which the goodput is too high; 0 if there is none to expect."""
        return 0.0 if self.expected_goodput is None else self.goodput / self.expected_goodput - 1

    @property
    def valid(self) -> bool:
        """Within 1 % in goodput, and within 0.3 ms or 3 % in round trip, whichever is more."""
        return (abs(self.goodput_error) <= GOODPUT_TOLERANCE
                and abs(self.rtt_error) <= max(RTT_SLACK, RTT_TOLERANCE * self.expected_rtt))


def probe(network: Probed, progress: Progress | None = None) -> list[PathFidelity]:
    """Measure every directed path of a network that is up and idle, in the topology's order.

    A path that is off is measured again, :data:`ATTEMPTS` times in all: what a busy machine does to one probe passes, a
    wrong link stays wrong. `progress` is called with paths done, paths in all, and what is being measured. Raises
    LinkError if a link does not pass packets, or its engine has failed.
    """
    tell: Progress = progress or (lambda done, total, text: None)
    topology = network.shaped
    network.check()
    nominal = {(path.source, path.target): round_trip(topology, path) for path in topology.paths}
    found: dict[tuple[str, str], PathFidelity] = {}
    wanted = list(topology.paths)
    for attempt in range(1, ATTEMPTS + 1):
        total = len(wanted)
        again = f", attempt {attempt}" if attempt > 1 else ""
        tell(0, total, f"idle round trips{again}")
        # All of them, also for a few: a machine that is asked less sleeps more deeply, and answers later.
        measured = round_trips(network.namespaces, network.addresses, nominal, ECHOES)
        goodput: dict[tuple[str, str], float] = {}
        for paths in schedule(topology, wanted):
            tell(len(goodput), total, "goodput of " + (f"{paths[0].source} -> {paths[0].target}" if len(paths) == 1
                                                       else f"{len(paths)} paths") + again)
            goodput |= goodputs(network, paths)
        for path in wanted:
            pair = path.source, path.target
            found[pair] = PathFidelity(*pair, measured[pair], nominal[pair], goodput[pair],
                                       expected_goodput(topology, path), attempt)
        wanted = [path for path in wanted if not found[path.source, path.target].valid]
        if not wanted:
            break
    tell(len(nominal), len(nominal), "links measured")
    network.check()
    return [found[pair] for pair in nominal]


def expected_goodput(topology: Topology, path: Path) -> float | None:
    """Bytes of payload per second of one TCP flow on an otherwise idle network; None if there is no telling."""
    return None if _lossy(topology, path) else _ceiling(topology, path)


def _lossy(topology: Topology, path: Path) -> bool:
    back = topology.path(path.target, path.source)
    return any((path.loss, path.jitter, back.loss, back.jitter))


def _ceiling(topology: Topology, path: Path) -> float | None:
    rates = [rate for rate in (path.rate, topology.host(path.source).up, topology.host(path.target).down)
             if rate is not None]
    limits = [min(rates) * PAYLOAD] if rates else []
    if path.window is not None:
        limits.append(path.window / round_trip(topology, path))
    return min(limits, default=None)


def schedule(topology: Topology, wanted: Sequence[Path]) -> list[list[Path]]:
    """Rounds of the `wanted` paths that can be measured side by side, each path in one of them."""
    rounds: list[list[Path]] = []
    index = {host.name: number for number, host in enumerate(topology.hosts)}
    limited = {host.name for host in topology.hosts if host.up is not None or host.down is not None}

    def apart(one: Path, other: Path) -> bool:
        common = {one.source, one.target} & {other.source, other.target}
        return len(common) < 2 and not common & limited

    slow = [path for path in wanted if not _fast(topology, path)]
    # All of one direction first: so that a round fills with it, and the other direction fills the next.
    for path in sorted(slow, key=lambda path: index[path.source] > index[path.target]):
        fitting = (paths for paths in rounds if all(apart(path, other) for other in paths))
        chosen = next(fitting, None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append(path)
    return rounds + [[path] for path in wanted if _fast(topology, path)]


def _fast(topology: Topology, path: Path) -> bool:
    ceiling = _ceiling(topology, path)
    return ceiling is None or ceiling > FAST


class _Flow:
    """One TCP connection along `path`, and how much came when."""

    def __init__(self, path: Path, network: Calibrated) -> None:
        self.path = path
        expected = _ceiling(network.shaped, path) or _UNLIMITED
        self.lossy = _lossy(network.shaped, path)
        # Left out: the start, until TCP has filled the path and its queue has settled.
        self.skip = max(500_000, int(expected * max(SETTLING, 8 * round_trip(network.shaped, path))))
        self.stop = self.skip + max(LEAST_BYTES, int(LEAST_TIME * expected))
        if self.lossy:           # for information only, and it may take long
            self.skip, self.stop = 0, _LOSSY_BYTES
        self.received = 0
        self.first: tuple[float, int] | None = None
        self.goodput: float | None = None
        with network.namespaces[path.target].socket(socket.SOCK_STREAM) as listener:
            listener.bind((network.addresses[path.target], 0))
            listener.listen()
            self.sender = network.namespaces[path.source].socket(socket.SOCK_STREAM)
            self.sender.settimeout(_PATIENCE)
            self.sender.connect(listener.getsockname())
            self.receiver, _ = listener.accept()
        # A buffer that starts small would be empty by the time this process comes to fill it.
        self.sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        # The kernel's time of arrival: a late reader on a busy machine does not make a slow link.
        self.receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.sender.setblocking(False)
        self.receiver.setblocking(False)

    def send(self, data: memoryview) -> None:
        self.sender.send(data)

    def receive(self, into: memoryview) -> None:
        """Take what came, up to ``len(into)``, and note when its last byte reached the receiver's device."""
        count, ancillary, _, _ = self.receiver.recvmsg_into([into], socket.CMSG_SPACE(_TIMESPEC.size))
        self.received += count
        if self.received < (self.skip if self.first is None else self.stop) or (not self.lossy and self._repairing()):
            return
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        now = seconds + nanoseconds * 1e-9
        if self.first is None:
            self.first = now, self.received
        else:
            begun, before = self.first
            self.goodput = (self.received - before) / (now - begun)

    def _repairing(self) -> bool:
        # While a lost packet is missing, what came after it waits in the kernel and is not counted: up to a whole
        # queue, several per cent of what is measured. tcp_info's second byte is the state, 0 when all is well.
        return self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 2)[1] != _TCP_CA_OPEN

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def goodputs(network: Calibrated, paths: Sequence[Path]) -> dict[tuple[str, str], float]:
    """Bytes of payload per second, at the receiver, of one flow on each of the paths, by (source, target).

    All run side by side; one thread plays all ends. Raises LinkError if a path passes nothing.
    """
    data, into = memoryview(bytes(1 << 18)), memoryview(bytearray(1 << 20))
    flows: list[_Flow] = []
    try:
        for path in paths:
            flows.append(_Flow(path, network))
        with undisturbed(), selectors.DefaultSelector() as selector:
            for flow in flows:
                selector.register(flow.sender, selectors.EVENT_WRITE, flow)
                selector.register(flow.receiver, selectors.EVENT_READ, flow)
            waiting = set(flows)
            while waiting:
                events = selector.select(_PATIENCE)
                if not events:
                    stuck = next(iter(waiting)).path
                    raise LinkError(f"{stuck.source} -> {stuck.target} passed nothing for {_PATIENCE:.0f} s")
                for key, event in events:
                    flow = key.data
                    if event & selectors.EVENT_READ:
                        flow.receive(into)
                    elif flow in waiting:
                        flow.send(data)
                    if flow.goodput is not None and flow in waiting:
                        # Its flow ends here; an early end elsewhere would not disturb, but need not be paid for.
                        waiting.remove(flow)
                        selector.unregister(flow.sender)
                        selector.unregister(flow.receiver)
    finally:
        for flow in flows:
            flow.close()
    return {(flow.path.source, flow.path.target): flow.goodput for flow in flows if flow.goodput is not None}
