"""Measures a scenario on real packets: brings the network up, runs its points interleaved, writes what it saw.

Points of one speed-up make a campaign, on one state of the network, between two fidelity probes; where the scenario
has timelines drawn, each makes campaigns of its own, and a network that is brought up for it. Within a campaign and
world, repetitions are blocks: each holds every point once, in an order of its own.

A rank that fails or dies ends its point, not the run: its error is recorded, and the next point has new ranks. A
campaign whose links were off is void whole and measured once more. Whatever ends the run, it can be resumed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from emulator.hosts import netns
from emulator.hosts.runtime import MakesRuntime, Runtime
from emulator.units import format_size
from scenarios import fit, resume
from scenarios.arms import ARMS, Arm, Keeps
from scenarios.campaigns import Campaign, campaigns
from scenarios.compare import recorded, refuse_others
from scenarios.conductor import Conductor
from scenarios.predict import life_size
from scenarios.progress import Estimate, Stages
from scenarios.ranks import Place, RankError, Ranks
from scenarios.recorder import Recorder
from scenarios.records import Applied, Failure, Measurement, load, sha256
from scenarios.scenario import Scenario, Training
from scenarios.script import read


class Runner:
    """One measured run of a scenario, into a run directory that holds its predictions already."""

    def __init__(self, scenario: Scenario, directory: Path, run: str, engine: str, stages: Stages,
                 make: MakesRuntime = netns.Network, reruns: int = resume.RERUNS) -> None:
        """`reruns`: how often a campaign is measured again whose links were off."""
        self._make = make
        self._reruns = reruns
        self._scenario = scenario
        self._directory = directory
        self._run = run
        self._engine = engine
        self._stages = stages
        self._predictions, measurements = recorded(directory, dict(scenario.networks))
        refuse_others(measurements, sha256(directory / "predictions.jsonl"))
        self._records = Recorder(directory)
        resume.mend(directory)
        self._done = resume.finished(directory)
        self._ended: set[resume.Key] = set()
        """Points that a rank's error has ended, in this life of the run: a resumed run tries them again."""
        self._now: dict[str, Any] | None = None
        """The point that is being measured: of a warm-up without its bytes."""
        self._campaigns = campaigns(scenario)

    def measure(self) -> list[Failure]:
        """Run what is not measured yet, of all campaigns; the points that failed.

        What was measured before an error or Ctrl-C is kept; the network is removed.
        """
        self._stages.left(Estimate(self._clock_seconds()))
        failures: list[Failure] = []
        idle = True
        for campaign in self._campaigns:
            while True:
                if self._remaining(campaign) or not resume.probed(self._directory, campaign.index):
                    failures += self._campaign(campaign)
                    idle = False
                off = resume.off(self._directory, campaign.index)
                if not off or not self._may_be_void(campaign):
                    break
                kept = resume.void(self._directory, campaign.index)
                self._done = resume.finished(self._directory)
                self._ended = {key for key in self._ended if key[0] != campaign.index}
                self._stages.say(f"campaign {campaign.index} is void, and is measured again: links were off "
                                 f"({', '.join(off)}). What it measured is kept in {kept}")
        if idle:
            self._stages.say(f"all was measured already; `frogtorch report {self._directory}` shows it")
        return failures

    def _campaign(self, campaign: Campaign) -> list[Failure]:
        failures: list[Failure] = []
        self._stages.stage(f"{self._named(campaign)}: network up", 1)
        used = self._scenario.used(campaign.topology)
        with self._make(used, self._run, self._engine, campaign.speedup) as network:
            self._records.stamp("networks", [network.stamp | {"campaign": campaign.index}])
            self._probe(network, campaign, "before")
            if resume.off(self._directory, campaign.index) and self._may_be_void(campaign):
                return failures
            for size, world in self._scenario.worlds.items():
                if size in campaign.sizes:
                    while self._remaining(campaign, size) or self._is_unsure(campaign, world):
                        failure = self._world(network, campaign, world)
                        if failure is None:
                            break
                        failures.append(failure)
            self._probe(network, campaign, "after")
        return failures

    def _may_be_void(self, campaign: Campaign) -> bool:
        """Whether it would be measured again, if links are off."""
        return sum(index == campaign.index for index, _ in resume.voids(self._directory)) < self._reruns

    def _named(self, campaign: Campaign) -> str:
        return f"campaign {campaign.index + 1} of {len(self._campaigns)}, k = {campaign.speedup:g}"

    def _remaining(self, campaign: Campaign, size: int | None = None) -> list[resume.Key]:
        """What of a campaign, or of one of its worlds, is neither measured nor ended by an error."""
        scenario = self._scenario
        keys = [resume.repetition(campaign.index, world, arm, nbytes, block)
                for world, sizes in campaign.sizes.items() for nbytes in sizes for arm in scenario.arms
                for block in range(scenario.repetitions)]
        if scenario.training:
            workload, views = ("script", (None,)) if scenario.training.script else (
                "training", scenario.training.bucket_views)
            keys += [resume.training(campaign.index, workload, world, arm, view)
                     for world in campaign.trains for view in views for arm in scenario.arms]
        return [key for key in keys if size in (None, key[2]) and not self._is_over(key)]

    def _is_over(self, key: resume.Key) -> bool:
        return key in self._done or self._point(key) in self._ended

    @staticmethod
    def _point(key: resume.Key) -> resume.Key:
        """Without the repetition: what a rank's error ends."""
        return key[:5]

    def _clock_seconds(self) -> dict[resume.Key, float]:
        """How long everything that remains should take, by the clock, as far as it is predicted."""
        seconds = {p.key: p.seconds / p.speedup for p in self._predictions if p.basis == "blind"}
        steps = self._scenario.training.steps if self._scenario.training else 0
        found: dict[resume.Key, float] = {}
        for campaign in self._campaigns:
            for key in self._remaining(campaign):
                _, workload, world, arm, what, *_ = key
                of = [value for p, value in seconds.items() if (*p[1:3], p[5]) == (world, workload, campaign.timeline)
                      and (p[3] == what if workload == "all_reduce" else True)]
                own = [value for p, value in seconds.items() if p[0] == arm and value in of]
                if known := own or of:
                    found[key] = statistics.mean(known) * (1 if workload == "all_reduce" else steps)
        return found

    def _world(self, network: Runtime, campaign: Campaign, world: tuple[str, ...]) -> Failure | None:
        """Run what remains of a world, up to the first point that a rank's error ends: recorded, and returned."""
        self._now = None
        try:
            script = self._scenario.training and self._scenario.training.script
            if any(key[1] != "script" for key in self._remaining(campaign, len(world))) or self._is_unsure(
                    campaign, world):
                with network.rendezvous() as store, Ranks(self._places(network, world, store)) as ranks:
                    self._records.refuse_mixed_code(ranks.modules, world)
                    if campaign.sizes[len(world)]:
                        self._all_reduces(ranks, campaign, world)
                    if len(world) in campaign.trains and not script:
                        self._trainings(network, ranks, campaign, world)
            if len(world) in campaign.trains and script:
                self._scripts(network, campaign, world)
        except RankError as error:
            network.check()  # a dead link explains it better than a rank that heard nothing
            if self._now is None:
                raise  # no point had begun: the next one would fare no better
            return self._fail(campaign, error, **self._now)
        return None

    def _fail(self, campaign: Campaign, error: RankError, **point: Any) -> Failure:
        failure = self._records.failure(campaign, error, **point)
        what = failure.nbytes if failure.workload == "all_reduce" else failure.bucket_view
        self._ended |= {self._point(key) for key in self._remaining(campaign, failure.world_size)
                        if (key[1], key[3]) == (failure.workload, failure.arm) and what in (None, key[4])}
        self._stages.say(f"failed, and left out: {failure}\n{error}")
        return failure

    def _places(self, network: Runtime, world: Sequence[str], store: str, alone: bool = False) -> list[Place]:
        """Places of ranks that hold a group an arm, or that are `alone` for a script to make its own."""
        stragglers = self._scenario.training.stragglers if self._scenario.training else {}

        def place(rank: int, host: str) -> Place:
            enter = network.entrance(host)
            spawn = None if enter else partial(network.spawn, host, [network.python, "-m", "scenarios.rank"])
            return Place(rank=rank, world_size=len(world), host=host, store=store,
                         arms=() if alone else self._scenario.arms, timeout=self._scenario.timeout,
                         address=network.addresses[host], interface=network.device, enter=enter, spawn=spawn,
                         own_clock=spawn is not None and network.own_clock(host),
                         slowness=stragglers.get(host, 1.0))

        return [place(rank, host) for rank, host in enumerate(world)]

    def _all_reduces(self, ranks: Ranks, campaign: Campaign, world: tuple[str, ...]) -> None:
        sizes = campaign.sizes[len(world)]
        points = [(size, arm) for size in sizes for arm in self._scenario.arms]
        blocks = self._scenario.repetitions
        if not any(key[1] == "all_reduce" for key in self._remaining(campaign, len(world))) and not self._is_unsure(
                campaign, world):
            return
        name = f"{self._named(campaign)}, W = {len(world)}"
        self._stages.stage(f"{name}: {blocks} blocks of {len(points)} all-reduces", blocks * len(points))
        # Open the congestion windows: predictions are for warm connections, as in training.
        warm = min(max(sizes), 4 << 20)
        for arm in (arm for arm in self._scenario.arms if not all(
                (campaign.index, "all_reduce", len(world), arm, size) in self._ended for size in sizes)):
            self._now = {"arm": arm, "hosts": world, "workload": "all_reduce"}
            ranks.tell("all_reduce", arm=arm, nbytes=warm, repetition=0)
        for block in self._blocks(campaign, world, name):
            order = random.Random(f"{self._scenario.name} {len(world)} {block}").sample(points, len(points))
            for size, arm in order:
                key = resume.repetition(campaign.index, len(world), arm, size, block)
                if not self._is_over(key):
                    self._now = {"arm": arm, "hosts": world, "workload": "all_reduce", "nbytes": size,
                                 "repetition": block}
                    results = ranks.tell("all_reduce", arm=arm, nbytes=size, repetition=block)
                    self._records.telemetry(results, workload="all_reduce", repetition=block, campaign=campaign.index,
                                            speedup=campaign.speedup, arm=arm)
                    self._records.measurement([(r["start"], r["end"]) for r in results],
                                              lambda clock: clock * campaign.speedup, campaign, **self._now)
                    self._finish(key)
                self._stages.advance(f"{name}: block {block + 1} of {blocks}, {arm}, {format_size(size)}")
        self._now = None

    def _blocks(self, campaign: Campaign, world: tuple[str, ...], name: str) -> Iterator[int]:
        """The numbers of the scenario's blocks, and then of more until their medians are sure, or the time is over."""
        began = time.monotonic()
        yield from range(self._scenario.repetitions)
        if until := self._scenario.until:
            block = self._scenario.repetitions
            while (reach := self._reach(campaign, world)) > until.within and time.monotonic() - began < until.budget:
                self._stages.stage(f"{name}: block {block + 1}, as medians are sure within {reach:.1%} so far",
                                   len(campaign.sizes[len(world)]) * len(self._scenario.arms))
                yield block
                block += 1

    def _is_unsure(self, campaign: Campaign, world: tuple[str, ...]) -> bool:
        """Whether the scenario asks for more blocks than its least number."""
        until = self._scenario.until
        if until is None or not campaign.sizes[len(world)] or not (self._directory / "measurements.jsonl").exists():
            return False
        return self._reach(campaign, world) > until.within

    def _reach(self, campaign: Campaign, world: tuple[str, ...]) -> float:
        """How far the 95 % intervals of the medians of what this world measures reach, as a share, at most."""
        seconds: dict[tuple[str, int], list[float]] = {}
        for m in load(self._directory / "measurements.jsonl", Measurement):
            point = m.campaign, m.workload, m.world_size, m.arm, m.nbytes
            if point[:3] == (campaign.index, "all_reduce", len(world)) and point not in self._ended:
                seconds.setdefault((m.arm, m.nbytes), []).append(m.seconds)
        return max((fit.median(of).reach for of in seconds.values()), default=0.0)

    def _finish(self, key: resume.Key) -> None:
        self._done.add(key)
        self._stages.finished(key)

    def _trainings(self, network: Runtime, ranks: Ranks, campaign: Campaign, world: tuple[str, ...]) -> None:
        training = self._scenario.training
        assert training is not None
        for view in training.bucket_views:
            for arm in self._scenario.arms:
                self._training(network, ranks, campaign, world, training, ARMS[arm], view)

    def _training(self, network: Runtime, ranks: Ranks, campaign: Campaign, world: tuple[str, ...],
                  training: Training, arm: Arm, view: bool) -> None:
        point: dict[str, Any] = {"arm": arm.name, "hosts": world, "workload": "training", "bucket_view": view,
                                 "nbytes": training.workload.gradient_bytes}
        key = resume.training(campaign.index, "training", len(world), arm.name, view)
        if self._is_over(key):
            return
        self._now = point
        hook = {"fresh_only": {"bound": training.staleness_bound}, "every_k": {"k": training.k}}.get(arm.name, {})
        self._stages.stage(f"{self._named(campaign)}, W = {len(world)}, training, {arm.name}, bucket view "
                           f"{'on' if view else 'off'}", training.steps)
        compute = self._records.compute(len(world))
        slow = {"compute": compute} if training.stragglers else {}
        results, began = self._conducted(network, ranks, campaign, point, "train", steps=training.steps,
                                         bucket_view=view, workload=training.workload.name, **hook, **slow)
        self._records.steps(results, campaign, training, began,
                            lambda clock: life_size(clock, campaign.speedup, compute),
                            in_step=arm.keeps is not Keeps.NOTHING, **point)
        self._records.outcomes(results, campaign, steps=training.steps, **point)
        self._finish(key)
        self._now = None

    def _scripts(self, network: Runtime, campaign: Campaign, world: tuple[str, ...]) -> None:
        """Run the user's script, once an arm, in processes of its own."""
        script = read(self._directory)
        assert script is not None
        assert self._scenario.training is not None
        script.check()
        for arm in self._scenario.arms:
            key = resume.training(campaign.index, "script", len(world), arm, None)
            if self._is_over(key):
                continue
            self._stages.stage(f"{self._named(campaign)}, W = {len(world)}, {script.path}, {arm}", 1)
            point: dict[str, Any] = {"arm": arm, "hosts": world, "workload": "script", "bucket_view": None}
            self._now = dict(point)
            with network.rendezvous() as store, Ranks(self._places(network, world, store, alone=True)) as ranks:
                self._records.refuse_mixed_code(ranks.modules, world)
                results, began = self._conducted(network, ranks, campaign, point, "script", path=script.path,
                                                 sha256=script.sha256, arguments=list(script.arguments),
                                                 master=network.addresses[world[0]])
            self._records.printed(results, arm, len(world), campaign)
            steps = min(len(result["steps"]) for result in results)
            if steps <= self._scenario.training.warmup:
                raise ValueError(f"{script.path} made {steps} steps (those of its first optimiser), of which the "
                                 f"scenario takes {self._scenario.training.warmup} for warm-up: let it make more")
            point["nbytes"] = results[0]["nbytes"]
            self._records.steps(results, campaign, self._scenario.training, began, lambda clock: clock, steps=steps,
                                **point)
            self._records.outcomes(results, campaign, steps=steps, **point)
            self._finish(key)
        self._now = None

    def _conducted(self, network: Runtime, ranks: Ranks, campaign: Campaign, point: dict[str, Any], command: str,
                   **arguments: Any) -> tuple[list[Any], Callable[[float], float] | None]:
        """Have the ranks train while the timeline of the campaign's topology, if it has one, is played on the network.

        Returns their results, and what makes a second of the timeline of a time by the clock: None without a timeline.
        """
        with Conductor(network, self._scenario.used(campaign.topology), partial(
                Applied, campaign=campaign.index, speedup=campaign.speedup, arm=point["arm"],
                workload=point["workload"], bucket_view=point["bucket_view"],
                world_size=len(point["hosts"]))) as conductor:
            def advance(_: int) -> None:
                conductor.check()
                self._stages.advance()

            results = ranks.tell(command, on_step=advance, on_start=conductor.begin, arm=point["arm"], **arguments)
        if not campaign.topology.timeline:
            return results, None
        self._records.applied(conductor.applied)
        return results, conductor.second

    def _probe(self, network: Runtime, campaign: Campaign, when: Literal["before", "after"]) -> None:
        self._stages.stage(f"{self._named(campaign)}: probing every path {when} it", 1)
        self._records.fidelity(campaign, when, network.probe(self._stages.at))
