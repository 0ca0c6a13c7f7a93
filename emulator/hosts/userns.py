"""Rootless: root of a user namespace of one's own, where network namespaces can be made without privilege.

``python emulator/hosts/userns.py COMMAND...`` becomes COMMAND there. It has the machine's files, with its user's
rights; but its network is its own (a loopback, and nothing else), and so is ``/run``, where ``ip netns``, iptables and
:mod:`emulator.hosts.ledger` keep what they make. All of that ends with the last process inside: a rootless run leaves
nothing behind, whatever ends it, and no other command sees it. Needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV = 2, 4
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_EVERYBODY = 4294967295      # users that the machine's own namespace has

SWITCHES = {
    "kernel.unprivileged_userns_clone": "1",           # Debian's and Arch's
    "user.max_user_namespaces": "15000",
    "kernel.apparmor_restrict_unprivileged_userns": "0",   # Ubuntu's
}
"""Kernel settings that may forbid it, and a value of each that allows it."""


def inside() -> bool:
    """Whether this process is root, if it is, in a user namespace alone."""
    return int(Path("/proc/self/uid_map").read_text().split()[2]) != _EVERYBODY


def again() -> None:
    """Start this process's command again, as root of a user namespace; returns to a root, or if that is not allowed."""
    if os.geteuid() != 0 and why_not() is None:
        sys.stdout.flush()
        os.execv(sys.executable, command([sys.executable, *sys.orig_argv[1:]]))


def why_not() -> str | None:
    """Try it: None if this process can become root of a user namespace, else the reason."""
    tried = subprocess.run(command([sys.executable, "-S", "-s", "-c", ""]), capture_output=True, text=True, check=False)
    return (tried.stderr.strip() or f"exit status {tried.returncode}") if tried.returncode else None


def command(inner: Sequence[str]) -> list[str]:
    """The command that does `inner` as root of a user namespace."""
    return [sys.executable, "-S", "-s", "-P", __file__, *inner]


def forbidden() -> dict[str, str]:
    """Those of the :data:`SWITCHES` that this machine has thrown against it."""
    found = {}
    for name, good in SWITCHES.items():
        try:
            value = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
        if (value == "0") != (good == "0"):
            found[name] = good
    return found


def main(inner: list[str]) -> None:
    """Become root of a user namespace, then the command `inner`. Raises OSError that says what was refused."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(what: str, status: int) -> None:
        if status:
            code = ctypes.get_errno()
            raise OSError(code, f"{what}: {os.strerror(code)}")

    user, group = os.geteuid(), os.getegid()
    must("no user namespace", libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET))
    # Without the groups it cannot leave, a process could get at what a group is denied: user_namespaces(7).
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        try:
            Path("/proc/self", file).write_text(text)
        except OSError as error:
            raise OSError(error.errno, f"cannot write /proc/self/{file}: {error.strerror}") from None
    must("cannot mount a /run of its own", libc.mount(b"tmpfs", b"/run", b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=755"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    os.execvp(inner[0], inner)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        said = error.strerror or str(error)
        if switches := forbidden():
            said += f" (sysctl {' '.join(f'{name}={value}' for name, value in switches.items())} allows it)"
        elif error.errno in (errno.EPERM, errno.EACCES):
            said += " (in a container, its seccomp profile forbids it)"
        sys.exit(said)
