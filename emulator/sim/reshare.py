"""Sharing anew where something changed, and nowhere else.

The proof that a division is the max–min fair one is local: every flow crosses a full link on which nobody has more,
its *bottleneck*. So the flows on the links that changed are divided again while all others keep what they have; then
those others are taken in whose proof this breaks, and it is done again, until none is broken. What is left out has its
proof still, and there is only one fair division, so the result is what dividing everything again would give.
"""

from __future__ import annotations

from collections.abc import Iterable

from emulator.sim.fair import fill
from emulator.sim.flow import Flow, Link

TINY = 1e-9
"""Rates that differ by less than this part of themselves are equal."""

MANY = 64
"""Flows from which on it is cheaper to take in at once all that hang together than turn by turn."""

Shares = dict[Flow, tuple[float, Link | None]]
"""Rates and bottlenecks."""


def reshare(changed: Iterable[Link]) -> Shares:
    """Divide the `changed` links, whose room or flows are not what they were, and what this changes in turn.

    Returns the flows that were divided anew, of whom not all need have another rate than before.
    """
    alone: Shares = {}
    together: dict[Flow, None] = {}
    for link in changed:
        for flow in link.flows:
            least, bottleneck = link.room, link
            for other in flow.links:
                if len(other.flows) > 1:
                    together[flow] = None
                    break
                if other.room < least:
                    least, bottleneck = other.room, other
            else:
                alone[flow] = least, bottleneck
    if together:
        alone.update(_divide(together))
    return alone


def _divide(region: dict[Flow, None]) -> Shares:
    while True:
        if len(region) >= MANY:
            _complete(region)
        links = dict.fromkeys(link for flow in region for link in flow.links)
        room = {}
        others: list[tuple[Flow, Link]] = []
        for link in links:
            room[link] = link.room
            if len(link.flows) > 1:
                for flow in link.flows:
                    if flow not in region:
                        room[link] -= flow.rate
                        others.append((flow, link))
        shares = fill({flow: flow.links for flow in region}, room)
        if not others:
            return shares
        most = dict.fromkeys(links, 0.0)  # of the rates in the region
        level = dict.fromkeys(links, float("inf"))  # of the flows whose bottleneck it is
        used = dict.fromkeys(links, 0.0)
        for flow, (rate, bottleneck) in shares.items():
            for link in flow.links:
                used[link] += rate
                most[link] = max(most[link], rate)
                if link is bottleneck:
                    level[link] = rate
        broken = [flow for flow, link in others
                  if flow.rate > level[link] * (1 + TINY)
                  or (flow.bottleneck is link and (flow.rate < most[link] * (1 - TINY)
                                                  or room[link] - used[link] > TINY * link.rate))]
        if not broken:
            return shares
        region.update(dict.fromkeys(broken))


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
