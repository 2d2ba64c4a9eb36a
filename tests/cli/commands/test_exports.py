"""Formats of results on the command line."""

import json

import polars as pl
import pytest

from oracles.chrome_trace_format import load

SLOTTED = "--trace mine.csv --set batch_time=unit --kv-capacity 20 --rules paper -o out"


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n1,5,3\n")


def test_a_run_with_vllm_names(kvgym, tmp_path, mine):
    out = kvgym.output(f"run -p fcfs {SLOTTED} --format vllm-bench")
    printed = json.loads(out)
    assert (printed["completed"], printed["mean_ttft_ms"], printed["label"]) == (2, 1000, "fcfs")
    assert printed["request_rate"] == 1  # one gap of a second between the two
    written = json.loads((tmp_path / "out" / "vllm-bench.json").read_text())
    assert written.pop("ttfts") == [1, 1]
    assert {k: v for k, v in written.items() if k in printed} == printed
    assert written.keys() - printed.keys() == {
        "input_lens",
        "output_lens",
        "latencies",
        "start_times",
        "errors",
    }


def test_formats_of_a_run(kvgym, mine):
    short, long = (
        json.loads(kvgym(f"run -p fcfs {SLOTTED}", *how)[1]) for how in (("--json",), ("--format", "json"))
    )
    assert short["metrics"] == long["metrics"]
    assert "e2e_latency" in kvgym(f"run -p fcfs {SLOTTED} --format table")[1]


def test_a_run_in_pieces_has_the_metrics_of_one_but_no_records(kvgym, tmp_path):
    how = "run -p fcfs -s a100-llama2-70b -n 40 --json -o"
    whole, pieces = (json.loads(kvgym.output(f"{how} {out}")) for out in ("one", "two --stream"))
    assert not (tmp_path / "two" / "requests.csv").exists()
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["metrics"] == pieces["metrics"]
    for name in (
        "e2e_latency_mean",
        "ttft_max",
        "tbt_p99",
        "iterations",
        "kv_utilisation",
        "token_throughput",
    ):
        assert pieces["metrics"][name] == pytest.approx(whole["metrics"][name], rel=1e-12)
    status, _, error = kvgym(f"{how} three --stream --log")
    assert status == 2
    assert "--stream keeps no records" in error


def test_a_comparison_with_vllm_names(kvgym, tmp_path):
    out = kvgym.output(
        "compare -s a100-llama2-70b -n 20 --seeds 2 -p fcfs,mc_sf --format vllm-bench -o res --no-report"
    )
    assert "E2E mean" in out
    names = sorted(f.name for f in (tmp_path / "res" / "vllm-bench").iterdir())
    assert names == [f"{p}-seed{s}.json" for p in ("fcfs", "mc_sf") for s in (0, 1)]
    runs = pl.read_csv(tmp_path / "res" / "runs.csv").filter(policy="mc_sf", seed=1)
    content = json.loads((tmp_path / "res" / "vllm-bench" / "mc_sf-seed1.json").read_text())
    assert content["p99_itl_ms"] == pytest.approx(1000 * runs["tbt_p99"].item())
    assert content["burstiness"] == 1


def test_parquet_tables_can_be_read_again(kvgym, tmp_path):
    options = ("-n", 30, "--log", "-o", "one", "--json")
    kvgym("run", "-p", "mc_sf", *options, "--records", "parquet")
    rows = pl.read_parquet(tmp_path / "one" / "requests.parquet")
    assert rows.height == 30
    assert pl.read_parquet(tmp_path / "one" / "iterations.parquet")["num_finished"].sum() == 30
    assert not list((tmp_path / "one").glob("*.csv"))
    kvgym("run", "-p", "mc_sf", "-n", 30, "-o", "csv")
    for name in ("one/requests.parquet", "csv/requests.csv"):
        out = kvgym.output("run", "-p", "mc_sf", "--trace", name, "-o", "two")
        assert "Ignored columns" in out
        assert pl.read_csv(tmp_path / "two" / "requests.csv").equals(
            pl.read_csv(tmp_path / "csv" / "requests.csv")
        )
    out = kvgym.output("compare --trace one/requests.parquet -p fcfs,mc_sf -o three --no-report")
    assert "60 of 60 requests completed" in out


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_trace(kvgym, tmp_path, name):
    out = kvgym.output("run", "-p", "sarathi", "-n", 30, "--trace-out", name, "-o", "traced")
    assert f"trace:   {name}" in out
    assert not (tmp_path / "traced" / "iterations.csv").exists()
    content = load(tmp_path / name)
    assert content["otherData"]["policy"].startswith("sarathi(")
    assert content["otherData"]["command"].startswith("kvgym run -p sarathi -n 30 --trace-out")
    outer = [e for e in content["traceEvents"] if e["ph"] == "X" and e["name"].startswith("request")]
    assert len(outer) == 30
    kvgym("run", "-p", "sarathi", "-n", 30, "-o", "plain")
    csv = (tmp_path / "plain" / "requests.csv").read_text()
    assert (tmp_path / "traced" / "requests.csv").read_text() == csv
    err = kvgym("run", "-p", "sarathi", "-n", 5, "--trace-out", name, "-o", "traced")[2]
    assert f"note: replaced {name}\n" in err
    assert "note: replaced in traced: requests.csv, summary.json, of: kvgym run -p sarathi -n 30" in err


def test_a_trace_of_a_cluster(kvgym, tmp_path):
    kvgym("run", "-p", "mc_sf", "-n", 30, "--workers", 3, "--trace-out", "run.json", "-o", "out")
    names = [
        e["args"]["name"] for e in load(tmp_path / "run.json")["traceEvents"] if e["name"] == "process_name"
    ]
    assert names == [f"worker {k} (16,480 KV tokens)" for k in range(3)]


def test_a_failed_run_keeps_its_trace(kvgym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n0,18,1\n5,3,2\n")
    (tmp_path / "soon.yaml").write_text(
        "summary: notices soon that a policy admits nothing\nsystem: {stall_limit: 50}\nworkload: {preset: lmsys}\n"
    )
    policy = ("-p", "alpha_greedy:alpha=0.2,strict=True")
    err = kvgym.error(f"run --scenario soon.yaml {SLOTTED} --trace-out run.json", *policy)
    assert "admitted no request" in err
    finished = [
        e["args"]["finished"] for e in load(tmp_path / "run.json")["traceEvents"]
        if e["ph"] == "X" and e["name"].startswith("request")
    ]  # fmt: skip
    assert sorted(finished) == [False, False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "-p", "fcfs", "--format", "csv"), ("--format csv", "table, json, vllm-bench")),
        (("compare", "--format", "json"), ("--format json", "table, vllm-bench")),
        (("run", "-p", "fcfs", "--json", "--format", "table"), ("excludes --format table",)),
        (("run", "-p", "fcfs", "--records", "xlsx"), ("xlsx", "csv, parquet")),
        (("run", "-p", "fcfs", "--trace-out", "run.pb"), ("run.pb", ".json or .json.gz")),
        (("run", "-p", "fcfs", "-n", 5, "--trace-out", "no/run.json"), ("no/run.json", "No such file")),
    ],
)
def test_unknown_formats(kvgym, tmp_path, arguments, words):
    err = kvgym.error(*arguments)
    for word in words:
        assert word in err
    assert not list(tmp_path.rglob("requests.csv"))
