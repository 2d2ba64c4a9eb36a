"""States of the places of a fleet, without an engine: what targets start, cancel and drain, in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError
from kvgym.simulator.cluster.luck import Lives, StartUps
from kvgym.simulator.cluster.members import (
    DRAINS,
    OFF,
    STARTING,
    STATES,
    UP,
    Members,
    seconds_in,
)
from kvgym.simulator.fleet import Fleet, Pool

SEED = np.random.SeedSequence(0)


class Places:
    """A fleet with numbers of unfinished requests that a test sets."""

    def __init__(self, *pools: Pool, **settings: Any) -> None:
        fleet = Fleet(pools, **settings)
        self.load = [0] * fleet.num_places
        initial = [pool.count for pool in pools]
        self.lost: list[int] = []
        self.members = Members(
            fleet, initial, self.load.__getitem__, StartUps(fleet, SEED), Lives(fleet, SEED), self.lose
        )

    def lose(self, k: int) -> None:
        """Note that a worker has lost what it had."""
        self.lost.append(k)
        self.load[k] = 0

    @property
    def states(self) -> list[str]:
        """The state of each place."""
        return [STATES[state] for state in self.members.state]


def test_a_start_takes_its_time_and_is_billed_from_the_order() -> None:
    fleet = Places(Pool(0, most=2, least=0, startup=60))
    fleet.members.set_targets(10, [1])
    assert fleet.states == ["starting", "off"]
    assert fleet.members.due == 70
    fleet.members.advance(69)
    assert fleet.states == ["starting", "off"]
    fleet.members.advance(70)
    assert fleet.states == ["ready", "off"]
    assert fleet.members.due == np.inf
    assert seconds_in(fleet.members.changes, 2, 80, (STARTING, UP, DRAINS)).tolist() == [70, 0]


def test_the_worker_with_the_fewest_requests_drains_and_of_equal_ones_the_last() -> None:
    fleet = Places(Pool(3, most=3))
    fleet.load[:] = [2, 1, 1]
    fleet.members.set_targets(2, [2])
    assert fleet.states == ["ready", "ready", "draining"]
    fleet.members.set_targets(3, [1])
    assert fleet.states == ["ready", "draining", "draining"]
    fleet.load[2] = 0
    fleet.members.advance(5)
    assert fleet.states == ["ready", "draining", "off"]


def test_the_latest_drain_is_cancelled_before_a_place_starts() -> None:
    fleet = Places(Pool(3, most=4, startup=5))
    fleet.load[:] = [1, 1, 1, 0]
    fleet.members.set_targets(1, [1])
    assert fleet.states == ["ready", "draining", "draining", "off"]
    fleet.members.set_targets(2, [2])
    assert fleet.states == ["ready", "ready", "draining", "off"]  # the last to begin, though at the same time
    fleet.members.set_targets(2, [4])
    assert fleet.states == ["ready", "ready", "ready", "starting"]


def test_the_latest_start_is_cancelled_before_a_worker_drains() -> None:
    fleet = Places(Pool(1, most=3, startup=10))
    fleet.members.set_targets(0, [2])
    fleet.members.set_targets(5, [3])
    fleet.members.set_targets(6, [2])
    assert fleet.states == ["ready", "starting", "off"]


def test_an_idle_worker_that_drains_is_off_once_and_billed_once() -> None:
    fleet = Places(Pool(2, most=2))
    fleet.members.set_targets(4, [1])
    assert fleet.states == ["ready", "off"]
    assert [tuple(change) for change in fleet.members.changes[2:]] == [(4, 1, DRAINS), (4, 1, OFF)]
    assert seconds_in(fleet.members.changes, 2, 10, (UP, DRAINS)).tolist() == [10, 4]


def test_a_start_waits_for_the_budget_and_draining_workers_count() -> None:
    fleet = Places(Pool(2, most=2), Pool(0, most=1, least=0, startup=3), budget=2)
    fleet.load[:] = [1, 1, 0]
    fleet.members.set_targets(1, [1, 1])
    assert fleet.states == ["ready", "draining", "off"]
    fleet.load[1] = 0
    fleet.members.advance(5)
    assert fleet.states == ["ready", "off", "starting"]
    assert fleet.members.due == 8


def test_gpus_of_an_idle_worker_serve_a_start_of_an_earlier_pool_at_once() -> None:
    fleet = Places(Pool(0, most=1, least=0, startup=3), Pool(1, most=1, least=0), budget=1)
    fleet.members.set_targets(1, [1, 0])
    assert fleet.states == ["starting", "off"]


def test_a_drain_waits_for_the_least_up_time_and_then_takes_the_older_worker() -> None:
    fleet = Places(Pool(1, most=3, startup=10, min_uptime=20))
    fleet.members.set_targets(0, [3])
    fleet.members.set_targets(5, [2])
    fleet.members.advance(10)
    fleet.members.set_targets(15, [1])
    assert fleet.states == ["ready", "ready", "off"]
    assert fleet.members.due == 20
    fleet.members.advance(20)
    assert fleet.states == ["off", "ready", "off"]


def test_one_bit_of_time_does_not_stop_a_drain_for_ever() -> None:
    fleet = Places(Pool(1, most=2, startup=0.3, min_uptime=0.6))
    fleet.members.set_targets(0.1, [2])
    fleet.members.advance(fleet.members.due)
    fleet.load[:] = [1, 0]
    fleet.members.set_targets(0.5, [1])
    while fleet.members.due < np.inf:
        before = fleet.members.due
        fleet.members.advance(before)
        assert fleet.members.due > before
    assert fleet.states.count("ready") == 1


def test_equal_starts_have_equal_times_for_every_autoscaler() -> None:
    fleet = Fleet((Pool(1, most=3, startup=100, sigma=0.05),))
    one, two = StartUps(fleet, SEED), StartUps(fleet, SEED)
    drawn = [one(place, start) for place in range(3) for start in range(3)]
    assert drawn == [two(place, start) for place in range(3) for start in range(3)]
    assert len(set(drawn)) == 9
    assert 80 < min(drawn) < max(drawn) < 120


@given(st.data())
def test_random_targets_keep_the_budget_and_reach_what_it_allows(data: st.DataObject) -> None:
    pools = tuple(
        Pool(
            data.draw(st.integers(0, 2)), most=3, least=0, startup=data.draw(st.sampled_from([0.0, 1.0, 2.5])),
            gpus=data.draw(st.integers(1, 2)), min_uptime=data.draw(st.sampled_from([0.0, 2.0])),
        )
        for _ in range(2)
    )  # fmt: skip
    used = sum(pool.count * pool.gpus for pool in pools)
    fleet = Places(*pools, budget=max(1, used) + data.draw(st.integers(0, 3)))
    members, time = fleet.members, 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        time += data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
        fleet.load[:] = [data.draw(st.integers(0, 2)) for _ in fleet.load]
        while members.due <= time:
            members.advance(members.due)
        members.advance(time)
        members.set_targets(time, [data.draw(st.integers(0, 3)) for _ in pools])
        assert members.in_use <= members.fleet.limit
    fleet.load[:] = [0] * len(fleet.load)
    members.advance(time)
    while members.due < np.inf:
        members.advance(members.due)
    wanted = [int((members.state[members.pool_of == g] == UP).sum()) for g in range(2)]
    assert all(have <= target for have, target in zip(wanted, members.target, strict=True))
    free = members.fleet.limit - members.in_use
    for g, pool in enumerate(pools):
        assert wanted[g] == members.target[g] or pool.gpus > free
    times = [change.time for change in members.changes]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 3, "most": 2}, "count = 3; expected 0 … most = 2 workers"),
        ({"count": 1, "most": 2, "least": 3}, "least = 3"),
        ({"count": 1, "most": 2, "startup": -1.0}, "startup = -1.0"),
        ({"count": 1, "most": 2, "drain": "kill"}, "drain = 'kill'; valid: finish, requeue"),
    ],
)
def test_pools_say_what_is_wrong(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pool(**wrong)  # type: ignore[arg-type]


def test_a_budget_covers_the_workers_of_the_start() -> None:
    with pytest.raises(ConfigError, match="budget = 1"):
        Fleet((Pool(2, most=2),), budget=1)
