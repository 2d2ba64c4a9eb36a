"""Workers that change their role: states worked by hand, random targets, and runs of two pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.runs.fleets import members_of
from kvgym.baselines.autoscalers.given import Plan
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.simulator.cluster.members import DRAINS, OFF, STARTING, STATES, UP, Members, seconds_in
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable


def places(
    *pools: Pool, switch: float | None = 5.0, budget: int | None = None, kinds: tuple[int, ...] = (0, 0)
) -> tuple[Members, list[int]]:
    """Return the places of a fleet with equal pools, and numbers of unfinished requests that a test sets."""
    fleet = Fleet(pools, budget=budget, switch=switch)
    load = [0] * fleet.num_places
    return members_of(fleet, load, kinds if switch is not None else ()), load


def states(members: Members) -> list[str]:
    """Return the state of each place."""
    return [STATES[state] for state in members.state]


TWO = (Pool(2, most=2, startup=60), Pool(1, most=2, startup=60))


def test_a_worker_drains_and_is_ready_in_the_other_pool_after_the_switch() -> None:
    members, load = places(*TWO, budget=3)
    load[:] = [1, 1, 1, 0]
    members.set_targets(10, [1, 2])
    assert states(members) == ["ready", "draining", "ready", "off"]
    load[1] = 0
    members.advance(15)
    assert states(members) == ["ready", "off", "ready", "starting"]
    assert members.due == 20
    members.advance(20)
    assert states(members) == ["ready", "off", "ready", "ready"]
    assert [tuple(change) for change in members.changes[3:]] == [
        (10, 1, DRAINS), (15, 1, OFF), (15, 3, STARTING), (20, 3, UP),
    ]  # fmt: skip
    assert seconds_in(members.changes, 4, 30, (STARTING, UP, DRAINS)).sum() == 90  # three GPUs all the time


def test_an_idle_worker_changes_at_once_and_without_a_time_is_ready_at_once() -> None:
    members, _ = places(*TWO, switch=0.0)
    members.set_targets(10, [1, 2])
    assert states(members) == ["ready", "off", "ready", "starting"]
    assert members.due == 10
    members.advance(10)
    assert states(members) == ["ready", "off", "ready", "ready"]


def test_only_the_surplus_changes_and_the_rest_starts() -> None:
    members, load = places(Pool(2, most=2, startup=60), Pool(1, most=3, startup=60))
    load[:] = [1] * 5
    members.set_targets(10, [1, 3])
    assert states(members) == ["ready", "draining", "ready", "starting", "off"]
    assert members.due == 70
    load[1] = 0
    members.advance(20)
    assert states(members) == ["ready", "off", "ready", "starting", "starting"]
    assert members.due == 25


def test_targets_that_change_back_cancel_the_drain_or_let_the_worker_stop() -> None:
    for targets, expected in (([2, 1], "ready"), ([1, 1], "draining")):
        members, load = places(*TWO)
        load[:] = [1, 1, 1, 0]
        members.set_targets(10, [1, 2])
        members.set_targets(11, targets)
        assert states(members) == ["ready", expected, "ready", "off"]
        load[1] = 0
        members.advance(12)
        assert states(members) == ["ready", "ready" if expected == "ready" else "off", "ready", "off"]


def test_other_hardware_or_no_time_means_a_stop_and_a_start() -> None:
    for switch, kinds in ((5.0, (0, 1)), (None, (0, 0))):
        members, _ = places(*TWO, switch=switch, kinds=kinds)
        members.set_targets(10, [1, 2])
        assert states(members) == ["ready", "off", "ready", "starting"]
        assert members.due == 70


@given(st.data())
def test_random_targets_keep_the_budget_and_reach_what_it_allows(data: st.DataObject) -> None:
    pools = tuple(
        Pool(data.draw(st.integers(0, 2)), most=3, least=0, startup=2.5, min_uptime=min_uptime)
        for min_uptime in data.draw(st.sampled_from([(0.0, 0.0), (0.0, 2.0), (2.0, 2.0)]))
    )
    used = sum(pool.count for pool in pools)
    budget = max(1, used) + data.draw(st.integers(0, 3))
    members, load = places(*pools, switch=data.draw(st.sampled_from([0.0, 1.0])), budget=budget)
    time = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        time += data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
        load[:] = [data.draw(st.integers(0, 2)) for _ in load]
        while members.due <= time:
            members.advance(members.due)
        members.advance(time)
        members.set_targets(time, [data.draw(st.integers(0, 3)) for _ in pools])
        assert members.in_use <= budget
    load[:] = [0] * len(load)
    members.advance(time)
    while members.due < np.inf:
        members.advance(members.due)
    wanted = [int((members.state[members.pool_of == g] == UP).sum()) for g in range(2)]
    assert sum(wanted) == min(budget, sum(members.target))
    assert all(have <= target for have, target in zip(wanted, members.target, strict=True))


# ---------------------------------------------------------------- runs


def workers(decode: float = 0.05) -> list[Worker]:
    """Return places for four prefill and four decode workers."""
    models = {
        "prefill": AffineBatchTime(0.05, 2e-3, 0.0, 0.0),
        "decode": AffineBatchTime(decode, 2e-3, 0.0, 0.0),
    }
    return [Worker(1000, model, role) for role, model in models.items() for _ in range(4)]


def test_a_split_that_changes_beats_both_that_stay() -> None:
    """First long prompts with short outputs, then the other way round; five workers."""
    rng, n = np.random.default_rng(3), 50
    late = np.arange(n) >= n // 2
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 25, n)),
        prompt_len=np.where(late, 20, 900),
        output_len=np.where(late, 180, 4),
    )
    pools = (Pool(4, most=4, least=0), Pool(1, most=4, least=0))
    system = System.cluster(workers(), transfer_time=1e-5)
    fleet = Fleet(pools, budget=5, switch=1.0)
    half = float(table.arrival_time[n // 2])
    plans = {
        "many prefill": [(0.0, (4, 1))],
        "many decode": [(0.0, (1, 4))],
        "both": [(0.0, (4, 1)), (half, (1, 4))],
    }
    ends = {}
    for name, plan in plans.items():
        result = simulate(
            replace(system, fleet=fleet), table, "fcfs", router="join_shortest_queue", autoscaler=Plan(file=plan),
        )  # fmt: skip
        assert result.completed
        assert result.fleet is not None
        assert result.fleet.gpu_seconds().sum() == pytest.approx(
            5 * result.fleet.end
        )  # all GPUs all the time
        ends[name] = float((result.requests["finish_time"] - table.arrival_time).mean())
    assert ends["both"] < 0.8 * min(ends["many prefill"], ends["many decode"])


def test_a_switch_needs_equal_pools() -> None:
    pools = (Pool(1, most=4, least=0), Pool(1, most=4, least=0))
    with pytest.raises(ConfigError, match="switch = 1 s, but no two pools have equal hardware"):
        System.cluster(workers(decode=0.06), fleet=Fleet(pools, switch=1.0))
    with pytest.raises(ConfigError, match="switch = -1; expected seconds"):
        Fleet(pools, switch=-1)
