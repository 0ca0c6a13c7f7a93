"""The kernel's netem, in a User-Mode Linux guest: the links are what they should be, and so is what is measured there.

The same scenario runs on the host itself by its best engine: two engines, two kernels, and one exchange.
"""

import compileall
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

import guest
import pytest

from scenarios.records import Fidelity, Measurement, Outcome, load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATAGRAMS = 60_000
GUEST = f"""\
set -e
cd /run/out/code
export PYTHONPATH=/run/out/code
{sys.executable} -m frogtorch measure /run/out/run --engine netem
{sys.executable} {HERE / "losses.py"} {DATAGRAMS} >/run/out/lost
"""
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(700)]      # the guest and the host have 600


@pytest.fixture(scope="module")
def measured(need, tmp_path_factory):
    """Two directories: what a guest has written (`run`, and `lost`, a number of datagrams), and the host's `run`.

    Both measure at the same time: the guest keeps to one core, and for the host the links are slow.
    """
    reason = guest.why_not()
    if reason is not None:
        need("uml", reason)
    inside, outside = tmp_path_factory.mktemp("guest"), tmp_path_factory.mktemp("host")
    # Compiled here: there it would take seconds, at every start.
    for package in ("emulator", "frogtorch", "scenarios"):
        shutil.copytree(ROOT / package, inside / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(inside / "code", quiet=1)
    frogtorch = [sys.executable, "-m", "frogtorch"]
    subprocess.run([*frogtorch, "predict", HERE / "scenario.yaml", "--output", outside / "run"], cwd=ROOT, check=True,
                   capture_output=True)
    shutil.copytree(outside / "run", inside / "run")
    with (outside / "said").open("wb") as said:
        host = subprocess.Popen([*frogtorch, "measure", outside / "run", "--engine", "nfqueue"], cwd=ROOT, stdout=said,
                                stderr=said)
    try:
        guest.run(GUEST, inside, 400)
        assert host.wait(200) == 0, (outside / "said").read_text()
    finally:
        if host.poll() is None:
            host.send_signal(signal.SIGINT)      # it takes its links down
            host.wait()
    return inside, outside


@pytest.fixture(scope="module")
def inside(measured):
    return measured[0]


@pytest.fixture(scope="module")
def outside(measured):
    return measured[1] / "run"


def exchanges(run):
    """Median seconds that a step's exchange took, by arm: its computation, slower in the guest, is not in them."""
    steps = load(run / "measurements.jsonl", Measurement)
    return {arm: median(step.exchange_seconds for step in steps if step.arm == arm) for arm in ("gloo", "shard")}


def hashes(run):
    """The parameters' hashes that ranks ended with, by arm."""
    outcomes = load(run / "outcomes.jsonl", Outcome)
    return {arm: {outcome.parameters_sha256 for outcome in outcomes if outcome.arm == arm} for arm in ("gloo", "shard")}


def test_the_engine_is_netem(inside):
    networks = json.loads((inside / "run/environment.json").read_text())["networks"]
    assert {network["engine"] for network in networks} == {"netem"}


def test_every_path_is_what_the_topology_says(inside):
    seen = load(inside / "run/fidelity.jsonl", Fidelity)
    assert len(seen) == 2 * 12      # before and after
    for path in seen:
        assert path.goodput == pytest.approx(0.5e6 * 1448 / 1514, rel=0.01)
        assert path.rtt_seconds == pytest.approx(40e-3, abs=1.2e-3)      # 3 %


def test_as_much_is_lost_as_should_be(inside):
    share = int((inside / "lost").read_text()) / DATAGRAMS
    assert share == pytest.approx(0.01, abs=0.0015)      # 3.7 standard deviations


@pytest.mark.parametrize("arm", ["gloo", "shard"])
def test_an_exchange_takes_as_long_as_on_netfilter_queues(inside, outside, arm):
    assert exchanges(inside / "run")[arm] == pytest.approx(exchanges(outside)[arm], rel=0.02)


def test_all_ranks_of_both_end_with_the_same_parameters(inside, outside):
    for arm, ended in hashes(inside / "run").items():
        assert len(ended) == 1, arm
        assert ended == hashes(outside)[arm]
