"""The founding workload: a six-layer MLP of width 1024, trained on a synthetic regression, its data by rank.

What it is comes from the original experiment: 4,216,833 parameters (16.867 MB in fp32), seed 17, SGD with a learning
rate of 0.02, mean squared error, batch 64 a rank; held out are 4,096 samples that all ranks share.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

BATCH = 64
LEARNING_RATE = 0.02
_INPUTS = 16


def mlp() -> nn.Sequential:
    """The model, initialised alike on every rank. Sets torch's seed."""
    torch.manual_seed(17)
    layers: list[nn.Module] = [nn.Linear(_INPUTS, 1024), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(1024, 1))


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the workload."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def data(rank: int) -> torch.Generator:
    """The generator that this rank's inputs are drawn from: different on every rank."""
    return torch.Generator().manual_seed(17 * 1000 + rank)


def batch(generator: torch.Generator, count: int = BATCH) -> tuple[Tensor, Tensor]:
    """`count` inputs [count, 16] and their targets [count, 1]: ``sin(x·t) + 0.3 x·t`` for one fixed t."""
    target = torch.randn(_INPUTS, generator=torch.Generator().manual_seed(7))
    inputs = torch.randn(count, _INPUTS, generator=generator)
    projection = inputs @ target
    return inputs, (torch.sin(projection) + 0.3 * projection).unsqueeze(1)


def train_step(model: nn.Module, optimise: torch.optim.Optimizer, generator: torch.Generator) -> None:
    """One step whole: data, forward, backward (in which DDP exchanges the gradients), optimiser."""
    inputs, targets = batch(generator)
    optimise.zero_grad(set_to_none=True)
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimise.step()


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """Mean squared error on the 4,096 samples that no rank trains on."""
    inputs, targets = batch(torch.Generator().manual_seed(4242), 4096)
    return float(nn.functional.mse_loss(model(inputs), targets))


@torch.no_grad()
def parameters_sha256(model: nn.Module) -> str:
    """SHA-256 of the flattened parameters: equal on two ranks only if every bit is."""
    flat = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
