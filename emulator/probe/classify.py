"""What follows from what was measured: pure functions, with the tolerances they go by.

The first question of every judgement is whether a flow got less in company than alone. A limit that takes less than
:data:`DROP` from it is not seen; it would not change a prediction by more than that either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.probe.survey import Estimate, Flow, Host, Pair, Trial

DROP = 0.04
"""Fraction of its rate that a flow loses for certain when it shares a limit. Steady flows repeat within 1 %."""
WINDOW_DROP = 0.3
"""The same where a window limits: a round trip that takes longer on a busy machine is no limit that is shared. Such a
path is driven by two connections, so a limit that one on each path would feel takes half of them."""
DEEP = 0.2
"""A loss beyond doubt, which needs no second look."""
GAIN = 1.15
"""Two connections beside one: more than this, and it was the connection that was limited."""
ALL_GAIN = 1.8
"""Two connections that for certain move less than this times what one does met another limit on their way."""
EQUAL = 0.1
"""Two limits whose rates differ by less may be one."""
MACHINE = 0.25
"""Of its loopback's rate, what a machine can carry through links and be sure not to be the limit itself: a packet that
crosses a device, a bridge and a queue costs several times what loopback costs."""
BUSY, BUSY_MACHINE = 0.9, 0.01
"""The same where the processors were busy for more than this share of the time, whatever with. A path that carries less
than its part of that may lose a little to it; more than :data:`DEEP` is not the machine's doing."""
WINDOW = 0.5
"""Share of the time that a sender waits for the receiver's window, from which on the window is what limits it."""
LOSS = 5e-4
"""Share of segments sent again from which on loss may be what limits a connection."""


@dataclass(frozen=True)
class Alone:
    """One path with the network to itself: one connection, then two."""

    one: Flow
    two: Flow

    @property
    def per_connection(self) -> bool:
        """Whether a second connection moves more, beyond doubt."""
        one, two = self.one.estimate, self.two.estimate
        return two.value > GAIN * one.value and two.low > one.high

    @property
    def driven(self) -> Flow:
        """The flow that shows what the path itself can carry, and as which it is driven in company."""
        return self.two if self.per_connection else self.one

    @property
    def rate(self) -> float:
        """What it carried."""
        return self.driven.rate


@dataclass(frozen=True)
class Company:
    """A trial of several paths: which of them lost, to others and not to the machine."""

    trial: Trial
    dropped: frozenset[Pair]
    deep: bool
    """Whether what dropped lost :data:`DEEP` beyond what may be chance."""
    machine: bool
    """Whether others lost too, and the machine itself may have been the reason."""
    strained: bool
    """Whether some machine carried so much that it may have been the limit."""

    @property
    def kept(self) -> frozenset[Pair]:
        """Paths that carried what they carry alone."""
        return frozenset(flow.pair for flow in self.trial.flows) - self.dropped


def company(trial: Trial, alone: Mapping[Pair, Alone], hosts: Mapping[str, Host]) -> Company:
    """Compare each flow of `trial` with the same flow alone."""
    def lost(flow: Flow, more: float = 0.0) -> bool:
        before = alone[flow.pair]
        slack = (WINDOW_DROP if before.per_connection else DROP) * before.rate
        late = max(0.0, flow.idle - before.driven.idle) * before.rate
        doubt = slack + late + more * before.rate
        return flow.rate < before.rate - doubt and (together or flow.estimate.high < before.driven.estimate.low)

    # Flows that share one queue take turns: each varies, and their sum does not.
    together = trial.total().high < (1 - DROP) * sum(alone[flow.pair].driven.estimate.low for flow in trial.flows)
    losers = [flow for flow in trial.flows if lost(flow)]
    sure = losers
    strained = by_machine(trial.flows, hosts, BUSY_MACHINE if trial.busy > BUSY else MACHINE)
    if strained:
        # Were all flows as fast as this one, could the machine carry them?
        sure = [flow for flow in losers if lost(flow, DEEP)
                and not by_machine([alone[flow.pair].driven] * len(trial.flows), hosts, BUSY_MACHINE)]
    return Company(trial, frozenset(flow.pair for flow in sure), all(lost(flow, DEEP) for flow in sure),
                   len(sure) < len(losers), strained)


def by_machine(flows: Sequence[Flow], hosts: Mapping[str, Host], most_of: float = MACHINE) -> bool:
    """Whether some machine carried more than `most_of` what its loopback carries: it may have been the limit itself."""
    carried: dict[str, float] = {}
    most: dict[str, float] = {}
    for flow in flows:
        for host in {hosts[end].machine: hosts[end] for end in flow.pair}.values():
            carried[host.machine] = carried.get(host.machine, 0.0) + flow.rate
            most[host.machine] = host.loopback
    return any(carried[machine] > most_of * most[machine] for machine in carried)


def equal(one: float, other: float) -> bool:
    """Whether two rates may be those of one limit."""
    return abs(one - other) <= EQUAL * max(one, other)


@dataclass(frozen=True)
class Shared:
    """A limit that several paths share. `kind` is up or down (of the one host in `hosts`), or group."""

    kind: str
    hosts: tuple[str, ...]
    paths: frozenset[Pair]
    rate: Estimate
    """Goodput of all of them together."""

    def explains(self, other: Shared) -> bool:
        """Whether `other` is nothing but this limit, seen through fewer paths."""
        return other is not self and other.paths <= self.paths and equal(self.rate.value, other.rate.value)

    def bounds(self, pair: Pair, rate: float) -> bool:
        """Whether this is what limits a path that carries `rate` alone."""
        return pair in self.paths and (rate >= self.rate.value or equal(rate, self.rate.value))


@dataclass(frozen=True)
class Known:
    """What there is to know of a network; goodputs are by the clock."""

    alone: Mapping[Pair, Alone]
    shared: tuple[Shared, ...]
    carried: Mapping[tuple[str, str], float]
    """(up or down, host): the most that was seen to pass it."""
    notes: tuple[str, ...] = field(default=())


def unexplained(found: Iterable[Shared]) -> list[Shared]:
    """Those limits that are not another one, seen through fewer paths; of two that are the same, the first."""
    left: list[Shared] = []
    for one in found:
        if not any(other.explains(one) for other in left):
            left = [other for other in left if not one.explains(other)] + [one]
    return left


PATH, UP, DOWN, GROUP, MACHINE_LIMIT, WINDOW_LIMIT, LOSS_LIMIT, CONNECTION = (
    "path", "up", "down", "group", "machine", "window", "loss", "connection")


@dataclass(frozen=True)
class Verdict:
    """What limits one path. `kinds` are among those above; several that cannot be told apart stand side by side."""

    source: str
    target: str
    kinds: tuple[str, ...]
    one: Estimate
    """Goodput of one connection."""
    two: Estimate
    """Of two together."""
    shared: tuple[Shared, ...]
    """The limits among `kinds` that other paths share."""


def verdict(pair: Pair, known: Known, hosts: Mapping[str, Host]) -> Verdict:
    """Say what limits a path.

    A second connection tells whether the connection is limited, and TCP's own account by what. Beyond that, a limit
    that the path shares and that is no higher than what it carries explains it; what nothing explains is its own.
    """
    alone = known.alone[pair]
    kinds: list[str] = []
    if alone.per_connection:
        one = alone.one
        kinds.append(WINDOW_LIMIT if one.window_limited >= WINDOW else LOSS_LIMIT if one.resent >= LOSS
                     else CONNECTION)
    shared = tuple(limit for limit in known.shared if limit.bounds(pair, alone.rate))
    beyond = not alone.per_connection or alone.two.estimate.high < ALL_GAIN * alone.one.estimate.low
    if beyond and shared:
        kinds += sorted({limit.kind for limit in shared}, key=(UP, DOWN, GROUP).index)
    elif beyond:
        kinds.append(MACHINE_LIMIT if by_machine([alone.driven], hosts) else PATH)
    return Verdict(*pair, tuple(kinds), alone.one.estimate, alone.two.estimate, shared)
