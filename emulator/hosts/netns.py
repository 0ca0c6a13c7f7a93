"""Hosts as network namespaces of this machine, joined by a bridge in a namespace of its own.

Namespace ``ft-<run>-<i>`` is host i, with one device ``eth0``; ``ft-<run>-hub`` holds the bridge. Nothing is made in
the machine's own namespace, and no host has a default route: what runs there talks to the other hosts and to itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path as File
from statistics import median
from types import TracebackType
from typing import Self

from emulator.ethernet import BURST_SECONDS
from emulator.hosts import ledger, userns
from emulator.hosts.ledger import Ledger
from emulator.links import calibration, engines, fidelity, shaping
from emulator.links.namespace import ROOT, LinkError, Namespace, Program, run, shared
from emulator.topology import Topology, TopologyError

DEVICE = "eth0"
_SUBNET = "10.77.0"
_MOST_HOSTS = 250      # of one /24
_RTO_MIN = 0.2         # seconds: Linux's own (TCP_RTO_MIN), which the speed-up divides
_TOOLS = ("ip", "tc")       # of iproute2

TCP = {
    # A pause between two steps is not a reason to start slowly, nor one run's luck a hint to the next.
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    # Otherwise a short path sends packets of 64 KiB whatever its rate, 94 ms long at 0.7 MB/s.
    "net.ipv4.tcp_tso_rtt_log": "0",
    # Receive buffers that neither grow nor bind: growing, they would lift a route's window clamp.
    "net.ipv4.tcp_moderate_rcvbuf": "0",
    "net.ipv4.tcp_rmem": "4096 16777216 33554432",
}
"""Kernel settings of every host."""

runs = ledger.runs


class Network:
    """The hosts and paths of `topology`, for real, as a context manager.

    It runs ``topology.faster(speedup)``: rates times `speedup`, delays divided by it. `engine` is what holds packets
    for the delay: ``netem``, ``nfqueue``, ``tun``, or ``auto``, the best that this machine has.
    """

    runtime = "netns"
    device = DEVICE
    python = sys.executable

    def __init__(self, topology: Topology, run: str, engine: str = "auto", speedup: float = 1.0) -> None:
        if not speedup > 0:
            raise ValueError(f"speedup is more than 0, not {speedup}")
        self.topology = topology
        """The topology as it is now, at life size."""
        self.shaped = self._made = topology.faster(speedup)
        """The topology as it is on the wire."""
        self.run = run
        self.speedup = speedup
        self._wish = engine
        self._maker = os.getpid()
        self._ledger = Ledger(run)
        self._index = {host.name: index for index, host in enumerate(topology.hosts)}
        self.addresses = {name: f"{_SUBNET}.{index + 1}" for name, index in self._index.items()}
        self.namespaces: Mapping[str, Namespace] = {name: Namespace(f"ft-{run}-{index}", self._ledger.gate)
                           for name, index in self._index.items()}
        self._hub = Namespace(f"ft-{run}-hub", self._ledger.gate)
        self._engine: engines.Engine | None = None
        self._bias: dict[tuple[str, str], float] = {}
        self._stamp: dict[str, object] = {}

    def up(self) -> None:
        """Make hosts and links, and take the delay engine's own delay out of each path's.

        Raises TopologyError for what this runtime cannot do and LinkError for what this machine lacks, both before
        anything is made; LinkError if the run is up already, or if the kernel refuses a part of it, after taking back
        what was made. That is also done on Ctrl-C. The thread that calls it must live as long as the network does:
        with it go the processes that it started.
        """
        engine = self._claim()
        try:
            self._make_hosts()
            self._shape()
            self._engine = engine(self.namespaces, self.addresses, DEVICE, self._ledger.room)
            self._bias = calibration.calibrate(self)
        except BaseException:
            self.down()
            raise
        self._stamp = self._describe()

    def change(self, topology: Topology) -> None:
        """Make the links those of `topology`, the same hosts in another state (life size), while packets pass.

        Rates, delays, jitter and loss move in place: no queue is torn down and no packet lost, and the delay engine's
        calibration stays. Raises TopologyError, before anything is changed, for what cannot (hosts, windows, queues,
        groups' members, whether there is a limit); LinkError if the kernel refuses.
        """
        state = topology.faster(self.speedup)
        refuse(state, [host.name for host in state.hosts])
        shaping.refuse_change(self._made, state)
        for namespace, before, after in zip((*self.namespaces.values(), self._hub), self._rates(self.shaped),
                                            self._rates(state), strict=True):
            namespace.tc([line for line in after if line not in before])
        self.engine.change(state, self._bias)
        self.topology, self.shaped = topology, state

    def down(self) -> None:
        """Take everything away again. Twice is fine; in a process forked from the maker's it does nothing."""
        if os.getpid() != self._maker:      # a rank that leaves the with-block by an exception is no reason
            return
        try:
            if self._engine is not None:
                self._engine.down()
                self._engine = None
        finally:
            self._ledger.clear()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.down()

    def address(self, host: str) -> str:
        """IPv4 address of the host's device. Raises TopologyError if there is no such host."""
        return self.addresses[self.topology.host(host).name]

    def enter(self, host: str) -> None:
        """Move the calling process, which has one thread, into the host. Raises LinkError if the network is not up."""
        self.namespaces[self.topology.host(host).name].enter()

    def entrance(self, host: str) -> Callable[[], None] | None:
        """What does :meth:`enter` in another process."""
        return self.namespaces[self.topology.host(host).name].enter

    def spawn(self, host: str, command: Sequence[str]) -> Program:
        """Start a program on the host, joined by pipes; it is killed when the network goes down."""
        search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.namespaces[self.topology.host(host).name].inside():
            return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search}, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE)

    def own_clock(self, host: str) -> bool:
        """No host has one: all are on this machine."""
        return False

    @contextmanager
    def rendezvous(self) -> Iterator[str]:
        """A file, not yet there, that programs on all hosts may make and share."""
        with tempfile.TemporaryDirectory() as room:
            yield f"{room}/rendezvous"

    def probe(self, progress: fidelity.Progress | None = None) -> list[fidelity.PathFidelity]:
        """Measure every directed path: see :func:`emulator.links.fidelity.probe`."""
        return fidelity.probe(self, progress)

    def check(self) -> None:
        """Raise LinkError, naming the host, if the links no longer do what they should.

        A dead delay process is silent otherwise: its host just hears nothing any more.
        """
        self.engine.check()

    @property
    def engine(self) -> engines.Engine:
        """What holds the packets. Raises LinkError if the network is not up."""
        if self._engine is None:
            raise LinkError(f"run {self.run} is not up")
        return self._engine

    @property
    def stamp(self) -> dict[str, object]:
        """How the network was made, to be kept with every result; empty before it is up."""
        return dict(self._stamp)

    def _claim(self) -> engines.MakesEngine:
        """Find out whether all can be made, and take the run's name."""
        engine = preflight(self.shaped, self._wish)
        self._ledger.open([self._hub.name, *(namespace.name for namespace in self.namespaces.values())])
        return engine

    def _make_hosts(self) -> None:
        hub = self._hub.name
        lines = [f"netns add {hub}", *(f"netns add {namespace.name}" for namespace in self.namespaces.values())]
        for name, index in self._index.items():
            lines.append(f"link add {DEVICE} netns {self.namespaces[name].name} address {_mac(index)} mtu 1500 "
                         f"type veth peer name {_port(index)} netns {hub}")
        with shared(self._ledger.gate) as lock:
            run(["ip", "-batch", "-"], "\n".join(lines) + "\n", lock)
        quiet = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1",
                 # What engine tun gives back to its host comes from no device that leads to its sender.
                 "net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0"}
        self._hub.sysctl(existing(quiet))
        self._hub.ip(["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
                     + [f"link set {_port(index)} master br0 up" for index in self._index.values()])
        for name, namespace in self.namespaces.items():
            namespace.sysctl(existing(quiet | TCP))
            namespace.ip(self._addressing(name))

    def _addressing(self, host: str) -> list[str]:
        """Lines for ``ip -batch``: address, a route and a neighbour for each peer."""
        lines = ["link set lo up", f"addr add {self.addresses[host]}/32 dev {DEVICE}", f"link set {DEVICE} up"]
        for peer, index in self._index.items():
            if peer != host:
                lines += [f"route add {self.addresses[peer]}/32 dev {DEVICE} scope link {self._route(host, peer)}",
                          f"neigh add {self.addresses[peer]} lladdr {_mac(index)} dev {DEVICE} nud permanent"]
        return [*self._segments(host), *lines]

    def _segments(self, host: str) -> list[str]:
        count = shaping.segments(self.shaped, host)
        return [] if count is None else [f"link set {DEVICE} gso_max_segs {count}"]

    def _route(self, host: str, peer: str) -> str:
        """What TCP on `host` is to know of the way to `peer`."""
        # The receiver bounds the window: what `peer` may have on the way to us.
        window = self.shaped.path(peer, host).window
        clamp = "" if window is None else f" window {shaping.window_clamp(window)}"
        return (f"src {self.addresses[host]} congctl {self.shaped.congestion} "
                f"rto_min {round(_RTO_MIN / self.speedup * 1000)}ms{clamp}")

    def _shape(self) -> None:
        groups = {group.name: f"group{index}" for index, group in enumerate(self.shaped.groups)}
        self._hub.ip([line for device in groups.values()
                      for line in (f"link add {device} type ifb", f"link set {device} up")])
        for namespace, lines in zip((*self.namespaces.values(), self._hub), self._rates(), strict=True):
            namespace.tc(lines)
        self._hub.tc(shaping.detours(self.shaped, {name: _port(index) for name, index in self._index.items()}, groups,
                                     self.addresses))

    def _rates(self, state: Topology | None = None) -> list[list[str]]:
        """Lines for ``tc -batch`` in each host and the hub, that make the rates, or change them to those of `state`."""
        hosts = [shaping.up(self._made, name, DEVICE, self.addresses, state) for name in self._index]
        hub = [line for name, index in self._index.items()
               for line in shaping.down(self._made, name, _port(index), self.addresses, state)]
        hub += [line for index, group in enumerate(self._made.groups)
                for line in shaping.group(self._made, group.name, f"group{index}", self.addresses, state)]
        return [*hosts, hub]

    def _describe(self) -> dict[str, object]:
        bias = self._bias
        return {
            "runtime": self.runtime,
            "rootless": userns.inside(),
            "engine": self.engine.name,
            **self.engine.stamp,
            # Seconds that each held packet is let go early, and the paths that are too short to be held.
            "bias": round(median(bias.values()), 6) if bias else 0.0,
            "biases": {f"{source} -> {target}": round(seconds, 6) for (source, target), seconds in bias.items()},
            "undelayed": [[path.source, path.target] for path in self.shaped.paths
                          if (path.source, path.target) not in self.engine.held],
            "congestion": self.shaped.congestion,
            "speedup": self.speedup,
            "rto_min": _RTO_MIN / self.speedup,
            "burst_seconds": BURST_SECONDS,
            "tcp": existing(TCP),
            "kernel": platform.release(),
        }


def down(run: str | None = None) -> list[str]:
    """Take away what a run owns: processes and namespaces, and with these devices and qdiscs.

    Without a name, what all runs have left whose makers are gone; one that is in use must be named. Returns what was
    removed, in words. A run that is not up is no error. Raises ValueError for an impossible name.
    """
    if run is not None:
        return Ledger(run).clear()
    done = []
    for left in map(Ledger, runs()):
        done += [f"run {left.run} is in use and was left alone (to end it: frogtorch down {left.run})"] \
            if left.in_use() else left.clear()
    return done


def refuse(topology: Topology, hosts: Iterable[str]) -> None:
    """Raise TopologyError if this runtime cannot make those hosts of the topology."""
    chosen = topology.select(hosts)
    shaping.refuse(chosen)
    if len(chosen.hosts) > _MOST_HOSTS:
        raise TopologyError(f"{topology.file}:{chosen.hosts[_MOST_HOSTS].line}: the netns runtime makes at most "
                            f"{_MOST_HOSTS} hosts, and here are {len(chosen.hosts)}")


def preflight(topology: Topology, engine: str = "auto") -> engines.MakesEngine:
    """The engine that would delay the paths of `topology`, as it is on the wire. Makes nothing that stays.

    Raises TopologyError for what this runtime cannot do and LinkError for what this machine lacks.
    """
    refuse(topology, [host.name for host in topology.hosts])
    _require_tools()
    _require_congestion(topology.congestion)
    return engines.choose(engine)


def _require_tools() -> None:
    if os.geteuid() != 0:
        raise LinkError("making network namespaces needs root, or root of a user namespace, which this system refuses: "
                        f"{userns.why_not()}; run the same command with sudo, or ask frogtorch doctor")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise LinkError(f"the program {tool} is missing; install it (apt install iproute2)")
    reason = shaping.why_not()
    if reason is not None and "not permitted" in reason:
        raise LinkError("making network namespaces needs the capabilities SYS_ADMIN and NET_ADMIN, which this "
                        f"container has not (docker run --privileged): {reason}")
    if reason is not None:
        raise LinkError(f"this kernel cannot limit rates (modprobe sch_htb cls_u32): {reason}")


def _require_congestion(name: str) -> None:
    available = File("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if name not in available:
        raise LinkError(f"this kernel has no congestion control {name!r}, only {', '.join(available)}; load it "
                        f"(modprobe tcp_{name}) or name another in the topology")


def existing(settings: dict[str, str]) -> dict[str, str]:
    """Those of the settings that the kernel has: an old one may lack some, one without IPv6 has none to switch off."""
    return {key: value for key, value in settings.items() if File("/proc/sys", *key.split(".")).exists()}


def _mac(index: int) -> str:
    return f"02:77:00:00:00:{index + 1:02x}"      # locally administered


def _port(index: int) -> str:
    return f"host{index}"
