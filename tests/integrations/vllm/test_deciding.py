"""kvgym's scheduler over a stand-in for vLLM's: decisions, failures, and what comes and goes."""

import gc
import itertools
import logging
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import fake_vllm
from helpers.fake_vllm import MEMORY, Request, Status, configuration
from kvgym.batch_time import AffineBatchTime
from kvgym.integrations.vllm import Scheduler, deciding
from kvgym.policy import Decision, Policy, PolicyInfo
from kvgym.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

BATCH_TIME = {"kind": "affine", "constant": 1.0}


class Chosen(Policy):
    """Decides by a function of the view; raises what it returns if that is an exception."""

    info = PolicyInfo(name="chosen", summary="of tests", chunks_prefill=True, pauses=True, evicts=True)

    def __init__(self, decide):
        self.decide = decide

    def schedule(self, view):
        made = self.decide(view)
        if isinstance(made, Exception):
            raise made
        return made


def everything(view):
    return Decision(admit=tuple(view.waiting.request_id.tolist()))


@pytest.fixture
def make(monkeypatch):
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(deciding, "LEAST_ROWS", 32)

    def made(policy="fcfs", **options):
        settings = {"policy": policy, "batch_time": BATCH_TIME, **options.pop("settings", {})}
        if not isinstance(policy, str):
            settings["policy"] = "fcfs"
            monkeypatch.setattr(deciding, "choose_policy", lambda _: (policy, policy.info.needs))
        scheduler = Scheduler(configuration(settings, **options), MEMORY)
        Driver.of(scheduler)
        return scheduler

    return made


@pytest.fixture
def messages():
    """Return the list of messages that kvgym logs."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    deciding.logger.addHandler(handler)
    yield found
    deciding.logger.removeHandler(handler)


class Driver:
    """Runs a scheduler with batches of one second."""

    def __init__(self, scheduler):
        self.scheduler, self.clock, self.batches = scheduler, 0.0, []

    @classmethod
    def of(cls, scheduler):
        made = scheduler.driver = cls(scheduler)
        scheduler.now = scheduler.wall = lambda: made.clock
        scheduler._origin = 0.0
        scheduler._build()
        return made

    def step(self):
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            self.batches.append((self.clock, output.num_scheduled_tokens))
            self.clock += 1.0
            self.scheduler.update_from_output(output, None)
        return output.num_scheduled_tokens

    def run(self, most=300):
        while self.scheduler.requests and most:
            most -= 1
            if not self.step():
                self.clock = max(self.clock + 1.0, min(self.scheduler.resting_until, self.clock + 5.0))
        assert most


def tokens_of(scheduler, count):
    return [scheduler.driver.step() for _ in range(count)]


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


def starts_then_pauses(view):
    running = view.active.request_id.tolist()
    return Decision(
        admit=() if running else view.waiting.request_id.tolist(), tokens=dict.fromkeys(running, 0)
    )


IDLE = {
    "starts nothing": lambda view: Decision(),
    "waits for ever": lambda view: Decision(wait_until=math.inf),
    "waits again and again": lambda view: Decision(wait_until=view.clock + 0.5),
    "pauses what it has started": starts_then_pauses,
}


@pytest.mark.parametrize("decide", IDLE.values(), ids=IDLE)
def test_a_policy_may_keep_all_requests_waiting_for_ten_seconds(make, messages, decide):
    scheduler = make(Chosen(decide))
    driver = scheduler.driver
    for name in "abc":
        scheduler.add_request(Request(name, 3, 4))
    driver.run()
    starts = [clock for clock, _ in driver.batches if clock >= 10.0]
    assert starts[0] < 13.0
    assert len(starts) >= 3
    assert np.all(np.diff(starts) == 1.0)  # the rest is not kept waiting again
    assert scheduler.own_rule == {"NoProgress": 1}
    [line] = messages
    assert line.startswith("kvgym: NoProgress: no request advanced for 10.")
    assert line.endswith(" s; vLLM's own rule decides until these requests have left")


def test_the_time_is_a_setting(make):
    scheduler = make(Chosen(lambda view: Decision()), settings={"patience": 2.0})
    scheduler.add_request(Request("a", 3, 1))
    scheduler.driver.run()
    assert scheduler.driver.batches == [(2.0, {"a": 3})]


def test_an_overruled_policy_may_wait_again_after_it_has_run_a_batch(make):
    plans = iter([*[Decision(wait_until=math.inf)] * 2, None, *[Decision(wait_until=math.inf)] * 9])
    scheduler = make(Chosen(lambda view: next(plans) or everything(view)))
    driver = scheduler.driver
    for expected in (10.0, 0.0, 0.0, 10.0):  # waits, is overruled at once, runs a batch, waits
        scheduler.add_request(Request("a", 3, 1))
        before = driver.clock
        driver.step()
        driver.run()
        assert driver.batches[-1][0] - before == expected
    assert scheduler.own_rule == {"NoProgress": 3}
    assert scheduler.decisions == 4


def test_the_time_begins_again_when_no_request_waits(make):
    scheduler = make(Chosen(lambda view: Decision(wait_until=math.inf)))
    for name in "abc":
        scheduler.add_request(Request(name, 3, 1))
        assert tokens_of(scheduler, 1) == [{}]
        scheduler.driver.clock += 9.0
        assert tokens_of(scheduler, 1) == [{}]
        scheduler.finish_requests(name, Status.FINISHED_ABORTED)  # without another step
        scheduler.driver.clock += 9.0
    assert not scheduler.own_rule


def test_what_only_vllm_can_start_does_not_count_as_waiting(make):
    scheduler = make()
    blocked = Request("a", 3, 1)
    blocked.status = Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(blocked)
    for _ in range(20):
        assert tokens_of(scheduler, 1) == [{}]
        scheduler.driver.clock += 1.0
    assert not scheduler.own_rule
    image = Request("image", 3, 2)
    image.mm_features = ["an image"]
    waits = make(Chosen(lambda view: Decision(wait_until=math.inf)))
    waits.add_request(Request("b", 3, 1))
    tokens_of(waits, 1)
    waits.add_request(image)
    waits._foreign, waits.driver.clock = {"image"}, 9.0
    waits.schedule()
    waits.driver.clock = 11.0
    waits.finish_requests("image", Status.FINISHED_ABORTED)
    waits.add_request(Request("c", 3, 1))
    assert waits.schedule().num_scheduled_tokens == {}  # its time began with this step
    assert not waits.own_rule


def test_a_batch_under_way_is_no_waiting(make):
    scheduler = make(asynchronous=True)
    scheduler.add_request(Request("a", 3, 1, max_tokens=1))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 3}
    for _ in range(3):  # its only token is under way, so that nothing can start
        scheduler.driver.clock += 20.0
        assert scheduler.schedule().num_scheduled_tokens == {}
    scheduler.update_from_output(output, None)
    assert not scheduler.requests
    assert not scheduler.own_rule


def test_decisions_that_vllm_can_never_carry_out_are_no_batches(make):
    scheduler = make(Chosen(lambda view: Decision(admit=(0,))), blocks=20)
    scheduler.add_request(Request("long", 8, 1))
    scheduler.free -= 16  # blocks that the tables do not know of
    for clock in range(10):
        assert tokens_of(scheduler, 1) == [{}]
        scheduler.driver.clock = clock + 1.0
    scheduler.add_request(Request("short", 2, 1))
    scheduler.waiting.rotate()
    assert tokens_of(scheduler, 1) == [{"short": 2}]
    assert scheduler.own_rule == {"OtherSchedule": 10, "NoProgress": 1}
    scheduler.free += 16
    scheduler.driver.run()


def start_another(view):
    other = view.waiting.request_id[-1:].tolist()
    return Decision(evict=range(view.num_active), admit=other, tokens=dict.fromkeys(other, 2))


EVICTING = {
    "and starts another": start_another,
    "and fails": lambda view: Decision(evict=range(view.num_active)) if view.num_active else None,
}


@pytest.mark.parametrize("decide", EVICTING.values(), ids=EVICTING)
def test_a_policy_that_evicts_before_a_token_is_made_is_overruled(make, decide):
    scheduler = make(Chosen(decide), budget=4)
    scheduler.add_request(Request("a", 12, 5))
    for k in range(60):
        scheduler.driver.step()
        scheduler.driver.clock += 0.5
        if k % 3 == 0 and k < 30:  # arrivals, which are news for the simulator
            scheduler.add_request(Request(f"more {k}", 12, 1))
    scheduler.driver.run()
    assert scheduler.own_rule["NoProgress"] >= 1
    assert scheduler.own_rule["LivelockError"] == 0


def test_a_long_prompt_after_an_eviction_may_take_its_time(make):
    seen = []

    def one_by_one(view):
        seen.append(view.num_active)
        if len(seen) == 3:
            return Decision(evict=(0,), admit=(1,), tokens={1: 1})
        ids = view.active.request_id.tolist()
        return Decision(admit=() if ids else (0,), tokens=dict.fromkeys(ids or (0,), 1))

    scheduler = make(Chosen(one_by_one))
    for name in "ab":
        scheduler.add_request(Request(name, 40, 1))
    for _ in range(40):
        assert scheduler.driver.step() == {"ab"[len(seen) > 2]: 1}
    assert not scheduler.own_rule


def test_a_policy_without_progress_is_overruled(make):
    scheduler = make(Chosen(lambda view: Decision()), settings={"patience": 3600.0})
    scheduler._mirror.problem["stall_limit"] = 20  # 10,000 otherwise
    scheduler.add_request(Request("a", 3, 5))
    scheduler.driver.run()
    assert scheduler.own_rule == {"LivelockError": 1}
    assert len(scheduler.driver.batches) == 5


FOREIGN = {
    "an image": {"mm_features": ["an image"]},
    "streamed": {"resumable": True},
    "pooling": {"pooling_params": "some"},
}


@pytest.mark.parametrize("reason", [*FOREIGN, "paused", "paused without steps", "none"])
def test_requests_that_have_left_are_not_held(make, monkeypatch, reason):
    monkeypatch.setattr(deciding, "LEAST_ROWS", 1 << 14)  # as in a server
    scheduler = make(blocks=20_000)
    if reason in FOREIGN:
        held = Request("held", 3, 10_000, max_tokens=10_000)
        vars(held).update(FOREIGN[reason])
        scheduler.add_request(held)
    elif reason != "none":
        scheduler._pause_state.name = "PAUSED_ALL"
    number, seen = itertools.count(), []
    for _ in range(160):
        names = [str(next(number)) for _ in range(50)]
        for name in names:
            request = Request(name, 2, 1)
            seen.append(weakref.ref(request))
            scheduler.add_request(request)
        scheduler.finish_requests(names[0], Status.FINISHED_ABORTED)
        if reason == "paused without steps":
            for name in names[1:]:
                scheduler.finish_requests(name, Status.FINISHED_ABORTED)
        else:
            scheduler.driver.step()
    del request
    gc.collect()
    assert sum(held() is not None for held in seen) <= 50
    parts = ("_arrivals", "_arrived", "_foreign", "_rows", "_order", "_ends")
    assert all(len(getattr(scheduler, part)) <= 51 for part in parts)
    assert len(scheduler._gone) <= len(scheduler._known) <= 1 << 14
    scheduler._pause_state.name = "UNPAUSED"
    if reason in FOREIGN:
        scheduler.finish_requests("held", Status.FINISHED_ABORTED)
    decided = scheduler.decisions
    scheduler.add_request(Request("last", 3, 1))
    assert tokens_of(scheduler, 1) == [{"last": 3}]
    assert scheduler.decisions == decided + 1
    assert not scheduler.own_rule


def test_requests_that_end_while_the_tables_cannot_be_built(make, monkeypatch):
    scheduler = make(Chosen(everything))
    for name, output in (("z", 1), ("a", 9), ("b", 9)):  # the first row is of a request that has left
        scheduler.add_request(Request(name, 3, output))
    tokens_of(scheduler, 2)
    row = scheduler._reader.row

    def fails_at_a(request):
        if request.request_id == "a":
            raise RuntimeError("once")
        return row(request)

    monkeypatch.setattr(scheduler._reader, "row", fails_at_a)
    monkeypatch.setattr(scheduler, "_arrivals", {"b": 0.0, "a": 1.0})  # b is entered first
    scheduler._stale = True
    assert tokens_of(scheduler, 1) == [{"a": 1, "b": 1}]
    assert scheduler.own_rule == {"RuntimeError": 1}
    scheduler.finish_requests("b", Status.FINISHED_ABORTED)
    monkeypatch.setattr(scheduler._reader, "row", row)
    assert tokens_of(scheduler, 1) == [{"a": 1}]
    assert scheduler.own_rule == {"RuntimeError": 1}


@pytest.fixture
def clocks(monkeypatch):
    """Return the clocks of a server: one that can be set, and one that cannot."""
    made = SimpleNamespace(wall=1e9, steady=500.0)
    module = SimpleNamespace(time=lambda: made.wall, monotonic=lambda: made.steady)
    monkeypatch.setattr(deciding, "time", module)
    return made


def test_the_clock_of_the_machine_may_be_set(make, clocks, monkeypatch):
    seen = []

    def waits_a_second(view):
        seen.append(view.clock)
        return Decision(wait_until=view.clock + 1.0) if len(seen) < 4 else everything(view)

    monkeypatch.setattr(Driver, "of", lambda _: None)
    scheduler = make(Chosen(waits_a_second))
    scheduler.add_request(Request("a", 3, 1, arrival=1e9))
    for jump in (0.0, -3600.0, 3600.0, 0.0):
        scheduler.schedule()
        clocks.steady += 1.0
        clocks.wall += 1.0 + jump
    assert seen == [0.0, 1.0, 2.0, 3.0]
    assert not scheduler.requests["a"].is_prefill_chunk
    assert not scheduler.own_rule


def test_times_of_arrival_are_on_the_clock_of_the_server(make, clocks, monkeypatch):
    monkeypatch.setattr(Driver, "of", lambda _: None)
    scheduler = make()
    clocks.steady, clocks.wall = 510.0, 1e9 + 10.0
    scheduler.add_request(Request("a", 3, 9, arrival=1e9 + 8.5))
    clocks.wall -= 3600.0
    scheduler.add_request(Request("b", 3, 9, arrival=1e9 - 3591.0))
    scheduler.add_request(Request("late", 3, 9, arrival=1e9))  # it was made before the clock was set
    scheduler.add_request(Request("early", 3, 9, arrival=1.0))
    expected = [8.5, 9.0, 10.0, 0.0]
    scheduler.schedule()
    assert scheduler._mirror.workload["arrival_time"][:4].tolist() == expected
    scheduler._stale = True
    scheduler.schedule()
    assert sorted(scheduler._mirror.workload["arrival_time"][:4].tolist()) == sorted(expected)


def test_users_of_a_server_cannot_fill_or_forge_its_log(make, messages):
    settings = {"ttft_slo": 1.0, "trust_requests": True}
    scheduler = make("slai", blocks=4000, settings=settings)
    name = "x\r\n\x1b[2K\u2028ERROR kvgym: all is lost"
    for k in range(1200):
        wrong = {"ttft_slo": "\nERROR", "tbt_slo": [1]} if k else {"ttft_slo": "soon"}
        scheduler.add_request(Request(f"{name}{k}", 2, 1, **wrong))
        scheduler.driver.step()
    assert scheduler.wrong_fields == {"ttft_slo": 1200, "tbt_slo": 1199}
    assert len(messages) == 8  # the first, the tenth … of each field
    assert all(line.isprintable() and len(line) < 400 for line in messages)
    assert messages[0] == (
        "kvgym: request 'x\\r\\n\\x1b[2K\\u2028ERROR kvgym: all is lost0': ConfigError: ttft_slo 'soon' of a request; "
        "expected a number > 0; it counts as one without ttft_slo"
    )
    assert messages[-1].endswith("it counts as one without tbt_slo (1000 times so far)")
    assert not scheduler.own_rule


def test_errors_are_one_line_of_the_log(make, messages):
    scheduler = make(Chosen(lambda view: RuntimeError("no\nERROR\x1b[2K\u2028more")))
    scheduler.add_request(Request("a", 3, 1))
    scheduler.driver.run()
    assert len(messages) == 1
    assert messages[0].isprintable()
    scheduler._failed("KeyError", "of\nno\x85policy\rat\x1ball")
    assert (
        messages[1]
        == "kvgym: KeyError: of no\ufffdpolicy\u240dat\u241ball; vLLM's own rule decides this step"
    )


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
    assert tokens_of(scheduler, 3) == [
        {"a": 4, "b": 2, "c": 4},
        {"a": 1, "b": 1, "c": 4},
        {"a": 1, "c": 2},
    ]
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
        table = view.simulation
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
