"""What the backend saw: one record a collective, always on.

A record is a dict, schema 1 (times in seconds, sizes in bytes, rates in bytes per second)::

    {"schema": 1, "id": number of the collective in this process, "group": str, "rank": r, "world_size": W, "round": n,
     "peer": of a message: the rank at its other end, "tag": its tag, "number": which of its pair and tag; else null,
     "collective": "all_reduce", "algorithm": "shard", "op": "sum", "dtype": "float32", "nbytes": S,
     "input_sizes": shapes of the tensors given, "output_sizes": of those filled,
     "state": "started", "completed" or "failed", "error": what it failed with or null, "timeout": its own,
     "start": by the monotonic clock, "time_ns": the same by the wall clock, "seconds": to the end, null before,
     "publish": spent publishing, "phase1": from the start to the end of the last Combine, null without one,
     "phase2": from the first byte of a reduced cell to the end, null without one (the phases overlap if pipelined),
     "peers": {"1": {"wait": from the start to the first byte, "transfer": first to last byte, "bytes": payload,
                     "rate": of the transfer, null where it took no time,
                     "phase1": the same four of the contributions alone, null if none was read,
                     "phase2": of the sums (in phase 2 even a fast transfer may have waited for all of phase 1)}},
     "sent": {"1": the same four of what the kernel has accepted for this peer},
     "waiting": {"1": bytes that are still to come from it},
     "payload_offered": sizes of the published cells, once for every rank that asked for one or got it unasked,
     "payload_received": B, "payload_sent": B, "socket_received": B, "socket_sent": B,
     "step": of a comm hook: the step, as the hook counts them, "bucket": which of the step's buckets; else null,
     "incorporated": {"1": how many steps old that peer's bucket is, which is in the mean; one that is skipped is not
                      here}, or null}

Peers are ranks of the group. A rate leaves out what came together with the first byte, as nobody saw how long that
took. ``socket_*`` is everything of the round on the group's sockets: payload, headers, requests. ``*_sent`` counts what
the kernel has accepted by the time the record is taken: the last peer may read after the collective has ended here.

===============  ======================================================================================
``record``       one collective, as it goes on
``log``          the records of one group: to be taken, or written to ``rank<r>.jsonl``
``ring``         the last 1,000 collectives of the process
``dump``         the ring on disk: when a collective fails, on SIGUSR1, at exit
``chrome``       as a Chrome trace, for Perfetto
``flight``       as PyTorch's Flight Recorder has it, for ``torch.distributed.flight_recorder.fr_trace``
``ranges``       as ranges of torch.profiler
===============  ======================================================================================

``python -m frogtorch.telemetry DIRECTORY`` merges the Chrome traces of all ranks into one.
"""

from frogtorch.telemetry.log import Telemetry
from frogtorch.telemetry.record import GroupInfo, Record

__all__ = ["GroupInfo", "Record", "Telemetry"]
