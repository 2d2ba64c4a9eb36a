"""Observations: features by hand and by brute force, and no hidden information."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from helpers.environments.plain import plain_env
from helpers.selection import others_long
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.actions.catalogue import action_kind
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import (
    ACTIVE_FEATURES,
    PROFILE_FEATURES,
    QUEUE_FEATURES,
    SYSTEM_FEATURES,
)
from kvgym.envs.scheduling.window import attained_level
from kvgym.errors import ConfigError

ROWS = ((0, 6, 4), (0, 10, 5), (1, 3, 2))
SLOTTED = {"scenario": "mc-sf-model-2", "queue_window": 2, "active_window": 2}
AFFINE = {
    "kind": "affine",
    "constant": 1.0,
    "per_prefill_token": 0.1,
    "per_decode_token": 0.2,
    "per_context_token": 0.01,
}
DECIDING = [name for name in dict.fromkeys(IDS.values()) if action_kind(name).asks is None]
"""Kinds of action that decide at every boundary; the others are asked only now and then."""


def features(env):
    """Return the current observation by feature name."""
    names = spaces.feature_names(env.config)
    return dict(zip(names, env.episodes.observations[0].tolist(), strict=True))


def check(env, expected):
    """Compare some features with their values; the values of a row may be a list."""
    found = features(env)
    groups = {"queue": QUEUE_FEATURES, "active": ACTIVE_FEATURES, "system": SYSTEM_FEATURES}
    for key, value in expected.items():
        if isinstance(value, list):
            group = groups[key.split(".")[0]]
            names = [f"{key}.{name}" for name, _ in group]
            assert [found[name] for name in names] == pytest.approx(value, rel=1e-6, abs=1e-9), key
        else:
            assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_features_have_names():
    config = EnvConfig.of(queue_window=3, active_window=2)
    names = spaces.feature_names(config)
    assert len(set(names)) == len(names) == spaces.flat_space(config).shape[0]
    assert names[:2] == ("system.kv_used", "system.kv_free")
    assert names[-1] == "active.1.tbt_slack"
    for group in (SYSTEM_FEATURES, PROFILE_FEATURES, QUEUE_FEATURES, ACTIVE_FEATURES):
        assert all(meaning for _, meaning in group)
    space = spaces.flat_space(config)
    assert np.isfinite(space.low).all()
    assert np.isfinite(space.high).all()
    assert {n for n, low in zip(names, space.low, strict=True) if low < 0} == {
        n for n in names if "slack" in n
    }


def test_slotted_time_by_hand(requests_of):
    """Memory 40, a second per batch: the duration scale is 1 s and the time scale 10 s."""
    env = plain_env(action="admit_evict", workload=requests_of(*ROWS), **SLOTTED)
    env.reset(seed=0)
    rate_scale = env.episodes.workload.mean_rate
    rate = 2 / 10
    check(env, {
        "system": [0, 1, 0, 0, 0, 2 / 66, 0, 0.5, rate / (rate + rate_scale), 0, 0, 0, 0, 2 / 258],
        "queue.0": [1, 6 / 40, 4 / 40, 0, 10 / 40, 1, 0, 1],
        "queue.1": [1, 10 / 40, 5 / 40, 0, 15 / 40, 1, 0, 1],
        "active.0": [0] * 7,
        **{name: 0 for name, _ in PROFILE_FEATURES},
    })  # fmt: skip
    env.step(1)  # admit request 1: no time passes yet
    check(env, {
        "system": [0, 1, 11 / 80, 0, 0, 2 / 66, 0, 0.5, rate / (rate + rate_scale), 0, 0, 1 / 17, 0, 2 / 258],
        "queue.0": [1, 6 / 40, 4 / 40, 0, 10 / 40, 1, 0, 1],
        "queue.1": [0] * 8,
        "active.0": [0] * 7,
    })  # fmt: skip
    env.step(4)  # run: request 1 holds 10 + 1 tokens, request 2 arrives
    rate = (0.2 * 10 + 1) / 11
    check(env, {
        "system": [
            11 / 40, 29 / 40, 12 / 80, 1 / 65, 0, 2 / 66, 1 / 11, 0.5, rate / (rate + rate_scale), 1 / 101, 0,
            0, 0, 3 / 259,
        ],
        "queue.0": [1, 6 / 40, 4 / 40, 1 / 11, 10 / 40, 1, 0, 1],
        "queue.1": [1, 3 / 40, 2 / 40, 0, 5 / 40, 1, 0, 1],
        "active.0": [1, 11 / 40, 0, 1 / 65, 4 / 68, 1 / 11, 1],
        "active.1": [0] * 7,
        # 4 tokens left: it is still active 1, 2 and 4 iterations ahead.
        "profile_1": 12 / 52, "profile_2": 13 / 53, "profile_4": 15 / 55, "profile_8": 0, "profile_32768": 0,
    })  # fmt: skip
    env.step(2)  # evict request 1: the observation shows the rest
    check(env, {
        "system.kv_used": 11 / 40, "system.kv_need": 0, "system.num_evicting": 1 / 17, "system.num_evictions": 0,
        "active.0": [0] * 7, "profile_1": 0,
    })  # fmt: skip
    env.step(4)
    check(env, {"system.num_evictions": 1 / 65, "system.kv_used": 0, "system.time": 2 / 102})


@pytest.mark.parametrize("information", [["predicted_length"], ["slo"], ["predicted_length", "slo"]])
def test_durations_and_targets_by_hand(requests_of, information):
    workload = requests_of(*ROWS, classes=[{"ttft_slo": 5.0, "tbt_slo": 2.0}])
    env = plain_env(
        action="admit_evict", workload=workload, batch_time=AFFINE, kv_capacity=40, information=information,
        time_scale=20.0, **SLOTTED,
    )  # fmt: skip
    env.reset(seed=0)
    scale = 1 + 0.2 + 0.01 * 2  # duration of one decode that reads one token and its own
    slo, known = "slo" in information, "predicted_length" in information
    check(env, {
        "system.batch_duration": 1 / (1 + scale),
        "queue.0.marginal_duration": 0.66 / (0.66 + scale),
        "queue.1.marginal_duration": 1.1 / (1.1 + scale),
        "queue.0.ttft_slack": 5 / 25 if slo else 1,
        "queue.0.predicted": 4 / 40 if known else 0,
    })  # fmt: skip
    env.step(1)
    check(
        env,
        {"system.batch_duration": 2.1 / (2.1 + scale), "queue.0.marginal_duration": 0.66 / (0.66 + scale)},
    )
    env.step(4)
    assert env.view.clock == pytest.approx(2.1)
    following = 1 + 0.2 + 0.01 * 12
    check(env, {
        "system.batch_duration": following / (following + scale),
        "system.time": 2.1 / 202.1,
        "queue.0.waiting": 2.1 / 22.1,
        "queue.1.waiting": 1.1 / 21.1,
        "queue.0.ttft_slack": 2.9 / 22.9 if slo else 1,
        "queue.1.ttft_slack": 3.9 / 23.9 if slo else 1,
        "active.0.tbt_slack": 2 / (2 + scale) if slo else 1,
        "active.0.predicted_left": 4 / 68 if known else 0,
    })  # fmt: skip
    for _ in range(3):
        env.step(4)
    late = env.view.clock - 5
    assert late > 0
    check(env, {"queue.0.ttft_slack": -late / (late + 20) if slo else 1})


@pytest.mark.parametrize(
    ("action", "block_size"),
    others_long(
        list(itertools.product(DECIDING, [1, 8, 11])),
        [(action, (8, 1, 11)[k % 3]) for k, action in enumerate(DECIDING)],
    ),
)
def test_profile_window_and_fit_by_brute_force(action, block_size):
    """Computed from a policy's view of the worker, in any state of a run under memory pressure."""
    env = plain_env(
        action=action, num_requests=40, rate=100.0, kv_capacity=220, queue_window=6, active_window=5, hold=2,
        workload={"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}, block_size=block_size,
        queue_order="queue",
    )  # fmt: skip
    env.reset(seed=1)
    env.action_space.seed(1)

    def memory(tokens):
        return np.ceil(np.asarray(tokens) / block_size) * block_size

    for _ in range(80):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample(env.sample_mask()))
        if terminated or truncated:
            env.reset()
        block, found, view = env.episodes.slots[0].block, features(env), env.view
        if block["decision"]["num_admit"][0] or block["decision"]["num_evict"][0]:
            continue
        capacity, batch_time = view.kv_capacity, env.episodes.system.batch_time
        active, waiting = view.active, view.waiting
        left = np.maximum(active.predicted_output_len - active.num_output_tokens, 1)
        held = active.num_kv_tokens + active.num_prefill_left
        for b in range(len(PROFILE_FEATURES)):
            ahead = 2**b
            tokens = float(memory(held + ahead)[left >= ahead].sum())
            assert found[f"profile_{ahead}"] == pytest.approx(tokens / (tokens + capacity), rel=1e-6)
        decoding = active.num_prefill_left == 0
        load = {
            "num_decodes": int(decoding.sum()),
            "decode_context": int(active.num_kv_tokens[decoding].sum()),
            "num_prefills": int((~decoding).sum()),
            "prefill_tokens": int(active.num_prefill_left[~decoding].sum()),
            "prefill_context": int(active.num_kv_tokens[~decoding].sum()),
            "prefill_squares": int((active.num_prefill_left[~decoding] ** 2).sum()),
            "prefill_products": int((active.num_prefill_left * active.num_kv_tokens)[~decoding].sum()),
        }
        scale = env.episodes.settings["duration_scale"][0]
        now = float(batch_time(**load))
        assert found["system.batch_duration"] == pytest.approx(now / (now + scale), rel=1e-5)
        need = int(memory(held + 1).sum())
        used = memory(active.num_kv_tokens).sum()
        assert found["system.kv_used"] == pytest.approx(used / capacity, rel=1e-6)
        assert found["system.kv_free"] == pytest.approx(1 - used / capacity, rel=1e-6, abs=1e-7)
        assert found["system.kv_need"] == pytest.approx(min(need / (2 * capacity), 1), rel=1e-6)
        for q in range(6):
            row = {name: found[f"queue.{q}.{name}"] for name, _ in QUEUE_FEATURES}
            assert row["present"] == (q < len(waiting))
            if q < len(waiting):
                prompt = int(waiting.num_prefill_left[q])
                with_it = load | {
                    "num_prefills": load["num_prefills"] + 1,
                    "prefill_tokens": load["prefill_tokens"] + prompt,
                    "prefill_squares": load["prefill_squares"] + prompt**2,
                }
                longer = float(batch_time(**with_it)) - now
                assert row["marginal_duration"] == pytest.approx(longer / (longer + scale), rel=1e-4)
                assert row["fits"] == (need + memory(prompt + 1) <= capacity)
                output = int(waiting.predicted_output_len[q])
                assert row["peak"] == pytest.approx(min(memory(prompt + output) / capacity, 1), rel=1e-6)
                assert row["prompt"] == pytest.approx(prompt / capacity, rel=1e-6)
        for a in range(5):
            k = len(active) - 1 - a  # latest activated first
            row = [found[f"active.{a}.{name}"] for name, _ in ACTIVE_FEATURES]
            if k < 0:
                assert not any(row)
            else:
                age = view.clock - active.arrival_time[k]
                generated = active.num_output_tokens[k]
                assert row[:6] == pytest.approx([
                    1, memory(active.num_kv_tokens[k]) / capacity, active.num_prefill_left[k] / capacity,
                    generated / (generated + 64), left[k] / (left[k] + 64), age / (age + 10),
                ], rel=1e-6)  # fmt: skip


@pytest.mark.parametrize("order", ["queue", "predicted", "prompt", "volume", "attained"])
def test_window_order(order, requests_of):
    rows = ((0, 20, 3), (0, 4, 5), (0, 7, 1), (0, 4, 2))  # o (2 s + o) = 129, 65, 15, 20
    env = plain_env(
        action="admit_evict", workload=requests_of(*rows), queue_order=order, scenario="mc-sf-model-2",
        queue_window=3, active_window=1,
    )  # fmt: skip
    env.reset(seed=0)
    ids = {
        "queue": [0, 1, 2, 3],
        "predicted": [2, 3, 0, 1],
        "prompt": [1, 3, 2, 0],
        "volume": [2, 3, 1, 0],
        "attained": [1, 3, 2, 0],  # none has run: the shortest prompt
    }[order]
    for shown in (ids[:3], ids[1:4]):
        for q, i in enumerate(shown):
            check(env, {f"queue.{q}.prompt": rows[i][1] / 40, f"queue.{q}.predicted": rows[i][2] / 40})
        env.step(0)  # the first is admitted; the others move up


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("progress", ["lost", "recompute", "kept"])
def test_attained_order_by_hand(progress, window, requests_of):
    """Evicted after 128, 64 and 63 tokens and never run, in levels 2, 1, 0 and 0; prompts 2, 3, 9 and 5."""
    workload = requests_of((0, 2, 200), (0, 3, 200), (0, 5, 200), (0, 9, 200))
    env = plain_env(
        action="admit_evict", workload=workload, queue_order="attained", scenario="mc-sf-model-2",
        kv_capacity=1000, queue_window=window, active_window=3, system={"progress_on_evict": progress},
    )  # fmt: skip
    env.reset(seed=0)
    block, run = env.episodes.slots[0].block, window + 3

    def shown():
        return block["window"][: int(block["episode"]["num_window"][0])].tolist()

    assert shown() == [0, 1, 2, 3][:window]
    for action in (0, *[run] * 64, 0, run):
        env.step(action)
    assert shown() == [2, 3][:window]
    if window > 1:
        env.step(1)  # request 3, past request 2
    else:
        env.step(0)
        env.step(0)
    for _ in range(63):
        env.step(run)
    evict = window
    for _ in range(env.view.num_active):
        env.step(evict)
    env.step(run)
    delivered = block["requests"]["num_delivered_tokens"][:4].tolist()
    if window == 1:  # request 2 had to run with request 3
        assert delivered == [128, 64, 63, 63]
    else:
        assert delivered == [128, 64, 0, 63]
    order = []
    while shown():
        assert shown() == [2, 3, 1, 0][len(order) :][:window]
        order.append(shown()[0])
        env.step(0)
    assert order == [2, 3, 1, 0]


def test_attained_levels():
    tokens = (0, 1, 63, 64, 127, 128, 255, 256, 2**30, 2**31 - 1)
    assert [attained_level(n) for n in tokens] == [0, 0, 0, 1, 1, 2, 2, 3, 25, 25]


def test_volume_needs_predictions():
    with pytest.raises(ConfigError, match="volume"):
        plain_env(action="admit_count", queue_order="volume", information=[])


def test_the_largest_volumes_are_ordered_by_arrival(requests_of):
    """Volumes beyond the range of a key count as equal; smaller ones come first."""
    rows = ((0, 10, 60_000), (0, 10, 50_000), (0, 10, 40_000), (0, 40_000, 9_000))
    env = plain_env(
        action="admit_count", workload=requests_of(*rows), queue_order="volume", kv_capacity=100_000,
        scenario="mc-sf-model-2", queue_window=4,
    )  # fmt: skip
    env.reset(seed=0)
    assert env.episodes.slots[0].block["window"][:4].tolist() == [3, 2, 0, 1]


@pytest.mark.parametrize("action", dict.fromkeys(IDS.values()))
def test_kinds_of_observation_hold_the_same_numbers(action, small):
    envs = {kind: plain_env(action=action, observation=kind, **small) for kind in ("flat", "dict", "rllib")}
    found = {kind: env.reset(seed=4)[0] for kind, env in envs.items()}
    envs["flat"].action_space.seed(0)
    for _ in range(30):
        parts = found["dict"]
        assert parts.keys() == envs["dict"].observation_space.keys()
        order = spaces.parts(envs["flat"].config)
        np.testing.assert_array_equal(np.concatenate([parts[key] for key in order]), found["flat"])
        np.testing.assert_array_equal(found["rllib"]["observations"], found["flat"])
        np.testing.assert_array_equal(found["rllib"]["action_mask"], envs["flat"].episodes.masks[0])
        choice = envs["flat"].action_space.sample(envs["flat"].sample_mask())
        steps = {kind: env.step(choice) for kind, env in envs.items()}
        found = {kind: step[0] for kind, step in steps.items()}
        if steps["flat"][2] or steps["flat"][3]:
            break


# ---------------------------------------------------------------- hidden information


def unknown_lengths(information, **fields):
    """Return arguments of two workloads that differ in outputs of 20 and more tokens."""
    return [
        {
            "scenario": "mc-sf-model-2", "kv_capacity": 300, "num_requests": 15, "information": information,
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 0.8},
                "lengths": {
                    "kind": "independent", "prompt": {"kind": "uniform", "low": 2, "high": 20},
                    "output": {"kind": "constant", "value": output},
                },
                "predictions": {"kind": "none"}, "num_requests": 15, **fields,
            },
        }
        for output in (20, 33)
    ]  # fmt: skip


@pytest.mark.parametrize("order", ["queue", "prompt", "attained"])
@pytest.mark.parametrize("epochs", ["iteration", "decision"])
@pytest.mark.parametrize("action", DECIDING)
def test_unknown_lengths_stay_unknown(action, epochs, order, equal):
    """Until one finishes, requests of different lengths have equal observations, masks and rewards."""
    envs = [
        plain_env(
            action=action,
            epochs=epochs,
            queue_order=order,
            observation="rllib",
            hold=2,
            stall_limit=150,
            **arguments,
        )
        for arguments in unknown_lengths([])
    ]
    for seed in range(3):
        found = [env.reset(seed=seed) for env in envs]
        assert equal(*found)
        assert envs[0].result().table.output_len[0] != envs[1].result().table.output_len[0]
        envs[0].action_space.seed(seed)
        steps = 0
        while True:
            choice = envs[0].action_space.sample(envs[0].sample_mask())
            found = [env.step(choice) for env in envs]
            if any((env.tables.requests["status"] == 3).any() for env in envs):
                break
            assert equal(*found)
            steps += 1
            if found[0][3] or steps == 150:  # evicts too often for progress
                break
        assert steps > (
            15 if action in ("admit_evict", "admit_count", "flags") and epochs == "iteration" else 3
        )


@pytest.mark.parametrize("action", [action for action in DECIDING if "rank" not in action])
def test_predicted_features_are_zero_without_predictions(action):
    arguments = {"scenario": "mc-sf-model-2", "num_requests": 20, "queue_window": 4, "active_window": 4}
    blind = plain_env(action=action, information=[], **arguments)
    seeing = plain_env(action=action, **arguments)
    blind.reset(seed=2)
    seeing.reset(seed=2)
    blind.action_space.seed(0)
    revealed = False
    for _ in range(60):
        hidden, shown = features(blind), features(seeing)
        for name, value in hidden.items():
            feature = name.rsplit(".", 1)[-1]
            if feature in ("predicted", "peak", "predicted_left"):
                assert value == 0
                revealed |= shown[name] > 0
            elif not name.startswith("profile"):
                assert value == shown[name]
        assert blind.view.active.request_id.tolist() == seeing.view.active.request_id.tolist()
        choice = blind.action_space.sample(blind.sample_mask())
        if any([any(env.step(choice)[2:4]) for env in (blind, seeing)]):  # noqa: C419 (both take the step)
            break
    assert revealed


def test_targets_are_hidden_unless_revealed(requests_of, equal):
    """Rewards depend on the targets, observations do not."""
    found = []
    for target in (1.0, 50.0):
        workload = requests_of(*ROWS, classes=[{"ttft_slo": target, "tbt_slo": target}])
        env = plain_env(action="admit_count", workload=workload, information=["predicted_length"], **SLOTTED)
        found.append([env.reset(seed=0)[0], *(env.step(a)[0] for a in (0, 0, 1, 1, 1))])
    assert equal(*found)


def test_an_exceeded_prediction_stays_at_one(requests_of):
    workload = requests_of((0, 5, 12), predictions={"kind": "noisy", "epsilon": 0.9})
    env = plain_env(action="admit_count", workload=workload, **SLOTTED)
    for seed in range(30):
        env.reset(options={"workload_seed": seed})
        guess = int(env.view.waiting.predicted_output_len[0])
        if guess < 8:
            break
    env.step(1)
    while env.view.num_active:
        left = max(guess - int(env.view.active.num_output_tokens[0]), 1)
        check(env, {"active.0.predicted_left": left / (left + 64)})
        env.step(0)
