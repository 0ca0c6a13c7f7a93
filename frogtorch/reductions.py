"""The collectives that reduce, as torch calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from frogtorch import collectives, sparse
from frogtorch.calls import Call, collective
from frogtorch.effects import Region
from frogtorch.engine import bind
from frogtorch.member import Member, Result
from frogtorch.tensors import (
    Packed,
    Place,
    Reduction,
    Tensors,
    alike,
    apart,
    by_dtype,
    fits,
    flat_of,
    only,
    pairs,
    reduction,
    regions,
    row,
)
from frogtorch.work import Work

__all__ = ["Reductions"]


class Reductions(Member):
    """All-reduce, reduce and reduce-scatter. The coalesced forms take tensors of any dtypes: those of one go as one."""

    @collective("all_reduce", AllreduceOptions, "op")
    def allreduce(self, call: Call, tensors: Tensors) -> Work:
        """All-reduce one tensor in place. Of sparse ones (COO, sums only) the entries are gathered and added up."""
        tensor = only(tensors)
        how = reduction(call.options.reduceOp, tensor.dtype)
        if tensor.layout is torch.strided:
            place = Place(tensor, how.factor)
            return self._all_reduce(call, how, place.flat, [tensor], [place])()
        sparse.check(how.name, tensor)
        nbytes = tensor._values().nbytes + tensor._indices().nbytes
        return self._start(call, sparse.all_reduce(self._group, tensor), tensor.dtype, nbytes, [tensor],
                           variant=sparse.describe(tensor), op=how.name)

    @collective("all_reduce", AllreduceCoalescedOptions)
    def allreduce_coalesced(self, call: Call, tensors: Tensors) -> Work:
        """All-reduce several tensors in place."""
        starts = []
        for members in by_dtype(tensors):
            how = reduction(call.options.reduceOp, tensors[members[0]].dtype)
            places = [Place(tensors[i], how.factor) for i in members]
            packed = Packed([place.flat for place in places])
            starts.append(self._all_reduce(call, how, packed.flat, [tensors[i] for i in members], [packed, *places]))
        return self._joint([start() for start in starts], tensors)

    def _all_reduce(self, call: Call, how: Reduction, flat: torch.Tensor, tensors: Tensors,
                    results: Sequence[Result]) -> Callable[[], Work]:
        name = algorithm = self._settings.all_reduce
        run = collectives.ALL_REDUCE[name]
        if name == "pipelined":
            run = partial(run, chunk_bytes=self._settings.chunk_bytes)
            name = f"{name}:{self._settings.chunk_bytes}"
        return partial(self._start, call, run(self._group, bind(flat)[:], how.op, self._order), flat.dtype, flat.nbytes,
                       tensors, variant=f"{name}/{self._alike(how)}/{flat.numel()} elements", results=results,
                       algorithm=algorithm, op=how.name)

    @collective("reduce", ReduceOptions, "root", "op")
    def reduce(self, call: Call, tensors: Tensors) -> Work:
        """Reduce one tensor in place at the root, a rank of the group. Those of the others stay as they were."""
        tensor, root = only(tensors), self._root(call)
        how = reduction(call.options.reduceOp, tensor.dtype)
        places = [Place(tensor, how.factor)] if self._rank == root else []
        flat = places[0].flat if places else flat_of(tensor, how.factor)
        region = bind(flat)[:]
        return self._start(call, collectives.reduce(self._group, region, region if places else None, root, how.op,
                                                    self._order), flat.dtype, flat.nbytes, [tensor],
                           variant=f"to {root}/{self._alike(how)}/{flat.numel()} elements", results=places, op=how.name)

    @collective("reduce_scatter", ReduceScatterOptions, "op")
    def reduce_scatter(self, call: Call, outputs: Tensors, inputs: Sequence[Any]) -> Work:
        """Fill one tensor, on rank k, with what all ranks' k-th inputs reduce to. Sizes may differ from k to k."""
        output, parts = only(outputs), row(inputs, self._size, "input")
        alike(*parts)
        fits(parts[self._rank], output)
        how = reduction(call.options.reduceOp, output.dtype)
        place = Place(output)
        flats = [flat_of(part, how.factor) for part in parts]
        return self._reduce_scatter(call, how, regions(flats), place.flat, [output], parts, [place])()

    @collective("reduce_scatter", ReduceScatterOptions, "op")
    def reduce_scatter_single(self, call: Call, output: torch.Tensor, tensor: torch.Tensor) -> Work:
        """Fill `output` with our share of what all ranks' `tensor` reduces to."""
        fits(output, tensor, self._size)
        how = reduction(call.options.reduceOp, output.dtype)
        place = Place(output)
        parts = bind(flat_of(tensor, how.factor))[:].split(self._size)
        return self._reduce_scatter(call, how, parts, place.flat, [output], [tensor], [place])()

    @collective("reduce_scatter", ReduceScatterOptions, "op")
    def reduce_scatter_single_coalesced(self, call: Call, outputs: Tensors, inputs: Tensors) -> Work:
        """Fill each output with our share of what all ranks' input reduces to."""
        starts = []
        for members in pairs(outputs, inputs, self._size):
            how = reduction(call.options.reduceOp, outputs[members[0]].dtype)
            places = [Place(outputs[i]) for i in members]
            packed = Packed([place.flat for place in places], read=False)
            shares = [flat_of(inputs[i], how.factor).view(self._size, outputs[i].numel()) for i in members]
            parts = regions(Packed([share[k] for share in shares]).flat for k in range(self._size))
            starts.append(self._reduce_scatter(call, how, parts, packed.flat, [outputs[i] for i in members],
                                               [inputs[i] for i in members], [packed, *places]))
        return self._joint([start() for start in starts], outputs)

    def _reduce_scatter(self, call: Call, how: Reduction, parts: Sequence[Region], flat: torch.Tensor,
                        outputs: Tensors, inputs: Tensors, results: Sequence[Result]) -> Callable[[], Work]:
        into = bind(flat)[:]
        parts = apart(parts, [into], (self._rank, 0))
        counts = [part.count for part in parts]
        sizes = f"{self._size} x {counts[0]}" if len(set(counts)) == 1 else "+".join(map(str, counts))[:160]
        return partial(self._start, call, collectives.reduce_scatter(self._group, parts, into, how.op, self._order),
                       flat.dtype, sum(part.nbytes for part in parts), outputs, given=inputs, results=results,
                       variant=f"{self._alike(how)}/{sizes} elements", op=how.name)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @property
    def _order(self) -> collectives.Order:
        return collectives.ORDERS[self._settings.order]

    def _alike(self, how: Reduction) -> str:
        """What of a reduction has to be alike on all ranks."""
        return f"{how.name}/{self._settings.order} order"
