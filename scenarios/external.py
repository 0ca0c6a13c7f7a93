"""A run on machines of the user's: rank 0's drives it and writes the run directory, the others serve ranks.

Which machine is which host of the topology goes by name: that of ``--name``, or the machine's host name, as in a
topology that ``frogtorch probe`` wrote there. Ranks of the meeting decide nothing but who leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from emulator.hosts import external, machine
from emulator.hosts.runtime import MakesRuntime
from emulator.probe import meet
from scenarios.campaigns import campaigns
from scenarios.progress import Stages
from scenarios.scenario import Scenario

__all__ = ["follow", "lead", "network", "preflight"]

STORE = "scenarios.store"


def follow(place: meet.Place) -> None:
    """Serve ranks until rank 0 ends the run. Raises MeetError or ChannelError."""
    with meet.follow(place, external.TASK) as channel:
        machine.serve(place, channel)


@contextmanager
def lead(place: meet.Place) -> Iterator[external.Machines]:
    """Wait for the other machines, and have them; they hear of an error that ends the block. Raises MeetError."""
    with ExitStack() as stack:
        with Stages() as stages:
            stages.stage("waiting for the other machines", place.world)
            meeting = stack.enter_context(meet.lead(place, external.TASK, stages.at))
        yield stack.enter_context(external.Machines(meeting))


def preflight(scenario: Scenario, machines: external.Machines, engine: str) -> None:
    """Refuse what these machines cannot measure, before anything is written. Raises TopologyError or LinkError."""
    for campaign in campaigns(scenario):
        used = scenario.used(campaign.topology)
        external.refuse(used, engine, campaign.speedup)
        external.match(campaign.topology, used, list(machines.by_name))


def network(machines: external.Machines) -> MakesRuntime:
    """What makes the runtime of these machines."""
    return partial(external.Network, machines, STORE)
