"""The kinds of action that steer ``ranked``: weights, scores and features by hand, windows, random actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.environments.plain import plain_env
from kvgym.baselines.ranked.layout import BASE, BETWEEN, NOTES, SCORES
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import greedy_action
from kvgym.errors import ConfigError, UnknownNameError

KINDS = ("rank", "rank_scores")
LITTLE = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}
SERVICES = (
    {"scenario": "mc-sf-noisy", "rate": 24.0},
    {
        "workload": {"preset": "lmsys", "predictions": {"kind": "none"}},
        "rate": 24.0,
        "kv_capacity": 4096,
        "block_size": 16,
        "information": ["slo"],
    },
    {"workload": LITTLE, "rate": 60.0, "kv_capacity": 200, "system": {"progress_on_evict": "kept"}},
    {"scenario": "mc-sf-model-2"},
)


# ---------------------------------------------------------------- by hand

SLOTTED = {"scenario": "mc-sf-model-2", "queue_window": 3, "active_window": 2}


def weights_of(**given):
    """Return an action with all weights 0 except those given, and a gate that admits every request."""
    return np.array([float({"gate": 100.0, **given}.get(w.name, 0.0)) for w in WEIGHTS])


def scores(env):
    """Return the scores of the requests, and the additions to them."""
    reals, n = env.episodes.slots[0].block["rule_reals"], len(env.tables.requests)
    return reals[SCORES : SCORES + n].copy(), reals[SCORES + n : SCORES + 2 * n].copy()


def test_weights_by_hand(requests_of):
    """Outputs are known to be 5: the score is log(5 + prompt weight x prompt), and follows the weights at once."""
    workload = requests_of(
        (0, 8, 5), (0, 3, 5), (0, 6, 5), predictions={"kind": "interval", "bounds": [5, 5]}
    )
    env = plain_env(
        action="rank", kv_capacity=13, workload=workload, information=["length_interval"], hold=1, **SLOTTED
    )
    env.reset(seed=0)
    assert env.episodes.slots[0].block["window"].tolist() == [1, 2, 0]  # with the defaults, smallest first
    default = 1.5 * np.log([8 + 2.5, 3 + 2.5, 6 + 2.5]) + np.log(5 + 0.1 * np.array([8, 3, 6]))
    np.testing.assert_allclose(scores(env)[0], default, rtol=1e-12)
    env.step(weights_of(prompt=2.0, footprint=-1.0, prefill_value=1.0))
    expected = np.log(5 + 2.0 * np.array([8, 3, 6])) - np.log([8 + 2.5, 3 + 2.5, 6 + 2.5])
    waiting = env.view.waiting.request_id
    assert len(waiting) > 0
    np.testing.assert_allclose(scores(env)[0][waiting], expected[waiting], rtol=1e-12)
    # The request with the lowest score with these weights runs: 13 / 5.5 and 17 / 8.5 against 21 / 10.5.
    assert expected.argmin() in (0, 2)
    assert env.view.active.request_id[0] == expected.argmin()


def test_scores_by_hand(requests_of):
    """Memory for one request: the shortest runs, unless enough is added to its score."""
    workload = requests_of(
        (0, 8, 5), (0, 6, 5), (0, 7, 5), predictions={"kind": "interval", "bounds": [5, 5]}
    )
    arguments = SLOTTED | {"kv_capacity": 14, "workload": workload, "information": ["length_interval"]}
    for added, first in (
        ((0, 0, 0), 1),
        ((10, 0, 0), 2),
        ((10, 10, 0), 0),
        ((0, -1, -2), 0),
        ((9, 10, 10), 1),
    ):
        env = plain_env(action="rank_scores", **arguments)
        env.reset(seed=0)
        assert env.episodes.slots[0].block["window"].tolist() == [1, 2, 0]
        assert env.action_masks().tolist() == [1, 1, 1, 0, 0]
        _, _, _, _, info = env.step(np.array([*added, 5.0, 5.0]))
        assert env.view.active.request_id.tolist() == [first]
        assert env.action_masks().tolist() == [1, 1, 0, 1, 0]
        assert info["ignored"] == 0
        assert scores(env)[1][[1, 2, 0]].tolist() == list(
            added
        )  # additions to empty positions have no effect


def test_additions_stay_with_the_request_until_the_next_action(requests_of):
    """While the action holds, and when the request enters or leaves the windows."""
    rows = [(0, 8, 3), (0, 6, 3), (0, 7, 3), *((1, 5, 3) for _ in range(4))]
    workload = requests_of(*rows, predictions={"kind": "interval", "bounds": [3, 3]})
    env = plain_env(
        action="rank_scores",
        hold=2,
        kv_capacity=11,
        workload=workload,
        information=["length_interval"],
        **SLOTTED,
    )
    env.reset(seed=0)
    env.step(
        np.array([0.0, 0.5, 0.25, 0.0, 0.0])
    )  # to 1, 2 and 0; 1 is admitted, and the arrivals of time 1 come
    block = env.episodes.slots[0].block
    assert env.view.active.request_id.tolist() == [1]
    assert block["window"].tolist() == [3, 4, 5]
    assert scores(env)[1].tolist() == [0.25, 0, 0.5, 0, 0, 0, 0]
    before, _ = scores(env)
    env.step(np.array([0.0, 0.0, -3.0, -1.0, 4.0]))  # to 5, and to 1, which is active
    after, added = scores(env)
    assert added.tolist() == [0, -1, 0, 0, 0, -3, 0]
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]] - [0.25, 0.5], rtol=1e-12)
    env.step(np.zeros(5))
    assert not scores(env)[1].any()


@pytest.mark.parametrize("objectives", [{}, {"ttft_slo": 3.0, "tbt_slo": 0.3}])
def test_additions_count_at_once_between_rankings_of_many(objectives):
    """Two environments are equal until one adds 5 to the score of an active request, and the other 1."""
    service = {
        "name": "only", "rate": 2000.0, **objectives, "prompt": {"kind": "uniform", "low": 20, "high": 40},
        "output": {"kind": "uniform", "low": 20, "high": 100},
    }  # fmt: skip
    arguments = {
        "num_requests": 250, "kv_capacity": 60_000, "workload": {"classes": [service]}, "information": ["slo"],
    }  # fmt: skip
    envs = [plain_env(action="rank_scores", **arguments) for _ in range(2)]
    states = []
    for env in envs:
        env.reset(seed=0)
        states.append(env.episodes.slots[0].block["rule_state"])
    action = np.zeros(envs[0].action_space.shape)
    while states[0][BETWEEN] == 0 or envs[0].view.iteration % 8 != 3:
        for env in envs:
            env.step(action)
    assert len(envs[0].view.active) > 128
    last = envs[0].view.active.request_id[-1]
    bases = []
    for env, state, added in zip(envs, states, (5.0, 1.0), strict=True):
        action[envs[0].config.queue_window] = added
        env.step(action)
        assert state[BETWEEN] == 1  # again: no base has been computed in between
        assert last in env.view.active.request_id
        reals, n = env.episodes.slots[0].block["rule_reals"], len(env.tables.requests)
        bases.append(reals[SCORES + 2 * n + NOTES * last + BASE])
    assert bases[0] - bases[1] == pytest.approx(5.0 - 1.0)


def test_features_by_hand(requests_of):
    """Outputs are known to be 5: their mean logarithm is log 5, and a default score 1.5 log(memory) + log(work)."""
    workload = requests_of(
        (0, 8, 5), (0, 6, 5), (1.5, 7, 5), predictions={"kind": "interval", "bounds": [5, 5]},
        classes=[{"ttft_slo": 3.0, "tbt_slo": 1.5}],
    )  # fmt: skip
    env = plain_env(
        action="rank_scores", kv_capacity=13, workload=workload, information=["length_interval", "slo"],
        batch_time={"kind": "unit"}, **SLOTTED,
    )  # fmt: skip
    observation, _ = env.reset(seed=0)

    def features():
        return dict(zip(spaces.feature_names(env.config), observation.tolist(), strict=True))

    found = features()
    assert found["rule.pressure"] == pytest.approx(math.log(3) / (1 + math.log(3)))
    assert found["rule.busy"] == 0
    assert found["rule.usual_output"] == pytest.approx(math.log(5) / (5 + math.log(5)))
    assert found["rule.learned"] == 0
    slack = math.log(1 + 2.0)  # 3 s to the first token less a batch, in batches of 1 s
    score = math.log(5 + 0.6) + 1.5 * math.log(6 + 2.5) + 0.5 * (slack - 8) - 2.5 * math.log(5)
    assert found["queue.0.rank_score"] == pytest.approx(score / (abs(score) + 4), rel=1e-5)
    assert found["queue.0.relative_output"] == pytest.approx(0, abs=1e-6)
    assert found["queue.0.share_to_come"] == 1
    assert found["queue.0.urgency"] == pytest.approx(1 - slack / 8)
    assert (found["queue.0.lost"], found["queue.2.lost"], found["queue.2.rank_score"]) == (0, 0, 0)
    for _ in range(3):
        observation, *_ = env.step(np.array([0.0, 0.0, 0.0, -2.0, -2.0]))
    found = features()
    assert env.view.active.num_output_tokens.tolist() == [3]
    # Except for its deadline, it was scored with the last action, when it had 2 tokens and held 8.
    assert found["active.0.share_to_come"] == pytest.approx(3 / 6)
    assert found["active.0.relative_output"] == pytest.approx(math.log(0.6) / (1 - math.log(0.6)), rel=1e-5)
    assert found["active.0.lost"] == 0
    slack = math.log(1 + 0.5)  # 1.5 s between tokens less a batch
    assert found["active.0.urgency"] == pytest.approx(1 - slack / 8)
    score = math.log(3) + 1.5 * math.log(8 + 1.5) - 0.5 * math.log(3) - 0.1 * math.log(9) + 0.5 * (slack - 8)
    score -= 2.5 * math.log(5) + 10  # it cannot wait for another batch
    assert found["active.0.rank_score"] == pytest.approx(score / (abs(score) + 4), rel=1e-5)
    # The request that arrived at 0 had 3 s, which have passed; the other has 1.5 s left, and is now first.
    assert env.episodes.slots[0].block["window"][:2].tolist() == [2, 0]
    assert [found[f"queue.{q}.lost"] for q in range(2)] == [0, 1]
    assert found["queue.0.urgency"] == pytest.approx(1 - slack / 8)
    assert found["queue.1.urgency"] == 0


def test_nothing_is_learned_from_lengths_that_are_not_revealed(equal):
    """With other hidden predictions, observations and schedules are the same."""
    found = []
    for epsilon in (0.0, 0.8):
        workload = {**LITTLE, "predictions": {"kind": "noisy", "epsilon": epsilon}}
        env = plain_env(action="rank_scores", workload=workload, num_requests=40, rate=50.0, information=[])
        env.reset(options={"workload_seed": 1})
        env.action_space.seed(0)
        steps = []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            steps.append(env.step(env.action_space.sample()))
        found.append(steps)
    assert equal(*found)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("order", ["queue", "predicted", "prompt", "volume", "attained", "rank"])
def test_the_window_holds_the_first_waiting_requests(order):
    """It keeps its order, although the rule also admits requests beyond it, and evicts."""
    env = plain_env(
        action="rank_scores", queue_order=order, queue_window=5, num_requests=80, rate=80.0, kv_capacity=200,
        workload=LITTLE,
    )  # fmt: skip
    env.reset(seed=2)
    env.action_space.seed(0)
    behind = evicted = 0
    while True:
        waiting, block = env.view.waiting, env.episodes.slots[0].block
        predicted, prompt = waiting.predicted_output_len, waiting.prompt_len
        once = env.tables.requests["num_delivered_tokens"][waiting.request_id]
        keys = {
            "queue": np.arange(len(prompt)),
            "predicted": predicted,
            "prompt": prompt,
            "volume": predicted * (2 * prompt + predicted),
            "attained": np.maximum(np.frexp(once.astype(float))[1] - 6, 0) * 10**6 + prompt,
            "rank": scores(env)[0][waiting.request_id],
        }
        best = np.lexsort((waiting.request_id if order != "queue" else keys["queue"], keys[order]))[:5]
        count = int(block["episode"][0]["num_window"])
        shown = block["window"][:count].tolist()
        assert shown == waiting.request_id[best].tolist()
        _, _, terminated, truncated, _ = env.step(0.3 * env.action_space.sample())
        if terminated or truncated:
            break
        entered = set(env.view.active.request_id.tolist()) & set(waiting.request_id.tolist())
        behind += len(entered - set(shown))
        evicted = int(env.tables.requests["num_evictions"].sum())
    if order not in ("rank", "volume"):
        assert behind > 0
    assert evicted > 0


# ---------------------------------------------------------------- actions of any size, configurations


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), service=st.sampled_from(SERVICES))
def test_any_action_makes_valid_decisions(seed, kind, service):
    """Including the bounds; memory is never exceeded, and episodes end."""
    rng = np.random.default_rng(seed)
    env = plain_env(action=kind, num_requests=25, hold=int(rng.integers(1, 5)), stall_limit=100, **service)
    env.reset(seed=seed % 1000)
    env.action_space.seed(seed)
    low, high = env.action_space.low, env.action_space.high
    for _ in range(3000):
        action = env.action_space.sample()
        ends = rng.random(action.shape)
        action = np.where(ends < 0.2, low, np.where(ends > 0.8, high, action))
        observation, reward, terminated, truncated, _ = env.step(action)
        assert env.observation_space.contains(observation)
        assert math.isfinite(reward)
        assert env.view.kv_allocated <= env.view.kv_capacity
        if terminated or truncated:
            return
    raise AssertionError("the episode does not end")


def test_defaults_of_the_kinds():
    """Default actions are ranked with its default weights; windows show its ranking and its features."""
    for kind, hold in (("rank", 8), ("rank_scores", 1)):
        config = EnvConfig.of(action=kind, unit_actions=False)
        assert (config.queue_order, config.features, config.hold) == ("rank", ("rank",), hold)
        assert EnvConfig.of(action=kind, queue_order="queue", features=[], hold=5).queue_order == "queue"
        greedy = greedy_action(config, np.ones(config.kind.mask_size(config), bool))
        assert config.kind.space(config).contains(greedy)
        defaults = [w.default for w in WEIGHTS] if kind == "rank" else [0.0] * 32
        assert greedy.tolist() == defaults
        with pytest.raises(ConfigError, match=f"{kind} steers a rule"):
            config.kind.idle(config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "flags", "features": ["rank"]}, "feature 'rank' needs a kind of action that steers ranked"),
        ({"action": "knobs", "queue_order": "rank"}, "queue_order 'rank' needs a kind of action that steers ranked"),
        ({"action": "rank", "weights": {"cost": 1}}, "weights is for action 'rank_scores', not for 'rank'"),
        ({"action": "rank_scores", "weights": {"cost": 6}}, "cost"),
        ({"action": "rank_scores", "knobs": {"cap": [1]}}, "knobs is for action 'knobs', not for 'rank_scores'"),
        ({"action": "rank", "knobs": {"cap": [1]}}, "knobs is for action 'knobs', not for 'rank'"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        plain_env(**arguments)


def test_unknown_weight():
    with pytest.raises(UnknownNameError, match=r"unknown weight 'costs'.*Did you mean 'cost'"):
        plain_env(action="rank_scores", weights={"costs": 1.0})
