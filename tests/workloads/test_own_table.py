"""Users' tables: columns found by their names, and units of times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.servers.trace_files import write
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.errors import ConfigError, TraceFormatError, WorkloadError
from kvgym.policies.runner import simulate
from kvgym.report.export.run_folder import save_run
from kvgym.simulator.system import System
from kvgym.workloads import RequestTable, load_trace, make_workload, read_trace, write_requests
from kvgym.workloads.traces.clock import plain_name
from kvgym.workloads.traces.own_table import ALIASES, OwnTable

TABLE = "when,in,out,tier\n10,5,6,1\n11.5,7,8,2\n"
MAPPING = {"arrival": "when", "prompt": "in", "output": "out"}


def test_a_mapping_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    table = read_trace(path, columns={**MAPPING, "priority": "tier"})
    assert table.arrival_time.tolist() == [0, 1.5]
    assert (table.prompt_len.tolist(), table.output_len.tolist()) == ([5, 7], [6, 8])
    assert table.priority is not None
    assert table.priority.tolist() == [1, 2]
    assert table.notes[1] == "Columns: arrival = when, prompt = in, output = out, priority = tier."
    assert "ignored: tier." in load_trace(path, columns=MAPPING).notes[1]
    full = {"arrival_time": "when", "prompt_len": "in", "output_len": "out"}
    assert load_trace(path, "table", columns=full).prompt_len.tolist() == [5, 7]


def test_columns_of_sessions_and_users_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "when,in,out,Session ID,userId,users\n10,5,6,a,b,c\n")
    assert any(note.startswith("Not used: userId; ") for note in load_trace(path, columns=MAPPING).notes)
    assert load_trace(path, columns=MAPPING).extra["session_id"].tolist() == [0]
    used = {**MAPPING, "class_id": "userId"}
    numbered = write(tmp_path, "when,in,out,userId\n10,5,6,1\n", "b.csv")
    assert not any(note.startswith("Not used") for note in load_trace(numbered, columns=used).notes)


def test_containers_agree(tmp_path: Path) -> None:
    rows = [{"startTime": "2024-05-10T00:00:00Z", "usage.prompt_tokens": 5, "usage.completion_tokens": 6}]
    rows.append({**rows[0], "startTime": "2024-05-10T02:00:01.5+02:00"})
    columns = {"prompt": "usage.prompt_tokens", "output": "usage.completion_tokens"}
    lines = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl")
    listed = write(tmp_path, json.dumps(rows), "a.json")
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame(rows).write_csv(tmp_path / "a.csv")
    for path in (lines, listed, tmp_path / "a.parquet", tmp_path / "a.csv"):
        assert read_trace(path, columns=columns).arrival_time.tolist() == [0, 1.5]


def test_every_documented_name_is_found() -> None:
    for arrival in ALIASES["arrival_time"]:
        assert OwnTable().matches((arrival, "prompt_tokens", "completion_tokens"))
        assert OwnTable().matches((f"{arrival.upper()} (ms)", "Input Tokens", "outputTokens"))
    for prompt in ALIASES["prompt_len"]:
        assert OwnTable().matches(("ts", prompt, "output-length"))
    for output in ALIASES["output_len"]:
        assert OwnTable().matches(("ts", "num.prompt.tokens", output, "user"))
    names = [name for known in ALIASES.values() for name in known]
    assert len(names) == len(set(names))
    assert all(plain_name(name) == name for name in names)


@pytest.mark.parametrize(
    ("name", "values", "unit", "gap", "said"),
    [
        ("ts", ("5", "6.5"), None, 1.5, "read as seconds, the default"),
        ("ts", ("5", "6.5"), "ms", 0.0015, "in milliseconds, as given"),
        ("ts", ("5", "6.5"), "us", 1.5e-6, "in microseconds, as given"),
        ("arrival_ms", ("5", "1505"), None, 1.5, "in milliseconds, as arrival_ms says"),
        ("time (us)", ("5", "1500005"), None, 1.5, "in microseconds, as time (us) says"),
        ("arrival_ms", ("5", "6.5"), "s", 1.5, "in seconds, as given"),
        ("startTimeUnixNano", ("1715328000000000000", "1715328001500000000"), None, 1.5, "in nanoseconds, as"),
        ("ts", ("1715328000", "1715328001.5"), None, 1.5, "seconds since 1970, counted from the first, of 2024-05-10"),
        ("ts", ("1715328000000", "1715328001500"), None, 1.5, "milliseconds since 1970"),
        ("ts", ("1715328000000000", "1715328001500000"), None, 1.5, "microseconds since 1970"),
        ("ts", ("1715328000000000000", "1715328001500000000"), None, 1.5, "nanoseconds since 1970"),
        ("ts", ("2024-05-10 08:00:00 UTC", "2024-05-10 10:00:01.5+02"), None, 1.5, "dates"),
        ("ts", ("2024-05-10T08:00:00+0530", "2024-05-10T02:30:01.5Z"), None, 1.5, "dates"),
    ],
)  # fmt: skip
def test_units(name, values, unit, gap, said, tmp_path):
    path = write(tmp_path, f"{name},input_tokens,output_tokens\n" + "".join(f"{v},1,2\n" for v in values))
    trace = load_trace(path, time_unit=unit)
    np.testing.assert_allclose(trace.arrival_time, [0, gap], rtol=1e-6, atol=3e-7 if gap > 1 else 0)
    assert any(said in note for note in trace.notes)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
@pytest.mark.parametrize("texts", [False, True])  # text columns are read value by value
def test_columns_of_dates_in_parquet(zone, texts, tmp_path):
    frame = pl.DataFrame(
        {"created_at": ["2024-05-10 08:00:00", "2024-05-10 08:00:01.5"], "input_len": [1, 2]}
    )
    dates = pl.col("created_at").str.to_datetime(time_unit="us").dt.replace_time_zone(zone)
    lengths = pl.Series("output_len", ["3", "4"] if texts else [3, 4])
    frame.with_columns(dates, lengths).write_parquet(tmp_path / "a.parquet")
    assert read_trace(tmp_path / "a.parquet").arrival_time.tolist() == [0, 1.5]


def test_without_times(tmp_path):
    path = write(tmp_path, "input_tokens,output_tokens\n5,6\n7,8\n")
    with pytest.raises(TraceFormatError, match="no known name for the arrival"):
        load_trace(path)
    trace = load_trace(path, columns={"arrival": "none"})
    assert not trace.has_times
    workload = make_workload({"trace": str(path), "columns": {"arrival": "none"}, "rate": 2.0})
    assert workload.mean_rate == 2
    assert (np.diff(workload.sample(0).arrival_time, prepend=0) > 0).all()


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (TABLE, {}, 'found columns when, in, out, tier: no known name for the arrival; no known name for the prompt; '
         'no known name for the output. Name them: --columns "arrival=when,prompt=in,output=out"'),
        ("ts,when,input_tokens,out\n1,1,1,1\n", {},
         'no known name for the output. Name them: --columns "arrival=ts,prompt=input_tokens,output=out"'),
        ("ts,created_at,input_tokens,output_len\n1,1,1,1\n", {}, "ts and created_at may each be the arrival"),
        (TABLE, {"columns": {**MAPPING, "arrival": "time"}}, "there is no 'time'"),
        (TABLE, {"columns": {**MAPPING, "arival": "when"}}, "'arival' is not a column of a request; valid: arrival, "),
        (TABLE, {"columns": MAPPING, "time_unit": "min"}, "time_unit = 'min'; valid: s, ms, us, ns"),
        (TABLE, {"columns": MAPPING, "format": "azure"}, "for your own tables; format azure has fixed ones"),
        (TABLE, {"columns": {**MAPPING, "prompt": "tier", "output": "when"}}, "line 3, column 'when': '11.5'"),
        (TABLE.replace("11.5", "-1"), {"columns": MAPPING}, "line 3, column 'when': '-1'; expected a number of sec"),
        (TABLE.replace("10,", "10/05/24,"), {"columns": MAPPING}, "line 2, column 'when': '10/05/24'; expected a time"),
        (TABLE.replace("10,", "2024-05-10,"), {"columns": MAPPING}, "expected a time such as"),
        (TABLE.replace("11.5", "yesterday"), {"columns": MAPPING}, "line 3, column 'when': 'yesterday'; expected a "
         "number of seconds ≥ 0, or a time such as 2023-11-16 18:15:46.6805900 or 2024-05-10T00:00:00+00:00 (ISO"),
        (TABLE.replace("10,", "02/03/2026 09:00:00,"), {"columns": MAPPING, "time_unit": "s"}, "(ISO 8601) in every r"),
        (TABLE.replace("11.5", "2024-05-10 08:00:00Z"), {"columns": MAPPING},
         "expected a number of seconds ≥ 0; dates are accepted if every row has one"),
        (TABLE.replace("10,", "2024-05-10 08:00:00Z,"), {"columns": MAPPING}, "line 3, column 'when': '11.5'; expect"),
    ],
)  # fmt: skip
def test_mistakes(text, options, says, tmp_path):
    with pytest.raises((TraceFormatError, ConfigError)) as caught:
        load_trace(write(tmp_path, text), **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ("arrival_time", "prompt_len", "output_len"),
        ("timestamp", "input_length", "output_length"),  # Mooncake, times in milliseconds
        ("Timestamp", "Request tokens", "Response tokens"),  # BurstGPT
        ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),  # Vidur
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_dates_are_dates_under_the_names_of_a_known_format(names, suffix, tmp_path):
    for first, second in (
        (1772438400036, 1772438401536),
        (1772438400.036, 1772438401.536),
        ("2026-03-02T09:00:00.036+01:00", "2026-03-02T08:00:01.536Z"),
    ):
        frame = pl.DataFrame({names[0]: [first, second], names[1]: [5, 6], names[2]: [7, 8]})
        path = tmp_path / f"log{suffix}"
        getattr(frame, {".csv": "write_csv", ".jsonl": "write_ndjson", ".parquet": "write_parquet"}[suffix])(
            path
        )
        trace = load_trace(path)
        assert trace.format == "table"
        np.testing.assert_allclose(trace.arrival_time, [0, 1.5], atol=3e-7)
        assert any("since 1970" in note or "Times are dates" in note for note in trace.notes)
        found = load_trace(path, columns=dict(zip(("arrival", "prompt", "output"), names, strict=True)))
        assert found.arrival_time.tolist() == trace.arrival_time.tolist()


def test_the_unit_of_small_numbers_is_noted(tmp_path):
    own = load_trace(write(tmp_path, "arrival_time,prompt_len,output_len\n36,1,1\n425,1,1\n"))
    assert (own.format, own.arrival_time.tolist()) == ("kvgym", [36, 425])
    assert "Times are read as seconds, the default (another unit: --time-unit ms, us or ns)." in own.notes
    mooncake = load_trace(write(tmp_path, "timestamp,input_length,output_length\n36,1,1\n425,1,1\n"))
    assert "Times are in milliseconds, as in format mooncake" in mooncake.notes[1]
    assert not any("Times are" in note for note in load_trace(tmp_path / "trace.csv", "mooncake").notes)


def test_results_of_a_run_are_read_unchanged(tmp_path):
    times = [1772438400.25, 1772438402.5]
    table = RequestTable.from_columns(arrival_time=times, prompt_len=[4, 5], output_len=[2, 2])
    save_run(simulate(System(100, UnitBatchTime()), table, "fcfs"), tmp_path / "run")
    trace = load_trace(tmp_path / "run" / "requests.csv")
    assert (trace.format, trace.arrival_time.tolist()) == ("kvgym", times)
    assert not any("Times are" in note for note in trace.notes)


def test_feature_columns_are_read_mapped_drawn_and_written(tmp_path):
    text = "arrival_time,prompt_len,output_len,feature_0,score\n0,7,4,-1.5,2\n1,9,5,0.25,1e3\n"
    path = write(tmp_path, text)
    trace = load_trace(path, columns={"feature_1": "score"})
    assert trace.extra["feature_0"].tolist() == [-1.5, 0.25]
    write_requests(trace.to_table(), tmp_path / "again.csv")
    again = load_trace(tmp_path / "again.csv")
    assert again.extra["feature_1"].tolist() == [2.0, 1000.0]
    drawn = {"mode": "resample", "num_requests": 20, "arrivals": {"kind": "poisson", "rate": 1.0}}
    table = make_workload({"trace": str(tmp_path / "again.csv"), **drawn}).sample(0)
    np.testing.assert_array_equal(table.features[:, 0], np.where(table.prompt_len == 7, -1.5, 0.25))
    with pytest.raises(TraceFormatError, match="line 2, column 'feature_0': 'x'; expected a finite number"):
        load_trace(write(tmp_path, text.replace("-1.5", "x")))
    with pytest.raises(WorkloadError, match="feature_1 without feature_0"):
        trace.to_table().replace(feature_0=None)
    with pytest.raises(WorkloadError, match=r"feature_0, row 1: .*nan.*; expected a finite number"):
        trace.to_table().replace(feature_0=[0.0, np.nan])


def test_kvgyms_own_names_take_precedence(tmp_path):
    rows = "2026-03-02 09:00:00Z,7,4,9,4\n2026-03-02 09:00:02Z,9,5,8,5\n"
    trace = load_trace(write(tmp_path, f"arrival_time,ts,prompt_len,input_len,output_len\n{rows}"))
    assert (trace.arrival_time.tolist(), trace.prompt_len.tolist()) == ([0, 2], [4, 5])


def test_ambiguous_columns_need_a_mapping(tmp_path):
    path = write(tmp_path, "ts,created_at,input_tokens,output_len\n1,7,1,1\n3,8,1,1\n")
    assert load_trace(path, columns={"arrival": "ts"}).arrival_time.tolist() == [0, 2]
    assert load_trace(path, columns={"arrival": "created_at"}).arrival_time.tolist() == [0, 1]


MILLISECONDS = st.lists(st.integers(0, 10**9), min_size=1, max_size=20).map(sorted)


@settings(max_examples=number(60, 30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=MILLISECONDS, unit=st.sampled_from([("s", 1e3), ("ms", 1.0), ("us", 1e-3)]))
def test_every_unit_gives_the_same_seconds(times, unit, tmp_path):
    name, per = unit
    rows = "".join(f"{t / per!r},1,1\n" for t in times)
    path = write(tmp_path, "ts,input_tokens,output_tokens\n" + rows)
    found = load_trace(path, time_unit=name).arrival_time
    np.testing.assert_allclose(
        found, (np.array(times) - times[0]) / 1e3, rtol=1e-9, atol=1e-9 * times[-1] + 1e-12
    )
