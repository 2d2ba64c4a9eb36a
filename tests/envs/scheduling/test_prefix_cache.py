"""Environments with a prefix cache: features, masks, tables of every episode, states, and schedules of policies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import kvgym
from helpers.environments.plain import plain_env
from helpers.selection import others_long
from kvgym.envs.agents import play
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from playing.checks import check_state

SHARED = {
    "scenario": "a100-llama2-70b",
    "must_admit": False,
    "token_scale": "capacity",
    "batch_time": {"kind": "affine", "constant": 0.31, "per_prefill_token": 0.02, "per_context_token": 0.001},
    "kv_capacity": 120,
    "num_requests": 40,
    "rate": 3.0,
    "queue_window": 6,
    "active_window": 6,
    "workload": {
        "preset": "lmsys",
        "limits": {"max_prompt_len": 30, "max_output_len": 20},
        "prefixes": {
            "levels": [{"count": 2, "tokens": 15}],
            "turns": {"number": 4, "open": 3, "max_context": 90},
            "block": 4,
        },
    },
    "system": {"prefix_cache": "computed", "prefix_block": 4, "progress_on_evict": "recompute"},
}
"""Requests that share system prompts and the history of their session, in little memory."""


@pytest.fixture
def by_hand(tmp_path):
    """Return a function that makes an environment with three requests, memory of 12 tokens, and units of 2."""

    def make(action, **arguments):
        (tmp_path / "requests.csv").write_text(
            "arrival_time,prompt_len,output_len,predicted_output_len,hash_ids,hash_block\n"
            "0,4,3,3,1 2,2\n0,6,2,2,1 2 3,2\n3,5,1,1,1 2 9,2\n"
        )
        return plain_env(
            action=action, scenario="mc-sf-model-2", kv_capacity=12, queue_window=2, active_window=2,
            features=["prefix_cache"], workload={"lengths": {"kind": "trace", "path": str(tmp_path / "requests.csv")}},
            system={"first_token": "counted", "prefix_cache": "computed", "prefix_block": 2}, **arguments,
        )  # fmt: skip

    return make


def features(env):
    """Return the present observation by the names of its features."""
    names = spaces.feature_names(env.config)
    return dict(zip(names, env.episodes.observations[0].tolist(), strict=True))


def test_by_hand(by_hand):
    """Request 0 computes two units in the first batch. Request 1 needs 7 of 12 tokens, but 4 are there already.

    It starts next to request 0, which needs 6. At the end of the third batch both finish and leave the units 1, 2, 3
    in the cache; request 2 finds two of them.
    """
    env = by_hand("admit_count")
    _, info = env.reset(seed=0)
    shown = features(env)
    assert info["action_mask"].tolist() == [1, 1, 1]  # 5 + 7
    assert [shown[name] for name in ("queue.0.cached", "queue.1.shared", "cache.kv_cached")] == [0, 0, 0]
    *_, info = env.step(1)
    shown = features(env)
    assert info["action_mask"].tolist() == [1, 1, 0]
    assert shown["system.kv_need"] == pytest.approx(6 / 24)
    assert shown["queue.0.prompt"] == pytest.approx(2 / 12)
    assert shown["queue.0.cached"] == shown["queue.0.shared"] == pytest.approx(4 / 6)
    assert shown["queue.0.fits"] == 1
    assert shown["active.0.own"] == 1
    assert shown["cache.hit_rate"] == 0
    env.step(1)
    shown = features(env)
    assert env.view.kv_allocated == 6 + 7 - 4
    assert shown["active.0.own"] == pytest.approx(3 / 7)  # request 1
    assert shown["active.1.own"] == pytest.approx(2 / 6)
    known = 6 + 4 * 0.5 ** (1 / 64)
    assert shown["cache.hit_rate"] == pytest.approx(4 / known)
    env.step(0)
    shown = features(env)
    assert env.view.num_active == 0
    assert shown["cache.kv_cached"] == pytest.approx(6 / 12)
    assert (shown["queue.0.cached"], shown["queue.0.shared"]) == (pytest.approx(4 / 5), 0)
    *_, terminated, _, info = env.step(1)
    assert terminated
    assert features(env)["cache.hit_rate"] == pytest.approx(8 / (5 + known * 0.5 ** (1 / 64)), rel=0.01)


def test_a_decision_counts_shared_memory_once(by_hand):
    """Under the decision so far: what an evicted request shares is freed by the last holder, in either order."""
    env = by_hand("admit_evict")
    env.reset(seed=0)
    for action in (0, 4, 0, 4):  # admit, run, admit, run
        env.step(action)
    need = env.episodes.slots[0].block["episode"]["need"]
    assert need[0] == 7 + 8 - 4
    assert features(env)["active.1.own"] == pytest.approx(2 / 6)
    env.step(2)  # evict request 1; request 0 keeps the shared units
    assert need[0] == 7
    assert features(env)["active.0.own"] == 1
    env.step(2)
    assert need[0] == 0
    *_, info = env.step(4)
    assert info["time"] == 3  # an iteration without a batch
    assert env.view.num_waiting == 3


POLICIES = (("fcfs", "admit_count"), ("fcfs", "admit_evict"), ("fcfs", "flags"), ("vllm_v1", "tokens"))


@pytest.mark.parametrize(("policy", "action"), others_long(list(POLICIES), {POLICIES[0], POLICIES[3]}))
def test_a_policy_gives_the_same_schedule_in_the_environment(policy, action):
    windows = {"queue_window": 40, "active_window": 40}
    env = ServingEnv(action=action, **{**SHARED, **windows}, information=["predicted_length"])
    played, _ = play(env, policy, workload_seed=3)
    run = kvgym.simulate(env.episodes.system, env.episodes.workload.sample(3), policy, seed=3)
    for name in ("start_time", "first_token_time", "finish_time", "num_evictions"):
        np.testing.assert_array_equal(played.requests[name], run.requests[name])
    for name in ("total_hit_tokens", "total_hit_resumed", "total_dropped_units"):
        assert played.worker[name] == run.worker[name]
        assert run.worker[name] > 0
    assert run.completed


def test_tables_grow_with_an_episode():
    """If an episode of a vector needs larger tables, its steps are still those of a single environment."""
    tokens = {"kind": "uniform", "low": 4, "high": 60}
    prefixes = {"levels": [{"count": 300, "tokens": tokens}], "block": 4}
    workload = {**SHARED["workload"], "prefixes": prefixes}
    arguments = {**SHARED, "workload": workload, "num_requests": 4, "action": "admit_count"}
    vector, single = ServingVectorEnv(3, **arguments), ServingEnv(**arguments)
    rooms = [vector.episodes.slots[2].block.sizes.contents]
    for seed in (2, 0):
        vector.reset(options={"workload_seed": [1, 4, seed]})
        single.reset(options={"workload_seed": seed})
        rooms.append(vector.episodes.slots[2].block.sizes.contents)
        for _ in range(6):
            found, expected = vector.step(np.ones(3, np.int64)), single.step(1)
            assert found[0][2].tobytes() == expected[0].tobytes()
            assert found[1][2] == expected[1]
            check_state(vector.episodes, 2)
    assert rooms == [32, 64, 64]
    assert vector.episodes.slots[0].block.sizes.contents == 32
    observations, _ = vector.set_state([vector.get_state()[2]] * 3)
    assert observations[0].tobytes() == found[0][2].tobytes()


def random_steps(env, seed, count):
    """Play at random inside the mask; return observations, rewards and masks."""
    env.action_space.seed(seed)
    found = []
    for _ in range(count):
        action = env.action_space.sample(env.sample_mask())
        observation, reward, terminated, truncated, _ = env.step(action)
        found.append((observation.tobytes(), reward, env.action_masks().tobytes()))
        if terminated or truncated:
            env.reset()
    return found


CLUSTER = {name: SHARED[name] for name in ("kv_capacity", "num_requests", "workload", "system")}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ServingEnv(action="admit_evict", **SHARED, features=["prefix_cache"]),
        lambda: RoutingEnv(workers=2, rate=40.0, policy="fcfs", **CLUSTER),
    ],
)
def test_states_hold_the_cache(make):
    env = make()
    env.reset(seed=4)
    random_steps(env, 0, 30)
    state = env.get_state()
    simulated = (
        env.episodes.slots[0].block if hasattr(env, "episodes") else {"workers": env.simulation.workers}
    )
    assert (simulated["workers"]["kv_cached"] > 0).any()
    expected = random_steps(env, 1, 60)
    other = make()
    other.reset(seed=5)
    random_steps(other, 2, 11)
    for kept, again in (
        (pickle.loads(pickle.dumps(state)), env),
        (state, other),
        (state, copy.deepcopy(env)),
    ):
        again.set_state(kept)
        assert random_steps(again, 1, 60) == expected


def test_routing_gives_the_schedule_of_the_router():
    env = RoutingEnv(workers=3, rate=40.0, policy="fcfs", **CLUSTER)
    env.reset(options={"workload_seed": 2})
    ended = False
    while not ended:
        *_, terminated, truncated, _ = env.step(env.player("join_shortest_queue", 0)(None, None))
        ended = terminated or truncated
    table = env.workload.sample(2)
    run = kvgym.simulate(env.system, table, "fcfs", router="join_shortest_queue")
    assert run.worker["total_hit_tokens"].sum() > 0
    np.testing.assert_array_equal(env.result().requests["finish_time"], run.requests["finish_time"])


def test_hashes_must_fit_the_units():
    with pytest.raises(kvgym.errors.WorkloadError, match="one must divide the other; use a unit of 4 tokens"):
        ServingEnv(**{**SHARED, "system": {"prefix_cache": "computed", "prefix_block": 6}})
