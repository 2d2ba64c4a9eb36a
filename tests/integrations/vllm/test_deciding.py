"""kvgym's scheduler over a stand-in for vLLM's: decisions, failures, and what comes and goes."""

import math

import numpy as np
import pytest

from helpers.servers.fake_vllm import Request, Status
from helpers.servers.vllm_driver import Chosen, everything, tokens_of
from kvgym.batch_time import AffineBatchTime
from kvgym.integrations.vllm import deciding
from kvgym.policies.policy import Decision
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import simulation_of
from kvgym.workloads.table import RequestTable


def test_first_come_first_served_by_hand(make):
    scheduler = make(blocks=5)  # a: prompt 2, 3 outputs; b: prompt 2, 2 outputs
    for request in (Request("a", 2, 3), Request("b", 2, 2)):
        scheduler.add_request(request)
    assert tokens_of(scheduler, 3) == [
        {"a": 2, "b": 2},
        {"a": 1},
        {"a": 1},
    ]  # b is preempted: 3 + 3 tokens > 5
    assert tokens_of(scheduler, 2) == [{"b": 3}, {}]  # and recomputes its prompt and its first output
    assert (scheduler.decisions, dict(scheduler.own_rule), scheduler.own) == (5, {}, 0)
    assert not scheduler.requests
    assert scheduler.free == 5


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_class_follows_asynchronous_scheduling(make, asynchronous):
    scheduler = make(asynchronous=asynchronous)
    assert isinstance(scheduler, deciding.Deciding)
    assert type(scheduler).__mro__[2].__name__ == ("AsyncScheduler" if asynchronous else "Scheduler")


@pytest.mark.parametrize("seed", range(3))
def test_schedules_are_those_of_the_simulator(make, seed):
    draw = np.random.default_rng(seed)
    count = 12
    columns = {
        "arrival_time": np.sort(draw.integers(0, 20, count)).astype(float),
        "prompt_len": draw.integers(1, 12, count),
        "output_len": draw.integers(1, 12, count),
    }
    table = RequestTable.from_columns(**columns)
    system = System(
        kv_capacity=32, block_size=4, batch_time=AffineBatchTime(1.0), progress_on_evict="recompute",
        requeue="front", output_kv="next_iteration",
    )  # fmt: skip
    expected = simulate(system, table, "fcfs")
    scheduler, finish = make(blocks=8, block_size=4), np.full(count, np.nan)
    driver, coming = scheduler.driver, 0
    while coming < count or scheduler.requests:
        if not scheduler.requests:
            driver.clock = max(driver.clock, columns["arrival_time"][coming])
        while coming < count and columns["arrival_time"][coming] <= driver.clock:
            values = (int(columns[name][coming]) for name in ("prompt_len", "output_len"))
            scheduler.add_request(Request(str(coming), *values, columns["arrival_time"][coming]))
            coming += 1
        before = set(scheduler.requests)
        driver.step()
        for name in before - set(scheduler.requests):
            finish[int(name)] = driver.clock
    np.testing.assert_array_equal(finish, expected.requests["finish_time"])
    assert expected.worker["total_evicted"][0] > 0
    assert not scheduler.own_rule


def test_decisions_are_carried_out_as_they_are(make):
    plans = iter([
        Decision(admit=(1, 0), tokens={0: 2}),
        Decision(tokens={1: 0}),
        Decision(evict=(0,), tokens={1: 1}),
        Decision(admit=(0,), tokens={1: 0}),
    ])  # fmt: skip
    scheduler = make(Chosen(lambda view: next(plans)))
    for request in (Request("a", 4, 9), Request("b", 3, 9)):
        scheduler.add_request(request)
    assert tokens_of(scheduler, 4) == [{"b": 3, "a": 2}, {"a": 2}, {"b": 1}, {"a": 5}]
    assert [r.request_id for r in scheduler.running] == ["b", "a"]
    assert scheduler.requests["a"].num_preemptions == 1
    assert not scheduler.own_rule


def test_what_exceeds_the_token_budget_waits(make):
    scheduler = make(budget=4)
    for name, prompt in (("a", 6), ("b", 3), ("c", 1)):
        scheduler.add_request(Request(name, prompt, 2))
    assert tokens_of(scheduler, 4) == [{"a": 4}, {"a": 2, "b": 2}, {"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}]
    assert not scheduler.own_rule
    whole = make(budget=4, enable_chunked_prefill=False)
    for name, prompt in (("a", 3), ("b", 3)):
        whole.add_request(Request(name, prompt, 2))
    assert tokens_of(whole, 3) == [{"a": 3}, {"a": 1, "b": 3}, {"b": 1}]


FAULTS = {
    "raises": (lambda view: RuntimeError("no idea"), "UserCodeError"),
    "is no decision": (lambda view: None, "InvalidDecisionError"),
    "admits what is unknown": (lambda view: Decision(admit=(7,)), "InvalidDecisionError"),
    "gives too many tokens": (lambda view: Decision(admit=(0,), tokens={0: 99}), "InvalidDecisionError"),
    "does not fit": (everything, "InvalidDecisionError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_policy_is_logged_once_and_the_server_goes_on(make, messages, fault):
    decide, kind = FAULTS[fault]
    scheduler = make(Chosen(decide), blocks=20)
    for name in "abc":
        scheduler.add_request(Request(name, 8, 4))
    scheduler.driver.run()
    assert scheduler.own == sum(scheduler.own_rule.values()) > 0
    assert set(scheduler.own_rule) == {kind}
    assert messages[0].startswith(f"kvgym: {kind}: ")
    assert messages[0].endswith("vLLM's own rule decides this step")
    assert len(messages) == len(str(scheduler.own))  # the first, the tenth …
    assert scheduler.free == 20


@pytest.mark.parametrize(
    ("admit", "fault"),
    [
        ((0, 7), "request 7, which is not here yet"),
        ((0, 0), "request 0, which is waiting but listed twice"),
        ((1, 0, 2, 0), "request 0, which is waiting but listed twice"),
        ((0, 1), "request 1, which is finished; only waiting requests"),
    ],
)
def test_requests_beyond_the_token_budget_must_wait_too(make, messages, admit, fault):
    scheduler = make(Chosen(lambda view: Decision(admit=admit)), budget=4)
    for name in "abc":
        scheduler.add_request(Request(name, 8, 4))
    if "finished" in fault:
        scheduler._update()
        scheduler.finish_requests("b", Status.FINISHED_ABORTED)
    tokens_of(scheduler, 1)
    assert scheduler.own_rule == {"InvalidDecisionError": 1}
    assert f"admits {fault}" in messages[0]
    scheduler.driver.run()


def test_a_policy_that_recovers_decides_again(make):
    faults = iter([None, RuntimeError("once"), None])
    scheduler = make(Chosen(lambda view: next(faults, None) or everything(view)))
    scheduler.add_request(Request("a", 3, 4))
    scheduler.add_request(Request("b", 3, 4))
    scheduler.driver.run()
    assert (scheduler.decisions, scheduler.own) == (4, 0) or scheduler.own_rule
    again = make(Chosen(lambda view: RuntimeError("odd") if view.iteration % 2 else everything(view)))
    again.add_request(Request("a", 3, 4))
    again.driver.run()
    assert again.decisions > 0
    assert again.own > 0


def test_an_endless_wait_is_ended_by_an_arrival_or_by_the_rule_of_vllm(make):
    calls = []

    def wait_for_two(view):
        calls.append(view.clock)
        return everything(view) if view.num_waiting + view.num_active > 1 else Decision(wait_until=math.inf)

    scheduler = make(Chosen(wait_for_two))
    scheduler.add_request(Request("a", 3, 1))
    assert tokens_of(scheduler, 3) == [{}, {}, {}]
    assert calls == [0.0]  # it is not asked again before something happens
    assert scheduler.rest_ends_early
    scheduler.add_request(Request("b", 2, 1))
    assert tokens_of(scheduler, 1) == [{"a": 3, "b": 2}]


def test_what_vllm_cannot_carry_out_is_its_own_decision(make, messages):
    scheduler = make(blocks=20)
    scheduler.add_request(Request("a", 4, 6))
    tokens_of(scheduler, 1)
    scheduler.free -= 12  # blocks that the tables do not know of
    scheduler.add_request(Request("b", 8, 2))
    assert tokens_of(scheduler, 1) == [{"a": 1}]
    assert "decided 2 requests and 9 tokens, vLLM could schedule 1 and 1" in messages[0]
    scheduler.free += 12
    scheduler.driver.run()
    assert scheduler.own_rule == {"OtherSchedule": 1}
    assert scheduler.free == 20


def test_aborted_requests_leave(make):
    scheduler = make(blocks=10)
    for name in "abc":
        scheduler.add_request(Request(name, 4, 4))
    tokens_of(scheduler, 1)
    for name in "ac":  # one runs, the other waits
        scheduler.finish_requests(name, Status.FINISHED_ABORTED)
    scheduler.add_request(Request("d", 4, 1))
    scheduler.finish_requests("d", Status.FINISHED_ABORTED)  # before the policy has seen it
    assert tokens_of(scheduler, 2) == [{"b": 1}, {"b": 1}]
    scheduler.driver.run()
    assert not scheduler.own_rule
    assert scheduler._mirror.worker["kv_allocated"] >= 0
    assert scheduler.free == 10


def test_requests_that_vllm_preempts_by_itself_are_noticed(make):
    scheduler = make()
    for name in "ab":
        scheduler.add_request(Request(name, 4, 4))
    tokens_of(scheduler, 2)
    request = scheduler.running.pop(0)  # as when the prefix cache is reset
    scheduler._preempt_request(request, 0.0)
    assert tokens_of(scheduler, 1) == [{"b": 1, "a": 6}]
    scheduler.driver.run()
    assert not scheduler.own_rule


def test_requests_that_the_policy_cannot_see_are_left_to_vllm(make):
    scheduler = make()
    image = Request("image", 3, 2)
    image.mm_features = ["an image"]
    scheduler.add_request(image)
    scheduler.add_request(Request("a", 3, 4))
    assert tokens_of(scheduler, 2) == [{"image": 3, "a": 3}, {"image": 1, "a": 1}]
    assert (scheduler.own, scheduler.decisions, dict(scheduler.own_rule)) == (2, 0, {})
    scheduler.driver.run()
    assert scheduler.decisions == 2


def test_a_request_that_waits_for_its_grammar_is_not_seen(make):
    scheduler = make()
    blocked = Request("a", 3, 1)
    blocked.status = Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(blocked)
    scheduler.add_request(Request("b", 3, 1))
    assert tokens_of(scheduler, 2) == [{"b": 3}, {}]
    blocked.status = Status.WAITING
    assert tokens_of(scheduler, 1) == [{"a": 3}]


def chunks_of_four(view):
    left = zip(view.active.request_id.tolist(), view.active.num_prefill_left.tolist(), strict=True)
    admit = view.waiting.request_id.tolist()
    return Decision(admit=admit, tokens={i: min(4, n) for i, n in left if n} | dict.fromkeys(admit, 4))


def test_a_hit_in_the_prefix_cache_shortens_a_prompt(make):
    scheduler = make(Chosen(chunks_of_four))
    for name, hit in (("a", 5), ("b", 8), ("c", 0)):
        request = Request(name, 10, 2)
        request.hit = hit
        scheduler.add_request(request)
    assert tokens_of(scheduler, 3) == [{"a": 4, "b": 2, "c": 4}, {"a": 1, "b": 1, "c": 4}, {"a": 1, "c": 2}]
    scheduler.driver.run()
    assert not scheduler.own_rule


def test_tables_are_built_again_when_they_are_full(make):
    scheduler = make(blocks=40)
    for k in range(70):  # more than twice as many as they hold
        scheduler.add_request(Request(str(k), 5, 3))
        scheduler.driver.step()
    scheduler.driver.run()
    assert not scheduler.own_rule
    assert scheduler.free == 40


@pytest.mark.parametrize("policy", ["fcfs", "mc_sf", "vllm_v1:max_num_batched_tokens=16,max_num_seqs=8"])
def test_scheduling_ahead_of_the_outputs(make, policy):
    settings = {"predictions": "requests", "trust_requests": True}
    scheduler = make(policy, blocks=12, block_size=4, asynchronous=True, settings=settings)
    driver, under_way, draw = scheduler.driver, [], np.random.default_rng(2)
    for k in range(30):
        output = int(draw.integers(1, 12))
        made = Request(
            str(k), int(draw.integers(1, 20)), output, max_tokens=output + k % 2, predicted_len=output
        )
        scheduler.add_request(made)
    while scheduler.requests:
        output = scheduler.schedule()
        if output.num_scheduled_tokens:
            under_way.append(output)
        if len(under_way) > 1 or not output.num_scheduled_tokens:
            driver.clock += 1.0
            if under_way:
                scheduler.update_from_output(under_way.pop(0), None)
        assert driver.clock < 1000
    assert not scheduler.own_rule
    assert scheduler.free == 12


def test_times_follow_the_clock_of_the_server(make):
    seen = []

    def look(view):
        table = simulation_of(view)
        seen.append((view.clock, table.active["last_token_time"][0, : view.num_active].tolist()))
        return everything(view)

    scheduler = make(Chosen(look))
    scheduler.driver.clock = 5.0
    scheduler.add_request(Request("a", 3, 3, arrival=4.5))
    for late in (0.0, 0.75):
        output = scheduler.schedule()
        scheduler.driver.clock += 1.0 + late  # batches are predicted to take one second
        scheduler.update_from_output(output, None)
    scheduler.schedule()
    assert seen == [(5.0, []), (6.0, [6.0]), (7.75, [7.75])]
    assert scheduler._mirror.requests["arrival_time"][0] == 4.5
    assert scheduler._mirror.requests["first_token_time"][0] == 6.0
