"""Logs of benchmarks, recognised without a mapping; all describe the requests of test_served.py."""

import json

import numpy as np
import pytest

from kvgym.errors import TraceFormatError
from kvgym.servers.validation.served import read_served

ROWS = [(105.0, 10, 3, 105.5, 106.5), (100.0, 20, 1, 100.25, 100.25), (101.0, 5, 11, 102.0, 103.0)]


def check(log, left_out=""):
    """The rows above, sorted, counted from the first arrival."""
    assert log.arrival_time == pytest.approx([0, 1, 5])
    assert log.prompt_len.tolist() == [20, 5, 10]
    assert log.output_len.tolist() == [1, 11, 3]
    assert log.ttft == pytest.approx([0.25, 1.0, 0.5])
    assert log.e2e_latency == pytest.approx([0.25, 2.0, 1.5])
    assert log.tbt == pytest.approx([np.nan, 0.1, 0.5], nan_ok=True)
    assert left_out in " ".join(log.notes)
    assert bool(left_out) == ("left out" in " ".join(log.notes))


def vllm(**changes):
    """The file of ``vllm bench serve``, with a request that failed."""
    result = {
        "date": "20260301-120000", "backend": "openai", "duration": 6.5, "completed": 3, "failed": 1,
        "total_input_tokens": 35, "total_output_tokens": 15,
        "input_lens": [10, 20, 5, 7], "output_lens": [3, 1, 11, 0], "ttfts": [0.5, 0.25, 1.0, 0.0],
        "itls": [[0.5, 0.5], [], [0.1] * 10, []], "latencies": [1.5, 0.25, 2.0, 0.0],
        "start_times": [105.0, 100.0, 101.0, 102.0],
        "errors": ["", "", "", "Traceback (most recent call last):\n  ...\nTimeoutError: too slow"],
        **changes,
    }  # fmt: skip
    return {name: value for name, value in result.items() if value is not None}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("latencies", [vllm()["latencies"], None])
def test_vllm_bench(tmp_path, indent, latencies):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm(latencies=latencies), indent=indent))
    log = read_served(path)
    check(log, "1 of 4 requests are left out: 1 x TimeoutError: too slow.")
    assert log.name == "vllm.json"
    assert log.num_evictions is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start_times": None}, ("start_times", "version")),
        (dict.fromkeys(("input_lens", "output_lens", "ttfts", "itls", "start_times")), ("--save-detailed",)),
        ({"ttfts": 1.5}, ("another form",)),
        ({"output_lens": [0] * 4}, ("no request", "3 x no output tokens", "1 x TimeoutError")),
    ],
)
def test_vllm_results_that_are_no_logs(tmp_path, change, words):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm(**change)))
    with pytest.raises(TraceFormatError, match=r"vllm\.json") as caught:
        read_served(path)
    for word in words:
        assert word in str(caught.value)
    path.write_text(f"{json.dumps(vllm())}\n{json.dumps(vllm())}\n")
    with pytest.raises(TraceFormatError, match="2 results"):
        read_served(path)


def gaps(first, finish, count):
    return np.linspace(first, finish, count).tolist()


def old_record(arrival, prompt, output, first, finish):
    """A request as the first versions of inference-perf write it."""
    info = {
        "input_tokens": prompt,
        "output_tokens": output,
        "output_token_times": gaps(first, finish, output),
    }
    return {"start_time": arrival, "end_time": finish + 0.01, "request": "{}", "response": "", "info": info}


def new_record(arrival, prompt, output, first, finish):
    """A request as later versions write it; the counts of the server take precedence."""
    response = {
        "output_tokens": output + 1,
        "server_usage": {
            "prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": 4},
        },
        "response_chunks": [], "chunk_times": [], "output_token_times": gaps(first, finish, output),
    }  # fmt: skip
    info = {"request_metrics": {"text": {"input_tokens": prompt - 1}}, "response_metrics": response}
    return {"start_time": arrival, "end_time": finish + 0.01, "info": info, "error": None}


@pytest.mark.parametrize(("record", "cached"), [(old_record, 0), (new_record, 12 / 35)])
def test_inference_perf(tmp_path, record, cached):
    failed = record(101.5, 3, 2, 102.0, 103.0) | {"error": {"error_type": "TimeoutError", "error_msg": ""}}
    whole = record(101.5, 3, 2, 102.0, 103.0) | {"info": {"input_tokens": 3, "output_tokens": 2}}
    path = tmp_path / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps([*(record(*row) for row in ROWS), failed, whole]))
    log = read_served(path)
    check(log, "2 of 5 requests are left out: 1 x TimeoutError, 1 x the answer was not streamed.")
    assert ("prefix cache" in " ".join(log.notes)) == bool(cached)
    assert (f"{cached:.0%} of all prompt tokens" in " ".join(log.notes)) == bool(cached)


def test_times_of_the_engine_are_on_two_clocks(tmp_path):
    """The clocks are 50 s apart; the request of 101 s waited 0.2 s for the running iteration."""
    waits = [0.01, 0.01, 0.21]
    records = [
        {
            "request_id": f"bench-{i}", "input_toks": p, "output_toks": o, "arrival_time": a + 0.01,
            "queued_ts": a + wait - 50, "first_token_ts": t - 50, "last_token_ts": f - 50,
        }
        for i, ((a, p, o, t, f), wait) in enumerate(zip(ROWS, waits, strict=True))
    ]  # fmt: skip
    lost = {
        **dict.fromkeys(records[0]),
        "request_id": "bench-3",
        "input_toks": 5,
        "output_toks": 5,
    }
    path = tmp_path / "card.requests.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, lost]))
    log = read_served(path)
    assert log.ttft == pytest.approx([0.24, 0.99, 0.49])  # from the moment that the server has the request
    assert log.e2e_latency == pytest.approx([0.24, 1.99, 1.49])
    assert log.inside
    assert "1 of 4 requests are left out: 1 x no times." in log.notes
    assert "kv-capacity" not in " ".join(log.notes)
    about = {
        "model": "m/8b",
        "engine_kwargs": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        "kv_cache": {"num_kv_tokens": 41408},
    }
    (tmp_path / "card.meta.json").write_text(json.dumps(about))
    (note,) = (note for note in read_served(path).notes if "The server ran" in note)
    assert note == (
        "The server ran m/8b with --kv-capacity 41408 -p vllm_v1:max_num_seqs=256,max_num_batched_tokens=2048."
    )
    (tmp_path / "card.meta.json").write_text('{"kv_cache": null, "engine_kwargs": null}')
    assert "The server ran" not in " ".join(read_served(path).notes)


def observed(i, arrival, prompt, output, first, finish, **changes):
    return {
        "request_id": i, "scheduled_time": arrival - 0.001, "arrival_time": arrival, "prompt_len": prompt,
        "output_len": output, "ttft": first - arrival, "e2e_latency": finish - arrival, "gaps": [], "reason": None,
    } | changes  # fmt: skip


def test_observed_folders(tmp_path):
    records = [observed(i, *row) for i, row in enumerate(ROWS)]
    nothing = dict.fromkeys(("prompt_len", "output_len", "ttft", "e2e_latency"))
    records.append(observed(3, *ROWS[0], **nothing, reason="HTTP 500"))
    records.append(observed(4, *ROWS[0], output_len=None, reason="no usage in the answer"))
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    log = read_served(tmp_path)
    check(log, "2 of 5 requests are left out: 1 x HTTP 500, 1 x no usage in the answer.")
    assert log.num_evictions is None
    about = {"num_evictions": 7, "notes": ["The server was slow."]}
    (tmp_path / "observed.json").write_text(json.dumps(about))
    assert read_served(path).num_evictions == 7
    assert "The server was slow." in read_served(path).notes
    path.write_text(json.dumps(records[3]) + "\n")
    with pytest.raises(TraceFormatError, match="no request of the log can be compared: 1 x HTTP 500"):
        read_served(path)


def test_columns_make_a_table_of_any_file(tmp_path):
    records = [{**observed(i, *row), "at": row[0] + 50} for i, row in enumerate(ROWS)]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    log = read_served(path, columns={"arrival": "at"})
    check(log)
    assert "Columns: arrival = at" in " ".join(log.notes)


def test_evictions_of_a_table_are_summed(tmp_path):
    text = "arrival_time,prompt_len,output_len,ttft,e2e_latency,preemptions\n0,5,2,1,2,3\n1,5,2,1,2,0\n2,5,2,1,2,1\n"
    (tmp_path / "served.csv").write_text(text)
    assert read_served(tmp_path / "served.csv").num_evictions == 4


def test_a_log_of_a_killed_measurement(tmp_path):
    row = {
        "request_id": 0, "scheduled_time": 0.0, "arrival_time": 0.0, "prompt_len": 5, "output_len": 2,
        "ttft": 0.1, "e2e_latency": 0.3, "gaps": [0.2], "reason": None,
    }  # fmt: skip
    whole = "".join(json.dumps({**row, "request_id": i}) + "\n" for i in range(3))
    (tmp_path / "requests.jsonl").write_text(whole[:-20])
    log = read_served(tmp_path)
    assert len(log) == 2
    assert "The last row is cut off: the measurement was killed." in log.notes
    (tmp_path / "requests.jsonl").write_text(whole[:20] + whole)
    with pytest.raises(TraceFormatError, match="line 1"):
        read_served(tmp_path)


def guidellm(*sizes):
    """The report of GuideLLM with the rows, in benchmarks of some sizes, and a failed request in the last."""

    def request(start, prompt, output, first, last):
        times = {
            "request_start": start, "first_token_iteration": first, "last_token_iteration": last,
            "request_end": None if last is None else last + 0.1,
        }  # fmt: skip
        return {
            "request_id": "x", "info": {"timings": times, "error": None if first else "timed out"},
            "prompt_tokens": prompt, "output_tokens": output,
        }  # fmt: skip

    left, benchmarks = [request(*row) for row in ROWS], []
    for size in sizes:
        requests = {"successful": left[:size], "incomplete": [], "errored": []}
        left = left[size:]
        benchmarks.append({"config": {}, "metrics": {}, "requests": requests})
    benchmarks[-1]["requests"]["errored"] = [request(100.5, 4, None, None, None)]
    return {"metadata": {"version": 2}, "config": {}, "benchmarks": benchmarks}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("sizes", [(3,), (1, 2)])
def test_guidellm(tmp_path, indent, sizes):
    (tmp_path / "benchmarks.json").write_text(json.dumps(guidellm(*sizes), indent=indent))
    log = read_served(tmp_path / "benchmarks.json")
    check(log, "1 of 4 requests are left out: 1 x timed out.")
    assert ("2 benchmarks follow each other." in log.notes) == (len(sizes) == 2)


def test_aiperf(tmp_path):
    def record(start, prompt, output, first, last):
        metrics = {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
            "time_to_first_token": {"value": 1e3 * (first - start), "unit": "ms"},
            "request_latency": {"value": 1e3 * (last - start), "unit": "ms"},
            "inter_chunk_latency": {"value": [], "unit": "ms"},
        }
        about = {"request_start_ns": int(start * 1e9), "benchmark_phase": "profiling", "was_cancelled": False}
        return {"metadata": about, "metrics": metrics}  # what is null is left out

    failed = {
        "metadata": {"request_start_ns": 1, "was_cancelled": True},
        "metrics": {"error_isl": {"value": 5, "unit": "tokens"}},
        "error": {"code": 499, "type": "RequestCancellationError", "message": "cancelled"},
    }
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [*(record(*row) for row in ROWS), failed]))
    check(read_served(path), "1 of 4 requests are left out: 1 x RequestCancellationError.")


def test_sglang(tmp_path):
    result = vllm(total_output_tokens_retokenized=15, latencies=None, backend="sglang-oai")
    path = tmp_path / "sglang.jsonl"
    path.write_text(json.dumps(result))
    log = read_served(path)
    check(log, "1 of 4 requests are left out")
    assert "Read as a log of SGLang's bench_serving." in log.notes
    for names, words in (
        (["start_times"], "measure with kvgym server observe"),
        (["ttfts", "start_times"], "--output-details"),
    ):
        path.write_text(json.dumps({name: value for name, value in result.items() if name not in names}))
        with pytest.raises(TraceFormatError, match="a result of SGLang's bench_serving without") as caught:
            read_served(path)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "benchmarks.csv",
            "Run Info,Run Info,Timings\nRun ID,Run Index,Start\n,,s\n",
            "give benchmarks.json",
        ),
        ("profile_export_aiperf.csv", "Metric,avg,min,max\n", "give profile_export.jsonl"),
        (
            "profile_export_aiperf.json",
            '{\n"request_throughput": {}, "request_latency": {}, "request_count": {}}',
            "give profile_export.jsonl",
        ),
        ("x.json", '{"results": {"a": [1, 2]}}', "write a row per request"),
        ("x.json", '{\n"results": {"a": [1, 2]}\n}', "write a row per request"),
        ("x.json", '{"metadata": {}, "benchmarks": [{"requests": {}}]}', "the report has no requests"),
        ("x.json", '{"metadata": {}, "benchmarks": 3}', "looks like a log of GuideLLM"),
    ],
)
def test_files_that_are_no_logs_have_a_remedy(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(TraceFormatError) as caught:
        read_served(tmp_path / name)
    assert words in str(caught.value)
