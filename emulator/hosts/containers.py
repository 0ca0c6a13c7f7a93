"""Hosts as Docker containers, on an internal network of their own.

Container ``ft-<run>-<i>`` is host i. It runs a doorkeeper, through whose door, a Unix socket of this machine, the links
are made: the same links as between network namespaces, by the same code. A container has NET_ADMIN (and SYS_NICE, so
that delays are on time) and is never privileged; what is spawned in it is an ordinary user. The network is internal:
it leads nowhere. Paths of a group are routed through one more container, ``ft-<run>-hub``, which holds the bottleneck.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path as File
from typing import Any

import docker
import docker.errors

from emulator.hosts import behind_doors, code, netns
from emulator.hosts.door import Door, await_doors
from emulator.hosts.ledger import Ledger
from emulator.links import engines
from emulator.links.namespace import LinkError, shared
from emulator.topology import Topology

IMAGE = "frogtorch"
LABEL = "frogtorch.run"
"""On everything that a run makes, with the run's name."""
_LEAST_API = (1, 41)      # Docker 20.10
_SUBNETS = IPv4Network("10.77.0.0/16")
_START = 30.0             # seconds for a container's door to open
_STRAY = 3.0              # seconds in which the daemon has made, or has not, what a killed maker asked it for
_ROUTER = {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.send_redirects": "0",
           "net.ipv4.conf.default.send_redirects": "0"}


class Network(behind_doors.Network):
    """The hosts and paths of `topology` in containers, as a context manager; see :class:`emulator.hosts.netns.Network`.

    Needs no root: who may use Docker may use this.
    """

    runtime = "docker"

    def _door(self, host: str) -> Door:
        name = str(self._index.get(host, host))
        return Door(f"ft-{self.run}-{name}", self._ledger.room / "doors" / name / "door", self._ledger.gate)

    def _remove(self) -> None:
        down(self.run)

    @contextmanager
    def rendezvous(self) -> Iterator[str]:
        """A file, not yet there, that programs on all hosts may make and share."""
        yield f"/shared/{secrets.token_hex(8)}"

    def _claim(self) -> engines.MakesEngine:
        client = _client()
        _require_image(client)
        wish = behind_doors.refuse(self.shaped, self._wish)
        self._ledger.open([], self.runtime)
        try:
            (self._ledger.room / "shared").mkdir()
            (self._ledger.room / "shared").chmod(0o1777)
            self._docker = _Docker(client, self.run, self._ledger)
            self._docker.make_network()
            return self._docker.engine(self._door("trial"), self.shaped, wish)
        except BaseException:
            self.down()
            raise

    def _make_hosts(self) -> None:
        for name, index in self._index.items():
            self.addresses[name] = self._docker.make_host(str(index), index, {"frogtorch.host": name})
        if self.shaped.groups:
            self.via = self._docker.make_host("hub", len(self._index), {}, _ROUTER)
        self._docker.open([*self._doors.values(), *([self._router] if self.via else [])])
        for name, door in self._doors.items():
            door.ip(self._addressing(name))

    def _describe(self) -> dict[str, object]:
        return {**super()._describe(), "docker": self._docker.version}


class _Docker:
    """What the daemon is asked to make for one run."""

    def __init__(self, client: docker.DockerClient, run: str, ledger: Ledger) -> None:
        self._api = client.api
        self._run = run
        self._ledger = ledger
        self._settings = netns.existing(netns.TCP) | behind_doors.RP_FILTER
        self._network = f"ft-{run}"
        self._subnet = _SUBNETS
        self.version: str = client.version()["Version"]

    def make_network(self) -> None:
        """Make the run's network, on a subnet that no other network of this machine has."""
        if [found for found in self._api.networks(names=[self._network]) if found["Name"] == self._network]:
            raise LinkError(_taken("network", self._network))
        taken = [IPv4Network(config["Subnet"]) for network in self._api.networks()
                 for config in network["IPAM"]["Config"] or [] if "." in config.get("Subnet", "")]
        for self._subnet in _SUBNETS.subnets(new_prefix=24):
            if any(self._subnet.overlaps(other) for other in taken):
                continue
            pool = docker.types.IPAMPool(subnet=str(self._subnet), gateway=str(self._subnet[-2]))
            try:
                with self._making("network", self._network):
                    self._api.create_network(self._network, driver="bridge", internal=True, check_duplicate=True,
                                             ipam=docker.types.IPAMConfig(pool_configs=[pool]),
                                             labels={LABEL: self._run})
                return
            except docker.errors.APIError as error:
                if "overlap" not in str(error):
                    raise LinkError(f"Docker cannot make network {self._network}: {error.explanation}") from error
        raise LinkError(f"no free subnet in {_SUBNETS}: remove networks that are not needed (docker network prune)")

    def make_host(self, name: str, index: int, labels: dict[str, str], settings: dict[str, str] | None = None) -> str:
        """Make and start container ``ft-<run>-<name>``; returns its address. Its door opens later: :meth:`open`."""
        container, address = f"ft-{self._run}-{name}", str(self._subnet[index + 1])
        door = self._ledger.room / "doors" / name
        door.mkdir(parents=True)
        devices = ["/dev/net/tun"] if File("/dev/net/tun").exists() else []
        limits = self._api.create_host_config(
            network_mode=self._network, cap_add=["NET_ADMIN", "SYS_NICE"], security_opt=["no-new-privileges"],
            sysctls={**self._settings, **(settings or {})}, devices=devices, init=True,
            binds=[f"{door}:/door", f"{self._ledger.room / 'shared'}:/shared"])
        where = self._api.create_networking_config({
            self._network: self._api.create_endpoint_config(ipv4_address=address)})
        try:
            with self._making("container", container):
                self._api.create_container(
                    IMAGE, ["python3", "-S", "-s", "-P", "-m", "emulator.hosts.doorkeeper", "/door/door",
                            str(os.geteuid())],
                    name=container, hostname=name, labels={LABEL: self._run, **labels}, host_config=limits,
                    networking_config=where)
                self._api.start(container)
        except docker.errors.APIError as error:
            if error.status_code == 409:
                raise LinkError(_taken("container", container)) from error
            raise LinkError(f"Docker cannot start container {container}: {error.explanation}") from error
        return address

    def open(self, doors: Sequence[Door]) -> None:
        """Wait until the containers' doors are open. Raises LinkError with the last words of one that does not."""
        shut = await_doors(doors, _START)
        if shut is not None:
            said = self._api.logs(shut.name, tail=5).decode(errors="replace").strip()
            raise LinkError(f"container {shut.name} does not open its door: {said or 'it says nothing'}. The Docker "
                            "daemon must be this machine's, and able to mount its /run")

    def engine(self, trial: Door, topology: Topology, wish: str) -> engines.MakesEngine:
        """The engine that works in a container, found by trying in one that is then thrown away."""
        self.make_host("trial", len(topology.hosts) + 1, {})
        try:
            self.open([trial])
            theirs = trial.run(["python3", "-S", "-m", "emulator.hosts.code"]).strip()
            if theirs != code.sha256():
                raise LinkError(f"image {IMAGE} holds other code than this checkout; build it again (make image)")
            _require_congestion(trial, topology.congestion)
            return engines.choose(wish, trial)
        finally:
            trial.close()
            self._api.remove_container(trial.name, force=True)

    @contextmanager
    def _making(self, kind: str, name: str) -> Iterator[None]:
        """Write down what is being asked for: a maker that is killed meanwhile leaves it to be found."""
        with shared(self._ledger.gate):
            asked = self._ledger.room / "asked"
            asked.write_text(json.dumps([kind, name]))
            yield
            asked.unlink()


def preflight(topology: Topology, engine: str = "auto") -> None:
    """Refuse what this machine's Docker cannot do; nothing stays. Raises TopologyError or LinkError."""
    network = Network(topology, f"trial-{secrets.token_hex(3)}", engine)
    network._claim()
    network.down()


def down(run: str) -> list[str]:
    """Take away what a run owns: containers, with all that is in them, and its network; then its ledger."""
    ledger = Ledger(run)
    if not ledger.room.exists():      # gone, as after a restart of the machine; what Docker keeps is labelled
        return _remove(run, None)
    return ledger.clear(lambda: _remove(run, ledger.room / "asked"))


def _remove(run: str, asked: File | None) -> list[str]:
    api = _client().api
    if asked is not None and asked.exists():
        _await_stray(api, asked)
    labelled = {"label": f"{LABEL}={run}"}
    removed = []
    for container in api.containers(all=True, filters=labelled):
        _gone(api.remove_container, container["Id"], force=True, v=True)
        removed.append(f"container {container['Names'][0].lstrip('/')}")
    for network in api.networks(filters=labelled):
        _gone(api.remove_network, network["Id"])
        removed.append(f"network {network['Name']}")
    return removed


def _gone(remove: Any, name: str, **options: Any) -> None:
    """Remove it; another who has just done it is no error."""
    try:
        remove(name, **options)
    except docker.errors.NotFound:
        pass
    except docker.errors.APIError as error:
        if error.status_code != 409:      # its removal is under way
            raise


def _await_stray(api: Any, asked: File) -> None:
    try:
        kind, name = json.loads(asked.read_text())
    except ValueError:      # killed before it had asked
        return
    until = time.monotonic() + _STRAY
    while time.monotonic() < until:
        found = api.containers(all=True, filters={"name": f"^/{name}$"}) if kind == "container" else \
            api.networks(names=[name])
        if found:
            return
        time.sleep(0.1)


def owned() -> dict[str, list[str]]:
    """What runs have in Docker, by run, in words. Raises LinkError if the daemon does not answer."""
    api = _client().api
    found: dict[str, list[str]] = {}
    for container in api.containers(all=True, filters={"label": LABEL}):
        found.setdefault(container["Labels"][LABEL], []).append(
            f"container {container['Names'][0].lstrip('/')} ({container['State']})")
    for network in api.networks(filters={"label": LABEL}):
        found.setdefault(network["Labels"][LABEL], []).append(f"network {network['Name']}")
    return found


def _client() -> docker.DockerClient:
    try:
        client = docker.from_env(timeout=120)
        version = client.version()["ApiVersion"]
    except docker.errors.DockerException as error:
        raise LinkError(f"no Docker daemon answers ({error}): start it (systemctl start docker), and be root "
                        "or in the group docker; or use --runtime netns") from error
    if tuple(map(int, version.split("."))) < _LEAST_API:
        raise LinkError(f"this Docker daemon speaks API {version}; Docker 20.10 (API 1.41) or newer is needed")
    return client


def _require_image(client: docker.DockerClient) -> None:
    try:
        client.images.get(IMAGE)
    except docker.errors.ImageNotFound:
        raise LinkError(f"there is no image {IMAGE!r}: build it (make image)") from None


def _require_congestion(trial: Door, name: str) -> None:
    try:
        trial.run(["ip", "route", "add", "198.51.100.1/32", "dev", "lo", "congctl", name])
    except LinkError as error:
        raise LinkError(f"this kernel has no congestion control {name!r} for containers: {error}; load it (modprobe "
                        f"tcp_{name}) or name another in the topology") from error


def _taken(kind: str, name: str) -> str:
    return (f"{kind} {name} exists, and was not made by this run; remove it (docker {kind} rm {name}), or name the run "
            "otherwise")
