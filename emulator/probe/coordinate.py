"""Has the peers carry out a plan, and keeps what they measured."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from emulator.hosts.runtime import Runtime
from emulator.links.namespace import Program
from emulator.links.ping import undisturbed
from emulator.probe.channel import Channel, Message
from emulator.probe.classify import Known
from emulator.probe.peer import new_token
from emulator.probe.plan import expected_trials, plan
from emulator.probe.survey import BATCHES, ECHOES, Estimate, Flow, Host, Load, Pair, Request, Survey, Trial

Progress = Callable[[int, int, str], None]
"""Steps done, steps in all as far as known, and what is being done."""

WARM, WARM_TRIPS = 0.15, 15
"""Seconds, and round trips, before a flow is counted: slow start doubles each round trip, from ten segments."""
LEAST, TRIPS = 0.3, 10
"""Seconds, and round trips, in which it is counted."""
SPREAD = 0.05
"""Half of the interval of all flows together, over their mean, above which a trial is done again."""
ATTEMPTS = 1, 1, 3
"""How long each attempt at a trial is, in units of the first: a disturbance passes, what varies needs time."""
LOOPBACK_SECONDS = 0.2
_PATIENCE = 30.0      # seconds for an answer, beside what the work takes


class ProbeError(RuntimeError):
    """A host could not do its part of a probe; the message says which, and why."""


class Coordinator:
    """The peers, in the order of their hosts: `channels` and `addresses` by name."""

    def __init__(self, channels: Mapping[str, Channel], addresses: Mapping[str, str],
                 progress: Progress | None = None) -> None:
        self._channels = channels
        self._addresses = addresses
        self._names = list(channels)
        self._tell: Progress = progress or (lambda done, total, text: None)
        self._ports: dict[str, int] = {}
        self._echoes: dict[Pair, tuple[float, ...]] = {}
        self._hosts: tuple[Host, ...] = ()
        self._trials: list[Trial] = []

    def probe(self, speedup: float = 1.0) -> tuple[Survey, Known]:
        """Measure everything the plan asks for; `speedup` is noted. Raises ProbeError or ChannelError."""
        with undisturbed():
            return self._probe(speedup)

    def _probe(self, speedup: float) -> tuple[Survey, Known]:
        total = expected_trials(len(self._names)) + 2
        self._tell(0, total, "hosts")
        self._hosts = self._open()
        self._tell(1, total, "round trips")
        self._echoes = self._round_trips()
        steps = plan(self._hosts)
        request = next(steps)
        while True:
            text = request.kind + (f", {request.loads[0].source} -> {request.loads[0].target}"
                                   if len(request.loads) == 1 else "")
            done = len(self._trials) + 2
            self._tell(done, max(done, total), text)
            trial = self._measure(request)
            self._trials.append(trial)
            try:
                request = steps.send(trial)
            except StopIteration as end:
                return Survey(self._hosts, self._echoes, tuple(self._trials), speedup), end.value

    def round_trips(self) -> dict[Pair, float]:
        """Seconds of the idle round trip between each two hosts, by both orders, as it is now.

        Raises ProbeError or ChannelError.
        """
        with undisturbed():
            self._hosts = self._hosts or self._open()
            self._echoes = self._round_trips()
        medians = {pair: Estimate.of_echoes(seconds).value for pair, seconds in self._echoes.items()}
        return medians | {(other, one): seconds for (one, other), seconds in medians.items()}

    def goodput(self, pair: Pair) -> float:
        """Bytes of payload per second of one connection that has the network to itself; round trips come first.

        Raises ProbeError or ChannelError.
        """
        with undisturbed():
            return self._measure(Request("alone", (Load(*pair),))).flow(pair).rate

    def _ask(self, questions: Mapping[str, Message], patience: float = 0.0) -> dict[str, Message]:
        """Have each of the named hosts do something, side by side; their answers."""
        for name, question in questions.items():
            self._channels[name].send(question)
        answers = {}
        for name, question in questions.items():
            answer = answers[name] = self._channels[name].receive(_PATIENCE + patience)
            if "error" in answer:
                raise ProbeError(f"{name} could not {question['do']}: {answer['error']}")
        return answers

    def _open(self) -> tuple[Host, ...]:
        secret = new_token()
        opened = self._ask({name: {"do": "open", "address": self._addresses[name], "secret": secret}
                            for name in self._names})
        self._ports = {name: answer["port"] for name, answer in opened.items()}
        # One host of each machine says what the machine can carry; others on it would only disturb.
        speaker = {answer["machine"]: name for name, answer in opened.items()}
        loopback = self._ask({name: {"do": "loopback", "seconds": LOOPBACK_SECONDS} for name in speaker.values()})
        return tuple(Host(name, self._addresses[name], answer["machine"],
                          loopback[speaker[answer["machine"]]]["goodput"], answer["kernel"], answer["congestion"])
                     for name, answer in opened.items())

    def _round_trips(self) -> dict[Pair, tuple[float, ...]]:
        """Echoes between each two hosts; one host asks at a time, and the others have nothing else to do."""
        echoes = {}
        for place, name in enumerate(self._names[:-1]):
            others = self._names[place + 1:]
            question = {"do": "echoes", "count": ECHOES,
                        "targets": [[self._addresses[other], self._ports[other]] for other in others]}
            answer = self._ask({name: question}, patience=3.0 * ECHOES)[name]
            for other, seconds in zip(others, answer["seconds"], strict=True):
                if not seconds:
                    raise ProbeError(f"no echo between {name} ({self._addresses[name]}) and {other} "
                                     f"({self._addresses[other]}): the port that each chooses (this time UDP "
                                     f"{self._ports[other]}) must be open, and --address an address that the others "
                                     "reach it by")
                echoes[min(name, other), max(name, other)] = tuple(seconds)
        return echoes

    def _measure(self, request: Request) -> Trial:
        """Carry out one trial, longer again if its batches differ too much; the steadiest one counts."""
        longest = max(max(self._echoes[min(load.pair), max(load.pair)]) for load in request.loads)
        # Several flows take longer to find their shares.
        warm = max(WARM, WARM_TRIPS * longest) * (1 if len(request.loads) == 1 else 2)
        seconds = max(LEAST, TRIPS * longest)
        if request.rough:
            return self._run(request, warm / 2, seconds / 2)
        def spread(trial: Trial) -> float:
            total = trial.total()
            return (total.high - total.value) / total.value if total.value else math.inf

        trials = []
        for times in ATTEMPTS:
            trials.append(self._run(request, warm * times, seconds * times))
            if spread(trials[-1]) <= SPREAD:
                break
        return min(trials, key=spread)

    def _run(self, request: Request, warm: float, seconds: float) -> Trial:
        tokens = [[new_token() for _ in range(load.connections)] for load in request.loads]
        expected: dict[str, list[str]] = {}
        flows: dict[str, list[Message]] = {}
        for number, (load, shown) in enumerate(zip(request.loads, tokens, strict=True)):
            expected.setdefault(load.target, []).extend(shown)
            flows.setdefault(load.source, []).append(
                {"flow": number, "address": self._addresses[load.target], "port": self._ports[load.target],
                 "tokens": shown})
        self._ask({name: {"do": "expect", "tokens": shown} for name, shown in expected.items()})
        self._ask({name: {"do": "connect", "flows": wanted} for name, wanted in flows.items()})
        begun = datetime.now(UTC).isoformat(timespec="milliseconds")
        # All have begun before one counts, and none stops before all have counted.
        self._ask({name: {"do": "go"} for name in flows})
        time.sleep(warm)
        answers = self._ask({name: {"do": "count", "seconds": seconds, "batches": BATCHES} for name in flows},
                            patience=2 * seconds)
        self._ask({name: {"do": "stop"} for name in flows})
        found: dict[int, list[Message]] = {}
        for answer in answers.values():
            for connection in answer["connections"]:
                found.setdefault(connection["flow"], []).append(connection)
        return Trial(request.kind, tuple(_flow(load.source, load.target, found[number])
                                         for number, load in enumerate(request.loads)), begun, warm, seconds,
                     max(float(answer["busy"]) for answer in answers.values()))


def _flow(source: str, target: str, connections: Sequence[Message]) -> Flow:
    def mean(field: str) -> float:
        return sum(float(one[field]) for one in connections) / len(connections)

    batches = zip(*(one["goodput"] for one in connections), strict=True)
    return Flow(source, target, len(connections), tuple(sum(map(float, batch)) for batch in batches),
                mean("window_limited"), mean("resent"), mean("idle"), mean("rtt"), str(connections[0]["congestion"]))


@contextmanager
def peers(network: Runtime) -> Iterator[dict[str, Channel]]:
    """A peer on every host of a network that is up; they end with the block."""
    programs: dict[str, Program] = {}
    try:
        for host in network.topology.hosts:
            programs[host.name] = network.spawn(host.name, [network.python, "-m", "emulator.probe.peer"])
        yield {name: over_pipes(program, name) for name, program in programs.items()}
    finally:
        for program in programs.values():
            if program.stdin is not None:
                program.stdin.close()
            try:
                program.wait(5)
            except subprocess.TimeoutExpired:
                program.kill()
            if program.stdout is not None:
                program.stdout.close()


def over_pipes(program: Program, name: str) -> Channel:
    """The coordinator's channel to a peer that was started as `program`."""
    stdin, stdout = program.stdin, program.stdout
    assert stdin is not None
    assert stdout is not None

    def write(data: bytes) -> None:
        stdin.write(data)
        stdin.flush()

    def read(most: int) -> bytes:
        return os.read(stdout.fileno(), most)

    return Channel(read, write, stdout.fileno(), b"", b"coordinator", f"the peer on {name}")


def probe(network: Runtime, progress: Progress | None = None) -> tuple[Survey, Known]:
    """Probe a network that is up and idle. Of its topology nothing is used but the names of the hosts."""
    with peers(network) as channels:
        return Coordinator(channels, network.addresses, progress).probe(network.speedup)
