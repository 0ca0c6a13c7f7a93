"""Plays a topology's timeline on the links of a live network, while ranks train on it."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from emulator.ethernet import PAYLOAD
from emulator.hosts.runtime import Runtime
from emulator.links.namespace import LinkError, Program
from emulator.timeline import Traffic, differences
from emulator.topology import Topology
from scenarios.records import Applied

_PATIENCE = 10.0
"""Seconds for a program of the traffic to start, or to end."""


class Conductor:
    """The timeline of `topology` on `network`, as a context manager: ready when entered, playing from :meth:`begin` on.

    `topology` is the one that the network was brought up with, at life size. `record` makes an Applied of what was
    done and when. Leaving ends the traffic and puts the network back to second 0, so that the next arm sees the same;
    then `applied` holds what was done, by second. With an empty timeline nothing happens at all.
    """

    def __init__(self, network: Runtime, topology: Topology, record: Callable[..., Applied]) -> None:
        self.applied: tuple[Applied, ...] = ()
        self._network = network
        self._topology = topology
        self._record = record
        self._start = 0.0
        self._flows: list[_Flow] = []
        self._changes: list[Applied] = []
        self._failure: Exception | None = None
        self._end = threading.Event()
        self._player = threading.Thread(target=self._play, daemon=True, name="conductor")

    def __enter__(self) -> Self:
        try:
            for traffic in self._topology.timeline.traffic:
                self._flows.append(_Flow(self._network, traffic))
        except BaseException:
            self._kill()
            raise
        return self

    def begin(self, start: float) -> None:
        """Second 0 is `start`, on the monotonic clock."""
        self._start = start
        for flow in self._flows:
            flow.begin(start)
        self._player.start()

    def second(self, clock: float) -> float:
        """Second of the timeline at which the monotonic clock was `clock`."""
        return (clock - self._start) * self._network.speedup

    def check(self) -> None:
        """Raise what went wrong with a change, if anything did: LinkError or TopologyError."""
        if self._failure is not None:
            raise self._failure

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end.set()
        if self._player.ident is not None:
            self._player.join()
        try:
            if kind is None:  # otherwise the network goes down
                seen = [flow.end() for flow in self._flows]
                if self._changes:
                    self._network.change(self._topology.state(0))
                self.check()
                flowed = [self._flowed(flow, **times) for flow, times in zip(self._flows, seen, strict=True)
                          if times["began"] is not None]
                self.applied = tuple(sorted([*self._changes, *flowed], key=lambda applied: applied.second))
        finally:
            self._kill()

    def _play(self) -> None:
        speedup = self._network.speedup
        before = self._topology.state(0)
        try:
            for second in self._topology.timeline.moments:
                if self._end.wait(self._start + second / speedup - time.monotonic()):
                    return
                state = self._topology.state(second)
                self._network.change(state)
                self._changes.append(self._record(what=tuple(differences(before, state)), second=second,
                                                  applied_second=self.second(time.monotonic())))
                before = state
        except Exception as failure:
            self._failure = failure

    def _flowed(self, flow: _Flow, began: float, ended: float, received: int) -> Applied:
        return self._record(what=(str(flow.traffic),), second=flow.traffic.start, applied_second=self.second(began),
                            ended_second=self.second(ended), received_bytes=received)

    def _kill(self) -> None:
        for flow in self._flows:
            flow.kill()


class _Flow:
    """One traffic's two programs (:mod:`scenarios.traffic`), waiting for their times."""

    def __init__(self, network: Runtime, traffic: Traffic) -> None:
        self.traffic = traffic
        self._speedup = network.speedup
        self._programs: list[Program] = []
        program = [network.python, "-m", "scenarios.traffic"]
        address = network.addresses[traffic.target]
        pace = 0 if traffic.rate is None else round(traffic.rate * network.speedup * PAYLOAD)
        try:
            connections = str(traffic.connections)
            receiver = network.spawn(traffic.target, [*program, "receive", address, connections])
            self._programs.append(receiver)
            port = str(self._said(receiver))
            self._programs.append(network.spawn(traffic.source, [*program, "send", address, port, str(pace),
                                                                 connections]))
        except BaseException:
            self.kill()
            raise

    def begin(self, start: float) -> None:
        """Say when: second 0 is `start`."""
        stdin = self._programs[1].stdin
        assert stdin is not None
        times = (start + second / self._speedup for second in (self.traffic.start, self.traffic.end))
        stdin.write(("{} {}\n".format(*times)).encode())
        stdin.flush()

    def end(self) -> dict[str, Any]:
        """End it if it has not ended; `began` and `ended`, by the clock (None: it did not), and bytes `received`."""
        receiver, sender = self._programs
        seen: dict[str, Any] = {}
        for program in (sender, receiver):
            assert program.stdin is not None
            program.stdin.close()
            seen |= self._said(program)
        return seen

    def kill(self) -> None:
        """End both programs, whatever they do."""
        for program in self._programs:
            program.kill()
            program.wait(_PATIENCE)

    def _said(self, program: Program) -> Any:
        """What a program says next; raises LinkError if it says nothing."""
        assert program.stdout is not None
        ready, _, _ = select.select([program.stdout], [], [], _PATIENCE)
        line = program.stdout.readline() if ready else b""
        if not line:
            raise LinkError(f"{self.traffic}: {'a program of it died' if ready else f'no word for {_PATIENCE:.0f} s'}")
        return json.loads(line)
