import contextlib
import hashlib
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvgym.errors import ConfigError, TraceFormatError, UnknownNameError, WorkloadError
from kvgym.workloads import RequestTable, load_trace, read_trace, trace_formats, write_requests
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.traces import write_sample_trace
from kvgym.workloads.traces.trace import spread_ties
from kvgym.workloads.traces.values import parse_value

FILES = [
    ("kvgym", ".csv"),
    ("kvgym", ".jsonl"),
    ("kvgym", ".parquet"),
    ("azure", ".csv"),
    ("azure", ".parquet"),
    ("burstgpt", ".csv"),
    ("mooncake", ".jsonl"),
    ("vidur", ".csv"),
    ("sharegpt", ".json"),
    ("lmsys", ".jsonl"),
    ("lmsys", ".parquet"),
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = "arrival_time,prompt_len,output_len\n"


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_every_format_is_detected_and_read(name: str, suffix: str, tmp_path):
    path = tmp_path / f"sample{suffix}"
    written = write_sample_trace(path, name)
    table = read_trace(path, debatch=False)
    np.testing.assert_array_equal(table.prompt_len, written.prompt_len)
    np.testing.assert_array_equal(table.output_len, written.output_len)
    if name in ("sharegpt", "lmsys"):
        assert not table.arrival_time.any()
    else:
        np.testing.assert_allclose(table.arrival_time, written.arrival_time, atol=1e-9)
    assert f"format {name} (detected)" in table.notes[0]
    assert "200 rows" in table.notes[0]
    told = read_trace(path, name, debatch=False)
    np.testing.assert_array_equal(told.arrival_time, table.arrival_time)
    assert load_trace(path).format == name


def test_all_formats_have_a_description_and_a_sample():
    assert set(trace_formats()) == {name for name, _ in FILES}
    assert all("\n" not in text and len(text) < 110 for text in trace_formats().values())


def test_checksum(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(OWN + "0,1,2\n")
    assert load_trace(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def write(tmp_path, text: str | bytes, name: str = "trace.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


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


def test_both_ways_of_reading_times_agree(tmp_path):
    path = tmp_path / "a.csv"
    write_sample_trace(path, "azure")
    fast = read_trace(path)
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace(" 18:", "T18:")  # one value that the fast way does not take
    slow = read_trace(write(tmp_path, "".join(lines), "b.csv"))
    np.testing.assert_array_equal(fast.arrival_time, slow.arrival_time)


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
    assert table.notes[1] == "2 of 3 rows with a prompt or output of length 0 were dropped."


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


# What is refused, and how.

JSON = '{"timestamp": 0, "input_length": 5, "output_length": 6}\n'

MALFORMED = {
    "empty": ("", "the file is empty"),
    "blank": (" \n \n", "the file is empty"),
    "header only": (AZURE, "no rows; expected at least one request"),
    "unknown header": ("a,b\n1,2\n", r"unknown format; found columns a, b\. Known formats: kvgym"),
    "no header": ("0,1,2\n1,2,3\n", "unknown format"),
    "missing column": ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5\n", "unknown format"),
    "column twice": (
        "arrival_time,prompt_len,prompt_len,output_len\n",
        "line 1: column 'prompt_len' occurs twice",
    ),
    "text": (
        OWN + "0,5,6\n1,many,8\n",
        r"line 3, column 'prompt_len': 'many'; expected a whole number of tokens ≥ 0",
    ),
    "negative": (OWN + "0,5,6\n1,7,-8\n", r"line 3, column 'output_len': '-8'; expected a whole number"),
    "fraction": (OWN + "0,5,6\n1,7.5,8\n", r"line 3, column 'prompt_len': '7.5'; expected a whole number"),
    "too large": (OWN + "0,5,6\n1,7,3000000000\n", "line 3, column 'output_len'"),
    "nan": (OWN + "0,5,6\nnan,7,8\n", r"line 3, column 'arrival_time': 'nan'; expected a number of seconds"),
    "infinite": (OWN + "0,5,6\ninf,7,8\n", "line 3, column 'arrival_time'"),
    "negative time": (
        OWN + "-1,5,6\n",
        r"line 2, column 'arrival_time': '-1'; expected a number of seconds ≥ 0",
    ),
    "underscore": (OWN + "0,5,6\n1,1_0,8\n", "line 3, column 'prompt_len': '1_0'; expected"),
    "missing value": (OWN + "0,5,6\n1,,8\n", "line 3, column 'prompt_len': ''; expected"),
    "short line": (
        OWN + "0,5,6\n1,7\n",
        r"line 3: 2 fields; expected 3 \(arrival_time, prompt_len, output_len\)",
    ),
    "long line": (OWN + "0,5,6\n1,7,8,9\n", "line 3: 4 fields; expected 3"),
    "open quote": (OWN + '0,5,6\n"1,7,8\n', "line 3"),
    "time": (
        AZURE + "2023-11-16 18:15:46,5,6\nyesterday,7,8\n",
        "line 3, column 'TIMESTAMP': 'yesterday'; expected a time",
    ),
    "short year": (AZURE + "2023-11-16 18:15:46,5,6\n23-11-16 18:15:46,5,6\n", "line 3, column 'TIMESTAMP'"),
    "no space": (AZURE + "2023-11-16 18:15:46,5,6\n2023-11-1618:15:46,5,6\n", "line 3, column 'TIMESTAMP'"),
    "one digit": (AZURE + "2023-11-16 18:15:46,5,6\n2023-1-16 18:15:46,5,6\n", "line 3, column 'TIMESTAMP'"),
    "far year": (AZURE + "2023-11-16 18:15:46,5,6\n9023-11-16 18:15:46,5,6\n", "line 3, column 'TIMESTAMP'"),
    "shifted line": (
        "Timestamp,Request tokens,Response tokens,Log Type\n1,2,3,x\n12,3,x\n",
        "line 3: 3 fields",
    ),
    "shifted numbers": (
        "Timestamp,Model,Request tokens,Response tokens,n\n1,a,2,3,4\n1,2,3,4\n",
        "line 3: 4 fields",
    ),
    "stray return": (OWN + "0,5,6\n1,7,\r8\n", "line 3"),
    "impossible date": (AZURE + "2023-13-16 18:15:46,5,6\n", "line 2, column 'TIMESTAMP'"),
    "truncated line": (AZURE + "2023-11-16 18:15:46.6,5,6\n2023-11-16 18:1", "line 3: 1 fields; expected 3"),
    "latin-1": ((OWN + "0,5,6\n").encode() + b"1,\xe9,8\n", "line 3: not UTF-8 text"),
    "latin-1 far down": ((OWN + "0,5,6\n" * 20_000).encode() + b"1,\xe9,8\n", "line 20002: not UTF-8 text"),
    "utf-16": ((OWN + "0,5,6\n").encode("utf-16"), "UTF-16; expected UTF-8"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\x00\x00\x00", "binary data"),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00", "compressed; decompress it first"),
    "json cut": (
        JSON + '{"timestamp": 0, "input_l',
        "line 2, character 18: .*one complete JSON object per line",
    ),
    "json cut at once": ('{"timestamp": 0, "input_l', "line 1"),
    "json list": (JSON + "[1, 2]\n", "line 2: list; expected a JSON object"),
    "json missing": (
        JSON + '{"timestamp": 0, "input_length": 5}\n',
        "line 2, column 'output_length': nothing; expected",
    ),
    "json null": (JSON + JSON.replace("5", "null"), "line 2, column 'input_length': nothing; expected"),
    "json bool": (JSON + JSON.replace("5", "true"), "line 2, column 'input_length': True; expected"),
    "json text": (JSON + JSON.replace("5", '"five"'), "line 2, column 'input_length': 'five'; expected"),
    "json list value": (JSON + JSON.replace("5", "[5]"), r"line 2, column 'input_length': \[5\]; expected"),
    "json nan": (JSON + JSON.replace("5", "NaN"), "line 2, column 'input_length': nan; expected"),
    "json long": (JSON + JSON.replace("5", "1" + 400 * "0"), "line 2, column 'input_length'"),
    "json longer": (JSON + JSON.replace("5", "1" + 5000 * "0"), "line 2: .*plain JSON object"),
    "json deep": (JSON + '{"timestamp":' + 100_000 * "[" + "\n", "line 2"),
    "json late key": (
        '{"arrival_time": 0, "prompt_len": 1, "output_len": 1}\n'
        '{"arrival_time": 0, "prompt_len": 1, "output_len": 1, "priority": 1}\n',
        "line 2: key 'priority' is missing in the first record",
    ),
    "list cut": ('[{"id": "a", "conversations": [', "line 1, character 32: .*one complete JSON list"),
    "list empty": ("[]", "no records"),
    "list of numbers": ("[1, 2]", "item 0: int; expected a JSON object"),
    "turns": ('[{"conversations": "hello"}]', "item 0, key 'conversations': expected a list of turns"),
    "turn": ('[{"conversations": [{"from": "human"}]}]', "expected turns with 'from' and text in 'value'"),
    "no answers": ('[{"conversations": [{"from": "human", "value": "hi"}]}]', "all 1 rows have no question"),
    "all failed": ("Timestamp,Request tokens,Response tokens\n5,5,0\n", "all 1 rows have 0 response tokens"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case: str, tmp_path):
    text, message = MALFORMED[case]
    path = write(tmp_path, text)
    with pytest.raises(TraceFormatError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_other_refusals(tmp_path):
    with pytest.raises(TraceFormatError, match="no such file"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(TraceFormatError, match="a folder"):
        read_trace(tmp_path)
    own = write(tmp_path, OWN + "0,5,6\n")
    with pytest.raises(
        TraceFormatError, match="column 'TIMESTAMP' is missing; found arrival_time, prompt_len"
    ):
        read_trace(own, "azure")
    with pytest.raises(TraceFormatError, match="key 'conversations' is missing"):
        read_trace(own, "sharegpt")
    with pytest.raises(UnknownNameError, match="Did you mean 'azure'"):
        read_trace(own, "azur")
    with pytest.raises(TraceFormatError, match="does not begin with PAR1"):
        read_trace(write(tmp_path, OWN, "a.parquet"))
    with pytest.raises(ConfigError, match="rate_scale"):
        read_trace(own, rate_scale=0)
    with pytest.raises(ConfigError, match="max_requests"):
        read_trace(own, max_requests=0)
    with pytest.raises(WorkloadError, match=r"no request between 9 s and ∞ s; the trace runs from 0\.000 s"):
        read_trace(own, start=9)


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.99])
@pytest.mark.parametrize("format_name", ["kvgym", "lmsys"])
def test_truncated_parquet(keep: float, format_name: str, tmp_path):
    path = tmp_path / "a.parquet"
    write_sample_trace(path, format_name)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(TraceFormatError, match="damaged Parquet"):
        read_trace(path)


def test_wrong_values_in_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"arrival_time": [0.0, 1.0], "prompt_len": [1, -1], "output_len": [1, 1]}
    pl.DataFrame(columns).write_parquet(path)
    with pytest.raises(TraceFormatError, match="row 1, column 'prompt_len': -1; expected"):
        read_trace(path)
    pl.DataFrame({**columns, "prompt_len": ["1", "x"]}).write_parquet(path)
    with pytest.raises(TraceFormatError, match="row 1, column 'prompt_len': 'x'; expected"):
        read_trace(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), name=st.sampled_from(["a.csv", "a.jsonl", "a.json", "a.parquet"]))
def test_junk_never_escapes_as_another_error(content: bytes, name: str, tmp_path):
    with contextlib.suppress(TraceFormatError):
        read_trace(write(tmp_path, content, name))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    cut=st.floats(0, 1),
    junk=st.binary(max_size=6),
)
def test_damage_never_escapes_as_another_error(name, cut: float, junk: bytes, tmp_path):
    path = tmp_path / f"a{name[1]}"
    write_sample_trace(path, name[0], 5)
    content = path.read_bytes()
    at = int(cut * len(content))
    path.write_bytes(content[:at] + junk + content[at + len(junk) :])
    with contextlib.suppress(TraceFormatError):
        read_trace(path)


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
    assert table.notes[1:] == (
        "6 of 10 requests lie in the chosen window.",
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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables(), suffix=st.sampled_from([".csv", ".jsonl", ".parquet"]))
def test_round_trip_is_exact(table: RequestTable, suffix: str, tmp_path):
    path = tmp_path / f"requests{suffix}"
    write_requests(table, path)
    back = read_trace(path)
    assert set(back.columns()) == set(table.columns())
    for name, column in table.columns().items():
        assert getattr(back, name).dtype == column.dtype
        np.testing.assert_array_equal(getattr(back, name), column)


def test_writer_refuses_other_endings(tmp_path):
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    with pytest.raises(ConfigError, match=r"unknown ending '\.xlsx'; valid: \.csv"):
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
