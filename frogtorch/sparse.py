"""All-reduce of sparse tensors: every rank gathers all ranks' entries, and adds them up."""

from __future__ import annotations

import math
from functools import reduce

import torch

from frogtorch import arithmetic
from frogtorch.collectives import all_gather_entries
from frogtorch.effects import Collective, Group
from frogtorch.engine import bind

__all__ = ["all_reduce", "check", "describe"]


def check(op: str, tensor: torch.Tensor) -> None:
    """Raise TypeError unless `tensor` is in the coordinate (COO) layout, on the CPU, and `op` is ``"sum"``."""
    if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
        raise TypeError(f"frogtorch cannot reduce a tensor of {tensor.layout} on {tensor.device}: of sparse ones only "
                        f"torch.sparse_coo on the CPU; use to_sparse_coo() or to_dense()")
    arithmetic.check(op, tensor.dtype)
    if op != "sum":
        why = "what a rank does not have is left out, as can be in a sum only; use sum, or to_dense()"
    elif tensor.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64):
        why = "torch has no sparse arithmetic for it; use to_dense(), or another dtype"
    else:
        return
    raise TypeError(f"frogtorch cannot reduce a sparse {tensor.dtype} with {op}: {why}")


def describe(tensor: torch.Tensor) -> str:
    """What has to be alike on all ranks, such as ``"sparse 1 of 30x4"``: a dimension of indices, shape 30 x 4."""
    return f"sparse {tensor.sparse_dim()} of {'x'.join(map(str, tensor.shape))}"


def all_reduce(group: Group, tensor: torch.Tensor) -> Collective:
    """Leave in `tensor`, which has passed :func:`check`, the coalesced sum of all ranks' ones.

    What :func:`describe` says of it is alike on all ranks; which entries it has need not be, nor how many. Its order
    of summation is that of the ranks, which is Gloo's too. float16 and bfloat16 are summed in float32.
    """
    mine = tensor.detach().coalesce()
    dims, shape = mine.sparse_dim(), mine.shape
    columns = [mine._indices().contiguous().view(-1), mine._values().contiguous().view(-1)]
    tables = yield from all_gather_entries(
        group, bind(torch.tensor([mine._nnz()]))[:], [bind(column)[:] for column in columns],
        [dims, math.prod(shape[dims:])], math.prod(shape[:dims]))
    wide = arithmetic.wide(tensor.dtype)
    # The caller's tensor gets new memory, which is to be of the caller's kind, not the engine's inference tensors.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        # With its invariants checked: indices of another rank could be out of bounds.
        parts = (torch.sparse_coo_tensor(
            indices.buffer.storage.tensor.view(torch.int64).view(dims, length),
            values.buffer.storage.tensor.view(tensor.dtype).view(length, *shape[dims:]).to(wide),
            shape, is_coalesced=True, check_invariants=True) for length, (indices, values) in tables)
        tensor.copy_(reduce(torch.add, parts).coalesce().to(tensor.dtype))
