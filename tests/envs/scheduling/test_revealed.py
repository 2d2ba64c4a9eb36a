"""Revealed information is in the observation: every need changes it, only if revealed."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import kvgym
from helpers.environments.plain import plain_env
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling import observations as observations_module
from kvgym.envs.scheduling import revealed, spaces
from kvgym.envs.scheduling.revealed import FEATURES, INFORMATION, MOST_CLASSES, SHOW, log_share
from kvgym.errors import ConfigError

CLASSES = [
    {"name": name, "weight": 0.5, "prompt": {"kind": "constant", "value": 4}, "priority": 1,
     "output": {"kind": "constant", "value": 5}, "ttft_slo": 6.0, "tbt_slo": 2.0}
    for name in "ab"
]  # fmt: skip
KIND = {
    "prompt": {"kind": "constant", "value": 4},
    "output": {"kind": "constant", "value": 5},
    "features": [-1.0, 3],
}
WORKLOAD = {
    "classes": CLASSES, "lengths": {"kind": "mixture", "kinds": [KIND]}, "num_requests": 12,
    "arrivals": {"kind": "poisson", "rate": 1.0},
}  # fmt: skip

DISTRIBUTION = {"kind": "distribution", "shape": "log_normal", "sigma": 0.5}
RENEWED = {"kind": "noisy", "epsilon": 0.5, "renew_every": 1}

# Two workloads that differ in the information of the need, and have equal observations without it.
OTHER = {
    "predicted_length": lambda w: w | {"predictions": {"kind": "noisy", "epsilon": 0.8}},
    "length_interval": lambda w: w | {"predictions": {"kind": "interval", "bounds": [1, 30]}},
    "true_length": lambda w: with_class(w, output={"kind": "constant", "value": 9}),
    "class": lambda w: w | {"classes": [CLASSES[0] | {"weight": 0.05}, CLASSES[1]]},
    "class_rates": lambda w: w | {"classes": [CLASSES[0] | {"weight": 0.05}, CLASSES[1]]},
    "features": lambda w: w | {"lengths": {"kind": "mixture", "kinds": [KIND | {"features": [0.5, 3]}]}},
    "client": lambda w: w | {"clients": {"count": 50}},
    "length_distribution": lambda w: w | {"predictions": DISTRIBUTION | {"sigma": 2.0}},
    "renewed_length": lambda w: w | {"predictions": RENEWED | {"renew_error": 3.0}},
    "deadline": lambda w: with_class(w, e2e_slo=9.0),
    "slo": lambda w: with_class(w, ttft_slo=3.0, tbt_slo=0.5),
    "priority": lambda w: with_class(w, priority=3),
    "saved_duration": lambda w: w,
    "prefix_cache": lambda w: w,
    "rank": lambda w: w,
}
PLACED = ("saved_duration", "prefix_cache", "rank")
"""Features that depend on more than the requests."""
PLAIN = tuple(name for name in FEATURES if name != "rank")
"""Features of every kind of action."""


def with_class(workload, **fields):
    return workload | {"classes": [c | fields for c in workload["classes"]]}


def make(need, workload, **arguments):
    """Return an environment that reveals one need, or has one feature, with predictions if needed."""
    if "predictions" not in workload:
        workload = workload | {"predictions": {"kind": "exact"}}
        if need == "length_interval":
            workload["predictions"] = {"kind": "interval", "epsilon": 0.4}
        if need in ("true_length", "class_rates"):
            workload["predictions"] = {"kind": "none"}
    if need == "length_distribution" and workload["predictions"]["kind"] != "distribution":
        workload["predictions"] = DISTRIBUTION
    if need == "renewed_length" and "renew_every" not in workload["predictions"]:
        workload["predictions"] = RENEWED
    if need == "client" and "clients" not in workload:
        workload = workload | {"clients": {"count": 5}}
    shown = {"features": [need]} if need in FEATURES else {"information": [need]}
    if need == "deadline":
        shown["information"] = ["slo"]
    if need == "rank":
        shown["action"] = "rank_scores"
    return plain_env(**{
        "action": "admit_count", "scenario": "mc-sf-model-2", "kv_capacity": 60, "workload": workload,
        "queue_window": 3, "active_window": 3, "batch_time": AFFINE, "information": [], **shown, **arguments,
    })  # fmt: skip


AFFINE = {"kind": "affine", "constant": 1.0, "per_decode_token": 0.1, "per_context_token": 0.01}


def observations(env, steps=6):
    """Return the observations of the first steps, rows (steps, D)."""
    rows = [env.reset(options={"workload_seed": 3})[0]]
    for _ in range(steps):
        masks, kind = env.action_masks(), env.config.kind
        action = kind.greedy(env.config, masks) if kind.name == "rank_scores" else int(masks[1])
        rows.append(env.step(action)[0])
    return np.array(rows)


def test_everything_that_can_be_revealed_is_tried():
    assert set(OTHER) == {*INFORMATION, *FEATURES}
    assert set(SHOW) <= set(OTHER)


@pytest.mark.parametrize("need", OTHER)
def test_revealing_changes_the_observation(need):
    workload = WORKLOAD
    env = make(need, workload)
    shown = observations(env)
    blind = make(need, workload, information=[], features=[])
    hidden = observations(blind)
    names, common = spaces.feature_names(env.config), spaces.feature_names(blind.config)
    places = [names.index(name) for name in common]
    new = [k for k, name in enumerate(names) if name not in common]
    assert (shown[:, new] != 0).any() or not np.array_equal(shown[:, places], hidden)
    if need == "deadline":  # with slo, which changes standard features
        assert new
    elif need not in ("predicted_length", "slo"):  # standard features, which are 0 or 1 if hidden
        assert new
        np.testing.assert_array_equal(shown[:, places], hidden)
    assert all(env.observation_space.contains(row) for row in shown)


@pytest.mark.parametrize("need", [need for need in OTHER if need not in PLACED])
def test_revealed_information_depends_on_the_requests(need):
    """Observations differ between requests with other information only if it is revealed."""
    workload = WORKLOAD
    one, other = (observations(make(need, w), 1) for w in (workload, OTHER[need](workload)))
    assert not np.array_equal(one, other)
    blind = [
        observations(make(need, w, information=[], features=[]), 1) for w in (workload, OTHER[need](workload))
    ]
    np.testing.assert_array_equal(*blind)


def test_columns_by_hand():
    """Memory 60, classes 0 and 1 with 4 + 5 tokens; the second decode of a batch costs 0.1 + 0.01 per token read."""
    workload = WORKLOAD | {"predictions": {"kind": "interval", "bounds": [2, 7]}}
    workload = workload | {"classes": [CLASSES[0] | {"priority": -1}, CLASSES[1]]}
    env = make("class", workload, information=["true_length", "length_interval", "class", "class_rates", "features", "slo"], features=PLAIN)  # fmt: skip  # noqa: E501
    env.reset(options={"workload_seed": 3})
    table = env.episodes.slots[0].table
    found = dict(zip(spaces.feature_names(env.config), env.episodes.observations[0].tolist(), strict=True))
    first = int(table.class_id[0])
    assert found["queue.0.output_left"] == pytest.approx(5 / 69)
    assert found["queue.0.low_left"] == pytest.approx(2 / 66)
    assert found["queue.0.high_left"] == pytest.approx(7 / 71)
    assert found["queue.0.class"] == pytest.approx((first + 1) / (first + 5))
    assert found["queue.0.priority"] == pytest.approx(0.0 if first else -0.5)
    assert [found[f"queue.0.feature_{k}"] for k in range(4)] == [-0.5, 0.75, 0.0, 0.0]
    scale = float(env.episodes.settings["rate_scale"][0])
    assert found["classes.rate_1"] == pytest.approx(0.5 / (0.5 + scale))
    assert found["classes.prompt_0"] == pytest.approx(4 / 60)
    assert found["classes.output_1"] == pytest.approx(5 / 60)
    assert found[f"classes.rate_{MOST_CLASSES - 1}"] == 0
    while env.view.num_active < 2:
        env.step(1 if env.action_masks()[1] else 0)
    found = dict(zip(spaces.feature_names(env.config), env.episodes.observations[0].tolist(), strict=True))
    active = env.view.active
    context, made = int(active.num_kv_tokens[-1]), int(active.num_output_tokens[-1])
    smallest = 1 + 0.1 + 0.01
    assert active.num_prefill_left[-1] == 0
    saved = 0.1 + 0.01 * (context + 1) if found["active.0.saved_duration"] > 0 else 0
    assert found["active.0.saved_duration"] == pytest.approx(saved / (saved + smallest), rel=0.02)
    assert found["active.0.output_left"] == pytest.approx((5 - made) / (69 - made))
    assert found["active.0.high_left"] == pytest.approx((7 - made) / (71 - made))


def test_tokens_as_logarithms_and_classes_one_hot_by_hand():
    """Memory 60, every prompt has 4 tokens and every output 5; the second request has the class 1."""
    workload = WORKLOAD | {"predictions": {"kind": "interval", "bounds": [2, 7]}}
    information = ["true_length", "length_interval", "class"]
    env = make("class", workload, information=information, token_scale="log")
    names = spaces.feature_names(env.config)
    env.reset(options={"workload_seed": 3})
    share = lambda tokens: pytest.approx(np.log2(1 + tokens) / 17)  # noqa: E731

    def found():
        return dict(zip(names, env.episodes.observations[0].tolist(), strict=True))

    first, row = int(env.episodes.slots[0].table.class_id[0]), found()
    assert [row[f"queue.0.{name}"] for name in ("prompt", "output_left", "low_left", "high_left")] == [
        share(tokens) for tokens in (4, 5, 2, 7)
    ]
    assert [row[f"queue.0.class_{k}"] for k in range(MOST_CLASSES)] == [
        k == first for k in range(MOST_CLASSES)
    ]
    while env.view.num_active < 1 or env.view.active.num_output_tokens[-1] == 0:
        env.step(1 if env.action_masks()[1] else 0)
    active, row = env.view.active, found()
    assert row["active.0.kv"] == share(active.num_kv_tokens[-1])
    assert row["active.0.generated"] == share(active.num_output_tokens[-1])
    meanings = dict(observations_module.queue_features(env.config))
    assert meanings["prompt"] == "tokens to prefill, log2(1 + tokens) / 17"


def test_clients_distributions_and_deadlines_by_hand():
    """Deadlines 9 s after arrival, a scale of times of 2 s, predictions renewed after every token."""
    workload = with_class(WORKLOAD, e2e_slo=9.0) | {
        "clients": {"count": 3}, "predictions": DISTRIBUTION | {"renew_every": 1},
    }  # fmt: skip
    shown = ["slo", "client", "length_distribution", "renewed_length"]
    env = make("deadline", workload, information=shown, time_scale=2.0)
    env.reset(options={"workload_seed": 3})
    table = env.episodes.slots[0].table
    forecasts, client = table.forecasts, int(table.client_id[0])

    def look():
        return dict(zip(spaces.feature_names(env.config), env.episodes.observations[0].tolist(), strict=True))

    found, predicted = look(), int(table.predicted_output_len[0])
    assert found["queue.0.client"] == pytest.approx((client + 1) / (client + 5))
    for k in (1, 5, 10):
        tokens = int(forecasts.tenths[0, k - 1])
        assert found[f"queue.0.tenth_{k}"] == pytest.approx(tokens / (tokens + 64))
    assert found["queue.0.renewed_left"] == pytest.approx(predicted / (predicted + 64))
    assert found["queue.0.e2e_slack"] == pytest.approx(9 / (9 + 20))
    while not env.view.num_active or not env.view.active.num_output_tokens[0]:
        env.step(1 if env.action_masks()[1] else 0)
    active, found = env.view.active, look()
    made, i = int(active.num_output_tokens[-1]), int(active.request_id[-1])
    renewed = int(forecasts.renewed[forecasts.start[i] + made - 1]) if made else predicted
    left = max(renewed - made, 1)
    assert found["active.0.renewed_left"] == pytest.approx(left / (left + 64))
    slack = table.arrival_time[i] + 9 - env.view.clock
    assert found["active.0.e2e_slack"] == pytest.approx(slack / (abs(slack) + 20))


def test_a_deadline_needs_objectives():
    with pytest.raises(ConfigError, match="'deadline' needs 'slo' in information"):
        make("deadline", WORKLOAD, information=[])


def test_dict_has_a_key_for_classes():
    env = make("class_rates", WORKLOAD, observation="dict")
    observation, _ = env.reset(seed=0)
    assert observation["classes"].shape == (3 * MOST_CLASSES,)
    assert env.observation_space.contains(observation)
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("need", "lacking"),
    [("class", "classes"), ("class_rates", "classes"), ("features", "feature columns"), ("client", "clients"),
     ("length_distribution", "predictions"), ("renewed_length", "predictions")],
)  # fmt: skip
def test_missing_classes_and_features(need, lacking):
    with pytest.raises(ConfigError, match=f"information has '{need}'.*{lacking}"):
        plain_env(action="admit_count", scenario="mc-sf-model-2", information=[need])
    with pytest.raises(ConfigError, match=r"unknown feature 'colour'.*Valid names: .*priority"):
        plain_env(action="admit_count", scenario="mc-sf-model-2", features=["colour"])


def test_more_classes_than_an_observation_holds():
    many = WORKLOAD | {"classes": [CLASSES[0] | {"name": f"c{k}"} for k in range(MOST_CLASSES + 1)]}
    with pytest.raises(ConfigError, match="has 9 classes; an observation has room for 8"):
        make("class_rates", many)
    make("class", many)


class Notes:
    """An agent that records its observations."""

    def __init__(self):
        self.seen = []

    def predict(self, observation, deterministic=True, action_masks=None):
        self.seen.append(np.array(observation))
        return int(action_masks.sum()) - 1, None


@pytest.mark.parametrize("cache", [False, True])
def test_an_agent_has_the_same_observations_as_a_policy(cache):
    system, shown = {}, list(INFORMATION[3:])
    workload = WORKLOAD | {"clients": {"count": 3}, "predictions": DISTRIBUTION | {"renew_every": 1}}
    if cache:
        shown.remove("class_rates")
        levels = [{"count": 2, "tokens": 9}]
        workload = workload | {"prefixes": {"levels": levels, "block": 3}}
        system = {"prefix_cache": "computed", "prefix_block": 3}
    env = make("class", workload, information=shown, features=PLAIN, system=system)
    arguments = env.config.model_dump()
    in_env, in_engine = Notes(), Notes()
    observation, _ = env.reset(options={"workload_seed": 1})
    ended = False
    while not ended:
        choice, _ = in_env.predict(observation, action_masks=env.action_masks())
        observation, _, terminated, truncated, _ = env.step(choice)
        ended = terminated or truncated
    kvgym.simulate(env.episodes.system, env.episodes.workload.sample(1), AgentPolicy(in_engine, **arguments))
    assert len(in_env.seen) == len(in_engine.seen)
    np.testing.assert_array_equal(in_env.seen, in_engine.seen)
    names = spaces.feature_names(env.config)
    rates = np.array(in_env.seen)[:, names.index("cache.hit_rate")]
    assert (rates > 0).any() == cache


def test_looked_up_logarithms_are_those_that_are_computed(monkeypatch):
    tokens = [0, 1, 2, 1000, 4095, 4096, 131_071, 200_000]
    looked_up = [log_share.py_func(t) for t in tokens]
    monkeypatch.setattr(revealed, "LOG_SHARES", np.zeros(0, np.float32))
    assert looked_up == [log_share.py_func(t) for t in tokens]
    assert [looked_up[1], looked_up[-2]] == pytest.approx([1 / 17, 1.0])
    assert looked_up[-1] == 1.0
