"""Invariants of a run: a wrapper predicts the state after each decision of a policy and compares at every boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvgym.policies.policy import Decision, Policy, SystemInfo
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView, simulation_of
from kvgym.utils.user_code import calling
from kvgym.workloads.table import RequestTable


@dataclass
class Interval:
    """Expected totals between a decision and the end of the batch or wait that it starts."""

    start: float
    is_batch: bool
    kv: int  # memory in use
    active: int
    inside: int  # requests in the system at the start
    completed: list[int]


class InvariantChecker(Policy):
    """Passes on another policy's decisions, predicts the state after them and compares at every boundary."""

    def __init__(self, inner: Policy, system: System, table: RequestTable) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]
        self.system, self.table = system, table

    def reset(self, system: SystemInfo) -> None:
        """Reset, including the other policy."""
        with calling(self.inner, "policy", "reset"):
            self.inner.reset(system)
        n = len(self.table)
        self.state = {i: (0, int(self.table.prompt_len[i]), 0) for i in range(n)}  # KV, prefill left, outputs
        self.active: list[int] = []
        self.finished: list[int] = []
        self.evictions, self.lost = [0] * n, [0] * n
        self.prefilled = self.generated = self.members = 0
        self.intervals: list[Interval] = []

    def schedule(self, view: SystemView) -> Decision:
        """Return the other policy's decision and predict its effect."""
        self.compare(view)
        with calling(self.inner, "policy", "schedule"):
            decision = self.inner.schedule(view)
        self.apply(view.clock, decision)
        return decision

    def compare(self, view: SystemView) -> None:
        """Compare the view with the predicted effect of the last decision."""
        active, waiting = view.active, view.waiting
        assert view.iteration == sum(interval.is_batch for interval in self.intervals)
        if self.intervals:
            assert view.clock > self.intervals[-1].start
            assert sorted(view.finished.tolist()) == sorted(self.intervals[-1].completed)
        here = np.flatnonzero(self.table.arrival_time <= view.clock).tolist()
        assert active.request_id.tolist() == self.active
        assert sorted([*self.active, *waiting.request_id.tolist(), *self.finished]) == here
        for columns in (active, waiting):
            seen = zip(
                columns.num_kv_tokens, columns.num_prefill_left, columns.num_output_tokens, strict=True
            )
            for i, row in zip(columns.request_id.tolist(), seen, strict=True):
                assert tuple(int(value) for value in row) == self.state[i], f"request {i}"
            assert columns.num_evictions.tolist() == [self.evictions[i] for i in columns.request_id]
            assert (columns.num_prefill_left >= 0).all()
            total = columns.prompt_len + columns.num_output_tokens
            total = total - self.system.unwritten_tokens * (columns.num_prefill_left == 0)
            np.testing.assert_array_equal(columns.num_kv_tokens + columns.num_prefill_left, total)
        assert view.kv_tokens == sum(self.state[i][0] for i in self.active)
        assert view.kv_allocated == self.memory() <= view.kv_capacity == self.system.usable_capacity
        assert view.kv_allocated == view.allocated(active.num_kv_tokens).sum()
        worker = simulation_of(view).worker
        full = sum(self.state[i][0] % self.system.block_size == 0 for i in self.active)
        assert worker["num_full"] == full
        if self.system.requeue == "arrival":
            assert waiting.request_id.tolist() == sorted(waiting.request_id.tolist())

    def apply(self, clock: float, decision: Decision) -> None:
        """Predict the effect of a decision."""
        for i in map(int, decision.evict):
            kv, left, outputs = self.state[i]
            self.active.remove(i)
            self.evictions[i] += 1
            if self.system.progress_on_evict != "kept":
                self.lost[i] += kv
                outputs = outputs if self.system.progress_on_evict == "recompute" else 0
                self.state[i] = (0, int(self.table.prompt_len[i]) + outputs, outputs)
        self.active += map(int, decision.admit)
        inside = int((self.table.arrival_time <= clock).sum()) - len(self.finished)
        is_batch, completed = decision.wait_until is None, []
        for i in self.active if is_batch else ():
            kv, left, outputs = self.state[i]
            tokens = decision.tokens.get(i, max(1, left))
            completes = 0 < tokens == left and self.system.first_token == "counted"
            made = int(completes) if left else tokens
            written = tokens if not left else tokens + made * (1 - self.system.unwritten_tokens)
            self.members += tokens > 0
            self.prefilled += tokens if left else 0
            self.generated += made
            self.state[i] = (kv + written, left - tokens if left else 0, outputs + made)
            if outputs + made == self.table.output_len[i]:
                completed.append(i)
        self.intervals.append(Interval(clock, is_batch, self.memory(), len(self.active), inside, completed))
        self.active = [i for i in self.active if i not in completed]
        self.finished += completed

    def memory(self) -> int:
        """Return the allocated tokens of the active requests."""
        size = self.system.block_size
        return sum(math.ceil(self.state[i][0] / size) * size for i in self.active)

    def check(self, result: SimulationResult) -> None:
        """Compare records and totals with the predictions; all requests must have finished."""
        table, log, worker, records = self.table, result.log, result.worker[0], result.requests
        assert log is not None
        assert sorted(self.finished) == list(range(len(table)))
        assert len(log) == sum(interval.is_batch for interval in self.intervals)
        rows = iter(log)
        finish = np.full(len(table), np.nan)
        kv_time = active_time = system_time = 0.0
        for k, interval in enumerate(self.intervals):
            if interval.is_batch:
                row = next(rows)
                end = float(row["end_time"])
                assert (row["start_time"], row["kv_tokens"]) == (interval.start, interval.kv)
                assert (row["num_active"], row["num_finished"]) == (interval.active, len(interval.completed))
                finish[interval.completed] = end
            if k + 1 < len(self.intervals):
                following = self.intervals[k + 1].start
                idle = interval.is_batch and interval.inside == len(interval.completed) and following > end
                assert idle or not interval.is_batch or following == end
                end = end if idle else following
            within = table.arrival_time[(table.arrival_time > interval.start) & (table.arrival_time <= end)]
            kv_time += interval.kv * (end - interval.start)
            active_time += interval.active * (end - interval.start)
            system_time += interval.inside * (end - interval.start) + float((end - within).sum())
        np.testing.assert_array_equal(records["finish_time"], finish)
        # Little's law on one path: the latencies sum to the integral of the number in the system.
        assert math.isclose(
            system_time, float((records["finish_time"] - table.arrival_time).sum()), rel_tol=1e-6
        )
        assert math.isclose(worker["kv_time"], kv_time, rel_tol=1e-6, abs_tol=1e-12)
        assert math.isclose(worker["active_time"], active_time, rel_tol=1e-6, abs_tol=1e-12)
        busy_time = float((log["end_time"] - log["start_time"]).sum())
        assert math.isclose(worker["busy_time"], busy_time, rel_tol=1e-6, abs_tol=1e-12)
        assert records["num_evictions"].tolist() == self.evictions
        assert records["num_recomputed_tokens"].tolist() == self.lost
        assert worker["total_output_tokens"] == self.generated
        assert worker["total_prefill_tokens"] == self.prefilled
        assert worker["total_batch_requests"] == self.members
        assert worker["total_evicted"] == sum(self.evictions)
        assert worker["total_admitted"] == sum(self.evictions) + len(table)
        repeats = self.generated - int(table.output_len.sum())
        assert repeats == 0 or self.system.progress_on_evict == "lost"
        check_records(result)


def check_records(result: SimulationResult) -> None:
    """Check a finished run using only its records."""
    table, records, log = result.table, result.requests, result.log
    assert log is not None
    assert result.completed
    assert (records["status"] == 3).all()
    assert (table.arrival_time <= records["start_time"]).all()
    assert (records["start_time"] < records["first_token_time"]).all()
    assert (records["first_token_time"] <= records["finish_time"]).all()
    np.testing.assert_array_equal(records["last_token_time"], records["finish_time"])
    np.testing.assert_array_equal(records["num_output_tokens"], table.output_len)
    np.testing.assert_array_equal(records["num_delivered_tokens"], table.output_len)
    assert (log["kv_tokens"] <= result.system.usable_capacity).all()
    assert result.worker["peak_kv_tokens"][0] == log["kv_tokens"].max()
    assert result.worker["total_finished"][0] == log["num_finished"].sum() == len(table)
    assert (log["start_time"] < log["end_time"]).all()
    assert (log["start_time"][1:] >= log["end_time"][:-1]).all()
    # There is a gap between any two consecutive tokens shown to the user.
    shown = table.output_len + (1 if result.system.first_token == "uncounted" else 0)
    assert result.gap_counts.sum() == (shown - 1).sum()
    spans = records["last_token_time"] - records["first_token_time"]
    assert math.isclose(result.gap_sums.sum(), spans.sum(), rel_tol=1e-6, abs_tol=1e-12)
    assert (records["max_token_gap"] <= spans + 1e-9).all()
    assert (records["max_token_gap"][shown > 1] * (shown - 1)[shown > 1] >= spans[shown > 1] - 1e-9).all()
