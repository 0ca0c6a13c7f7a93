"""A run directory made without a network, so that what reads runs can be tested, and looked at.

``python tests/scenarios/conftest.py DIRECTORY`` writes one there, and prints its report.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.records import Fidelity, Measurement, Outcome, Prediction, append, load, sha256

ROOT = Path(__file__).parents[2]
WORLDS = {
    2: ("seattle-ai", "newyork-1"),
    3: ("seattle-ai", "seattle-gateway", "newyork-1"),
    4: ("seattle-ai", "seattle-gateway", "seattle-2", "newyork-1"),
    6: ("seattle-ai", "seattle-gateway", "seattle-2", "newyork-1", "newyork-2", "chicago-1"),
}
SIZES = (4096, 65536, 262144, 2_100_000, 4_200_000, 8_400_000, 16_900_000)
GOODPUT = 0.7e6 * 1448 / 1514
GRADIENTS = 16_867_332
SCENARIO = """\
name: synthetic
topology: topology.yaml
worlds:
%s
arms: [gloo, shard]
repetitions: 6
speedup: 10
all_reduce:
  intercept: 4096 B
  slope: [2.1 MB, 4.2 MB, 8.4 MB, 16.9 MB]
  beside: [64 KiB, 256 KiB]
training: {steps: 48, warmup: 8}
"""


def a(arm: str, world_size: int) -> float:
    return 0.2 * (world_size - 1) if arm == "gloo" else 0.09


def b(arm: str, world_size: int) -> float:
    """Per path, of DESIGN's theory: W-1 times apart."""
    return 2 / world_size / GOODPUT * (world_size - 1 if arm == "gloo" else 1)


def speedup(point: dict) -> int:
    return 10 if point["nbytes"] >= 1 << 20 else 1


def write_run(directory: Path, noise: float = 0.01, bias: float = 1.03, seed: int = 1,
              sizes: tuple[int, ...] = tuple(WORLDS), network: str = "seattle-newyork") -> Path:
    """Write a run of the worlds `sizes`, whose times are a + b·n; measured `bias` times that, times 1 ± noise.

    `network` is what its topology is called.
    """
    worlds = {size: WORLDS[size] for size in sizes}
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "topology.yaml").write_text((ROOT / "topologies/seattle-newyork.yaml").read_text().replace(
        "name: seattle-newyork", f"name: {network}"))
    topology = sha256(directory / "topology.yaml")
    (directory / "scenario.yaml").write_text(
        SCENARIO % "\n".join(f"  {size}: [{', '.join(hosts)}]" for size, hosts in worlds.items()))
    (directory / "environment.json").write_text(json.dumps({"schema": 1, "networks": [
        {"engine": "netem", "congestion": "cubic", "speedup": 10.0, "kernel": "6.1.0", "bias": 0.0003},
        {"engine": "netem", "congestion": "cubic", "speedup": 1.0, "kernel": "6.1.0", "bias": 0.0003}]}))
    points = [{"arm": arm, "world_size": size, "hosts": hosts} for size, hosts in worlds.items()
              for arm in ("gloo", "shard")]
    times = [({**point, "workload": "all_reduce", "nbytes": n},
              a(point["arm"], point["world_size"]) + b(point["arm"], point["world_size"]) * n)
             for point in points for n in SIZES]
    steps = [({**point, "workload": "training", "nbytes": GRADIENTS},
              0.05 + b(point["arm"], point["world_size"]) * GRADIENTS) for point in points]
    predictions = directory / "predictions.jsonl"
    for basis, of, factor in (("blind", times + steps, 1.0), ("closed form", times, 0.9)):
        append(predictions, [Prediction(**point, basis=basis, seconds=t * factor, speedup=speedup(point),
                                        date="2026-01-02T03:04:05+00:00", topology_sha256=topology)
                             for point, t in of])
    digest = sha256(predictions)

    def measured(point: dict, t: float, repetition: int) -> Measurement:
        k = speedup(point)
        seconds = t * bias * (1 + rng.uniform(-noise, noise))
        return Measurement(**point, repetition=repetition, speedup=k, seconds=seconds, clock_seconds=seconds / k,
                           rank_seconds=(seconds / k,) * point["world_size"], campaign=0 if k == 10 else 1,
                           prediction=digest)

    append(directory / "measurements.jsonl",
           [measured(point, t, repetition) for repetition in range(6) for point, t in times])
    append(directory / "measurements.jsonl",
           [measured(point, t, step) for step in range(8, 48) for point, t in steps])
    append(directory / "outcomes.jsonl", [
        Outcome(**point, speedup=10, rank=rank, steps=48, held_out_loss=0.493987, all_reduces=95,
                parameters_sha256=("ab" if point["arm"] == "gloo" else "cd") * 32)
        for point, _ in steps for rank in range(point["world_size"])])
    append(directory / "fidelity.jsonl", [
        Fidelity(campaign=campaign, when=when, speedup=k, source=source, target=target, rtt_seconds=0.07 / k,
                 expected_rtt_seconds=0.07 / k, goodput=GOODPUT * k, expected_goodput=GOODPUT * k, valid=True)
        for campaign, k in ((0, 10), (1, 1)) for when in ("before", "after")
        for source in WORLDS[6] for target in WORLDS[6] if source != target])
    (directory / "telemetry").mkdir(exist_ok=True)
    for rank in range(4):
        (directory / "telemetry" / f"rank{rank}.jsonl").write_text("".join(json.dumps({
            "schema": 1, "group": "default", "rank": rank, "world_size": 4, "round": number, "collective": "all_reduce",
            "algorithm": "shard", "op": "sum", "dtype": "float32", "nbytes": nbytes, "start": 1.0, "seconds": 0.3,
            "publish": 0.0005, "phase1": 0.137, "phase2": 0.160, "peers": {}, "workload": "training", "speedup": 10.0,
            "campaign": 0, "arm": "shard",
        }) + "\n" for number in range(3) for nbytes in (4_202_500, 12_664_832)))
    return directory


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """write_run into this test's directory, under a name, with its keyword arguments."""
    return lambda name="run", **options: write_run(tmp_path / name, **options)


@pytest.fixture(scope="session")
def exact_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose measurements are 1.03 times its predictions, without noise. Read only."""
    return write_run(tmp_path_factory.mktemp("exact") / "run", noise=0.0)


@pytest.fixture(scope="session")
def status_of() -> Callable[[Path], int]:
    """The status with which a command that measured a run has to end: 1 where its links were off, which it says.

    A machine that is busy with something else disturbs links; that is no fault of what measures them.
    """
    return lambda run: 0 if all(probe.valid for probe in load(run / "fidelity.jsonl", Fidelity)) else 1


if __name__ == "__main__":
    from rich.console import Console

    from scenarios.report import report

    Console(width=100).print(report(write_run(Path(sys.argv[1])))[0])
