"""``kvgym server observe`` and ``kvgym server mock``, from URL to error table on this machine."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.policies.policy import make_policy
from kvgym.servers.endpoint.mock import MockServer
from kvgym.servers.endpoint.online import OnlineRun
from kvgym.servers.validation.served import read_served
from kvgym.workloads.traces import write_sample_trace


@pytest.fixture
def run():
    return OnlineRun(build_scenario("vllm-v1").make_system(), make_policy("vllm_v1"))


@pytest.fixture
def served(run):
    """Return the address of a mock server at twice real time."""
    server = MockServer(run, speed=2.0)
    server.start()
    yield server.url
    server.close()


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(0)
    times, prompts, outputs = (
        np.cumsum(rng.exponential(0.1, 24)),
        rng.integers(20, 400, 24),
        rng.integers(4, 40, 24),
    )
    rows = "".join(f"{t:.4f},{p},{o}\n" for t, p, o in zip(times, prompts, outputs, strict=True))
    (tmp_path / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")
    return "trace.csv"


def rows_of(folder):
    """Return the rows of a log, in the order of the requests."""
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: row["request_id"])


def test_from_url_to_error_table(kvgym, served, trace, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code, out, err = kvgym(
        f"server observe {served} --trace", trace, "--validate", "--no-picture", "--no-progress", "-o", "r"
    )
    assert code == 0, err
    flat = " ".join(out.split())
    assert "24 requests over 1 s; Ctrl-C keeps what was measured" in flat
    assert "error of the mean by quarter" in flat
    assert (
        "note: The server was kvgym server mock at 2 times real time: agreement with it proves nothing."
        in flat
    )
    assert "note: The server reports 130,992 KV tokens (--kv-capacity 130992)." in flat
    assert {path.name for path in (tmp_path / "r").iterdir()} >= {
        "requests.jsonl", "observed.json", "config.json", "requests.csv", "summary.json",
    }  # fmt: skip
    rows = rows_of(tmp_path / "r")
    assert [row["request_id"] for row in rows] == list(range(24))
    for row in rows:
        assert row["reason"] is None
        assert (row["prompt_len"], row["output_len"]) == (row["wanted_prompt_len"], row["wanted_output_len"])
        assert len(row["gaps"]) == row["output_len"] - 1
        assert row["ttft"] + sum(row["gaps"]) == pytest.approx(row["e2e_latency"], abs=1e-4)
        assert row["arrival_time"] >= row["scheduled_time"]
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["num_requests"] == 24
    assert summary["totals"]["evictions"]["observed"] == summary["totals"]["evictions"]["simulated"] == 0
    assert abs(summary["metrics"]["tbt"]["mean"]["error"]) < 0.5  # a busy machine is late
    assert summary["rank_correlation"]["e2e_latency"] > 0.5
    about = json.loads((tmp_path / "r" / "observed.json").read_text())
    assert (about["sent"], about["complete"], about["num_evictions"], about["key_sent"]) == (24, 24, 0, True)
    assert "sk-secret" not in out + err + "".join(p.read_text() for p in (tmp_path / "r").iterdir())
    assert read_served(tmp_path / "r").makespan == summary["totals"]["makespan"]["observed"]
    assert "choose another folder" in kvgym("server", "validate", "r", "-o", "r")[2]


def test_requests_that_warm_the_server_up_are_replayed_but_not_compared(kvgym, served, trace, tmp_path):
    out = kvgym.output(
        f"server observe {served} --warm-up 10 --trace {trace} --validate --no-picture --no-progress -o r"
    )
    assert "note: The first 10 requests are replayed but not compared." in " ".join(out.split())
    rows = rows_of(tmp_path / "r")
    assert ["warm_up" in row for row in rows] == [True] * 10 + [False] * 14
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["num_requests"], summary["skipped"]) == (24, 10)
    mean = np.mean([row["ttft"] for row in rows[10:]])
    assert summary["metrics"]["ttft"]["mean"]["observed"] == pytest.approx(mean)
    assert read_served(tmp_path / "r").skip == 10
    err = kvgym.error(f"server observe {served} --warm-up 24 --trace {trace} -o q")
    assert "--warm-up 24: 24 requests are sent, none is left to compare" in err


def test_a_trace_hits_the_prefix_cache_as_often_as_in_a_comparison(kvgym, tmp_path):
    write_sample_trace(tmp_path / "trace.jsonl", "mooncake")
    kvgym.output(
        "compare --trace trace.jsonl --prefix-cache scheduled -p vllm_v1 --hardware llama3-8b-a100-tp1 --seeds 1 "
        "--no-report --no-progress -o compared"
    )
    with (tmp_path / "compared" / "runs.csv").open() as file:
        expected = float(next(csv.DictReader(file))["hit_rate"])
    cached = ScenarioOptions(prefix_cache="scheduled", hardware="llama3-8b-a100-tp1")
    system = build_scenario("vllm-v1", cached).make_system()
    server = MockServer(OnlineRun(system, make_policy("vllm_v1")), speed=40.0)
    server.start()
    try:
        kvgym.output(f"server observe {server.url} --trace trace.jsonl --no-progress -o observed")
    finally:
        server.close()
    rows = rows_of(tmp_path / "observed")
    assert len(rows) == 200
    found = sum(row["cached_tokens"] for row in rows) / sum(row["prompt_len"] for row in rows)
    assert expected > 0.3
    assert found == pytest.approx(expected, rel=0.01)


def test_rates_have_folders_of_their_own(kvgym, served, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "summary: mine\nhardware: llama3-8b-a100-tp1\nworkload:\n  arrivals: {kind: poisson, rate: 1}\n"
        "  lengths: {kind: independent, prompt: {kind: constant, value: 30}, output: {kind: constant, value: 4}}\n"
        "  num_requests: 3\n"
    )
    out = kvgym.output(
        f"server observe {served}/chat/completions -s mine.yaml --rates 20,40 --warm-up 1 --no-progress -o r"
    )
    assert "rate-40" in out
    for name in ("rate-20", "rate-40"):
        about = json.loads((tmp_path / "r" / name / "observed.json").read_text())
        assert (about["api"], about["complete"]) == ("chat", 3)
    assert [read_served(tmp_path / "r" / name).skip for name in ("rate-20", "rate-40")] == [1, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_keeps_what_was_measured(kvgym, served, run, tmp_path):
    rows = "".join(f"{t},10,3\n" for t in (0.0, 0.1)) + "0.2,10,5000\n1000,10,3\n"
    (tmp_path / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")

    def stop():
        probes, limit = 2, time.monotonic() + 60
        while time.monotonic() < limit and not (
            run.worker["total_finished"] == probes + 2 and run.worker["num_active"] == 1
        ):
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    code, _, err = kvgym(f"server observe {served} --trace trace.csv --validate --no-progress -o r")
    assert code == 130
    assert "stopped: 3 of 4 requests were sent and are in r" in err
    assert "Traceback" not in err
    rows = rows_of(tmp_path / "r")
    assert [row["reason"] for row in rows] == [None, None, "stopped before the answer was complete"]
    assert rows[2]["gaps"]


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_signals_lose_no_answer(served, tmp_path, sent):
    rows = "".join(f"{t},10,3\n" for t in (0.0, 0.1)) + "0.1,10,5000\n1000,10,3\n"
    (tmp_path / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")
    command = [sys.executable, "-m", "kvgym", "server", "observe", served, "--trace", "trace.csv", "-o", "r"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        log = tmp_path / "r" / "requests.jsonl"
        while not (log.exists() and log.read_bytes().count(b"\n") == 2):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sent)
        process.wait()
    about = json.loads((tmp_path / "r" / "observed.json").read_text())
    assert len(read_served(tmp_path / "r")) == 2
    if sent == signal.SIGTERM:
        assert process.returncode == 130
        assert rows_of(tmp_path / "r")[2]["reason"] == "stopped before the answer was complete"
        assert about["sent"] == 3
    else:
        assert about["sent"] is None
        assert (
            "The measurement was killed: requests without an answer until then are missing." in about["notes"]
        )


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_mock_server_until_a_signal(kvgym, monkeypatch, sent):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for background jobs

    def wait(server):
        with urllib.request.urlopen(f"{server.url}/models", timeout=10) as answer:
            (model,) = json.load(answer)["data"]
        assert (model["id"], model["speed"]) == ("llama3-8b-a100-tp1", 3.0)
        os.kill(os.getpid(), sent)
        raise AssertionError("the signal changed nothing")

    monkeypatch.setattr(MockServer, "wait", wait)
    try:
        code, out, _ = kvgym("server mock --port 0 --speed 3 --kv-capacity 20000 -p fcfs")
    finally:
        assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
    assert code == 0
    assert "serving llama3-8b-a100-tp1 (M = 20,000 in blocks of 16" in out
    assert "/v1  (Ctrl-C ends it)" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("server", "observe", "localhost:8000"), ("URL", "http://localhost:8000")),
        (("server", "observe", "http://me:pw@localhost"), ("user name", "OPENAI_API_KEY")),
        (
            ("server", "observe", "http://127.0.0.1:9", "-n", 1),
            ("no connection", "check that the server runs"),
        ),
        (("server", "observe", "http://127.0.0.1:9", "--rates", "1,x"), ("--rates 1,x",)),
        (("server", "observe", "http://127.0.0.1:9", "--api", "chats"), ("completions, chat",)),
        (("server", "observe", "http://127.0.0.1:9", "-n", 0), ("num_requests",)),
        (
            ("server", "observe", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"),
            ("NO_SUCH_KEY", "empty"),
        ),
        (("server", "observe", "http://127.0.0.1:9", "--timeout", 0), ("--timeout",)),
        (("server", "mock", "--speed", 0), ("speed = 0",)),
        (("server", "mock", "-p", "nothing"), ("unknown policy",)),
    ],
)
def test_mistakes_are_named(kvgym, tmp_path, arguments, words):
    err = kvgym.error(*arguments)
    for word in words:
        assert word in err
    assert "pw@" not in err
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(kvgym, monkeypatch):
    monkeypatch.setattr("kvgym.cli.commands.server.observe.find_spec", lambda name: None)
    err = kvgym.error("server", "observe", "http://localhost:8000")
    assert 'pip install "kvgym[observe]"' in err
