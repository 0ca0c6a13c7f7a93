"""The founding workload: a six-layer MLP of width 1024, trained on a synthetic regression, its data by rank.

What it is comes from the original experiment: 4,216,833 parameters (16.867 MB in fp32), seed 17, SGD with a learning
rate of 0.02, mean squared error, batch 64 a rank; held out are 4,096 samples that all ranks share.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

BATCH = 64
LEARNING_RATE = 0.02
_INPUTS = 16

loss = nn.functional.mse_loss


def model(width: int = 1024) -> nn.Module:
    """The model, initialised alike on every rank. Sets torch's seed."""
    torch.manual_seed(17)
    layers: list[nn.Module] = [nn.Linear(_INPUTS, width), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the workload."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def batches(rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 64 of this rank: different on every rank, whatever the world."""
    generator = torch.Generator().manual_seed(17 * 1000 + rank)
    while True:
        yield batch(generator, BATCH)


def batch(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """`count` inputs [count, 16] and their targets [count, 1]: ``sin(x·t) + 0.3 x·t`` for one fixed t."""
    target = torch.randn(_INPUTS, generator=torch.Generator().manual_seed(7))
    inputs = torch.randn(count, _INPUTS, generator=generator)
    projection = inputs @ target
    return inputs, (torch.sin(projection) + 0.3 * projection).unsqueeze(1)


@torch.no_grad()
def held_out(model: nn.Module) -> dict[str, float]:
    """Mean squared error on the 4,096 samples that no rank trains on."""
    inputs, targets = batch(torch.Generator().manual_seed(4242), 4096)
    return {"loss": float(loss(model(inputs), targets))}
