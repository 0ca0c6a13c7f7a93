"""What a machine of the user's does in a run that another machine leads: it starts programs of this code, when told.

A program's standard input and output are a connection of its own to rank 0, so what passes there passes no third
process; its standard error is this machine's. All programs end with the run, however that ends.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from emulator.hosts.code import PACKAGES
from emulator.links.namespace import ROOT
from emulator.probe import meet
from emulator.probe.channel import Channel, ChannelError, Message

_PATIENCE = 30.0      # seconds for a message that has begun
_SIOCGIFADDR = 0x8915      # netdevice(7)


def serve(where: meet.Place, channel: Channel) -> None:
    """Do what rank 0 says until it ends the run. Raises MeetError if that failed, ChannelError if rank 0 is gone."""
    machine = _Machine(where)
    try:
        while True:
            select.select([channel], [], [])      # keep-alive ends it if rank 0's machine vanishes
            said = channel.receive(_PATIENCE)
            do = said.pop("do")
            if do == "end":
                if error := said.get("error"):
                    raise meet.MeetError(f"rank 0 has ended the run: {error}")
                return
            channel.send(machine.answer(do, said))
    finally:
        machine.clear()


class _Machine:
    def __init__(self, where: meet.Place) -> None:
        self._where = where
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, Callable[..., Message]] = {
            "start": self._start, "wait": self._wait, "kill": self._kill, "here": dict}

    def answer(self, do: str, arguments: Message) -> Message:
        """Carry out a command; what went wrong is the answer then."""
        try:
            return self._commands[do](**arguments)
        except (OSError, KeyError, TypeError, ValueError, ChannelError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def clear(self) -> None:
        """End all programs."""
        for program in self._programs.values():
            program.kill()
            program.wait()

    def _start(self, program: int, module: str, arguments: list[str]) -> Message:
        if module.partition(".")[0] not in PACKAGES:
            raise ValueError(f"{module} is no module of this code")
        with meet.call(self._where, {"program": program}) as sock:
            self._programs[program] = launch(module, arguments, stdin=sock.fileno(), stdout=sock.fileno())
        return {"pid": self._programs[program].pid}

    def _wait(self, program: int, seconds: float) -> Message:
        """The exit code; None if it runs on after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            return {"code": self._programs[program].wait(seconds)}
        return {"code": None}

    def _kill(self, program: int) -> Message:
        self._programs[program].kill()
        return {}


def launch(module: str, arguments: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
    """Start a module of this code; `pipes` are those of :class:`subprocess.Popen`."""
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env={**os.environ, "PYTHONPATH": search},
                            **pipes)


def device_of(address: str) -> str:
    """The network device whose IPv4 address that is. Raises ValueError if none of this machine's has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()))
            with suppress(OSError):      # it has no IPv4 address
                fcntl.ioctl(sock, _SIOCGIFADDR, request)
                if socket.inet_ntoa(request[20:24].tobytes()) == address:
                    return name
    raise ValueError(f"no network device of {socket.gethostname()} has {address} as its first address: give the "
                     "address of one with --address")
