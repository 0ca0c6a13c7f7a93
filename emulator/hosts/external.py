"""Hosts that are machines of the user's, unshaped: the network between them is measured, and left as it is.

They have met (:mod:`emulator.probe.meet`) and do what this one, which is rank 0, says (:mod:`emulator.hosts.machine`).
A machine is the host of its own name: ``frogtorch probe`` writes a topology whose hosts are called as the machines are.
So ranks of the meeting may be dealt anew each time, as torchrun does.
"""

from __future__ import annotations

import io
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from emulator.hosts import machine
from emulator.links.fidelity import ATTEMPTS, PathFidelity, Progress, expected_goodput
from emulator.links.namespace import LinkError, Namespace, Program
from emulator.probe.channel import ChannelError, Message
from emulator.probe.coordinate import Coordinator, ProbeError, peers
from emulator.probe.meet import MeetError, Meeting
from emulator.probe.survey import Pair
from emulator.topology import Topology, TopologyError, round_trip

TASK = "measure"
"""What the machines meet for."""
GOODPUT_TOLERANCE = 0.05
RTT_TOLERANCE = 0.05
RTT_SLACK = 1e-3      # seconds
_PATIENCE = 30.0      # seconds for a machine to answer
_SLICE = 5.0      # seconds of waiting for a program in one question
_STARTING = 60.0      # seconds for the store to be there
_LOST = -9


class Machines:
    """The machines of a meeting by name, as rank 0 has them work."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._lost: dict[str, str] = {}
        self._started = 0
        self.by_name = {one.name: one for one in meeting.machines}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Send the others home, with what went wrong if something did."""
        self._meeting.end(error)

    def is_here(self, name: str) -> bool:
        """Whether that machine is this one."""
        return self.by_name[name].channel is None

    def ask(self, name: str, do: str, **arguments: Any) -> Message:
        """Have another machine do something; its answer. Raises LinkError if it is lost, or could not do it."""
        self._send(name, do, arguments)
        return self._answer(name, do)

    def start(self, name: str, module: str, arguments: list[str]) -> Program:
        """Start a module of this code on a machine, joined by pipes. Raises LinkError."""
        if self.is_here(name):
            return machine.launch(module, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._started += 1
        program = {"program": self._started}
        self._send(name, "start", {**program, "module": module, "arguments": arguments})
        try:
            sock = self._meeting.connection(self.by_name[name], program)      # it calls before it answers
        except MeetError as error:
            self._answer(name, "start")      # which may say why
            raise LinkError(str(error)) from None
        try:
            pid = self._answer(name, "start")["pid"]
        except BaseException:
            sock.close()
            raise
        return _Program(self, name, self._started, pid, sock)

    def _send(self, name: str, do: str, arguments: Message) -> None:
        channel = self.by_name[name].channel
        assert channel is not None
        if name not in self._lost:
            try:
                channel.send({"do": do, **arguments})
            except ChannelError as error:
                self._lost[name] = str(error)
        self._refuse_lost(name)

    def _answer(self, name: str, do: str) -> Message:
        channel = self.by_name[name].channel
        assert channel is not None
        try:
            answer = channel.receive(_PATIENCE)
        except ChannelError as error:
            self._lost[name] = str(error)
            self._refuse_lost(name)
        if "error" in answer:
            raise LinkError(f"{self.by_name[name]} could not {do}: {answer['error']}")
        return answer

    def _refuse_lost(self, name: str) -> None:
        if name in self._lost:
            raise LinkError(f"a machine is lost: {self._lost[name]}. What was measured is kept: start the same command "
                            "with --resume on all machines")


class _Program:
    """A program on another machine: its pipes are a connection, what else there is to know of it is asked for."""

    def __init__(self, machines: Machines, name: str, number: int, pid: int, sock: socket.socket) -> None:
        self._machines = machines
        self._name = name
        self._number = number
        self._code: int | None = None
        self.pid = pid
        self.stdin: IO[bytes] = io.BufferedWriter(_Sending(sock))
        self.stdout: IO[bytes] = os.fdopen(sock.dup().detach(), "rb", buffering=0)

    def poll(self) -> int | None:
        return self._ask(0.0)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - time.monotonic()))
            if (code := self._ask(left)) is not None:
                return code
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"program {self.pid} on {self._name}", timeout or 0.0)

    def kill(self) -> None:
        if self._code is None:
            with suppress(LinkError):
                self._machines.ask(self._name, "kill", program=self._number)

    def _ask(self, seconds: float) -> int | None:
        if self._code is None:
            try:
                self._code = self._machines.ask(self._name, "wait", program=self._number, seconds=seconds)["code"]
            except LinkError:      # a machine that has lost rank 0 ends its programs
                self._code = _LOST
        return self._code


class _Sending(io.RawIOBase):
    """The sending half of a connection; closed, the other end hears that nothing more comes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._sock.send(data)

    def close(self) -> None:
        if not self.closed:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._sock.close()
        super().close()


class Network:
    """The network that is there, between machines that are the hosts of `topology`; see :class:`~.runtime.Runtime`."""

    runtime = "external"
    device = ""
    """Each machine calls its own differently."""
    python = sys.executable
    """Each machine starts programs with the Python that serves there."""
    speedup = 1.0
    namespaces: Mapping[str, Namespace] = {}

    def __init__(self, machines: Machines, store: str, topology: Topology, run: str, engine: str = "auto",
                 speedup: float = 1.0) -> None:
        """`store` is the module of a program that holds a store for all ranks at the address that it is given.

        It prints the store's port, and ends when its standard input does.
        """
        refuse(topology, engine, speedup)
        self.topology = self.shaped = topology
        self.run = run
        self.addresses = {host.name: machines.by_name[host.name].address for host in topology.hosts}
        self._machines = machines
        self._store = store
        self._at: tuple[str, int] | None = None
        self._meetings = 0
        self._programs: list[Program] = []
        self._stamp: dict[str, object] = {}

    def up(self) -> None:
        """See that all machines are there, and start the store that their ranks meet at. Raises LinkError."""
        self.check()
        here = next(one for one in self._machines.by_name.values() if one.channel is None)
        try:
            store = self._keep(self._machines.start(here.name, self._store, [here.address]))
            assert store.stdout is not None
            said = select.select([store.stdout], [], [], _STARTING)[0] and store.stdout.readline()
            if not said:
                raise LinkError(f"the store at {here.address}, where ranks meet, has not started on {here.name}")
            self._at = here.address, json.loads(said)
        except BaseException:
            self.down()
            raise
        self._stamp = {"runtime": self.runtime, "machines": {
            name: {"address": one.address, **one.facts} for name, one in self._machines.by_name.items()}}

    def down(self) -> None:
        """End all programs. Twice is fine; the machines stay for the next network."""
        for program in self._programs:
            program.kill()
            program.wait()
            for pipe in (program.stdin, program.stdout):
                assert pipe is not None
                with suppress(OSError):      # what was left unsaid has no listener any more
                    pipe.close()
        self._programs, self._at, self._stamp = [], None, {}

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.down()

    @property
    def stamp(self) -> dict[str, object]:
        """The machines; empty before it is up."""
        return dict(self._stamp)

    def check(self) -> None:
        """Raise LinkError, naming the machine, if one does not answer."""
        for host in self.addresses:
            if not self._machines.is_here(host):
                self._machines.ask(host, "here")

    def change(self, topology: Topology) -> None:
        """A network of the user's is not ours to change: raises TopologyError."""
        raise TopologyError(f"{topology.file}: the network between machines is left as it is")

    def probe(self, progress: Progress | None = None) -> list[PathFidelity]:
        """Measure every directed path as ``frogtorch probe`` does, one after another, with one connection.

        A path that is off is measured again, as long as :data:`~emulator.links.fidelity.ATTEMPTS` allows. Raises
        LinkError.
        """
        tell: Progress = progress or (lambda done, total, text: None)
        found: dict[Pair, Found] = {}
        try:
            with peers(self) as channels:
                coordinator = Coordinator(channels, self.addresses)
                tell(0, len(self.topology.paths), "idle round trips")
                trips = coordinator.round_trips()
                for done, path in enumerate(self.topology.paths):
                    pair = path.source, path.target
                    for attempt in range(1, ATTEMPTS + 1):
                        if attempt > 1:
                            trips = coordinator.round_trips()
                        tell(done, len(self.topology.paths), f"goodput of {path.source} -> {path.target}")
                        found[pair] = Found(*pair, trips[pair], round_trip(self.topology, path),
                                            coordinator.goodput(pair), expected_goodput(self.topology, path),
                                            attempts=attempt)
                        if found[pair].valid:
                            break
        except (ProbeError, ChannelError) as error:
            self.check()      # says more
            raise LinkError(str(error)) from error
        return list(found.values())

    def spawn(self, host: str, command: Sequence[str]) -> Program:
        """Start a program, ``[network.python, "-m", MODULE, ...]``, on a host. Raises LinkError."""
        _, _, module, *arguments = command
        return self._keep(self._machines.start(host, module, arguments))

    def entrance(self, host: str) -> None:
        """There is none: a machine takes programs alone."""

    def own_clock(self, host: str) -> bool:
        """Whether the host's monotonic clock is not that of this machine."""
        return not self._machines.is_here(host)

    @contextmanager
    def rendezvous(self) -> Iterator[str]:
        """A part of the store, as ``tcp://HOST:PORT/PART``, that nobody has used yet."""
        if self._at is None:
            raise LinkError(f"run {self.run} is not up")
        self._meetings += 1
        yield f"tcp://{self._at[0]}:{self._at[1]}/{self._meetings}"

    def _keep(self, program: Program) -> Program:
        self._programs.append(program)
        return program


@dataclass(frozen=True)
class Found(PathFidelity):
    """One path of a network that nobody shaped: it is as it was probed within what such a network varies by."""

    @property
    def valid(self) -> bool:
        """Within 5 % in goodput, and within 1 ms or 5 % in round trip, whichever is more."""
        return (abs(self.goodput_error) <= GOODPUT_TOLERANCE
                and abs(self.rtt_error) <= max(RTT_SLACK, RTT_TOLERANCE * self.expected_rtt))


def refuse(topology: Topology, engine: str, speedup: float) -> None:
    """Raise TopologyError or LinkError for what a network that is left as it is cannot do."""
    if engine != "auto":
        raise LinkError(f"--engine {engine}: the network between machines is left as it is, so nothing holds packets")
    if topology.timeline:
        line = next((number for number, line in enumerate(topology.text.splitlines(), 1)
                     if line.startswith("timeline")), 1)
        raise TopologyError(f"{topology.file}:{line}: the network between machines is left as it is, so it follows no "
                            "timeline; leave it out, and predict again")
    if speedup != 1:
        raise LinkError(f"speed-up {speedup:g}: machines run at life size; write speedup: 1 in the scenario, and no "
                        "scaling, and predict again")


def match(topology: Topology, needed: Topology, names: Sequence[str]) -> None:
    """Refuse a machine that is no host of `topology`, and a host that is `needed` and no machine: raises LinkError."""
    known = [host.name for host in topology.hosts]
    if strangers := [name for name in names if name not in known]:
        raise LinkError(f"no host of {topology.file} is called {', '.join(strangers)}: a machine is the host of its "
                        f"own name; start it with --name HOST, one of {', '.join(known)}")
    if absent := [host for host in needed.hosts if host.name not in names]:
        raise LinkError(f"{topology.file}:{absent[0].line}: no machine is called "
                        f"{', '.join(host.name for host in absent)}, which the scenario's worlds need; the machines "
                        f"are {', '.join(names)}")
