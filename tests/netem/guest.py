"""A User-Mode Linux guest: a kernel as a process, on the host's own files. Debian's has netem where the host's may not.

It has one CPU and the host's time. A system call takes some 20 µs there, and while the host lets others run, all its
links stand still, which costs a rate limit what it had not saved up (a frame). So its rates are a few MB/s, and it is
started in real time on one core: its kernel and its processes are processes of the host that pass a baton to and fro,
which is slow, and slowest under load, if another core has to be woken up for it.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
_MEMORY = "3072M"
_NEEDED = {"linux.uml": "user-mode-linux", "modprobe": "kmod", "gcc": "gcc", "chrt": "util-linux"}
_PRIORITY = 5      # of real time, below the delay processes of a network on the host itself


def why_not() -> str | None:
    """None if a guest can be started here, else the reason."""
    for program, package in _NEEDED.items():
        if shutil.which(program) is None:
            return f"the program {program} is missing (apt install {package})"
    return None


def run(command: str, directory: Path, patience: float) -> None:
    """Boot a guest that does `command`, lines of shell, and powers off.

    `directory` is the guest's ``/run/out``, all that it can write to. Raises AssertionError with what was said last if
    the guest is not off after `patience` seconds, died, or if the command's exit status was not 0.
    """
    preload = directory / "xstate.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", preload, HERE / "xstate.c"], check=True)
    (directory / "command").write_text(command)
    with (directory / "console").open("wb") as console:
        guest = subprocess.Popen(
            ["chrt", "--fifo", str(_PRIORITY), "taskset", "--cpu-list", str(max(os.sched_getaffinity(0))),
             "linux.uml", f"mem={_MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
             f"init={HERE / 'init.sh'}", f"OUT={directory}", "con=null", "con0=null,fd:1", "con1=null",
             f"uml_dir={directory}", "umid=guest"],
            env={**os.environ, "LD_PRELOAD": str(preload)}, stdin=subprocess.DEVNULL, stdout=console,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            guest.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:      # the kernel's helpers and the guest's processes are the host's, in the session that we made
            if guest.poll() is None:
                os.killpg(guest.pid, signal.SIGKILL)
                guest.wait()
    last = "\n".join(_tail(directory / name) for name in ("console", "said"))
    status = directory / "status"
    assert status.exists(), f"the guest did not come to the end of its command within {patience:.0f} s:\n{last}"
    assert status.read_text() == "0\n", f"the guest's command ended with status {status.read_text().strip()}:\n{last}"


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-60:]) if file.exists() else ""
