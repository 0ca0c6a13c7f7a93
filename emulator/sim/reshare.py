"""Sharing anew where something changed, and nowhere else.

The proof that a division is the max–min fair one is local: every flow crosses a full link on which nobody has a higher
level, its *bottleneck*. So the flows whose own proof a change touches are divided again while all others keep what they
have; then those others are taken in whose proof this breaks, and it is done again, until none is broken. What is left
out has its proof still, and there is only one fair division, so the result is what dividing everything again would
give.

What the others have of a link is known as a sum, and their proof by what is highest on it: a turn takes time for the
flows that it divides, and looks at others only on links where a proof breaks.
"""

from __future__ import annotations

from collections.abc import Iterable

from emulator.sim.fair import fill
from emulator.sim.flow import Flow, Link

TINY = 1e-9
"""Levels that differ by less than this part of themselves are equal."""

TURNS, MANY = 8, 64
"""After so many turns, or when a turn breaks so many proofs and more than it had flows, all flows are taken in at once
that hang together: they may be a long chain, or a change that goes everywhere."""

Shares = dict[Flow, tuple[float, Link | None]]
"""Rates and bottlenecks."""


def reshare(changed: Iterable[Link], started: Iterable[Flow] = ()) -> Shares:
    """Divide again what it touches that links are not what they were (`changed`: their room, or what crosses them).

    `started` are the flows that have no rate yet, or another weight than before; they cross changed links. Returns the
    flows that were divided anew, of whom not all need have another rate than before.
    """
    alone: Shares = {}
    together: dict[Flow, None] = {}

    def touch(flow: Flow) -> None:
        least, bottleneck = flow.links[0].room, flow.links[0]
        for link in flow.links:
            if len(link.flows) > 1:
                together[flow] = None
                return
            if link.room < least:
                least, bottleneck = link.room, link
        alone[flow] = least, bottleneck

    for flow in started:
        touch(flow)
    for link in changed:
        if link.holding:
            for flow in link.flows:
                if flow.bottleneck is link:
                    touch(flow)
        elif link.used > link.room * (1 + TINY):
            for flow in link.flows:
                touch(flow)
    if together:
        alone.update(_divide(together))
    return alone


def _divide(region: dict[Flow, None]) -> Shares:
    turns = 0
    while True:
        turns += 1
        count: dict[Link, int] = {}     # of the region's flows,
        held: dict[Link, int] = {}      # of those that had their bottleneck here,
        used: dict[Link, float] = {}    # and what they had
        for flow in region:
            for link in flow.links:
                count[link] = count.get(link, 0) + 1
                used[link] = used.get(link, 0.0) + flow.rate
            if flow.bottleneck is not None:
                held[flow.bottleneck] = held.get(flow.bottleneck, 0) + 1
        mixed = [link for link, n in count.items() if n < len(link.flows)]
        room = {link: link.room for link in count}
        for link in mixed:
            room[link] -= max(0.0, link.used - used[link])
        shares = fill({flow: flow.links for flow in region}, room,
                      {flow: flow.weight for flow in region if flow.weight != 1})
        broken = _broken(region, shares, mixed, room, held) if mixed else []
        if not broken:
            return shares
        spreads = turns == TURNS or len(broken) > max(MANY, len(region))
        region.update(dict.fromkeys(broken))
        if spreads:
            _complete(region)


def _broken(region: dict[Flow, None], shares: Shares, mixed: Iterable[Link], room: dict[Link, float],
            held: dict[Link, int]) -> list[Flow]:
    """The flows outside a region that lose their proof if those in it get these shares; `mixed` links have both."""
    most = dict.fromkeys(mixed, 0.0)                # of the levels of the region
    level = dict.fromkeys(mixed, float("inf"))      # of the region's flows whose bottleneck it is
    free = {link: room[link] for link in mixed}
    for flow, (rate, bottleneck) in shares.items():
        high = rate / flow.weight
        for link in flow.links:
            if link in free:
                free[link] -= rate
                if high > most[link]:
                    most[link] = high
                if link is bottleneck:
                    level[link] = high
    broken: list[Flow] = []
    for link in mixed:
        holds = link.holding > held.get(link, 0)    # others, who have the highest level here, as they have all `level`
        losing = holds and (link.level < most[link] * (1 - TINY) or free[link] > TINY * link.rate)
        limit = level[link] * (1 + TINY)
        if losing or (link.level > limit if holds else limit < float("inf")):
            broken += [flow for flow in link.flows if flow not in region and (
                (losing and flow.bottleneck is link) or flow.rate > limit * flow.weight)]
    return broken


def _complete(region: dict[Flow, None]) -> None:
    """Take in all flows that share links with these, directly or through others."""
    seen: dict[Link, None] = {}
    pending = list(region)
    while pending:
        for link in pending.pop().links:
            if link not in seen:
                seen[link] = None
                for flow in link.flows:
                    if flow not in region:
                        region[flow] = None
                        pending.append(flow)
