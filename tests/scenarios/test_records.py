import json
import math

import pytest

from scenarios.records import Collective, Measurement, Outcome, Prediction, RecordError, append, load, sha256

POINT = {"arm": "shard", "world_size": 2, "hosts": ("a", "b"), "workload": "all_reduce", "nbytes": 4096}
MEASUREMENT = {**POINT, "repetition": 0, "seconds": 1.5, "clock_seconds": 0.15, "rank_seconds": (0.15, 0.14),
               "speedup": 10.0, "prediction": "0" * 64}


def lines(file, *records):
    file.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return file


def test_records_come_back_as_they_were_written(tmp_path):
    written = [Measurement(**MEASUREMENT), Measurement(**{**MEASUREMENT, "repetition": 1})]
    append(tmp_path / "m.jsonl", written[:1])
    append(tmp_path / "m.jsonl", written[1:])
    assert load(tmp_path / "m.jsonl", Measurement) == written
    assert json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])["schema"] == 1


def test_fields_of_a_later_version_are_kept(tmp_path):
    file = lines(tmp_path / "m.jsonl", {"schema": 1, **MEASUREMENT, "queue_bytes": 17})
    append(tmp_path / "again.jsonl", load(file, Measurement))
    assert json.loads((tmp_path / "again.jsonl").read_text())["queue_bytes"] == 17


def test_fields_that_version_1_left_out_have_defaults(tmp_path):
    file = lines(tmp_path / "p.jsonl", {"schema": 1, **POINT, "basis": "blind", "seconds": 2.0, "date": "2026-01-02",
                                          "topology_sha256": "7" * 64})
    (prediction,) = load(file, Prediction)
    assert (prediction.speedup, prediction.received_bytes, prediction.detail) == (1.0, (), {})
    assert prediction.key == ("shard", 2, "all_reduce", 4096, None, None) == Measurement(**MEASUREMENT).key


def test_another_schema_is_refused_with_file_and_line(tmp_path):
    file = lines(tmp_path / "m.jsonl", {"schema": 1, **MEASUREMENT}, {"schema": 2, **MEASUREMENT})
    with pytest.raises(RecordError, match=r"m\.jsonl:2: no Measurement of schema 1: schema: Input should be 1"):
        load(file, Measurement)


@pytest.mark.parametrize(("line", "said"), [
    ('{"schema": 1, "arm": "sha', "the line: Invalid JSON"),                    # the write was cut off
    ("", "the line: Invalid JSON"),
    (json.dumps({**MEASUREMENT, "seconds": -1.0}), "seconds: Input should be greater than 0"),
    (json.dumps({**MEASUREMENT, "seconds": math.inf}), "seconds: Input should be a finite number"),
    (json.dumps({**MEASUREMENT, "workload": "reduce"}),
     "workload: Input should be 'all_reduce', 'training' or 'script'"),
    (json.dumps({**MEASUREMENT, "nbytes": "many"}), "nbytes: "),
    (json.dumps(POINT), "repetition: Field required"),
])
def test_a_wrong_line_is_refused_with_file_and_line(tmp_path, line, said):
    file = lines(tmp_path / "m.jsonl", MEASUREMENT, MEASUREMENT, line)
    with pytest.raises(RecordError) as refused:
        load(file, Measurement)
    assert str(refused.value).startswith(f"{file}:3: no Measurement of schema 1: {said}")


def test_a_line_that_is_no_text_is_refused_with_file_and_line(tmp_path):
    (tmp_path / "m.jsonl").write_bytes(json.dumps(MEASUREMENT).encode() + b'\n{"arm": "\xff"}\n')
    with pytest.raises(RecordError, match=r"m\.jsonl:2: "):
        load(tmp_path / "m.jsonl", Measurement)


def test_a_diverged_loss_survives_the_round_trip(tmp_path):
    append(tmp_path / "o.jsonl", [Outcome(**{**POINT, "workload": "training"}, rank=0, steps=48, all_reduces=95,
                                          parameters_sha256="ab" * 32, held_out_loss=math.nan)])
    (outcome,) = load(tmp_path / "o.jsonl", Outcome)
    assert math.isnan(outcome.held_out_loss)


def test_a_telemetry_line_without_a_second_phase(tmp_path):
    file = lines(tmp_path / "rank0.jsonl", {
        "schema": 1, "group": "default", "rank": 0, "world_size": 2, "round": 3, "collective": "all_reduce",
        "algorithm": "whole", "nbytes": 8, "seconds": 0.1, "publish": 0.001, "phase1": 0.1, "phase2": None})
    (seen,) = load(file, Collective)
    assert (seen.phase1, seen.phase2, seen.speedup) == (0.1, None, 1.0)


def test_a_telemetry_line_of_a_collective_without_algorithms_or_phases(tmp_path):
    file = lines(tmp_path / "rank0.jsonl", {
        "schema": 1, "group": "default", "rank": 0, "world_size": 2, "round": 4, "collective": "barrier",
        "algorithm": None, "nbytes": 0, "seconds": 0.1, "publish": 0.001, "phase1": None, "phase2": None})
    (seen,) = load(file, Collective)
    assert (seen.algorithm, seen.phase1) == (None, None)


def test_the_hash_is_of_the_bytes(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert sha256(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
