"""The command line, run in process; every wrong option names the valid ones."""

import json
import re
import shlex
from pathlib import Path

import polars as pl
import pytest


def test_compare(kvgym, tmp_path):
    out = kvgym.output("compare -n 40 --seeds 2 -p mc_sf,alpha_beta:alpha=0.2,beta=0.1 -o res")
    assert "alpha_beta:alpha=0.2,beta=0.1" in out
    assert "95 % interval" in out
    assert "160 of 160 requests completed, each exactly once." in out
    assert {f.name for f in (tmp_path / "res").iterdir()} >= {
        "runs.csv", "runs.parquet", "summary.json", "config.json", "report.html",
    }  # fmt: skip


def test_compare_replays_a_trace(kvgym, azure_trace):
    out = kvgym.output(
        f"compare --trace {azure_trace} --hardware llama3-8b-a100-tp1 -p mc_sf,fcfs --no-report"
    )
    assert "400 of 400 requests completed, each exactly once." in out
    assert "format azure" in out


def test_your_own_trace(kvgym, tmp_path):
    (tmp_path / "log.csv").write_text("at,in,out\n" + "".join(f"{250 * k},3,2\n" for k in range(8)))
    options = "--set batch_time=affine:constant=0.1 --kv-capacity 100 --time-unit ms -o out"
    options += " --trace log.csv --columns arrival=at,prompt=in,output=out"
    out = kvgym.output(f"run -p fcfs {options} --json")
    whole = json.loads(out)["metrics"]
    assert whole["goodput"] is None
    assert whole["request_throughput"] == pytest.approx(8 / (7 * 0.25 + 0.2))
    measured = "--ttft-slo 0.15 --tbt-slo 0.05 --set warm_up=1r --set cool_down=0.5"
    out = kvgym.output(f"run -p fcfs {options} {measured} --json")
    summary = json.loads(out)
    assert (summary["metrics"]["slo_attainment"], summary["metrics"]["goodput"]) == (0, 0)
    assert summary["metrics"]["request_throughput"] == pytest.approx(4)
    assert "Measured from 0.25 s to 1.25 s: latencies of the 4 of 8" in summary["notes"][-1]
    out = kvgym.output(f"compare {options} -p fcfs --metrics goodput --no-report")
    assert re.search(r"fcfs +–", out)
    for wrong, words in (
        (("--columns", "arrival"), "'arrival' is not column=name; write arrival=timestamp"),
        (("--columns", "arrival=at,arrival=in"), "'arrival=in' is given twice"),
        ((), "Name them: --columns"),
    ):
        err = kvgym.error("run", "-p", "fcfs", "--trace", "log.csv", *wrong)
        assert words in err
    err = kvgym.error("run", "-p", "fcfs", "--columns", "arrival=at", "--time-unit", "ms")
    assert (
        "columns, time_unit: only for traces, and this workload is not a trace; give one with trace (--trace)"
        in err
    )
    err = kvgym.error("run", "-p", "fcfs", "-n", 30, "--set", "warm_up=0.1", "--format", "vllm-bench")
    assert "leave out warm_up and cool_down" in err


def test_results_go_to_a_new_folder_each_time(kvgym, tmp_path):
    for _ in range(2):
        kvgym("compare", "-n", 5, "--seeds", 1, "-p", "fcfs", "--no-report")
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_results_of_an_earlier_command_are_removed(kvgym, tmp_path):
    kvgym("run", "-p", "fcfs", "-n", 5, "--log", "--format", "vllm-bench", "-o", "same")
    (tmp_path / "same" / "mine.txt").touch()
    earlier = {f.name for f in (tmp_path / "same").iterdir()}
    listed = ".kvgym-results.json"
    assert earlier == {
        "requests.csv",
        "iterations.csv",
        "summary.json",
        "vllm-bench.json",
        "mine.txt",
        listed,
    }
    small = ("compare", "-n", 5, "--seeds", 1, "-p", "fcfs", "-o", "same", "--no-report")
    kvgym(*small, "--workers", 2, "--format", "vllm-bench")
    results = {"runs.csv", "runs.parquet", "summary.json", "config.json", "mine.txt", listed}
    assert {f.name for f in (tmp_path / "same").iterdir()} == {*results, "workers.csv", "vllm-bench"}
    assert len(list((tmp_path / "same" / "vllm-bench").iterdir())) == 1
    assert kvgym(*small, "--metrics", "nothing")[0] == 2  # an error: earlier results stay
    assert (tmp_path / "same" / "workers.csv").exists()
    kvgym(*small)
    left = {f.name for f in (tmp_path / "same").rglob("*")}
    assert left - {"vllm-bench"} == results


def test_input_files_are_not_taken_for_results(kvgym, tmp_path):
    text = "arrival_time,prompt_len,output_len\n0,3,2\n1,5,3\n"
    for name in ("iterations.csv", "windows.csv"):  # also names of results
        (tmp_path / name).write_text(text)
    small = ("compare", "-p", "fcfs", "--no-report", "-o", ".", "--trace")
    for _ in range(2):
        assert kvgym(*small, "iterations.csv")[0] == 0
        assert (tmp_path / "iterations.csv").read_text() == text
    assert (tmp_path / "windows.csv").read_text() == text  # kvgym has not written it


def test_a_note_names_rules_that_differ_from_an_engines(kvgym):
    """Evicted requests lose their output under the papers' rules, but not in vllm-v1, which has the rules of vLLM."""
    options = ("compare", "-p", "vllm_v1,fcfs,vllm", "-n", 5, "--seeds", 1, "--no-report", "-s")
    note = (
        "vllm_v1 and vllm run under progress_on_evict = lost, requeue = arrival, blocks of 1, engine vllm-2023; the "
        "real engine recomputes and requeues at the front. --scenario vllm-v1 has these rules, blocks of 16, engine "
        "vllm-2024"
    )
    assert note in " ".join(kvgym(*options, "a100-llama2-70b")[1].split())
    out = kvgym(*options, "vllm-v1")[1]
    assert "run under" not in out
    budgets = "Tokens per iteration at most: vllm_v1 2,048 (its engine's default on A100 80GB), vllm 4,096."
    assert budgets in " ".join(out.split())
    assert "note: vllm runs under" in kvgym("run", "-p", "vllm", "-n", 5, "-s", "a100-llama2-70b")[1]


def test_run_writes_a_record_of_every_request(kvgym, tmp_path):
    out = kvgym.output("run", "-p", "fcfs", "-n", 30, "--log", "-o", "one", "--json")
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "one" / "summary.json").read_text())
    assert summary["metrics"]["finished"] == 30
    assert summary["config"]["seed"] == 0
    rows = pl.read_csv(tmp_path / "one" / "requests.csv")
    assert rows.height == 30
    ordered = rows.filter(
        (pl.col("arrival_time") <= pl.col("start_time"))
        & (pl.col("start_time") < pl.col("first_token_time"))
        & (pl.col("first_token_time") <= pl.col("finish_time"))
    )
    assert ordered.height == 30
    assert "num_evictions" in rows.columns
    log = pl.read_csv(tmp_path / "one" / "iterations.csv")
    assert log["num_finished"].sum() == 30
    assert log.height == summary["metrics"]["iterations"]


def test_run_a_request_file_in_slotted_time(kvgym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n1,5,3\n")
    out = kvgym.output(
        "run -p mc_benchmark --trace mine.csv --set batch_time=unit --rules=paper --kv-capacity 20 -o out"
    )
    assert pl.read_csv(tmp_path / "out" / "requests.csv")["finish_time"].to_list() == [2, 4]
    assert "unit (M = 20)" in out


def test_memory_in_blocks(kvgym, tmp_path):
    """Two requests of 4 and 5 tokens: 20 tokens hold both, two blocks of 10 as well, but not one of 16."""
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n0,3,2\n")
    options = "run -p fcfs --trace mine.csv --set batch_time=unit --kv-capacity 20 -o out"
    for block_size, finish, shown in ((10, [2, 2], "in blocks of 10"), (16, [2, 4], "in blocks of 16")):
        out = kvgym.output(options, "--set", f"block_size={block_size}")
        assert f"(M = 20 {shown})" in out
        assert pl.read_csv(tmp_path / "out" / "requests.csv")["finish_time"].to_list() == finish
    err = kvgym.error(options, "--set", "block_size=21")
    assert "block_size = 21, but a worker has kv_capacity = 20" in err
    err = kvgym.error(options, "--set", "block_size=0")
    assert "block_size = 0: expected a whole number of tokens" in err
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,17,2\n0,3,2\n")
    kvgym.output(options, "--set", "block_size=16", "--set", "too_long=clip")
    assert pl.read_csv(tmp_path / "out" / "requests.csv")["prompt_len"].to_list() == [14, 3]


def test_too_long_requests(kvgym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n1,50,3\n")
    options = "run -p fcfs --trace mine.csv --set batch_time=unit --rules=paper --kv-capacity 20 -o out"
    err = kvgym.error(options)
    assert "1 of 2 requests can never be served" in err
    assert "Drop or clip them (too_long: drop, --set too_long=drop; kvgym server validate --drop-long)" in err
    out = kvgym.output(options, "--set", "too_long=drop")
    assert "dropped" in out
    assert pl.read_csv(tmp_path / "out" / "requests.csv").height == 1
    out = kvgym.output(options, "--set", "too_long=clip")
    assert pl.read_csv(tmp_path / "out" / "requests.csv")["prompt_len"].to_list() == [3, 17]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "-p", "mc_sff"), ("unknown policy 'mc_sff'", "Did you mean 'mc_sf'", "alpha_beta")),
        (("compare", "-p", "fcfs:speed=1"), ("fcfs", "valid: protection=0.0")),
        (("compare", "-p", "fcfs:protection=2"), ("protection = 2", "[0, 1)")),
        (("compare", "-s", "nowhere"), ("unknown scenario", "a100-llama2-70b")),
        (("compare", "--hardware", "h100"), ("unknown hardware", "llama2-7b-a100-tp1")),
        (("compare", "--workload", "lmsis"), ("unknown workload", "lmsys")),
        (("compare", "--metrics", "ttft"), ("unknown metric", "ttft_p99")),
        (("compare", "--predictions", "psychic"), ("psychic", "noisy")),
        (("compare", "--predictions", "noisy:epsilon=7"), ("epsilon", "7")),
        (("compare", "--trace", "no.csv"), ("no.csv", "no such file")),
        (("compare", "--rate", "-1"), ("rate", "> 0")),
        (("compare", "--set", "rate_scale=2"), ("use rate (--rate) for other workloads",)),
        (("compare", "--set", "too_long=cut"), ("error, drop, clip",)),
        (("compare", "--set", "batch_time=afine"), ("afine", "affine")),
        (("compare", "--set", "batch_time=affine:constant=-1"), ("constant",)),
        (("list", "polices"), ("Did you mean 'policies'",)),
        (("list", "policies", "mc_sff"), ("unknown entry of policies 'mc_sff'", "Did you mean 'mc_sf'")),
        (
            ("compare", "-n", "0"),
            ("num_requests: expected a whole number ≥ 1 or a mapping of low, high (got 0)",),
        ),
        (("run", "-p", "fcfs", "--trace", "x.csv", "--workload", "lmsys"), ("exclude each other",)),
    ],
)
def test_wrong_values_name_the_valid_ones(kvgym, arguments, words):
    err = kvgym.error(*arguments)
    for word in words:
        assert word in err


def test_unknown_options_are_refused(kvgym):
    err = kvgym.error("compare", "--polices", "fcfs")
    assert "--policies" in err


def test_a_cluster(kvgym, tmp_path):
    out = kvgym.output(
        "compare -n 60 --seeds 2 -p fcfs --workers 3 --router join_shortest_queue -o many --no-report --no-progress"
    )
    assert "120 of 120 requests completed, each exactly once." in out
    assert "3 workers, join_shortest_queue" in out
    workers = pl.read_csv(tmp_path / "many" / "workers.csv")
    assert workers.height == 2 * 3
    assert workers["finished"].sum() == workers["routed"].sum() == 120
    assert json.loads((tmp_path / "many" / "config.json").read_text())["scenario"]["workers"] == 3
    out = kvgym.output("run", "-p", "mc_sf", "-n", 30, "--workers", 2, "-o", "two")
    assert "by worker" in out
    rows = pl.read_csv(tmp_path / "two" / "requests.csv")
    assert rows["worker"].to_list() == [0, 1] * 15  # round robin
    assert len(json.loads((tmp_path / "two" / "summary.json").read_text())["workers"]) == 2


def test_a_horizon(kvgym):
    out = kvgym.output("compare -n 60 --seeds 1 -p fcfs --set horizon=1.0 -o cut --no-report")
    assert "fcfs stopped at the horizon, 1 s, with" in out
    err = kvgym.error("compare", "-n", 60, "-p", "fcfs", "--set", "horizon=0", "-o", "cut")
    assert "expected seconds > 0" in err


def test_cluster_options_that_make_no_sense(kvgym):
    for options, words in (
        (("--router", "round_robin"), "add workers"),
        (("--workers", 0), "expected a whole number ≥ 1"),
        (("--workers", 2, "--router", "nearest"), "unknown router 'nearest'"),
    ):
        err = kvgym.error("run", "-p", "fcfs", "-n", 5, *options, "-o", "x")
        assert words in err.lower() or words in err


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "-p", "fcfs,mc_sf", "--seeds", 2, "--no-report", "--trace"),
        ("run", "-p", "fcfs", "--trace"),
        ("tune", "-p", "alpha_greedy", "--grid", "alpha=0.1/0.2", "--seeds", 2, "--trace"),
        ("evaluate", "ppo_noisy", "-p", "fcfs", "--trace"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("times", [True, False])
def test_a_trace_is_read_once(kvgym, tmp_path, monkeypatch, command, times):
    from kvgym.workloads.traces.source import SourceFile

    rows = [(k, 3 + k, 2) for k in range(5)]
    (tmp_path / "mine.csv").write_text(
        "arrival_time,prompt_len,output_len\n" + "".join(f"{a},{p},{o}\n" for a, p, o in rows)
        if times
        else "num_prefill_tokens,num_decode_tokens\n" + "".join(f"{p},{o}\n" for _, p, o in rows)
    )
    reads, original = [], SourceFile.open.__func__
    monkeypatch.setattr(
        SourceFile, "open", classmethod(lambda cls, path: reads.append(path) or original(cls, path))
    )
    kvgym.output(*command, "mine.csv", *(() if times else ("--rate", 2)), "-n", 4, "-o", "out")
    assert len(reads) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failed_run_writes_its_results_so_far(kvgym, tmp_path, as_json):
    (tmp_path / "mine.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n0,18,1\n5,3,2\n")
    unit = ("--set", "batch_time=unit", "--kv-capacity", 20, "--rules", "paper")
    files = ("--trace", "mine.csv", *unit, "-o", "out", "--log")
    options = ("--json",) if as_json else ()
    code, out, err = kvgym("run", "-p", "alpha_greedy:alpha=0.2,strict=True", *files, *options)
    assert code == 2
    (line,) = err.strip().splitlines()
    assert line.startswith("error: policy 'alpha_greedy'")
    assert out.split() == ([] if as_json else ["results", "so", "far:", "out"])
    rows = pl.read_csv(tmp_path / "out" / "requests.csv")
    assert rows["finish_time"].to_list() == [2, None, None]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["completed"] is False
    assert summary["error"] == line.removeprefix("error: ")
    assert summary["metrics"]["finished"] == 1
    assert pl.read_csv(tmp_path / "out" / "iterations.csv").height > 2
    code, out, _ = kvgym(
        "compare --trace mine.csv", *files[2:-1], "-p", "alpha_greedy:alpha=0.2,strict=True", "--no-report"
    )
    assert code == 1
    assert "admitted no request" in out
    assert pl.read_csv(tmp_path / "out" / "runs.csv")["finished"].is_nan().all()


def test_no_finished_run_is_an_exit_code(kvgym):
    code, out, _ = kvgym("compare -n 300 --seeds 1 -p alpha_greedy -s mc-sf-model-1 --no-report")
    assert code == 1
    assert "livelock" in out or "no progress" in out
    err = kvgym.error("compare", "-n", 5, "-p", "fcfs:protection=none")
    assert "protection = None; expected a fraction in [0, 1)" in err


def test_a_title_names_no_router_if_several_are_compared(kvgym, tmp_path):
    small = ("compare", "--workers", 2, "-p", "fcfs", "-n", 5, "--seeds", 1, "--no-report", "--no-progress")
    kvgym(*small, "--router", "round_robin,uniform_random", "-o", "two")
    summary = json.loads((tmp_path / "two" / "config.json").read_text())["scenario"]["summary"]
    assert summary.startswith(
        "2 workers, 2 routers: llama2-70b-a100-tp2 (M = 16,492 in blocks of 16), lmsys, "
    )
    assert "2 workers, uniform_random: " in kvgym(*small, "--router", "uniform_random")[1]


def test_the_first_command_for_engineers_shows_differences(kvgym, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "start-engineer.md").read_text("utf-8")
    command = next(line for line in page.splitlines() if line.startswith("kvgym compare "))
    kvgym.output(*shlex.split(command)[1:], "--no-progress")
    rows = (
        pl.read_csv(tmp_path / "results" / "first" / "runs.csv")
        .group_by("policy")
        .agg(pl.col(pl.Float64).mean())
    )
    assert len(rows) == 3
    for metric in ("e2e_latency_mean", "ttft_p99", "tbt_p99", "token_throughput"):
        best, *_, worst = sorted(rows[metric])
        assert worst > 1.03 * best, metric
    assert rows["kv_utilisation"].min() > 0.5


def test_separate_workers_are_compared_with_the_same_together(kvgym, tmp_path):
    given = ("compare", "-s", "a100-llama3-8b", "--prefill-workers", 1, "--decode-workers", 1, "-n", 10)
    given += ("-p", "fcfs", "--seeds", 1, "--no-report", "-o", "x")
    out = kvgym.output(*given)
    assert "1 prefill and 1 decode workers, link 300 GB/s, round_robin: llama3-8b-a100-tp1" in " ".join(
        out.split()
    )
    assert " fcfs, 1 prefill 1 decode " in out
    assert " fcfs, 2 together " in out
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert list(summary["policies"]) == ["fcfs, 1 prefill 1 decode", "fcfs, 2 together"]
    out = kvgym.output(*given, "--no-together")
    assert "together" not in out
    assert "1 prefill and 1 decode workers" in " ".join(out.split())
