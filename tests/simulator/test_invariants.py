"""What holds in every run, whoever decides: checked boundary by boundary on random workloads and systems."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import LivelockError
from kvgym.policy import POLICIES, Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

RANDOM_ROUNDS = 120
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grid = draw(st.sampled_from([0.0, 0.5, 1.0]))
    arrival = np.cumsum(rng.exponential(draw(st.sampled_from([0.0, 0.5, 2.0, 10.0])), n))
    output = rng.integers(1, 9, n)
    guess = np.maximum(1, output + rng.integers(-2, 3, n)) if draw(st.booleans()) else output
    return RequestTable.from_columns(
        arrival_time=np.floor(arrival / grid) * grid if grid else arrival,
        prompt_len=rng.integers(1, 11, n),
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 2,
        class_id=rng.integers(0, 2, n),
        ttft_slo=rng.uniform(1, 9, n),
        tbt_slo=rng.uniform(0.5, 3, n),
        classes=(ClassStatistics("short", 0.2, 5.0, 3.0), ClassStatistics("long", 0.2, 5.0, 6.0)),
    )


def systems() -> st.SearchStrategy[System]:
    made = st.builds(
        System,
        kv_capacity=st.integers(18, 60),
        block_size=st.sampled_from([1, 1, 1, 2, 3, 4, 7, 16, 18]),
        batch_time=st.sampled_from([UnitBatchTime(), AffineBatchTime(0.3, 0.02, 0.05, 0.003)]),
        first_token=st.sampled_from(["counted", "uncounted", "decode"]),
        progress_on_evict=st.sampled_from(["lost", "recompute", "kept"]),
        requeue=st.sampled_from(["arrival", "front", "back"]),
        stall_limit=st.just(300),
    )
    return made.filter(lambda system: system.usable_capacity >= 18)  # longest prompt + longest output


class RandomPolicy(Policy):
    """Any feasible decision: chunks, pauses, evictions, waiting, admission out of order."""

    info = PolicyInfo(name="random", summary="anything that fits")

    def __init__(self, seed: int, table: RequestTable) -> None:
        self.seed, self.total = seed, len(table)

    def reset(self, system: SystemInfo) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.emits = system.prefill_emits
        self.seen: set[int] = set()
        self.wild = float(self.rng.choice([0.05, 0.2, 0.4]))

    def schedule(self, view: SystemView) -> Decision:
        rng, active, waiting = self.rng, view.active, view.waiting
        self.seen |= {*active.request_id.tolist(), *waiting.request_id.tolist()}
        wild = self.wild if view.iteration < RANDOM_ROUNDS else 0.02  # calms down, so that runs end
        evict = [int(i) for i in active.request_id if rng.random() < wild / 2]
        rng.shuffle(evict)
        tokens: dict[int, int] = {}
        left = dict(zip(active.request_id.tolist(), active.num_prefill_left.tolist(), strict=True))
        stay = [i for i in active.request_id.tolist() if i not in evict]
        self.block, kv = (
            view.block_size,
            dict(zip(active.request_id.tolist(), active.num_kv_tokens, strict=True)),
        )
        room = view.kv_capacity - sum(self.blocks(kv[i]) for i in stay)
        for i in stay:
            tokens[i], room = self.share(left[i], int(kv[i]), room, wild)
        admit = []
        for row in rng.permutation(len(waiting)):
            i, back = int(waiting.request_id[row]), int(waiting.num_kv_tokens[row])
            if rng.random() < wild or self.blocks(back) > room:
                continue
            left[i] = int(waiting.num_prefill_left[row])
            tokens[i], room = self.share(left[i], back, room - self.blocks(back), wild)
            admit.append(i)
        assert room >= 0
        if rng.random() < wild / 2:
            until = (
                math.inf
                if len(self.seen) < self.total and rng.random() < 0.5
                else view.clock + rng.uniform(0.1, 3)
            )
            # Those admitted hold no more than their returning KV while the worker waits.
            return Decision(admit=admit, evict=evict, wait_until=until)
        if stay and not (any(tokens.values()) or evict or admit):  # perhaps stuck: make room
            calm = view.iteration >= RANDOM_ROUNDS
            gone = stay[1:] if calm else [stay[int(rng.integers(len(stay)))]]
            return Decision(evict=gone, tokens={} if calm else dict.fromkeys(set(stay) - set(gone), 0))
        # What runs in full may be left out.
        full = {i: max(1, left[i]) for i in tokens}
        return Decision(
            admit=admit,
            evict=evict,
            tokens={i: c for i, c in tokens.items() if c != full[i] or rng.random() < 0.5},
        )

    def blocks(self, tokens: int) -> int:
        """Memory that the KV tokens of a request take."""
        return -(-int(tokens) // self.block) * self.block

    def share(self, left: int, kv: int, room: int, wild: float) -> tuple[int, int]:
        """Tokens for a request with so many in memory: all that fits, or less; and the room that is left."""
        most, free = max(1, left), room + self.blocks(kv) - kv
        if most + self.emitted(left, most) > free:
            most = min(most - 1, max(0, free))
        tokens = int(self.rng.integers(0, most + 1)) if self.rng.random() < wild else most
        after = kv + tokens + self.emitted(left, tokens)
        return tokens, room - self.blocks(after) + self.blocks(kv)

    def emitted(self, left: int, tokens: int) -> int:
        """Whether the chunk completes a prefill that writes an output token."""
        return int(self.emits and left > 0 and tokens == left)


@dataclass
class Interval:
    """What must hold between a decision and the end of the batch or of the waiting that it starts."""

    start: float
    is_batch: bool
    kv: int  # memory in use
    active: int
    inside: int  # requests in the system at the start
    completed: list[int]


class Witness(Policy):
    """Another policy's decisions; predicts the state they lead to and compares at every boundary."""

    def __init__(self, inner: Policy, system: System, table: RequestTable) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]
        self.system, self.table = system, table

    def reset(self, system: SystemInfo) -> None:
        self.inner.reset(system)
        n = len(self.table)
        self.state = {i: (0, int(self.table.prompt_len[i]), 0) for i in range(n)}  # KV, prefill left, outputs
        self.active: list[int] = []
        self.finished: list[int] = []
        self.evictions, self.thrown = [0] * n, [0] * n
        self.prefilled = self.generated = self.members = 0
        self.intervals: list[Interval] = []

    def schedule(self, view: SystemView) -> Decision:
        self.compare(view)
        decision = self.inner.schedule(view)
        self.apply(view.clock, decision)
        return decision

    def compare(self, view: SystemView) -> None:
        """Compare the view with what the last decision must have led to."""
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
            np.testing.assert_array_equal(columns.num_kv_tokens + columns.num_prefill_left, total)
        assert view.kv_tokens == sum(self.state[i][0] for i in self.active)
        assert view.kv_allocated == self.memory() <= view.kv_capacity == self.system.usable_capacity
        assert view.kv_allocated == view.allocated(active.num_kv_tokens).sum()
        worker = view.simulation.worker
        full = sum(self.state[i][0] % self.system.block_size == 0 for i in self.active)
        assert worker["num_full"] == full
        if self.system.requeue == "arrival":
            assert waiting.request_id.tolist() == sorted(waiting.request_id.tolist())

    def apply(self, clock: float, decision: Decision) -> None:
        """Write down what the decision must lead to."""
        for i in decision.evict:
            kv, left, outputs = self.state[i]
            self.active.remove(i)
            self.evictions[i] += 1
            if self.system.progress_on_evict != "kept":
                self.thrown[i] += kv
                outputs = outputs if self.system.progress_on_evict == "recompute" else 0
                self.state[i] = (0, int(self.table.prompt_len[i]) + outputs, outputs)
        self.active += decision.admit
        inside = int((self.table.arrival_time <= clock).sum()) - len(self.finished)
        is_batch, completed = decision.wait_until is None, []
        for i in self.active if is_batch else ():
            kv, left, outputs = self.state[i]
            tokens = decision.tokens.get(i, max(1, left))
            completes = 0 < tokens == left and self.system.first_token == "counted"
            written = int(completes) if left else tokens
            self.members += tokens > 0
            self.prefilled += tokens if left else 0
            self.generated += written
            kv += (tokens if left else 0) + written
            self.state[i] = (kv, left - tokens if left else 0, outputs + written)
            if outputs + written == self.table.output_len[i]:
                completed.append(i)
        self.intervals.append(Interval(clock, is_batch, self.memory(), len(self.active), inside, completed))
        self.active = [i for i in self.active if i not in completed]
        self.finished += completed

    def memory(self) -> int:
        """Tokens of the blocks of the active requests."""
        size = self.system.block_size
        return sum(math.ceil(self.state[i][0] / size) * size for i in self.active)

    def check(self, result: SimulationResult) -> None:
        """Compare records and totals with what was seen; all requests have finished."""
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
        assert system_time == pytest.approx(float((records["finish_time"] - table.arrival_time).sum()))
        assert worker["kv_time"] == pytest.approx(kv_time)
        assert worker["active_time"] == pytest.approx(active_time)
        assert worker["busy_time"] == pytest.approx(float((log["end_time"] - log["start_time"]).sum()))
        assert records["num_evictions"].tolist() == self.evictions
        assert records["num_recomputed_tokens"].tolist() == self.thrown
        assert worker["total_output_tokens"] == self.generated
        assert worker["total_prefill_tokens"] == self.prefilled
        assert worker["total_batch_requests"] == self.members
        assert worker["total_evicted"] == sum(self.evictions)
        assert worker["total_admitted"] == sum(self.evictions) + len(table)
        repeats = self.generated - int(table.output_len.sum())
        assert repeats == 0 or self.system.progress_on_evict == "lost"
        check_records(result)


def check_records(result: SimulationResult) -> None:
    """Check a finished run by its records alone."""
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
    # A gap lies between any two consecutive tokens shown to the user.
    shown = table.output_len + (1 if result.system.first_token == "uncounted" else 0)
    assert result.gap_counts.sum() == (shown - 1).sum()
    spans = records["last_token_time"] - records["first_token_time"]
    assert result.gap_sums.sum() == pytest.approx(spans.sum())
    assert (records["max_token_gap"] <= spans + 1e-9).all()
    assert (records["max_token_gap"][shown > 1] * (shown - 1)[shown > 1] >= spans[shown > 1] - 1e-9).all()


@settings(COMMON, max_examples=120)
@given(tables(), systems(), st.integers(0, 2**32 - 1), st.booleans())
def test_any_feasible_decisions(table: RequestTable, system: System, seed: int, compiled: bool) -> None:
    witness = Witness(RandomPolicy(seed, table), dataclasses.replace(system, stall_limit=5000), table)
    witness.check(simulate(witness.system, table, witness, log=True, compiled=compiled))


@settings(COMMON, max_examples=25)
@given(tables(), systems(), st.integers(0, 1000))
@pytest.mark.parametrize("name", POLICIES)
def test_registered_policies(name: str, table: RequestTable, system: System, seed: int) -> None:
    witness = Witness(make_policy(name), system, table)
    explained = rf"policy '{name}', iteration \d+, t = \S+ s: .*(no progress|never end|keeps it out)"
    try:
        result = simulate(system, table, witness, seed=seed, log=True)
    except LivelockError:
        with pytest.raises(LivelockError, match=explained):
            simulate(system, table, name, seed=seed)
        return
    witness.check(result)
    direct = simulate(system, table, name, seed=seed, log=True)
    assert direct.requests.tobytes() == result.requests.tobytes()
    np.testing.assert_array_equal(direct.log, result.log)
