"""Logs of served requests: accepted files, and rejected ones with the place of the error."""

import json

import numpy as np
import polars as pl
import pytest

from kvgym.errors import ConfigError, TraceFormatError
from kvgym.servers.validation.served import read_served

HEAD = "arrival_time,prompt_len,output_len,first_token_time,finish_time\n"
ROWS = [(105.0, 10, 3, 105.5, 106.5), (100.0, 20, 1, 100.25, 100.25), (101.0, 5, 11, 102.0, 103.0)]


def write(tmp_path, text, name="served.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def table(rows=ROWS, head=HEAD):
    return head + "".join(",".join(map(str, row)) + "\n" for row in rows)


def check(log):
    """The rows above, sorted, counted from the first arrival."""
    assert log.arrival_time.tolist() == [0, 1, 5]
    assert log.prompt_len.tolist() == [20, 5, 10]
    assert log.output_len.tolist() == [1, 11, 3]
    assert log.ttft == pytest.approx([0.25, 1.0, 0.5])
    assert log.e2e_latency == pytest.approx([0.25, 2.0, 1.5])
    assert log.tbt == pytest.approx([np.nan, 0.1, 0.5], nan_ok=True)
    assert log.makespan == pytest.approx(6.5)


def test_csv_with_moments(tmp_path):
    log = read_served(write(tmp_path, table()))
    check(log)
    requests = log.requests()
    assert requests.arrival_time.tolist() == [0, 1, 5]
    assert requests.predicted_output_len is None
    assert log.requests(known=True).predicted_output_len.tolist() == [1, 11, 3]


def test_durations_and_other_columns(tmp_path):
    rows = [(f"r{i}", a, p, o, t - a, f - a) for i, (a, p, o, t, f) in enumerate(ROWS)]
    head = "name,arrival_time,prompt_len,output_len,ttft,e2e_latency\n"
    check(read_served(write(tmp_path, table(rows, head))))
    mixed = [(a, p, o, t, f - a) for a, p, o, t, f in ROWS]
    head = "arrival_time,prompt_len,output_len,first_token_time,e2e_latency\n"
    check(read_served(write(tmp_path, table(mixed, head))))


def test_jsonl_and_parquet(tmp_path):
    records = [dict(zip(HEAD.strip().split(","), row, strict=True)) for row in ROWS]
    check(read_served(write(tmp_path, "".join(json.dumps(r) + "\n" for r in records), "served.jsonl")))
    pl.DataFrame(records).write_parquet(tmp_path / "served.parquet")
    check(read_served(tmp_path / "served.parquet"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_time,prompt_len,output_len,ttft\n0,1,1,1\n", ("'finish_time' is missing", "e2e_latency")),
        (
            "arrival_time,prompt_len,output_len,finish_time\n0,1,1,1\n",
            ("'first_token_time' is missing", "ttft"),
        ),
        (
            "arrival_time,output_len,ttft,e2e_latency\n0,1,1,1\n",
            (
                "no known name for the prompt",
                '--columns "arrival=arrival_time,prompt=NAME,output=output_len"',
            ),
        ),
        (f"{HEAD.strip()},ttft\n0,1,1,1,1,1\n", ("both there", "either")),
        (HEAD, ("no rows",)),
        ("", ("empty",)),
        (
            table([*ROWS, (106.0, 1, 1, 105.5, 107.0)]),
            ("request 4", "before the arrival", "1 of 4", "one clock", "--time-unit"),
        ),
        (table([*ROWS, (106.0, 1, 2, 107.5, 107.0)]), ("request 4", "finishes before its first token")),
        (table([*ROWS, (106.0, 1, 2, "nan", 107.0)]), ("line 5", "first_token_time", "nan")),
        (table([*ROWS, (106.0, 1, 2, "", 107.0)]), ("line 5", "first_token_time", "number of seconds")),
        (table([*ROWS, (-1, 1, 2, 1, 2)]), ("line 5", "arrival_time", "≥ 0")),
        (table([*ROWS, (106.0, 0, 2, 107, 108)]), ("line 5", "prompt_len", "≥ 1")),
        (table([*ROWS, (106.0, 1, 1.5, 107, 108)]), ("line 5", "output_len", "whole number")),
        (
            table([(0, 10, 101, 80, 5080), (1000, 10, 101, 1090, 6090)]),
            ("takes 50 s", "milliseconds", "ttft_ms", "--time-unit ms"),
        ),
        (table([(0, 10, 101, 8, 8), (1, 10, 101, 9, 9)]), ("streamed",)),
        ("arrival_time,prompt_len,output_len,ttft,e2e_latency\n0,1,1,-1,1\n", ("line 2", "ttft", "≥ 0")),
    ],
)
def test_messages_name_mistakes(tmp_path, text, words):
    with pytest.raises(TraceFormatError, match=r"served\.csv") as caught:
        read_served(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_slow_single_requests_are_accepted(tmp_path):
    rows = [(i, 10, 11, i + 100.0, i + 101.0 + (1e4 if i == 0 else 0)) for i in range(5)]
    assert len(read_served(write(tmp_path, table(rows)))) == 5
    assert len(read_served(write(tmp_path, table([(0, 10, 1, 50.0, 50.0)])))) == 1


def test_select_keeps_times_and_notes(tmp_path):
    log = read_served(write(tmp_path, table())).select(np.array([False, True, True]), "one was dropped.")
    assert log.arrival_time.tolist() == [1, 5]
    assert log.requests().notes[-1] == "one was dropped."


SPANS = [(a, p, o, round(t - a, 3), round(f - a, 3)) for a, p, o, t, f in ROWS]


@pytest.mark.parametrize(
    ("head", "rows", "options", "notes"),
    [
        ("timestamp,input_tokens,output_tokens,ttft,e2e_latency\n", SPANS, {},
         ("Columns: arrival = timestamp, prompt = input_tokens, output = output_tokens, ttft = ttft, e2e_latency = "
          "e2e_latency.", "Times of timestamp are read as seconds, the default")),
        ("ts,context_tokens,generated_tokens,time_to_first_token_ms,E2E Latency (ms)\n",
         [(a, p, o, 1e3 * t, 1e3 * e) for a, p, o, t, e in SPANS], {}, ("_ms are in milliseconds",)),
        ("arrival_time,prompt_len,output_len,ttft,e2e_latency_s\n",
         [(1e3 * a, p, o, 1e3 * t, e) for a, p, o, t, e in SPANS], {"time_unit": "ms"}, ("in milliseconds, as given",)),
        ("arrival_time,prompt_len,output_len,ttft,e2e_latency\n",
         [(1772438400036 + 1000 * a, p, o, t, e) for a, p, o, t, e in SPANS], {},
         ("milliseconds since 1970, counted from the first, of 2026-03-02",)),
        ("arrival_time,prompt_len,output_len,first_token_time,finish_time\n",
         [(f"2026-03-02T09:00:{a - 90:06.3f}+01:00", p, o, f"2026-03-02 08:00:{t - 90:06.3f}", 1e3 * (f + 1772438310))
          for a, p, o, t, f in ROWS], {}, ("Times of arrival_time are dates", "finish_time are milliseconds since 19")),
        ("at,in,out,first,finish_time\n", ROWS,
         {"columns": {"arrival": "at", "prompt": "in", "output_len": "out", "first_token_time": "first"}},
         ("first_token_time = first",)),
        ("arrival_time,prompt_len,output_len,ttft,e2e_latency,first_token_timestamp,begin\n",
         [(*row, "x", "y") for row in SPANS], {}, ("Times of arrival_time are read as seconds",)),
    ],
)  # fmt: skip
def test_names_and_times_are_read_as_in_traces(tmp_path, head, rows, options, notes):
    log = read_served(write(tmp_path, table(rows, head)), **options)
    assert log.arrival_time == pytest.approx([0, 1, 5], abs=1e-6)
    assert log.prompt_len.tolist() == [20, 5, 10]
    assert log.ttft == pytest.approx([0.25, 1.0, 0.5], abs=1e-6)
    assert log.e2e_latency == pytest.approx([0.25, 2.0, 1.5], abs=1e-6)
    for words in notes:
        assert words in " ".join(log.notes)


def test_a_log_needs_times(tmp_path):
    with pytest.raises(TraceFormatError, match="arrival must name a column"):
        read_served(write(tmp_path, table()), columns={"arrival": "none"})
    with pytest.raises(ConfigError, match="'ttfft' is not a column of a request"):
        read_served(write(tmp_path, table()), columns={"ttfft": "first"})
