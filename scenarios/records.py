"""The records of a run, schema 1: what each file holds, and the one loader.

A run is a directory::

    scenario.yaml, topology.yaml   what was run, copied
    campaigns/<i>.yaml             of a scenario with campaigns: the topology and timeline that was drawn for each
    environment.json               machine, kernel, versions, hashes of the modules; `networks` holds a stamp a
                                   campaign: link engine, its bias, congestion control, queues' and TCP's settings
    calibration.json               of a calibrated run: what probes found of the links and the machine
                                   (scenarios/calibration.py)
    compute.json                   of a training scenario: seconds of the parts of a step by world size (forward,
                                   first_bucket and backward from the start of backward, optimiser)
    predictions.jsonl              Prediction a line, written and hashed before anything is measured
    measurements.jsonl             Measurement a line
    script.json, script.py         of a run with --script: which one, and a copy of it
    printed/                       what the script has printed, a file an arm, world and rank
    outcomes.jsonl                 Outcome a line: what a rank had at the end of a training run
    applied.jsonl                  Applied a line: what of the topology's timeline was done to the network, and when
    failures.jsonl                 Failure a line: a point that a rank's error ended
    void/campaign<i>-<n>/          the same files of a campaign whose links were off, and which was measured again
    fidelity.jsonl                 Fidelity a line: one path, before or after one campaign
    telemetry/rank<r>.jsonl        what the backend saw: frogtorch.telemetry documents it; the runner adds workload,
                                   campaign, speedup, arm; of an all-reduce its repetition, of a training bucket_view
    points.csv, *.png              the report's: units are in the column names and on the axes

Every line carries ``"schema": 1``. Later versions of the testbed only add fields, with defaults: a reader of schema 1
reads them. Times are seconds, sizes bytes, rates bytes per second. With a speed-up k (rates × k, delays ÷ k),
``seconds`` is life-size, k times what the clock said; ``clock_seconds`` is what it said.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SCHEMA = 1

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A time that took place: reports take its logarithm."""


class Record(BaseModel):
    """One line of a file: unknown fields (of a later version) are kept, not refused."""

    # A diverged loss is NaN, and is written as that: null would not load again.
    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")

    # The loader refuses another number; 1 stays 1 as long as fields are only added.
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1


class Point(Record):
    """What was predicted or measured: one arm, in one world, with one size (or one training workload)."""

    arm: str
    world_size: int
    hosts: tuple[str, ...]
    """Rank i runs on hosts[i]."""
    workload: Literal["all_reduce", "training", "script"]
    """script: a training script of the user's; nobody predicts it."""
    nbytes: int
    """Bytes of the tensor; of all gradients together for training."""
    speedup: float = 1.0
    bucket_view: bool | None = None
    """DDP's gradient_as_bucket_view; None where nothing is trained."""
    timeline: int | None = None
    """On which of the campaigns' networks; None where none were drawn, and topology.yaml is the only one."""

    @property
    def key(self) -> tuple[str, int, str, int, bool | None, int | None]:
        """What a prediction and its measurements have in common."""
        return self.arm, self.world_size, self.workload, self.nbytes, self.bucket_view, self.timeline


class Prediction(Point):
    """The simulator's answer, or the closed form's."""

    basis: Literal["blind", "calibrated", "closed form"]
    """blind: from the YAML alone; calibrated: with what probes that ran no collective found of links and machine;
    closed form: bytes over the bottleneck path, plus one-way delays."""
    seconds: Seconds
    date: str
    """When: ISO 8601, UTC."""
    topology_sha256: str
    """Of the topology.yaml that it is about, or of the campaign's."""
    received_bytes: tuple[int, ...] = ()
    """Payload that each rank received, by rank."""
    detail: dict[str, Any] = {}
    """Of a training step: `compute`, the seconds of its parts; `stragglers`, how many times as long hosts of this world
    compute, if any do; and on a network that changes `steps`, all of them in order, each ``[second of the timeline at
    which it begins, seconds that it takes]``, of which `seconds` is the median over those that are measured."""


class Measurement(Point):
    """One repetition on real packets: ``max(end) - min(start)`` over the ranks, on the clock they share.

    Of a training whose arm skips contributions it is ``max(end - start)``: its ranks are not in the same step.
    """

    repetition: int
    """Index of the block (all_reduce) or of the step (training). Warm-ups are not recorded."""
    seconds: Seconds
    clock_seconds: Seconds
    rank_seconds: tuple[float, ...]
    """Each rank's own end - start, by rank, by the clock (not life-size)."""
    start_skew_seconds: float = 0.0
    """max(start) - min(start): how far apart the ranks of this machine began, by the clock. It is part of `seconds`."""
    campaign: int = 0
    """Points of one campaign ran interleaved on one state of the network."""
    second: float | None = None
    """Of a training on a network that changes: when in its timeline the step began."""
    exchange_seconds: float | None = None
    """Of a training, by the clock: from when the last rank had the gradients of its first bucket to when the last had
    all gradients exchanged. None of a user's script, and where ranks are not in the same step."""
    slept_seconds: tuple[float, ...] | None = None
    """Of a training with stragglers, by the clock: how long each rank slept in the step, to be as slow as its host is
    said to be; by rank."""
    prediction: str
    """SHA-256 of the predictions.jsonl that this measurement answers."""


class Outcome(Point):
    """What one rank had at the end of a training run."""

    rank: int
    steps: int
    parameters_sha256: str
    held_out_loss: float | None
    """None of a script that says nothing of one."""
    all_reduces: int | None
    """As the backend counted them; None where it does not count (gloo)."""
    held_out_accuracy: float | None = None
    """Of a workload that tells classes apart."""
    incorporated: tuple[int, ...] | None = None
    """Of frogtorch's comm hooks: how many ranks' contributions each bucket's mean had, in the order of time."""
    campaign: int = 0


class Failure(Record):
    """A point that ended with a rank's error. The run went on with the next one."""

    campaign: int
    speedup: float
    arm: str
    world_size: int
    hosts: tuple[str, ...]
    workload: str
    nbytes: int | None = None
    repetition: int | None = None
    """Of an all-reduce: in which block; the point's others after it were left out."""
    bucket_view: bool | None = None
    error: str
    """What the rank said, with its traceback, or that it died."""
    date: str
    """When: ISO 8601, UTC."""

    def __str__(self) -> str:
        what = self.workload if self.nbytes is None else f"{self.workload} of {self.nbytes} bytes"
        view = "" if self.bucket_view is None else f", bucket view {'on' if self.bucket_view else 'off'}"
        block = "" if self.repetition is None else f", block {self.repetition + 1}"
        return f"{self.arm}, W={self.world_size}, {what}{view}, campaign {self.campaign}{block}"


class Fidelity(Record):
    """One directed path, probed while it was idle. Values are by the clock, at the campaign's speed-up."""

    campaign: int
    when: Literal["before", "after"]
    speedup: float
    source: str
    target: str
    rtt_seconds: float
    expected_rtt_seconds: float
    goodput: float
    """Payload bytes per second of one TCP flow: 8 MB, or four seconds."""
    expected_goodput: float | None
    """None on a path without a limit, whose goodput is not judged."""
    valid: bool
    attempts: int = 1
    """How often it was measured: a path that is off is measured again; the values are the last ones."""


class Applied(Record):
    """Something that the topology's timeline has, done while an arm trained: a change of links, or one traffic.

    Seconds are the timeline's, life-size: those of the clock since the common start, times the speed-up.
    """

    campaign: int
    speedup: float
    arm: str
    workload: str = "training"
    bucket_view: bool | None = None
    world_size: int
    what: tuple[str, ...]
    """In words: each path, access or group that changed, or the traffic."""
    second: float
    """When the timeline has it."""
    applied_second: float
    """When it was so: all links changed, or the traffic's connection made."""
    ended_second: float | None = None
    """When the traffic ended: its own end, or the training's."""
    received_bytes: int | None = None
    """Payload of the traffic that arrived."""

    @property
    def late(self) -> float:
        """Seconds by which the network was late, by the clock (not life-size)."""
        return (self.applied_second - self.second) / self.speedup


class Ran(Record):
    """What one rank ran."""

    world_size: int
    rank: int
    host: str
    modules_sha256: dict[str, str]


class Environment(Record):
    """environment.json: what reports use of it."""

    networks: list[dict[str, Any]] = []
    ranks: list[Ran] = []


class Span(BaseModel):
    """How long one peer's bytes were waited for and took, in seconds; bytes per second where that took time."""

    wait: float
    transfer: float
    rate: float | None = None
    phase1: Span | None = None
    """The part of it in this phase, as in the next."""
    phase2: Span | None = None


class Collective(Record):
    """One finished collective as one rank's backend saw it: the part of a telemetry line that reports use.

    Times are by the clock, not life-size. The runner adds `workload` and `speedup`.
    """

    workload: str = "all_reduce"
    speedup: float = 1.0

    world_size: int
    collective: str
    algorithm: str | None
    nbytes: int
    seconds: float
    publish: float
    """Spent publishing."""
    phase1: float | None
    """From the start until the last Combine was done."""
    phase2: float | None
    """From the first byte of a reduced cell to the end; the two overlap when the collective is pipelined."""

    rank: int = 0
    time_ns: int | None = None
    """When it started, by the wall clock."""
    campaign: int = 0
    arm: str | None = None
    bucket_view: bool | None = None
    peers: dict[int, Span] = {}
    """By peer."""
    payload_received: int | None = None
    socket_received: int | None = None
    socket_sent: int | None = None


R = TypeVar("R", bound=Record)
T = TypeVar("T")


class RecordError(ValueError):
    """A line that is no record: names the file, the line and what is wrong with it."""


def append(file: Path, records: Iterable[Record]) -> None:
    """Add a line a record to `file`."""
    with file.open("a", encoding="utf-8") as lines:
        for record in records:
            lines.write(record.model_dump_json(by_alias=True) + "\n")


def load(file: Path, kind: type[R]) -> list[R]:
    """Read the records of a file; raises RecordError for a line that is none, FileNotFoundError as it comes.

    A last line without an end is left out: whoever wrote it was killed meanwhile.
    """
    records = []
    with file.open("rb") as lines:  # bytes: what is not UTF-8 is refused with its line, like any other wrong line
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            try:
                records.append(kind.model_validate_json(line))
            except ValidationError as error:
                raise RecordError(f"{file}:{number}: no {kind.__name__} of schema {SCHEMA}: "
                                  f"{first(error, 'the line')}") from None
    return records


def read(file: Path, kind: type[T]) -> T:
    """Read a file that is one JSON document, such as environment.json. Raises RecordError, naming the file."""
    try:
        return TypeAdapter(kind).validate_python(json.loads(file.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise RecordError(f"{file}:{error.lineno}: no JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RecordError(f"{file}:{line}: byte 0x{error.object[error.start]:02x} is no UTF-8") from None
    except ValidationError as error:
        raise RecordError(f"{file}: {first(error)}") from None
    except ValueError:  # Python's limit, with advice for programmers
        raise RecordError(f"{file}: a number in it has too many digits") from None
    except (OSError, RecursionError) as error:
        raise RecordError(f"{file} cannot be read: {getattr(error, 'strerror', error)}") from None


def rewrite(file: Path, content: bytes) -> None:
    """Write a whole file: whoever reads meanwhile, or after a failure, sees it as it was or as it is.

    It keeps its mode, and its owner if that may be. Raises OSError, which names it.
    """
    if file.exists() and not file.is_file():      # a device or a pipe
        file.write_bytes(content)
        return
    file = file.resolve()
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_bytes(content)
        if file.exists():
            shutil.copymode(file, new)
            with suppress(OSError):      # others than root may give nothing away, nor to a group that is not theirs
                os.chown(new, file.stat().st_uid, file.stat().st_gid)
        new.replace(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        with suppress(OSError):
            new.unlink()


@contextmanager
def new_directory(directory: Path, why: str) -> Iterator[Path]:
    """Make a directory for what is written meanwhile; if that fails, it is gone again.

    Raises ValueError if it exists, saying `why` it must not.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(f"{directory} exists: {why}; give another --output") from None
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory)
        raise


def environment(directory: Path) -> dict[str, Any]:
    """The content of a run's environment.json, which is one of an :class:`Environment`. Raises RecordError."""
    return read(directory / "environment.json", Environment).model_dump(by_alias=True, exclude_unset=True)


def first(error: ValidationError, whole: str = "the whole") -> str:
    """Where the first thing is that is wrong, and what; `whole` is what has no parts that could be."""
    found = error.errors()[0]
    return f"{'.'.join(str(part) for part in found['loc']) or whole}: {found['msg']}"


def sha256(file: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
