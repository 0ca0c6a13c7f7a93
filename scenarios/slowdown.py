"""A rank on a slow host: each part of a step is computed as ever, and then it sleeps for what the part takes longer.

How long that is comes from the computing that was calibrated, of which predictions are made (compute.json), and not
from what the part has just taken. A slow host's rank computes while the others wait for it: on cores that ranks share
it is then faster than was calibrated, with all at it; and what disturbs a busy machine would be multiplied.

It sleeps and does not spin. A slow host has cores of its own: one that was busy while it waits would take them from its
neighbours, from the links that a process delays, and from this rank's own thread that serves what the others read
meanwhile. Less of a CPU (a cgroup's quota) would slow that thread too, comes in slices longer than a backward pass, and
is not to be had without privilege; sleeping is the same in every runtime. So computing alone is slow, as it is in the
simulator: messages, copies and sums of an exchange take what they took.

No number is touched: a training ends with the same parameters as without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import nn

__all__ = ["Slowdown"]


class Slowdown:
    """Makes the parts of a model's training step longer by so many seconds; by none without `longer`.

    `longer` has the parts of compute.json. What backward takes longer is spread over the gradients, and DDP hears of
    each after its sleep: so buckets become ready late, one after the other, as on a slow host. `first` of the model's
    last parameters make the first bucket. To be made before whoever else notes when gradients are there.
    """

    def __init__(self, longer: Mapping[str, float] | None, model: nn.Module, first: int) -> None:
        self._longer = longer
        self._owed = 0.0
        """Seconds yet to sleep; below 0 where the last sleep was too long, as sleeps are by some 0.1 ms."""
        self.slept = 0.0
        """Seconds, since the last :meth:`begin`."""
        if longer is not None:
            parameters = list(model.parameters())
            until = longer["first_bucket"] if first < len(parameters) else longer["backward"]
            self._spread(until, parameters[-first:])
            self._spread(longer["backward"] - until, parameters[:-first])

    def _spread(self, seconds: float, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: self._sleep(seconds / len(parameters)))

    def begin(self) -> None:
        """A step begins, which owes nothing to the one before."""
        self._owed = self.slept = 0.0

    def end(self, part: str) -> None:
        """Forward or optimiser is computed: sleep for what it takes longer."""
        if self._longer is not None:
            self._sleep(self._longer[part])

    def _sleep(self, seconds: float) -> None:
        self._owed += seconds
        if self._owed > 0:
            began = time.monotonic()
            time.sleep(self._owed)
            took = time.monotonic() - began
            self._owed -= took
            self.slept += took
