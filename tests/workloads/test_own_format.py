"""Trace formats that users register: what they may say, and mistakes."""

import pytest

from kvgym.errors import ConfigError
from kvgym.workloads import register_trace_format
from kvgym.workloads.traces.reader import FORMATS, detected_format, load_trace

COLUMNS = {"arrival_time": "prompt_tokens", "prompt_len": "in", "output_len": "out", "client_id": "user"}


@pytest.fixture(autouse=True)
def restored():
    known = dict(FORMATS._items)
    yield
    FORMATS._items = known


def test_it_comes_before_any_table_and_may_be_registered_again(tmp_path):
    for _ in range(2):
        register_trace_format("mine", "a log", COLUMNS, kinds={"arrival_time": "datetime"})
    path = tmp_path / "x.csv"
    path.write_text("prompt_tokens,in,out,user\n2026-01-01T00:00:01Z,3,4,a\n2026-01-01T00:00:03Z,5,6,b\n")
    assert detected_format(path) == "mine"
    trace = load_trace(path)
    assert trace.arrival_time.tolist() == [0, 2]
    assert trace.extra["client_id"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "columns", "kinds", "message"),
    [
        ("mine", {"prompt": "in", **COLUMNS}, {}, "columns has 'prompt'; valid are arrival_time"),
        ("mine", {"prompt_len": "in"}, {}, "columns has no output_len; give its name in the file"),
        ("mine", COLUMNS, {"turn": "index"}, "kinds has 'turn'; valid are arrival_time, prompt_len"),
        (
            "mine",
            COLUMNS,
            {"arrival_time": "days"},
            "valid is arrival_time with one of seconds, milliseconds",
        ),
        ("azure", COLUMNS, {}, "trace format 'azure' is already registered"),
    ],
)
def test_mistakes(name, columns, kinds, message):
    with pytest.raises(ConfigError, match=message):
        register_trace_format(name, "a log", columns, kinds=kinds)
