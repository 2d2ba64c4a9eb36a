"""Calls that step many environments: which ones, their outputs, and refused actions."""

from __future__ import annotations

from types import SimpleNamespace as E

import numpy as np
import pytest

from kvgym.envs.scheduling import stepping
from kvgym.envs.scheduling.memory import CHECK, FIRST, GIVEN, GIVEN_ACTIONS, PLAY, WORK, Arrays
from kvgym.envs.scheduling.stepping import FAILED, MANY, RUNNING, TERMINATED


@pytest.mark.parametrize("stored", [np.int8, np.int64, np.float32, np.float64])
def test_given_actions_are_read_in_their_stored_dtype(part, stored):
    """Only actions of environments 1 and 2 of 4 are read; 0 means that all have already been written."""
    arrays = Arrays(np.zeros((4, 1), np.int64), 2, 3, 2, 1, dtype=stored)
    arrays.given[:] = np.arange(8).reshape(4, 2)
    order = arrays.orders[0]
    order[FIRST : FIRST + 2] = 1, 3
    order[GIVEN] = {np.int8: 1, np.int64: 2, np.float32: 3, np.float64: 0}[stored]
    part("convert_given")(order, arrays.actions)
    written = [[2, 3], [4, 5]] if order[GIVEN] else [[0, 0], [0, 0]]
    assert arrays.actions.tolist() == [[0, 0], *written, [0, 0]]


class Stage:
    """Four environments with stub functions, and actions of two whole numbers from 0 to 3."""

    def __init__(self, todo, work=CHECK | PLAY, count=4, threads=1):
        self.calls, self.fetched, self.outcomes = [], [], {}
        self.arrays = Arrays(np.arange(count, dtype=np.int64)[:, None], 2, 3, 2, 1, threads)
        self.bounds = np.array([0.0, 0.0, 3.0, 3.0])
        self.arrays.todo[:] = todo
        self.arrays.orders[0, WORK] = work
        for name in ("rewards", "times", "terms", "outcomes", "ignored", "observations", "masks"):
            getattr(self.arrays, name)[:] = 99

    def functions(self):
        settings = E(
            action_bounds=self.bounds.ctypes.data, whole_actions=1, action_range=0, apply_function=(6, 7)
        )

        def open_environment(where):
            n = int(where[0])
            return E(n=n, settings=settings, episode=E(num_ignored=10 + n), run=E(w=E(clock=20.0 + n)))

        def process_one(e, where, what, action, apply):
            assert apply == (6, 7)
            self.calls.append((e.n, int(where[0]), int(what), action.tolist()))
            return self.outcomes.get(e.n, RUNNING)

        def total_reward(e, terms):
            terms[0] = 30 + e.n
            return 40.0 + e.n

        def observe(e, where, observation, mask):
            observation[:], mask[:] = 50 + e.n, 60 + e.n

        return {
            "open_environment": open_environment,
            "process_one": process_one,
            "total_reward": total_reward,
            "observe": observe,
            "apply_at": lambda *at: at,
            "fetch_environment": lambda soon, later: self.fetched.append((int(soon[0]), int(later[0]))),
        }

    def written(self, n):
        """Outcome, reward, term, ignored parts, time, observation and mask of an environment; 99 is untouched."""
        a = self.arrays
        assert len(set(a.observations[n])) == len(set(a.masks[n])) == 1
        row = (a.outcomes[n], a.rewards[n], a.terms[n, 0], a.ignored[n], a.times[n], a.observations[n, 0])
        return [*map(int, row), int(a.masks[n, 0])]


UNTOUCHED = [99] * 7


def played(n, outcome=RUNNING):
    return [outcome, 40 + n, 30 + n, 10 + n, 20 + n, 50 + n, 60 + n]


def test_each_environment_follows_its_order(part):
    stage = Stage([stepping.STEP, 0, stepping.OBSERVE, stepping.BEGIN])
    stage.arrays.actions[0] = 1, 2
    stage.outcomes = {0: TERMINATED}
    assert part("step_envs", **stage.functions())(stage.arrays.orders[0]) == 0
    assert stage.calls == [(0, 0, stepping.STEP, [1, 2]), (3, 3, stepping.BEGIN, [0, 0])]
    assert stage.written(0) == played(0, TERMINATED)
    assert stage.written(1) == UNTOUCHED
    assert stage.written(2) == [99] * 5 + [52, 62]
    assert stage.written(3) == played(3)
    assert stage.fetched == []


def test_an_order_covers_some_environments(part):
    stage = Stage(stepping.STEP)
    stage.arrays.orders[0, FIRST : FIRST + 2] = 1, 3
    assert part("step_envs", **stage.functions())(stage.arrays.orders[0]) == 0
    assert [stage.written(n) for n in range(4)] == [UNTOUCHED, played(1), played(2), UNTOUCHED]


def test_a_call_helps_with_the_parts_of_others(part):
    """Each environment is stepped once, whichever thread comes first; the own part first, two at a time."""
    stage = Stage(stepping.STEP, CHECK, count=7, threads=2)
    checked, *parts = stage.arrays.orders
    step = part("step_envs", **stage.functions())
    assert step(checked) == 0
    assert stage.calls == []
    stage.arrays.taken[1] = 2  # another thread has environments 0 and 1 in hand
    stage.outcomes = {2: FAILED, 6: FAILED}
    assert step(parts[1]) == 7
    assert [n for n, *_ in stage.calls] == [3, 4, 5, 6, 2]
    assert step(parts[0]) == 0
    assert len(stage.calls) == 5


def test_the_last_environment_that_failed_is_returned(part):
    stage = Stage(stepping.STEP)
    stage.outcomes = {0: FAILED, 2: FAILED}
    assert part("step_envs", **stage.functions())(stage.arrays.orders[0]) == 3
    assert [stage.written(n)[0] for n in range(4)] == [FAILED, RUNNING, FAILED, RUNNING]


@pytest.mark.parametrize("wrong", [(0, 4), (4, 0), (-1, 0), (0, 1.5), (np.nan, 0)])
@pytest.mark.parametrize("todo", [stepping.STEP, stepping.COMPOSE])
def test_an_action_outside_the_space_is_refused_before_anything_happens(part, todo, wrong):
    stage = Stage([0, stepping.STEP, todo, stepping.STEP])
    stage.arrays.actions[0] = stage.arrays.actions[2] = wrong  # the first is not read
    step = part("step_envs", **stage.functions())
    assert step(stage.arrays.orders[0]) == -3
    assert [stage.written(n) for n in range(4)] == [UNTOUCHED] * 4
    stage.arrays.todo[2] = stepping.START  # reads no action, either
    assert step(stage.arrays.orders[0]) == 0


def test_actions_are_checked_alone_or_not_at_all(part):
    stage = Stage(stepping.STEP, work=CHECK)
    step = part("step_envs", **stage.functions())
    assert step(stage.arrays.orders[0]) == 0
    assert stage.calls == []
    stage.arrays.actions[0] = 9
    assert step(stage.arrays.orders[0]) == -1
    stage.arrays.orders[0, WORK] = PLAY  # they have been checked
    assert step(stage.arrays.orders[0]) == 0
    assert len(stage.calls) == 4


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 1])
def test_memory_is_fetched_two_environments_ahead_in_a_large_call(part, count):
    stage = Stage(0, count=count)
    assert part("step_envs", **stage.functions())(stage.arrays.orders[0]) == 0
    ahead = [(n + 1, n + 2) for n in range(count - 2)]
    assert stage.fetched == (ahead if count >= MANY else [])


def test_given_actions_are_converted_before_they_are_checked(part):
    stage = Stage(stepping.STEP)
    order, given = stage.arrays.orders[0], np.full((4, 2), 2, np.int64)
    order[GIVEN_ACTIONS], order[GIVEN] = given.ctypes.data, 2
    assert part("step_envs", **stage.functions())(order) == 0
    assert [action for *_, action in stage.calls] == [[2, 2]] * 4
    given[3] = 5
    assert part("step_envs", **stage.functions())(order) == -4
