"""What the environment tests share: small episodes, random configurations, explicit requests, state checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import kvgym  # noqa: F401, registers the environments
from kvgym.experiments.scenario import load_scenario, scenario_names

SMALL = {
    "scenario": "mc-sf-model-2",
    "num_requests": 8,
    "queue_window": 3,
    "active_window": 3,
    "horizon": 300.0,
    "hold": 3,
}
"""Arguments of an episode of a few dozen steps in slotted time, with 40 tokens of memory."""

SHORT = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def random_arguments() -> Callable[[np.random.Generator], dict[str, Any]]:
    """Return a function that draws a valid configuration, of any scenario."""
    return _random_arguments


def _random_arguments(rng: np.random.Generator) -> dict[str, Any]:
    def one(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    # An adversary's requests are a given list: no number or rate of them can be asked for.
    names = (name for name in scenario_names() if name != "mc-sf-adversarial")
    scenario = one(*(name for name in names if load_scenario(name).workers == 1))
    arguments: dict[str, Any] = {
        "action": one("admit_evict", "admit_count", "flags", "knobs", "tokens", "rank", "rank_scores"),
        "scenario": scenario,
        "observation": one("flat", "dict", "rllib"),
        "queue_window": one(1, 2, 5, 16),
        "active_window": one(1, 3, 16),
        "epochs": one("iteration", "decision"),
        "overflow": one("lifo", "clear"),
        "num_requests": int(rng.integers(1, 40)),
        "hold": int(rng.integers(1, 10)),
        "stall_limit": one(10, 200),
        "block_size": one(1, 1, 4),  # a divisor of the 40 tokens that slotted requests may fill
        "system": {
            "first_token": one("counted", "uncounted", "decode"),
            "progress_on_evict": one("lost", "recompute", "kept"),
            "requeue": one("arrival", "front", "back"),
        },
        "reward": {
            name: float(w)
            for name, w in zip(kvgym_terms(), rng.uniform(-1, 1, len(kvgym_terms())), strict=True)
            if w > 0
        },
    }
    if scenario != "mc-sf-model-2" and rng.random() < 0.8:  # little memory
        arguments |= {
            "workload": SHORT,
            "kv_capacity": int(rng.integers(116, 300)),
            "block_size": one(1, 1, 5, 16),
            "rate": one(5.0, 50.0, 500.0),
        }
        predictor = one(
            {"kind": "exact"}, {"kind": "noisy", "epsilon": 0.5}, {"kind": "interval", "epsilon": 0.5}
        )
        if predictor["kind"] != "exact":
            arguments["workload"] = {**SHORT, "predictions": predictor}
        information = [n for n in ("true_length", "slo") if rng.random() < 0.3]
        if rng.random() < 0.7:
            information.append("length_interval" if predictor["kind"] == "interval" else "predicted_length")
        arguments["information"] = information
    elif rng.random() < 0.3 or load_scenario(scenario).make_workload().sample(0).predicted_output_len is None:
        arguments["information"] = []
    shown = arguments.get("information", ["predicted_length"])
    arguments["queue_order"] = one(
        "queue", "prompt", "attained", *(["predicted", "volume"] if "predicted_length" in shown else [])
    )
    if arguments["action"].startswith("rank"):
        arguments["queue_order"] = one("rank", arguments["queue_order"])
        arguments["features"] = [n for n in ("rank", "priority", "saved_duration") if rng.random() < 0.5]
    if arguments["action"] == "rank_scores" and rng.random() < 0.5:
        arguments["weights"] = {"cost": 0.8, "gate": 1.0, "value": 0.05}
    if rng.random() < 0.3:
        arguments["load"] = one((0.5, 2.0), (3.0, 3.0))
    if rng.random() < 0.3:
        arguments["reward"] = {name: 0.5 for name in ("latency", "ttft", "goodput") if rng.random() < 0.7}
        arguments["reward_reference"] = one("fcfs", "alpha_beta:alpha=0.2,beta=0.3", "sarathi")
    if arguments["action"] == "knobs" and rng.random() < 0.3:
        arguments["knobs"] = {one("protection", "budget", "quantum"): (0, 3), "cap": one((0, 5), (7,))}
    if rng.random() < 0.2:
        arguments["horizon"] = float(rng.uniform(0.5, 20))
    return arguments


def kvgym_terms() -> tuple[str, ...]:
    from kvgym.envs.scheduling.tables import REWARD_TERMS

    return REWARD_TERMS


@pytest.fixture
def requests_of(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that makes a workload of explicit (arrival, prompt, output) rows."""

    def make(*rows: tuple[float, int, int], **fields: Any) -> dict[str, Any]:
        path = tmp_path / f"requests-{abs(hash(rows)) % 10**9}.csv"
        lines = [",".join(map(str, row)) for row in rows]
        path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *lines]) + "\n")
        return {
            "lengths": {"kind": "trace", "path": str(path), "format": "vidur", "debatch": False},
            **fields,
        }

    return make


@pytest.fixture(scope="session")
def play() -> Callable[..., list[Any]]:
    """Return a function that plays an episode and returns its steps."""

    def run(env: gym.Env[Any, Any], seed: int, *, masked: bool = True, limit: int = 10_000) -> list[Any]:
        base: Any = env.unwrapped
        steps: list[Any] = [env.reset(seed=seed)]
        env.action_space.seed(seed)
        for _ in range(limit):
            action = env.action_space.sample(base.sample_mask() if masked else None)
            steps.append(env.step(action))
            if steps[-1][2] or steps[-1][3]:
                break
        return steps

    return run


@pytest.fixture(scope="session")
def equal() -> Callable[[Any, Any], bool]:
    """Return a function that says whether two nested values are the same bit for bit, types included."""
    return _equal


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray):
        if a.dtype == object:
            return a.shape == b.shape and all(map(_equal, a.ravel(), b.ravel()))
        if a.dtype.names:  # field by field: what lies between the fields means nothing
            return a.dtype == b.dtype and all(
                _equal(np.asarray(a[name]), np.asarray(b[name])) for name in a.dtype.names
            )
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b or (a != a and b != b))


@pytest.fixture(scope="session")
def check_state() -> Callable[[Any], None]:
    """Return a function that checks the engine's invariants in the tables of an environment."""
    return _check_state


def _check_state(env: Any) -> None:
    tables, block = env.tables, env.episodes.slots[0].block
    worker, problem = tables.worker, tables.problem[0]
    n, num_active = int(problem["num_requests"]), int(worker["num_active"])
    requests, slots = tables.requests[:n], tables.active[0][:num_active]
    ids = slots["request_id"]
    assert len(set(ids.tolist())) == num_active
    assert (requests["status"][ids] == 2).all()
    assert int(worker["kv_tokens"]) == int(slots["num_kv_tokens"].sum()) <= int(problem["kv_capacity"])
    assert int(worker["peak_kv_tokens"]) <= int(problem["kv_capacity"])
    assert int(worker["num_prefilling"]) == int((slots["num_prefill_left"] > 0).sum())
    count = np.bincount(requests["status"], minlength=6)
    assert count[4:].sum() == 0
    assert (count[1], count[2], count[3]) == (worker["num_waiting"], num_active, worker["total_finished"])
    arrived = int(block["tracker"]["next_arrival"][0])
    assert count[0] == n - arrived
    assert (requests["status"][arrived:] == 0).all()
    table = env.episodes.slots[0].table
    assert (table.arrival_time[:arrived] <= worker["clock"]).all()
    queue, i = [], int(worker["queue_head"])
    while i >= 0:
        queue.append(i)
        i = int(requests["queue_next"][i])
    assert len(queue) == count[1]
    assert (requests["status"][queue] == 1).all()
    done = requests["status"] == 3
    np.testing.assert_array_equal(requests["num_output_tokens"][done], table.output_len[done])
    assert (requests["num_output_tokens"][~done] < np.maximum(table.output_len[~done], 1)).all()
    episode, decision = block["episode"][0], block["decision"][0]
    window = block["window"][: int(episode["num_window"])].tolist()
    admitted = block["admit"][: int(decision["num_admit"])].tolist()
    assert len({*window, *admitted}) == len(window) + len(admitted)
    assert set(window) | set(admitted) <= set(queue)
    assert len(window) == min(len(block["window"]), len(queue) - len(admitted))
