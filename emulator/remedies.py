"""How to get what a measurement needs, on the systems that people have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from emulator.hosts import userns


@dataclass(frozen=True)
class System:
    """Whose packages a machine takes, and whose kernel it runs."""

    name: str
    """As it calls itself."""
    packages: str
    """debian, ubuntu, fedora or other."""
    kernel: str
    """own (the distribution's), wsl2 or desktop (Docker Desktop)."""
    container: bool


_TUN = Path("/dev/net/tun")

_MODULES = {
    "rates": "sch_htb cls_u32",
    "ifb": "ifb",
    "netem": "sch_netem sch_ingress cls_u32 act_mirred ifb",
    "nfqueue": "nfnetlink_queue xt_NFQUEUE iptable_mangle",
    "tun": "tun sch_ingress cls_u32 act_mirred",
    "cubic": "tcp_cubic",
}
"""Kernel modules behind a finding."""

_KERNELS = {
    "debian": "modprobe {modules}; where there is no such module: apt install linux-image-$(dpkg "
              "--print-architecture), and boot it",
    "ubuntu": "apt install linux-modules-extra-$(uname -r), then modprobe {modules}",
    "fedora": "dnf install kernel-modules-extra-$(uname -r), then modprobe {modules}",
    "other": "modprobe {modules}; where there is no such module, a kernel that has it",
    "wsl2": "in Windows: wsl --update, then modprobe {modules}; where there is no such module, a kernel of your own "
            "(kernel= in .wslconfig)",
    "desktop": "Docker Desktop's kernel is as it is: take another engine, or a Linux machine",
}

_PROGRAMS = {
    "ip": {"debian": "apt install iproute2", "ubuntu": "apt install iproute2", "fedora": "dnf install iproute",
           "other": "install iproute2"},
    "tc": {"debian": "apt install iproute2", "ubuntu": "apt install iproute2", "fedora": "dnf install iproute-tc",
           "other": "install iproute2"},
    "iptables-restore": {"debian": "apt install iptables", "ubuntu": "apt install iptables",
                         "fedora": "dnf install iptables-nft", "other": "install iptables"},
    "docker": {"debian": "apt install docker.io, start it, and be in the group docker",
               "ubuntu": "apt install docker.io, start it, and be in the group docker",
               "fedora": "dnf install moby-engine, start it (systemctl start docker), and be in the group docker",
               "other": "install Docker, start it, and be allowed to use its socket"},
    "compose": {"debian": "apt install docker-compose", "ubuntu": "apt install docker-compose-v2",
                "fedora": "dnf install docker-compose", "other": "install Docker's compose plug-in"},
}

_REST = {
    "cores": "give this machine a second core",
    "clock": "another clock source (/sys/devices/system/clocksource/clocksource0/available_clocksource), less load, "
             "or a machine that is less virtual",
    "real time": "as root; or, rootless, a line \"USER - rtprio 20\" in /etc/security/limits.d/frogtorch.conf, and "
                 "log in again",
    "torch": "pip install torch (README.md says which)",
}


@cache
def here() -> System:
    """The system of this machine."""
    release = Path("/etc/os-release")
    return system(release.read_text() if release.exists() else "", Path("/proc/version").read_text(),
                  any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")))


def system(os_release: str, proc_version: str, container: bool) -> System:
    """Whose system it is that has these texts in ``/etc/os-release`` and ``/proc/version``."""
    pairs = (line.partition("=") for line in os_release.splitlines())
    said = {key: value.strip().strip("\"'") for key, _, value in pairs}
    likes = [said.get("ID", ""), *said.get("ID_LIKE", "").split()]
    packages = next((name for name in ("ubuntu", "debian", "fedora") if name in likes), "other")
    version = proc_version.lower()
    kernel = "wsl2" if "microsoft" in version else "desktop" if "linuxkit" in version else "own"
    suffix = {"wsl2": " on WSL2", "desktop": " on Docker Desktop", "own": ""}[kernel]
    name = said.get("PRETTY_NAME", "an unknown Linux") + suffix + (", in a container" if container else "")
    return System(name, packages, kernel, container)


def remedy(name: str, on: System | None = None) -> str:
    """How to get what the finding of that name is about, on this machine or another."""
    on = on or here()
    if name == "privilege":
        return _privilege(on)
    if name in _MODULES:
        if name == "tun" and _TUN.exists() and not os.access(_TUN, os.R_OK | os.W_OK):
            return f"chmod 666 {_TUN}, as it is by default: it takes a privilege all the same to use it"
        if name == "tun" and on.container:
            return "docker run --device /dev/net/tun --cap-add NET_ADMIN"
        advice = _KERNELS[on.packages if on.kernel == "own" else on.kernel].format(modules=_MODULES[name])
        return f"on the machine that runs this container: {advice}" if on.container else advice
    if name in ("docker", "compose") and on.kernel == "wsl2":
        return "Docker Desktop's WSL integration (Settings, Resources), or " + _PROGRAMS[name][on.packages]
    return _PROGRAMS[name][on.packages] if name in _PROGRAMS else _REST[name]


def _privilege(on: System) -> str:
    if on.container:
        return "docker run --privileged; or the runtime docker from outside"
    switches = " ".join(f"{name}={value}" for name, value in userns.forbidden().items())
    return "sudo" + (f"; or, for rootless runs: sysctl {switches}" if switches else "")
