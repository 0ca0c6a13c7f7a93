"""Machines that are there already meet for a probe: rank 0 listens and coordinates, the others do what it says.

Each side sends a greeting with 16 random bytes; the channel's key is an HMAC-SHA-256 of both under the secret, so the
first message that each side seals proves that it knows it, and one of another meeting proves nothing. Nothing is
encrypted: what passes are commands and rates.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path as File

from emulator.probe.channel import Channel, ChannelError
from emulator.probe.coordinate import over_pipes
from emulator.probe.peer import serve

SECRET = "FROGTORCH_PROBE_SECRET"
LEAST_SECRET = 8
"""Bytes: less can be guessed."""
PATIENCE = 300.0
"""Seconds for all machines to have come."""
_GREETING = b"frogtorch probe 1\n"
_NONCE = 16
_HANDSHAKE = 10.0      # seconds for one machine to say who it is
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
            raise ValueError(f"which network? Give --topology FILE, or on each of your machines --rank, --world and "
                             f"--master: {option} is missing, and {variable} is {said!r}")
        return int(said)

    rank, world = number(rank, "RANK", "--rank"), number(world, "WORLD_SIZE", "--world")
    if not 2 <= world <= _MOST_HOSTS or not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} machines: a rank is from 0 to one less than --world, which is from 2 "
                         f"to {_MOST_HOSTS}")
    if environment.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise ValueError(f"LOCAL_WORLD_SIZE is {environment['LOCAL_WORLD_SIZE']}: a probe wants one process a machine "
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


def follow(where: Place) -> None:
    """Come to rank 0 and do what it says, until it is done. Raises MeetError or ChannelError."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            sock = socket.create_connection(where.master, timeout=_HANDSHAKE)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise MeetError(f"rank 0 is not at {_written(where.master)} after {PATIENCE:.0f} s ({error}); is it "
                                "started, and is the port open?") from error
            time.sleep(0.5)
    with sock:
        channel = _channel(sock, where.secret, b"peer", f"rank 0 at {_written(where.master)}")
        address = where.address or sock.getsockname()[0]
        channel.send({"rank": where.rank, "world": where.world, "name": where.name, "address": address})
        answer = channel.receive(PATIENCE)
        if "error" in answer:
            raise MeetError(f"rank 0 refused: {answer['error']}")
        serve(channel)


@contextmanager
def lead(where: Place, tell: Callable[[int, int, str], None]
         ) -> Iterator[tuple[dict[str, Channel], dict[str, str]]]:
    """Wait for the others, and be rank 0 and a peer; channels and addresses by the hosts' names, in rank order.

    `tell` is called with the machines that are here, all, and a text. Raises MeetError.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(where.master, backlog=64))
        except OSError as error:
            raise MeetError(f"cannot listen at {_written(where.master)}: {error.strerror}; --master is an address of "
                            "rank 0's machine, and a port that is free there") from error
        deadline = time.monotonic() + PATIENCE
        here: dict[int, tuple[str, str, Channel]] = {}
        own = where.address
        while len(here) < where.world - 1:
            tell(len(here) + 1, where.world, "waiting for the other machines")
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                sock, (host, *_) = listener.accept()
            except TimeoutError:
                absent = sorted({*range(1, where.world)} - {*here})
                raise MeetError(f"rank {', '.join(map(str, absent))} did not come within {PATIENCE:.0f} s") from None
            try:
                rank, name, address, channel = _welcome(sock, host, where, here)
            except (ChannelError, OSError) as error:
                print(f"{host}: {error}; let it go", file=sys.stderr)
                sock.close()
                continue
            stack.callback(sock.close)
            here[rank] = name, address, channel
            own = own or sock.getsockname()[0]
        assert own is not None
        program = subprocess.Popen([sys.executable, "-m", "emulator.probe.peer"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        stack.callback(_end, program)
        here[0] = where.name, own, over_pipes(program, where.name)
        for rank in range(1, where.world):
            here[rank][2].send({})
        names = [here[rank][0] for rank in range(where.world)]
        unique = [f"{name}-{rank}" if names.count(name) > 1 else name for rank, name in enumerate(names)]
        yield ({name: here[rank][2] for rank, name in enumerate(unique)},
               {name: here[rank][1] for rank, name in enumerate(unique)})


def _welcome(sock: socket.socket, host: str, where: Place, here: Mapping[int, object]
             ) -> tuple[int, str, str, Channel]:
    """Who came: rank, name, address. Raises ChannelError for one that has not the secret, or is not expected."""
    sock.settimeout(_HANDSHAKE)
    channel = _channel(sock, where.secret, b"coordinator", f"the machine at {host}")
    hello = channel.receive(_HANDSHAKE)
    rank, name, address = hello.get("rank"), hello.get("name"), hello.get("address")
    if not (isinstance(rank, int) and isinstance(name, str) and isinstance(address, str)):
        raise ChannelError("it does not say who it is")
    wrong = None
    if hello.get("world") != where.world:
        wrong = f"it expects {hello.get('world')} machines, and rank 0 expects {where.world}"
    elif not 0 < rank < where.world or rank in here:
        wrong = f"rank {rank} is not expected, or is here already"
    if wrong is not None:
        channel.send({"error": wrong})
        raise ChannelError(wrong)
    return rank, name, address, channel


def _channel(sock: socket.socket, secret: bytes, side: bytes, name: str) -> Channel:
    """Greet, and make a channel whose key holds the randomness of both."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanishes without a word is noticed within a minute and a half.
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4)):
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
            raise ChannelError(f"{name} is no `frogtorch probe`, or of another version")
    theirs = said[len(_GREETING):]
    nonces = mine + theirs if side == b"coordinator" else theirs + mine
    key = hmac.digest(secret, b"frogtorch probe" + nonces, hashlib.sha256)
    return Channel(sock.recv, sock.sendall, sock.fileno(), key, side, name)


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
