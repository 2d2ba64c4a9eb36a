"""Targets: parsing, errors, and when they are met."""

import math

import pytest

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.studies.capacity.targets import Target, parse_targets


def test_targets_are_parsed_with_units():
    assert parse_targets(" ttft_p99<1, tbt_p99 <= 200ms,goodput>=90%,token_throughput > 1e3") == (
        Target("ttft_p99", "<", 1.0),
        Target("tbt_p99", "<=", 0.2),
        Target("slo_attainment", ">=", 0.9),
        Target("token_throughput", ">", 1000.0),
    )
    assert parse_targets(["tpot_mean<0.05s", Target("e2e_latency_max", "<", 60)]) == (
        Target("tpot_mean", "<", 0.05),
        Target("e2e_latency_max", "<", 60.0),
    )
    assert str(Target("ttft_p99", "<", 1.0)) == "ttft_p99<1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p99", "cannot be read; write metric<bound"),
        ("", "cannot be read"),
        ("ttft_p99<1,", "cannot be read"),
        ("ttft_p99=1", "cannot be read"),
        ("ttft_p99<fast", "'fast' is not a number"),
        ("ttft_p99<inf", "finite"),
        ("ttft_p99>1", "less of ttft_p99 is better, so it needs < or <="),
        ("request_throughput<=5", "more of request_throughput is better, so it needs > or >="),
        ("batch_size<5", "neither more nor less of batch_size is better"),
        ("goodput>=1.5", r"a share of the requests lies in \(0, 1\]"),
        ("ttft_p99<90%", "has the unit s, not %"),
        ("goodput>=0.9s", "has no unit, not s"),
        ("token_throughput>5ms", "has the unit tokens/s, not ms"),
        ("ttft_p99<1,ttft_p99<2", "bounded twice"),
    ],
)
def test_invalid_targets_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_targets(text)


def test_an_unknown_metric_is_named_with_its_neighbours():
    with pytest.raises(UnknownNameError, match="ttft_p99"):
        parse_targets("ttft_99<1")


def test_a_bound_is_met_or_not():
    below, at_most = parse_targets("ttft_p99<1,tbt_p99<=1")
    assert at_most.met({"tbt_p99": 1.0})
    assert not below.met({"ttft_p99": 1.0})
    assert below.met({"ttft_p99": 0.999})
    assert below.met({"ttft_p99": math.nan})
    assert not parse_targets("goodput>0.9")[0].met({"slo_attainment": math.nan})
