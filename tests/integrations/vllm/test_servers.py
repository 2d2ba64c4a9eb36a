"""kvgym's scheduler in a server that goes on: idle policies, memory, clocks, and what users put into the log."""

import gc
import itertools
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.servers.fake_vllm import Request, Status
from helpers.servers.vllm_driver import Chosen, Driver, everything, tokens_of
from kvgym.integrations.vllm import deciding
from kvgym.policies.policy import Decision


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
