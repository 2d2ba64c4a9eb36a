"""``kvgym server validate``, run in process."""

import json
import shlex

import polars as pl
import pytest


@pytest.fixture
def served(kvgym):
    """A log written by the simulator."""
    kvgym.output("run -p vllm_v1 -s vllm-v1 -n 60 --rate 3 --engine base_ms=6,per_request_ms=0.2 -o server")
    return "server/requests.csv"


def test_the_same_settings_give_no_error(kvgym, served, tmp_path):
    out = kvgym.output(f"server validate {served} --engine base_ms=6,per_request_ms=0.2 -o check")
    flat = " ".join(out.split())
    assert "(M = 131,000 in blocks of 16), requests.csv" in flat
    assert "engine 6 ms per batch + 0.2 ms per request; kernels calibrated on A100 80GB" in flat
    assert (
        "replayed on scenario vllm-v1: llama3-8b-a100-tp1, engine base_ms = 6, per_request_ms = 0.2, blocks"
        in flat
    )
    assert "results: check" in out
    assert "note: This log was written by kvgym run: agreement with it proves nothing." in flat
    assert {f.name for f in (tmp_path / "check").iterdir()} == {
        "config.json", "requests.csv", "summary.json", "validation.png", ".kvgym-results.json",
    }  # fmt: skip
    summary = json.loads((tmp_path / "check" / "summary.json").read_text())
    for rows in summary["metrics"].values():
        assert all(abs(row["error"]) < 1e-9 for row in rows.values())
    assert summary["rank_correlation"]["e2e_latency"] == pytest.approx(1)
    assert summary["num_requests"] == 60
    rows = pl.read_csv(tmp_path / "check" / "requests.csv")
    assert rows.height == 60
    assert (rows["ttft_observed"] - rows["ttft_simulated"]).abs().max() < 1e-9
    config = json.loads((tmp_path / "check" / "config.json").read_text())
    assert config["scenario"]["hardware"] == "llama3-8b-a100-tp1"
    assert config["command"].startswith("kvgym server validate")


def test_another_engine_has_an_error_and_the_fit_removes_it(kvgym, served, tmp_path):
    out = kvgym.output(
        f"server validate {served} --engine early-2024 --fit-overhead --no-progress --no-picture -o fit"
    )
    for words in (
        "engine early-2024",
        "fitted overhead",
        "to use it:  --engine base_ms=",
        "engines:",
        "within 1%",
    ):
        assert words in out
    assert out.count("error = simulated") == 1
    _, before, after = out.split("vllm_v1 on ")
    assert "early-2024" in before.partition("ttft")[0]
    assert "early-2024" not in after
    assert after.partition("ttft")[0].count("engine ") == 2  # the fitted one, and the rules
    summary = json.loads((tmp_path / "fit" / "summary.json").read_text())
    assert summary["metrics"]["tbt"]["p50"]["error"] < -0.01
    assert abs(summary["fitted"]["metrics"]["tbt"]["p50"]["error"]) < 0.01
    assert summary["fit"]["loss"] < summary["fit"]["loss_before"]
    assert not (tmp_path / "fit" / "validation.png").exists()
    shown = [f"{100 * summary['fit'][name]:.1f}%" for name in ("mean_error_before", "mean_error")]
    assert f"mean size of the errors of token times and latencies {shown[0]} before, {shown[1]} after" in out
    config = json.loads((tmp_path / "fit" / "config.json").read_text())
    assert "early-2024" not in config["scenario"]["summary"]
    assert config["scenario"]["engine"]["base_ms"] == summary["fit"]["base_ms"]


@pytest.mark.long  # one fit is enough by default
def test_a_server_that_is_faster_than_the_kernels_gets_no_overhead(kvgym, tmp_path):
    kvgym("run -p vllm_v1 -s vllm-v1 -n 20 --set batch_time=affine:constant=0.0001 -o fast")
    out = kvgym.output("server validate fast/requests.csv --fit-overhead --no-progress --no-picture -o fit")
    assert "warning: no overhead brings the simulation within 50%" in out
    assert "use it" not in out


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--hardware", "llama3-8b-a100-tp1"), marks=pytest.mark.long),
        (
            "--hardware",
            "llama2-7b-a100-tp1",
            "--policies",
            "vllm_v1:max_num_seqs=16,max_num_batched_tokens=512",
        ),
        ("--engine", "base_ms=9", "--kv-capacity", 20000, "--workers", 2, "--router", "round_robin"),
        ("--columns", "arrival=at,first_token_time=first,prompt=size", "--time-unit", "ms"),
    ],
)
def test_the_printed_command_compares_on_the_same_setup(kvgym, served, tmp_path, options):
    if "--columns" in options:
        rows = pl.read_csv(served).rename(
            {"arrival_time": "at", "first_token_time": "first", "prompt_len": "size"}
        )
        times = [(pl.col(name) * 1e3).round(6) for name in ("at", "first", "finish_time")]
        rows.with_columns(times).write_csv(tmp_path / "log.csv")
        served = "log.csv"
    out = kvgym.output("server", "validate", served, *options, "--no-picture", "-o", "check")
    (line,) = [line for line in out.splitlines() if line.startswith("replayed on")]
    assert line.startswith("replayed on scenario vllm-v1: ")
    program, *arguments = shlex.split(line.partition("to compare schedulers: ")[2])
    assert program == "kvgym"
    kvgym.output(*arguments, "--no-report", "--no-progress", "-o", "compared")
    (run,) = pl.read_csv(tmp_path / "compared" / "runs.csv").to_dicts()
    metrics = json.loads((tmp_path / "check" / "summary.json").read_text())["metrics"]
    assert run["e2e_latency_mean"] == pytest.approx(metrics["e2e_latency"]["mean"]["simulated"], rel=1e-5)
    assert run["ttft_p99"] == pytest.approx(metrics["ttft"]["p99"]["simulated"], rel=1e-5)


def test_a_log_under_the_names_of_a_known_format_is_compared_as_it_was_replayed(kvgym, served, tmp_path):
    names = {"arrival_time": "timestamp", "prompt_len": "input_length", "output_len": "output_length"}
    rows = pl.read_csv(served).drop("start_time")
    rows.rename(names).write_csv(tmp_path / "log.csv")  # Mooncake's, in milliseconds
    out = kvgym("server", "validate", "log.csv", "--no-picture", "-o", "check")[1]
    assert "--trace check/requests.csv -p vllm_v1" in out
    shown = pl.read_csv(tmp_path / "check" / "requests.csv")
    assert shown["arrival_time"].to_list() == pytest.approx(
        (rows["arrival_time"] - rows["arrival_time"][0]).to_list()
    )


def test_first_requests_that_are_not_compared(kvgym, served, tmp_path):
    """The log is of a server 1 s slower in its first 20 requests: without them there is no error."""
    log = pl.read_csv(tmp_path / "server" / "requests.csv")
    late = pl.when(pl.int_range(pl.len()) < 20).then(1.0).otherwise(0.0)
    log = log.select(
        "arrival_time",
        "prompt_len",
        "output_len",
        *(pl.col(t) + late for t in ("first_token_time", "finish_time")),
    )
    log.write_csv(tmp_path / "slow.csv")
    replayed = "server validate slow.csv --engine base_ms=6,per_request_ms=0.2 --no-picture"
    kvgym.output(f"{replayed} -o all")
    out = kvgym.output(f"{replayed} --skip 20 -o later")
    assert "note: The first 20 requests are replayed but not compared." in " ".join(out.split())
    whole, later = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("all", "later"))
    assert whole["metrics"]["ttft"]["mean"]["error"] < -0.1
    for rows in later["metrics"].values():
        assert all(abs(row["error"]) < 1e-9 for row in rows.values())
    assert all(abs(total["error"]) < 1e-9 for name, total in later["totals"].items() if name != "evictions")
    assert "skipped" not in whole
    assert pl.read_csv(tmp_path / "later" / "requests.csv").height == 60
    assert "skip = 60: slow.csv has 60 requests, none is left" in kvgym.error(f"{replayed} --skip 60 -o x")


def test_long_requests(kvgym, served):
    err = kvgym.error("server", "validate", served, "--kv-capacity", 300, "-o", "a", "--no-picture")
    assert "can never be served" in err
    out = kvgym.output(f"server validate {served} --kv-capacity 300 --drop-long -o a --no-picture")
    assert "longer than 288 tokens and were dropped" in out  # whole blocks of 16


def test_single_tokens_have_latencies_too(kvgym, tmp_path):
    rows = "".join(f"{i},50,1,0.{i + 1},0.{i + 1}\n" for i in range(5))
    (tmp_path / "one.csv").write_text(f"arrival_time,prompt_len,output_len,ttft,e2e_latency\n{rows}")
    out = kvgym.output("server", "validate", "one.csv", "-o", "one", "--no-picture")
    assert "ttft" in out
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["loss"] is None


def test_a_missing_library_only_skips_the_picture(kvgym, served, tmp_path, monkeypatch):
    monkeypatch.setattr("kvgym.report.find_spec", lambda name: None)
    code, _, err = kvgym("server", "validate", served, "-o", "plain")
    assert code == 0
    assert "no picture" in err
    assert "kvgym[pictures]" in err
    assert (tmp_path / "plain" / "summary.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no.csv",), ("no.csv", "no such file")),
        (("short.csv",), ("first_token_time", "ttft")),
        (("server/requests.csv", "--policies", "vlm"), ("unknown policy", "vllm")),
        (("server/requests.csv", "--engine", "vllm-1999"), ("vllm-1999", "vllm-2024")),
        (("server/requests.csv", "--hardware", "h100"), ("unknown hardware",)),
        (
            (
                "server/requests.csv",
                "--set",
                "batch_time=unit",
                "--kv-capacity",
                "9999",
                "--fit-overhead",
            ),
            ("--hardware", "equal workers"),
        ),
    ],
)
def test_mistakes_are_named(kvgym, served, tmp_path, arguments, words):
    (tmp_path / "short.csv").write_text("arrival_time,prompt_len,output_len\n0,1,1\n")
    err = kvgym.error("server", "validate", *arguments, "-o", "wrong", "--no-progress")
    for word in words:
        assert word in err
