"""``kvgym/Cache-v0``: questions, the scheduler below, rules as players, agents as policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from kvgym.envs import AgentPolicy, ServingEnv, feature_names
from kvgym.errors import ConfigError

SMALL = {"num_requests": 60, "kv_capacity": 60_000}
TOOL_FOR_30 = 3  # of the lifetimes 2, 8, 30, 120


class Player:
    """Keeps the KV of turns that wait for a tool for 30 s, as an agent would."""

    def __init__(self, tool: int) -> None:
        self.tool = tool

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Return the action."""
        return (TOOL_FOR_30 if observation[self.tool] == 1 else 0), None


def play(env: ServingEnv, choose: Callable[[Any], int], seed: int = 0) -> float:
    observation, info = env.reset(options={"workload_seed": seed})
    total, over, asked = 0.0, False, feature_names(env.config).index("asked.present")
    while not over:
        assert observation[asked] == 1
        assert info["action_mask"].all()
        observation, reward, terminated, truncated, info = env.step(choose(observation))
        total, over = total + reward, terminated or truncated
    return total


def made(**arguments: Any) -> Any:
    return gym.make("kvgym/Cache-v0", **{**SMALL, **arguments}).unwrapped


@pytest.mark.parametrize("policy", ["fcfs", "vllm_v1"])
def test_keeping_nothing_is_the_scheduler_itself(policy):
    env = made(scheduler=policy)
    total = play(env, lambda observation: 0)
    expected = env.episodes.simulate(kvgym.make_policy(policy), env.episodes.slots[0].table, 0)
    assert env.result().requests["finish_time"].tobytes() == expected.requests["finish_time"].tobytes()
    assert total == pytest.approx(-kvgym.compute_metrics(expected)["e2e_latency_mean"])


@pytest.mark.parametrize("sessions", ["open", "closed"])
def test_a_player_that_acts_like_a_rule_is_the_rule(sessions):
    system = {"sessions": sessions}
    env = made(system=system)
    player = Player(feature_names(env.config).index("asked.tool"))
    play(env, lambda observation: player.predict(observation)[0])
    found = env.result()
    scenario = env.config.make_scenario()
    table = env.episodes.slots[0].table
    ruled = scenario.override(system={**scenario.system.model_dump(), "cache_rule": "fixed:tool=30,user=0"})
    by_rule = kvgym.simulate(ruled.make_system(), table, "fcfs")
    assert found.requests["finish_time"].tobytes() == by_rule.requests["finish_time"].tobytes()
    nothing = kvgym.simulate(scenario.make_system(), table, "fcfs")
    assert found.requests["finish_time"].tobytes() != nothing.requests["finish_time"].tobytes()
    as_policy = AgentPolicy(player, action="keep", system=system, **SMALL)
    by_policy = kvgym.simulate(scenario.make_system(), table, as_policy)
    assert found.requests["finish_time"].tobytes() == by_policy.requests["finish_time"].tobytes()


def test_no_rule_decides_beside_the_agent():
    with pytest.raises(ConfigError, match="cache_rule = 'fixed:tool=30,user=0': the agent decides"):
        made(system={"cache_rule": "fixed:tool=30,user=0"})
    scenario = kvgym.load_scenario("agent-sessions")
    scenario = scenario.override(system={**scenario.system.model_dump(), "cache_rule": "reload_cost"})
    system, table = scenario.make_system(), scenario.make_workload().sample(0)
    agent = AgentPolicy(Player(0), action="keep", **SMALL)
    with pytest.raises(ConfigError, match="cache_rule = 'reload_cost': the agent decides"):
        kvgym.simulate(system, table, agent)


def test_features_of_the_request_in_question():
    env = made(information=("true_length",))
    names = feature_names(env.config)
    at = names.index("asked.present")
    observation, _ = env.reset(options={"workload_seed": 0})
    shown = dict(zip((name.removeprefix("asked.") for name in names[at:]), observation[at:], strict=False))
    block = env.episodes.slots[0].block
    i = int(block["finished"][0])
    turn = block["turns"][int(block["turns"][i]["row"])]
    kept = block["prefix"][i]["left"] * env.episodes.system.prefix_unit
    assert shown["kv"] == np.float32(kept / env.episodes.system.usable_capacity)
    assert shown["turn"] == pytest.approx(1 / 9)
    assert shown["mean_gap"] == shown["returns"] == shown["pins"] == 0
    assert shown["follows"] == (turn["next"] >= 0)
    assert shown["gap"] == pytest.approx(turn["next_think"] / (turn["next_think"] + 10))
    env.step(5)
    assert block["pool"]["num_pins"][0] == 1
    assert block["pool"]["first_pin"][0] == i


def test_a_state_remembers_pins_and_the_question():
    env = made()
    env.reset(options={"workload_seed": 1})
    for action in (5, 3, 0, 5):
        env.step(action)
    state, futures = env.get_state(), []
    for _ in range(2):
        env.set_state(state)
        futures.append([env.step(k % 6)[:2] for k in range(20)])
    for one, other in zip(*futures, strict=True):
        assert one[1] == other[1]
        np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lifetimes": (3.0, 2.0)}, "expected at most 14 seconds > 0, in ascending order"),
        ({"lifetimes": (0.0,)}, "expected at most 14 seconds > 0, in ascending order"),
        ({"scheduler": "mc_sf"}, "scheduler 'mc_sf' needs predicted_length; add it to information"),
        ({"scheduler": None}, "action 'keep' needs a scheduler below, such as 'fcfs'"),
        ({"action": "rank", "lifetimes": (1.0,)}, "lifetimes is for action 'keep', not for 'rank'"),
        ({"knobs": {"cap": [1]}}, "knobs is for action 'knobs', not for 'keep'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ServingEnv(**{"action": "keep", **arguments})
