"""Malformed or damaged trace files: one error that names the place."""

import contextlib

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.servers.trace_files import AZURE, FILES, JSON, OWN, write
from kvgym.errors import ConfigError, TraceFormatError, UnknownNameError, WorkloadError
from kvgym.workloads import read_trace
from kvgym.workloads.traces import write_sample_trace

MALFORMED = {
    "empty": ("", "the file is empty"),
    "blank": (" \n \n", "the file is empty"),
    "header only": (AZURE, "no rows; expected at least one request"),
    "unknown header": (
        "a,b\n1,2\n",
        r"unknown format; found columns a, b: no known name",
    ),
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
    "missing value": (OWN + "0,5,6\n1,,8\n", "line 3, column 'prompt_len': the cell is empty; expected"),
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
def test_truncated_parquet(keep: float, format_name: str, tmp_path, capfd):
    path = tmp_path / "a.parquet"
    write_sample_trace(path, format_name)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(TraceFormatError, match="damaged Parquet"):
        read_trace(path)
    assert capfd.readouterr() == ("", "")  # no output besides the error


def test_wrong_values_in_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"arrival_time": [0.0, 1.0], "prompt_len": [1, -1], "output_len": [1, 1]}
    pl.DataFrame(columns).write_parquet(path)
    with pytest.raises(TraceFormatError, match="row 1, column 'prompt_len': -1; expected"):
        read_trace(path)
    pl.DataFrame({**columns, "prompt_len": ["1", "x"]}).write_parquet(path)
    with pytest.raises(TraceFormatError, match="row 1, column 'prompt_len': 'x'; expected"):
        read_trace(path)


@settings(max_examples=number(150, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), name=st.sampled_from(["a.csv", "a.jsonl", "a.json", "a.parquet"]))
def test_junk_never_escapes_as_another_error(content: bytes, name: str, tmp_path):
    with contextlib.suppress(TraceFormatError):
        read_trace(write(tmp_path, content, name))


@settings(max_examples=number(150, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
