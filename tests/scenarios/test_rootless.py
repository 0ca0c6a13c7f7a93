"""An ordinary user measures, in a user namespace: on real links, and leaving nothing."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emulator.hosts import userns
from scenarios.records import Fidelity, Measurement, load

ROOT = Path(__file__).parents[2]
USER = 54321      # nobody's number
pytestmark = pytest.mark.root
SCENARIO = """\
name: pair
topology: pair.yaml
worlds:
  2: [a, b]
arms: [gloo, shard]
repetitions: 3
all_reduce:
  intercept: 4 KiB
  slope: [1.1 MB, 1.6 MB, 2.1 MB]
"""
TOPOLOGY = """\
name: pair
sites: [s]
hosts:
  a: {site: s}
  b: {site: s}
paths:
  - {between: [s, s], delay: 5 ms, rate: 10 MB/s}
"""


def visible(*paths):
    """Lines of shell that show `paths` to everybody, also in directories that only root may enter, such as /root."""
    lines = []
    for path in paths:
        closed = next((above for above in reversed(path.parents) if not above.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            lines += [f"mount --bind '{path}' $room", f"mount -t tmpfs -o mode=755 none '{closed}'",
                      f"mkdir -p '{path}'", f"mount --move $room '{path}'"]
    return lines


def as_ordinary_user(*command):
    """The command that does `command` as an ordinary user, who sees this interpreter and this checkout."""
    script = "\n".join(["set -e", "room=$(mktemp -d)", *visible(Path(sys.base_prefix)), "rmdir $room",
                        f'exec setpriv --reuid {USER} --regid {USER} --clear-groups -- "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]


def frogtorch(*arguments):
    return as_ordinary_user("env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", "USER=ordinary", sys.executable,
                            "-m", "frogtorch", *arguments)


def processes():
    """Of the ordinary user's."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and owner(entry) == USER]


def owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def home(need):
    """A directory of the ordinary user's, in one that all may enter, as pytest's own is not."""
    tried = subprocess.run(as_ordinary_user(*userns.command(["true"])), capture_output=True, text=True)
    if tried.returncode:
        need("rootless", tried.stderr.strip())
    room = Path(subprocess.check_output(["mktemp", "--directory"], text=True).strip())
    (room / "pair.yaml").write_text(TOPOLOGY)
    (room / "scenario.yaml").write_text(SCENARIO)
    for path in (room, *room.iterdir()):
        os.chown(path, USER, USER)
    yield room
    for pid in processes():
        os.kill(pid, signal.SIGKILL)
    subprocess.run(["rm", "-r", room], check=True)


@pytest.mark.slow
@pytest.mark.timeout(700)      # a campaign whose links were off is measured twice
def test_compare_measures_and_leaves_nothing(home, status_of):
    done = subprocess.run(frogtorch("compare", home / "scenario.yaml", "--output", home / "run"), capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == status_of(home / "run"), done.stdout + done.stderr
    networks = json.loads((home / "run/environment.json").read_text())["networks"]
    assert {network["rootless"] for network in networks} == {True}
    # A MB one way takes 0.1046 s at 10 MB/s x 1448/1514, and an all-reduce of two ranks carries its size once each way.
    big = [seen for seen in load(home / "run/measurements.jsonl", Measurement) if seen.nbytes == 2_100_000]
    # None is faster; the fastest, as a busy machine holds some of them up, is not much slower.
    for arm in ("gloo", "shard"):
        assert 2.1 * 0.1046 < min(seen.seconds for seen in big if seen.arm == arm) < 2.1 * 0.1046 * 1.5
    assert len(load(home / "run/fidelity.jsonl", Fidelity)) == 4
    assert (home / "run/points.csv").stat().st_uid == USER
    eventually(lambda: not processes())
    name = next(line for line in done.stderr.splitlines() if line.startswith("run ")).split()[1].rstrip(":")
    assert [*Path("/run/netns").glob(f"ft-{name}-*")] == []


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_killed_run_leaves_nothing(home):
    run = subprocess.Popen(frogtorch("compare", home / "scenario.yaml", "--output", home / "run"),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: (home / "run/measurements.jsonl").exists(), 500)
    assert len(processes()) > 3      # the command, ranks, and what holds packets
    run.kill()
    run.wait()
    eventually(lambda: not processes())


def test_down_finds_nothing_to_take_down(home):
    done = subprocess.run(frogtorch("down"), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0
    assert "nothing of ours is up" in done.stdout


def test_an_ordinary_user_is_told_what_forbids_it():
    # Of its own children a user namespace may have none, so root of it is refused as an ordinary user is elsewhere.
    script = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    done = subprocess.run(["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *userns.command(["true"])],
                          capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1
    assert done.stderr.strip() == ("no user namespace: No space left on device (sysctl user.max_user_namespaces=15000 "
                                   "allows it)")
