"""DistributedDataParallel over the backend, and scripts that know nothing of it."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import frogtorch

STEPS = 4

SCRIPT = """
import hashlib, os, torch, torch.distributed as dist
dist.init_process_group("frogtorch")
torch.manual_seed(3)
model = torch.nn.Linear(8, 4)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp(torch.full((2, 8), dist.get_rank() + 1.0)).sum().backward()
same = [None] * dist.get_world_size()
dist.all_gather_object(same, model.weight.grad.unique().tolist())
if dist.get_rank() == 0:
    print("gradients", same, dist.get_backend())
dist.destroy_process_group()
"""


def network():
    torch.manual_seed(17)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                               torch.nn.Linear(64, 1))


def batch(rank, step):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * rank + step))
    return x, x.sum(1, keepdim=True).sin()


def digest(model):
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def by_hand(size):
    """The same training in one process: gradients times 1/W, as DDP has them, and added in the order of ranks."""
    model = network()
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=0.05)
    for step in range(STEPS):
        gradients = []
        for rank in range(size):
            x, y = batch(rank, step)
            loss = torch.nn.functional.mse_loss(model(x), y)
            gradients.append([g * (1.0 / size) for g in torch.autograd.grad(loss, parameters)])
        for parameter, parts in zip(parameters, zip(*gradients, strict=True), strict=True):
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            parameter.grad = total
        optimiser.step()
    return digest(model)


@pytest.mark.parametrize("algorithm", ["shard", "pipelined", "whole", "direct"])
@pytest.mark.parametrize("size", [2, 3])
def test_ddp_ends_with_the_bits_of_summing_in_rank_order(ranks, size, algorithm):
    def run(rank, size):
        found = []
        for bucket_view in (False, True):
            model = network()
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view, bucket_cap_mb=0.01)
            optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
            for step in range(STEPS):
                x, y = batch(rank, step)
                optimiser.zero_grad(set_to_none=True)
                torch.nn.functional.mse_loss(ddp(x), y).backward()
                optimiser.step()
            found.append(digest(model))
        return found

    expected = by_hand(size)
    options = frogtorch.Options(all_reduce=algorithm, chunk_bytes=1000)
    assert ranks(size, run, options=options) == [[expected, expected]] * size


def test_hooks_that_wait_inside_callbacks(ranks):
    # PowerSGD starts collectives in callbacks of futures, and waits for them there.
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def run(rank, size):
        found = []
        for hook in ("allreduce", "powerSGD"):
            model = network()
            ddp = DistributedDataParallel(model)
            if hook == "allreduce":
                ddp.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
            else:
                state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1,
                                                    start_powerSGD_iter=2)
                ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
            for step in range(STEPS):
                x, y = batch(rank, step)
                optimiser.zero_grad()
                torch.nn.functional.mse_loss(ddp(x), y).backward()
                optimiser.step()
            found.append(digest(model))
        return found

    first, second = ranks(2, run)
    assert first == second
    assert first[0] == by_hand(2)


def test_a_failed_all_reduce_fails_backward(world):
    def run(rank, size):
        ddp = DistributedDataParallel(network())
        x, y = batch(rank, 0)
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        if rank == 1:
            os._exit(1)
        try:
            loss.backward()
        except RuntimeError as error:
            return str(error)
        return None

    text, _ = world(2, run, timeout=20).results(expected_dead=[1])
    assert "all_reduce" in text
    assert "rank 1 at 127.0.0.1" in text


def test_an_unmodified_script_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script],
                         capture_output=True, text=True, timeout=250, check=False,
                         env={**os.environ, "FROGTORCH_TELEMETRY": str(tmp_path), "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    # d(sum)/d(weight) is the sum of two equal rows: 2 on rank 0, 4 on rank 1; DDP's mean is 3.
    assert "gradients [[3.0], [3.0]] frogtorch" in run.stdout
    for rank in range(2):
        lines = [json.loads(line) for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines()]
        reduces = [line for line in lines if line["collective"] == "all_reduce"]
        # (8 x 4 + 4) x 4 bytes; half of them in each phase.
        assert [(line["nbytes"], line["payload_received"], line["rank"]) for line in reduces] == [(144, 144, rank)]
