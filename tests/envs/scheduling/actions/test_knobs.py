"""Knobs: the rule by hand in slotted time, its quantum, its invariants, and ends of episodes."""

from __future__ import annotations

import numpy as np
import pytest

from kvgym.envs.scheduling.actions.knobs import ADMISSION_CAPS, PROTECTION_LEVELS, QUANTA, TOKEN_BUDGETS
from kvgym.envs.scheduling.actions.knobs import LEVELS as KNOBS_BY_NAME
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError

NEVER, Q128, Q256 = 0, QUANTA.index(128), QUANTA.index(256)
ALL, ANY = ADMISSION_CAPS.index(2**31 - 1), TOKEN_BUDGETS.index(2**31 - 1)


def make(workload, capacity, **arguments):
    """Return an environment with a second per batch and a step per iteration."""
    return ServingEnv(**{
        "action": "knobs", "scenario": "mc-sf-model-2", "workload": workload, "kv_capacity": capacity, "hold": 1,
        "horizon": 1e5, "queue_window": 4, "active_window": 4, **arguments,
    })  # fmt: skip


def run(env, knobs, limit=5000):
    """Play an episode with the same knobs throughout; return its request records."""
    env.reset(seed=0)
    for _ in range(limit):
        *_, terminated, truncated, info = env.step(knobs)
        assert info["ignored"] == 0
        if terminated or truncated:
            break
    assert terminated
    return env.result().requests


def check(records, **expected):
    names = {
        "start": "start_time",
        "first": "first_token_time",
        "finish": "finish_time",
        "evicted": "num_evictions",
    }
    for key, values in expected.items():
        assert records[names[key]].tolist() == values, key


def test_levels():
    assert tuple(KNOBS_BY_NAME) == ("protection", "cap", "budget", "quantum")
    env = make("mcsf-model-2", 40)
    assert env.action_space.nvec.tolist() == [len(levels) for levels in KNOBS_BY_NAME.values()]
    assert (PROTECTION_LEVELS[0], ADMISSION_CAPS[0], QUANTA[0]) == (0.0, 0, 2**31 - 1)


# ---------------------------------------------------------------- margin, cap, budget


def test_a_budget_cuts_prompts_into_chunks(requests_of):
    """64 tokens per iteration: 64, then 36 of request 0 and 28 of request 1, then a decode and 22."""
    records = run(make(requests_of((0, 100, 3), (0, 50, 1)), 1000), [0, ALL, 0, NEVER])
    check(records, start=[0, 1], first=[2, 3], finish=[4, 3])


def test_a_cap_limits_admissions_of_an_iteration(requests_of):
    workload = requests_of(*[(0, 5, 4)] * 3)
    check(run(make(workload, 1000), [0, 1, ANY, NEVER]), start=[0, 1, 2])
    check(run(make(workload, 1000), [0, 2, ANY, NEVER]), start=[0, 0, 1])


def test_a_margin_is_kept_free_except_on_an_empty_worker(requests_of):
    """Half of 40 tokens is protected: 15 + 1 fit only alone, 30 + 1 only into an empty worker."""
    half = PROTECTION_LEVELS.index(0.5)
    workload = requests_of((0, 30, 5), (0, 15, 2), (0, 3, 2))
    check(run(make(workload, 40), [half, ALL, ANY, NEVER]), start=[0, 5, 5], evicted=[0, 0, 0])
    check(run(make(workload, 100), [half, ALL, ANY, NEVER]), start=[0, 0, 2])  # 31 + 16 + 4 are more than 50


def test_an_empty_worker_must_admit(requests_of):
    env = make(requests_of((0, 5, 2), (10, 5, 2)), 40)
    _, info = env.reset(seed=0)
    assert info["action_mask"][1].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    *_, info = env.step([0, 0, ANY, NEVER])  # carried out, but counted
    assert (info["ignored"], env.view.num_active) == (1, 0)
    *_, info = env.step([0, ALL, ANY, NEVER])
    assert info["ignored"] == 0
    assert all(part.all() for part in info["action_mask"])  # a request is active
    *_, info = env.step([0, 0, ANY, NEVER])
    assert info["ignored"] == 0
    assert info["action_mask"][1].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    assert info["time"] == 10


# ---------------------------------------------------------------- allowed levels


def test_allowed_levels(requests_of):
    env = make(requests_of((0, 5, 4)), 40, knobs={"quantum": [0, 2, 2], "cap": [ALL]})
    _, info = env.reset(seed=0)
    assert [part.tolist() for part in env.sample_mask()] == [
        [1] * 10, [0, 0, 0, 0, 0, 0, 0, 1], [1] * 10, [1, 0, 1, 0, 0]
    ]  # fmt: skip
    for wrong in ([0, 1, 9, 0], [0, ALL, 9, 1]):
        *_, info = env.step(wrong)
        assert info["ignored"] == 1
        assert env.view.num_active == 0
    *_, info = env.step([0, ALL, 9, 2])
    assert info["ignored"] == 0
    assert env.view.num_active == 1


@pytest.mark.parametrize(
    "knobs", [{"cap": [0]}, {"cap": [0, 0]}, {"cap": [8]}, {"quantum": []}, {"quanta": [0]}]
)
def test_wrong_levels(knobs):
    with pytest.raises(ConfigError):
        ServingEnv(action="knobs", knobs=knobs)


# ---------------------------------------------------------------- the quantum


def test_the_quantum_by_hand(requests_of):
    """Requests 0 and 1 hold 60 + t tokens each, request 2 needs 801 of 1020 from 100 on.

    At 128 request 0 (the first of two with equally many tokens) is evicted: 60 + 128 + 1 + 801 = 990 fit. It returns
    when request 2 has finished, at 138; before that, request 1 does not have twice its 128 tokens. At 256 an eviction
    would leave 317 + 801.
    """
    workload = requests_of((0, 60, 300), (0, 60, 300), (100, 800, 10))
    records = run(make(workload, 1020), [0, ALL, ANY, Q128])
    check(records, start=[0, 0, 128], finish=[138 + 300, 300, 138], evicted=[1, 0, 0])
    kept = run(make(workload, 1020, system={"progress_on_evict": "kept"}), [0, ALL, ANY, Q128])
    check(kept, finish=[138 + 172, 300, 138], evicted=[1, 0, 0])
    check(run(make(workload, 1020), [0, ALL, ANY, Q256]), start=[0, 0, 300], evicted=[0, 0, 0])
    check(run(make(workload, 1020), [0, ALL, ANY, NEVER]), start=[0, 0, 300], evicted=[0, 0, 0])


def test_doubling_by_hand(requests_of):
    """Only one of two fits. 0 is evicted at 128 tokens, 1 at 256; 0 would be evicted at 512, which it never reaches."""
    workload = requests_of((0, 301, 300), (1, 301, 300))
    records = run(make(workload, 601), [0, ALL, ANY, Q128])
    check(records, start=[0, 128], finish=[128 + 256 + 300, 128 + 256 + 300 + 300], evicted=[1, 1])


def test_no_eviction_for_a_request_that_fits(requests_of):
    workload = requests_of((0, 60, 300), (0, 60, 300), (200, 100, 10))
    check(run(make(workload, 1000), [0, ALL, ANY, Q128]), start=[0, 0, 200], evicted=[0, 0, 0])


def test_the_quantum_counts_the_margin(requests_of):
    """Of 1000 tokens 800 may be used: at 200 there are 522 in use, and 300 + 1 do not fit as well."""
    workload = requests_of((0, 60, 300), (0, 60, 300), (200, 300, 10))
    margin = PROTECTION_LEVELS.index(0.2)
    check(run(make(workload, 1000), [margin, ALL, ANY, Q128]), start=[0, 0, 200], evicted=[1, 0, 0])
    check(run(make(workload, 1000), [0, ALL, ANY, Q128]), start=[0, 0, 200], evicted=[0, 0, 0])


@pytest.mark.parametrize("order", ["queue", "prompt", "attained"])
def test_no_eviction_that_makes_too_little_room(order, requests_of):
    """Request 2 needs nearly all memory: an evicted request would be admitted again at once, and its tokens lost."""
    workload = requests_of((0, 60, 300), (0, 60, 300), (1, 950, 10))
    records = run(make(workload, 1000, queue_order=order), [0, ALL, ANY, Q128])
    check(records, start=[0, 0, 300], finish=[300, 300, 310], evicted=[0, 0, 0])


def test_no_eviction_without_admissions(requests_of):
    env = make(requests_of((0, 60, 300), (0, 60, 300), (100, 800, 10)), 1040)
    env.reset(seed=0)
    env.step([0, ALL, ANY, Q128])
    for _ in range(160):
        env.step([0, 0, ANY, Q128])
    assert env.view.num_active == 2
    env.step([0, 1, ANY, Q128])
    assert env.view.active.request_id.tolist() == [1, 2]


def test_no_eviction_while_the_budget_is_used_up(requests_of):
    """64 tokens: request 1 has 63 of them from 126 to 131 and its last 22 at 132, when 42 are left for request 2."""
    workload = requests_of((0, 60, 300), (126, 400, 50), (127, 500, 5))
    records = run(make(workload, 1000), [0, ALL, 0, Q128])
    check(records, evicted=[1, 0, 0])
    assert records["start_time"].tolist()[1:] == [126, 132]
    assert records["first_token_time"][1] == 133
    # 42 tokens at 132, then 63 and a decode per iteration: 458 more take eight iterations.
    assert records["first_token_time"][2] == 133 + 8


def test_no_admission_after_an_overflow(requests_of):
    """At 140 two requests need 2 (10 + 140 + 1) of 300 tokens: the later is evicted by the overflow rule only."""
    workload = requests_of((0, 10, 280), (0, 10, 280), (139.5, 5, 3))
    env = make(workload, 300)
    env.reset(seed=0)
    while env.view.clock < 140:
        env.step([0, ALL, ANY, Q128])
    env.step([0, ALL, ANY, Q128])
    assert env.view.active.request_id.tolist() == [0]
    assert env.view.clock == 141
    env.step([0, ALL, ANY, Q128])
    assert env.view.active.request_id.tolist() == [0, 1, 2]


# ---------------------------------------------------------------- at random


@pytest.mark.parametrize("seed", range(24))
def test_any_knobs_keep_the_invariants_and_end(seed, check_state):
    """With a quantum and little memory the limits hold in every order; unless overflow clears, all requests finish."""
    rng = np.random.default_rng(seed)

    def one(*options):
        return options[int(rng.integers(len(options)))]

    longest = one(200, 600)
    env = ServingEnv(
        action="knobs",
        num_requests=40,
        rate=one(1.0, 5.0, 50.0),
        kv_capacity=int(rng.integers(1000, 3000)),
        workload={"preset": "lmsys", "limits": {"max_prompt_len": 300, "max_output_len": longest}},
        hold=one(1, 4),
        queue_window=one(1, 3, 16),
        queue_order=one("queue", "predicted", "prompt", "volume", "attained"),
        overflow=one("lifo", "clear"),
        horizon=1e7,
        system={
            "first_token": one("counted", "uncounted", "decode"),
            "progress_on_evict": one("lost", "recompute", "kept"),
            "requeue": one("arrival", "front", "back"),
        },
    )
    env.reset(seed=seed)
    fixed = rng.integers([0, 1, 0, 1], env.action_space.nvec)
    changing = seed % 2
    env.action_space.seed(seed)
    for step in range(3000 if env.config.overflow == "clear" else 20_000):
        action = fixed
        if changing:
            action = env.action_space.sample(env.sample_mask())
            action[1], action[3] = max(action[1], 1), max(action[3], 1)
        *_, terminated, truncated, info = env.step(action)
        assert info["ignored"] == 0
        if step % 7 == 0 or terminated:
            check_state(env)
        if terminated or truncated:
            break
    if env.config.overflow == "lifo":
        assert terminated, env.config.model_dump(exclude_defaults=True)
        result = env.result()
        np.testing.assert_array_equal(result.requests["num_output_tokens"], result.table.output_len)
