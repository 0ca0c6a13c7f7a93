"""What to measure, step by step: a generator that yields a :class:`Request` and is sent the :class:`Trial`.

It never sees a socket, so the same plan runs on packets, on a simulated network, and again on a record of trials. With
n hosts it asks for 2 n (n - 1) trials of one path, 2 n of all paths out of or into a host, and about 2 n of half the
hosts towards the other half; a few more for each limit that is shared.

In every trial a host either sends or receives, so that no acknowledgement waits behind data. What seems to be a shared
limit is measured twice.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from emulator.probe.classify import (
    DOWN,
    DROP,
    EQUAL,
    GROUP,
    UP,
    Alone,
    Company,
    Known,
    Shared,
    company,
    equal,
    unexplained,
)
from emulator.probe.survey import Estimate, Host, Load, Pair, Request, Trial

_MOST_COVERED = 8
"""Hosts up to which the divisions are chosen so that every two disjoint paths meet in one."""

Trials = Generator[Request, Trial, None]


def expected_trials(hosts: int) -> int:
    """How many trials there will be at the least, for a bar of progress."""
    return 2 * hosts * (hosts - 1) + (2 * hosts if hosts > 2 else 0) + len(divisions(range(hosts)))


def plan(hosts: Sequence[Host]) -> Generator[Request, Trial, Known]:
    """Find out what limits the paths between the hosts; returns what is known in the end."""
    return (yield from _Plan(hosts).run())


def divisions(hosts: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Halves of the hosts, senders and receivers, in which disjoint paths meet; none for fewer than four hosts.

    Drawn at random, from a seed that is always the same; up to :data:`_MOST_COVERED` hosts the best of many draws,
    until every two paths without a common host have met.
    """
    number = len(hosts)
    if number < 4:
        return []
    draw = random.Random(number)

    def half() -> tuple[tuple[int, ...], tuple[int, ...]]:
        mixed = draw.sample(list(hosts), number)
        return tuple(sorted(mixed[:number // 2])), tuple(sorted(mixed[number // 2:]))

    if number > _MOST_COVERED:
        return [half() for _ in range(2 * number)]
    missing = {(senders, receivers) for senders in combinations(hosts, 2) for receivers in combinations(hosts, 2)
               if not {*senders} & {*receivers}}
    chosen = []
    while missing:
        best = max((half() for _ in range(50)), key=lambda halves: len(_meeting(*halves) & missing))
        missing -= _meeting(*best)
        chosen.append(best)
    return chosen


def _meeting(senders: tuple[int, ...], receivers: tuple[int, ...]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(two, other) for two in combinations(senders, 2) for other in combinations(receivers, 2)}


class _Plan:
    """What is known so far."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.names = [host.name for host in hosts]
        self.alone: dict[Pair, Alone] = {}
        self.shared: list[Shared] = []
        self.carried: dict[tuple[str, str], float] = {}
        self.notes: list[str] = []

    def run(self) -> Generator[Request, Trial, Known]:
        for pair in permutations(self.names, 2):
            one = yield Request("one connection", (Load(*pair),))
            two = yield Request("two connections", (Load(*pair, 2),))
            self.alone[pair] = Alone(one.flow(pair), two.flow(pair))
        if len(self.names) == 2:
            self._note("with two hosts a path's own limit cannot be told from an access's")
        else:
            ups = yield from self._hosts(UP)
            downs = yield from self._hosts(DOWN)
            self.shared = yield from self._joined(ups, downs)
            left = [limit for limit in downs if not any(known.explains(limit) for known in self.shared)]
            self.shared += yield from self._joined(left, ups)
        yield from self._screen()
        return Known(self.alone, tuple(unexplained(self.shared)), self.carried, tuple(self.notes))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _drive(self, kind: str, pairs: Iterable[Pair], rough: bool = False) -> Generator[Request, Trial, Company]:
        """Drive the paths at once; again if one loses little or to the machine, as what a busy machine does passes."""
        request = Request(kind, tuple(Load(*pair, self.alone[pair].driven.connections) for pair in pairs), rough)
        found = yield from self._look(request)
        if found.machine:      # it may have been busy with something else
            again = yield from self._look(request)
            found = found if again.machine else again
        if found.dropped and not found.deep:
            again = yield from self._look(request)
            better = max(found, again, key=lambda one: one.trial.total().value)
            found = replace(better, dropped=found.dropped & again.dropped)
        if found.machine:
            total = found.trial.total().value
            self._note(f"{kind}: {total / 1e6:.0f} MB/s by the clock is near what the machine itself can carry, so a "
                       "limit that fast paths share cannot be seen")
        return found

    def _look(self, request: Request) -> Generator[Request, Trial, Company]:
        return company((yield request), self.alone, self.hosts)

    def _hosts(self, kind: str) -> Generator[Request, Trial, list[Shared]]:
        """What limits each host's paths out (up) or in (down), taken together."""
        found = []
        for name in self.names:
            pairs = [(name, other) if kind == UP else (other, name) for other in self.names if other != name]
            seen = yield from self._drive(f"all {'out of' if kind == UP else 'into'} {name}", pairs)
            self.carried[kind, name] = seen.trial.total().value
            if seen.dropped:
                paths = yield from self._extent(seen)
                if len(paths) > 1:
                    whole = len(paths) == len(pairs)
                    found.append(Shared(kind if whole else GROUP, (name,), paths, self._limit(seen.trial, paths)))
        return found

    def _limit(self, trial: Trial, paths: frozenset[Pair]) -> Estimate:
        """The rate of what the paths share: it let pass what they carried together, and what each carries alone."""
        return max([trial.total(paths), *(self.alone[pair].driven.estimate for pair in paths)],
                   key=lambda estimate: estimate.value)

    def _extent(self, seen: Company) -> Generator[Request, Trial, frozenset[Pair]]:
        """The paths that share the limit: those that lost, and those that keep their rate, being slower than a share.

        If the slower ones take part, the others have more without them: as much as these moved.
        """
        lost, kept = seen.dropped, seen.kept
        room = seen.trial.total(kept).value if kept else 0.0
        if room <= DROP * seen.trial.total().value:
            return lost | kept
        without = yield from self._alone_total(lost)
        more = without - seen.trial.total(lost).value
        if more >= 0.9 * room:
            return lost | kept
        if more <= DROP / 2 * without and len(lost) > 1:
            return lost
        # One beside them may be too little for the limit to be felt; then it is all of them that take part.
        return lost | ((yield from self._sharing(lost, without, kept)) or kept)

    def _alone_total(self, pairs: Collection[Pair]) -> Generator[Request, Trial, float]:
        if len(pairs) == 1:
            return sum(self.alone[pair].rate for pair in pairs)
        seen = yield from self._drive("those that share", pairs)
        return seen.trial.total().value

    def _sharing(self, bound: frozenset[Pair], rate: float, others: Iterable[Pair]
                 ) -> Generator[Request, Trial, frozenset[Pair]]:
        """Those of the `others`, each tried alone beside `bound`, that take their rate from what these moved."""
        taking = set()
        for pair in sorted(others):
            seen = yield from self._drive("does it share?", [*sorted(bound), pair])
            taken = rate - seen.trial.total(bound).value
            # Where there is room for some of it, they lose less than it moves, and it moves less than alone.
            if taken >= DROP / 2 * rate and (taken >= 0.5 * seen.trial.flow(pair).rate or pair in seen.dropped):
                taking.add(pair)
        return frozenset(taking)

    def _joined(self, limits: Sequence[Shared], ahead: Sequence[Shared]) -> Generator[Request, Trial, list[Shared]]:
        """Join those limits of single hosts that are one, as an uplink of a site is: two together get no more.

        `ahead` are the limits of hosts in the other direction, which must let more pass for that to be seen.
        """
        joined: list[Shared] = []
        firsts: list[Shared] = []      # of each, the limit of its first host, which stands for it in trials
        for limit in limits:
            for index, first in enumerate(firsts):
                if equal(limit.rate.value, first.rate.value) and (yield from self._same(first, limit, ahead)):
                    whole = joined[index]
                    joined[index] = Shared(GROUP, whole.hosts + limit.hosts, whole.paths | limit.paths, whole.rate)
                    break
            else:
                joined.append(limit)
                firsts.append(limit)
        return joined

    def _same(self, one: Shared, other: Shared, ahead: Sequence[Shared]) -> Generator[Request, Trial, bool]:
        ends = {*one.hosts, *other.hosts}
        parts = [[pair for pair in sorted(limit.paths) if not ends.issuperset(pair)] for limit in (one, other)]
        rate = max(one.rate.value, other.rate.value)
        most = [self._most(part, ahead) for part in (*parts, parts[0] + parts[1])]
        if min(most[0], most[1]) < (1 - EQUAL) * rate or most[2] < 1.5 * rate:
            return False      # it could not be seen
        kind = f"{one.hosts[0]} and {other.hosts[0]}"
        for rough in (True, False):      # most are not, which shows at once; that they are wants a second look
            seen = yield from self._drive(kind, parts[0] + parts[1], rough)
            if not seen.dropped or seen.trial.total().value >= 1.25 * rate:
                return False
        return True

    def _most(self, pairs: Collection[Pair], ahead: Sequence[Shared]) -> float:
        """What could pass along the pairs at once, as far as their ends and the limits `ahead` are concerned."""
        total = sum(self.alone[pair].rate for pair in pairs if not any(pair in limit.paths for limit in ahead))
        return total + sum(min(limit.rate.value, sum(self.alone[pair].rate for pair in limit.paths.intersection(pairs)))
                           for limit in ahead)

    def _screen(self) -> Trials:
        """Look for limits that only paths of different hosts share: half the hosts towards the other half.

        Of the paths that share a known limit one takes part, so that nothing else drops.
        """
        for number, (senders, receivers) in enumerate(divisions(range(len(self.names)))):
            # Each sender's first choice is another receiver: where few may take part, they cross.
            pairs = [(self.names[sender], self.names[receivers[(place + turn) % len(receivers)]])
                     for turn in range(number, number + len(receivers)) for place, sender in enumerate(senders)]
            chosen: list[Pair] = []
            used: set[Shared] = set()
            for pair in pairs:
                over = {limit for limit in self.shared if pair in limit.paths}
                if not over & used:
                    chosen.append(pair)
                    used |= over
            if len(chosen) > 1:
                seen = yield from self._drive("half towards half", chosen)
                if seen.dropped:
                    yield from self._resolve(seen)

    def _resolve(self, seen: Company) -> Trials:
        """Tell apart the limits that paths of different hosts share, from a trial in which they lost."""
        every = sorted(seen.dropped | seen.kept)
        lost, left = sorted(seen.dropped), len(seen.dropped) + 1      # left: how many before, so that it ends
        while lost and len(lost) < left:
            left = len(lost)
            among = lost
            if not (yield from self._bound(lost)):
                if left < len(seen.dropped):
                    return      # others explained what these had lost
                among = every      # they share with some that kept their rate
            least = frozenset((yield from self._least([], among, False)))
            if len(least) < 2:
                return      # it has passed
            together = yield from self._drive("those that share", sorted(least))
            if together.strained:
                self._note(f"{', '.join(f'{one} -> {other}' for one, other in sorted(least))}: together they may share "
                           "a limit, or be more than a busy machine carries")
                return
            rate = self._limit(together.trial, least)
            if rate.value > (1 - DROP) * sum(self.alone[pair].rate for pair in least):
                return      # too little for a limit
            others = yield from self._sharing(least, rate.value, [pair for pair in every if pair not in least])
            paths = least | others | self._under(least, rate.value)
            self.shared.append(Shared(GROUP, tuple(sorted({source for source, _ in paths})), paths, rate))
            lost = [pair for pair in lost if pair not in paths]

    def _under(self, least: frozenset[Pair], rate: float) -> frozenset[Pair]:
        """Paths of the known limits of that rate that those in `least` are under: what they share was seen before.

        None if one of them is under two, as that does not say which.
        """
        over = [[limit for limit in self.shared if pair in limit.paths and equal(limit.rate.value, rate)]
                for pair in least]
        if any(len(limits) > 1 for limits in over):
            return frozenset()
        return frozenset(pair for limits in over for limit in limits for pair in limit.paths)

    def _least(self, given: list[Pair], pairs: list[Pair], grown: bool) -> Generator[Request, Trial, list[Pair]]:
        """A least part of `pairs` that loses when it runs beside `given`: without any one of it, nothing does.

        QuickXplain (Junker, AAAI 2004): m log(n / m) trials for m of n. `grown` says that `given` was just added to.
        """
        if grown and (yield from self._bound(given)):
            return []
        if len(pairs) == 1:
            return pairs
        first, second = pairs[:len(pairs) // 2], pairs[len(pairs) // 2:]
        of_second = yield from self._least(given + first, second, True)
        of_first = yield from self._least(given + of_second, first, bool(of_second))
        return of_first + of_second

    def _bound(self, pairs: Collection[Pair]) -> Generator[Request, Trial, bool]:
        if len(pairs) < 2:
            return False
        return bool((yield from self._drive("do they share?", pairs)).dropped)
