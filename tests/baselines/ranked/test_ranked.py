"""The scheduler ``ranked``: small schedules worked out by hand, learned lengths, and weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from helpers.runs.schedules import check
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.batch_time import AffineBatchTime, PiecewiseBatchTime, UnitBatchTime
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import SimulationResult, known_to, simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()
AFFINE = AffineBatchTime(0.31, 0.017, 0.023, 0.0011)


def run(
    table: RequestTable, capacity: int, weights: Mapping[str, Any] | None = None, **system: Any
) -> SimulationResult:
    rules = System(**{"kv_capacity": capacity, "batch_time": UNIT, "stall_limit": 1000, **system})
    return simulate(rules, table, make_policy("ranked", **(weights or {})), log=True)


def at_once(prompt: list[int], output: list[int], **columns: Any) -> RequestTable:
    return RequestTable.from_columns(
        arrival_time=[0.0] * len(prompt), prompt_len=prompt, output_len=output, **columns
    )


# ---------------------------------------------------------------- by hand


def test_one_request() -> None:
    """A prompt of 3 with its first token takes one iteration, the other two tokens one each."""
    check(run(at_once([3], [3]), 10), start=[0], first=[1], finish=[3])
    check(run(at_once([3], [3]), 10, first_token="decode"), start=[0], first=[2], finish=[4])
    # 0.31 + 3 · 0.017 + 3 · 0.0011, then decodes that end with 5 and with 6 tokens of context.
    first, decodes = 0.31 + 3 * 0.0181, [0.31 + 0.023 + 0.0011 * context for context in (5, 6)]
    result = run(at_once([3], [3]), 10, batch_time=AFFINE)
    assert result.requests["first_token_time"][0] == pytest.approx(first)
    assert result.requests["finish_time"][0] == pytest.approx(first + sum(decodes))


def test_a_batch_stops_before_a_step_that_does_not_pay() -> None:
    """Up to 32 tokens take 1 s, more take 10 s: 32, 32 and 16 tokens of a prompt of 80, then two decodes.

    32 tokens are worth 32 · 0.4 / 1, all of them 80 · 0.4 / 10^1.2. If duration has no cost, all run at once.
    """
    staircase = PiecewiseBatchTime("tokens", [32, 33], [1, 10], 0.0)
    table = at_once([80], [3])
    check(run(table, 90, batch_time=staircase), start=[0], first=[3], finish=[5])
    check(run(table, 90, {"cost": 0.0}, batch_time=staircase), start=[0], first=[10], finish=[12])


@pytest.mark.parametrize(("capacity", "first"), [(90, 10), (9_931, 10), (9_932, 3), (100_000, 3)])
def test_free_memory_decides_whether_a_step_pays(capacity: int, first: int) -> None:
    """The same prompt and steps with a power of 0.48 f / (f + 2,048), with f free tokens.

    32 tokens are worth 32, all of them 80 / 10^power: equal at a power of log10(2.5), f = 9,931.6. With a larger power,
    the rest does not pay at once either.
    """
    staircase = PiecewiseBatchTime("tokens", [32, 33], [1, 10], 0.0)
    weights = {"cost": 0.0, "cost_room": 0.48}
    result = run(at_once([80], [3]), capacity, weights, batch_time=staircase)
    check(result, start=[0], first=[first], finish=[first + 2])


@pytest.mark.parametrize(("capacity", "first"), [(9_931, 10), (9_932, 11)])
def test_the_number_of_waiting_requests_decides_whether_a_step_pays(capacity: int, first: int) -> None:
    """As above with a power of 0.96 · 1 / 2 · f / (f + 2,048): one request waits, none is active.

    After 32 tokens no request waits: the power is 0, and the rest runs at once.
    """
    staircase = PiecewiseBatchTime("tokens", [32, 33], [1, 10], 0.0)
    weights = {"cost": 0.0, "cost_waiting": 0.96}
    result = run(at_once([80], [3]), capacity, weights, batch_time=staircase)
    check(result, start=[0], first=[first], finish=[first + 2])


def first_tokens(capacity: int, **weights: float) -> list[float]:
    """Return when two prompts, of 60 and of 80 tokens 5 s later, are done; batches above 32 tokens take 10 s."""
    staircase = PiecewiseBatchTime("tokens", [32, 33], [1, 10], 0.0)
    table = RequestTable.from_columns(arrival_time=[0.0, 5.0], prompt_len=[60, 80], output_len=[6, 1])
    weights |= {"cost": 0.0, "growth": 0.0, "gate": 100.0}
    weights |= {"prefill_value": 10.0, "prefill_pressure": 0.0, "prefill_room": 0.0}
    return run(table, capacity, weights, batch_time=staircase).requests["first_token_time"].tolist()


@pytest.mark.parametrize(("weight", "first"), [(0.58, 20), (0.59, 13)])
def test_a_long_batch_costs_more_with_more_active_requests(weight: float, first: int) -> None:
    """As below with a power of weight · log(2): at 0.405 the whole prompt is worth as much as a part.

    The first prompt meets no other request (a power of 0) and runs at once, until 10 s.
    """
    assert first_tokens(200, cost_active=weight)[1] == first


@pytest.mark.parametrize(("least", "first"), [(0.39, 10), (0.4, 3)])
def test_the_power_has_a_floor(least: float, first: int) -> None:
    """As above: from a power of log10(2.5) = 0.398 on, 32 tokens are worth more."""
    staircase = PiecewiseBatchTime("tokens", [32, 33], [1, 10], 0.0)
    weights = {"cost": 0.1, "cost_room": -4.0, "cost_least": least}
    result = run(at_once([80], [3]), 9_931, weights, batch_time=staircase)
    check(result, start=[0], first=[first], finish=[first + 2])


@pytest.mark.parametrize(("capacity", "first"), [(8_770, 15), (8_800, 8)])
def test_memory_that_others_hold_is_not_free(capacity: int, first: int) -> None:
    """A prompt token is worth 10 · 9 / 512 · 63 / 9 = 1.23 decodes, and a decoding request holds at least 61 tokens.

    A batch of 32 is worth 1 + 31 · 1.23 = 39.1, the whole prompt 99.4 / 10^power with a power of 0.5 f / (f + 2,048):
    equal at f = 8,717. The prompt of 80 runs at once, in 10 s, or in parts of 31, 31 and 18.
    """
    assert first_tokens(capacity, cost_room=0.5) == [2.0, first]


@pytest.mark.parametrize(
    ("step", "batch"),
    [
        *((size, size) for size in (32, 64, 128, 256, 384, 896, 1024, 1536, 2048, 7680, 8192)),
        *((size - 1, before) for size, before in ((64, 32), (128, 64), (384, 256), (1536, 1024))),
        (8191, 7680),
        (9000, 8192),
    ],
)
def test_candidate_batch_sizes(step: int, batch: int) -> None:
    """Beyond ``step`` tokens a batch takes a thousand times as long: the largest smaller size runs."""
    times = PiecewiseBatchTime("tokens", [step, step + 1], [1, 1000], 0.0)
    result = run(at_once([9500], [1]), 10_000, {"cost": 5.0}, batch_time=times)
    assert result.log is not None
    assert result.log["prefill_tokens"][0] == batch


def test_the_shortest_remaining_goes_first() -> None:
    """Only one fits at a time: in order of predictions, with ties by id."""
    alike = at_once([8, 8, 8], [2, 2, 2])
    check(run(alike, 16), start=[0, 2, 4], finish=[2, 4, 6])
    predicted = alike.replace(predicted_output_len=[6, 2, 4])
    check(run(predicted, 16), start=[4, 0, 2], finish=[6, 2, 4])


def test_deadlines() -> None:
    """A batch of 1 s cannot meet a TTFT of 0.5 s: that request is last. Then 3 s is more urgent than 100 s."""
    table = at_once([8, 8, 8], [2, 2, 2], ttft_slo=[0.5, 100, 3])
    check(run(table, 16), start=[4, 2, 0], finish=[6, 4, 2])
    check(run(table, 16, {"slack": 0.0}), start=[4, 0, 2], finish=[6, 2, 4])
    check(run(table, 16, {"slack": 0.0, "lost": 0.0}), start=[0, 2, 4], finish=[2, 4, 6])


@pytest.mark.parametrize("longer", [0, 1])
def test_the_longest_remaining_is_evicted(longer: int) -> None:
    """Two prompts of 4 hold 5 + 5 tokens after a batch, 6 + 6 after two; a third would take 14 of 12."""
    predicted = [5, 5]
    predicted[longer] = 20
    result = run(at_once([4, 4], [5, 5], predicted_output_len=predicted), 12)
    check(
        result,
        start=[0, 0],
        finish=[10, 5] if longer == 0 else [5, 10],
        evictions=[1, 0] if longer == 0 else [0, 1],
    )


@pytest.mark.parametrize(
    ("capacity", "long_ones", "passes"), [(1000, 8, True), (1000, 9, False), (6, 5, True), (6, 6, False)]
)
def test_at_most_eight_are_set_aside(capacity: int, long_ones: int, passes: bool) -> None:
    """One request runs; many with long outputs wait, and after them a short one, which may pass eight.

    A memory of 6 tokens has 6 places, so at most five are set aside.
    """
    n = long_ones
    table = RequestTable.from_columns(
        arrival_time=[0.0] + [0.1] * (n + 1),
        prompt_len=[2] + [1] * (n + 1),
        output_len=[3] + [1] * (n + 1),
        predicted_output_len=[10] + [1000] * n + [2],
        ttft_slo=[math.inf] * (n + 1) + [0.0],  # missed, so that it comes last
    )
    weights = {"footprint": 0.0, "cost": 0.0, "gate": 0.0, "gate_busy": 0.0, "growth": 0.0}
    started = run(table, capacity, weights, batch_time=AFFINE).requests["start_time"]
    ended = 0.31 + 2 * 0.0181  # the first batch
    soon = np.isclose(started, ended)
    assert soon.tolist() == [False] * (n + 1) + [passes]
    weights["gate_busy"] = 1.0  # no worker is that busy: in order, while memory lasts
    soon = np.isclose(run(table, capacity, weights, batch_time=AFFINE).requests["start_time"], ended)
    assert soon[1]
    assert soon[-1] == (capacity > 6)


# ---------------------------------------------------------------- learned lengths

SEEN = 300
BIG = 10**6


def least_ratio(lengths: np.ndarray) -> float:
    """Return the Gittins cost of a request before its first token: the minimum over t of E min(o, t) / P(o ≤ t)."""
    return min(float(np.minimum(lengths, t).mean() / (lengths <= t).mean()) for t in np.unique(lengths))


def learned_cost(lengths: np.ndarray, **known: tuple[np.ndarray, int]) -> float:
    """Return the output that the scheduler expects after it has seen requests of these lengths.

    After these, two requests arrive that cannot run together: one of unknown length, and one with an interval of
    exactly ``exact`` tokens. The one that starts first shows whether the cost is below ``exact``.

    Args:
        lengths: lengths of the requests that it has seen.
        **known: columns of these requests, and the entry of the new request.
    """
    n = len(lengths)
    columns: dict[str, Any] = {name: [*column, own, own] for name, (column, own) in known.items()}

    def is_less_than(exact: int) -> bool:
        table = RequestTable.from_columns(
            arrival_time=[0.0] * n + [1e9] * 2,
            prompt_len=[1] * n + [3000] * 2,
            output_len=[*lengths, 1, 1],
            predicted_low=[1] * (n + 1) + [exact],
            predicted_high=[BIG] * (n + 1) + [exact],
            **columns,
        )
        start = run(table, 5000, {"footprint": 0.0, "prompt": 0.0}).requests["start_time"]
        return bool(start[n] < start[n + 1])

    low, high = 1, 600
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_less_than(middle) else (middle, high)
    return float(low)


@pytest.mark.parametrize(
    ("short", "long", "share", "expected"),
    [
        # Half end after 20: 20 / 0.5 is below the mean, 60.
        (20, 100, 0.5, 40),
        # A tenth ends after 20: 20 / 0.1 is above the mean, 92.
        (20, 100, 0.1, 92),
        # None ends early: the mean.
        (50, 60, 0.5, 55),
    ],
)
def test_costs_of_known_lengths(short: int, long: int, share: float, expected: float) -> None:
    """The tolerance covers bins of 9 % and a prior of two requests."""
    lengths = np.where(np.arange(SEEN) < share * SEEN, short, long)
    assert least_ratio(lengths) == pytest.approx(expected)
    assert learned_cost(np.random.default_rng(0).permutation(lengths)) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_costs_of_predictions(factor: float) -> None:
    """Past outputs were a fixed multiple of their predictions, and so is the expected next one."""
    predicted = np.random.default_rng(1).integers(20, 100, SEEN)
    found = learned_cost((predicted * factor).astype(int), predicted_output_len=(predicted, 200))
    assert found == pytest.approx(200 * factor, rel=0.1)


@pytest.mark.parametrize(("class_id", "expected"), [(0, 20), (1, 80)])
def test_costs_of_classes(class_id: int, expected: float) -> None:
    classes = np.arange(SEEN) % 2
    found = learned_cost(np.where(classes == 0, 20, 80), class_id=(classes, class_id))
    assert found == pytest.approx(expected, rel=0.1)


def test_a_class_with_few_completions_is_like_the_others() -> None:
    """All have 20 tokens; none, one or three of them have the class of the next request."""
    for few in (0, 1, 3):
        found = learned_cost(np.full(SEEN, 20), class_id=((np.arange(SEEN) < few).astype(int), 1))
        assert found == pytest.approx(20, rel=0.1)


def test_before_the_first_completion_the_prior_applies() -> None:
    """Without completions the hazard of every bin is 1 − 2^(−1/8); compared with the sums of the description."""
    ends = [0.0] + [2 ** ((b + 1) / 8) for b in range(136)]
    hazard, survival, service, done, least = 1 - 2 ** (-1 / 8), 1.0, 0.0, 0.0, math.inf
    for low, high in itertools.pairwise(ends):
        service += (survival - survival * hazard / 2) * (high - low)
        done += survival * hazard
        survival *= 1 - hazard
        least = min(least, service / done)
        if survival < 0.001:
            break
    assert learned_cost(np.array([], int)) == math.floor(least)


def test_needs() -> None:
    """It uses all information that requests carry, except true lengths."""
    n = 12
    bare = at_once([3] * n, [4] * n)
    policy = make_policy("ranked")
    assert known_to(policy, bare) == {"slo"}
    rich = bare.replace(
        predicted_output_len=[4] * n, predicted_low=[1] * n, predicted_high=[9] * n, class_id=[0] * n
    )
    assert known_to(policy, rich) == {"slo", "class", "predicted_length", "length_interval"}
    assert (run(bare, 40).requests["predicted_len"] == -1).all()
    assert (run(rich, 40).requests["predicted_len"] == 4).all()
    assert (run(rich, 40).requests["output_len"] == -1).all()


# ---------------------------------------------------------------- hyperparameters


def test_weights_list_the_parameters_that_can_be_learned() -> None:
    ranked = POLICIES["ranked"]
    assert {w.name for w in ranked.weights()} == {w.name for w in WEIGHTS}
    (network,) = (w for w in ranked.weights(hidden=3) if w.size > 1)
    assert (network.name, network.size) == ("network", 3 * 14)
    for w in WEIGHTS:
        assert w.low <= w.default <= w.high
        assert w.step > 0
