"""The kinds of action that steer ``ranked`` give its schedule, bit for bit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import kvgym
from helpers.environments.plain import plain, plain_env
from helpers.selection import others_long
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import known_to

KINDS = ("rank", "rank_scores")
OTHER = {
    "lost": -5.0,
    "prompt": 0.3,
    "footprint": 1.1,
    "value": 0.1,
    "cost": 0.7,
    "cost_room": 0.4,
    "cost_waiting": -0.3,
    "cost_active": 0.1,
    "cost_least": 1.1,
    "free": 0.03,
    "growth": 0.1,
    "gate": 0.5,
}
"""Weights that differ from the defaults."""

LITTLE = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}
CLASSES = {
    "classes": [
        {
            "name": name, "rate": 8.0, "ttft_slo": 1.0 + wait, "tbt_slo": 0.3,
            "prompt": {"kind": "uniform", "low": 20, "high": 90}, "output": {"kind": "uniform", "low": 1, "high": most},
        }
        for name, wait, most in (("short", 0.0, 20), ("long", 4.0, 100))
    ],
    "predictions": {"kind": "interval", "epsilon": 0.5},
}  # fmt: skip
HURRY = [
    {"name": name, "weight": 0.5, "ttft_slo": ttft, "tbt_slo": tbt}
    for name, ttft, tbt in (("paying", 5.0, 0.2), ("free", 30.0, 1.0))
]
SCENARIOS = {
    "noisy": {"scenario": "mc-sf-noisy", "rate": 24.0},
    "unknown": {"workload": {"preset": "lmsys", "predictions": {"kind": "none"}}, "rate": 24.0},
    "objectives": {"workload": CLASSES, "kv_capacity": 1500},
    "blocks": {"scenario": "mc-sf-noisy", "rate": 24.0, "block_size": 16, "kv_capacity": 4096},
    "evictions": {
        "workload": LITTLE,
        "rate": 60.0,
        "kv_capacity": 200,
        "system": {"progress_on_evict": "kept"},
    },
    "slots": {"scenario": "mc-sf-model-2", "num_requests": 60},
    "many": {"workload": LITTLE, "rate": 2000.0, "kv_capacity": 60_000},
    "many in a hurry": {"workload": LITTLE | {"classes": HURRY}, "rate": 2000.0, "kv_capacity": 60_000},
    "many with objectives": {"workload": CLASSES, "rate": 2000.0, "kv_capacity": 60_000},
}


def ranked_with(weights):
    return make_policy("ranked", **weights)


def informed(arguments, weights):
    """Return arguments with the information that the scheduler gets for the same requests."""
    table = EnvConfig.of(action="rank", information=[], **arguments).make_scenario().make_workload().sample(0)
    return arguments | {"information": sorted(known_to(ranked_with(weights), table))}


def action_for(kind, weights, config):
    if kind == "rank":
        return np.array([weights.get(w.name, w.default) for w in WEIGHTS])
    return np.zeros(config.queue_window + config.active_window)


def play(env, action, seed=5):
    env.reset(options={"workload_seed": seed})
    while True:
        observation, _, terminated, truncated, _ = env.step(action() if callable(action) else action)
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            return env.result()


def same(one, other):
    assert one.completed
    for column in ("finish_time", "first_token_time", "start_time", "num_evictions", "num_admissions"):
        np.testing.assert_array_equal(one.requests[column], other.requests[column], strict=True)
    np.testing.assert_array_equal(one.worker["iteration"], other.worker["iteration"])


# ---------------------------------------------------------------- equal to the scheduler


@pytest.mark.parametrize("weights", [{}, OTHER], ids=["defaults", "other"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rank", {"hold": 1}),
        ("rank", {"hold": 13, "queue_order": "queue", "epochs": "decision"}),
        ("rank_scores", {}),
        ("rank_scores", {"hold": 7, "queue_order": "attained", "queue_window": 2, "features": []}),
    ],
)
def test_the_schedule_is_that_of_ranked(kind, options, scenario, weights):
    """Bit for bit, for any span of actions and any order of the window."""
    arguments = informed({"num_requests": 250} | SCENARIOS[scenario], weights)
    base = weights if kind == "rank_scores" else {}
    env = plain_env(action=kind, weights=base, **arguments, **options)
    found = play(env, action_for(kind, weights, env.config))
    expected = kvgym.simulate(env.episodes.system, env.episodes.workload.sample(5), ranked_with(weights))
    same(found, expected)
    assert not math.isnan(found.requests["finish_time"].sum())


def test_the_scenarios_distinguish_weights_and_information():
    """Other weights, or less information, give another schedule; some evict, and some have many active requests.

    Otherwise equality would prove little.
    """
    evicted = 0
    for scenario, arguments in SCENARIOS.items():
        full = informed({"num_requests": 250} | arguments, {})
        env = plain_env(action="rank", **full)
        default = play(env, action_for("rank", {}, env.config)).requests
        if scenario.startswith("many"):
            table = env.episodes.workload.sample(5)
            log = kvgym.simulate(env.episodes.system, table, ranked_with({}), log=True).log
            assert log["num_active"].max() > 128
        other = play(env, action_for("rank", OTHER, env.config)).requests
        assert not np.array_equal(default["finish_time"], other["finish_time"])
        evicted += int(default["num_evictions"].sum())
        if scenario in ("noisy", "objectives"):
            blind = plain_env(action="rank", **full | {"information": []})
            less = play(blind, action_for("rank", {}, env.config)).requests
            assert not np.array_equal(default["finish_time"], less["finish_time"])
    assert evicted > 0


@pytest.mark.parametrize(
    ("kind", "scenario"),
    others_long(
        list(itertools.product(KINDS, ["objectives", "evictions", "many", "many in a hurry"])),
        {
            ("rank", "objectives"),
            ("rank_scores", "evictions"),
            ("rank", "many in a hurry"),
            ("rank_scores", "many"),
        },
    ),
)
def test_scalar_vector_and_plain_python_are_equal(kind, scenario, equal):
    """With random actions, which change at every step."""
    arguments = informed({"num_requests": 30, **SCENARIOS[scenario]}, {})
    many = scenario.startswith("many")
    if many:
        hurry = {"classes": HURRY} if scenario == "many in a hurry" else {}
        arguments |= {"num_requests": 135, "workload": LITTLE | {"limits": {"max_total_len": 25}} | hurry}
    arguments |= {"action": kind, "hold": 3, "queue_window": 4, "active_window": 5}
    vector = ServingVectorEnv(2, **plain(**arguments))
    alone = [plain_env(compiled=compiled, **arguments) for compiled in (True, True, False)]
    seen, _ = vector.reset(options={"workload_seed": [1, 2]})
    first = [
        env.reset(options={"workload_seed": seed})[0] for env, seed in zip(alone, (1, 2, 1), strict=True)
    ]
    assert equal(seen, np.stack(first[:2]))
    vector.action_space.seed(0)
    ended, most = [False] * 3, 0
    while not any(ended):
        most = max(most, len(alone[0].view.active))
        actions = vector.action_space.sample() * (0.1 if kind == "rank_scores" else 1.0)
        found = vector.step(actions)
        steps = [env.step(action) for env, action in zip(alone, (*actions, actions[0]), strict=True)]
        assert equal(found[0], np.stack([s[0] for s in steps[:2]]))
        assert equal(found[1].tolist(), [s[1] for s in steps[:2]])
        assert equal(steps[0], steps[2])
        ended = [s[2] or s[3] for s in steps]
    assert equal(alone[0].result().requests, alone[2].result().requests)
    assert (most > 128) == many


def test_an_episode_does_not_depend_on_the_previous_one():
    """An episode with more requests than the tables hold enlarges them."""
    env = plain_env(action="rank", num_requests=60, rate=30.0)
    action = action_for("rank", OTHER, env.config)
    first = play(env, action)
    play(env, lambda: env.action_space.sample(), seed=9)
    same(play(env, action), first)
    longer = plain_env(action="rank", workload={"preset": "lmsys", "duration": 3.0, "rate": 20.0})
    room = len(longer.episodes.slots[0].block["requests"])
    seed = max(range(30), key=lambda s: len(longer.episodes.workload.sample(s)))
    assert len(longer.episodes.workload.sample(seed)) > room
    found = play(longer, action_for("rank", {}, env.config), seed=seed)
    table = longer.episodes.workload.sample(seed)
    system = longer.episodes.system
    known = known_to(ranked_with({}), table)
    if known == {"predicted_length", "slo"}:  # no objectives in this workload: slo has no effect
        same(found, kvgym.simulate(system, table, "ranked"))


# ---------------------------------------------------------------- agents


class Constant:
    """An agent with additions or weights that depend on the observation."""

    def __init__(self, kind):
        self.kind = kind

    def predict(self, observation, deterministic=True):
        if self.kind == "rank":
            return action_for("rank", OTHER if observation[6] > 0.1 else {}, None), None
        return 4.0 * np.sin(100.0 * observation[:32].astype(float)), None


@pytest.mark.parametrize("hold", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_gives_the_same_schedule_as_a_policy(kind, hold):
    arguments = {"action": kind, "hold": hold, "num_requests": 150, "rate": 30.0}
    env, model = plain_env(**arguments), Constant(kind)
    observation, _ = env.reset(options={"workload_seed": 4})
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(model.predict(observation)[0])
        ended = terminated or truncated
    table = env.episodes.workload.sample(4)
    agent = AgentPolicy(model, **plain(**arguments))
    # The environment also ends at its horizon and on a stall; the schedule before does not depend on that.
    same(env.result(), kvgym.simulate(kvgym.load_scenario("a100-llama2-70b").make_system(), table, agent))


def test_agents_schedule_every_worker_of_a_cluster():
    """Adding nothing is ranked on every worker, each with its own memory."""

    class Nothing:
        def predict(self, observation, deterministic=True):
            return np.zeros(32), None

    system = kvgym.load_scenario("a100-llama2-70b").make_system().replicate(3)
    table = kvgym.make_workload("lmsys", num_requests=90, rate=60).sample(0)
    agent = AgentPolicy(Nothing(), action="rank_scores", information=sorted(known_to(ranked_with({}), table)))
    same(kvgym.simulate(system, table, agent), kvgym.simulate(system, table, "ranked"))
