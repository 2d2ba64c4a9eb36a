"""Work-conserving scheduling with chunked prefill on schedules worked out by hand.

Notation in comments: s prompt, o output, p predicted output, c chunk, M memory. Unless stated otherwise the first
token is uncounted, as in the paper: a request takes c, 2c, …, s and then s + 1, …, s + o tokens, one after another.
Sums list requests in order of activation; a sum above the memory is followed by >.
"""

from __future__ import annotations

from typing import Any

import pytest

from helpers.runs import schedules
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable

FCFS, SJF = "work_conserving_fcfs", "work_conserving_sjf"
FCFS_AHEAD, SJF_AHEAD = FCFS + "_lookahead", SJF + "_lookahead"
NAMES = (FCFS, SJF, FCFS_AHEAD, SJF_AHEAD)
ALL = pytest.mark.parametrize("name", NAMES)


def run(name: str, chunk: int, *schedule: Any, **system: Any) -> SimulationResult:
    separator = "," if ":" in name else ":"
    return schedules.run(
        f"{name}{separator}chunk={chunk}", *schedule, **{"first_token": "uncounted", **system}
    )


# ---------------------------------------------------------------- shared by all four


@ALL
@pytest.mark.parametrize(
    ("chunk", "first_token", "kv", "first"),
    [
        # s 5, o 3, M = 8: fills the memory with its last token.
        (1, "uncounted", [1, 2, 3, 4, 5, 6, 7, 8], 5),
        (2, "uncounted", [2, 4, 5, 6, 7, 8], 3),  # the last chunk is one token
        (3, "uncounted", [3, 5, 6, 7, 8], 2),
        (5, "uncounted", [5, 6, 7, 8], 1),
        (8, "uncounted", [5, 6, 7, 8], 1),
        (512, "uncounted", [5, 6, 7, 8], 1),  # longer than the memory
        # The last chunk writes token 1.
        (1, "counted", [1, 2, 3, 4, 6, 7, 8], 5),
        (2, "counted", [2, 4, 6, 7, 8], 3),
        (512, "counted", [6, 7, 8], 1),
        # Nothing is shown before the first decode.
        (2, "decode", [2, 4, 5, 6, 7, 8], 4),
        (512, "decode", [5, 6, 7, 8], 2),
    ],
)
def test_one_request(name: str, chunk: int, first_token: str, kv: list[int], first: int) -> None:
    result = run(name, chunk, 8, [0], [5], [3], first_token=first_token)
    check(result, start=[0], finish=[len(kv)], kv=kv, first=[first])


@ALL
def test_mixed_batches(name: str) -> None:
    # M = 20, c 2. 0 (s 1, o 4): 1, 2, 3, 4, 5; 1 (s 5, o 1): 2, 4, 5, 6. One chunk and one decode per iteration.
    result = run(name, 2, 20, [0, 0], [1, 5], [4, 1])
    check(result, start=[0, 0], finish=[5, 4], kv=[3, 6, 8, 10, 5], first=[1, 3])
    log = result.log
    assert log is not None
    assert log["num_prefills"].tolist() == [2, 1, 1, 0, 0]
    assert log["prefill_tokens"].tolist() == [3, 2, 1, 0, 0]
    assert log["num_decodes"].tolist() == [0, 1, 1, 2, 1]


@ALL
def test_memory_is_the_only_token_budget(name: str) -> None:
    # Ten prompts of 5 in chunks of 2, M = 100: a chunk of each, 20, 40, then 50; one decode each, 60.
    result = run(name, 2, 100, [0] * 10, [5] * 10, [1] * 10)
    check(result, start=[0] * 10, finish=[4] * 10, kv=[20, 40, 50, 60])
    assert result.log is not None
    assert result.log["prefill_tokens"].tolist() == [20, 20, 10, 0]


@ALL
def test_iterations_of_other_durations(name: str) -> None:
    # As above with 0.5 s per batch, 0.25 s per prefill token and 0.125 s per decode. Batches: 3 prefill tokens 1.25;
    # 2 and a decode 1.125; 1 and a decode 0.875; two decodes 0.75; one 0.625.
    time = AffineBatchTime(0.5, per_prefill_token=0.25, per_decode_token=0.125)
    result = run(name, 2, 20, [0, 0], [1, 5], [4, 1], batch_time=time)
    check(result, start=[0, 0], finish=[4.625, 4.0], first=[1.25, 3.25])


@ALL
def test_arrivals_at_completion_between_rounds_and_after_idleness(name: str) -> None:
    # M = 5, c 9. 0, 1, 2 (s 3, o 2): 3, 4, 5. 1 arrives as 0 finishes, 2 within 1's first round: at t=4 4+3 = 7>.
    # 3 (s 1, o 1) finds the worker idle; 4 (s 4, o 1) fills the memory and waits: at t=11.5 2+4 = 6>.
    result = run(name, 9, 5, [0, 3, 3.5, 10.5, 10.7], [3, 3, 3, 1, 4], [2, 2, 2, 1, 1])
    check(
        result,
        start=[0, 3, 6, 10.5, 12.5],
        finish=[3, 6, 9, 12.5, 14.5],
        kv=[3, 4, 5, 3, 4, 5, 3, 4, 5, 1, 2, 4, 5],
    )


@ALL
def test_ties_by_id(name: str) -> None:
    # M = 4, five of s 1, o 1: 1, 2. Look-ahead: two at a time. Else t=0: 1+1+1+1; t=1: 8>: 3 and 2 are evicted, 2+2;
    # t=2: 1+1+1; t=3: 6>: 4 is evicted, 2+2; t=4: 1; t=5: 2.
    result = run(name, 1, 4, [0] * 5, [1] * 5, [1] * 5)
    if name in (FCFS_AHEAD, SJF_AHEAD):
        check(result, start=[0, 0, 2, 2, 4], finish=[2, 2, 4, 4, 6], kv=[2, 4, 2, 4, 1, 2])
    else:
        check(result, [0, 0, 0, 0, 2], [2, 2, 4, 4, 6], evictions=[0, 0, 1, 1, 1], kv=[4, 4, 3, 4, 1, 2])
        # Swapped, they return with one token. t=2: 2+2, 4 does not fit; t=3: 1; t=4: 2.
        kept = run(name, 1, 4, [0] * 5, [1] * 5, [1] * 5, progress_on_evict="kept")
        check(kept, [0, 0, 0, 0, 3], [2, 2, 3, 3, 5], evictions=[0, 0, 1, 1, 0], kv=[4, 4, 4, 1, 2])


@ALL
def test_descriptions(name: str) -> None:
    info = POLICIES[name].info
    assert info.needs == (set() if name == FCFS else {"predicted_length"})
    assert (info.chunks_prefill, info.pauses, info.evicts) == (True, False, True)
    assert "Stability Analysis" in info.paper
    assert make_policy(name).hyperparameters() == {}
    assert make_policy(name, chunk=7).hyperparameters() == {"chunk": 7}


@ALL
def test_the_default_chunk_is_512(name: str) -> None:
    table = RequestTable.from_columns(
        arrival_time=[0], prompt_len=[1100], output_len=[1], predicted_output_len=[1]
    )
    system = System(kv_capacity=2000, batch_time=UnitBatchTime(), first_token="uncounted")
    check(simulate(system, table, name, log=True), start=[0], finish=[4], kv=[512, 1024, 1100, 1101])


@ALL
def test_predictions_are_required_where_needed(name: str) -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    system = System(kv_capacity=9, batch_time=UnitBatchTime())
    if name == FCFS:
        assert simulate(system, table, name).completed
    else:
        with pytest.raises(ConfigError, match="predicted_output_len"):
            simulate(system, table, name)


@ALL
def test_a_request_longer_than_the_memory_is_refused(name: str) -> None:
    check(run(name, 3, 8, [0], [5], [3]), start=[0], finish=[5])
    with pytest.raises(WorkloadError, match="can never be served"):
        run(name, 3, 7, [0], [5], [3])


# ---------------------------------------------------------------- order, overflow and returning requests

THREE = (2, 6, [0, 0, 0], [4, 4, 1], [1, 1, 1])
# c 2, M = 6. 0 and 1 (s 4, o 1): 2, 4, 5; 2 (s 1, o 1): 1, 2. Total work 5, 5, 2.


@pytest.mark.parametrize(
    ("name", "progress", "start", "finish", "evictions", "kv"),
    [
        # t=0: 2+2+1. t=1: 4+4+2 = 10>: 2 is evicted, 8>: 1 is evicted, 4; 2 would fit now (4+1), but none starts when
        # one goes. t=2: 5; 1 blocks (5+2 = 7>) though 2 would fit. t=3: 2+1. t=4: 4+2. t=5: 5.
        (FCFS, "lost", [0, 0, 0], [3, 6, 5], [0, 1, 1], [5, 4, 5, 3, 6, 5]),
        # None had an output token yet.
        (FCFS, "recompute", [0, 0, 0], [3, 6, 5], [0, 1, 1], [5, 4, 5, 3, 6, 5]),
        # t=3: 1 has kept 2, 2 has kept 1: 4+2. t=4: 5.
        (FCFS, "kept", [0, 0, 0], [3, 5, 4], [0, 1, 1], [5, 4, 5, 6, 5]),
        # t=0: 2 first: 1+2+2. t=1: 2+4+4 = 10>: 1 is evicted, 6. t=2: 5; 1 blocks. t=3: 2. t=4: 4. t=5: 5.
        (SJF, "lost", [0, 0, 0], [3, 6, 2], [0, 1, 0], [5, 6, 5, 2, 4, 5]),
        # t=3: 1 has kept 2: 4. t=4: 5.
        (SJF, "kept", [0, 0, 0], [3, 5, 2], [0, 1, 0], [5, 6, 5, 4, 5]),
        # t=0: 2, 4, 5 with itself is 4, 8>. t=1: 4, 5 with 2, 4: 6, 9>. t=2: 5+2 = 7>. t=3: 2, 4, 5 with 1, 2: 3, 6, 5.
        (FCFS_AHEAD, "lost", [0, 3, 3], [3, 6, 5], None, [2, 4, 5, 3, 6, 5]),
        # t=0: 1, 2 with 2, 4, 5: 3, 6, 5; another: 5, 10>. t=1: 6 is full. t=2: 5+2 = 7>. t=3: 2, 4, 5.
        (SJF_AHEAD, "lost", [0, 3, 0], [3, 6, 2], None, [3, 6, 5, 2, 4, 5]),
    ],
)
def test_three_requests(
    name: str,
    progress: str,
    start: list[float],
    finish: list[float],
    evictions: list[int] | None,
    kv: list[int],
) -> None:
    check(run(name, *THREE, progress_on_evict=progress), start, finish, evictions=evictions, kv=kv)


def test_requeue_matters_under_first_come_first_served() -> None:
    # At the back the newest, which goes first, is ahead: t=2: 5+1, then 1: 8>. t=3: 2 leaves with 2; 2+2 = 4. t=4: 4.
    check(
        run(FCFS, *THREE, requeue="back"),
        [0, 0, 0],
        [3, 6, 4],
        evictions=[0, 1, 1],
        kv=[5, 4, 6, 4, 4, 5],
        first=[2, 5, 1],
    )
    check(
        run(FCFS, *THREE, requeue="front"), [0, 0, 0], [3, 6, 5], evictions=[0, 1, 1], kv=[5, 4, 5, 3, 6, 5]
    )


RETURN = (8, [0, 0], [2, 1], [5, 3])
# M = 8. 0 (s 2, o 5), c 2: 2, 3, 4, 5, 6, 7; 1 (s 1, o 3): 1, 2, 3, 4. t=0: 2+1. t=1: 3+2. t=2: 4+3. t=3: 5+4 = 9>: 1
# is evicted with two tokens made and 3 in memory; 5.


@pytest.mark.parametrize("name", [FCFS, SJF])
@pytest.mark.parametrize("requeue", ["arrival", "front", "back"])
@pytest.mark.parametrize(
    ("chunk", "progress", "finish", "evictions", "kv"),
    [
        # t=4: 6+1. t=5: 7+2 = 9>: 1 is evicted, 7. t=6: 1, 2, 3, 4.
        (2, "lost", [6, 10], 2, [3, 5, 7, 5, 7, 7, 1, 2, 3, 4]),
        # 3 tokens to prefill again. t=4: 6+2. t=5: 7+3 = 10>: 1 is evicted, 7. t=6: 2, 3 and the last token: 4.
        (2, "recompute", [6, 9], 2, [3, 5, 7, 5, 8, 7, 2, 3, 4]),
        # t=4: 6+3 = 9>, t=5: 7+3>: not until 0 is done, t=6: 3, 4.
        (3, "recompute", [6, 8], 1, [3, 5, 7, 5, 6, 7, 3, 4]),
        # One token at a time 0 is behind: 1, 2, 3, 4, 5, 6, 7. t=0: 1+1. t=1: 2+2. t=2: 3+3. t=3: 4+4: 1 is done.
        (1, "recompute", [7, 4], 0, [2, 4, 6, 8, 5, 6, 7]),
        # t=4: 6+4 = 10>, t=5: 7+4>, t=6: 4.
        (2, "kept", [6, 7], 1, [3, 5, 7, 5, 6, 7, 4]),
    ],
)
def test_returning_requests(
    name: str, requeue: str, chunk: int, progress: str, finish: list[float], evictions: int, kv: list[int]
) -> None:
    args = (chunk, 8, *RETURN[1:])
    if name == SJF:  # total work 7 and 4: another order, so make them alike
        args = (*args, [2, 3])
    result = run(name, *args, progress_on_evict=progress, requeue=requeue)
    check(result, [0, 0], finish, evictions=[0, evictions], kv=kv, first=[3 - min(chunk, 2), 1])


def test_recomputing_when_the_last_chunk_writes_a_token() -> None:
    # 0: 3, 4, 5, 6, 7; 1: 2, 3, 4. t=0: 3+2. t=1: 4+3. t=2: 5+4 = 9>: 1 is evicted with two tokens; 5. t=3: 6+2.
    # t=4: 7+4 = 11>, as its last chunk of 1 writes the last token: 1 is evicted, 7. t=5: 2. t=6: 4.
    result = run(FCFS, 2, *RETURN, first_token="counted", progress_on_evict="recompute")
    check(result, [0, 0], [5, 7], evictions=[0, 2], kv=[5, 7, 5, 8, 7, 2, 4], first=[1, 1])


def test_eviction_decisions_newest_first() -> None:
    table = RequestTable.from_columns(arrival_time=[0] * 6, prompt_len=[4] * 6, output_len=[3] * 6)
    system = System(kv_capacity=12, batch_time=UnitBatchTime(), first_token="uncounted")
    policy = make_policy(FCFS, chunk=2)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    simulation = Simulation(system, table)
    assert simulation.start()
    decision = policy.schedule(simulation.view)
    assert (list(decision.evict), list(decision.admit)) == ([], [0, 1, 2, 3, 4, 5])
    assert decision.tokens == dict.fromkeys(range(6), 2)
    assert simulation.step(decision)
    # 6 * 4 = 24>, 20>, 16>, 12. The last chunks run in full.
    decision = policy.schedule(simulation.view)
    assert (list(decision.evict), list(decision.admit), decision.tokens) == ([5, 4, 3], [], {})


@pytest.mark.parametrize("requeue", ["arrival", "front", "back"])
def test_shortest_job_first_is_by_prompt_and_output(requeue: str) -> None:
    # M = 6, c 9. 0 (s 5, o 1), 1 (s 1, o 4), 2 (s 3, o 3): total 6, 5, 6. t=0: 1+5, then 2: 9>. t=1: 2+6 = 8>: 0
    # goes. It keeps its place before 2, and blocks it: 2+6>, …. t=5: 1 is done; 6. t=6: 2: 3, 4, 5, 6.
    args = (9, 6, [0, 0, 0], [5, 1, 3], [1, 4, 3])
    result = run(SJF, *args, progress_on_evict="kept", requeue=requeue)
    check(result, [0, 0, 6], [6, 5, 10], evictions=[1, 0, 0], kv=[6, 2, 3, 4, 5, 6, 3, 4, 5, 6])
    # With look-ahead: 1, …, 5 with 5, 6: 6, 8>; t=4: 5+5>. t=5: 5, 6. t=7: 3, 4, 5, 6.
    result = run(SJF_AHEAD, *args, requeue=requeue)
    check(result, [5, 0, 7], [7, 5, 11], kv=[1, 2, 3, 4, 5, 5, 6, 3, 4, 5, 6])


def test_shortest_job_first_goes_by_the_prediction() -> None:
    # M = 4 = s + o of each, one at a time. Predicted total 4 and 3: 1 first, though they are alike.
    check(
        run(SJF, 9, 4, [0, 0], [2, 2], [2, 2], [2, 1]),
        [0, 0],
        [6, 3],
        evictions=[1, 0],
        kv=[4, 3, 4, 2, 3, 4],
    )
    # First come, first served does not know.
    check(
        run(FCFS, 9, 4, [0, 0], [2, 2], [2, 2], [2, 1]),
        [0, 0],
        [3, 6],
        evictions=[0, 1],
        kv=[4, 3, 4, 2, 3, 4],
    )


@pytest.mark.parametrize(
    ("spec", "start", "finish", "evictions", "kv"),
    [
        # t=2: 5; 1 blocks (5+5>). t=3: 5, then 3. t=4: 6+4>: 2 is evicted with 3; 6. t=5: 4.
        (SJF, [0, 0, 3], [3, 5, 6], [0, 1, 1], [7, 4, 5, 8, 6, 4]),
        # t=2: 5, and 2, which is shorter: 3. t=3: 4; 1 blocks (4+5>). t=4: 5. t=5: 6.
        (f"{SJF}:resume=by_work", [0, 0, 2], [3, 6, 4], [0, 1, 0], [7, 4, 8, 4, 5, 6]),
    ],
)
def test_swapped_out_requests_go_before_new_ones(
    spec: str, start: list[float], finish: list[float], evictions: list[int], kv: list[int]
) -> None:
    # M = 8, c 9. 0 (s 3, o 2): 3, 4, 5; 1 (s 4, o 2): 4, 5, 6; 2 (s 3, o 1) arrives at t=2: 3, 4. Total 5, 6, 4.
    # t=0: 3+4. t=1: 4+5>: 1 is evicted with 4; 4.
    result = run(spec, 9, 8, [0, 0, 2], [3, 4, 3], [2, 2, 1], progress_on_evict="kept")
    check(result, start, finish, evictions=evictions, kv=kv)


def test_a_new_request_does_not_displace_ongoing_ones() -> None:
    # M = 6, c 2. 0 (s 4, o 2): 2, 4, 5, 6. At t=1 comes 1 (s 1, o 1), shorter: t=1: 4+1. t=2: 5+2 = 7>: the newest
    # goes, not the longest. t=3: 6. t=4: 1, 2.
    for name in (FCFS, SJF):
        check(
            run(name, 2, 6, [0, 1], [4, 1], [2, 1]), [0, 1], [4, 6], evictions=[0, 1], kv=[2, 5, 5, 6, 1, 2]
        )
    for name in (FCFS_AHEAD, SJF_AHEAD):
        check(run(name, 2, 6, [0, 1], [4, 1], [2, 1]), [0, 4], [4, 6], kv=[2, 4, 5, 6, 1, 2])


# ---------------------------------------------------------------- look-ahead


@pytest.mark.parametrize("name", [FCFS_AHEAD, SJF_AHEAD])
def test_the_look_ahead_knows_the_ramp_of_chunks(name: str) -> None:
    # M = 7. 0 (s 1, o 1): 1, 2; 1 (s 6, o 1), c 2: 2, 4, 6, 7: 3, 6, 6, 7 from the beginning.
    check(run(name, 2, 7, [0, 0], [1, 6], [1, 1]), [0, 0], [2, 4], kv=[3, 6, 6, 7])
    # c 3: 3, 6, 7: 4, 8>. t=1: 2+3, 6, 7.
    check(run(name, 3, 7, [0, 0], [1, 6], [1, 1]), [0, 1], [2, 4], kv=[1, 5, 6, 7])
    # c 4: 4, 6, 7: 5, 8>. t=1: 2+4, 6, 7.
    check(run(name, 4, 7, [0, 0], [1, 6], [1, 1]), [0, 1], [2, 4], kv=[1, 6, 6, 7])
    # c 6: 6, 7: 7, 9>; t=1: 2+6 = 8>.
    check(run(name, 6, 7, [0, 0], [1, 6], [1, 1]), [0, 2], [2, 4], kv=[1, 2, 6, 7])


@pytest.mark.parametrize("name", [FCFS_AHEAD, SJF_AHEAD])
def test_the_look_ahead_knows_the_rest_of_ongoing_prompts(name: str) -> None:
    # M = 8, c 2. 0 (s 5, o 1): 2, 4, 5, 6; 1 (s 3, o 1) arrives at t=1: 2, 3, 4. t=1: 4, 5, 6 with it: 6, 8, 10>.
    # t=2: 5, 6 with it: 7, 9>. t=3: 6 with it: 8, 3, 4.
    check(run(name, 2, 8, [0, 1], [5, 3], [1, 1]), [0, 3], [4, 6], kv=[2, 4, 5, 8, 3, 4])
    # M = 9: t=2: 7, 9, 4.
    check(run(name, 2, 9, [0, 1], [5, 3], [1, 1]), [0, 2], [4, 5], kv=[2, 4, 7, 9, 4])


@pytest.mark.parametrize("name", [FCFS_AHEAD, SJF_AHEAD])
def test_long_predictions_delay_but_never_block_an_empty_worker(name: str) -> None:
    args = (2, 6, [0, 0], [3, 2], [1, 2])
    # 0: 2, 3, 4; 1 (s 2, o 2): 2, 3, 4. Known: t=0: 4, 6, 8>; t=1: 3+2, 4+3 = 7>; t=2: 4+2, 3, 4.
    check(run(name, *args, first_token="uncounted", p=[1, 2]), [0, 2], [3, 5], kv=[2, 3, 6, 3, 4])
    # 0 taken for o 50, so for o 3, all that memory allows: 2, 3, 4, 5, 6. t=1: 5, 7>. t=2: 4+2, 5+3>. When it leaves at
    # t=3, that is known. Shortest first has 1 (4) before 0 (53): 2, 3, 4 with 2, 3, 4, 5, 6: 4, 6, 8>.
    # t=1: 3, 4 with 2, 3, 4, 5, 6: 5, 7>. t=2: 4 with those: 6, 3, 4, 5, 6.
    if name == FCFS_AHEAD:
        check(run(name, *args, p=[50, 2]), [0, 3], [3, 6], kv=[2, 3, 4, 2, 3, 4])
    else:
        check(run(name, *args, p=[50, 2]), [2, 0], [5, 3], kv=[2, 3, 6, 3, 4])


@pytest.mark.parametrize("name", [FCFS_AHEAD, SJF_AHEAD])
def test_short_predictions(name: str) -> None:
    # M = 7, c 2. 0 (s 2, o 4, p 1): 2, 3 expected; 1 (s 2, o 2): 2, 3, 4. t=0: 4, 6, 4. t=1: 3+3. t=2: 0 continues, so
    # 4+4 = 8>: 1 is evicted, and none starts. t=3: 0 is taken to need 5 and then nothing: 5+2, 3, 4. t=4: 6+3 = 9>: 1
    # is evicted again. t=5: 2, 3, 4.
    args = (2, 7, [0, 0], [2, 2], [4, 2], [1, 2])
    check(run(name, *args), [0, 0], [5, 8], evictions=[0, 2], kv=[4, 6, 4, 7, 6, 2, 3, 4])
    # Swapped, it has 3: t=3: 5+4 = 9>. t=4: 6+4>. t=5: 4.
    check(run(name, *args, progress_on_evict="kept"), [0, 0], [5, 6], evictions=[0, 1], kv=[4, 6, 4, 5, 6, 4])


def test_a_head_that_does_not_fit_ahead_blocks_the_rest() -> None:
    # M = 8, c 2. 0 (s 2, o 4): 2, …, 6; 1 (s 4, o 2): 2, 4, 5, 6; 2 (s 1, o 1): 1, 2 would fit next to 0.
    # t=0: 4, 7, 9>. t=1: 3+2, 4+4, 5+5>. t=2: 4+2, 5+4 = 9>. t=3: 5+2, 6+4>. t=4: 6+2 with 4, 5, 6; then 2: 9>.
    # t=5: 4 with 1, 5 with 2, 6. Shortest first 2 (total 2) comes before both (6 each): 1+2, 2+3, 4, 5, 6.
    args = (2, 8, [0, 0, 0], [2, 4, 1], [4, 2, 1])
    check(run(FCFS_AHEAD, *args), [0, 4, 5], [5, 8, 7], kv=[2, 3, 4, 5, 8, 5, 7, 6])
    check(run(SJF_AHEAD, *args), [0, 4, 0], [5, 8, 2], kv=[3, 5, 4, 5, 8, 4, 5, 6])


@pytest.mark.parametrize("name", [FCFS_AHEAD, SJF_AHEAD])
def test_a_prefill_worker_looks_ahead_without_handed_over_requests(name: str) -> None:
    # M = 8, whole prompts that write token 1. 0 (s 1, o 2): 2 at t=0; at t=1 it continues. At t=5 worker 0
    # is empty: 1 (s 1, o 1) takes 2, so that 2 (s 6, o 1), which takes 7, waits for t=6.
    workers = [Worker(8, UnitBatchTime(), role) for role in ("prefill", "decode")]
    table = RequestTable.from_columns(
        arrival_time=[0, 5, 5], prompt_len=[1, 1, 6], output_len=[2, 1, 1], predicted_output_len=[2, 1, 1]
    )
    result = simulate(System.cluster(workers, first_token="counted"), table, name, log=True)
    check(result, start=[0, 5, 6], finish=[2, 6, 7])
