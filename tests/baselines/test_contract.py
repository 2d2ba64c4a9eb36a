"""What every registered policy must satisfy, whatever it does. New policies are picked up by themselves."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, LivelockError
from kvgym.policy import NEEDS, POLICIES, Decision, Policy, SystemInfo, make_policy, policy_defaults
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.view import SystemView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

EACH = pytest.mark.parametrize("name", POLICIES)
GOLDEN = Path(__file__).parent.parent / "golden"
UNIT = UnitBatchTime()
TIMES = {"unit": UNIT, "affine": AffineBatchTime(0.31, 0.017, 0.023, 0.0011)}
RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))

# Columns by the need that reveals them; a policy that does not declare it must not depend on them.
REVEALED = {
    "predicted_length": ("predicted_output_len",),
    "length_interval": ("predicted_low", "predicted_high"),
    "class": ("class_id",),
    "slo": ("ttft_slo", "tbt_slo"),
}


def workload(seed: int = 0, n: int = 16, longest: int = 9, exact: bool = False) -> RequestTable:
    """Requests with every column; unless ``exact``, predictions are off by a little."""
    rng = np.random.default_rng(seed)
    output = rng.integers(1, longest + 1, n)
    guess = output if exact else np.maximum(1, output + rng.integers(-1, 2, n))
    return RequestTable.from_columns(
        arrival_time=np.floor(np.cumsum(rng.exponential(1.4, n))),
        prompt_len=rng.integers(1, 9, n),
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 3,
        class_id=rng.integers(0, 2, n),
        priority=rng.integers(0, 3, n),
        ttft_slo=rng.uniform(1, 20, n),
        tbt_slo=rng.uniform(0.5, 4, n),
        classes=(ClassStatistics("short", 0.35, 4.5, 4.0), ClassStatistics("long", 0.35, 4.5, 6.0)),
    )


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    for table in ("requests", "worker", "log", "gap_counts", "gap_sums"):
        a, b = getattr(one, table), getattr(other, table)
        assert a.dtype == b.dtype
        if a.dtype.names is None:
            np.testing.assert_array_equal(a, b, err_msg=table)
        for field in a.dtype.names or ():
            np.testing.assert_array_equal(a[field], b[field], err_msg=f"{table}.{field}")
    assert one.completed == other.completed


class ThroughView(Policy):
    """Another policy, consulted through ``schedule`` as a user's policy would be; keeps its decisions."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]
        self.paused = self.chunked = self.evicted = False

    def reset(self, system: SystemInfo) -> None:
        self.inner.reset(system)

    def schedule(self, view: SystemView) -> Decision:
        decision = self.inner.schedule(view)
        left: dict[int, int] = {}
        for rows in (view.waiting, view.active):
            left.update(zip(rows.request_id.tolist(), rows.num_prefill_left.tolist(), strict=True))
        staying = set(view.active.request_id.tolist()) - set(decision.evict)
        assert decision.tokens.keys() <= staying | set(decision.admit), (
            "tokens for a request that does not run"
        )
        self.paused |= any(count == 0 for count in decision.tokens.values())
        self.chunked |= any(0 < count < left[i] for i, count in decision.tokens.items())
        self.evicted |= len(decision.evict) > 0
        return decision


# ---------------------------------------------------------------- description


@EACH
def test_info_is_complete(name: str) -> None:
    cls = POLICIES[name]
    info = cls.info
    assert info.name == name
    assert name.isidentifier()
    assert name == name.lower()
    assert info.summary
    assert "\n" not in info.summary
    assert info.needs | info.uses <= set(NEEDS)
    assert not info.needs & info.uses
    assert bool(info.algorithm) <= bool(info.paper), "an algorithm number without its paper"
    assert cls.__doc__
    assert cls.__init__.__doc__ or not policy_defaults(cls)


@EACH
def test_there_is_a_golden_trace(name: str) -> None:
    assert (GOLDEN / f"{name}.txt").exists(), (
        f"run python tests/golden/generate.py {name} and check the trace"
    )


@EACH
def test_hyperparameters(name: str) -> None:
    defaults = policy_defaults(POLICIES[name])
    assert make_policy(name).hyperparameters() == {}
    policy = make_policy(name, **defaults)
    assert json.loads(json.dumps(policy.hyperparameters())) == defaults
    assert repr(policy).startswith(f"{name}(")
    spec = name + ":" * bool(defaults) + ",".join(f"{k}={v}" for k, v in defaults.items())
    assert make_policy(spec).hyperparameters() == defaults
    system, table = System(kv_capacity=48, batch_time=UnitBatchTime()), workload()
    runs = [simulate(system, table, p, log=True) for p in (name, policy)]
    assert_equal(*runs)


@EACH
def test_unknown_hyperparameters_are_refused(name: str) -> None:
    for make in (lambda: make_policy(name, no_such_thing=1), lambda: make_policy(f"{name}:no_such_thing=1")):
        with pytest.raises(ConfigError, match="no_such_thing") as error:
            make()
        assert name in str(error.value)
        assert all(parameter in str(error.value) for parameter in policy_defaults(POLICIES[name]))


# ---------------------------------------------------------------- running


@EACH
@pytest.mark.parametrize("time", TIMES)
def test_runs_under_every_rule(name: str, time: str) -> None:
    for first_token, progress, requeue in RULES:
        for seed, block_size in enumerate((1, 1, 4)):
            system = System(
                kv_capacity=48,
                batch_time=TIMES[time],
                first_token=first_token,
                progress_on_evict=progress,
                requeue=requeue,
                block_size=block_size,
            )
            table = workload(seed, exact=True)
            try:
                result = simulate(system, table, name, log=True)
            except LivelockError as error:
                pytest.fail(f"{first_token}, {progress}, {requeue}, workload {seed}: {error}")
            r = result.requests
            assert result.completed
            assert (r["start_time"] >= table.arrival_time).all()
            assert (r["first_token_time"] > r["start_time"]).all()
            assert (r["finish_time"] >= r["first_token_time"]).all()
            assert (r["num_output_tokens"] == table.output_len).all()
            assert result.log is not None
            assert (result.log["kv_tokens"] <= 48).all()
            assert bool(r["num_evictions"].any()) <= result.policy.info.evicts


@EACH
@pytest.mark.parametrize("time", TIMES)
def test_compiled_uncompiled_and_through_the_view_are_equal(name: str, time: str) -> None:
    for k, (first_token, progress, requeue) in enumerate(RULES[j] for j in (0, 4, 8, 12, 17, 21, 25)):
        system = System(
            kv_capacity=32,  # tight, so that evictions happen; a livelock is one in each of the four
            batch_time=TIMES[time],
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
            stall_limit=100,
            block_size=(1, 4, 1, 5, 1, 8, 3)[k],
        )
        outcomes: list[Any] = []
        for through, compiled in ((False, True), (False, False), (True, True), (True, False)):
            policy = make_policy(name)
            chosen = ThroughView(policy) if through else policy
            try:
                outcomes.append(
                    simulate(system, workload(k, 12), chosen, seed=k, log=True, compiled=compiled)
                )
            except LivelockError as error:
                outcomes.append(str(error))
        for other in outcomes[1:]:
            if isinstance(outcomes[0], str) or isinstance(other, str):
                assert outcomes[0] == other
            else:
                assert_equal(outcomes[0], other)


@EACH
def test_step_by_step_is_equal_where_many_short_prompts_outgrow_the_memory(name: str) -> None:
    """Rounds that evict some, and still do not fit, say nothing of those that are evicted."""
    for progress, seed in itertools.product(PROGRESS_ON_EVICT, range(3)):
        n = 24
        table = workload(seed, n, longest=12).replace(
            arrival_time=np.zeros(n), prompt_len=np.ones(n, dtype=int)
        )
        system = System(kv_capacity=18, batch_time=UNIT, progress_on_evict=progress, stall_limit=100)
        outcomes: list[Any] = []
        for policy in (make_policy(name), ThroughView(make_policy(name))):
            try:
                outcomes.append(simulate(system, table, policy, seed=seed, log=True))
            except LivelockError as error:
                outcomes.append(str(error))
        if isinstance(outcomes[0], str) or isinstance(outcomes[1], str):
            assert outcomes[0] == outcomes[1]
        else:
            assert_equal(outcomes[0], outcomes[1])


@EACH
def test_declared_powers_are_those_used(name: str) -> None:
    for k, (first_token, progress, requeue) in enumerate(RULES[::3]):
        system = System(
            kv_capacity=32,
            batch_time=UnitBatchTime(),
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
            stall_limit=60,
        )
        policy = ThroughView(make_policy(name))
        with contextlib.suppress(LivelockError):
            simulate(system, workload(k), policy, seed=k)
        used = {"pauses": policy.paused, "chunks_prefill": policy.chunked, "evicts": policy.evicted}
        for power, seen in used.items():
            assert seen <= getattr(policy.info, power), f"{power} is declared False"


# ---------------------------------------------------------------- reproducibility

SYSTEM = System(kv_capacity=48, batch_time=TIMES["affine"])


def digest(name: str) -> str:
    """Hash of everything two runs leave behind."""
    total = hashlib.sha256()
    for seed in (0, 1):
        result = simulate(SYSTEM, workload(seed), name, seed=seed, log=True)
        for table in (result.requests, result.worker, result.log, result.gap_counts, result.gap_sums):
            assert table is not None
            for field in table.dtype.names or ():
                total.update(np.ascontiguousarray(table[field]).tobytes())
            if table.dtype.names is None:
                total.update(table.tobytes())
    return total.hexdigest()


@EACH
def test_same_seed_same_bits_also_reused_and_pickled(name: str) -> None:
    table = workload(3)
    policy = make_policy(name)
    reference = simulate(SYSTEM, table, policy, seed=7, log=True)
    simulate(SYSTEM, workload(4), policy, seed=8)  # reset must forget this
    restored = pickle.loads(pickle.dumps(policy))
    assert repr(restored) == repr(policy)
    for other in (policy, restored, make_policy(name)):
        assert_equal(reference, simulate(SYSTEM, table, other, seed=7, log=True))


def test_same_bits_in_another_process() -> None:
    code = (
        "import importlib.util, json, sys\n"
        f"spec = importlib.util.spec_from_file_location('contract', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(json.dumps({name: module.digest(name) for name in module.POLICIES}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "123"},
    )
    assert json.loads(done.stdout) == {name: digest(name) for name in POLICIES}


# ---------------------------------------------------------------- information


@EACH
def test_undeclared_columns_do_not_matter(name: str) -> None:
    rng = np.random.default_rng(1)
    needs = POLICIES[name].info.needs | POLICIES[name].info.uses
    for seed in range(4):
        table = workload(seed)
        reference = simulate(SYSTEM, table, name, log=True)
        for need, columns in REVEALED.items():
            if need in needs:
                continue
            shuffled = np.stack([getattr(table, column) for column in columns])[
                :, rng.permutation(len(table))
            ]
            for values in (dict(zip(columns, shuffled, strict=True)), dict.fromkeys(columns)):
                other = simulate(SYSTEM, table.replace(**values), name, log=True)  # type: ignore[arg-type]
                for field in ("start_time", "first_token_time", "finish_time", "num_evictions"):
                    np.testing.assert_array_equal(
                        other.requests[field], reference.requests[field], err_msg=need
                    )
                np.testing.assert_array_equal(other.log, reference.log)


@EACH
def test_hidden_columns_are_blank(name: str) -> None:
    """What a compiled policy can reach holds nothing that it did not declare."""
    needs = POLICIES[name].info.needs | POLICIES[name].info.uses
    table = workload()
    records = simulate(SYSTEM, table, name).requests
    for need, column, blank in (
        ("true_length", "output_len", -1),
        ("predicted_length", "predicted_len", -1),
        ("length_interval", "predicted_low", -1),
        ("length_interval", "predicted_high", -1),
        ("class", "class_id", -1),
        ("slo", "ttft_slo", np.inf),
        ("slo", "tbt_slo", np.inf),
    ):
        if need not in needs:
            assert (records[column] == blank).all(), column


@EACH
def test_the_future_does_not_matter(name: str) -> None:
    """Until a request has finished, its true length does not show; until it has arrived, nothing of it does."""
    needs = POLICIES[name].info.needs
    for seed in range(4):
        rng = np.random.default_rng(seed)
        base = workload(seed, n=20, longest=3)
        until = 8.0
        late = base.arrival_time > until
        columns = {column: values.copy() for column, values in base.columns().items()}
        for values in columns.values():
            values[late] = values[late][rng.permutation(int(late.sum()))]
        columns["arrival_time"][late] = until + 1 + rng.integers(0, 20, int(late.sum()))
        tables = [base, RequestTable.from_columns(classes=base.classes, **columns)]
        if "true_length" not in needs:
            # No request can finish within 9 iterations, whatever else its length is.
            tables = [
                table.replace(output_len=10 + 7 * k + table.output_len) for k, table in enumerate(tables)
            ]
            tables = [table.replace(predicted_output_len=base.predicted_output_len) for table in tables]
        system = System(kv_capacity=48, batch_time=UnitBatchTime(), horizon=until)
        logs = [simulate(system, table, name, log=True).log for table in tables]
        assert all(log is not None for log in logs)
        early = [log[log["start_time"] < until] for log in logs if log is not None]
        np.testing.assert_array_equal(early[0], early[1])
        assert len(early[0]) > 0
