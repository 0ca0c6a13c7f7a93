"""The collectives that move tensors, as torch calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from frogtorch import collectives
from frogtorch.calls import Call, collective
from frogtorch.effects import Region
from frogtorch.engine import bind
from frogtorch.member import Member, Result
from frogtorch.tensors import (
    Packed,
    Place,
    Tensors,
    alike,
    apart,
    by_dtype,
    cut,
    fits,
    flat_of,
    listed,
    only,
    pairs,
    regions,
    row,
    rows,
    shapes,
)
from frogtorch.work import Work

__all__ = ["Movements"]


class Movements(Member):
    """Broadcast, gather, scatter, all-gather and all-to-all, of any dtype.

    The coalesced forms take tensors of any dtypes: those of one go as one.
    """

    @collective("broadcast", BroadcastOptions, "root")
    def broadcast(self, call: Call, tensors: Tensors) -> Work:
        """Fill one tensor with that of the root, a rank of the group."""
        tensor, root = only(tensors), self._root(call)
        places = [Place(tensor)] if self._rank != root else []
        flat = places[0].flat if places else flat_of(tensor)
        return self._start(call, collectives.broadcast(self._group, bind(flat)[:], root), flat.dtype, flat.nbytes,
                           [tensor], variant=f"from {root}/{flat.numel()} elements", results=places)

    @collective("all_gather", AllgatherOptions)
    def allgather(self, call: Call, outputs: Sequence[Any], inputs: Tensors) -> Work:
        """Fill one tensor a rank with that rank's; their sizes may differ."""
        mine, into = only(inputs), row(outputs, self._size, "output")
        alike(*into)
        fits(mine, into[self._rank])
        places = [Place(tensor) for tensor in into]
        return self._all_gather(call, flat_of(mine), regions(place.flat for place in places), into, [mine], places,
                                "list")()

    @collective("all_gather", AllgatherOptions)
    def all_gather_single(self, call: Call, output: torch.Tensor, mine: torch.Tensor) -> Work:
        """Fill `output` with the `mine` of all ranks, one behind the other."""
        fits(mine, output, self._size)
        place = Place(output)
        return self._all_gather(call, flat_of(mine), bind(place.flat)[:].split(self._size), [output], [mine], [place],
                                f"{mine.numel()} elements")()

    @collective("all_gather", AllgatherOptions)
    def all_gather_single_coalesced(self, call: Call, outputs: Tensors, inputs: Tensors) -> Work:
        """Fill each output with the input of all ranks, one behind the other."""
        starts = []
        for members in pairs(inputs, outputs, self._size):
            places = [Place(outputs[i]) for i in members]
            shares = [place.flat.view(self._size, inputs[i].numel()) for place, i in zip(places, members, strict=True)]
            starts.append(self._gather_packed(call, [inputs[i] for i in members], places,
                                              [[share[r] for share in shares] for r in range(self._size)],
                                              [outputs[i] for i in members]))
        return self._joint([start() for start in starts], outputs)

    @collective("all_gather", AllgatherOptions)
    def allgather_coalesced(self, call: Call, outputs: Sequence[Tensors], inputs: Tensors) -> Work:
        """Fill ``outputs[r][i]`` with ``inputs[i]`` of rank r."""
        if len(outputs) != self._size:
            raise ValueError(f"it takes {self._size} lists of outputs, one for each rank, not {len(outputs)}")
        for theirs in outputs:
            pairs(inputs, theirs, 1)
        starts = []
        for members in by_dtype(inputs):
            places = [[Place(theirs[i]) for i in members] for theirs in outputs]
            starts.append(self._gather_packed(call, [inputs[i] for i in members],
                                              [place for theirs in places for place in theirs],
                                              [[place.flat for place in theirs] for theirs in places],
                                              [theirs[i] for theirs in outputs for i in members]))
        return self._joint([start() for start in starts], [tensor for theirs in outputs for tensor in theirs])

    def _gather_packed(self, call: Call, inputs: Tensors, places: Sequence[Place], into: Sequence[Tensors],
                       outputs: Tensors) -> Callable[[], Work]:
        """All-gather `inputs`, of one dtype, as one; ``into[r]`` are the flat tensors for those of rank r."""
        packed = [Packed(theirs, read=False) for theirs in into]
        mine = Packed([flat_of(tensor) for tensor in inputs]).flat
        return self._all_gather(call, mine, regions(theirs.flat for theirs in packed), outputs, inputs,
                                [*packed, *places], f"{mine.numel()} elements")

    def _all_gather(self, call: Call, mine: torch.Tensor, into: Sequence[Region], outputs: Tensors, inputs: Tensors,
                    results: Sequence[Result], variant: str) -> Callable[[], Work]:
        (source,) = apart([bind(mine)[:]], into, (0, self._rank))
        return partial(self._start, call, collectives.all_gather(self._group, source, into), mine.dtype, mine.nbytes,
                       outputs, variant=variant, given=inputs, results=results)

    @collective("gather", GatherOptions, "root")
    def gather(self, call: Call, outputs: Sequence[Any], inputs: Tensors) -> Work:
        """Fill one tensor a rank, at the root alone, with that rank's; their sizes may differ."""
        mine, root = only(inputs), self._root(call)
        into = self._at_root(outputs, root, "output")
        if into:
            alike(*into)
            fits(mine, into[root])
        flat = flat_of(mine)
        places = [Place(tensor) for tensor in into]
        targets = regions(place.flat for place in places)
        source = apart([bind(flat)[:]], targets, (0, root))[0]
        return self._start(call, collectives.gather(self._group, source, targets or None, root), flat.dtype,
                           flat.nbytes, into, variant=f"to {root}", given=[mine], results=places)

    @collective("scatter", ScatterOptions, "root")
    def scatter(self, call: Call, outputs: Tensors, inputs: Sequence[Any]) -> Work:
        """Fill one tensor with the input of the root, which alone has some, that is for our rank; sizes may differ."""
        output, root = only(outputs), self._root(call)
        parts = self._at_root(inputs, root, "input")
        if parts:
            alike(*parts)
            fits(parts[root], output)
        place = Place(output)
        into = bind(place.flat)[:]
        sources = apart(regions(flat_of(part) for part in parts), [into], (root, 0))
        return self._start(call, collectives.scatter(self._group, sources or None, into, root), output.dtype,
                           into.nbytes, [output], variant=f"from {root}", given=parts, results=[place])

    def _at_root(self, tensors: Sequence[Any] | None, root: int, what: str) -> Tensors:
        """A tensor for each rank, at the root; none elsewhere. Raises ValueError."""
        if self._rank == root:
            return row(tensors or [], self._size, what)
        if tensors and listed(tensors):
            raise ValueError(f"only the root, rank {root} of the group, has {what} tensors")
        return []

    @collective("all_to_all", AllToAllOptions)
    def alltoall(self, call: Call, outputs: Tensors, inputs: Tensors) -> Work:
        """Fill the r-th output of rank k with the k-th input of rank r; sizes may differ from pair to pair."""
        parts, into = row(inputs, self._size, "input"), row(outputs, self._size, "output")
        places = [Place(tensor) for tensor in into]
        return self._all_to_all(call, regions(flat_of(part) for part in parts),
                                regions(place.flat for place in places), into, parts, places)

    @collective("all_to_all", AllToAllOptions)
    def all_to_all_single(self, call: Call, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int],
                          input_splits: Sequence[int]) -> Work:
        """As :meth:`alltoall`, of parts that are rows of one tensor: ``input_splits[k]`` of them for rank k."""
        sent = rows(tensor, input_splits, self._size, "input")
        taken = rows(output, output_splits, self._size, "output")
        place = Place(output)
        return self._all_to_all(call, cut(flat_of(tensor), sent), cut(place.flat, taken), [output], [tensor], [place])

    def _all_to_all(self, call: Call, parts: Sequence[Region], into: Sequence[Region], outputs: Tensors,
                    inputs: Tensors, results: Sequence[Result]) -> Work:
        alike(*inputs, *outputs)
        rank = self._rank
        if parts[rank].count != into[rank].count:
            raise ValueError(f"this rank has {parts[rank].count} elements for itself, and room for {into[rank].count}: "
                             f"inputs are {shapes(inputs)}, outputs {shapes(outputs)}")
        return self._start(call, collectives.all_to_all(self._group, apart(parts, into, (rank, rank)), into),
                           inputs[0].dtype, sum(part.nbytes for part in parts), outputs, variant="any", given=inputs,
                           results=results)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single
