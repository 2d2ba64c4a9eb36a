"""Memory that compiled code accesses by address lives as long as it is in use, and no longer.

``KVGYM_MAKES=10000`` makes and closes ten thousand environments instead of some hundred.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from kvgym.envs import RoutingEnv
from kvgym.envs.routing.vector_environment import RoutingVectorEnv
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError

TASK = {"scenario": "mc-sf-model-2", "num_requests": 12}
MAKES = int(os.environ.get("KVGYM_MAKES", "250"))
KINDS = {"serving": ServingEnv, "routing": RoutingEnv}
VECTORS = {"serving": ServingVectorEnv, "routing": RoutingVectorEnv}


def make(kind="serving", seed=0, **arguments):
    env = KINDS[kind](**TASK, **arguments)
    env.reset(seed=seed)
    return env


def play(env, steps=20):
    """Step with the last action that the mask allows; return rewards and observations."""
    found = []
    for _ in range(steps):
        if env.unwrapped._done:
            env.reset()
        observation, reward, *_ = env.step(int(np.flatnonzero(env.action_masks())[-1]))
        found.append((reward, observation.tobytes()))
    return found


def play_vector(env, steps=20):
    """Do the same in a vector; return the results of each environment."""
    found = []
    for _ in range(steps):
        actions = [int(np.flatnonzero(mask)[-1]) for mask in env.action_masks()]
        observations, rewards, *_ = env.step(np.array(actions))
        found.append([(float(r), o.tobytes()) for r, o in zip(rewards, observations, strict=True)])
    return [list(each) for each in zip(*found, strict=True)]


def churn():
    """Make other allocations use freed memory."""
    gc.collect()
    return [np.full(2000 + 37 * k, 0xAB, np.uint8) for k in range(400)]


@pytest.mark.parametrize("kind", KINDS)
def test_use_of_a_closed_environment(kind):
    env, other = make(kind), make(kind)
    state = env.get_state()
    observation = env.step(1)[0].copy()
    env.close()
    env.close()  # again: nothing happens
    uses = {
        "step": lambda: env.step(0),
        "reset": lambda: env.reset(seed=1),
        "get_state": env.get_state,
        "set_state": lambda: env.set_state(state),
        "result": env.result,
        "copy": lambda: copy.deepcopy(env),
        "pickle": lambda: pickle.dumps(env),
        "view": lambda: env.view.clock if kind == "serving" else env.view.request_id,
    }
    for use in uses.values():
        with pytest.raises(ClosedEnvironmentError, match="the environment is closed; make a new one"):
            use()
    assert observation.tobytes() == other.step(1)[0].tobytes()
    other.set_state(state)  # saved states outlive the environment
    assert observation.tobytes() == other.step(1)[0].tobytes()


@pytest.mark.parametrize("kind", VECTORS)
def test_use_of_a_closed_vector(kind):
    env = VECTORS[kind](3, **TASK)
    env.reset(seed=0)
    states = env.get_state()
    env.close()
    env.close()
    for use in (
        lambda: env.step(np.zeros(3, int)),
        lambda: env.reset(seed=1),
        env.get_state,
        lambda: env.set_state(states),
        lambda: copy.deepcopy(env),
    ):
        with pytest.raises(ClosedEnvironmentError, match="closed; make a new one"):
            use()
    other = make(kind)
    other.set_state(states[1])
    assert len(play(other)) == 20


def test_a_vector_with_a_failed_constructor_can_be_freed():
    with pytest.raises(ConfigError, match="kv_capacity"):
        ServingVectorEnv(2, kv_capacity=-1)
    gc.collect()  # an exception in __del__ would be an error of this test


@pytest.mark.parametrize("how", ["close", "free"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_outlives_the_environment_it_was_made_from(kind, how):
    env = make(kind)
    play(env, 3)
    expected = play(copy.deepcopy(env), 6)
    vector = VECTORS[kind](3, **TASK)
    vector.set_state([env.get_state()] * 3)
    if how == "close":
        env.close()
    del env
    kept = churn()
    for each in play_vector(vector, 6):  # no episode ends: a vector needs another step there
        assert each == expected
    assert len(kept) == 400


@pytest.mark.parametrize("kind", KINDS)
def test_environments_outlive_the_vector_or_the_copy_they_come_from(kind):
    vector = VECTORS[kind](2, **TASK)
    vector.reset(seed=5)
    env = KINDS[kind](**TASK)
    env.set_state(vector.get_state()[1])
    twin = pickle.loads(pickle.dumps(env))
    expected = play(copy.deepcopy(twin))
    vector.close()
    del vector
    kept = churn()
    assert play(env) == expected
    env.close()
    del env
    assert play(twin) == expected
    assert len(kept) == 400


def test_tables_in_use_outlive_the_environment():
    env = make()
    play(env, 5)
    requests = env.tables.requests
    before = requests.copy()
    env.close()
    del env
    kept = churn()
    assert requests.tobytes() == before.tobytes()
    assert len(kept) == 400


def test_parts_cannot_be_copied_without_their_environment():
    env = make()
    for part in (env.episodes, env.tables, env.episodes.slots[0].block):
        with pytest.raises(TypeError, match="copy or pickle the whole environment"):
            copy.deepcopy(part)


def test_a_state_with_another_layout_is_refused():
    from dataclasses import replace

    env = make()
    state = env.get_state()
    expected = play(copy.deepcopy(env))
    other = replace(state, episode=replace(state.episode, memory=state.episode.memory[:-64]))
    with pytest.raises(ConfigError, match="another version of kvgym"):
        env.set_state(other)
    assert play(env) == expected


def test_threads_step_their_own_environments():
    expected = [play(make(seed=k), 60) for k in range(4)]
    found = {}

    def work(k):
        for _ in range(3):
            ServingEnv(**TASK).close()  # others are made and closed meanwhile
            env = make(seed=k)
            found[k] = play(env, 60)
            env.close()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[k] for k in range(4)] == expected


ONE_ENVIRONMENT = """
import sys, threading, numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from test_lifetimes import ServingEnv, ServingVectorEnv

many = {"scenario": "mc-sf-model-2", "num_requests": 200}

def make(vector):
    env = ServingVectorEnv(64, num_threads=2, **many) if vector else ServingEnv(**many)
    env.reset(seed=0)
    return env

def step(env, vector, over):
    actions = np.zeros(64, int) if vector else 0
    while True:
        try:
            try:
                env.step(actions)
            except ResetNeeded:
                env.reset()  # another thread may have closed it by now
        except ClosedEnvironmentError:
            over.append("closed")
            return

for vector in (True, False) * 6:
    env, over = make(vector), []
    threads = [threading.Thread(target=step, args=(env, vector, over)) for _ in range(3)]
    for thread in threads:
        thread.start()
    state = env.get_state()
    for _ in range(3):
        env.set_state(state)
        env.reset()
    env.close()
    filled = [np.full(10_000, 0x7F, np.uint8) for _ in range(100)]  # takes the memory that was freed
    for thread in threads:
        thread.join(60)
    assert over == ["closed"] * 3, over
print("alive")
"""


def test_threads_can_share_and_close_an_environment():
    """Steps of several threads take turns, and memory is not freed before a call returns."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_ENVIRONMENT],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


PROCESSES = """
import hashlib, multiprocessing, os, pickle, sys
from test_lifetimes import make, play, play_vector, ServingVectorEnv, TASK

def child(env, vector, stream):
    stream.send((play(env), play_vector(vector)))

if __name__ == "__main__":
    env = make()
    play(env, 4)
    vector = ServingVectorEnv(2, **TASK)
    vector.reset(seed=2)
    found = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=child, args=(env, vector, there))
        process.start()
        found.append(here.recv())
        process.join()
        assert process.exitcode == 0
    found.append((play(env), play_vector(vector)))  # nothing of this process was changed
    assert found[0] == found[1] == found[2]
    print("equal")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_and_spawned_processes_have_their_own_environments(tmp_path):
    (tmp_path / "processes.py").write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, tmp_path / "processes.py"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


def resident():
    """Return the memory that this process uses, MB; what is free is given back before, where that is possible."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # of glibc
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
def test_made_and_closed_environments_leave_nothing_behind():
    """Half of the environments are closed, the others are freed; some are vectors."""
    before = None
    for k in range(MAKES):
        if k == min(100, MAKES // 2):  # everything that is loaded once is loaded
            before = resident()
        env = make(seed=k) if k % 20 else ServingVectorEnv(4, **TASK)
        if k % 20 == 0:
            env.reset(seed=k)
        else:
            env.step(0)
        if k % 2:
            env.close()
        del env
    one = ServingVectorEnv(1, **TASK)
    size = one.episodes.slots[0].block.memory.nbytes / 1e6
    del one
    allowed = 2.5
    assert size * MAKES / 2 > allowed  # a leak of everything would exceed the noise
    assert resident() - before < allowed
