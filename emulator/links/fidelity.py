"""Is the network what its topology says? Every directed path's idle round trip and the goodput of one flow, measured.

Paths are measured side by side where one flow cannot feel the other: the two directions of a pair never are, since
acknowledgements ride on the way back; flows of a host with an access limit never are, nor those that meet in a group,
on their way there or back; a fast path has the machine to itself; and paths that a window limits are few at a time, as
nothing waits in their queues while the machine serves others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.ethernet import PAYLOAD
from emulator.links.calibration import Calibrated
from emulator.links.flows import Flow, pump
from emulator.links.ping import round_trips
from emulator.links.shaping import ceiling, groups_of
from emulator.topology import Path, Topology, round_trip

GOODPUT_TOLERANCE = 0.01
RTT_TOLERANCE = 0.03
RTT_SLACK = 0.3e-3           # seconds
ECHOES = 21
ATTEMPTS = 3
LEAST_BYTES = 8_000_000      # of payload a path
LEAST_TIME = 0.6             # seconds of it: else a stall of a few milliseconds makes a fast path slow
ENOUGH_TIME = 4.0            # seconds after which fewer bytes do: a packet is one in 1,300 of 2 MB
SETTLING = 0.1               # seconds at the least before it counts
FAST = 20e6                  # bytes per second, above which a path is measured alone, or all that windows limit
_LOSSY_BYTES = 500_000
_UNLIMITED = 1e9             # bytes per second, to choose how much is sent where nothing limits

Progress = Callable[[int, int, str], None]


class Probed(Calibrated, Protocol):
    """What :func:`probe` needs of a network."""

    def check(self) -> None:
        """Raise LinkError if the links no longer do what they should."""


@dataclass(frozen=True)
class PathFidelity:
    """One directed path, measured; seconds and bytes of payload per second, in the shaped network's own time.

    An `expected_goodput` of None is a path that nothing limits, that loses packets or has jitter, or that shares a
    group with its own way back: how much TCP then makes of it is TCP's affair.
    """

    source: str
    target: str
    rtt: float
    expected_rtt: float
    goodput: float
    expected_goodput: float | None
    jitter: float = 0.0
    """Seconds: standard deviation of one round trip."""
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
        """Within 1 % in goodput, and within 0.3 ms or 3 % in round trip, whichever is more.

        With jitter, three standard errors of the median more: of n values of a normal distribution, sqrt(pi / 2n) of
        its standard deviation.
        """
        chance = 3 * math.sqrt(math.pi / (2 * ECHOES)) * self.jitter
        return (abs(self.goodput_error) <= GOODPUT_TOLERANCE
                and abs(self.rtt_error) <= max(RTT_SLACK, RTT_TOLERANCE * self.expected_rtt) + chance)


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
                                       expected_goodput(topology, path),
                                       math.hypot(path.jitter, topology.path(*reversed(pair)).jitter), attempt)
        wanted = [path for path in wanted if not found[path.source, path.target].valid]
        if not wanted:
            break
    tell(len(nominal), len(nominal), "links measured")
    network.check()
    return [found[pair] for pair in nominal]


def expected_goodput(topology: Topology, path: Path) -> float | None:
    """Bytes of payload per second of one TCP flow on an otherwise idle network; None if there is no telling.

    Acknowledgements that cross the same group as what they acknowledge take up to 66 of 3,094 bytes there.
    """
    back = topology.path(path.target, path.source)
    own = set(groups_of(topology, path)) & set(groups_of(topology, back))
    return None if own or _lossy(topology, path) else _ceiling(topology, path)


def _lossy(topology: Topology, path: Path) -> bool:
    back = topology.path(path.target, path.source)
    return any((path.loss, path.jitter, back.loss, back.jitter))


def _ceiling(topology: Topology, path: Path) -> float | None:
    rate = ceiling(topology, path)
    limits = [] if rate is None else [rate * PAYLOAD]
    if path.window is not None:
        limits.append(path.window / round_trip(topology, path))
    return min(limits, default=None)


def schedule(topology: Topology, wanted: Sequence[Path]) -> list[list[Path]]:
    """Rounds of the `wanted` paths that can be measured side by side, each path in one of them."""
    rounds: list[list[Path]] = []
    index = {host.name: number for number, host in enumerate(topology.hosts)}
    limited = {host.name for host in topology.hosts if host.up is not None or host.down is not None}

    def crossed(path: Path) -> set[str]:
        return {*groups_of(topology, path), *groups_of(topology, topology.path(path.target, path.source))}

    def waiting(paths: Sequence[Path]) -> float:
        return sum(_ceiling(topology, path) or 0.0 for path in paths if path.window is not None)

    def apart(one: Path, other: Path) -> bool:
        common = {one.source, one.target} & {other.source, other.target}
        return len(common) < 2 and not common & limited and not crossed(one) & crossed(other)

    slow = [path for path in wanted if not _fast(topology, path)]
    # All of one direction first: so that a round fills with it, and the other direction fills the next.
    for path in sorted(slow, key=lambda path: index[path.source] > index[path.target]):
        fitting = (paths for paths in rounds if all(apart(path, other) for other in paths)
                   and waiting([*paths, path]) <= FAST)
        chosen = next(fitting, None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append(path)
    return rounds + [[path] for path in wanted if _fast(topology, path)]


def _fast(topology: Topology, path: Path) -> bool:
    ceiling = _ceiling(topology, path)
    return ceiling is None or ceiling > FAST


class _Measured(Flow):
    """A flow and its goodput, once enough has come."""

    def __init__(self, path: Path, network: Calibrated) -> None:
        expected = _ceiling(network.shaped, path) or _UNLIMITED
        self.lossy = _lossy(network.shaped, path)
        # Left out: the start, until TCP has filled the path and its queue has settled.
        self.skip = max(500_000, int(expected * max(SETTLING, 8 * round_trip(network.shaped, path))))
        self.stop = self.skip + int(max(min(LEAST_BYTES, ENOUGH_TIME * expected), LEAST_TIME * expected))
        if self.lossy:           # for information only, and it may take long
            self.skip, self.stop = 0, _LOSSY_BYTES
        self.first: tuple[float, int] | None = None
        self.goodput = 0.0
        super().__init__(path, network)

    def note(self) -> None:
        """Something has come: is it enough? What waits behind a lost packet may be several per cent of all."""
        if self.received < (self.skip if self.first is None else self.stop) or (not self.lossy and self.repairing):
            return
        if self.first is None:
            self.first = self.arrived, self.received
        else:
            begun, before = self.first
            self.goodput = (self.received - before) / (self.arrived - begun)
            self.done = True


def goodputs(network: Calibrated, paths: Sequence[Path]) -> dict[tuple[str, str], float]:
    """Bytes of payload per second, at the receiver, of one flow on each of the paths, by (source, target).

    All run side by side, each as long as it takes. Raises LinkError if a path passes nothing.
    """
    flows: list[_Measured] = []
    try:
        for path in paths:
            flows.append(_Measured(path, network))
        for flow in pump(flows):
            assert isinstance(flow, _Measured)
            flow.note()
    finally:
        for flow in flows:
            flow.close()
    return {(flow.path.source, flow.path.target): flow.goodput for flow in flows}
