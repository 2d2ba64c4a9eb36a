"""Observations of prefix caches by the routing environment."""

from __future__ import annotations

import numpy as np
import pytest

import kvgym
from helpers.environments.routing_play import features, same_schedule
from kvgym.envs.routing.agents import AgentRouter
from kvgym.envs.routing.environment import RoutingEnv

CHATS = {
    "arrivals": {"kind": "poisson", "rate": 0.5},
    "lengths": {
        "kind": "independent",
        "prompt": {"kind": "uniform", "low": 2, "high": 8},
        "output": {"kind": "uniform", "low": 1, "high": 6},
    },
    "prefixes": {
        "levels": [{"count": 3, "tokens": 10}],
        "turns": {"number": 4, "open": 4, "max_context": 90},
        "block": 4,
    },
    "num_requests": 50,
}
RULES = {"prefix_cache": "computed", "prefix_block": 4}
SMALL = {
    "scenario": "mc-sf-model-2",
    "workload": CHATS,
    "kv_capacity": 200,
    "policy": "fcfs",
    "information": [],
    "system": RULES,
    "workers": 3,
}
APART = [{"count": 2, "role": "prefill"}, {"count": 2, "role": "decode"}]


class Sticky:
    """Chooses by a hash of what it observes of the caches."""

    def predict(self, observation, *, deterministic=True, action_masks=None):
        allowed = np.flatnonzero(action_masks)
        return np.int64(allowed[int(1000 * float(observation[-15:].sum())) % len(allowed)]), None


@pytest.mark.parametrize("changes", [{}, {"workers": APART}, {"system": {**RULES, "cache_staleness": 2.0}}])
def test_features_by_brute_force(changes):
    env = RoutingEnv(**{**SMALL, **changes}, time_scale=2.0)
    env.reset(options={"workload_seed": 3})
    capacity, seen, ended = env.system.usable_capacities.min(), set(), False
    smallest = env.config.make_settings(env.system, 50, 1.0)["duration_scale"][0]
    env.action_space.seed(1)
    while not ended:
        found, view = features(env), env.view
        known = int(view.request.num_kv_tokens[0] + view.request.num_prefill_left[0])
        for k, (hit, missing) in enumerate(zip(view.hits.tolist(), view.missing.tolist(), strict=True)):
            assert hit + missing == known
            base, decode, context, prefill = (
                float(view.column(f"batch_{name}")[k]) for name in ("base", "decode", "context", "prefill")
            )
            batch = (
                base
                + decode * view.column("outstanding_requests")[k]
                + context * view.column("kv_allocated")[k]
            )
            expected = {
                "hit": hit / known,
                "missing": missing / capacity,
                "prefill_time": prefill * missing / (prefill * missing + 2),
                "batch_time": batch / (batch + smallest),
                "previous": float(view.previous_worker == k),
            }
            assert {name: found[f"worker.{k}.{name}"] for name in expected} == pytest.approx(
                expected, rel=1e-5
            )
            seen |= {(hit > 0, view.previous_worker == k)}
        _, _, ended, _, _ = env.step(env.action_space.sample(env.sample_mask()))
    assert len(seen) > 2, seen
    assert not env.observer.flat[-5 * len(env.simulation.workers) :].any()


def test_the_rest_is_version_0():
    old, new = RoutingEnv(**SMALL, caches=False), RoutingEnv(**SMALL)
    assert new.feature_names[: len(old.feature_names)] == old.feature_names
    first, second = (env.reset(seed=4)[0] for env in (old, new))
    ended = False
    while not ended:
        np.testing.assert_array_equal(second[: len(first)], first)
        (first, one, ended, *_), (second, other, *_) = old.step(1), new.step(1)
        assert one == other


def test_states_are_restored_with_the_caches():
    env = RoutingEnv(**SMALL)
    env.reset(seed=2)
    for _ in range(20):
        env.step(0)
    state = env.get_state()
    steps = [[env.step(k % 3)[0] for k in range(15)]]
    env.set_state(state)
    steps.append([env.step(k % 3)[0] for k in range(15)])
    np.testing.assert_array_equal(*steps)


def test_caches_switch_the_prefix_cache_on():
    env = RoutingEnv(scenario="mc-sf-model-2", workers=2)
    assert env.system.prefix_cache == "computed"


def test_an_agent_acts_in_simulate_as_in_the_environment():
    env, agent = RoutingEnv(**SMALL), Sticky()
    observation, _ = env.reset(options={"workload_seed": 1})
    ended = False
    while not ended:
        observation, _, ended, _, _ = env.step(agent.predict(observation, action_masks=env.action_masks())[0])
    system, table = env.scenario.make_system(), env.result().table
    router = AgentRouter(agent, **SMALL)
    assert same_schedule(env.result(), kvgym.simulate(system, table, "fcfs", router=router, seed=1))
