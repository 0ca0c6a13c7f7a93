"""The one functional collective that PyTorch 2.13 cannot bring to a process group written in Python.

``_c10d_functional.all_gather_into_tensor_out``, which Inductor puts into compiled FSDP, calls a method of the C++ class
that no Python class overrides. Its kernel is one for all devices, so that there is room for one for the CPU, which
calls the method by its name; what it does for other groups stays the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_work, _resolve_process_group
from torch.distributed.distributed_c10d import GroupName

__all__: list[str] = []


def _all_gather_into_tensor_out(tensor: torch.Tensor, size: int, group: Any, *, out: torch.Tensor) -> torch.Tensor:
    members = _resolve_process_group(GroupName(group)) if isinstance(group, str) else dist.ProcessGroup.unbox(group)
    _register_work(out, members.all_gather_single(out, tensor))
    return out


_library = torch.library.Library("_c10d_functional", "IMPL")
_library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, "CPU")
