"""The routing environment: schedules of simulate, rewards by hand and in total, observations, masks, agents."""

from __future__ import annotations

import hashlib
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import kvgym
from kvgym.envs.routing.agents import AgentRouter, play_router
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.features import WORKER_FEATURES
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.routing import Router, RouterInfo

SHORT = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}
TIGHT = {"workload": SHORT, "kv_capacity": 250, "num_requests": 80, "rate": 400.0}
SMALL = {"scenario": "mc-sf-model-2", "workers": 3, "num_requests": 12}
APART = [{"count": 2, "role": "prefill"}, {"count": 3, "role": "decode"}]
CLUSTERS = {
    "equal": {"workers": 4},
    "unlike": {"workers": [{"count": 2}, {"kv_capacity": 400}, {"batch_time": {"composition": "vidur"}}]},
    "apart": {"workers": APART, "system": {"transfer_latency": 0.02, "transfer_time": 1e-4}},
    "lonely": {"workers": [{"role": "prefill"}, {"count": 2, "role": "decode"}]},
}
RECORDS = ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap", "worker")


def same_schedule(one, other):
    return all(np.array_equal(one.requests[name], other.requests[name], equal_nan=True) for name in RECORDS)


def features(env):
    """Return the latest observation by name."""
    return dict(zip(env.feature_names, env.observer.flat.tolist(), strict=True))


def random_episode(env, seed, masked=0.8):
    """Play an episode at random, most choices inside the mask; returns its steps."""
    rng = np.random.default_rng(seed)
    steps = [env.reset(seed=seed)]
    env.action_space.seed(seed)
    while True:
        mask = env.sample_mask() if rng.random() < masked else None
        steps.append(env.step(env.action_space.sample(mask)))
        if steps[-1][2] or steps[-1][3]:
            return steps


# ---------------------------------------------------------------- schedules and returns


class Zigzag(Router):
    """A router in plain Python that looks at the request and at the workers."""

    info = RouterInfo(name="zigzag", summary="by prompt, clock and free memory")

    def reset(self, num_workers, seed):
        self.rng = np.random.default_rng(seed)

    def route(self, view):
        free = (view.column("kv_capacity") - view.column("kv_tokens"))[view.candidates]
        if self.rng.random() < 0.5:
            return view.candidates[int(np.argmax(free))]
        return view.candidates[int(view.request.prompt_len[0] + 10 * view.clock) % len(view.candidates)]


@pytest.mark.parametrize("policy", ["mc_sf", "fcfs", "sarathi:token_budget=64"])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    "router", ["round_robin", "uniform_random", "join_shortest_queue", "least_outstanding_work", Zigzag()]
)
def test_a_router_gives_the_schedule_of_simulate(router, cluster, policy):
    env = RoutingEnv(policy=policy, horizon=1e5, **TIGHT, **CLUSTERS[cluster])
    for seed in (0, 3):
        result, total = play_router(env, router, workload_seed=seed)
        expected = kvgym.simulate(
            env.config.make_scenario().make_system(), result.table, policy, router=router, seed=seed
        )
        assert result.completed
        assert same_schedule(result, expected)
        np.testing.assert_array_equal(result.worker["iteration"], expected.worker["iteration"])
        np.testing.assert_array_equal(result.gap_counts, expected.gap_counts)
        latency = expected.requests["finish_time"] - expected.table.arrival_time
        assert total == pytest.approx(-latency.sum() / len(latency), rel=1e-9)


def test_routers_differ():
    env = RoutingEnv(policy="fcfs", horizon=1e5, **{**TIGHT, "rate": 50.0})
    found = {play_router(env, r)[1] for r in ("round_robin", "uniform_random", "join_shortest_queue")}
    assert len(found) == 3


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_question_per_choice(cluster):
    """New requests are asked about, prefilled ones again; never where there is one worker only."""
    env = RoutingEnv(**TIGHT, **CLUSTERS[cluster])
    steps = random_episode(env, 1)
    asked = [info["request"] for info in (steps[0][1], *(step[4] for step in steps[1:-1]))]
    n = len(env.result().table)
    once = sorted([*range(n)] * (2 if cluster == "apart" else 1))
    if cluster in ("equal", "unlike"):
        assert asked == once
    elif cluster == "apart":  # those of one output token are done after the prefill
        assert {*asked} == {*once}
        assert sum(asked.count(i) == 2 for i in range(n)) == (env.result().table.output_len > 1).sum()
    else:
        assert sorted(asked) == np.flatnonzero(env.result().table.output_len > 1).tolist()
    assert steps[-1][4]["request"] == -1
    times = [step[4]["time"] for step in steps[1:]]
    assert times == sorted(times)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("scale", [None, 1.0])
def test_totals_agree_with_the_metrics(cluster, scale):
    weights = dict(zip(REWARD_TERMS, (1.0, 0.5, 0.25, 2.0, 0.125), strict=True))
    env = RoutingEnv(policy="fcfs", reward=weights, reward_scale=scale, **TIGHT, **CLUSTERS[cluster])
    steps = random_episode(env, 5)
    terms = sum(step[4]["reward_terms"] for step in steps[1:])
    metrics, table = dict(zip(env.metric_names, steps[-1][4]["metrics"], strict=True)), env.result().table
    found = dict(zip(REWARD_TERMS, terms * (scale or len(table)), strict=True))
    assert found["latency"] == pytest.approx(-len(table) * metrics["e2e_latency_mean"], rel=1e-9)
    assert found["ttft"] == pytest.approx(-len(table) * metrics["ttft_mean"], rel=1e-9)
    assert found["tokens"] == pytest.approx(table.output_len.sum())
    assert found["goodput"] == pytest.approx(len(table))
    assert found["evictions"] == pytest.approx(-metrics["recomputed_tokens"])
    assert metrics["evictions"] > 0
    for step in steps[1:]:
        weighted = sum(w * x for w, x in zip(weights.values(), step[4]["reward_terms"], strict=True))
        assert step[1] == pytest.approx(weighted)


def by_hand(workload, **arguments):
    """Return two workers in slotted time, a second per batch, nothing scaled."""
    return RoutingEnv(
        scenario="mc-sf-model-2", workers=2, policy="fcfs", workload=workload, reward_scale=1.0, **arguments
    )


def terms(latency=0.0, ttft=0.0, tokens=0.0, goodput=0.0, evictions=0.0):
    return [latency, ttft, tokens, goodput, evictions]


def test_terms_by_hand(requests_of):
    """Requests 0 (2 tokens) and 1 (1 token) come at 0; 2 (1 token) comes at 1, when 1 has just finished."""
    env = by_hand(requests_of((0, 6, 2), (0, 10, 1), (1, 3, 1)))
    _, info = env.reset(seed=0)
    assert (info["time"], info["request"], info["reward_terms"].tolist()) == (0, 0, [0] * 5)
    found = [env.step(action) for action in (0, 1, 0)]
    assert [step[4]["reward_terms"].tolist() for step in found] == [
        terms(),
        terms(latency=-2, ttft=-1, tokens=2, goodput=1),
        terms(latency=-2, ttft=-2, tokens=2, goodput=2),
    ]
    assert [step[1] for step in found] == [0, -2, -2]
    assert [(step[2], step[4]["time"], step[4]["request"]) for step in found] == [
        (False, 0, 1),
        (False, 1, 2),
        (True, 2, -1),
    ]
    assert env.result().requests["worker"].tolist() == [0, 1, 0]
    assert found[-1][4]["completed"]


def test_time_with_nobody_in_the_system_costs_nothing(requests_of):
    env = by_hand(requests_of((0, 6, 1), (0.5, 3, 1), (10, 4, 1)))
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(3)] == [-0.5, -0.5 - 1.5, -1.0]


@pytest.mark.parametrize(("ttft_slo", "tbt_slo", "good"), [(1.0, 1.0, 1), (0.5, 9, 0), (9, 0.5, 0)])
def test_goodput(ttft_slo, tbt_slo, good, requests_of):
    workload = requests_of((0, 4, 3), classes=[{"ttft_slo": ttft_slo, "tbt_slo": tbt_slo}])
    env = by_hand(workload, reward={"goodput": 2.0})
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(1)
    assert (reward, terminated) == (2.0 * good, True)
    assert dict(zip(env.metric_names, info["metrics"], strict=True))["slo_attainment"] == good


# ---------------------------------------------------------------- ends


def test_at_the_horizon_those_still_there_count_until_then():
    env = RoutingEnv(horizon=0.3, reward_scale=1.0, **TIGHT)
    steps = random_episode(env, 2)
    result, info = env.result(), steps[-1][4]
    assert steps[-1][2:4] == (False, True)
    assert not info["completed"]
    assert 0 < (result.requests["status"] == 3).sum() < len(result.table)
    left = np.where(np.isnan(result.requests["finish_time"]), info["time"], result.requests["finish_time"])
    inside = np.maximum(left - result.table.arrival_time, 0).sum()
    assert sum(step[1] for step in steps[1:]) == pytest.approx(-inside, rel=1e-9)


def test_an_episode_that_is_over_before_it_begins():
    workload = {"preset": "mcsf-model-2", "arrivals": {"start": 50}}
    env = RoutingEnv(scenario="mc-sf-model-2", workload=workload, horizon=10.0)
    _, info = env.reset(seed=0)
    assert info["action_mask"].all()
    assert info["request"] == -1
    _, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated, info["completed"]) == (0.0, False, True, False)
    assert info["time"] <= 10
    result, total = play_router(env, "round_robin")
    assert total == 0
    assert not result.completed


def test_a_livelock_truncates(requests_of):
    """A scheduler that protects nearly all memory never lets the request in."""
    env = RoutingEnv(
        scenario="mc-sf-model-2", workers=2, policy="alpha_greedy:alpha=0.9", stall_limit=20, reward_scale=1.0,
        workload=requests_of((0, 6, 1), (1, 1, 1)),
    )  # fmt: skip
    env.reset(seed=0)
    assert not any(env.step(0)[2:4])
    _, reward, terminated, truncated, info = env.step(1)
    assert (terminated, truncated, info["completed"]) == (False, True, False)
    assert reward < -10
    assert not any(env.reset(seed=0)[1]["reward_terms"])
    assert not any(env.step(0)[2:4])


def test_stepping_needs_a_reset():
    env = RoutingEnv(**SMALL)
    for call in (lambda: env.step(0), env.result, lambda: env.view):
        with pytest.raises(gym.error.ResetNeeded):
            call()
    random_episode(env, 0)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.close()
    env.close()


def test_time_before_the_first_question_is_paid_in_the_first_step(requests_of):
    """The only prefill worker needs no choice; request 1 is done after its prefill, 0 is handed over at 1."""
    apart = [{"role": "prefill"}, {"role": "decode", "count": 2}]
    arguments = {"scenario": "mc-sf-model-2", "policy": "fcfs", "reward_scale": 1.0, "workers": apart}
    env = RoutingEnv(workload=requests_of((0, 6, 2), (0, 5, 1)), **arguments)
    _, info = env.reset(seed=0)
    assert (info["time"], info["request"], info["reward_terms"].tolist()) == (1, 0, [0] * 5)
    _, reward, terminated, _, info = env.step(2)
    assert (reward, terminated, info["time"]) == (-3, True, 2)
    assert info["reward_terms"].tolist() == terms(latency=-3, ttft=-2, tokens=3, goodput=2)
    env = RoutingEnv(workload=requests_of((0, 6, 1), (0, 5, 1)), **arguments)  # never a question
    assert env.reset(seed=0)[1]["request"] == -1
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated, info["time"]) == (-2, True, 1)


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_masks(cluster):
    env = RoutingEnv(**TIGHT, **CLUSTERS[cluster])
    _, info = env.reset(seed=0)
    ended = False
    while not ended:
        expected = [k in env.view.candidates for k in range(env.action_space.n)]
        assert sum(expected) > 1
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == expected == env.action_masks().tolist()
        assert [features(env)[f"worker.{k}.candidate"] for k in range(len(expected))] == expected
        handed_over = cluster in ("apart", "lonely") and not expected[0]
        assert features(env)["request.handover"] == handed_over
        _, _, ended, _, info = env.step(env.action_space.sample(info["action_mask"]))
        assert info["ignored"] == 0
    assert info["action_mask"].all()


@pytest.mark.parametrize("action", [0, 1, -1, 5, 10**12, np.int64(1)])
def test_an_invalid_action_joins_the_shortest_queue(action):
    arguments = {**TIGHT, "workers": APART}
    env, twin = RoutingEnv(**arguments), RoutingEnv(**arguments)
    for one in (env, twin):
        one.reset(seed=0)
        while one.view.candidates.start == 0:
            one.step(0)
    for _ in range(10):
        if env.view.candidates.start == 0:
            break
        load = env.view.column("outstanding_requests")[2:]
        *_, info = env.step(action)
        assert info["ignored"] == 1
        assert twin.step(2 + int(np.argmin(load)))[4]["ignored"] == 0
        assert same_schedule(env.result(), twin.result())


def test_play_refuses_a_router_that_breaks_the_rules():
    class Wrong(Router):
        info = RouterInfo(name="wrong", summary="always the first worker")

        def route(self, view):
            return 0

    env = RoutingEnv(**TIGHT, workers=APART)
    with pytest.raises(ConfigError, match="router 'wrong' chose worker 0"):
        play_router(env, Wrong())


# ---------------------------------------------------------------- observations


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_observation_by_brute_force(cluster):
    information = ["predicted_length", "true_length", "slo"]
    env = RoutingEnv(information=information, time_scale=2.0, **TIGHT, **CLUSTERS[cluster])
    table = env.workload.sample(4)
    env.reset(options={"workload_seed": 4})
    env.action_space.seed(0)
    capacity = np.array([w.kv_capacity for w in env.system.all_workers])
    ended = False
    while not ended:
        found, view, r = features(env), env.view, env.simulation.requests
        i, now = view.request_id, view.clock
        assert now == float(r["arrival_time"][i]) or found["request.handover"]
        arrived = int((table.arrival_time <= now).sum()) if found["request.handover"] else i + 1
        times = table.arrival_time[
            : int(env.simulation.tracker[0]["next_arrival"]) + (not found["request.handover"])
        ]
        expected = {
            "system.time": now / (now + 20),
            "system.num_arrived": len(times) / (len(times) + 256),
            "system.since_arrival": since(now, times, bool(found["request.handover"]), env),
            "system.arrival_rate": rate(now, times, env),
            "request.prompt": table.prompt_len[i] / capacity.min(),
            "request.predicted": table.predicted_output_len[i] / capacity.min(),
            "request.output": table.output_len[i] / capacity.min(),
            "request.priority": 0.5,
            "request.ttft_slo": 1.0,
            "request.kv": r["num_kv_tokens"][i] / capacity.min(),
            "request.age": (now - table.arrival_time[i]) / (now - table.arrival_time[i] + 2),
        }
        assert len(times) <= max(arrived, len(times))
        inside = np.isin(r["status"], (1, 2, 6))
        expected["system.num_requests"] = inside.sum() / (inside.sum() + 64 * len(capacity))
        for k, size in enumerate(capacity):
            here = inside & (r["worker"] == k)
            if env.system.all_workers[k].role == "prefill":
                here &= r["status"] != 6
            waiting = here & (r["status"] == 1)
            coming = (here & (r["status"] == 6)).sum()
            tokens = (table.prompt_len + table.output_len)[here].sum()
            prefill = r["num_prefill_left"][waiting].sum()
            expected |= {
                f"worker.{k}.memory": size / capacity.max(),
                f"worker.{k}.kv": view.column("kv_tokens")[k] / size,
                f"worker.{k}.waiting": waiting.sum() / (waiting.sum() + 16),
                f"worker.{k}.active": (here & (r["status"] == 2)).sum()
                / ((here & (r["status"] == 2)).sum() + 64),
                f"worker.{k}.incoming": coming / (coming + 16),
                f"worker.{k}.outstanding_requests": here.sum() / (here.sum() + 64),
                f"worker.{k}.outstanding_tokens": tokens / (tokens + size),
                f"worker.{k}.waiting_tokens": prefill / (prefill + size),
                f"worker.{k}.prefill": float(env.system.all_workers[k].role == "prefill"),
                f"worker.{k}.decode": float(env.system.all_workers[k].role == "decode"),
            }
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-7)
        _, _, ended, _, _ = env.step(env.action_space.sample(env.sample_mask()))


def since(now, times, handover, env):
    """Return the time since the arrival before, half-way at the mean."""
    before = times if handover else times[:-1]
    gap = now - before[-1] if len(before) else np.inf
    return 1.0 if gap == np.inf else gap / (gap + 1 / env.workload.mean_rate)


def rate(now, times, env):
    """Return the rate of the last 16 arrivals, half-way at the mean."""
    count = min(len(times) - 1, 16)
    if count == 0:
        return 0.0
    span = now - times[len(times) - 1 - count]
    return 1.0 if span == 0 else count / span / (count / span + env.workload.mean_rate)


CLASSES = [{"name": "chat", "ttft_slo": 5.0, "tbt_slo": 0.1, "weight": 1.0}, {"name": "batch", "weight": 1.0}]


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ([], set()),
        (["predicted_length"], {"predicted"}),
        (["length_interval"], {"predicted_low", "predicted_high"}),
        (["true_length"], {"output"}),
        (["class"], {"class"}),
        (["slo"], {"ttft_slo", "tbt_slo"}),
    ],
)
def test_information(told, shown):
    """Only what the agent is told differs from requests of which nothing is known, whatever the policy needs."""
    predictions = {"kind": "interval" if "length_interval" in told else "noisy", "epsilon": 0.5}
    workload = {**SHORT, "classes": CLASSES, "predictions": predictions}
    arguments = {**TIGHT, "workload": workload, "policy": "fcfs", "num_requests": 40}
    blind, seeing = (RoutingEnv(information=i, **arguments) for i in ([], told))
    for env in (blind, seeing):
        env.reset(seed=6)
    differing = set()
    ended = False
    while not ended:
        a, b = features(blind), features(seeing)
        differing |= {name for name in a if a[name] != b[name]}
        for name in ("predicted", "predicted_low", "predicted_high", "output", "class"):
            assert a[f"request.{name}"] == 0
        *_, ended, _, _ = blind.step(1)
        seeing.step(1)
    lengths = {"worker.1.outstanding_tokens"} if shown and told[0] not in ("class", "slo") else set()
    assert differing == {f"request.{name}" for name in shown} | lengths


@pytest.mark.parametrize("policy", ["fcfs", "mc_sf"])
def test_unknown_lengths_stay_unknown(policy, requests_of):
    """Until one of them finishes, requests of other lengths look the same, even if the scheduler is told."""
    rows = [(0.1 * k, 4 + k, 8) for k in range(8)]
    other = [(t, s, o + 1 + k) for k, (t, s, o) in enumerate(rows)]
    envs = [
        RoutingEnv(
            scenario="mc-sf-model-2", workers=2, policy=policy, information=[], workload=requests_of(*r)
        )
        for r in (rows, other)
    ]
    first = [env.reset(seed=0)[0] for env in envs]
    np.testing.assert_array_equal(*first)
    for k in range(7):
        steps = [env.step(k % 2) for env in envs]
        np.testing.assert_array_equal(steps[0][0], steps[1][0])
        assert steps[0][1] == steps[1][1]


def test_kinds_of_observation_hold_the_same_numbers():
    envs = {kind: RoutingEnv(observation=kind, **TIGHT) for kind in ("flat", "dict", "rllib")}
    found = {kind: env.reset(seed=4)[0] for kind, env in envs.items()}
    for k in range(30):
        for kind, env in envs.items():
            assert found[kind] in env.observation_space
        parts = [found["dict"][key] for key in ("system", "request", "workers")]
        np.testing.assert_array_equal(np.concatenate(parts), found["flat"])
        np.testing.assert_array_equal(found["rllib"]["observations"], found["flat"])
        np.testing.assert_array_equal(found["rllib"]["action_mask"], envs["flat"].observer.mask)
        found = {kind: env.step(k % 4)[0] for kind, env in envs.items()}
    assert len(parts[2]) == 4 * len(WORKER_FEATURES)


# ---------------------------------------------------------------- random play, repeatability


def random_arguments(rng):
    """Return a valid configuration."""

    def one(*options):
        return options[int(rng.integers(len(options)))]

    arguments = {
        **CLUSTERS[one(*CLUSTERS)],
        "policy": one("mc_sf", "fcfs", "alpha_greedy:alpha=0.2", "sarathi", "work_conserving_fcfs"),
        "workload": {**SHORT, "predictions": {"kind": "noisy", "epsilon": 0.3}},
        "kv_capacity": int(rng.integers(150, 400)),
        "num_requests": int(rng.integers(1, 50)),
        "rate": one(20.0, 200.0, 2000.0),
        "observation": one("flat", "dict", "rllib"),
        "information": one([], ["predicted_length"], ["true_length", "slo"]),
        "stall_limit": one(None, 100),
    }
    system = {"first_token": one("counted", "uncounted"), "requeue": one("arrival", "front", "back")}
    arguments["system"] = {**arguments.get("system", {}), **system}
    if rng.random() < 0.3:
        arguments["horizon"] = float(rng.uniform(0.1, 5))
    return arguments


@pytest.mark.parametrize("number", range(40))
def test_random_play(number, equal):
    rng = np.random.default_rng(number)
    arguments = random_arguments(rng)
    env = RoutingEnv(**arguments)
    steps = random_episode(env, number)
    assert all(step[0] in env.observation_space for step in steps), arguments
    assert all(np.isfinite(step[1]) for step in steps[1:])
    assert [type(x) for x in steps[-1][1:4]] == [float, bool, bool]
    result, info = env.result(), steps[-1][4]
    assert result.completed == info["completed"] == steps[-1][2]
    left = np.where(np.isnan(result.requests["finish_time"]), info["time"], result.requests["finish_time"])
    inside = np.maximum(left - result.table.arrival_time, 0).sum() / arguments["num_requests"]
    assert sum(step[1] for step in steps[1:]) == pytest.approx(-inside, rel=1e-9)
    assert equal(random_episode(env, number), steps)
    assert equal(random_episode(pickle.loads(pickle.dumps(env)), number), steps)


@pytest.mark.parametrize("number", range(6))
def test_plain_python_takes_the_same_steps(number, equal):
    arguments = {**random_arguments(np.random.default_rng(100 + number)), "num_requests": 8}
    found = [random_episode(RoutingEnv(compiled=c, **arguments), number) for c in (True, False)]
    assert equal(*found), arguments


def test_seeds(equal):
    env, other = (gym.make("kvgym/Route-v0", **SMALL) for _ in range(2))
    first = env.reset(seed=3)
    assert equal(first, other.reset(seed=3))
    following = env.reset()
    assert equal(following, other.reset())
    copy = pickle.loads(pickle.dumps(env))
    assert equal(env.reset(), copy.reset())
    digests = {hashlib.sha256(env.reset(seed=s)[0].tobytes()).hexdigest() for s in range(8)}
    assert len(digests) > 4
    env.reset(options={"workload_seed": 4})
    table = env.unwrapped.workload.sample(4)
    np.testing.assert_array_equal(env.unwrapped.result().table.output_len, table.output_len)


def test_what_is_returned_may_be_kept(equal):
    env, twin = RoutingEnv(**SMALL), RoutingEnv(**SMALL)
    kept = [env.reset(seed=1)]
    twin.reset(seed=1)
    for k in range(12):
        kept.append(env.step(k % 3))
        spoilt = twin.step(k % 3)
        assert equal(kept[-1], spoilt)
        spoilt[0][:] = -1
        for value in spoilt[4].values():
            if isinstance(value, np.ndarray):
                value[:] = 99
        twin.action_masks()[:] = False
        twin.result().worker[:] = 0
    before = env.result()
    env.reset(seed=2)
    assert before.completed
    assert before.worker["total_finished"].sum() == 12


# ---------------------------------------------------------------- registration and arguments


@pytest.mark.parametrize("how", ["json", "pickle"])
def test_spec_survives(how, equal):
    arguments = {**TIGHT, **CLUSTERS["apart"], "reward": {"latency": 0.5, "ttft": 0.1}, "policy": "fcfs"}
    env = gym.make("kvgym/Route-v0", **arguments)
    spec = env.spec
    copy = EnvSpec.from_json(spec.to_json()) if how == "json" else pickle.loads(pickle.dumps(spec))
    again = gym.make(copy)
    assert again.unwrapped.config == env.unwrapped.config
    assert RoutingConfig.of(**env.unwrapped.config.model_dump(mode="json")) == env.unwrapped.config
    assert equal(env.reset(seed=1), again.reset(seed=1))
    assert equal(env.step(1), again.step(1))


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_vector(observation, equal):
    """Gymnasium's own vector environments take it; it has none of its own."""
    arguments = {**SMALL, "observation": observation}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = gym.make_vec("kvgym:kvgym/Route-v0", num_envs=3, vectorization_mode="sync", **arguments)
        observations, infos = vector.reset(seed=5)
        singles = [gym.make("kvgym/Route-v0", **arguments) for _ in range(3)]
        first = [env.reset(seed=5 + k) for k, env in enumerate(singles)]
        for _ in range(12):
            stacked = [o for o, *_ in first] if observation == "flat" else [o["workers"] for o, *_ in first]
            np.testing.assert_array_equal(
                observations if observation == "flat" else observations["workers"], np.stack(stacked)
            )
            np.testing.assert_array_equal(
                infos["action_mask"], np.stack([f[-1]["action_mask"] for f in first])
            )
            observations, rewards, ended, _, infos = vector.step(np.array([0, 1, 2]))
            first = [env.step(k) for k, env in enumerate(singles)]
            np.testing.assert_allclose(rewards, [f[1] for f in first])
        assert ended.all()
        assert infos["metrics"].shape == (3, len(RoutingEnv.metric_names))
        vector.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker": 3}, "worker: .*arguments: scenario, workers, policy"),
        ({"workers": 1}, "workers"),
        ({"workers": [{"count": 1}]}, "1 workers.*no choice"),
        ({"workers": [{"role": "prefill"}, {"role": "decode"}]}, "2 workers, 1 of them for prefill"),
        ({"workers": [{"count": 2, "rolle": "mixed"}]}, "rolle"),
        ({"observation": "image"}, "observation"),
        ({"information": ["class_rates"]}, "unknown information 'class_rates'; valid: predicted_length"),
        ({"information": ["length_interval"]}, "requests have no predicted_low"),
        ({"information": ["class"]}, "requests have no class_id"),
        ({"policy": "wait"}, "needs class"),
        ({"policy": "mc_sf:protection=3"}, "protection"),
        ({"reward": {"speed": 1.0}}, "unknown reward term 'speed'; valid: latency"),
        ({"reward_scale": 0}, "reward_scale"),
        ({"horizon": float("inf")}, "horizon"),
        ({"render_mode": "human"}, "render_mode = 'human'; valid: rgb_array, ansi"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RoutingEnv(**{**SMALL, **arguments})


def test_wrong_names_and_options():
    with pytest.raises(UnknownNameError, match="unknown scenario"):
        RoutingEnv(scenario="a100")
    with pytest.raises(UnknownNameError, match="mc_sf"):
        RoutingEnv(policy="mc_sff")
    env = RoutingEnv(**SMALL)
    with pytest.raises(ConfigError, match="unknown reset option 'seed'; valid: workload_seed"):
        env.reset(options={"seed": 3})
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        env.reset(options={"workload_seed": -1})


def test_the_load_is_replicated_with_the_worker(tmp_path):
    """A scenario of one worker stays as loaded per worker, unless a rate is given; a cluster stays as it is."""
    assert RoutingEnv().workload.mean_rate == 200
    assert RoutingEnv(workers=6).workload.mean_rate == 300
    assert RoutingEnv(rate=70.0).workload.mean_rate == 70
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "summary: three workers\nhardware: llama2-70b-a100-tp2\nworkload: {preset: lmsys, num_requests: 50}\n"
        "workers: 3\n"
    )
    env = RoutingEnv(scenario=str(path))
    assert env.action_space.n == 3
    assert env.workload.mean_rate == 50
    assert RoutingEnv(scenario=str(path), workers=5).workload.mean_rate == 50
    with pytest.raises(ConfigError, match=r"is a cluster.*kvgym/Route-v0"):
        ServingEnv(scenario=str(path))


# ---------------------------------------------------------------- agents


class Hashing:
    """Chooses by the observation, without learning anything; seldom outside the mask if not told the masks."""

    def predict(self, observation, *, deterministic=True):
        parts = observation.values() if isinstance(observation, dict) else [observation]
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
        number = int(abs(float(flat @ np.arange(1, len(flat) + 1))) * 1e6)
        return np.array(np.random.default_rng(number).integers(5)), None


class Masked(Hashing):
    def predict(self, observation, *, deterministic=True, action_masks=None):
        allowed = np.flatnonzero(action_masks)
        return np.int64(allowed[int(super().predict(observation)[0]) % len(allowed)]), None


@pytest.mark.parametrize("model", [Hashing(), Masked()], ids=["plain", "masked"])
@pytest.mark.parametrize("observation", ["flat", "dict", "rllib"])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_agent_acts_in_simulate_as_in_the_environment(cluster, observation, model):
    arguments = {**TIGHT, **CLUSTERS[cluster], "observation": observation, "policy": "fcfs"}
    env = RoutingEnv(**arguments)
    agent = AgentRouter(model, name="mine", **arguments)
    for seed in (0, 1):
        found, _ = env.reset(options={"workload_seed": seed})
        ended = False
        while not ended:
            masks = {"action_masks": env.action_masks()} if isinstance(model, Masked) else {}
            found, _, ended, _, _ = env.step(model.predict(found, **masks)[0])
        expected = kvgym.simulate(
            env.scenario.make_system(), env.result().table, "fcfs", router=agent, seed=seed
        )
        assert same_schedule(env.result(), expected)


def test_an_agent_on_another_cluster():
    agent = AgentRouter(Masked(), name="mine", **TIGHT, workers=3)
    assert repr(agent) == "mine()"
    env = RoutingEnv(**TIGHT, workers=4)
    with pytest.raises(ConfigError, match="'mine' was trained with 3 workers; this cluster has 4"):
        play_router(env, agent)
    system, table = RoutingEnv(**TIGHT, workers=3).system, env.workload.sample(0)
    blind = table.replace(predicted_output_len=None)
    with pytest.raises(ConfigError, match="requests have no predicted_output_len"):
        kvgym.simulate(system, blind, "fcfs", router=agent)


def test_training(tmp_path):
    contrib = pytest.importorskip("sb3_contrib")
    torch = pytest.importorskip("torch")
    from stable_baselines3.common.env_util import make_vec_env

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        arguments = {**TIGHT, "num_requests": 20, "policy": "fcfs"}
        env = make_vec_env("kvgym/Route-v0", 2, seed=0, env_kwargs=arguments)
        model = contrib.MaskablePPO(
            "MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu",
            policy_kwargs={"net_arch": [8]},
        )  # fmt: skip
        model.learn(128)
        assert len(model.ep_info_buffer) >= 4
        agent = AgentRouter(model, **arguments)
        task = RoutingEnv(**arguments)
        found, total = play_router(task, agent, workload_seed=3)
        again = kvgym.simulate(task.system, found.table, "fcfs", router=agent, seed=3)
        assert same_schedule(found, again)
        assert total < 0
    finally:
        torch.set_num_threads(threads)


# ---------------------------------------------------------------- rendering


def test_text(requests_of):
    env = by_hand(requests_of((0, 20, 2), (0, 10, 1), (0.5, 3, 1)), render_mode="ansi")
    with pytest.raises(gym.error.ResetNeeded):
        env.render()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    text = env.render().splitlines()
    assert text[0] == "t = 0.500 s   0 finished, 0 evictions"
    assert text[1] == "request 2: 3 prompt tokens, 1 output tokens predicted"
    assert [line.split()[:2] for line in text[4:6]] == [[">", "0"], [">", "1"]]
    assert text[4].split()[-3:] == ["2", "0", "0"]
    assert text[5].split()[-3:] == ["0", "0", "0"]
    assert all(len(line) <= 80 for line in text)
    env.step(1)
    assert "nothing left to route" in env.render()
    assert "3 finished" in env.render()
    blind = by_hand(requests_of((0, 20, 2)), render_mode="ansi", information=[])
    blind.reset(seed=0)
    assert blind.render().splitlines()[1] == "request 0: 20 prompt tokens"


def test_picture():
    env = RoutingEnv(render_mode="rgb_array", **TIGHT)
    env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((600, 800, 3), np.uint8)
    np.testing.assert_array_equal(first, env.render())
    for _ in range(30):
        env.step(int(np.argmax(env.action_masks())))
    assert (env.render() != first).any()
    assert (np.abs(env.render().astype(int) - (0, 0x72, 0xB2)).sum(axis=2) == 0).sum() > 50  # a bar in blue


def test_rendering_needs_a_mode():
    env = RoutingEnv(**SMALL)
    with pytest.warns(UserWarning, match="needs render_mode"):
        assert env.render() is None
