"""The time to move KV to CPU memory and back, on schedules worked out by hand and compared with its definition.

With progress ``kept`` an evicted request keeps its KV tokens. ``swap_time`` seconds per token are added to the
iteration in which it leaves, and again to the iteration in which it returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import InvalidDecisionError
from kvgym.policies.policy import Decision, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable

FCFS = "work_conserving_fcfs:chunk=2"
POLICIES = (
    "work_conserving_fcfs:chunk=1", FCFS, "work_conserving_sjf:chunk=3", "work_conserving_sjf_lookahead:chunk=2",
    "fcfs", "mc_sf",
)  # fmt: skip


def system(capacity: int, swap_time: float = 0.0, **rules: Any) -> System:
    rules = {"batch_time": UnitBatchTime(), "first_token": "uncounted", "progress_on_evict": "kept", **rules}
    return System(kv_capacity=capacity, swap_time=swap_time, **rules)


def run(
    capacity: int, rows: list[tuple[float, int, int]], swap_time: float, policy: str = FCFS, **rules: Any
) -> SimulationResult:
    """Serve (arrival, prompt, output) rows."""
    arrival, prompt, output = zip(*rows, strict=True)
    table = RequestTable(arrival, prompt, output, predicted_output_len=output)
    return simulate(system(capacity, swap_time, **rules), table, policy, log=True)


def durations(result: SimulationResult) -> list[float]:
    assert result.log is not None
    return (result.log["end_time"] - result.log["start_time"]).tolist()


PAIR = [(0.0, 2, 5), (0.0, 1, 3)]
# M = 8, chunks of 2: 2, 3, 4, 5, 6, 7 and 1, 2, 3, 4. Iterations of 3, 5, 7 tokens; then 5 + 4 > 8: request 1 leaves
# with its 3. 5, 6, 7. It returns when 0 is done, in the seventh: 4.


@pytest.mark.parametrize("compiled", [True, False])
def test_one_leaves_and_returns(compiled: bool) -> None:
    table = RequestTable([0, 0], [2, 1], [5, 3])
    result = simulate(system(8, 0.5), table, FCFS, log=True, compiled=compiled)
    assert durations(result) == [1, 1, 1, 1 + 3 * 0.5, 1, 1, 1 + 3 * 0.5]
    assert result.requests["finish_time"].tolist() == [7.5, 10]
    # Between the second and the third token of request 1 (at 3 and at 10), and at the swap of request 0 (3 and 5.5).
    assert result.requests["max_token_gap"].tolist() == [2.5, 7.0]
    assert result.requests["num_recomputed_tokens"].tolist() == [0, 0]
    worker = result.worker[0]
    assert (worker["total_swapped_tokens"], worker["busy_time"], worker["clock"]) == (6, 10, 10)
    assert worker["kv_time"] == 3 + 5 + 7 + 5 * 2.5 + 6 + 7 + 4 * 2.5


def test_it_adds_to_the_time_of_the_batch() -> None:
    # 0.5 s + 0.25 per prefill token + 0.125 per decode: 3 prefill tokens 1.25; two decodes 0.75; one 0.625.
    time = AffineBatchTime(0.5, per_prefill_token=0.25, per_decode_token=0.125)
    result = run(8, PAIR, 1.0, batch_time=time)
    assert durations(result) == [1.25, 0.75, 0.75, 3.625, 0.625, 0.625, 3.625]


@pytest.mark.parametrize("progress", ["lost", "recompute"])
def test_nothing_is_moved_if_nothing_is_kept(progress: str) -> None:
    slow, free = (run(8, PAIR, swap_time, progress_on_evict=progress) for swap_time in (9.0, 0.0))
    assert slow.requests["num_evictions"].sum() > 0
    assert slow.requests.tobytes() == free.requests.tobytes()
    assert slow.worker["total_swapped_tokens"][0] == 0
    np.testing.assert_array_equal(slow.log, free.log)


# ---------------------------------------------------------------- decisions made by hand


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def by_hand(request: pytest.FixtureRequest) -> Simulation:
    """Return two requests of prompt 3 and 2, output 5, on 12 tokens; 0.5 s per moved token; prefill emits token 1."""
    table = RequestTable([0, 0], [3, 2], [5, 5])
    simulation = Simulation(system(12, 0.5, first_token="counted"), table, log=True, compiled=request.param)
    assert simulation.start()
    return simulation


def last_duration(simulation: Simulation) -> float:
    row = simulation.log[int(simulation.tracker[0]["num_log"]) - 1]
    return float(row["end_time"] - row["start_time"])


def test_one_leaves_as_another_comes(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0, 1]))  # 4 + 3 tokens
    assert last_duration(by_hand) == 1
    by_hand.step(Decision(evict=[1]))  # out: 3
    assert last_duration(by_hand) == 1 + 3 * 0.5
    by_hand.step(Decision())  # 0: 6 tokens; nothing is moved
    assert last_duration(by_hand) == 1
    by_hand.step(Decision(evict=[0], admit=[1]))  # out: 6, in: 3
    assert last_duration(by_hand) == 1 + 9 * 0.5
    by_hand.step(Decision(admit=[0]))  # in: 6
    assert last_duration(by_hand) == 1 + 6 * 0.5
    assert by_hand.worker["total_swapped_tokens"] == 3 + 9 + 6


def test_kv_of_a_half_processed_prompt_is_moved_too(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0], tokens={0: 2}))
    by_hand.step(Decision(evict=[0], admit=[1]))  # out: 2; 1 is new and moves nothing
    assert last_duration(by_hand) == 1 + 2 * 0.5
    by_hand.step(Decision(admit=[0]))  # in: 2, and its last chunk
    assert last_duration(by_hand) == 1 + 2 * 0.5


def test_a_request_that_holds_nothing_is_free_to_move(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0, 1], tokens={0: 0}))
    by_hand.step(Decision(evict=[0]))
    by_hand.step(Decision(admit=[0]))
    assert by_hand.log["end_time"][:3].tolist() == [1, 2, 3]


def test_an_empty_iteration_takes_the_time_of_the_swap_too(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0, 1]))
    by_hand.step(Decision(evict=[0, 1]))  # out: 4 + 3; a stalled round
    assert last_duration(by_hand) == 1 + 7 * 0.5
    by_hand.step(Decision(admit=[0]))
    assert last_duration(by_hand) == 1 + 4 * 0.5
    by_hand.step(Decision(admit=[1]))
    assert last_duration(by_hand) == 1 + 3 * 0.5


def test_a_swap_before_a_wait_adds_to_the_next_batch(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0, 1]))
    by_hand.step(Decision(evict=[1], wait_until=5.0))
    assert by_hand.view.clock == 5
    by_hand.step(Decision())
    assert last_duration(by_hand) == 1 + 3 * 0.5


def test_a_refused_decision_moves_nothing(by_hand: Simulation) -> None:
    by_hand.step(Decision(admit=[0, 1]))
    with pytest.raises(InvalidDecisionError, match="tokens"):
        by_hand.step(Decision(evict=[1], tokens={0: 3}))
    by_hand.step(Decision())
    assert last_duration(by_hand) == 1


# ---------------------------------------------------------------- against its definition


def workload(seed: int, n: int = 40) -> RequestTable:
    rng = np.random.default_rng(seed)
    output = rng.geometric(0.2, n).clip(1, 9)
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(1.0, n)),
        prompt_len=rng.integers(1, 13, n),
        output_len=output,
        predicted_output_len=np.maximum(1, output - rng.integers(0, 5, n)),
    )


@pytest.mark.parametrize("spec", POLICIES)
def test_durations_follow_the_definition(spec: str) -> None:
    policy, swapped = make_policy(spec), 0
    for seed in range(4):
        rules, table = system(25, 0.375, first_token=("counted", "uncounted")[seed % 2]), workload(seed)
        policy.reset(system_info(rules, table, 0, policy.info.needs))
        simulation = Simulation(rules, table, needs=policy.info.needs, log=True)
        moved, running = [], simulation.start()
        while running:
            view, decision = simulation.view, policy.schedule(simulation.view)
            out = np.isin(view.active.request_id, decision.evict)
            back = np.isin(view.waiting.request_id, decision.admit)
            moved.append(int(view.active.num_kv_tokens[out].sum() + view.waiting.num_kv_tokens[back].sum()))
            running = simulation.step(decision)
        log = simulation.log[: len(moved)]
        np.testing.assert_allclose(
            log["end_time"] - log["start_time"], 1 + 0.375 * np.array(moved), rtol=1e-9
        )
        assert simulation.worker["total_swapped_tokens"] == sum(moved)
        swapped += sum(moved)
        assert simulate(rules, table, policy, log=True).requests.tobytes() == simulation.requests.tobytes()
    assert swapped > 50


# ---------------------------------------------------------------- clusters


@pytest.mark.parametrize("progress", ["lost", "recompute", "kept"])
def test_a_transfer_between_workers_is_not_a_swap(progress: str) -> None:
    # Prompts of 4, chunks of 2: prefilled at 2. The transfer takes 0.25 + 4 * 0.125 = 0.75 s, then three decodes.
    batch_time = UnitBatchTime()
    cluster = System.cluster(
        [Worker(20, batch_time, "prefill"), Worker(20, batch_time, "decode")],
        first_token="uncounted",
        progress_on_evict=progress,
        swap_time=0.5,
        transfer_latency=0.25,
        transfer_time=0.125,
    )
    table = RequestTable([0], [4], [3])
    result = simulate(cluster, table, FCFS)
    assert result.requests["first_token_time"].tolist() == [2]
    assert result.requests["finish_time"].tolist() == [2 + 0.75 + 3]
    assert result.worker["total_swapped_tokens"].tolist() == [0, 0]
