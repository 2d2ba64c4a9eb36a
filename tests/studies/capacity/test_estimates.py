"""Estimates: memory as the engine counts it, and the identity behind the mean of a saturated run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import make_batch_time
from kvgym.experiments.load.loads import Load
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.studies.capacity.estimates import (
    OBVIOUS,
    SOUND,
    batch_figures,
    estimate_runs,
    held_memory,
    prefill_chunk,
    worker_estimates,
)
from kvgym.theory.stability import cumulative_memory
from kvgym.workloads import RequestTable


def table(*lengths):
    prompt, output = np.array(lengths, np.int64).T
    return RequestTable.from_columns(
        arrival_time=np.zeros(len(lengths)), prompt_len=prompt, output_len=output
    )


def system(block=1, first_token="uncounted", capacity=5000):
    return System(capacity, make_batch_time({"kind": "unit"}), first_token=first_token, block_size=block)


def test_by_hand():
    # Prompt of 5 in chunks of 2: holds 2, 4, 5; three decodes hold 6, 7, 8.
    assert held_memory(table((5, 3)), 2, system()).tolist() == [32]
    # In blocks of 4: 4, 4, 8 and 8, 8, 8.
    assert held_memory(table((5, 3)), 2, system(block=4)).tolist() == [40]
    # Where prefill counts the first token the last chunk holds 6 already, and two decodes follow.
    assert held_memory(table((5, 3)), 2, system(first_token="counted")).tolist() == [2 + 4 + 6 + 7 + 8]


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 200),
    output=st.integers(1, 60),
    chunk=st.integers(1, 250),
    block=st.sampled_from([1, 3, 16]),
    first_token=st.sampled_from(["counted", "uncounted"]),
)
def test_a_run_of_one_request_holds_the_same_memory(prompt, output, chunk, block, first_token):
    one, alone = table((prompt, output)), system(block, first_token)
    result = simulate(alone, one, f"work_conserving_fcfs:chunk={chunk}", log=True)
    assert held_memory(one, chunk, alone).tolist() == [int(result.log["kv_tokens"].sum())]
    if block == 1 and first_token == "uncounted":
        assert held_memory(one, chunk, alone) == cumulative_memory(prompt, output, chunk)


def test_chunks_come_from_the_policy():
    requests = table((3000, 5), (10, 5))
    assert prefill_chunk(make_policy("sarathi"), requests) == 512
    assert prefill_chunk(make_policy("sarathi:token_budget=100"), requests) == 100
    assert prefill_chunk(make_policy("work_conserving_fcfs:chunk=64"), requests) == 64
    assert prefill_chunk(make_policy("fcfs"), requests) == 3000
    assert prefill_chunk(make_policy("sarathi:token_budget=9999"), requests) == 3000


def estimates(policy, **workload):
    base = load_scenario("a100-llama3-8b").override(
        workload={"preset": "stab-1-1", "num_requests": 400, **workload},
        system={"first_token": "uncounted", "progress_on_evict": "kept"},
    )
    load, player = Load(base), Player()
    made = make_policy(policy)
    _, requests = player.requests(load.scenario, 0)
    return worker_estimates(load, made, requests, *player(estimate_runs(load, made, 0)), rates=(1.0, 0.5))


def test_the_error_of_a_saturated_mean_is_the_unused_memory():
    own = estimates("work_conserving_fcfs_lookahead")
    sound = own.find(*SOUND)
    assert not own.error
    assert sound.service * own.kv_use == pytest.approx(own.measured, rel=1e-9)
    assert sound.error == pytest.approx(1 / own.kv_use - 1, rel=1e-6)
    assert len(own.estimates) == 8
    assert {row["run"] for row in own.rows()} == {"as it is", "saturated"}
    assert sound.workers == -(-5 // sound.service)
    assert own.workers_with_slack >= sound.workers


def test_the_naive_estimate_of_a_light_load_is_far_off():
    own = estimates("work_conserving_fcfs_lookahead", rate=0.5)
    assert own.find(*OBVIOUS).error > 1.5
    assert abs(own.find(*SOUND).error) < 0.3


def test_a_remark_if_memory_is_not_the_bottleneck():
    own = estimates("sarathi:token_budget=32")
    assert own.kv_use < 0.9
    assert "something else limits them" in own.remark
    assert estimates("request_level:batch=2").remark


def test_a_policy_that_fails_has_its_error():
    base = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 40})
    load, player = Load(base), Player()
    made = make_policy("alpha_greedy:alpha=0.99,strict=True")
    _, requests = player.requests(load.scenario, 0)
    own = worker_estimates(load, made, requests, *player(estimate_runs(load, made, 0)), rates=(0.0, 0.0))
    assert own.error
    assert own.estimates == ()
    assert own.remark == ""


def test_estimates_of_a_run_by_hand():
    result = simulate(system(), table((5, 3)), "work_conserving_fcfs:chunk=2", log=True)
    figures = batch_figures(result)
    assert figures["median"] == figures["mean"] == 1
    assert figures["batches"] == 6
    assert figures["kv_use"] == pytest.approx(32 / 6 / 5000)
