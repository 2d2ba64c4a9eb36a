"""``priority``: one answer per request, which a scheduler below takes as predicted length, score or class."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from kvgym.baselines.ranked import Ranked
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.actions.priority import ASKED, COUNTS, HIGHEST, PLACE, SUMS
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import make_policy
from kvgym.simulator.tables import WAITING

SMALL = {
    "num_requests": 60, "rate": 40.0, "kv_capacity": 700,
    "workload": {
        "preset": "lmsys", "limits": {"max_prompt_len": 300, "max_output_len": 200},
    },
}  # fmt: skip

NOISY = {
    "kv_capacity": 4000,
    "workload": {**SMALL["workload"], "predictions": {"kind": "noisy", "epsilon": 0.5}},
}
"""Predictions that may be too short, as schedulers must expect of answers."""


MIXED = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 40.0},
        "lengths": {
            "kind": "mixture",
            "kinds": [
                {"prompt": {"kind": "uniform", "low": 9, "high": 300},
                 "output": {"kind": "uniform", "low": low, "high": 2 * low}, "features": [low / 50, {"mean": -1}]}
                for low in (5, 90)
            ],
        },
        "predictions": {"kind": "none"},
    },
}  # fmt: skip
"""Requests of two kinds with feature columns."""


def asked_of(env):
    """Return the request that the environment asks for."""
    block = env.episodes.slots[0].block
    arrived = int(block["tracker"][0]["next_arrival"])
    if block["notes"][ASKED] < arrived:
        return int(block["notes"][ASKED])
    return int(block["active"][int(block["notes"][PLACE])]["request_id"])


def same_schedule(one, other):
    for name in ("start_time", "first_token_time", "finish_time", "num_evictions"):
        np.testing.assert_array_equal(one.requests[name], other.requests[name])


@pytest.mark.parametrize("every", [0, 7])
@pytest.mark.parametrize("scheduler", ["ranked", "mc_sf"])
def test_predictions_as_answers_give_the_schedule_of_the_scheduler(scheduler, every):
    env = ServingEnv(
        action="priority", scheduler=scheduler, ask_every=every, unit_actions=False,
        information=("predicted_length",), **{**SMALL, **NOISY},
    )  # fmt: skip
    env.reset(options={"workload_seed": 3})
    table = env.episodes.slots[0].table
    steps, ended = 0, False
    while not ended:
        answer = np.log2(table.predicted_output_len[asked_of(env)])
        _, _, terminated, truncated, info = env.step(np.array([answer]))
        steps, ended = steps + 1, terminated or truncated
    assert info["completed"]
    same_schedule(env.result(), env.episodes.simulate(make_policy(scheduler), table, 3))
    again = (
        np.maximum(table.output_len // every, 1) if every else 0
    )  # at 1, every, 2 every … before the last token
    assert steps == 60 if not every else steps >= 60 + (again - 1).sum()


def test_requests_are_asked_for_in_order_and_before_the_scheduler_decides(requests_of):
    """Two requests arrive at 0 and one at 1; memory holds one at a time, and the answers set the order."""
    env = ServingEnv(
        action="priority", scenario="mc-sf-model-2", scheduler="mc_sf", kv_capacity=6, unit_actions=False,
        information=(), workload=requests_of((0, 3, 2), (0, 3, 2), (1, 3, 2)),
    )  # fmt: skip
    env.reset(seed=0)
    asked = []
    for answer in (3.0, 1.0, 0.0):  # 8, 2 and 1 tokens; mc_sf never starts what it expects not to fit
        asked.append(asked_of(env))
        *_, info = env.step(np.array([min(answer, 1.58)]))
    assert asked == [0, 1, 2]
    order = np.argsort(env.result().requests["start_time"])
    assert order.tolist() == [1, 2, 0]
    assert info["completed"]


def test_additions_to_scores_set_the_order(requests_of):
    """Three equal requests, of which memory holds one at a time: the lowest score comes first."""
    env = ServingEnv(
        action="priority", scenario="mc-sf-model-2", answer="score", kv_capacity=6, unit_actions=False,
        workload=requests_of((0, 3, 2), (0, 3, 2), (0, 3, 2)),
    )  # fmt: skip
    assert (env.action_space.low, env.action_space.high) == (-10.0, 10.0)
    env.reset(seed=0)
    for answer in (2.0, 1.0, -1.0):
        *_, info = env.step(np.array([answer]))
    assert np.argsort(env.result().requests["start_time"]).tolist() == [2, 1, 0]
    assert info["completed"]


class Added(Ranked):
    """``ranked`` with numbers in its memory that are added to the scores of requests."""

    def __init__(self, added):
        super().__init__()
        self.added = added

    def memory(self, system):
        memory, (first, rows), n = super().memory(system), self.additions, system.max_requests
        memory.reals[first + rows * n : first + rows * n + n] = self.added
        return memory


@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_additions_give_the_schedule_of_the_scheduler_with_them(spread):
    env = ServingEnv(
        action="priority", answer="score", unit_actions=False, information=("predicted_length",), **{**SMALL, **NOISY}
    )  # fmt: skip
    env.reset(options={"workload_seed": 3})
    table, ended = env.episodes.slots[0].table, False
    added = np.random.default_rng(0).normal(0.0, spread, len(table))
    while not ended:
        *_, terminated, truncated, _ = env.step(added[[asked_of(env)]])
        ended = terminated or truncated
    same_schedule(env.result(), env.episodes.simulate(Added(added), table, 3))
    order = env.episodes.simulate(make_policy("ranked"), table, 3).requests["start_time"]
    assert np.array_equal(order, env.result().requests["start_time"]) == (spread == 0.0)


CLASSES = {
    "kv_capacity": 700,
    "workload": {
        "classes": [
            {"name": name, "rate": 20.0, "prompt": {"kind": "uniform", "low": 5, "high": 200},
             "output": {"kind": "uniform", "low": low, "high": 2 * low}}
            for name, low in (("short", 5), ("long", 60))
        ],
        "num_requests": 60, "predictions": {"kind": "none"},
    },
}  # fmt: skip


@pytest.mark.parametrize("scheduler", ["ranked", "flow_control_classes:budgets=2/1"])
def test_classes_as_answers_give_the_schedule_of_the_scheduler(scheduler):
    env = ServingEnv(action="priority", answer="class", scheduler=scheduler, unit_actions=False, **CLASSES)
    env.reset(options={"workload_seed": 3})
    table, ended = env.episodes.slots[0].table, False
    while not ended:
        answer = table.class_id[asked_of(env)] + 0.4  # is rounded
        *_, terminated, truncated, _ = env.step(np.array([answer]))
        ended = terminated or truncated
    same_schedule(env.result(), env.episodes.simulate(make_policy(scheduler), table, 3))


def test_answered_classes_set_the_order_and_metrics_keep_the_own_ones(requests_of):
    """``flow_control_classes`` starts class 0 before class 1 and class 2; memory holds one request at a time."""
    env = ServingEnv(
        action="priority", scenario="mc-sf-model-2", answer="class", scheduler="flow_control_classes",
        kv_capacity=6, unit_actions=False, workload=requests_of((0, 3, 2), (0, 3, 2), (0, 3, 2)),
    )  # fmt: skip
    env.reset(seed=0)
    own = env.episodes.slots[0].block["workload"]["class_id"].copy()
    for answer in (2.0, 0.0, 1.0):
        *_, info = env.step(np.array([answer]))
    block = env.episodes.slots[0].block
    assert block["requests"]["class_id"].tolist() == [2, 0, 1]
    assert np.argsort(env.result().requests["start_time"]).tolist() == [1, 2, 0]
    np.testing.assert_array_equal(block["workload"]["class_id"], own)
    assert info["completed"]


def test_workers_of_a_cluster_ask_for_their_own_requests():
    class Counting(Steady):
        calls = 0

        def predict(self, observation, deterministic=True):
            type(self).calls += 1
            return super().predict(observation)

    scenario = load_scenario("a100-llama2-70b").override(
        workers=2, kv_capacity=700, workload=SMALL["workload"]
    )
    scenario = scenario.override(workload={**scenario.workload, "num_requests": 60, "rate": 40.0})
    agent = AgentPolicy(Counting(), action="priority", **SMALL)
    found = kvgym.compare(scenario, [agent], seeds=1, keep_examples=True, jobs=1).examples["agent"]
    assert set(found.requests["worker"]) == {0, 1}
    assert Counting.calls == 60
    assert found.worker["outstanding_tokens"].tolist() == [0, 0]


def test_answers_sort_the_queue_window():
    env = ServingEnv(
        action="priority", scheduler="ranked", unit_actions=False, information=("predicted_length",),
        queue_order="predicted", queue_window=3, **{**SMALL, **NOISY, "kv_capacity": 700},
    )  # fmt: skip
    env.reset(seed=4)
    rng, ended, most = np.random.default_rng(0), False, 0
    while not ended:
        *_, terminated, truncated, _ = env.step(rng.uniform(0.0, 8.0, 1))
        ended = terminated or truncated
        block = env.episodes.slots[0].block
        waiting = np.flatnonzero(block["requests"]["status"] == WAITING)
        order = np.lexsort((waiting, block["requests"]["predicted_len"][waiting]))
        shown = block["window"][: int(block["episode"][0]["num_window"])]
        assert shown.tolist() == waiting[order][:3].tolist()
        most = max(most, len(waiting))
    assert most > 10


class Steady:
    """Answers by the logarithm of the prompt, or by another number of the observation from behind."""

    def __init__(self, place=19):
        self.place = place

    def predict(self, observation, deterministic=True):
        prompt = observation[..., -self.place]
        return np.tanh(4 * (prompt - 0.4))[..., None].astype(np.float32), None


@pytest.mark.parametrize(
    "options",
    [
        {"answer": "class"},
        {"answer": "score", "ask_every": 16},
        {"scheduler": "work_conserving_sjf", "ask_every": 16},
        {"information": ("features",), **MIXED},
    ],
    ids=["class", "score", "again", "features"],
)
def test_an_agent_decides_as_in_the_environment(options):
    options, shown = {**SMALL, **options}, len(options.get("information", ()))
    env, model = ServingEnv(action="priority", **options), Steady(4 if shown else 19)
    assert env._parts["asked"][0] == env.observation_space.shape[0] - 19 - 4 * shown
    observation, _ = env.reset(options={"workload_seed": 5})
    ended = False
    while not ended:
        request = env.episodes.slots[0].table.features[asked_of(env)]
        if shown:
            np.testing.assert_allclose(observation[-4:], request / (1 + abs(request)), rtol=1e-6)
        observation, _, terminated, truncated, _ = env.step(model.predict(observation)[0])
        ended = terminated or truncated
    agent = AgentPolicy(model, action="priority", **options)
    found = env.episodes.simulate(agent, env.episodes.requests(5), 5)
    same_schedule(env.result(), found)
    assert found.worker["outstanding_tokens"][0] == 0  # answers count as predictions, for routers


@pytest.mark.parametrize("answer", ["predicted_length", "score"])
def test_vector_environments_step_as_single_ones(answer):
    envs = ServingVectorEnv(num_envs=3, action="priority", answer=answer, **SMALL)
    batch, _ = envs.reset(seed=7)
    single = [ServingEnv(action="priority", answer=answer, **SMALL) for _ in range(3)]
    tables = [slot.table for slot in envs.episodes.slots]
    model = Steady()
    for env, table in zip(single, tables, strict=True):
        env.episodes.requests = lambda seed, table=table: table
        env.reset(seed=0)
    for _ in range(40):
        actions = model.predict(batch)[0]
        batch, rewards, *_ = envs.step(actions)
        for k, env in enumerate(single):
            observation, reward, *_ = env.step(actions[k])
            np.testing.assert_array_equal(observation, batch[k])
            assert reward == rewards[k]


def test_statistics_of_lengths_by_hand(requests_of):
    """Outputs of 2 and 8 tokens with prompts of 3, in the size 2 … 3, then one of 4 with a prompt of 9."""
    env = ServingEnv(
        action="priority", scenario="mc-sf-model-2", kv_capacity=60, information=(),
        workload=requests_of((0, 3, 2), (0, 3, 8), (0, 9, 4), (50, 3, 1)),
    )  # fmt: skip
    env.reset(seed=0)
    for _ in range(3):
        observation, *_ = env.step(np.zeros(1, np.float32))
    notes = env.episodes.slots[0].block["notes"]
    assert notes[COUNTS : COUNTS + 4].tolist() == [0, 2, 0, 1]
    assert notes[SUMS : SUMS + 4].tolist() == [0, 4, 0, 2]
    lengths = observation[slice(*env._parts["lengths"])]
    # log2 of the outputs: 1, 3, 2; the asked request has a prompt of 3.
    deviation = np.sqrt(2 / 3)
    expected = [2 / HIGHEST, deviation / (deviation + 1), 3 / 67, 2 / HIGHEST, 2 / 18]
    np.testing.assert_allclose(lengths, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "fcfs"}, "'fcfs' cannot take the answers; expected a compiled policy"),
        (
            {"scheduler": "mc_sf", "answer": "score"},
            "expected a compiled policy that ranks requests by scores",
        ),
        (
            {"scheduler": "mc_sf", "answer": "class"},
            "expected a compiled policy that uses classes, but no class_rates",
        ),
        (
            {"scheduler": "wait", "answer": "class"},
            "expected a compiled policy that uses classes, but no class_rates",
        ),
        ({"answer": "class", "ask_every": 3}, "a request keeps its class; leave ask_every out"),
        (
            {"answer": None},
            "needs an answer; expected one of predicted_length, optional_length, score, class",
        ),
        ({"answer": "length"}, "answer"),
        ({"action": "knobs", "answer": "score"}, "answer is for action 'priority', not for 'knobs'"),
        ({"scheduler": None}, "needs a scheduler below"),
        ({"knobs": {"quantum": [0]}}, "knobs is for action 'knobs', not for 'priority'"),
        (
            {"action": "tokens", "scheduler": "ranked"},
            "scheduler is for action 'priority' or 'keep', not for 'tokens'",
        ),
        ({"action": "rank", "ask_every": 3}, "ask_every is for action 'priority', not for 'rank'"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        ServingEnv(**{"action": "priority", **options})


def test_by_name():
    env = gym.make("kvgym/Priority-v0", **SMALL)
    assert env.action_space.shape == (1,)
    assert kvgym.make_policy("ranked").info.name == env.unwrapped.config.scheduler


class Unsure:
    """Has no opinion of any request."""

    def predict(self, observation, deterministic=True):
        return -np.ones(1, np.float32), None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"information": ("class",), "uses": ("class",)},
        {"information": ("predicted_length",), "ask_every": 16, **NOISY},
    ],
    ids=["nothing", "class", "predictions"],
)
def test_no_opinion_gives_the_schedule_of_the_scheduler_below(options):
    """With what the workload carries of classes and predictions, bit for bit."""
    options = {**SMALL, "answer": "optional_length", **options}
    agent = AgentPolicy(Unsure(), action="priority", **options)
    assert agent.config.usual_action()[0].tolist() == [-1.0]  # agents start from it
    scenario = agent.config.make_scenario()
    system, table = scenario.make_system(), scenario.make_workload().sample(3)
    shown = agent.config.information
    table = replace(
        table,
        class_id=np.arange(60) % 3 if "class" in shown else None,
        predicted_output_len=table.predicted_output_len if "predicted_length" in shown else None,
    )
    found, alone = (kvgym.simulate(system, table, policy) for policy in (agent, "ranked"))
    same_schedule(found, alone)
    answered = AgentPolicy(Steady(), action="priority", **options)
    other = kvgym.simulate(system, table, answered)
    assert not np.array_equal(other.requests["finish_time"], alone.requests["finish_time"])


def test_no_opinion_is_for_schedulers_that_need_no_predictions():
    with pytest.raises(ConfigError, match="uses predicted lengths where there are any"):
        ServingEnv(action="priority", answer="optional_length", scheduler="work_conserving_sjf", **SMALL)


def test_what_an_agent_uses_need_not_be_there():
    """Without predictions and classes their features are 0, and the agent runs; what it needs is still required."""
    options = {**SMALL, "information": ("class", "predicted_length"), "uses": ("class", "predicted_length")}
    agent = AgentPolicy(Steady(), action="priority", **options)
    assert agent.info.needs == frozenset()
    assert agent.info.uses == {"class", "predicted_length"}
    bare = {"workload": {**SMALL["workload"], "predictions": {"kind": "none"}}}
    env = ServingEnv(action="priority", **{**options, **bare})
    observation, _ = env.reset(options={"workload_seed": 5})
    asked = observation[slice(*env._parts["asked"])]
    assert asked[4] == 0.0  # predicted
    assert not asked[6:].any()  # its class
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(Steady().predict(observation)[0])
        ended = terminated or truncated
    found = env.episodes.simulate(agent, env.episodes.requests(5), 5)
    same_schedule(env.result(), found)
    needy = AgentPolicy(Steady(), action="priority", **{**options, "uses": ("class",)})
    with pytest.raises(ConfigError, match="needs predicted_length"):
        env.episodes.simulate(needy, env.episodes.requests(5), 5)
    with pytest.raises(ConfigError, match="information has 'predicted_length', but the workload does not"):
        ServingEnv(action="priority", **{**options, "uses": ("class",), **bare})
    with pytest.raises(ConfigError, match="uses has 'client', which information lacks"):
        ServingEnv(action="priority", **{**options, "uses": ("client",)})
    with pytest.raises(ConfigError, match="needs class; add it to information, and leave it out of uses"):
        ServingEnv(action="keep", scheduler="flow_control_classes", information=("class",), uses=("class",))


def test_statistics_of_a_class_by_hand(requests_of):
    """Outputs of 2 and 8 tokens in class 1 have ended before a request of class 1, then one of class 0, arrives."""
    env = ServingEnv(
        action="priority", scenario="mc-sf-model-2", kv_capacity=60, information=("class",), uses=("class",),
        features=["class_lengths"], workload=requests_of((0, 3, 2), (0, 3, 8), (50, 3, 1), (51, 3, 1)),
    )  # fmt: skip
    table = replace(env.episodes.requests(0), class_id=np.array([1, 1, 1, 0]))
    env.episodes.requests = lambda seed: table
    observation, _ = env.reset(seed=0)
    assert observation[slice(*env._parts["class_lengths"])].tolist() == [0.0, 0.0]
    for _ in range(2):
        observation, *_ = env.step(np.zeros(1, np.float32))
    of_class = observation[slice(*env._parts["class_lengths"])]
    np.testing.assert_allclose(of_class, [2 / HIGHEST, 2 / 18], rtol=1e-6)  # log2 of the outputs: 1 and 3
    observation, *_ = env.step(np.zeros(1, np.float32))
    assert observation[slice(*env._parts["class_lengths"])].tolist() == [0.0, 0.0]
    with pytest.raises(ConfigError, match="feature 'class_lengths' needs 'class' in information"):
        ServingEnv(action="priority", features=["class_lengths"], information=())
    with pytest.raises(UnknownNameError, match="class_lengths"):
        ServingEnv(action="knobs", features=["class_lengths"])
