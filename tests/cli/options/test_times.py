"""Options that take times: seconds, milliseconds and errors."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError
from kvgym.utils.specs import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("0.5", 0.5),
        (".5s", 0.5),
        ("1e-3", 1e-3),
        ("1E2 MS", 0.1),
        ("700ms", 0.7),
        (2, 2.0),
        (" 3 s ", 3.0),
    ],
)
def test_forms_of_times(text, seconds):
    assert parse_seconds(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "s", "5m", "5min", "1 2", "½", "0x1", "nan", "500 us", True])
def test_errors_of_times_show_the_forms(text):
    with pytest.raises(ConfigError, match=r"--x .*: expected seconds, as in 0\.5 or 0\.5s, or millisec"):
        parse_seconds(text, "--x")


@given(st.text(max_size=12))
def test_any_text_is_a_time_or_an_error(text):
    try:
        found = parse_seconds(text, "--x")
    except ConfigError:
        return
    assert isinstance(found, float)
    assert not math.isnan(found)


def test_options_take_units(kvgym, tmp_path):
    small = ("run", "-p", "fcfs", "-n", 20, "--no-progress", "--json")
    found = [
        json.loads(kvgym(*small, "-o", f"o{k}", "--ttft-slo", slo, "--set", f"warm_up={warm}")[1])
        for k, (slo, warm) in enumerate([("0.5", "0.1"), ("500ms", "100ms"), ("0.5s", "0.1s")])
    ]
    assert all(one["metrics"] == found[0]["metrics"] for one in found)
    assert all(one["config"]["scenario"]["workload"]["ttft_slo"] == 0.5 for one in found)
    for option in ("--ttft-slo", "--tbt-slo"):
        err = kvgym.error(*small, option, "5min")
        assert (
            err.strip()
            == f"error: {option} '5min': expected seconds, as in 0.5 or 0.5s, or milliseconds, as in 500ms"
        )
    err = kvgym.error("bound", "--seconds", "-1ms")
    assert "--seconds -1ms: expected at least 0 seconds" in err
    assert "0.5s or 500ms" in " ".join(kvgym("run", "--help")[1].replace("│", " ").split())
