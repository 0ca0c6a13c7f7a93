"""Writes compose.yaml of a topology, in the subset that Compose v1.29 and v2 both take."""

from __future__ import annotations

from pathlib import Path

from emulator.hosts import behind_doors, netns
from emulator.topology import Topology, TopologyError

DEFAULT = 4
"""Hosts that `docker compose up` starts; a profile adds the others."""
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

_HEAD = """\
# {name} on one machine: containers, joined by shaped links, that train PyTorch's founding workload.
# Written by `frogtorch compose {file}`; change the topology, and write it anew.
#
#   docker compose up --exit-code-from director      gloo, then shard, on {default} hosts; the results are in ./runs
#   docker compose --profile {profile} up --exit-code-from director      on {all}
#   docker compose --profile sweep up --exit-code-from director    also an all-reduce sweep
#
# (docker-compose of version 1.29 does too; the exit code is the run's.) Taken from the environment, or a file .env:
# SPEEDUP (of the network; 10, of {all} hosts 5), STEPS (of the training; 48), ENGINE (what delays packets: auto, netem,
# nfqueue), SUBNET (its first three numbers; 10.78.0), and for the image BASE and PIP_FLAGS (docker/README.md).

# What makes a container a host: its door, through which the director makes the links and starts the rank.
x-host: &host
  image: frogtorch
  pull_policy: never
  init: true
  ipc: "service:director"
  cap_add: [NET_ADMIN, SYS_NICE]
  security_opt: ["no-new-privileges"]
  sysctls:
{settings}
  stop_grace_period: 1s
  healthcheck:      # healthy: its links are up
    test: ["CMD", "test", "-e", "/run/links-up"]
    interval: 15s
    retries: 40

services:
  director:
    image: frogtorch
    build:
      context: .
      dockerfile: docker/Dockerfile
      args:
        BASE: "${{BASE:-python:3.11-slim-bookworm}}"
        PIP_FLAGS: "${{PIP_FLAGS:-}}"
    command: ["python3", "-m", "scenarios.founding", "{file}", {hosts}]
    init: true
    ipc: shareable
    network_mode: none
    cap_add: [NET_ADMIN]      # it tries in its own network what delays packets here
    security_opt: ["no-new-privileges"]
    environment:
      SPEEDUP: "${{SPEEDUP:-}}"
      STEPS: "${{STEPS:-48}}"
      ENGINE: "${{ENGINE:-auto}}"
    volumes:
      - ./runs:/frogtorch/runs
    stop_grace_period: 10s
"""

_HOST = """
  {name}:
    <<: *host
    command: ["python3", "-S", "-s", "-P", "-m", "emulator.hosts.doorkeeper", "/dev/shm/doors/{name}"]
    networks: {{links: {{ipv4_address: "${{SUBNET:-10.78.0}}.{number}"}}}}
"""

_TAIL = """
  sweep:      # its door is all that it has: the director sees that it is there
    image: frogtorch
    pull_policy: never
    init: true
    ipc: "service:director"
    network_mode: none
    command: ["python3", "-S", "-s", "-P", "-m", "emulator.hosts.doorkeeper", "/dev/shm/doors/sweep"]
    profiles: [sweep]

networks:
  links:
    internal: true      # nothing leaves it
    ipam:
      config:
        - subnet: "${SUBNET:-10.78.0}.0/24"
"""


def compose(topology: Topology) -> str:
    """The text of compose.yaml. Raises TopologyError for a topology that it cannot hold."""
    behind_doors.refuse(topology)
    if topology.groups or topology.timeline:
        what = f"group {topology.groups[0].name!r}" if topology.groups else "a timeline"
        raise TopologyError(f"{topology.file}:{topology.groups[0].line if topology.groups else 1}: compose.yaml cannot "
                            f"hold {what}; use `frogtorch compare --runtime docker`, or remove it")
    if not DEFAULT <= len(topology.hosts) <= len(_NUMBERS):
        raise TopologyError(f"{topology.file}:{topology.hosts[0].line}: compose.yaml is for {DEFAULT} to "
                            f"{len(_NUMBERS)} hosts, and here are {len(topology.hosts)}")
    names = [host.name for host in topology.hosts]
    everybody = _NUMBERS[len(names) - 1]
    settings = "\n".join(f'    {key}: "{value}"' + _since(key)
                         for key, value in (netns.TCP | behind_doors.RP_FILTER).items())
    parts = [_HEAD.format(name=topology.name, file=Path(topology.file).as_posix(), default=_NUMBERS[DEFAULT - 1],
                          all=everybody, profile=everybody, settings=settings,
                          hosts=", ".join(f'"{name}"' for name in names))]
    for index, name in enumerate(names):
        profile = f"    profiles: [{everybody}]\n" if index >= DEFAULT else ""
        parts.append(_HOST.format(name=name, number=index + 2) + profile)
    return "".join(parts) + _TAIL


def _since(key: str) -> str:
    return "      # since Linux 5.18: remove the line on an older one" if key.endswith("tso_rtt_log") else ""
