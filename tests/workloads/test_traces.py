"""Traces: formats detected, read and written; equal times spread."""

import hashlib
import json
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.amount import number
from helpers.servers.trace_files import AZURE, FILES, JSON, OWN, write
from kvgym.errors import ConfigError
from kvgym.workloads import RequestTable, load_trace, read_trace, trace_formats, write_requests
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.traces import write_sample_trace
from kvgym.workloads.traces.trace import spread_ties
from kvgym.workloads.traces.values import parse_times, parse_value


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_every_format_is_detected_and_read(name: str, suffix: str, tmp_path):
    path = tmp_path / f"sample{suffix}"
    written = write_sample_trace(path, name)
    table = read_trace(path, debatch=False)
    np.testing.assert_array_equal(table.prompt_len, written.prompt_len)
    np.testing.assert_array_equal(table.output_len, written.output_len)
    if name in ("sharegpt", "lmsys", "lmcache", "weka"):
        assert not table.arrival_time.any()
    else:
        np.testing.assert_allclose(table.arrival_time, written.arrival_time, atol=1e-9)
    assert f"format {name} (detected)" in table.notes[0]
    assert "200 rows" in table.notes[0]
    read_again = read_trace(path, name, debatch=False)
    np.testing.assert_array_equal(read_again.arrival_time, table.arrival_time)
    assert load_trace(path).format == name


def test_all_formats_have_a_description_and_a_sample():
    assert set(trace_formats()) == {name for name, _ in FILES}
    assert all("\n" not in text and len(text) < 110 for text in trace_formats().values())


def test_checksum(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(OWN + "0,1,2\n")
    assert load_trace(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


# Times of Azure's files.
@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", 4.314579),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", 0.99007),
        ("2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00.5+00:00", 0.5),
        ("2024-05-10T00:00:00.25Z", "2024-05-10T00:00:00.5Z", 0.25),
        ("2024-05-10 00:00:00", "2024-05-10 00:00:01.5+00:00", 1.5),
        ("2024-05-10 02:00:00+02:00", "2024-05-10 00:00:01Z", 1.0),
        ("2024-05-09 19:00:00-05:00", "2024-05-10 00:00:03+00:00", 3.0),
    ],
)
def test_time_layouts(first: str, second: str, gap: float, tmp_path):
    table = read_trace(write(tmp_path, f"{AZURE}{first},5,6\n{second},7,8\n"))
    np.testing.assert_allclose(table.arrival_time, [0, gap], atol=1e-9)
    assert table.prompt_len.tolist() == [5, 7]


def test_the_fast_and_the_slow_reader_of_times_agree(tmp_path):
    path = tmp_path / "a.csv"
    write_sample_trace(path, "azure")
    fast = read_trace(path)
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace(" 18:", "T18:")  # one value that the fast reader rejects
    slow = read_trace(write(tmp_path, "".join(lines), "b.csv"))
    np.testing.assert_array_equal(fast.arrival_time, slow.arrival_time)


DIGITS = st.integers(0, 99).map(lambda x: f"{x:02d}")


@given(
    st.lists(
        st.one_of(
            st.builds(
                "{}-{}-{}{}{}:{}:{}{}".format,
                st.sampled_from(["1969", "1970", "2023", "2199", "2200", "23"]),
                DIGITS, DIGITS, st.sampled_from([" ", "T", "", "_"]), DIGITS, DIGITS, DIGITS,
                st.sampled_from(["", ".", ".5", ".123456789", ".1234567891", ".-5"]),
            ),
            st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)).map(str),
        ),
        min_size=1, max_size=3,
    ),
    st.sampled_from(["", "Z", "+00:00", "-05:30", "+0100", "x"]),
    st.booleans(),
)  # fmt: skip
def test_times_parsed_together_equal_times_parsed_one_by_one(texts, zone, one_zone):
    texts = [f" {text}{zone if one_zone or i % 2 else ''}" for i, text in enumerate(texts)]
    times = parse_times(np.array(texts, "S60"))
    if times is not None:
        assert times.tolist() == [parse_value(text, "datetime") for text in texts]


def test_plain_times_are_parsed_together():
    texts = np.array(["2023-11-16 18:15:46.6805900+02:00", "2023-11-16T18:15:46+02:00"], "S40")
    assert parse_times(texts).tolist() == [parse_value(text.decode(), "datetime") for text in texts]


@pytest.mark.parametrize(
    "text", ["2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-00-10 00:00:00", "2023-04-31 00:00:00",
             "2023-01-00 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00", "2023-01-01 00:00:60"],
)  # fmt: skip
def test_dates_that_do_not_exist_are_left_to_the_slow_reader(text):
    assert parse_times(np.array([b"2024-02-29 23:59:59.5", text.encode()], "S40")) is None


def test_parquet_times(tmp_path):
    frame = pl.DataFrame(
        {
            "TIMESTAMP": ["2023-11-16 18:15:46.5", "2023-11-16 18:15:47"],
            "ContextTokens": [1, 2],
            "GeneratedTokens": [3, 4],
        }
    )
    frame.with_columns(pl.col("TIMESTAMP").str.to_datetime()).write_parquet(tmp_path / "a.parquet")
    assert read_trace(tmp_path / "a.parquet").arrival_time.tolist() == [0, 0.5]


# What is tolerated.
@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + (OWN + "0,5,6\n1.5,7,8\n").encode(),
        (OWN + "0,5,6\n1.5,7,8\n").replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + (OWN + "0,5,6\n1.5,7,8").replace("\n", "\r\n").encode(),
        (OWN + "\n0,5,6\n\n1.5,7,8\n\n").encode(),
        (OWN + '"0","5","6"\n"1.5","7","8"\n').encode(),
        b"arrival_time, prompt_len, output_len\n0, 5, 6\n1.5, 7, 8\n",
        (OWN + "0,5.0,6.0\n1.5,7,8\n").encode(),
        b'{"arrival_time": 0, "prompt_len": 5, "output_len": 6}\r\n\r\n'
        b'{"arrival_time": 1.5, "prompt_len": 7, "output_len": 8}',
        b'\xef\xbb\xbf{"arrival_time": 0, "prompt_len": 5, "output_len": 6}\n'
        b'{"arrival_time": 1.5, "prompt_len": 7, "output_len": 8}\n',
        b'[{"arrival_time": 0, "prompt_len": 5, "output_len": 6},\n'
        b' {"arrival_time": 1.5, "prompt_len": 7, "output_len": 8}]',
    ],
)
def test_harmless_variations(text: bytes, tmp_path):
    table = read_trace(write(tmp_path, text))
    assert table.arrival_time.tolist() == [0, 1.5]
    assert table.prompt_len.tolist() == [5, 7]
    assert table.output_len.tolist() == [6, 8]


def test_zero_lengths_are_dropped_and_counted(tmp_path):
    table = read_trace(write(tmp_path, OWN + "0,5,6\n1,0,3\n2,4,0\n"))
    assert len(table) == 1
    assert table.notes[2] == "2 of 3 rows with a prompt or output of length 0 were dropped."


def test_failures_of_burstgpt_are_dropped_and_counted(tmp_path):
    text = "Timestamp,Session ID,Model,Request tokens,Response tokens\n"
    text += "5,,GPT-4,4,9\n45,x,GPT-4,7,0\n50.5,,,3,2\n"
    table = read_trace(write(tmp_path, text))
    assert table.arrival_time.tolist() == [0, 45.5]
    assert any("1 of 3 rows with 0 response tokens (a failed request)" in note for note in table.notes)


def test_unsorted_rows_are_sorted_stably(tmp_path):
    table = read_trace(write(tmp_path, OWN + "2,1,9\n1,2,9\n2,3,9\n1,4,9\n"))
    assert table.prompt_len.tolist() == [2, 4, 1, 3]
    assert any("have been sorted" in note for note in table.notes)


def test_own_format_keeps_its_clock_and_names_ignored_columns(tmp_path):
    table = read_trace(
        write(tmp_path, "user,arrival_time,prompt_len,output_len,tbt_slo\nx,5,1,2,\ny,6,1,2,0.5\n")
    )
    assert table.arrival_time.tolist() == [5, 6]
    assert table.tbt_slo.tolist() == [np.inf, 0.5]
    assert "Ignored columns: user." in table.notes
    effect = "requests are independent: no common beginnings, no order within a session, no quota of a user"
    remedy = "name one by --columns session_id=NAME or client_id=NAME"
    assert f"Not used: user; {effect}; {remedy}." in table.notes


# Texts.
def test_first_question_and_answer_are_taken(tmp_path):
    turns = [
        {"from": "system", "value": "be nice"},
        {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "one two three"},
        {"from": "human", "value": "more"},
        {"from": "gpt", "value": "four five"},
        {"from": "human", "value": "again"},
        {"from": "gpt", "value": "no"},
    ]
    data = [
        {"id": "1", "conversations": turns},
        {"id": "2", "conversations": turns[:3]},
        {"id": "3", "conversations": []},
    ]
    path = write(tmp_path, json.dumps(data), "a.json")
    table = read_trace(path)
    assert (table.prompt_len.tolist(), table.output_len.tolist()) == ([3], [2])
    assert any("2 of 3 rows with no question with an answer" in note for note in table.notes)
    assert any("no arrival times" in note for note in table.notes)
    assert read_trace(path, tokenizer=len).prompt_len.tolist() == [13]
    assert read_trace(path, tokenizer=lambda text: text.encode()).output_len.tolist() == [9]


# Windows, scales and ties.
def test_window_scale_and_limits(tmp_path):
    path = write(tmp_path, OWN + "".join(f"{t},{10 + t},1\n" for t in range(10)))
    table = read_trace(path, start=2, end=8, rate_scale=2, max_requests=4)
    assert table.arrival_time.tolist() == [0, 0.5, 1, 1.5]
    assert table.prompt_len.tolist() == [12, 13, 14, 15]
    assert table.notes[2:] == (
        "6 of 10 requests are in the chosen window.",
        "The first 4 of 6 requests are used.",
    )
    dropped = read_trace(path, limits=LengthLimits(max_prompt_len=15, policy="drop"))
    assert len(dropped) == 6
    assert "4 of 10 requests: each was dropped" in dropped.notes[-1]


def test_batched_times_are_spread(tmp_path):
    stamps = [0, 0, 0, 3000, 9000, 9000]
    text = "".join(JSON.replace('"timestamp": 0', f'"timestamp": {t}') for t in stamps)
    path = write(tmp_path, text, "a.jsonl")
    table = read_trace(path, seed=1)
    assert len(np.unique(table.arrival_time)) == 6
    assert np.all(table.arrival_time[:3] < 3)
    assert table.arrival_time[3] == 3
    assert np.all((table.arrival_time[4:] >= 9) & (table.arrival_time[4:] < 13.5))
    assert any("5 of 6 requests shared their timestamp" in note for note in table.notes)
    np.testing.assert_array_equal(table.arrival_time, read_trace(path, seed=1).arrival_time)
    assert not np.array_equal(table.arrival_time, read_trace(path, seed=2).arrival_time)
    assert read_trace(path, debatch=False).arrival_time.tolist() == [0, 0, 0, 3, 9, 9]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 5))
def test_spreading_keeps_order_and_gaps(stamps, seed):
    times = np.sort(np.array(stamps, np.float64)) * 0.1
    spread, count = spread_ties(times, np.random.default_rng(seed))
    assert np.all(np.diff(spread) >= 0)
    assert np.all(spread >= times)
    distinct = np.unique(times)
    if len(distinct) > 1:
        after = np.append(distinct[1:], np.inf)[np.searchsorted(distinct, times)]
        assert np.all(spread < after)
        assert count == sum(stamps.count(s) > 1 for s in stamps)
    else:
        np.testing.assert_array_equal(spread, times)


def test_spreading_is_uniform():
    times = np.repeat([0.0, 1.0], 20_000)
    spread, _ = spread_ties(times, np.random.default_rng(0))
    counts = np.histogram(spread, bins=20, range=(0, 2))[0]
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(2000))


# The own format.
TOKENS = st.integers(1, 2**31 - 1)


SECONDS = st.floats(0, 1e9, allow_subnormal=True)


TARGET = st.one_of(st.just(np.inf), st.floats(0, 1e6))


@st.composite
def tables(draw):
    n = draw(st.integers(1, 12))
    column = lambda dtype, values: draw(hnp.arrays(dtype, n, elements=values))  # noqa: E731
    columns = {
        "arrival_time": column(np.float64, SECONDS),
        "prompt_len": column(np.int64, TOKENS),
        "output_len": column(np.int64, TOKENS),
    }
    optional = {
        "predicted_output_len": (np.int64, TOKENS),
        "class_id": (np.int64, st.integers(0, 50)),
        "priority": (np.int64, st.integers(-(2**31), 2**31 - 1)),
        "ttft_slo": (np.float64, TARGET),
        "tbt_slo": (np.float64, TARGET),
    }
    for name, (dtype, values) in optional.items():
        if draw(st.booleans()):
            columns[name] = column(dtype, values)
    if draw(st.booleans()):
        ends = np.sort([column(np.int64, TOKENS), column(np.int64, TOKENS)], axis=0)
        columns["predicted_low"], columns["predicted_high"] = ends
    return RequestTable.from_columns(**columns)


@settings(max_examples=number(150, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables(), suffix=st.sampled_from([".csv", ".jsonl", ".parquet"]))
def test_round_trip_is_exact(table: RequestTable, suffix: str, tmp_path):
    path = tmp_path / f"requests{suffix}"
    write_requests(table, path)
    back = read_trace(path)
    assert set(back.columns()) == set(table.columns())
    for name, column in table.columns().items():
        assert getattr(back, name).dtype == column.dtype
        np.testing.assert_array_equal(getattr(back, name), column)


def test_the_writer_refuses_other_suffixes(tmp_path):
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    with pytest.raises(ConfigError, match=r"unknown suffix '\.xlsx'; valid: \.csv"):
        write_requests(table, tmp_path / "a.xlsx")
    with pytest.raises(ConfigError, match="does not exist"):
        write_requests(table, tmp_path / "nowhere" / "a.csv")


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        ("1970-01-01 00:00:00", 0),
        ("1970-01-01 00:00:01.000000001", 1_000_000_001),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00-00:30", 1800 * 10**9),
        ("2023-11-16 18:15:46.6805900", 1_700_158_546_680_590_000),
    ],
)
def test_times_to_nanoseconds(value: str, nanoseconds: int):
    assert parse_value(value, "datetime") == nanoseconds
