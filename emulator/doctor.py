"""What this machine has of what a measurement needs, found by trying, and how to get the rest.

Links are tried as root, or as root of a user namespace where an ordinary user may be that; then
``python -m emulator.doctor`` does it there, and writes its findings as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from emulator import remedies
from emulator.hosts import userns
from emulator.links import netem, nfqueue, shaping, tun
from emulator.links.engines import ENGINES
from emulator.links.namespace import ROOT, LinkError, run, scratch

_WHY_NOT = {"netem": netem.why_not, "nfqueue": nfqueue.why_not, "tun": tun.why_not}
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timer")
"""Clock sources that a process reads without a system call, or almost so; timer is User-Mode Linux's."""
_SLEEPS, _SLEEP = 200, 1e-3
_LATE = 0.5e-3      # seconds: from here on a delay of some milliseconds is not what it says
_PATIENCE = 20.0    # seconds for a program to answer


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    name: str
    ok: bool
    found: str
    """What was seen; or, if it is not ok, what is wrong."""
    remedy: str = ""
    """How to get it on this system; empty if it is ok."""


@dataclass(frozen=True)
class Examination:
    """All findings; :attr:`ready` says whether the main job can run."""

    findings: tuple[Finding, ...]

    @property
    def lacking(self) -> list[str]:
        """What the main job needs and this machine lacks."""
        ok = {finding.name for finding in self.findings if finding.ok}
        lacks = [name for name in ("privilege", "ip", "tc", "rates", "cubic", "torch") if name not in ok]
        return lacks if self.engine else [*lacks, f"an engine ({', '.join(ENGINES)})"]

    @property
    def engine(self) -> str | None:
        """What would hold packets."""
        ok = {finding.name for finding in self.findings if finding.ok}
        return next((name for name in ENGINES if name in ok), None)

    @property
    def ready(self) -> bool:
        """Whether the main job can run: links can be made, and ranks can train."""
        return not self.lacking


def examine() -> Examination:
    """Examine this machine; takes a few seconds, and leaves nothing behind."""
    if os.geteuid() == 0:
        privilege = Finding("privilege", True, "root of a user namespace" if userns.inside() else "root")
        tried = links()
    elif (reason := userns.why_not()) is None:
        privilege = Finding("privilege", True, "an ordinary user, who may be root of a user namespace (rootless)")
        tried = _links_rootless()
    else:
        privilege = _lack("privilege", f"no root, and {reason}")
        tried = [_lack(name, "not tried: that needs root, or a user namespace") for name in ("rates", "ifb", *ENGINES)]
    return Examination((_system(), _cores(), _clock(), privilege, *_programs(), *tried, _cubic(), *_docker(), _torch()))


def links() -> list[Finding]:
    """Try what links are made of, each in a namespace of its own that is gone afterwards."""
    try:
        with scratch():
            run(["ip", "link", "add", "ifb0", "type", "ifb"])
        ifb = Finding("ifb", True, "devices can be made")
    except (LinkError, OSError) as error:
        ifb = _lack("ifb", str(error))
    return [_tried("rates", shaping.why_not(), "HTB and its filters"), ifb,
            *(_tried(name, _WHY_NOT[name](), "holds packets") for name in ENGINES), _real_time()]


def _links_rootless() -> list[Finding]:
    command = userns.command([sys.executable, "-m", "emulator.doctor"])
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": search}, stdout=subprocess.PIPE, check=True)
    return [Finding(**found) for found in json.loads(done.stdout)]


def _tried(name: str, reason: str | None, works: str) -> Finding:
    return Finding(name, True, works) if reason is None else _lack(name, reason)


def _lack(name: str, found: str) -> Finding:
    return Finding(name, False, found.splitlines()[0], remedies.remedy(name))


def _system() -> Finding:
    return Finding("system", True, f"{remedies.here().name}, kernel {platform.release()}, {platform.machine()}")


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0))
    if count > 1:
        return Finding("cores", True, str(count))
    return _lack("cores", "1: what holds packets shares it with the ranks")


def _clock() -> Finding:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = source.read_text().strip() if source.exists() else "unknown"
    late = []
    for _ in range(_SLEEPS):
        begun = time.monotonic()
        time.sleep(_SLEEP)
        late.append(time.monotonic() - begun - _SLEEP)
    late.sort()
    middle, tail = late[_SLEEPS // 2], late[_SLEEPS * 99 // 100]
    text = f"{name}; a sleep of 1 ms ends {middle * 1e3:.2f} ms late, 1 of 100 by {tail * 1e3:.2f} ms or more"
    return Finding("clock", True, text) if name in _FAST_CLOCKS and middle < _LATE else _lack("clock", text)


def _programs() -> list[Finding]:
    found = []
    for name in ("ip", "tc", "iptables-restore"):
        version = _said([name, "-V"])
        found.append(Finding(name, True, version) if version else _lack(name, "not on the PATH"))
    return found


def _real_time() -> Finding:
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError as error:
        return _lack("real time", f"SCHED_FIFO: {error.strerror}; beside busy ranks packets are let go late")
    os.sched_setscheduler(0, before, parameters)
    return Finding("real time", True, "SCHED_FIFO, for what holds packets outside the kernel")


def _cubic() -> Finding:
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    text = f"congestion controls: {', '.join(known)}"
    return Finding("cubic", True, text) if "cubic" in known else _lack("cubic", text)


def _docker() -> list[Finding]:
    server = _said(["docker", "version", "--format", "client {{.Client.Version}}, server {{.Server.Version}}"])
    docker = Finding("docker", True, server) if server else _lack("docker", "no daemon answers")
    versions = {program: _said([*program.split(), "version", "--short"])
                for program in ("docker compose", "docker-compose")}
    found = ", ".join(f"{program} {version}" for program, version in versions.items() if version)
    return [docker, Finding("compose", True, found) if found else _lack("compose", "neither compose v2 nor v1")]


def _torch() -> Finding:
    code = "import torch, torch.distributed as d; print(torch.__version__, 'gloo' if d.is_gloo_available() else '')"
    said = _said([sys.executable, "-c", code])
    version, _, gloo = (said or "").partition(" ")
    if gloo:
        return Finding("torch", True, f"{version}, with gloo")
    return _lack("torch", f"{version} has no gloo" if version else f"{sys.executable} cannot import it")


def _said(command: Sequence[str]) -> str | None:
    """The first line that a program says, if it ends well."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines: Iterable[str] = done.stdout.strip().splitlines()
    return next(iter(lines), None) if done.returncode == 0 else None


if __name__ == "__main__":
    print(json.dumps([asdict(finding) for finding in links()]))
