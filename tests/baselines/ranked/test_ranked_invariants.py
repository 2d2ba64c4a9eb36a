"""Invariants of ``ranked`` under any weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import LivelockError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()
AFFINE = AffineBatchTime(0.31, 0.017, 0.023, 0.0011)
FIELDS = ("start_time", "first_token_time", "finish_time", "num_evictions")


@st.composite
def tables(draw: st.DrawFn, informed: bool = True) -> RequestTable:
    """Return up to 14 requests that a memory of 40 tokens can serve one by one."""
    n = draw(st.integers(1, 14))

    def column(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=n, max_size=n))

    columns: dict[str, Any] = {}
    if informed and draw(st.booleans()):
        columns["predicted_output_len"] = column(1, 30)
    if informed and draw(st.booleans()):
        columns["predicted_low"] = column(1, 9)
        columns["predicted_high"] = [low + 5 for low in columns["predicted_low"]]
    if informed and draw(st.booleans()):
        columns["class_id"] = column(0, 10)
    if informed and draw(st.booleans()):
        columns["ttft_slo"], columns["tbt_slo"] = column(0, 30), column(1, 6)
    return RequestTable.from_columns(
        arrival_time=sorted(gap / 4 for gap in column(0, 40)),
        prompt_len=column(1, 20),
        output_len=column(1, 20),
        **columns,
    )


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    """Return weights anywhere in their ranges."""
    finite = {w.name: st.floats(max(w.low, -50), min(w.high, 50)) for w in WEIGHTS}
    chosen: dict[str, Any] = {
        name: draw(value) for name, value in finite.items() if draw(st.integers(0, 2)) == 0
    }
    if draw(st.booleans()):
        chosen["hidden"] = 1
        chosen["network"] = draw(
            st.tuples(*[st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0]) for _ in range(14)])
        )
    return chosen


@st.composite
def systems(draw: st.DrawFn, progress: tuple[str, ...] = tuple(PROGRESS_ON_EVICT)) -> System:
    return System(
        kv_capacity=draw(st.sampled_from([40, 48, 100])),
        batch_time=draw(st.sampled_from([UNIT, AFFINE, AffineBatchTime(0.0)])),
        first_token=draw(st.sampled_from(list(FIRST_TOKEN))),
        progress_on_evict=draw(st.sampled_from(progress)),
        requeue=draw(st.sampled_from(list(REQUEUE))),
        stall_limit=1000,
        block_size=draw(st.sampled_from([1, 1, 4])),
    )


def assert_sound(result: SimulationResult) -> None:
    """Check that each iteration has a sensible decision; the engine checks that it fits."""
    log, capacity = result.log, result.system.usable_capacity
    assert log is not None
    assert result.completed
    assert (result.requests["num_output_tokens"] == result.table.output_len).all()
    assert (log["num_prefills"] + log["num_decodes"] > 0).all()  # never an empty batch
    assert (log["prefill_tokens"] + log["num_decodes"] <= 8192).all()
    assert (log["kv_tokens"] <= capacity).all()
    evicting = log[log["num_evicted"] > 0]
    assert (evicting["num_active"] > 0).all()  # the last request is never evicted
    assert (evicting["num_admitted"] == 0).all()


@settings(max_examples=number(150, 25), deadline=None)
@given(tables(), systems(), choices())
def test_any_weights(table: RequestTable, system: System, weights: dict[str, Any]) -> None:
    if system.progress_on_evict == "lost":
        # If evictions lose all progress, runs with weights that penalise progress may never end.
        weights = {}
    assert_sound(simulate(system, table, make_policy("ranked", **weights), log=True))


DECIDED = ("start_time", "num_admitted", "num_evicted", "num_active", "prefill_tokens", "num_decodes")


def log_of(system: System, table: RequestTable, policy: Any) -> Any:
    """Return the log of a run, even of one that ends in a livelock, which can happen if progress is lost."""
    try:
        return simulate(system, table, policy, log=True).log
    except LivelockError as error:
        if error.result is None:
            raise
        return error.result.log


@settings(max_examples=number(100, 25), deadline=None)
@given(tables(), systems(), choices(), st.lists(st.integers(0, 20), min_size=14, max_size=14))
def test_true_lengths_have_no_effect_before_a_request_finishes(
    table: RequestTable, system: System, weights: dict[str, Any], more: list[int]
) -> None:
    logs = []
    for output_len in (table.output_len, np.minimum(table.output_len + more[: len(table)], 20)):
        policy = make_policy("ranked", **(weights if system.progress_on_evict != "lost" else {}))
        logs.append(log_of(system, table.replace(output_len=output_len), policy))
    ends = [int(k) + 1 for log in logs for k in np.flatnonzero(log["num_finished"])[:1]]
    until = min([*ends, *map(len, logs)])  # up to the first batch in which a request finishes
    for column in DECIDED:
        np.testing.assert_array_equal(*(log[column][:until] for log in logs), err_msg=column)


@settings(max_examples=number(60, 25), deadline=None)
@given(tables(informed=False), systems(), st.integers(2, 2**31 - 1))
def test_vacuous_information_changes_nothing(table: RequestTable, system: System, high: int) -> None:
    n, high = len(table), max(high, 10**5)
    nothing = table.replace(predicted_low=[1] * n, predicted_high=[high] * n, ttft_slo=[math.inf] * n)
    assert_same(*(simulate(system, t, "ranked") for t in (table, nothing)))


@settings(max_examples=number(60, 25), deadline=None)
@given(tables(), systems(("kept", "recompute")), choices(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(
    table: RequestTable, system: System, weights: dict[str, Any], scale: float
) -> None:
    """The factors are powers of two, so that times are exact."""
    times: list[BatchTimeModel] = [
        AffineBatchTime(*(c * s for c in (0.5, 0.02, 0.03, 0.001))) for s in (1.0, scale)
    ]
    slower = table.replace(
        arrival_time=table.arrival_time * scale,
        ttft_slo=None if table.ttft_slo is None else table.ttft_slo * scale,
        tbt_slo=None if table.tbt_slo is None else table.tbt_slo * scale,
    )
    assert_same(
        *(
            simulate(dataclasses.replace(system, batch_time=t), requests, make_policy("ranked", **weights))
            for t, requests in zip(times, (table, slower), strict=True)
        ),
        scale=scale,
    )


@settings(max_examples=number(60, 25), deadline=None)
@given(tables(), st.sampled_from(list(FIRST_TOKEN)))
def test_blocks_do_not_matter_with_ample_memory(table: RequestTable, first_token: str) -> None:
    results = [
        simulate(
            System(10_000 // size * size, AFFINE, first_token, block_size=size),
            table,
            "ranked:prefill_room=0",
        )
        for size in (1, 16, 7)
    ]
    for other in results[1:]:
        assert_same(results[0], other)


@settings(max_examples=number(60, 25), deadline=None)
@given(tables(), systems())
def test_a_network_of_zeros_has_no_effect(table: RequestTable, system: System) -> None:
    one, *others = (
        simulate(system, table, make_policy("ranked", **given))
        for given in ({}, {"hidden": 2}, {"hidden": 1, "network": (0.0,) * 14})
    )
    for other in others:
        assert_same(one, other)


def assert_same(one: SimulationResult, other: SimulationResult, scale: float = 1.0) -> None:
    """Compare schedules; the second may be slower by a factor."""
    for field in FIELDS:
        factor = 1.0 if field == "num_evictions" else scale
        np.testing.assert_array_equal(one.requests[field] * factor, other.requests[field], err_msg=field)
