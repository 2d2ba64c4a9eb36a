"""Memory in blocks of several tokens: the engine, worked by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from helpers.runs.runs_by_hand import Make, finish, log_of, rows, run
from kvgym import RequestTable, System, compute_metrics, simulate
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, InvalidDecisionError, WorkloadError
from kvgym.metrics.compute import worker_metrics
from kvgym.policies.policy import Decision
from kvgym.simulator.blocks import whole_blocks as compiled_whole_blocks
from kvgym.simulator.system import Worker

UNIT = UnitBatchTime()
whole_blocks = uncompiled(compiled_whole_blocks)


def memory(simulation: Any) -> tuple[int, int]:
    """Return the KV tokens of the active requests, and their allocated memory."""
    return simulation.view.kv_tokens, simulation.view.kv_allocated


# ---------------------------------------------------------------- the setting


@pytest.mark.parametrize("size", [0, -4, 1.5, True, "16", None])
def test_a_block_is_a_whole_number_of_tokens(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"block_size = .*expected a whole number of tokens ≥ 1"):
        System(20, UNIT, block_size=size)


@pytest.mark.parametrize("size", [1, 3, 16, 24])
def test_whole_blocks_among_tokens(size: int) -> None:
    assert [whole_blocks(size, tokens) for tokens in range(100)] == [t // size * size for t in range(100)]


def test_a_block_fits_into_every_worker() -> None:
    assert System(20, UNIT, block_size=20).usable_capacity == 20
    with pytest.raises(ConfigError, match=r"block_size = 21, but a worker has kv_capacity = 20"):
        System(20, UNIT, block_size=21)
    workers = [Worker(9, UNIT, "prefill"), Worker(30, UNIT, "decode")]
    with pytest.raises(ConfigError, match=r"block_size = 16, but a worker has kv_capacity = 9"):
        System.cluster(workers, block_size=16)


def test_only_whole_blocks_can_be_used() -> None:
    system = System.cluster([Worker(23, UNIT, "prefill"), Worker(30, UNIT, "decode")], block_size=8)
    assert system.kv_capacity == 30
    assert system.usable_capacity == 24
    assert system.usable_capacities.tolist() == [16, 24]
    assert dataclasses.replace(system, block_size=np.int64(5)).usable_capacities.tolist() == [20, 30]
    table = RequestTable([0, 0], [8, 15], [16, 9])
    system.check_fits(table)  # 24 tokens each, and 16 on the prefill worker
    with pytest.raises(WorkloadError, match=r"kv_capacity = 24 tokens in blocks of 8 \(longest: request 0"):
        system.check_fits(table.replace(output_len=[17, 9]))
    with pytest.raises(WorkloadError, match=r"kv_capacity = 16 tokens in blocks of 8 \(longest: request 1"):
        system.check_fits(table.replace(prompt_len=[7, 16], output_len=[16, 8]))


# ---------------------------------------------------------------- schedules


def test_admission_that_tokens_would_allow(make: Make) -> None:
    """A memory of two blocks of 4: 3 tokens take one, 5 take both; 8 tokens would fit."""
    simulation = make([(0, 2, 2), (0, 4, 1)], M=8, block_size=4)
    with pytest.raises(
        InvalidDecisionError, match=r"request 1.*needs 12 KV tokens in blocks of 4, kv_capacity is 8"
    ):
        simulation.step(Decision(admit=[0, 1]))
    run(simulation, Decision(admit=[0]))
    assert memory(simulation) == (3, 4)
    assert make([(0, 2, 2), (0, 4, 1)], M=8).step(Decision(admit=[0, 1]))  # counted in tokens


def test_growth_takes_memory_only_where_a_block_begins(make: Make) -> None:
    simulation = make([(0, 1, 6), (0, 2, 3)], M=11, block_size=4)  # two blocks: the last 3 tokens are lost
    assert simulation.view.kv_capacity == 8
    run(simulation, Decision(admit=[0, 1]))
    assert rows(simulation.view.active) == {0: (2, 0, 1), 1: (3, 0, 1)}
    assert memory(simulation) == (5, 8)
    run(simulation, Decision())  # both write into the blocks they have
    assert memory(simulation) == (7, 8)
    with pytest.raises(
        InvalidDecisionError, match=r"its active requests.*needs 12 KV tokens.*8 tokens in use"
    ):
        simulation.step(Decision())  # request 1 begins a second block
    run(simulation, Decision(tokens={1: 0}))  # request 0 fills its first
    assert memory(simulation) == (8, 8)
    run(simulation, Decision(evict=[1]))
    assert memory(simulation) == (5, 8)
    run(simulation, Decision(), Decision(), Decision(admit=[1]))
    finish(simulation)
    assert simulation.requests["finish_time"].tolist() == [6, 9]
    # In use while a batch runs: request 1 is evicted at 4 and returns at 6, when request 0 is done.
    assert log_of(simulation)["kv_tokens"].tolist() == [8, 8, 8, 8, 8, 8, 4, 4, 8]
    worker = simulation.workers[0]
    assert (worker["peak_kv_tokens"], worker["kv_time"]) == (8, 64.0)
    assert (worker["kv_tokens"], worker["kv_allocated"], worker["num_full"]) == (0, 0, 0)


def test_a_chunk_inside_a_block(make: Make) -> None:
    simulation = make([(0, 7, 1), (0, 2, 2)], M=12, block_size=4)
    run(simulation, Decision(admit=[0, 1], tokens={0: 2}))
    assert memory(simulation) == (2 + 3, 8)
    run(simulation, Decision(tokens={0: 2, 1: 0}))
    assert memory(simulation) == (4 + 3, 8)
    assert not simulation.step(Decision(tokens={0: 3}))  # the rest, and an output token: a second block
    assert log_of(simulation)["kv_tokens"].tolist() == [8, 8, 12]


@pytest.mark.parametrize("first_token", ["counted", "uncounted"])
def test_an_output_token_may_begin_a_block(make: Make, first_token: str) -> None:
    """A prompt of a whole block: if its prefill writes output token 1, that takes another block."""
    simulation = make([(0, 4, 2)], M=8, block_size=4, first_token=first_token)
    run(simulation, Decision(admit=[0]))
    assert memory(simulation) == ((5, 8) if first_token == "counted" else (4, 4))
    assert simulation.view.active.num_kv_tokens.tolist() == [memory(simulation)[0]]


def test_kept_kv_returns_in_blocks(make: Make) -> None:
    simulation = make([(0, 4, 4), (0, 3, 2)], M=12, block_size=4, progress_on_evict="kept", swap_time=0.5)
    run(simulation, Decision(admit=[0, 1]))
    run(simulation, Decision(evict=[0]))  # 5 tokens are moved, not 8
    assert simulation.view.clock == 2 + 5 * 0.5
    assert rows(simulation.view.waiting) == {0: (5, 0, 1)}
    assert simulation.view.kv_allocated == 0  # request 1 is done
    run(simulation, Decision(admit=[0], wait_until=9.0))
    assert memory(simulation) == (5, 8)
    finish(simulation)
    assert simulation.workers["total_swapped_tokens"].tolist() == [10]


def test_random_waits_and_evictions_leave_nothing_behind(make: Make) -> None:
    rng = np.random.default_rng(3)
    simulation = make([(0, 5, 40)], M=64, block_size=5, progress_on_evict="recompute")
    going = True
    while going:
        here, left = simulation.view.active, simulation.view.waiting.num_prefill_left
        if len(here) == 0:
            going = simulation.step(Decision(admit=[0], tokens={0: int(rng.integers(0, left[0] + 1))}))
        elif rng.random() < 0.2:
            going = simulation.step(Decision(evict=[0]))
        else:
            going = simulation.step(Decision())
        assert (
            simulation.view.kv_allocated
            == simulation.view.allocated(simulation.view.active.num_kv_tokens).sum()
        )
    assert simulation.workers["total_evicted"][0] > 3
    assert (log_of(simulation)["kv_tokens"] % 5 == 0).all()


# ---------------------------------------------------------------- views, metrics, clusters


def test_what_a_policy_in_python_sees(make: Make) -> None:
    simulation = make([(0, 6, 3), (0, 3, 3)], M=21, block_size=4)
    run(simulation, Decision(admit=[0, 1]))
    view = simulation.view
    assert (view.block_size, view.kv_capacity, view.kv_tokens, view.kv_allocated) == (4, 20, 11, 12)
    assert view.allocated([0, 1, 4, 5]).tolist() == [0, 4, 4, 8]
    assert view.allocated(view.active.num_kv_tokens + 1).tolist() == [8, 8]
    assert int(view.allocated(9)) == 12


def test_shares_of_memory_are_of_whole_blocks() -> None:
    """One request of 3 + 2 tokens in a memory of 11, of which 8 can be used: 4 in round 1, 8 in round 2."""
    table = RequestTable([0], [3], [2])
    result = simulate(System(11, UNIT, block_size=4), table, "fcfs", log=True)
    metrics = compute_metrics(result)
    assert metrics["kv_utilisation"] == (4 + 8) / (8 * 2)
    assert metrics["kv_peak"] == 1.0
    (row,) = worker_metrics(result)
    assert (row["kv_capacity"], row["kv_utilisation"], row["kv_peak"]) == (8, 0.75, 1.0)


@pytest.mark.parametrize(("block_size", "together"), [(1, 2), (4, 1)])
def test_a_decode_worker_counts_blocks(block_size: int, together: int) -> None:
    """Two requests arrive with 4 KV tokens; the next token makes 5 each: 10 of 12 tokens, or 4 of 3 blocks."""
    table = RequestTable([0, 0], [3, 3], [3, 3])
    workers = [Worker(12, UNIT, "prefill"), Worker(12, UNIT, "decode")]
    system = System.cluster(workers, block_size=block_size, transfer_time=0.25)
    result = simulate(system, table, "fcfs", log=True)
    assert result.completed
    assert result.log is not None
    log = result.log[result.log["worker"] == 1]
    assert log["num_active"].max() == together
    assert log["start_time"][0] == 1 + 4 * 0.25  # tokens are sent, not blocks
    assert (log["kv_tokens"] <= 12).all()
