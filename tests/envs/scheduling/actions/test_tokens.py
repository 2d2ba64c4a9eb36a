"""The kind of action that expresses every decision: by hand, with random actions, and with every policy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kvgym
from helpers.amount import number, some
from helpers.environments.plain import plain_env
from helpers.selection import EACH_FAMILY
from kvgym.envs.agents import AgentPolicy, NotExpressibleError, play
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.envs.scheduling.actions.tokens import WAIT_UNIT
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE

RECORDS = (
    "start_time", "first_token_time", "last_token_time", "finish_time", "num_evictions", "num_admissions",
    "num_recomputed_tokens", "max_token_gap", "num_output_tokens", "num_kv_tokens",
)  # fmt: skip
AFFINE = {
    "kind": "affine",
    "constant": 0.31,
    "per_prefill_token": 0.017,
    "per_decode_token": 0.023,
    "per_context_token": 0.0011,
}


def make(workload, capacity, **arguments):
    """Return an environment with a second per batch."""
    return plain_env(**{
        "action": "tokens", "scenario": "mc-sf-model-2", "workload": workload, "kv_capacity": capacity,
        "horizon": 1e5, "queue_window": 3, "active_window": 2, **arguments,
    })  # fmt: skip


def action(queue=(), active=(), wait=-1.0, rows=(3, 2)):
    """Return an action of (amount, order) for some rows; other requests keep waiting, or run in full."""
    numbers = np.zeros((sum(rows), 2))
    numbers[: rows[0], 0], numbers[rows[0] :, 0] = -1, 1
    for first, given in ((0, queue), (rows[0], active)):
        for k, row in enumerate(given):
            numbers[first + k, : len(row)] = row
    return np.append(numbers.ravel(), wait / WAIT_UNIT)


def slots(env):
    """Return (id, KV tokens, prompt left, output tokens) of the active requests."""
    rows = env.view.active
    return list(zip(
        rows.request_id.tolist(), rows.num_kv_tokens.tolist(), rows.num_prefill_left.tolist(),
        rows.num_output_tokens.tolist(), strict=True,
    ))  # fmt: skip


def test_chunks_pauses_and_orders_by_hand(requests_of):
    """Memory 20. Prompts 6, 4 and 2; the last prefill iteration writes the first output token."""
    env = make(requests_of((0, 6, 3), (0, 4, 3), (0, 2, 2)), 20)
    _, info = env.reset(seed=0)
    assert info["action_mask"] is None  # a Box is sampled without a mask
    assert env.action_masks().tolist() == [1, 1, 1, 0, 0, 1]
    # Request 2 first, whole; then a chunk of 2 of request 0; request 1 stays.
    _, _, _, _, info = env.step(action(queue=[(2 / 6, 0.5), (-1,), (1, 0.1)]))
    assert info["ignored"] == 0
    assert slots(env) == [(2, 3, 0, 1), (0, 2, 4, 0)]
    assert env.action_masks().tolist() == [1, 0, 0, 1, 1, 1]
    # The active window begins with the latest: request 0 continues with 3 tokens, request 2 pauses.
    env.step(action(active=[(3 / 4,), (0,)]))
    assert slots(env) == [(2, 3, 0, 1), (0, 5, 1, 0)]
    # Request 0 is evicted, request 1 admitted and paused; request 2 decodes its last token.
    _, _, _, _, info = env.step(action(queue=[(0,)], active=[(-1,)]))
    assert slots(env) == [(1, 0, 4, 0)]
    assert env.action_masks().tolist() == [1, 0, 0, 1, 0, 1]
    assert env.result().requests["num_evictions"].tolist() == [1, 0, 0]
    assert env.view.clock == 3
    env.step(action(wait=5.5))
    assert env.view.clock == 5.5
    assert slots(env) == [(1, 0, 4, 0)]
    env.step(action(queue=[(1,)]))  # all in full
    assert slots(env) == [(1, 5, 0, 1), (0, 7, 0, 1)]


def test_requests_that_do_not_fit_are_not_admitted(requests_of):
    env = make(requests_of((0, 6, 3), (0, 8, 3), (0, 2, 2)), 12)
    env.reset(seed=0)
    # 7 and 3 tokens fit into 12, 9 and 3 do not; the order determines the first.
    *_, info = env.step(action(queue=[(1, 0.9), (1, 0.5), (1, -0.1)]))
    assert info["ignored"] == 1
    assert [row[0] for row in slots(env)] == [2, 1]


@pytest.mark.parametrize(("overflow", "left"), [("lifo", [0]), ("clear", [])])
def test_overflow_under_a_plan(overflow, left, requests_of):
    """Two requests hold 5 of 10 tokens each: one can continue if the other pauses or is evicted."""
    workload = requests_of((0, 4, 5), (0, 4, 5), (0, 4, 5))
    env = make(workload, 11, overflow=overflow)
    env.reset(seed=0)
    env.step(action(queue=[(1,), (1,)]))
    env.step(action(active=[(0,), (1,)]))
    assert [row[1] for row in slots(env)] == [6, 5]
    *_, info = env.step(action(queue=[(1,)], active=[(1,), (1,)]))
    assert [row[0] for row in slots(env)] == left
    assert info["ignored"] == 0


def test_random_actions_are_carried_out(requests_of):
    """The engine accepts the decision of any action, and episodes end."""
    rng = np.random.default_rng(0)
    for trial in range(30):
        n = int(rng.integers(1, 12))
        rows = [
            (float(rng.integers(0, 20)), int(rng.integers(1, 9)), int(rng.integers(1, 7))) for _ in range(n)
        ]
        env = make(
            requests_of(*sorted(rows)), int(rng.integers(16, 40)), horizon=300.0, stall_limit=50,
            overflow=("lifo", "clear")[trial % 2], queue_order=("queue", "prompt")[trial // 2 % 2],
            epochs=("iteration", "decision")[trial // 4 % 2], block_size=(1, 3, 1, 4, 5)[trial % 5],
            system={
                "first_token": list(FIRST_TOKEN)[trial % 3],
                "progress_on_evict": list(PROGRESS_ON_EVICT)[trial // 3 % 3],
            },
        )  # fmt: skip
        env.reset(seed=trial)
        ended = False
        while not ended:
            numbers = rng.uniform(-1, 1, env.action_space.shape)
            numbers[-1] = rng.uniform(-200, 60) / WAIT_UNIT
            *_, terminated, truncated, _ = env.step(numbers)
            ended = terminated or truncated
            assert env.view.kv_tokens <= env.view.kv_allocated <= env.view.kv_capacity


def test_actions_outside_the_space_are_refused(requests_of):
    env = make(requests_of((0, 6, 3)), 20)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="number 0 of the action is nan"):
        env.step(action(queue=[(np.nan,)]))
    with pytest.raises(ConfigError, match="shape"):
        env.step(np.zeros(3))
    with pytest.raises(ConfigError, match="is none of"):
        env.step([[1], [2, 3]])
    with pytest.raises(ConfigError, match="is 9, outside"):
        env.step(action(queue=[(9,)]))
    env.step(action(queue=[(1,)]))
    assert slots(env) == [(0, 7, 0, 1)]


# ---------------------------------------------------------------- every policy


def workload(needs, exact):
    """Two classes with rates, targets and priorities, and the required kind of predictions."""
    classes = [
        {"name": "short", "rate": 0.35, "prompt": {"kind": "uniform", "low": 1, "high": 8},
         "output": {"kind": "uniform", "low": 1, "high": 7}, "priority": 1, "ttft_slo": 8.0, "tbt_slo": 2.0},
        {"name": "long", "rate": 0.35, "prompt": {"kind": "uniform", "low": 1, "high": 8},
         "output": {"kind": "uniform", "low": 2, "high": 10}, "ttft_slo": 16.0, "tbt_slo": 4.0},
    ]  # fmt: skip
    predictions = {"kind": "exact"} if exact else {"kind": "noisy", "epsilon": 0.5}
    if "length_interval" in needs:
        predictions = {"kind": "interval", "epsilon": 0.1 if exact else 0.5}
    return {"classes": classes, "num_requests": 40, "predictions": predictions}


SMALLER = {
    "sarathi": "sarathi:token_budget=6",
    "slai": "slai:token_budget=6,max_decodes=3,low_offset=2",
    "rad": "rad:decodes=3,chunk=3",
    "rad_batched": "rad_batched:decodes=3,chunk=3,cycle=5",
    "vllm": "vllm:max_batch_tokens=12",
    "dist_serve": "dist_serve:decodes=3",
    "alpha_beta": "alpha_beta:alpha=0.05,beta=0.3",
    "alpha_greedy": "alpha_greedy:alpha=0.05",
    **{
        name: f"{name}:chunk=3"
        for name in (
            "work_conserving_fcfs",
            "work_conserving_sjf",
            "work_conserving_fcfs_lookahead",
            "work_conserving_sjf_lookahead",
        )
    },
}
"""Hyperparameters that cause chunks, pauses and evictions on a small worker."""


def specs(name):
    """Return a policy with its defaults, and with hyperparameters for requests of this size."""
    return [name] if name not in SMALLER else [name, SMALLER[name]]


def environment(policy, batch_time, exact, system, **arguments):
    info = make_policy(policy).info
    needs = info.needs | (info.uses - {"length_interval"})
    return plain_env(**{
        "action": "tokens", "scenario": "mc-sf-model-2", "kv_capacity": 30, "queue_window": 40, "active_window": 40,
        "workload": workload(needs, exact), "batch_time": batch_time, "system": system, "stall_limit": 10**6,
        "horizon": 1e6, "information": sorted(needs), **arguments,
    })  # fmt: skip


def expected(env, policy, seed):
    """Return the run in the engine, None if the policy livelocks."""
    try:
        return kvgym.simulate(env.episodes.system, env.episodes.workload.sample(seed), policy, seed=seed)
    except LivelockError:
        return None


RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))


def rules(k):
    """Return the k-th combination of engine rules; nine consecutive ones have every value of each.

    Every second memory of 30 tokens has blocks of several tokens.
    """
    first, progress, requeue = RULES[(k * 4 + k // 27) % 27]
    block_size = (1, 4, 7, 1, 10)[k % 5]
    return {
        "first_token": first,
        "progress_on_evict": progress,
        "requeue": requeue,
        "block_size": block_size,
    }


@EACH_FAMILY
def test_every_policy_acts_as_in_the_engine(name):
    """Schedules are equal bit for bit, with each decision in Python."""
    compared = 0
    for k, policy in enumerate(specs(name) * 2):
        env = environment(policy, AFFINE, False, rules(k + len(name)), num_requests=16)
        run = expected(env, policy, k)
        if run is None:
            continue
        played, total = play(env, policy, workload_seed=k)
        for field in RECORDS:
            np.testing.assert_array_equal(played.requests[field], run.requests[field], err_msg=field)
        assert played.worker["iteration"] == run.worker["iteration"]
        assert played.worker["busy_time"] == run.worker["busy_time"]
        if run.completed:
            assert total == pytest.approx(-kvgym.compute_metrics(run)["e2e_latency_mean"], rel=1e-9)
        compared += 1
    assert compared > 0


@EACH_FAMILY
def test_every_policy_can_be_demonstrated(name):
    """In the compiled loop too, with all engine rules, the worker carries out the policy's decisions."""
    compared = 0
    cases = some(enumerate([{"kind": "unit"}, AFFINE] * 14), 5)
    for policy, (k, batch_time) in itertools.product(specs(name), cases):
        env = environment(policy, batch_time, k // 2 % 2 == 0, rules(k), stall_limit=2000)
        arguments = {key: value for key, value in env.config.model_dump().items() if key != "action"}
        try:
            found = demonstrate(policy, steps=300, seed=k, action="tokens", **arguments)
        except LivelockError:
            continue
        assert found.actions.shape == (300, 2 * 80 + 1)
        assert all(env.action_space.contains(row) for row in found.actions[::50])
        for seed, metrics in zip(found.workload_seeds.tolist(), found.metrics, strict=False):
            run = expected(env, policy, seed)
            assert run is not None
            wanted = kvgym.compute_metrics(run)
            # No action selects a request and returns it at once.
            same = [name not in ("put_back", "overflows") for name in wanted]
            np.testing.assert_array_equal(metrics[same], np.array(list(wanted.values()))[same])
            compared += 1
    assert compared >= number(20, 4)


def test_windows_must_be_long_enough():
    env = environment("mc_sf", AFFINE, True, {}, queue_window=1)
    with pytest.raises(NotExpressibleError, match="longer queue_window"):
        play(env, "mc_sf", workload_seed=0)


class Repeats:
    """An agent that admits all requests and pauses the latest."""

    def predict(self, observation, deterministic=True):
        return action(queue=[(1,)] * 3, active=[(0,), (0.6,)], rows=(3, 2)), None


def test_an_agent_gives_the_same_schedule_as_a_policy(requests_of):
    arguments = {
        "action": "tokens", "scenario": "mc-sf-model-2", "workload": requests_of(*[(k, 5, 4) for k in range(9)]),
        "kv_capacity": 30, "queue_window": 3, "active_window": 2, "horizon": 500.0,
    }  # fmt: skip
    env = plain_env(**arguments)
    observation, _ = env.reset(options={"workload_seed": 0})
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(Repeats().predict(observation)[0])
        ended = terminated or truncated
    run = kvgym.simulate(
        env.episodes.system, env.episodes.workload.sample(0), AgentPolicy(Repeats(), **arguments)
    )
    for field in RECORDS:
        np.testing.assert_array_equal(env.result().requests[field], run.requests[field], err_msg=field)
