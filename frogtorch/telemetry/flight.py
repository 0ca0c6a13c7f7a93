"""Records as PyTorch's Flight Recorder has them, for ``python -m torch.distributed.flight_recorder.fr_trace``.

The schema is that of torch 2.13 (version 2.10 of its own: ``c10d/FlightRecorder.hpp``, and what reads it,
``torch/distributed/flight_recorder/components``). That analyzer knows collectives by the names of NCCL's, knows no
backend but those of its own list, and expects of a collective that shapes are alike on all ranks. So:

* ours go under ``gloo:``, whose collectives they are as far as the analyzer can tell;
* groups go by their *space*, which no other run of a group of that name has;
* what differs from rank to rank by right (uneven shares) is given as what does not: the shapes of all shares;
* a comm hook's mean of all buckets is an all-reduce; one of only some ranks' is no collective, and is left out;
* a message goes under a group of its two ranks of its own, one for each direction and tag, where it is number n. The
  analyzer compares what all ranks of a group do at one number, and messages are no collectives of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from frogtorch import __version__
from frogtorch.telemetry.record import GroupInfo, Record, wall_ns

__all__ = ["trace"]

VERSION = "2.10"

_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int8": "Char",
    "int16": "Short", "int32": "Int", "int64": "Long", "uint8": "Byte", "uint16": "UInt16", "uint32": "UInt32",
    "uint64": "UInt64", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}
"""As c10::toString has them."""

Shapes = list[list[int]]
Placed = tuple[str, list[int], int, str, Shapes, Shapes]
"""An operation as the analyzer sees it: group, its global ranks, number in it, name, shapes given and filled."""


def trace(records: Sequence[Record]) -> dict[str, Any]:
    """The dump of one process, of what torch's analyzer unpickles."""
    groups: dict[str, dict[str, str]] = {}
    status: dict[str, dict[str, int]] = {}
    entries = []
    for record in records:
        info = record.info
        message = record.collective in ("send", "recv")
        if info is None or (message and record.peer is None):  # from any source, and none has come
            continue
        if record.step is not None and record.algorithm is None:
            continue
        space, ranks, number, kind, inputs, outputs = _message(record, info) if message else _collective(record, info)
        groups.setdefault(space, {"name": space, "desc": info.desc, "ranks": str(ranks)})
        index = list(groups).index(space)
        seen = status.setdefault(str(index), dict.fromkeys(
            ("last_enqueued_collective", "last_started_collective", "last_completed_collective"), -1))
        seen["last_enqueued_collective"] = seen["last_started_collective"] = number
        if record.state == "completed":
            seen["last_completed_collective"] = number
        entries.append(_entry(record, kind, inputs, outputs) | {
            "pg_id": index, "process_group": (space, info.desc), "is_p2p": message, "collective_seq_id": number,
            "p2p_seq_id": number if message else 0})
    return {"version": VERSION, "comm_lib_version": f"frogtorch {__version__}", "pg_config": groups,
            "pg_status": status, "entries": entries}


def _entry(record: Record, kind: str, inputs: Shapes, outputs: Shapes) -> dict[str, Any]:
    dtype = _DTYPES.get(record.dtype, record.dtype)
    completed = record.state == "completed"
    entry: dict[str, Any] = {
        "record_id": record.id, "op_id": record.id, "profiling_name": f"gloo:{kind}",
        "input_sizes": inputs, "input_dtypes": [dtype] * len(inputs),
        "output_sizes": outputs, "output_dtypes": [dtype] * len(outputs),
        "time_created_ns": wall_ns(record.start), "time_discovered_started_ns": wall_ns(record.start),
        "time_discovered_completed_ns": wall_ns(record.end) if completed else None,
        # Its word for what has failed: not completed, and no longer waited for.
        "state": "completed" if completed else "started", "retired": record.state != "started",
        "timeout_ms": int((record.timeout or 0) * 1e3), "frames": [],
    }
    if completed:
        entry["duration_ms"] = (record.end - record.start) * 1e3
    return entry


def _message(record: Record, info: GroupInfo) -> Placed:
    assert record.peer is not None
    source, to = info.ranks[info.rank], info.ranks[record.peer]
    if record.collective == "recv":
        source, to = to, source
    pair = sorted((source, to))
    here, there = pair.index(source), pair.index(to)
    kind = f"send {here}->{there}" if record.collective == "send" else f"recv {there}<-{here}"
    count = [_total([list(shape) for shape in record.input_sizes or record.output_sizes])]
    return (f"{info.space}, messages from {source} to {to} with tag {record.tag}", pair, record.number or 0, kind,
            count, count)


def _collective(record: Record, info: GroupInfo) -> Placed:
    return info.space, list(info.ranks), record.round, *_as_nccl(record)


def _as_nccl(record: Record) -> tuple[str, Shapes, Shapes]:
    """The name of NCCL's collective, and shapes of inputs and outputs as the analyzer compares them."""
    inputs = [list(shape) for shape in record.input_sizes]
    outputs = [list(shape) for shape in record.output_sizes]
    kind = record.collective if record.step is None else "all_reduce"
    if kind.endswith("barrier"):  # whose token is nobody's business
        return "barrier", [], []
    if kind == "all_to_all":  # only the totals of all ranks are compared
        return kind, [_total(inputs)], [_total(outputs)]
    if kind == "all_gather":
        return _shares(kind, inputs, outputs)
    if kind == "reduce_scatter":
        kind, outputs, inputs = _shares(kind, outputs, inputs)
    return kind, inputs, outputs


def _shares(kind: str, mine: Shapes, all_of_them: Shapes) -> tuple[str, Shapes, Shapes]:
    """`mine` is one rank's share of `all_of_them`; the name of the variant that takes uneven ones has a v."""
    if len(mine) > 1:  # coalesced; the analyzer looks at the first of each alone
        return kind, [_total(mine)], [_total(all_of_them)]
    if len({prod(shape) for shape in all_of_them}) > 1:
        return f"{kind}_v", all_of_them, all_of_them
    return kind, mine, [_total(all_of_them)]


def _total(shapes: Shapes) -> list[int]:
    return [sum(prod(shape) for shape in shapes)]
