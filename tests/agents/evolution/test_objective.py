"""Objectives by hand, and failures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvgym
from helpers.training.evolution_runs import SERVICES
from kvgym.agents.evolution.objective import (
    PENALTY,
    Measurement,
    best_value,
    improvement,
    measure,
    measure_reference,
    objective,
    weighted,
)
from kvgym.agents.evolution.services import Services
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, Policy, PolicyInfo
from kvgym.simulator.decision import Decision

LATENCY, SHARE = "e2e_latency_mean", "slo_attainment"


def found(metric, value, left=0.0, error=""):
    return Measurement({metric: value}, left, error)


@pytest.mark.parametrize(
    ("metric", "value", "reference", "expected"),
    [
        (LATENCY, 9.0, 10.0, math.log(0.9)),
        (LATENCY, 10.0, 10.0, 0.0),
        (LATENCY, 1e30, 1.0, PENALTY),
        ("ttft_p50", 0.0, 1e-6, 0.0),  # below a millionth of a second all is equal
        ("evictions", 0.0, 4.0, math.log(1 / 4)),
        ("evictions", 0.0, 0.0, 0.0),
        (SHARE, 0.9, 0.8, -1 / 9),
        (SHARE, 0.8, 0.9, 1 / 9),
        (SHARE, 0.0, 0.5, 1.0),
        (SHARE, 0.0, 0.0, 0.0),
    ],
)
def test_by_hand(metric, value, reference, expected):
    assert objective(found(metric, value), metric, reference) == pytest.approx(expected)


def test_losses_may_weigh_more():
    assert weighted(0.2, 5.0) == 1.0
    assert weighted(-0.2, 5.0) == -0.2
    assert weighted(0.2, 1.0) == 0.2


def test_unfinished_requests_are_a_failure():
    """It flatters a latency, but is part of an attainment; the more is left, the worse."""
    assert objective(found(LATENCY, 1.0, left=0.25), LATENCY, 5.0) == 1.25 * PENALTY
    assert objective(found(LATENCY, math.nan, 0.5, "stalled"), LATENCY, 5.0) == 1.5 * PENALTY
    assert objective(found(SHARE, 0.9, left=0.25), SHARE, 0.9) == 0.0
    assert objective(found(SHARE, math.nan, 1.0, "stalled"), SHARE, 0.9) == 2 * PENALTY


def test_no_reference_has_a_value():
    assert math.isnan(best_value([found(LATENCY, 3.0, 0.1), found(LATENCY, math.nan, 1.0, "no")], LATENCY))
    assert objective(found(LATENCY, 3.0), LATENCY, math.nan) == 0.0
    assert objective(found(LATENCY, 3.0, 0.1), LATENCY, math.nan) == 1.1 * PENALTY
    assert objective(found("tbt_p99", math.nan), "tbt_p99", math.nan) == 0.0  # outputs of one token
    assert objective(found("tbt_p99", math.nan), "tbt_p99", 0.1) == PENALTY


def test_the_best_reference():
    three = [found(LATENCY, x) for x in (3.0, 2.0, 4.0)]
    assert best_value(three, LATENCY) == 2.0
    assert best_value([found(SHARE, x) for x in (0.3, 0.9)], SHARE) == 0.9
    assert best_value([*three, found(LATENCY, 1.0, left=0.5)], LATENCY) == 2.0


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_order(value, reference, left):
    """Better values have smaller objectives, and whatever finishes is better than whatever does not."""
    one = objective(found(LATENCY, value), LATENCY, reference)
    assert (one < 0) == (value < reference)
    assert one <= PENALTY <= objective(found(LATENCY, value, left, "failed"), LATENCY, reference)
    share = objective(found(SHARE, min(value, 1)), SHARE, min(reference, 1))
    assert -1 <= share <= 1


def test_improvement():
    assert improvement(math.log(0.9), LATENCY) == pytest.approx(10.0)
    assert improvement(-0.05, SHARE) == pytest.approx(5.0)


class Idle(Policy):
    """Fails, in the way that ``then`` says."""

    info = PolicyInfo(name="idle", summary="for tests")

    def __init__(self, *, then="stall"):
        self.then = then

    def schedule(self, view):
        if self.then == "divide":
            return 1 / 0
        return Decision(admit=[0, 0] if self.then == "twice" else [])


@pytest.fixture
def service():
    return Services.model_validate(SERVICES).draw(4)


def test_measuring(service):
    result = kvgym.simulate(service.system, service.table, "mc_sf:protection=0.25", seed=service.seed)
    expected = compute_metrics(result)
    measured = measure(service, "mc_sf", {"protection": 0.25}, (LATENCY, "ttft_p99"))
    assert measured == Measurement({name: expected[name] for name in (LATENCY, "ttft_p99")}, 0.0)


def test_failures_are_measured_and_mistakes_are_raised(service, monkeypatch):
    monkeypatch.setitem(POLICIES._items, "idle", Idle)
    for then, message in (("stall", "idle"), ("twice", "idle"), ("divide", "ZeroDivisionError")):
        failed = measure(service, "idle", {"then": then}, (LATENCY,))
        assert failed.left == 1.0
        assert message in failed.error
    refused = measure(service, "mc_sf", {"protection": 2.0}, (LATENCY,))
    assert "protection = 2.0" in refused.error
    assert objective(refused, LATENCY, 1.0) == 2 * PENALTY
    with pytest.raises(UnknownNameError):
        measure_reference(service, "mc_fs", (LATENCY,))
    lengths = {"predictions": {"kind": "none"}}
    blind = {**SERVICES["families"][0], "workload": {**SERVICES["families"][0]["workload"], **lengths}}
    unknown = Services.model_validate({"families": [blind]}).draw(4)
    with pytest.raises(ConfigError, match="needs predicted_length"):
        measure(unknown, "mc_sf", {}, (LATENCY,))
    assert "needs predicted_length" in measure_reference(unknown, "mc_sf", (LATENCY,)).error
    assert not measure_reference(unknown, "fcfs", (LATENCY,)).error
