"""Policies in the environment, and agents as policies: the same schedules as in the engine."""

import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from helpers.amount import number
from helpers.selection import others_long
from kvgym.envs.agents import AgentPolicy, NotExpressibleError, action_of, play
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, InvalidDecisionError
from kvgym.policies.policy import Decision

AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}
TIGHT = {
    "num_requests": 120,
    "kv_capacity": 5000,
    "workload": {"preset": "lmsys", "limits": {"max_total_len": 2500}},
    "horizon": 1e6,
    "queue_window": 120,
    "active_window": 120,
}
RECORDS = ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap")


def same_schedule(one, other):
    return all(np.array_equal(one.requests[name], other.requests[name], equal_nan=True) for name in RECORDS)


PLAYED = {
    "mc_sf": "predicted",
    "mc_benchmark": "queue",
    "fcfs": "queue",
    "alpha_greedy:alpha=0.3": "queue",
    "alpha_beta:alpha=0.3,beta=0.2": "queue",
}
"""Policies, and the order of the queue in which the kinds of action express them."""
BATCH_TIMES = {"affine": AFFINE, "unit": {"kind": "unit"}, "profile": None}


@pytest.mark.parametrize(
    ("policy", "action", "time"),
    others_long(
        list(itertools.product(PLAYED, ["admit_evict", "admit_count", "flags"], BATCH_TIMES)),
        {
            ("mc_sf", "admit_evict", "profile"), ("mc_benchmark", "flags", "affine"), ("fcfs", "admit_count", "unit"),
            ("fcfs", "admit_evict", "affine"), ("mc_sf", "flags", "unit"), ("mc_benchmark", "admit_count", "profile"),
            ("alpha_greedy:alpha=0.3", "flags", "profile"), ("alpha_beta:alpha=0.3,beta=0.2", "admit_count", "affine"),
        },
    ),
)  # fmt: skip
def test_a_policy_gives_the_same_schedule_in_the_environment(policy, action, time):
    batch_time, order = BATCH_TIMES[time], PLAYED[policy]
    options = dict(TIGHT) if batch_time is None else {**TIGHT, "batch_time": batch_time}
    env = ServingEnv(action=action, queue_order=order, **options)
    played, total = play(env, policy, workload_seed=3)
    run = kvgym.simulate(env.episodes.system, env.episodes.workload.sample(3), policy, seed=3)
    assert same_schedule(played, run)
    assert run.completed
    assert total == pytest.approx(-kvgym.compute_metrics(run)["e2e_latency_mean"], rel=1e-11)


def test_these_runs_contain_lifo_evictions():
    env = ServingEnv(action="admit_evict", batch_time=AFFINE, **TIGHT)
    assert play(env, "fcfs", workload_seed=3)[0].worker[0]["total_evicted"] > 10


def test_clearing_everything_is_expressible():
    options = {**TIGHT, "workload": {"preset": "lmsys", "predictions": {"kind": "noisy", "epsilon": 0.5}}}
    options |= {"num_requests": 60, "kv_capacity": 6200, "batch_time": AFFINE}
    env = ServingEnv(action="admit_evict", queue_order="predicted", **options)
    policy = "mc_sf:protection=0.1,overrun=extend"
    for seed in range(number(3, 1)):
        played, _ = play(env, policy, workload_seed=seed)
        run = kvgym.simulate(env.episodes.system, env.episodes.workload.sample(seed), policy, seed=seed)
        assert same_schedule(played, run)


def test_inexpressible_decisions_are_refused():
    env = ServingEnv(action="admit_count", num_requests=5, batch_time=AFFINE, queue_window=2, rate=1e6)
    env.reset(seed=0)
    with pytest.raises(NotExpressibleError, match="pauses"):
        next(action_of(env, Decision(admit=[0], tokens={0: 1})))
    with pytest.raises(InvalidDecisionError, match="gives tokens to request 0, which is not in the next"):
        next(action_of(env, Decision(tokens={0: 1})))
    with pytest.raises(InvalidDecisionError, match="evicts request 3, which is not here yet, not active"):
        next(action_of(env, Decision(evict=[3])))
    env.step(1)  # the others have arrived
    with pytest.raises(NotExpressibleError, match="queue window"):
        next(action_of(env, Decision(admit=[4])))
    knobs = ServingEnv(action="knobs", num_requests=5, batch_time=AFFINE)
    knobs.reset(seed=0)
    with pytest.raises(NotExpressibleError, match="knobs"):
        next(action_of(knobs, Decision()))
    blind = ServingEnv(action="admit_count", num_requests=5, batch_time=AFFINE, information=[])
    with pytest.raises(NotExpressibleError, match="predicted_length"):
        play(blind, "mc_sf")


NATURAL = {
    "scenario": "a100-llama2-70b",
    "queue_window": 16,
    "active_window": 16,
    "num_requests": 80,
    "rate": 60.0,
    "kv_capacity": 3000,
}
REWARD = {"latency": 1.0, "ttft": 0.3, "goodput": 2.0, "tokens": 0.01, "evictions": 0.001}


@pytest.mark.parametrize("policy", ["fcfs", "vllm_v1"])
def test_any_scheduler_runs_without_the_limits_of_actions(policy):
    """With the rewards that actions without limits earn."""
    env = ServingEnv(action="admit_count", reward=REWARD, **NATURAL)
    with pytest.raises(
        NotExpressibleError, match=r"; or play\(\.\.\., within_actions=False\) needs no"
    ) as found:
        play(env, policy)
    assert len(str(found.value)) <= 300
    result, total = play(env, policy, within_actions=False)
    wide = ServingEnv(action="tokens", reward=REWARD, **{**NATURAL, "queue_window": 80, "active_window": 80})
    played, expected = play(wide, policy)
    assert same_schedule(result, played)
    assert total == pytest.approx(expected, rel=1e-9)


def test_without_limits_information_and_episodes_do_not_matter():
    env = ServingEnv(action="knobs", reward_reference="fcfs", information=[], **NATURAL)
    env.reset(seed=0)
    clock = env.view.clock
    assert play(env, "fcfs", within_actions=False)[1] == 0
    assert -1 < play(env, "mc_sf", within_actions=False)[1] < 1
    assert env.view.clock == clock
    with pytest.raises(ConfigError, match="class"):
        play(env, "wait", within_actions=False)


REFUSED = {
    "1000000 tokens; valid": Decision(tokens={0: 1_000_000}),
    "-5 tokens": Decision(tokens={0: -5}),
    "evicts request 0 twice": Decision(evict=[0, 0]),
    "not later than now": Decision(wait_until=-1.0),
    "tokens to request 0, which is not in the next batch": Decision(evict=[0], tokens={0: 1}),
    "0.5; expected a whole number": Decision(tokens={0: 0.5}),
    "admits request 1000000000000": Decision(admit=[10**12]),
    "admits request 0": Decision(admit=[0]),
    "expected a kvgym.Decision": None,
}


@pytest.mark.parametrize("action", ["admit_count", "admit_evict", "flags", "tokens"])
def test_invalid_decisions_are_refused(action):
    """The environment then continues unchanged."""
    env, twin = (ServingEnv(action=action, num_requests=5, batch_time=AFFINE, rate=1e3) for _ in range(2))
    for e in (env, twin):
        e.reset(options={"workload_seed": 0})
        e.step(next(action_of(e, Decision(admit=[0]))) if action != "admit_evict" else 0)
        if action == "admit_evict":
            e.step(e.config.kind.idle(e.config))
    assert env.view.active.request_id.tolist() == [0]
    for message, decision in REFUSED.items():
        with pytest.raises(InvalidDecisionError, match=message):
            next(action_of(env, decision))
    if action != "tokens":
        with pytest.raises(NotExpressibleError, match="pauses"):
            next(action_of(env, Decision(admit=[1], tokens={0: 0})))
    idle = env.config.kind.idle(env.config)
    for _ in range(20):
        (one, *rest), (other, *others) = env.step(idle), twin.step(idle)
        assert np.array_equal(one, other)
        assert rest[:3] == others[:3]


def test_an_agent_runs_in_another_process(tmp_path):
    """Its pickle does not depend on the process that made it, before and after a run."""
    agent = AgentPolicy(FixedKnobs(), action="knobs", num_requests=20)
    scenario = kvgym.load_scenario("a100-llama2-70b")
    system, table = scenario.make_system(), kvgym.make_workload("lmsys", num_requests=20, rate=40).sample(0)
    finish = kvgym.simulate(system, table, agent).requests["finish_time"]
    (tmp_path / "agent.pkl").write_bytes(pickle.dumps(agent))
    program = (
        "import pickle, sys\nimport kvgym\nfrom test_agents import FixedKnobs\n"
        "agent = pickle.load(open('agent.pkl', 'rb'))\n"
        "table = kvgym.make_workload('lmsys', num_requests=20, rate=40).sample(0)\n"
        "system = kvgym.load_scenario('a100-llama2-70b').make_system()\n"
        "print(kvgym.simulate(system, table, agent).requests['finish_time'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, Path(__file__).parents[:2]), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == finish.tolist()


class Greedy:
    """An agent with masks that admits as much as it can."""

    def __init__(self, action):
        self.action = action

    def predict(self, observation, deterministic=True, action_masks=None):
        if self.action == "admit_count":
            return np.array(int(action_masks.sum()) - 1), None
        if self.action == "admit_evict":
            return np.array(0 if action_masks[0] else action_masks.size - 1), None
        if self.action == "flags":
            flags = action_masks[1::2].astype(np.int64)
            flags[16:] = 0
            return flags, None
        return np.array([3, 5, 3, 2]), None


@pytest.mark.parametrize("wrong", [{"action": "knobs"}, {"queue_window": 4}, {"observation": "dict"}])
def test_a_model_of_another_environment_is_refused(wrong):
    """By its spaces, if it has any, before a run starts."""
    options = {"action": "admit_count", "num_requests": 20}
    env, model = ServingEnv(**options), Greedy("admit_count")
    model.observation_space, model.action_space = env.observation_space, env.action_space
    AgentPolicy(model, **options, rate=3.0)
    with pytest.raises(
        ConfigError, match=r"agent 'x': it was trained with (observation|action)s .* \(action, win"
    ):
        AgentPolicy(model, name="x", **{**options, **wrong})
    with pytest.raises(ConfigError, match=r"agent 'm': expected a model with predict\(.* got 'm.zip'"):
        AgentPolicy("m.zip", name="m", **options)


def test_wrappers_around_the_environment_are_bypassed():
    env = gym.make("kvgym/Tokens-v0", num_requests=20)
    result, reward = play(env, "fcfs", workload_seed=1)
    inner, same = play(env.unwrapped, "fcfs", workload_seed=1)
    assert same_schedule(result, inner)
    assert reward == same
    with pytest.raises(ConfigError, match="schedules a worker, such as kvgym/Tokens-v0"):
        play(gym.make("kvgym/Route-v0"), "fcfs")


class Plain:
    """An agent without masks that reads the observation."""

    def predict(self, observation, deterministic=True):
        return np.array(int(observation[0] < 0.8) * 2), None


@pytest.mark.parametrize("epochs", ["iteration", "decision"])
@pytest.mark.parametrize("action", ["admit_count", "admit_evict", "flags", "knobs"])
def test_an_agent_gives_the_same_schedule_as_a_policy(action, epochs):
    options = {"action": action, "num_requests": 150, "epochs": epochs, "observation": "dict"}
    env, model = ServingEnv(**options), Greedy(action)
    observation, _ = env.reset(options={"workload_seed": 4})
    ended = False
    while not ended:
        choice, _ = model.predict(observation, action_masks=env.action_masks())
        observation, _, terminated, truncated, _ = env.step(choice)
        ended = terminated or truncated
    system = kvgym.load_scenario("a100-llama2-70b").make_system()
    run = kvgym.simulate(system, env.episodes.workload.sample(4), AgentPolicy(model, **options))
    assert same_schedule(env.result(), run)


def test_an_agent_in_a_comparison():
    agents = [
        AgentPolicy(Greedy("admit_count"), name="greedy", action="admit_count"),
        AgentPolicy(Plain(), name="plain", action="admit_count"),
    ]
    scenario = kvgym.load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 60}
    )
    comparison = kvgym.compare(scenario, [*agents, "mc_sf"], seeds=2)
    assert comparison.policies == ("greedy", "plain", "mc_sf")
    assert all(run.completed_once for run in comparison.runs)
    again = kvgym.compare(scenario, agents, seeds=[1])
    known = next(r.metrics for r in comparison.runs if r.policy == "greedy" and r.seed == 1)
    np.testing.assert_equal(again.runs[0].metrics, known)


@pytest.mark.parametrize("action", ["admit_count", "knobs"])
def test_agents_schedule_every_worker_of_a_cluster(action):
    """Each worker has a copy of the agent; one worker behind a router gives the schedule of one without."""
    scenario = kvgym.load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 60, "rate": 60}, kv_capacity=6144
    )
    agent = AgentPolicy(
        Greedy(action) if action == "admit_count" else FixedKnobs(), action=action, num_requests=60
    )
    alone, table = scenario.make_system(), scenario.make_workload().sample(0)
    one, four = alone.replicate(1), alone.replicate(4)
    found = [kvgym.simulate(system, table, agent).requests["finish_time"] for system in (alone, one, four)]
    assert np.array_equal(found[0], found[1])
    assert np.isfinite(found[2]).all()
    assert found[2].mean() < found[0].mean()


class Counting:
    """An agent with the number of its decisions as state; copies count together."""

    def __init__(self):
        self.states = []

    def __deepcopy__(self, memo):
        return self

    def predict(self, observation, state=None, deterministic=True, action_masks=None):
        state = 0 if state is None else state
        self.states.append(state)
        return action_masks.nonzero()[0][-1], state + 1


def test_the_state_of_an_agent_lasts_for_a_run_on_one_worker():
    scenario = kvgym.load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 60, "rate": 60}, kv_capacity=6144
    )
    system, table = scenario.make_system(), scenario.make_workload().sample(0)
    model = Counting()
    agent = AgentPolicy(model, action="admit_count", num_requests=60)
    for _ in range(2):
        kvgym.simulate(system, table, agent)
    half = len(model.states) // 2
    assert model.states == [*range(half), *range(half)]
    model.states.clear()
    kvgym.simulate(system.replicate(2), table, agent)
    counts = np.bincount(model.states)
    assert counts[0] == 2
    assert (np.diff(counts) <= 0).all()  # two sequences from 0


class FixedKnobs:
    """No margin, no cap, small chunks."""

    def predict(self, observation, deterministic=True, action_masks=None):
        return np.array([0, 7, 1, 0]), None


FixedKnobs.__module__ = "test_agents"  # as another process imports it
sys.modules.setdefault("test_agents", sys.modules[__name__])
