import csv
import json
from pathlib import Path

import pytest


def small(*more):
    return ("sweep", "rate=10,20", "num_requests=40", "-p", "fcfs,mc_sf", "--seeds", 2, *more)


def test_a_sweep_is_shown_and_written(kvgym, tmp_path):
    result = kvgym(*small("--out", tmp_path / "x", "--no-report"))
    assert result[0] == 0, result[2]
    assert "E2E mean (s)" in result[1]
    assert "8 runs" in result[1]
    names = {p.name for p in (tmp_path / "x").iterdir()}
    assert {"plan.json", "runs.jsonl", "runs.csv", "runs.parquet", "summary.json", "config.json"} <= names
    again = kvgym("sweep", "--resume", "--out", tmp_path / "x", "--no-report")
    assert again[0] == 0, again[2]
    assert "8 runs, 8 of them known already" in again[1]
    more = kvgym(*small("--resume", "--out", tmp_path / "x", "--no-report", "--seeds", 3))
    assert "12 runs, 8 of them known already" in more[1]


def test_a_plan_file_can_be_changed(kvgym, tmp_path):
    plan = tmp_path / "mine.yaml"
    plan.write_text("fields: {rate: [10, 20], num_requests: 30}\npolicies: [fcfs]\nseeds: 1\n")
    result = kvgym("sweep", plan, "kv_capacity=9000,12000", "--out", tmp_path / "x", "--no-report")
    assert result[0] == 0, result[2]
    points = json.loads((tmp_path / "x" / "summary.json").read_text())["points"]
    found = [(p["rate"], p["kv_capacity"]) for p in points]
    assert found == [(10, 9000), (10, 12000), (20, 9000), (20, 12000)]


def test_a_sweep_uses_the_given_scenario(kvgym, tmp_path):
    plan = tmp_path / "mine.yaml"
    plan.write_text(
        "scenario: mc-sf-noisy\nfields: {rate: [10, 20], num_requests: 20}\npolicies: [fcfs]\nseeds: 1\n"
    )
    for name in ("mc-sf-noisy", "a100-llama2-70b"):
        result = kvgym("sweep", plan, "-s", name, "--out", tmp_path / name, "--no-report")
        assert result[0] == 0, result[2]
        assert json.loads((tmp_path / name / "plan.json").read_text())["scenario"] == name


def test_labels_are_not_markup(kvgym, tmp_path):
    agent = tmp_path / "mine[red].json"
    agent.write_bytes((Path(__file__).parents[3] / "agents" / "models" / "ranked_latency.json").read_bytes())
    for command in ("sweep", "compare"):
        fields = ("rate=10,20", "num_requests=20") if command == "sweep" else ("-n", 20)
        out = tmp_path / command
        result = kvgym(command, *fields, "-p", agent, "--seeds", 1, "--out", out, "--no-report")
        assert result[0] == 0, result[2]
        assert "[red]" in result[1]


def test_sweeps_are_listed(kvgym):
    assert "rates" in kvgym("list", "sweeps")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep",), "nothing to sweep"),
        (("sweep", "--resume"), "needs the folder of a sweep"),
        (("sweep", "rate="), "expected name=values"),
        (("sweep", "rate=1", "rate=2"), "given twice"),
        (("sweep", "nothing", "rate=1"), "unknown sweep 'nothing'"),
        (("sweep", "rates", "memory"), "a plan is already named"),
        (("sweep", "speed=1,2"), "unknown field 'speed'"),
        (("sweep", "rate=1,2", "--ray", "127.0.0.1:1"), "no Ray cluster at '127.0.0.1:1'"),
    ],
)
def test_mistakes_end_in_one_line(kvgym, tmp_path, arguments, message):
    extra = () if "--resume" in arguments else ("--out", tmp_path / "x")
    result = kvgym(*arguments, *extra)
    assert result[0] == 2
    assert message in result[2]
    assert "Traceback" not in result[2]


def test_a_full_disk_ends_in_one_line(kvgym, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device (os error 28)")  # as libraries say it, without a number

    monkeypatch.setattr("kvgym.utils.frame.Frame.write_parquet", full)
    result = kvgym(*small("--out", tmp_path / "x", "--no-report"))
    assert result[0] == 2
    assert "error: the results cannot be written: No space left" in result[2]


def test_resuming_with_another_plan_is_noted(kvgym, tmp_path):
    small = ("num_requests=5", "-p", "fcfs", "--seeds", 1, "--no-report", "--no-progress", "-o", "s")
    err = kvgym("sweep", "rate=5,10", *small, "--resume")[2]
    assert err.startswith("note: nothing to resume in s: all 2 runs start now")
    err = kvgym("sweep", "rate=5,20", *small, "--resume")[2]
    assert err.startswith(
        "note: the plan differs from the one in s (rate = 5, 20, was 5, 10): 1 of its 2 runs are known"
    )
    assert "note: replaced in s: runs.csv" in err
    assert "the plan differs" not in kvgym("sweep", "--resume", "-o", "s", "--no-report", "--no-progress")[2]
    lines = (tmp_path / "s" / "runs.jsonl").read_text().splitlines()
    other = [line.replace(json.loads(line)["key"], "0" * 24) for line in lines]
    (tmp_path / "s" / "runs.jsonl").write_text("\n".join(other) + "\n")
    err = kvgym("sweep", "--resume", "-o", "s", "--no-report", "--no-progress")[2]
    assert "no run in s matches this version of kvgym and these files: all 2 are run again" in err


def test_options_of_the_scenario_hold_at_every_point(kvgym, tmp_path):
    (tmp_path / "log.csv").write_text("arrival_time,prompt_len,output_len\n0,30,4\n1,50,6\n2,20,5\n")
    given = ("--trace", "log.csv", "-n", 2, "--model", "qwen3-8b", "--gpu", "l40s")
    kvgym.output("sweep", "block_size=1,16", *given, "-p", "fcfs", "--no-report", "-o", "x")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert [scenario["system"]["block_size"] for scenario in config["scenarios"]] == [1, 16]
    for scenario in config["scenarios"]:
        assert scenario["hardware"] == "kernels:model=qwen3-8b,gpu=l40s"
        assert scenario["workload"]["num_requests"] == 2
        assert scenario["workload"]["lengths"]["path"] == "log.csv"
    code, _, err = kvgym("sweep", "rate=1,2", "--rate", 3, "-o", "y")
    assert (code, err) == (2, "error: rate is swept, and set by --rate; remove one of the two\n")


def test_marks_are_in_table_files_and_report(kvgym, tmp_path):
    """At the low rate nothing is overloaded; both policies observe exact lengths at every point, or at none."""
    code, out, err = kvgym(
        "sweep", "rate=2,60", "num_requests=1000", "--scenario", "a100-llama2-70b", "-p", "fcfs,mc_sf", "--seeds", 1,
        "--no-progress", "-o", "x",
    )  # fmt: skip
    assert code == 0, err
    table = out[: out.index("one seed")]
    assert "mc_sf†" in table
    low, high = (line for line in table.splitlines() if line.split()[:1] in (["2"], ["60"]))
    assert "‡" not in low
    assert high.count("‡") == 2
    with open(tmp_path / "x" / "runs.csv", newline="") as file:
        marks = [row["marks"] for row in csv.DictReader(file)]
    assert marks == ["", "exact_lengths", "overloaded", "exact_lengths overloaded"]
    points = json.loads((tmp_path / "x" / "summary.json").read_text())["points"]
    assert [point["marks"] for point in points] == [mark.split() for mark in marks]
    report = (tmp_path / "x" / "report.html").read_text()
    assert report.count('<span class="mark">‡ overloaded</span>') >= 2
    assert report.count('<span class="mark">† exact lengths</span>') >= 2
