"""Machines that are there already meet, for a probe or a run: rank 0 listens, the others come and do what it says.

Each side sends a greeting with 16 random bytes; a channel's key is an HMAC-SHA-256 of both under the secret, so the
first message that each side seals proves that it knows it, and one of another meeting proves nothing. Nothing is
encrypted: what passes are commands and what was measured. All machines run the same code, or do not meet.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path as File

from emulator.hosts import code
from emulator.probe.channel import Channel, ChannelClosedError, ChannelError, Message
from emulator.probe.coordinate import over_pipes

SECRET = "FROGTORCH_SECRET"
LEAST_SECRET = 8
"""Bytes: less can be guessed."""
PATIENCE = 300.0
"""Seconds for all machines to have come."""
_GREETING = b"frogtorch meets 1\n"
_NONCE = 16
_HANDSHAKE = 10.0      # seconds for one machine to say who it is
_SILENCE = 90      # seconds after which a machine that answers nothing, not even its kernel, is gone
_MOST_HOSTS = 1000


class MeetError(RuntimeError):
    """The machines did not come together; the message says which, and why."""


@dataclass(frozen=True)
class Place:
    """Which machine of how many this is, and where they meet."""

    rank: int
    world: int
    master: tuple[str, int]
    name: str
    address: str | None
    """By which the others reach it; None: the one from which it reaches rank 0."""
    secret: bytes = field(repr=False)


def place(rank: int | None, world: int | None, master: str | None, name: str | None, address: str | None,
          secret_file: File | None, environment: Mapping[str, str] = os.environ) -> Place:
    """Fill in from torchrun's environment what is not given. Raises ValueError for what is missing or impossible."""
    def number(given: int | None, variable: str, option: str) -> int:
        if given is not None:
            return given
        said = environment.get(variable, "")
        if not said.isdecimal():
            raise ValueError(f"which of your machines is this? {option} is missing, and {variable} is {said!r}: give "
                             "each of them --rank, --world and --master, or start them with torchrun")
        return int(said)

    rank, world = number(rank, "RANK", "--rank"), number(world, "WORLD_SIZE", "--world")
    if not 2 <= world <= _MOST_HOSTS or not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} machines: a rank is from 0 to one less than --world, which is from 2 "
                         f"to {_MOST_HOSTS}")
    if environment.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise ValueError(f"LOCAL_WORLD_SIZE is {environment['LOCAL_WORLD_SIZE']}: start one process a machine "
                         "(torchrun --nproc-per-node 1)")
    if master is None:
        at, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not at or not port.isdecimal():
            raise ValueError("--master HOST:PORT is missing, and MASTER_ADDR and MASTER_PORT do not say it")
        # torchrun's own store listens at MASTER_PORT.
        master = f"{at}:{int(port) + 1}"
    at, _, port = master.rpartition(":")
    if not at or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--master {master!r} is no HOST:PORT, such as 10.0.0.1:29600")
    plain = name or "".join(letter if letter.isascii() and letter.isalnum() else "-"
                            for letter in socket.gethostname().partition(".")[0]).strip("-") or f"host-{rank}"
    if not (plain.isascii() and plain.replace("-", "").isalnum() and plain[0] != "-" != plain[-1]
            and len(plain) <= 59):
        raise ValueError(f"--name {plain!r} is no name for a host: up to 59 letters, digits and inner hyphens")
    secret = secret_file.read_bytes().strip() if secret_file else environment.get(SECRET, "").encode()
    if len(secret) < LEAST_SECRET:
        raise ValueError(f"the machines need a common secret of {LEAST_SECRET} bytes or more, in {SECRET} or a file "
                         "(--secret-file); make one: python3 -c 'import secrets; print(secrets.token_hex())'")
    return Place(rank, world, (at, int(port)), plain, address, secret)


@dataclass(frozen=True)
class Machine:
    """One that has come, as rank 0 sees it."""

    rank: int
    name: str
    address: str
    facts: Message
    """What it is, for the record."""
    channel: Channel | None
    """None: rank 0's own."""

    def __str__(self) -> str:
        return f"{self.name} (rank {self.rank}, {self.address})"


class Meeting:
    """All machines, by rank, and where more of their connections come in."""

    def __init__(self, machines: tuple[Machine, ...], listener: socket.socket, secret: bytes) -> None:
        self.machines = machines
        self._listener = listener
        self._secret = secret

    def end(self, error: BaseException | None) -> None:
        """Send the others home, with what went wrong if something did."""
        why = "it was interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or repr(error)
        for machine in self.machines:
            if machine.channel is not None:
                with suppress(ChannelError):
                    machine.channel.send({"do": "end"} | ({} if error is None else {"error": why}))

    def connection(self, machine: Machine, purpose: Message) -> socket.socket:
        """The connection that another `machine` has been asked to :func:`call` with, for `purpose`.

        Raises MeetError if it does not come, or there is an answer on the machine's channel before it.
        """
        assert machine.channel is not None      # it is not this one
        waited: list[socket.socket | Channel] = [self._listener, machine.channel]
        deadline = time.monotonic() + _HANDSHAKE
        while True:
            come, _, _ = select.select(waited, [], [], max(0.0, deadline - time.monotonic()))
            if self._listener not in come:
                raise MeetError(f"no further connection came from {machine}")
            sock, (host, *_) = self._listener.accept()
            try:
                channel = _channel(sock, self._secret, b"coordinator", f"the machine at {host}")
                if channel.receive(_HANDSHAKE) != purpose:
                    raise ChannelError("it is not the one that is expected now")
                channel.send({})
                sock.settimeout(None)
            except (ChannelError, OSError) as error:
                _let_go(sock, host, error)
                continue
            return sock


@contextmanager
def follow(where: Place, task: str) -> Iterator[Channel]:
    """Come to rank 0, for the `task` that it is to lead; the channel, when all have come.

    Raises MeetError or ChannelError.
    """
    deadline = time.monotonic() + PATIENCE
    said = None
    while True:
        try:
            sock = socket.create_connection(where.master, timeout=_HANDSHAKE)
            break
        except OSError as error:
            if str(error) != said:
                said = str(error)
                print(f"rank 0 is not at {_written(where.master)} yet ({said}); trying for {PATIENCE:.0f} s",
                      file=sys.stderr)
            if time.monotonic() > deadline:
                raise MeetError(f"rank 0 is not at {_written(where.master)} after {PATIENCE:.0f} s ({error}); is it "
                                "started, and is the port open?") from error
            time.sleep(0.5)
    with sock:
        channel = _channel(sock, where.secret, b"peer", f"rank 0 at {_written(where.master)}")
        channel.send({"rank": where.rank, "world": where.world, "name": where.name, "task": task,
                      "address": where.address or sock.getsockname()[0], "code": code.sha256(), "facts": _facts()})
        try:
            answer = channel.receive(PATIENCE + _HANDSHAKE)
        except ChannelClosedError:
            raise MeetError(f"rank 0 at {_written(where.master)} let this machine go without a word: either its secret "
                            f"({SECRET}, --secret-file) is another, or it was ended") from None
        if "error" in answer:
            raise MeetError(f"rank 0 refused: {answer['error']}")
        yield channel


def call(where: Place, purpose: Message) -> socket.socket:
    """One more connection to rank 0, which knows by `purpose` what it is for, and waits for it.

    Raises ChannelError or OSError.
    """
    sock = socket.create_connection(where.master, timeout=_HANDSHAKE)
    try:
        channel = _channel(sock, where.secret, b"peer", f"rank 0 at {_written(where.master)}")
        channel.send(purpose)
        channel.receive(_HANDSHAKE)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def lead(where: Place, task: str, tell: Callable[[int, int, str], None]) -> Iterator[Meeting]:
    """Be rank 0: wait for the others. All connections end with the block.

    `tell` is called with the machines that are here, all, and a text. Raises MeetError.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(_listener(where.master))
        except OSError as error:
            raise MeetError(f"cannot listen at {_written(where.master)}: {error.strerror}; --master is an address of "
                            "rank 0's machine, and a port that is free there") from error
        deadline = time.monotonic() + PATIENCE
        own_code = code.sha256()
        here: dict[int, tuple[Machine, Channel]] = {}
        own = where.address
        while len(here) < where.world - 1:
            tell(len(here) + 1, where.world, "waiting for the other machines")
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                sock, (host, *_) = listener.accept()
            except TimeoutError:
                absent = sorted({*range(1, where.world)} - {*here})
                raise _refusal(here, f"rank {', '.join(map(str, absent))} did not come within {PATIENCE:.0f} s"
                               ) from None
            try:
                machine, channel = _welcome(sock, host, where, task, own_code, here)
            except (ChannelError, OSError) as error:
                _let_go(sock, host, error)
                continue
            stack.callback(sock.close)
            here[machine.rank] = machine, channel
            own = own or sock.getsockname()[0]
        assert own is not None
        machines = Machine(0, where.name, own, _facts(), None), *(here[rank][0] for rank in range(1, where.world))
        named: dict[str, Machine] = {}
        for one in machines:
            if one is not (other := named.setdefault(one.name, one)):
                raise _refusal(here, f"two machines are called {one.name}, {other} and {one}: which host is which? "
                                     "Give them names with --name, for `frogtorch probe` and `frogtorch measure`")
        for _, channel in here.values():
            channel.send({})
        yield Meeting(machines, listener, where.secret)


def _refusal(here: Mapping[int, tuple[Machine, Channel]], why: str) -> MeetError:
    """What to raise, when all that are here have been told."""
    for _, channel in here.values():
        with suppress(ChannelError):
            channel.send({"error": why})
    return MeetError(why)


@contextmanager
def peers(meeting: Meeting) -> Iterator[tuple[dict[str, Channel], dict[str, str]]]:
    """A peer of a probe on every machine, which those of the others are already; they end with the block.

    Channels and addresses by the hosts' names, in rank order.
    """
    program = subprocess.Popen([sys.executable, "-m", "emulator.probe.peer"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        yield ({one.name: one.channel or over_pipes(program, one.name) for one in meeting.machines},
               {one.name: one.address for one in meeting.machines})
        meeting.end(None)
    except BaseException as error:
        meeting.end(error)
        raise
    finally:
        _end(program)


def _welcome(sock: socket.socket, host: str, where: Place, task: str, own_code: str, here: Mapping[int, object]
             ) -> tuple[Machine, Channel]:
    """Who came. Raises ChannelError for one that has not the secret, or is not expected as it is."""
    channel = _channel(sock, where.secret, b"coordinator", f"the machine at {host}")
    hello = channel.receive(_HANDSHAKE)
    rank, name, address, facts = (hello.get(key) for key in ("rank", "name", "address", "facts"))
    if not (isinstance(rank, int) and isinstance(name, str) and isinstance(address, str) and isinstance(facts, dict)):
        raise ChannelError("it does not say who it is")
    wrong = None
    if hello.get("world") != where.world:
        wrong = f"it expects {hello.get('world')} machines, and rank 0 expects {where.world}"
    elif not 0 < rank < where.world or rank in here:
        wrong = f"rank {rank} is not expected, or is here already"
    elif hello.get("task") != task:
        wrong = f"{name} was started to {hello.get('task')}, and rank 0 to {task}"
    elif hello.get("code") != own_code:
        wrong = (f"mixed code: {name} (rank {rank}) has other modules (SHA-256 {str(hello.get('code'))[:12]}…) than "
                 f"rank 0 ({own_code[:12]}…): install one version on every machine")
    if wrong is not None:
        channel.send({"error": wrong})
        raise ChannelError(wrong)
    channel.name = f"{name} (rank {rank}, {address})"
    return Machine(rank, name, address, facts, channel), channel


def _listener(master: tuple[str, int]) -> socket.socket:
    host, port = master
    resolved = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    # Debian's /etc/hosts has a machine's own name at 127.0.1.1, where no other machine would find it.
    named = str(resolved).startswith("127.") and host not in (resolved, "localhost")
    return socket.create_server(("" if named else host, port), backlog=64)


def _channel(sock: socket.socket, secret: bytes, side: bytes, name: str) -> Channel:
    """Greet, and make a channel whose key holds the randomness of both."""
    sock.settimeout(_HANDSHAKE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanishes without a word is noticed, whether there is something to send to it or not.
    for option, value in ((socket.TCP_KEEPIDLE, _SILENCE // 3), (socket.TCP_KEEPINTVL, _SILENCE // 6),
                          (socket.TCP_KEEPCNT, 4), (socket.TCP_USER_TIMEOUT, _SILENCE * 1000)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    mine = secrets.token_bytes(_NONCE)
    sock.sendall(_GREETING + mine)
    said = b""
    while len(said) < len(_GREETING) + _NONCE:
        data = sock.recv(len(_GREETING) + _NONCE - len(said))
        if not data:
            raise ChannelError(f"{name} has ended before it said who it is")
        said += data
        if not said.startswith(_GREETING[:len(said)]):
            raise ChannelError(f"{name} is no `frogtorch`, or of another version")
    theirs = said[len(_GREETING):]
    nonces = mine + theirs if side == b"coordinator" else theirs + mine
    key = hmac.digest(secret, b"frogtorch meets" + nonces, hashlib.sha256)
    return Channel(sock.recv, sock.sendall, sock.fileno(), key, side, name)


def _facts() -> Message:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = None
    return {"kernel": platform.release(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
            "torch": torch}


def _let_go(sock: socket.socket, host: str, error: Exception) -> None:
    print(f"{host}: {error}; let it go", file=sys.stderr)
    sock.close()


def _end(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.close()
    try:
        program.wait(5)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    program.stdout.close()


def _written(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
