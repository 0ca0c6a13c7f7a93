"""Handwritten digits: a small convolutional network on scikit-learn's copy of the UCI data set, sharded over ranks.

1,797 images of 8 x 8 pixels in 10 classes. Of a fixed shuffle the last 360 are held out, the others dealt to the ranks
in turn: no image is on two ranks. 38,282 parameters (153 kB in fp32), one bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn

BATCH = 32
HELD_OUT = 360

loss = nn.functional.cross_entropy


@cache
def images() -> tuple[Tensor, Tensor]:
    """All images [1797, 1, 8, 8], pixels from 0 to 1, and their classes [1797], in an order that is always the same.

    Raises ModuleNotFoundError without scikit-learn, which is part of the testbed.
    """
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(7))
    return (torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8)[order],
            torch.from_numpy(classes).long()[order])


def model() -> nn.Module:
    """The model, initialised alike on every rank. Sets torch's seed."""
    torch.manual_seed(17)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the workload."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches(rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 32 of this rank's share, which is shuffled for every epoch; what is left of an epoch is left out.

    Raises ValueError for a world so large that a share is no batch.
    """
    inputs, classes = (part[:-HELD_OUT][rank::world_size] for part in images())
    if len(classes) < BATCH:
        raise ValueError(f"digits has {len(images()[1]) - HELD_OUT} images to train on, too few for {world_size} ranks "
                         f"with a batch of {BATCH} each")
    return _shuffled(inputs, classes, torch.Generator().manual_seed(1000 + rank))


def _shuffled(inputs: Tensor, classes: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        order = torch.randperm(len(classes), generator=generator)
        for lo in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[lo:lo + BATCH]
            yield inputs[chosen], classes[chosen]


@torch.no_grad()
def held_out(model: nn.Module) -> dict[str, float]:
    """Cross entropy, and the share of images that are told right, of the 360 that no rank trains on."""
    inputs, classes = (part[-HELD_OUT:] for part in images())
    outputs = model(inputs)
    return {"loss": float(loss(outputs, classes)),
            "accuracy": float((outputs.argmax(1) == classes).float().mean())}
