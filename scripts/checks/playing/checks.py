"""Checks that hold in every episode: invariants of the tables, records, and sums of rewards."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvgym.envs.scheduling.episode_tables import EpisodeTables
from kvgym.policies.contract.cache_invariants import check_cache
from kvgym.policies.runner import SimulationResult, arrived_table


def equal(a: Any, b: Any) -> bool:
    """Return whether two nested values are the same bit for bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray):
        if a.dtype == object:
            return a.shape == b.shape and all(map(equal, a.ravel(), b.ravel()))
        if a.dtype.names:  # field by field, because the padding has no meaning
            return a.dtype == b.dtype and all(
                equal(np.asarray(a[name]), np.asarray(b[name])) for name in a.dtype.names
            )
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b or (a != a and b != b))


def check_state(episodes: Any, index: int = 0) -> None:
    """Check the engine's invariants in the tables of an episode.

    Args:
        episodes: episodes of an environment or a vector environment.
        index: index of the environment.
    """
    tables, block = EpisodeTables(episodes, index), episodes.slots[index].block
    worker, problem = tables.worker, tables.problem[0]
    n, num_active = int(problem["num_requests"]), int(worker["num_active"])
    requests, slots = tables.requests[:n], tables.active[0][:num_active]
    ids = slots["request_id"]
    assert len(set(ids.tolist())) == num_active
    assert (requests["status"][ids] == 2).all()
    assert int(worker["kv_tokens"]) == int(slots["num_kv_tokens"].sum())
    assert int(worker["kv_allocated"]) <= int(problem["kv_capacity"])
    assert int(worker["peak_kv_tokens"]) <= int(problem["kv_capacity"])
    assert int(worker["num_prefilling"]) == int((slots["num_prefill_left"] > 0).sum())
    count = np.bincount(requests["status"], minlength=6)
    assert count[4:].sum() == 0
    assert (count[1], count[2], count[3]) == (worker["num_waiting"], num_active, worker["total_finished"])
    arrived = int(block["tracker"]["next_arrival"][0])
    assert count[0] == n - arrived
    assert (requests["status"][arrived:] == 0).all()
    given = episodes.slots[index].table
    found = arrived_table(episodes.system, given, block["tracker"], block["turns"], block["workload"])
    table = found["table"]
    assert (table.arrival_time[:arrived] <= worker["clock"]).all()
    queue, i = [], int(worker["queue_head"])
    while i >= 0:
        queue.append(i)
        i = int(requests["queue_next"][i])
    assert len(queue) == count[1]
    assert (requests["status"][queue] == 1).all()
    check_cache(SimpleNamespace(system=episodes.system, **tables.python_tables()))
    requests = requests[: len(table)]
    done = requests["status"] == 3
    np.testing.assert_array_equal(requests["num_output_tokens"][done], table.output_len[done])
    assert (requests["num_output_tokens"][~done] < np.maximum(table.output_len[~done], 1)).all()
    episode, decision = block["episode"][0], block["decision"][0]
    window = block["window"][: int(episode["num_window"])].tolist()
    admitted = block["admit"][: int(decision["num_admit"])].tolist()
    assert len({*window, *admitted}) == len(window) + len(admitted)
    assert set(window) | set(admitted) <= set(queue)
    assert len(window) == min(len(block["window"]), len(queue) - len(admitted))


def check_records(result: SimulationResult) -> None:
    """Check the records of a completed episode."""
    table, r = result.table, result.requests
    assert (table.arrival_time <= r["start_time"]).all()
    assert (r["start_time"] <= r["first_token_time"]).all()
    assert (r["first_token_time"] <= r["finish_time"]).all()
    np.testing.assert_array_equal(r["num_output_tokens"], table.output_len)
    shown = table.output_len + (1 if result.system.first_token == "uncounted" else 0)
    assert result.gap_counts.sum() == (shown - 1).sum()


def check_returns(names: tuple[str, ...], terms: Any, scale: float, metrics: dict[str, float]) -> None:
    """Check that the rewards of a completed episode agree with its metrics.

    Args:
        names: names of the reward terms.
        terms: sum of each over the steps, undiscounted and unweighted.
        scale: divisor of the terms.
        metrics: metrics by name.
    """
    found = dict(zip(names, np.asarray(terms).tolist(), strict=True))
    for term, metric in (("latency", "e2e_latency_mean"), ("ttft", "ttft_mean")):
        expected = -metrics[metric] * metrics["finished"] / scale
        assert math.isclose(found[term], expected, rel_tol=1e-9, abs_tol=1e-9), (
            f"the rewards {term} add up to {found[term]!r}; {metric} implies {expected!r}"
        )


def time_inside(result: SimulationResult, until: float) -> float:
    """Return the total time of all requests in the system until a truncated episode ended, seconds.

    The last batch may end after the horizon; requests that arrive in between are not part of the episode.
    """
    there = result.table.arrival_time <= min(until, result.system.horizon)
    left = np.where(np.isnan(result.requests["finish_time"]), until, result.requests["finish_time"])
    return float((left - result.table.arrival_time)[there].sum())
