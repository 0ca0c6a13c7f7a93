"""A rank on a slow host: what it computes is computed as ever, and then it sleeps until it has taken so much longer.

It sleeps and does not spin. Ranks share the machine's cores, and a slow host has cores of its own: one that was busy
while it waits would take them from its neighbours, from the links that a process delays, and from this rank's own
thread that serves what the others read meanwhile. Less of a CPU (a cgroup's quota) would slow that thread too, comes in
slices longer than a backward pass, and is not to be had without privilege; sleeping is the same in every runtime. So
computing alone is slow, as it is in the simulator: messages, copies and sums of an exchange take what they took.

No number is touched: a training ends with the same parameters as without.
"""

from __future__ import annotations

import time

from torch import nn
from torch.autograd.graph import get_gradient_edge

__all__ = ["Slowdown"]


class Slowdown:
    """Makes a model's training compute `factor` times as long, each piece as it goes.

    A block ``with slowdown:`` is a piece. So is a forward pass of the model, and in a backward pass what leads to each
    gradient: DDP hears of that after the sleep, so buckets become ready late, one after the other, as on a slow host.
    What DDP and its hooks do between two gradients is exchange, and no piece of computing. To be made when the model is
    under DDP, before whoever notes when gradients are there.
    """

    def __init__(self, factor: float, model: nn.Module) -> None:
        self._factor = factor
        self._began = 0.0
        self._owed = 0.0
        """Seconds yet to sleep; below 0 where the last sleep was too long, as sleeps are by some 0.1 ms."""
        self.slept = 0.0
        """Seconds, since the last :meth:`step`."""
        if factor > 1:
            model.register_forward_pre_hook(lambda *_: self._begin())
            model.register_forward_hook(lambda *_: self._end())
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            # Kept, as their hooks go with them. DDP has put its own on them before: it runs before this one.
            self._accumulators = [get_gradient_edge(parameter).node for parameter in parameters]
            for parameter, accumulator in zip(parameters, self._accumulators, strict=True):
                parameter.register_post_accumulate_grad_hook(lambda *_: self._end())
                accumulator.register_hook(lambda *_: self._begin())

    def step(self) -> None:
        """A step begins, which owes nothing to the one before."""
        self._owed = self.slept = 0.0

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()

    def _begin(self) -> None:
        self._began = time.monotonic()

    def _end(self) -> None:
        """Sleep for the piece that ends here. The next one begins."""
        now = time.monotonic()
        self._owed += (self._factor - 1) * (now - self._began)
        self._began = now
        if self._owed > 0:
            time.sleep(self._owed)
            self._began = time.monotonic()
            self._owed -= self._began - now
            self.slept += self._began - now
