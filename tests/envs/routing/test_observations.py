"""Observations of the routing environment, and no hidden information."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.environments.routing_play import (
    CLUSTERS,
    SHORT,
    TIGHT,
    features,
)
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.features import WORKER_FEATURES

# ---------------------------------------------------------------- observations


@pytest.mark.parametrize("block_size", [1, 9])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_observation_by_brute_force(cluster, block_size):
    information = ["predicted_length", "true_length", "slo"]
    env = RoutingEnv(
        information=information, time_scale=2.0, block_size=block_size, **TIGHT, **CLUSTERS[cluster]
    )
    table = env.workload.sample(4)
    env.reset(options={"workload_seed": 4})
    env.action_space.seed(0)
    capacity = env.system.usable_capacities
    assert (capacity % block_size == 0).all()
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
        used, tokens = view.column("kv_allocated"), view.column("kv_tokens")
        assert (used % block_size == 0).all()
        assert ((tokens <= used) & (used <= tokens + block_size * view.column("num_active"))).all()
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
                f"worker.{k}.kv": view.column("kv_allocated")[k] / size,
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
    """Return the time since the previous arrival (scale: mean interval)."""
    before = times if handover else times[:-1]
    gap = now - before[-1] if len(before) else np.inf
    return 1.0 if gap == np.inf else gap / (gap + 1 / env.workload.mean_rate)


def rate(now, times, env):
    """Return the rate of the last 16 arrivals (scale: mean rate)."""
    count = min(len(times) - 1, 16)
    if count == 0:
        return 0.0
    span = now - times[len(times) - 1 - count]
    return 1.0 if span == 0 else count / span / (count / span + env.workload.mean_rate)


CLASSES = [{"name": "chat", "ttft_slo": 5.0, "tbt_slo": 0.1, "weight": 1.0}, {"name": "batch", "weight": 1.0}]


@pytest.mark.parametrize(
    ("information", "shown"),
    [
        ([], set()),
        (["predicted_length"], {"predicted"}),
        (["length_interval"], {"predicted_low", "predicted_high"}),
        (["true_length"], {"output"}),
        (["class"], {"class"}),
        (["slo"], {"ttft_slo", "tbt_slo"}),
    ],
)
def test_information(information, shown):
    """Only features of revealed information differ from an observation without any, whatever the policy needs."""
    predictions = {"kind": "interval" if "length_interval" in information else "noisy", "epsilon": 0.5}
    workload = {**SHORT, "classes": CLASSES, "predictions": predictions}
    arguments = {**TIGHT, "workload": workload, "policy": "fcfs", "num_requests": 40}
    blind, seeing = (RoutingEnv(information=i, **arguments) for i in ([], information))
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
    lengths = {"worker.1.outstanding_tokens"} if shown and information[0] not in ("class", "slo") else set()
    assert differing == {f"request.{name}" for name in shown} | lengths


@pytest.mark.parametrize("policy", ["fcfs", "mc_sf"])
def test_unknown_lengths_stay_unknown(policy, requests_of):
    """Until one finishes, requests of different lengths have equal observations, even if the policy needs lengths."""
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
        parts = [found["dict"][key] for key in ("system", "request", "workers", "caches")]
        np.testing.assert_array_equal(np.concatenate(parts), found["flat"])
        np.testing.assert_array_equal(found["rllib"]["observations"], found["flat"])
        np.testing.assert_array_equal(found["rllib"]["action_mask"], envs["flat"].observer.mask)
        found = {kind: env.step(k % 4)[0] for kind, env in envs.items()}
    assert len(parts[2]) == 4 * len(WORKER_FEATURES)
