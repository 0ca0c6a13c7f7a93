"""A user's own training script, unchanged, as an arm's workload."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import records
from scenarios.ranks import Place, RankError, Ranks
from scenarios.scenario import load
from scenarios.script import Script, loss_in, read, scripted

ROOT = Path(__file__).parents[2]

SCRIPT = """\
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import neighbour

STEPS = int(sys.argv[1])


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(neighbour.SEED)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.randn(8, 3, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x = torch.ones(1, 3)
    print(f"backend {dist.get_backend()}, held-out loss: {float((model(x) - 3).square()):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "neighbour.py").write_text("SEED = 5\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def run(tmp_path, arm, path, *arguments):
    """The results of a script on two ranks of this machine."""
    with Ranks([Place(rank=rank, world_size=2, host="here", store=str(tmp_path / f"store-{arm}"), arms=(), timeout=30.0)
                for rank in range(2)]) as ranks:
        return ranks.tell("script", path=str(path), sha256=records.sha256(path), arguments=list(arguments), arm=arm,
                          master="127.0.0.1")


@pytest.mark.slow
def test_a_script_runs_under_every_arm_and_its_steps_loss_and_parameters_are_seen(script, tmp_path):
    ended = {arm: run(tmp_path, arm, script, "6") for arm in ("gloo", "shard")}
    losses, hashes = set(), set()
    for arm, results in ended.items():
        for result in results:
            assert len(result["steps"]) == 6
            assert all(start < end for start, end in result["steps"])
            assert result["nbytes"] == 4 * (3 + 1)
            assert f"backend {'frogtorch' if arm == 'shard' else 'gloo'}, " in result["printed"]
            losses.add(result["held_out_loss"])
            hashes.add(result["parameters_sha256"])
    # Two terms have one order of summation: one result on all ranks, in both arms.
    assert len(losses) == len(hashes) == 1
    assert 0 < losses.pop() < 3
    reduced = [seen for seen in ended["shard"][0]["telemetry"] if seen["collective"] == "all_reduce"]
    assert [seen["nbytes"] for seen in reduced] == [16] * 6


@pytest.mark.slow
@pytest.mark.parametrize(("text", "error"), [
    ("import torch.distributed as dist\ndist.init_process_group('nccl')\n",
     "ValueError: the script asks for the backend 'nccl'; here are CPUs, whose backend is the arm's"),
    ("raise SystemExit('no data')\n", "SystemExit: no data"),
    ("print('hello')\n", "RuntimeError: the script has ended and never called torch.distributed.init_process_group"),
])
def test_what_a_script_does_wrong_is_told(tmp_path, text, error):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(RankError) as failed:
        run(tmp_path, "shard", tmp_path / "wrong.py")
    assert error in str(failed.value)


@pytest.mark.parametrize(("printed", "loss"), [
    ("held-out loss: 0.25\n", 0.25), ("epoch 1 held out loss 2\nepoch 2 held out loss 1.5e-3, done\n", 1.5e-3),
    ("held_out_loss=nan", pytest.approx(float("nan"), nan_ok=True)), ("loss: 3\n", None),
])
def test_a_printed_loss_is_found(printed, loss):
    assert loss_in(printed) == loss


SCENARIO = """\
name: mine
topology: topology.yaml
worlds: {2: [one, two]}
arms: [gloo, shard]
training: {steps: 3, warmup: 2}
"""

TOPOLOGY = """\
name: pair
sites: [here]
hosts:
  one: {site: here}
  two: {site: here}
paths:
  - {between: [here, here], rate: 20 MB/s, delay: 2 ms}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    return tmp_path / "mine.yaml"


def test_a_script_stays_with_its_run_and_one_that_has_changed_is_refused(script, scenario, tmp_path):
    loaded, mine = scripted(load(scenario), script, ("6",))
    assert loaded.training.script == str(script)
    mine.write(tmp_path)
    assert read(tmp_path) == mine == Script(str(script), ("6",), records.sha256(script))
    assert (tmp_path / "script.py").read_text() == SCRIPT
    mine.check()
    script.write_text(SCRIPT + "\n")
    with pytest.raises(ValueError, match=r"train\.py is not what it was when this run was predicted"):
        mine.check()
    assert read(scenario.parent / "nowhere") is None


@pytest.mark.parametrize(("old", "new", "error"), [
    ("arms: [gloo, shard]", "arms: [gloo, faithful]", "arm 'faithful' is a comm hook, and a script registers its own"),
    ("arms:", "speedup: 10\narms:", "W = 2 is sped up"),
    ("training: {steps: 3, warmup: 2}", "all_reduce: {intercept: 4 KiB, slope: [2.1 MB, 4.2 MB, 8.4 MB]}",
     "and there is none; add training"),
])
def test_what_a_script_cannot_stand_in_for_is_refused(script, scenario, old, new, error):
    scenario.write_text(SCENARIO.replace(old, new))
    with pytest.raises(ValueError, match=error):
        scripted(load(scenario), script)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(700)      # a campaign whose links were off is measured twice
def test_a_script_is_measured_between_hosts(script, scenario, tmp_path, status_of):
    done = subprocess.run([sys.executable, "-m", "frogtorch", "compare", str(scenario), "--output",
                           str(tmp_path / "run"), "--script", str(script), "--arguments", "6"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == status_of(tmp_path / "run"), done.stderr
    measured = records.load(tmp_path / "run" / "measurements.jsonl", records.Measurement)
    assert sorted((m.arm, m.repetition) for m in measured) == [
        (arm, step) for arm in ("gloo", "shard") for step in range(2, 6)]
    assert all(m.workload == "script" and m.nbytes == 16 and m.seconds > 2 * 0.002 for m in measured)
    outcomes = records.load(tmp_path / "run" / "outcomes.jsonl", records.Outcome)
    assert len({o.parameters_sha256 for o in outcomes}) == len({o.held_out_loss for o in outcomes}) == 1
    assert "backend frogtorch" in (tmp_path / "run" / "printed" / "shard-W2-rank1.txt").read_text()
    assert json.loads((tmp_path / "run" / "script.json").read_text())["arguments"] == ["6"]
    assert "arms that keep the sum" in done.stdout
    assert "The founding experiment's figures" not in done.stdout
    assert "Beside the founding experiment" not in (tmp_path / "run" / "report.html").read_text()
