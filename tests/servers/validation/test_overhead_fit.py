"""A fit recovers the overhead of a simulated log, with its uncertainty, deterministically."""

import numpy as np
import pytest
import yaml

from helpers.servers.served_logs import TRUE, scenario, served
from kvgym.errors import ConfigError
from kvgym.servers.validation.overhead_fit import MOST_REPLAYS, TOLERANCE, Profile, _profile, fit_overhead
from kvgym.servers.validation.replay import loss, replay_log


@pytest.fixture(scope="module")
def fitted():
    lines = []
    log = served(scenario(count=300, engine=TRUE))
    return log, lines, fit_overhead(log, scenario(), "vllm", progress=lines.append)


def test_a_known_overhead_is_recovered(fitted):
    log, lines, fit = fitted
    usual = (log.e2e_latency - log.ttft).sum() / log.makespan  # requests in a batch
    found = fit.overhead.base_ms + fit.overhead.per_request_ms * usual
    assert found == pytest.approx(6.0 + 0.2 * usual, rel=0.06)
    # The single figures are less well known: see the profiles.
    assert fit.overhead.base_ms == pytest.approx(6.0, abs=2.0)
    assert loss(fit.after) < 0.01 < 0.1 < loss(fit.before)
    assert fit.replays == len(lines) <= MOST_REPLAYS
    assert "per request" in lines[0]


def test_profiles_include_the_truth_and_the_best_fit(fitted):
    _, _, fit = fitted
    for name, profile in fit.profiles.items():
        best = getattr(fit.overhead, name)
        assert profile.low <= best <= profile.high
        assert profile.low <= TRUE[name] <= profile.high
        assert (np.diff(profile.values) > 0).all()
        assert profile.losses.min() >= loss(fit.after) - 1e-12
        assert profile.losses[-1] > loss(fit.after) + TOLERANCE  # looked far enough


def test_printed_options_and_yaml_are_valid(fitted):
    log, _, fit = fitted
    entry = yaml.safe_load(fit.yaml("ours"))["engines"]["ours"]
    engine = {name: entry[name] for name in ("base_ms", "per_request_ms")}
    assert loss(replay_log(log, scenario(engine=engine), "vllm")) == pytest.approx(loss(fit.after), abs=1e-9)
    assert "served.csv, 300 requests" in entry["source"]
    assert fit.option() == f"base_ms={entry['base_ms']:g},per_request_ms={entry['per_request_ms']:g}"
    assert fit.summary()["loss"] == loss(fit.after)


def test_the_fit_is_deterministic():
    log = served(scenario(count=40, engine=TRUE))
    first, second = (fit_overhead(log, scenario(), "vllm") for _ in range(2))
    assert first.summary() == second.summary()


def test_a_server_without_overhead():
    log = served(scenario(rate=2.0, count=60, engine="none"))
    fit = fit_overhead(log, scenario(), "vllm")
    assert fit.overhead.base_ms < 0.3
    assert fit.overhead.per_request_ms < 0.1


def test_profile_ends_lie_where_the_loss_passes_the_limit():
    """Limit 1.01; from (2, 1.0) to (3, 1.02) it is passed half way, to the left never."""
    values, losses = np.array([0.0, 2.0, 3.0, 4.0]), np.array([1.005, 1.0, 1.02, 1.0])
    profile = _profile(values, losses, 2.0, 1.0)
    assert (profile.low, profile.high) == pytest.approx((0.0, 2.5))


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": None, "batch_time": {"kind": "unit"}, "kv_capacity": 10_000, "engine": None},
        {"workers": ({"count": 2},)},
    ],
)
def test_scenarios_without_a_replaceable_overhead_are_rejected(changes):
    log = served(scenario(count=5, engine=TRUE))
    chosen = type(scenario()).model_validate({**scenario().model_dump(), **changes})
    with pytest.raises(ConfigError, match="equal workers"):
        fit_overhead(log, chosen, "vllm")


def test_single_token_logs_cannot_be_fitted():
    log = served(scenario(count=5, engine=TRUE))
    single = log.select(log.output_len == log.output_len.min(), "some")
    object.__setattr__(single, "output_len", np.ones(len(single), np.int64))
    with pytest.raises(ConfigError, match="more than one output token"):
        fit_overhead(single, scenario(), "vllm")


def test_open_ranges_are_marked():
    values, losses = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    assert Profile(values, losses, 1.0, 3.0).range_text() == "1 or less to 3 or more ms"
    assert Profile(values, losses, 1.5, 2.5).range_text() == "1.5 to 2.5 ms"
    assert Profile(values - 1, losses, 0.0, 1.0).range_text() == "0 to 1 ms"
