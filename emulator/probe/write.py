"""Makes a topology of what a probe found: life-size, at the link layer, and with every value's interval beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import yaml

from emulator.ethernet import PAYLOAD, SEGMENT
from emulator.links.shaping import window_clamp
from emulator.probe.classify import (
    CONNECTION,
    DOWN,
    GROUP,
    LOSS_LIMIT,
    MACHINE_LIMIT,
    PATH,
    UP,
    WINDOW_LIMIT,
    Known,
    Shared,
    Verdict,
    verdict,
)
from emulator.probe.survey import Estimate, Pair, Survey
from emulator.topology_file import LARGEST_WINDOW
from emulator.units import format_loss, format_rate, format_size, format_time

NEAR = 2e-3
"""Seconds of a round trip within which hosts are taken to be at one site."""
_WINDOW_TOLERANCE = 0.12
"""A measured window is one that TCP can be told (:func:`~emulator.links.shaping.window_clamp`) if within this of it."""


class Findings:
    """What a survey says about the network, at life size: rates count Ethernet frames, as a topology's do."""

    def __init__(self, survey: Survey, known: Known) -> None:
        self.survey = survey
        self.known = known
        hosts = {host.name: host for host in survey.hosts}
        self.verdicts = {pair: verdict(pair, known, hosts) for pair in known.alone}
        """By (source, target)."""
        self.groups: Mapping[Shared, str] = {limit: f"shared-{number}" for number, limit in enumerate(
            (limit for limit in known.shared if limit.kind == GROUP), 1)}

    def rate(self, goodput: Estimate) -> Estimate:
        """Rate on the wire of a link that carries that much payload, life-size."""
        return goodput.times(1 / PAYLOAD / self.survey.speedup)

    def rtt(self, pair: Pair) -> Estimate:
        """Idle round trip, life-size."""
        return self.survey.rtt(*pair).times(self.survey.speedup)

    def access(self, kind: str, host: str) -> Estimate | None:
        """The host's own limit, up or down; None if none was seen."""
        return next((self.rate(limit.rate) for limit in self.known.shared
                     if limit.kind == kind and limit.hosts == (host,)), None)

    def own_rate(self, pair: Pair) -> Estimate | None:
        """The path's own limit; None if none was seen."""
        found = self.verdicts[pair]
        if PATH not in found.kinds:
            return None
        return self.rate(found.two if len(found.kinds) > 1 else found.one)

    def window(self, pair: Pair) -> tuple[int, float] | None:
        """The window to write, and the measured one: what a connection moves in a round trip. None if none binds.

        The first is the nearest that TCP can be told, if that is near.
        """
        found = self.verdicts[pair]
        if not {WINDOW_LIMIT, CONNECTION} & {*found.kinds}:
            return None
        measured = found.one.value * self.survey.rtt(*pair).value
        nearest = min(((1 << 16) << scale for scale in range(15)), key=lambda size: abs(size - measured))
        if abs(nearest / measured - 1) <= _WINDOW_TOLERANCE and window_clamp(nearest) is not None:
            return min(nearest, LARGEST_WINDOW), measured
        return max(SEGMENT, min(LARGEST_WINDOW, round(measured))), measured

    def loss(self, pair: Pair) -> float | None:
        """Share of packets lost, where that is what limits a connection; None elsewhere."""
        return self.known.alone[pair].one.resent if LOSS_LIMIT in self.verdicts[pair].kinds else None

    def sites(self) -> dict[str, str]:
        """A site for each host: hosts that are near each other, directly or through others, are at one."""
        names = [host.name for host in self.survey.hosts]
        site: dict[str, int] = {}
        for number, name in enumerate(names):
            if name in site:
                continue
            reached = [name]
            for one in reached:
                site[one] = number
                reached += [other for other in names if other not in site and other not in reached
                            and self.rtt((one, other)).value <= NEAR]
        order = {number: index for index, number in enumerate(dict.fromkeys(site.values()), 1)}
        free = (f"{prefix}site-" for prefix in ("", "probed-", "at-"))
        prefix = next(prefix for prefix in free if not any(name.startswith(prefix) for name in names))
        return {name: f"{prefix}{order[site[name]]}" for name in names}

    def reason(self, pair: Pair) -> str:
        """The verdict on a path in words, with its rates."""
        return "; ".join(self._reasons(self.verdicts[pair]))

    def _reasons(self, found: Verdict) -> Iterable[str]:
        one, two = self.rate(found.one), self.rate(found.two)
        pair = found.source, found.target
        if {WINDOW_LIMIT, LOSS_LIMIT, CONNECTION} & {*found.kinds}:
            gain = f"two connections move {two.value / one.value:.2f} times what one does, {interval(one)}"
            window = self.window(pair)
            if WINDOW_LIMIT in found.kinds and window is not None:
                yield f"limited per connection, by a window of {format_size(round(window[1]))} as measured: {gain}"
            elif window is not None:
                yield f"limited per connection, and not by the receiver's window: {gain}"
            else:
                yield f"limited per connection, by loss of {format_loss(self.loss(pair) or 0)}: {gain}"
            if len(found.kinds) == 1:
                yield f"no other limit up to {format_rate(two.value)}"
        limits = [self.name(limit) for limit in found.shared]
        if limits:
            yield (f"limited by {' or '.join(limits)}"
                   + (", which this path alone cannot tell apart" if len(limits) > 1 else "")
                   + f": {interval(one if len(found.kinds) == 1 or not self.window(pair) else two)}; "
                   "its own limit, if any, is no lower")
        if PATH in found.kinds:
            own = self.own_rate(pair)
            assert own is not None
            yield f"limited per path: {interval(own)}" + (
                f" with one connection, {format_rate(two.value)} with two" if len(found.kinds) == 1 else "")
        if MACHINE_LIMIT in found.kinds:
            yield f"unlimited, or limited by the machine: {interval(one)}"

    def name(self, limit: Shared) -> str:
        """What a shared limit is called."""
        if limit.kind == GROUP:
            return self.groups[limit]
        return f"access {limit.kind} of {limit.hosts[0]}"


def interval(rate: Estimate) -> str:
    """A rate and its 95 % interval."""
    return f"{format_rate(rate.value)} ({format_rate(rate.low)} to {format_rate(rate.high)})"


def _trip(rtt: Estimate) -> str:
    return f"RTT {format_time(rtt.value)} ({format_time(rtt.low)} to {format_time(rtt.high)})"


def topology_text(name: str, findings: Findings) -> str:
    """A topology's YAML, with comments that say what was measured, when, and what cannot be known."""
    return "\n".join([*_head(name, findings), "hosts:", *_hosts(findings), "", "paths:", *_paths(findings),
                      *_groups(findings)]) + "\n"


def _head(name: str, findings: Findings) -> Iterable[str]:
    survey = findings.survey
    first, last = survey.trials[0], survey.trials[-1]
    spent = sum(trial.seconds for trial in survey.trials)
    fast = f", on a network {survey.speedup:g} times faster than life" if survey.speedup != 1 else ""
    yield f"# Measured by `frogtorch probe` from {first.begun} to {last.begun}{fast}:"
    yield (f"# {len(survey.trials)} trials, {spent:.0f} s of them counted. Values are followed by what was measured "
           "and its 95 % interval.")
    yield "# Rates count Ethernet frames: TCP's goodput x 1514/1448. A delay is half of the round trip, since its two"
    yield f"# ways cannot be told apart. Sites are hosts that are within {format_time(NEAR)} of each other."
    for note in findings.known.notes:
        yield f"# {note[0].upper()}{note[1:]}."
    yield f"name: {name}"
    yield f"sites: [{', '.join(dict.fromkeys(findings.sites().values()))}]"
    seen = Counter(flow.congestion for trial in survey.trials for flow in trial.flows)
    yield f"congestion: {seen.most_common(1)[0][0]}"
    yield ""


def _hosts(findings: Findings) -> Iterable[str]:
    for host, site in findings.sites().items():
        limits = {kind: findings.access(kind, host) for kind in (UP, DOWN)}
        said = ", ".join(f"{kind}: {format_rate(rate.value)}" for kind, rate in limits.items() if rate is not None)
        access = f", access: {{{said}}}" if said else ""
        words = []
        for kind, rate in limits.items():
            most = findings.known.carried.get((kind, host))
            if rate is not None:
                words.append(f"{kind} {interval(rate)}")
            elif most is not None:
                words.append(f"no limit {kind} as far as {format_rate(most / PAYLOAD / findings.survey.speedup)}")
        yield f"  {_word(host)}: {{site: {site}{access}}}" + (f"      # {'; '.join(words)}" if words else "")


def _paths(findings: Findings) -> Iterable[str]:
    for pair in findings.verdicts:
        rtt, rate, window, loss = (findings.rtt(pair), findings.own_rate(pair), findings.window(pair),
                                   findings.loss(pair))
        fields = [f"from: {_word(pair[0])}", f"to: {_word(pair[1])}", f"delay: {format_time(rtt.value / 2)}"]
        fields += [f"rate: {format_rate(rate.value)}"] if rate is not None else []
        fields += [f"window: {format_size(window[0])}"] if window is not None else []
        fields += [f"loss: {format_loss(loss)}"] if loss is not None else []
        yield f"  - {{{', '.join(fields)}}}      # {findings.reason(pair)}; {_trip(rtt)}"


def _groups(findings: Findings) -> Iterable[str]:
    if findings.groups:
        yield ""
        yield "groups:"
    for limit, name in findings.groups.items():
        rate = findings.rate(limit.rate)
        yield f"  {name}:      # {interval(rate)}"
        yield f"    rate: {format_rate(rate.value)}"
        yield "    paths:"
        yield from (f"      - {{from: {_word(source)}, to: {_word(target)}}}" for source, target in sorted(limit.paths))


def _word(name: str) -> str:
    """A name as YAML has to have it: 0, no and on would be something else without quotes."""
    return yaml.safe_dump([name], default_flow_style=True)[1:-2]
