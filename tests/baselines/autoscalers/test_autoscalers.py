"""Autoscalers: sizes worked by hand from the definitions of the platforms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.runs.pools import FLEET, POOL, WORKER, asked, pool, view_at
from kvgym.baselines.autoscalers.bounded import KPA
from kvgym.baselines.autoscalers.saturation import saturation_step
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.policies.scaling import AUTOSCALERS, make_autoscaler
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.system import Worker


def test_hpa_scales_by_the_ratio_unless_it_is_near_one() -> None:
    rule = make_autoscaler("hpa:target=6")
    assert asked(rule, (0.0, pool([9] * 4))) == [6]
    assert asked(rule, (0.0, pool([6, 7, 6, 7]))) == [4]
    assert asked(rule, (0.0, pool([7] * 4))) == [5]


def test_hpa_counts_workers_that_start_as_idle_and_does_not_turn_around() -> None:
    rule = make_autoscaler("hpa:target=6")
    assert asked(rule, (0.0, pool([9, 9], target=3, starting=1))) == [3]
    assert asked(rule, (0.0, pool([9, 9], target=4, starting=2))) == [4]
    assert asked(rule, (0.0, pool([15, 15], target=3, starting=1))) == [5]


def test_hpa_shrinks_to_the_most_of_its_window_and_grows_at_most_twofold() -> None:
    rule = make_autoscaler("hpa:target=6,down=60")
    steps = [(0.0, pool([6] * 4)), (30.0, pool([1] * 4)), (75.0, pool([1] * 4)), (100.0, pool([1] * 4))]
    assert asked(rule, *steps) == [4, 4, 1, 1]
    assert asked(rule, (0.0, pool([0] * 4)), (59.0, pool([0] * 4)), (61.0, pool([0] * 4))) == [4, 4, 0]
    assert asked(rule, (0.0, pool([600] * 4))) == [8]
    assert asked(rule, (0.0, pool([600]))) == [5]


def test_requests_outside_count() -> None:
    assert asked(make_autoscaler("hpa:target=6"), (0.0, pool([], target=0, unrouted=13))) == [3]
    assert asked(make_autoscaler("keda:target=5"), (0.0, pool([], target=1, unrouted=13))) == [3]


def test_keda_takes_the_sum_by_the_threshold() -> None:
    rule = make_autoscaler("keda:metric=waiting,target=0.5,down=0")
    waiting = np.array([1, 0, 2])
    assert asked(rule, (0.0, pool([1, 1, 1], waiting=waiting))) == [6]
    assert asked(rule, (0.0, pool([1, 1, 1], waiting=waiting, target=6, starting=3))) == [6]


def test_saturation_is_the_larger_of_queue_and_memory() -> None:
    rule = make_autoscaler("hpa:metric=saturation,target=1,tolerance=0")
    busy = pool([9, 9], waiting=np.array([10, 0]), kv=np.array([0.4, 0.8]))
    assert asked(rule, (0.0, busy)) == [3]


def test_ray_takes_the_ratio_after_its_delays() -> None:
    rule = make_autoscaler("ray:target=2,up=20,down=40,look_back=1")
    busy, idle = pool([3, 3, 3]), pool([1, 1, 1])
    assert asked(rule, *((10.0 * k, busy) for k in range(4))) == [3, 3, 5, 3]
    assert asked(rule, *((10.0 * k, idle) for k in range(6))) == [3, 3, 3, 3, 2, 3]
    assert asked(rule, (0.0, busy), (10.0, idle), (20.0, busy), (40.0, busy)) == [3, 3, 3, 5]


def test_ray_averages_over_its_window() -> None:
    rule = make_autoscaler("ray:target=1,up=0,look_back=25")
    steps = [(0.0, pool([2, 2])), (10.0, pool([8, 8], target=4)), (20.0, pool([8, 8], target=10))]
    assert asked(rule, *steps) == [4, 10, 12]


def test_roles_follow_the_ratio_of_prompts_to_outputs() -> None:
    rule = make_autoscaler("roles:base=0,ratio=1")
    decoder = Worker(10_000, WORKER.batch_time, "decode")

    def sizes(prefill: int, **counted: int) -> list[int]:
        first = pool([0] * prefill, worker=Worker(10_000, WORKER.batch_time, "prefill"))
        return list(rule.scale(view_at(10.0, first, pool([0] * (8 - prefill), worker=decoder), **counted)))

    rule.reset(Fleet((POOL, POOL)), np.random.SeedSequence(0))
    assert sizes(4) == [4, 4]  # nothing is known
    # 300 to 100 tokens: the share is 3 / 4, from 6 workers on nothing changes.
    ended = {"completions": 2, "finished_tokens": 200}
    assert sizes(4, arrivals=3, prompt_tokens=900, **ended) == [6, 2]
    assert sizes(6) == [6, 2]  # the lengths stay
    assert sizes(4, arrivals=1, prompt_tokens=100_000) == [7, 1]  # a decode worker stays
    assert sizes(5, arrivals=1, prompt_tokens=1, completions=1, finished_tokens=1000) == [1, 7]
    # 240 to 100 tokens: 5.65 of 8, which differs from 5 by more than a half, but not by more than 0.7.
    assert sizes(5, arrivals=1, prompt_tokens=240, **ended) == [6, 2]
    rule = make_autoscaler("roles:base=0,ratio=1,slack=0.2")
    rule.reset(Fleet((POOL, POOL)), np.random.SeedSequence(0))
    assert sizes(5, arrivals=1, prompt_tokens=240, **ended) == [5, 3]


def test_a_plan_comes_from_a_file_or_from_pairs(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("# time,workers\n0,2\n60.5,5\n")
    for rule in (make_autoscaler("plan", file=path), make_autoscaler("plan", file=[(60.5, (5,)), (0, (2,))])):
        assert [rule.next_time(time) for time in (-np.inf, 0.0, 60.5)] == [0.0, 60.5, np.inf]
        assert asked(rule, (0.0, pool([1])), (60.5, pool([1])), (99.0, pool([1]))) == [2, 5, 5]


@pytest.mark.parametrize("given", ["nothing.csv", [], [(0, ())], [(0, (-1,))], [(0, (1,)), (0, (2,))], 7])
def test_wrong_plans_are_named(given: object) -> None:
    with pytest.raises(ConfigError, match="a file with a line time,workers,… for each"):
        make_autoscaler("plan", file=given)


def test_a_fixed_size_is_ready_at_the_start() -> None:
    fleet = Fleet((Pool(1, most=4), Pool(1, most=2)))
    assert make_autoscaler("fixed:workers=2").initial(fleet) == (2, 2)
    assert make_autoscaler("fixed:workers=4/1").initial(fleet) == (4, 1)
    assert make_autoscaler("fixed:workers=2").next_time(-np.inf) == np.inf
    with pytest.raises(ConfigError, match="4 workers in a pool of 1 to 2"):
        make_autoscaler("fixed:workers=4").initial(fleet)
    with pytest.raises(ConfigError, match="sizes for 3 pools; expected 1 or 2"):
        make_autoscaler("fixed:workers=4/1/1").initial(fleet)


def test_the_interval_is_that_of_the_fleet_or_its_own() -> None:
    rule = make_autoscaler("keda")
    rule.reset(FLEET, np.random.SeedSequence(0))
    assert [rule.next_time(time) for time in (-np.inf, 0.0, 30.0)] == [0.0, 30.0, 60.0]
    rule.reset(Fleet((POOL,), control=5.0), np.random.SeedSequence(0))
    assert rule.next_time(0.0) == 5.0


@pytest.mark.parametrize("name", sorted(AUTOSCALERS))
def test_every_autoscaler_describes_itself_and_answers_for_each_pool(name: str) -> None:
    rule = make_autoscaler(name)
    assert rule.info.name == name
    assert rule.info.summary
    fleet = Fleet((Pool(1, most=4), Pool(1, most=4)))
    rule.reset(fleet, np.random.SeedSequence(0))
    assert len(rule.scale(view_at(0.0, pool([3]), pool([0])))) == len(rule.initial(fleet)) == 2


def test_unknown_names_and_settings() -> None:
    with pytest.raises(UnknownNameError, match="nothing"):
        make_autoscaler("nothing")
    with pytest.raises(ConfigError, match="target = 0"):
        make_autoscaler("hpa:target=0")


def test_kpa_panics_when_the_load_has_doubled_and_changes_at_most_twofold() -> None:
    rule = KPA(target=5.0)
    assert rule.size_of(2, 12, 30) == (4, True)
    assert rule.size_of(4, 12, 14) == (3, False)
    assert rule.size_of(8, 12, 30) == (8, True)
    assert rule.size_of(8, 5, 5) == (4, False)


def test_kpa_takes_means_over_its_times() -> None:
    rule = make_autoscaler("kpa:target=4,stable=60,panic=20")
    assert asked(rule, *((10.0 * k, pool([4, 4])) for k in range(4)), (40.0, pool([60, 60]))) == [2] * 4 + [4]


def test_apa_waits_before_it_shrinks() -> None:
    rule = make_autoscaler("apa:target=4,down=60")
    assert asked(rule, (0.0, pool([1, 1])), (60.0, pool([1, 1]))) == [2, 1]
    steps = [(0.0, pool([8, 8])), (30.0, pool([1] * 4)), (60.0, pool([1] * 4)), (90.0, pool([4, 4]))]
    assert asked(rule, *steps) == [4, 4, 2, 2]


@pytest.mark.parametrize(
    ("kv", "queue", "step"),
    [
        ([0.6, 0.7, 0.85], [0, 1, 6], 0),  # the third is full, and one of the others could not carry 1.3
        ([0.75, 0.72, 0.74], [0, 0, 0], 1),
        ([0.3] * 4, [0] * 4, -1),
        ([0.9, 0.95], [7, 9], 1),
        ([0.3], [0], 0),
        ([0.1, 0.1], [3, 2], 1),
    ],
)
def test_saturation_steps(kv: list[float], queue: list[int], step: int) -> None:
    assert saturation_step(kv, queue) == step


def test_wva_waits_for_changes() -> None:
    full = {"kv": np.array([0.9]), "waiting": np.array([6])}
    rule = make_autoscaler("wva_v1")
    assert asked(rule, (0.0, pool([9], **full)), (60.0, pool([9], target=2, starting=1, **full))) == [2, 2]
