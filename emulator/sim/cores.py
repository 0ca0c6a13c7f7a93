"""The cores of one box, which its ranks' own work shares: what makes many ranks on few cores slower than the network.

Every rank has a thread that handles messages, combines and copies, one thing after the other, and another that
computes. A thread runs on one core at most; threads that want to run share the cores evenly, as an operating system's
fair scheduler has them share over more than a time slice. So the cores are a link of `n` core-seconds a second, and a
thread's work a flow over it and over a link of its own.
"""

from __future__ import annotations

from collections import deque

from simpy import Environment, Event

from emulator.sim.flow import Flow, Link
from emulator.sim.network import Network


class Thread:
    """Does work, one piece after the other, on the cores that it shares."""

    def __init__(self, network: Network, cores: Link) -> None:
        self._network = network
        self._flow = Flow([cores, Link("thread", 1.0)])
        self._pieces: deque[tuple[float, Event]] = deque()

    def work(self, seconds: float) -> Event:
        """Queue a piece of so many seconds of a core; the event fires when it is done."""
        done: Event = self._network.env.event()
        self._pieces.append((seconds, done))
        if len(self._pieces) == 1:
            self._begin()
        return done

    def _begin(self) -> None:
        self._network.move(self._flow, self._pieces[0][0], self._end)

    def _end(self) -> None:
        _, done = self._pieces.popleft()
        done.succeed()
        if self._pieces:
            self._network.start(self._begin)


class Cores:
    """`count` cores and the threads of `ranks` ranks. Raises ValueError if there is no core."""

    def __init__(self, env: Environment, count: int, ranks: int) -> None:
        if count < 1:
            raise ValueError(f"a box has at least 1 core, not {count}")
        network, cores = Network(env, lambda rate: 0.0), Link("cores", count)
        self.handling = [Thread(network, cores) for _ in range(ranks)]
        """By rank: messages, sums and copies."""
        self._computing = [Thread(network, cores) for _ in range(ranks)]
        self._share = min(1.0, count / ranks)

    def compute(self, rank: int, seconds: float) -> Event:
        """Compute what takes `seconds` while all ranks compute at once, as it is measured: their share of the cores."""
        return self._computing[rank].work(seconds * self._share)
