import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from scenarios import tables
from scenarios.compare import CompareError, errors
from scenarios.records import Fidelity, Measurement, Outcome, RecordError, append, load
from scenarios.report import header, report, write_csv
from scenarios.results import Results

B4 = 2 / 4 / (0.7e6 * 1448 / 1514)  # seconds per byte of shard at W=4, per path


def printed(renderable, width=100):
    """What a pipe gets: text without colour."""
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


def cells(table, *start):
    """The cells of the table's line that begins so."""
    lines = [line.split() for line in printed(table).splitlines()]
    (found,) = [line for line in lines if tuple(line[:len(start)]) == start]
    return found


@pytest.fixture(scope="module")
def exact(exact_run):
    return Results.load(exact_run)


def off(run):
    """Add a probe of a path that is not what it should be."""
    append(run / "fidelity.jsonl", [Fidelity(
        campaign=0, when="after", speedup=10, source="newyork-1", target="seattle-ai", rtt_seconds=0.0081,
        expected_rtt_seconds=0.007, goodput=6.0e6, expected_goodput=6.695e6, valid=False)])


def test_the_whole_report_fits_a_pipe_and_writes_its_files(make_run):
    run = make_run(sizes=(2, 6))
    off(run)
    text = printed(report(run)[0])
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    for title in ("All-reduce, W = 2", "All-reduce, W = 6", "Other sizes, not in the fits, W = 6", "a, seconds",
                  "b, seconds per MB", "b_gloo / b_shard", "Training, seconds of a step", "what the ranks ended with",
                  "Phases of an all-reduce", "|ln(measured / predicted)|"):
        assert title in text
    for name in ("times.png", "slopes.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    assert (run / "points.csv").exists()
    # An invalid run says so again where the eye ends up.
    assert text.rstrip().splitlines()[-2].startswith("INVALID: links were not what the topology describes")


def test_b_stands_beside_its_prediction_and_theory(exact):
    # shard, W=4: theory 2/(4·0.6695 MB/s) = 0.7468 s/MB; measured 1.03 times that, times 4 bytes in nanoseconds.
    assert cells(tables.slopes(exact), "4", "shard") == [
        "4", "shard", "0.7692", "0.7692…0.7692", "3077", "0.7468", "+3.0%", "0.7468", "+3.0%"]
    fitted = {(f.arm, f.world_size): f for f in exact.fits}
    assert fitted["shard", 4].line.slope.value == pytest.approx(1.03 * B4)
    assert fitted["gloo", 4].line.slope.value == pytest.approx(3 * 1.03 * B4)


def test_the_ratio_stands_beside_w_minus_1(exact):
    assert cells(tables.ratios(exact), "6") == [
        "6", "5.000", "5.000…5.000", "5.000", "5.000", "+0.0%", "path,", "0.669", "MB/s", "path,", "0.669", "MB/s"]


def test_a_is_the_time_of_the_intercept_size(exact):
    # gloo, W=3: predicted 0.4 s + 4096 bytes at 2·2/3/0.6695 MB/s = 0.4082; measured × 1.03; closed form × 0.9.
    assert cells(tables.intercepts(exact), "3", "gloo") == [
        "3", "gloo", "0.4204", "0.4204…0.4204", "6", "0.4082", "+3.0%", "0.3673", "+14.4%"]


def test_the_speed_up_is_proven_apart_from_the_fits(make_run, exact):
    run = make_run(noise=0.0)
    ran = [m for m in load(run / "measurements.jsonl", Measurement)
           if (m.arm, m.world_size, m.nbytes) == ("shard", 4, 4_200_000)]
    append(run / "measurements.jsonl", [m.model_copy(update={
        "speedup": k, "campaign": 2, "seconds": m.seconds * factor})
        for k, factor in ((1.0, 1.02), (5.0, 0.985)) for m in ran])
    results = Results.load(run)
    assert results.fits == exact.fits
    assert errors(results.rows) == errors(exact.rows)
    # 1.03 · (0.09 + 0.7468·4.2) = 3.3235 s at k = 10, 2 % more at 1, 1.5 % less at 5: 3.6 % apart.
    lines = [line.split() for line in printed(tables.scaling(results)).splitlines() if line.startswith(" 4")]
    assert lines == [
        ["4", "shard", "4.2", "MB", "1", "3.390", "3.390…3.390", "6", "+0.0%", "DISAGREE"],
        ["4", "shard", "4.2", "MB", "5", "3.274", "3.274…3.274", "6", "-3.4%", "DISAGREE"],
        ["4", "shard", "4.2", "MB", "10", "3.324", "3.324…3.324", "6", "-2.0%", "DISAGREE"]]


def test_other_sizes_are_apart(exact):
    fitted, beside = map(printed, list(tables.points(exact))[:2])
    assert "4 KiB" in fitted
    assert "16.9 MB" in fitted
    assert "64 KiB" not in fitted
    assert "64 KiB" in beside
    assert "16.9 MB" not in beside


def test_errors_cover_every_point(exact):
    # 4 worlds × 7 sizes, and 4 training steps without a closed form: ln 1.03 = 0.0296, ln(1.03/0.9) = 0.1349.
    assert cells(tables.errors(exact.rows), "gloo", "blind") == ["gloo", "blind", "32", "0.030", "0.030", "0.030"]
    assert cells(tables.errors(exact.rows), "shard", "closed")[2:] == ["form", "28", "0.135", "0.135", "0.135"]


def test_ranks_that_end_apart_are_told(make_run):
    run = make_run()
    file = run / "outcomes.jsonl"
    outcomes = [json.loads(line) for line in file.read_text().splitlines()]
    for outcome in outcomes:
        if (outcome["world_size"], outcome["arm"], outcome["rank"]) == (4, "shard", 3):
            outcome.update(parameters_sha256="ef" * 32, held_out_loss=0.5)
    file.unlink()
    append(file, [Outcome(**outcome) for outcome in outcomes
                  if (outcome["world_size"], outcome["arm"], outcome["rank"]) != (3, "gloo", 1)])
    (table,) = tables.outcomes(Results.load(run))
    assert cells(table, "4", "shard")[2:] == ["48", "0.493987", "/", "0.500000", "95", "DIFFER:", "2", "hashes"]
    assert cells(table, "4", "gloo")[-3:] == ["all", "equal,", "abababab"]
    assert cells(table, "3", "gloo")[-5:] == ["no", "outcome", "of", "rank", "1"]


def test_arms_that_keep_something_else_have_tables_of_their_own(exact):
    outcomes = [Outcome(arm=arm, world_size=2, hosts=("a", "b"), workload="training", nbytes=8, bucket_view=True,
                        rank=rank, steps=2, parameters_sha256=f"{rank * (arm != 'faithful')}" * 64, held_out_loss=0.5,
                        held_out_accuracy=0.25, all_reduces=None, incorporated=incorporated)
                for arm, incorporated in (("faithful", (2, 2, 2)), ("fresh_only", (1, 2, 1)), ("every_k", (2, 1, 2)))
                for rank in range(2)]
    keeping, skipping = tables.outcomes(replace(exact, outcomes=tuple(outcomes)))
    assert "arms that keep the sum" in printed(keeping)
    assert "arms that skip contributions" in printed(skipping)
    assert cells(keeping, "2", "faithful") == ["2", "faithful", "on", "2", "0.500000", "25.0%", "–", "2.00", "all",
                                               "equal,", "00000000"]
    assert cells(skipping, "2", "fresh_only")[5:] == ["25.0%", "–", "1.33", "differ:", "2", "hashes"]
    assert cells(skipping, "2", "every_k")[7] == "1.67"


def test_phases_are_medians_by_bucket(exact):
    assert cells(tables.phases(exact), "training", "4", "shard", "4.202") == [
        "training", "4", "shard", "4.202", "MB", "10", "12", "0.50", "137.00", "160.00", "300.00"]


def test_the_header_says_what_the_links_were(exact):
    text = printed(header(exact))
    assert text.startswith("synthetic on seattle-newyork, 6 repetitions")
    assert "engine netem, congestion cubic, speedup 10" in text
    assert "Links before campaign 1 (speed-up 1): valid, 30 paths" in text
    assert "INVALID" not in text


def test_a_path_that_is_off_is_named(make_run):
    run = make_run()
    off(run)
    text = printed(header(Results.load(run)))
    assert "Links before campaign 0 (speed-up 10): valid, 30 paths" in text
    assert "Links after campaign 0 (speed-up 10): INVALID, 1 of 30 paths off" in text
    assert "newyork-1 -> seattle-ai: goodput 6.000 MB/s, expected 6.695; round trip 8.10 ms, expected 7.00" in text


def test_a_path_without_a_limit_may_have_any_goodput(make_run):
    run = make_run()
    append(run / "fidelity.jsonl", [Fidelity(
        campaign=0, when="after", speedup=10, source="newyork-1", target="seattle-ai", rtt_seconds=0.0081,
        expected_rtt_seconds=0.007, goodput=6.0e6, expected_goodput=None, valid=False)])
    assert "goodput 6.000 MB/s, expected any; round trip 8.10 ms" in printed(header(Results.load(run)))


def test_links_that_nobody_probed_are_not_called_valid(make_run):
    run = make_run()
    probes = (run / "fidelity.jsonl").read_text().splitlines(keepends=True)
    (run / "fidelity.jsonl").write_text("".join(line for line in probes if '"campaign":1,"when":"after"' not in line))
    shown, well = report(run)
    assert well is False
    assert "NOT PROBED: nothing says that links were what the topology describes after campaign 1." in printed(
        shown, 200)
    (run / "fidelity.jsonl").unlink()
    shown, well = report(run)
    assert well is False
    assert "Links: not probed" in printed(shown)
    assert "before campaign 0, after campaign 0, before campaign 1, after campaign 1." in printed(shown, 300)


def test_the_csv_has_a_line_a_point(exact, tmp_path):
    write_csv(exact, tmp_path / "points.csv")
    with (tmp_path / "points.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * 2 * (7 + 1)
    (line,) = [line for line in lines if (line["arm"], line["world_size"], line["nbytes"]) == ("shard", "4", "8400000")]
    assert float(line["measured_median_s"]) == pytest.approx(1.03 * (0.09 + B4 * 8.4e6))
    assert float(line["blind_ln_error"]) == pytest.approx(0.029559, abs=1e-6)
    assert line["hosts"] == "seattle-ai seattle-gateway seattle-2 newyork-1"
    assert (line["n"], line["speedup"]) == ("6", "10")


def test_nothing_is_written_of_a_run_that_is_refused(make_run):
    run = make_run()
    before = {file.name for file in run.iterdir()}
    with (run / "predictions.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"predictions\.jsonl:\d+: no Prediction"):
        report(run)
    (run / "measurements.jsonl").write_text("")
    (run / "predictions.jsonl").write_text((run / "predictions.jsonl").read_text().rstrip("\n") + "\n")
    with pytest.raises(CompareError, match="nothing is measured yet"):
        report(run)
    assert {file.name for file in run.iterdir()} == before


def test_a_run_that_is_not_finished_is_shown_without_what_needs_all_of_it(make_run):
    run = make_run()
    lines = (run / "measurements.jsonl").read_text().splitlines(keepends=True)
    gone = [line for line in lines
            if all(part in line for part in ('"world_size":6', '"arm":"gloo"', '"nbytes":16900000'))]
    assert len(gone) == 6
    half = next(line for line in lines if '"world_size":2' in line and '"nbytes":4096' in line)
    (run / "measurements.jsonl").write_text("".join(line for line in lines if line not in gone and line != half))
    shown, well = report(run)
    text = printed(shown)
    assert not well
    assert "INCOMPLETE" in text
    assert "not measured: gloo, W=6, all_reduce of 16900000 bytes" in text
    assert "5 of 6 times measured: gloo, W=2, all_reduce of 4096 bytes" in text
    assert "over every point" not in text
    results = Results.load(run)
    assert (6, "gloo") not in {(f.world_size, f.arm) for f in results.fits}
    assert (6, "shard") in {(f.world_size, f.arm) for f in results.fits}


def test_an_environment_that_is_cut_off_is_refused_with_file_and_line(make_run):
    run = make_run()
    (run / "environment.json").write_text('{\n  "schema": 1,\n')
    with pytest.raises(RecordError, match=r"environment\.json:3: no JSON"):
        report(run)
