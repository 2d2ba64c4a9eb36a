"""The stability theorems against simulation: queues bounded below the rate, growing linearly above it.

Slotted time as in the theory: every batch takes b̄, swapping costs nothing, the first token is not counted.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.stability import (
    cumulative_memory,
    mean_cumulative_memory_uniform,
    memory_slack,
    service_rate,
)
from kvgym.workloads.workload import make_workload

M, CHUNK = 131_000, 512
SLACK = memory_slack(M, 3200)
SEEDS = range(4)
RATIOS = {
    "stab-1-1": ((10, 1600), (10, 1600), 0.0372),
    "stab-2-1": ((10, 2133), (5, 1066), 0.0430),
    "stab-1-2": ((10, 1066), (10, 2133), 0.0337),
}
POLICIES = (
    "work_conserving_fcfs",
    "work_conserving_fcfs_lookahead",
    "work_conserving_sjf",
    "work_conserving_sjf_lookahead",
)


def system_of(preset, workers=1):
    one = System(M, AffineBatchTime(RATIOS[preset][2]), first_token="uncounted", progress_on_evict="kept")
    return one if workers == 1 else one.replicate(workers)


def rate_of(preset):
    prompt, output, batch_time = RATIOS[preset]
    return service_rate(M, batch_time, mean_cumulative_memory_uniform(prompt, output, CHUNK))


def run(preset, policy, rate, seed, requests, workers=1):
    table = make_workload(preset, rate=rate, num_requests=requests).sample(seed)
    router = None if workers == 1 else "round_robin"
    return simulate(system_of(preset, workers), table, policy, router=router, log=True)


def work_of(result):
    return cumulative_memory(result.table.prompt_len, result.table.output_len, CHUNK)


def waiting(result, times):
    """Requests that have arrived and not been started at each time."""
    arrived = np.searchsorted(result.table.arrival_time, times, side="right")
    return arrived - np.searchsorted(np.sort(result.requests["start_time"]), times, side="right")


def growth(result):
    """Slope of the number waiting (1/s) and its maximum, while requests arrive, the first fifth left out."""
    end = result.table.arrival_time[-1]
    times = np.linspace(0.2 * end, end, 500)
    count = waiting(result, times)
    return np.polyfit(times, count, 1)[0], count.max()


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_batches_hold_exactly_the_lifetime_memory_of_the_requests(policy, workers):
    """Nothing is computed twice under swap, so that what all batches hold adds up to Σ g(s, o)."""
    result = run("stab-1-1", policy, 4.0 * workers, 0, 300 * workers, workers)
    assert result.completed
    assert result.log["kv_tokens"].sum() == work_of(result).sum()
    if "lookahead" in policy:
        assert result.worker["total_evicted"].sum() == 0
    else:
        assert result.worker["total_evicted"].sum() > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preset", RATIOS)
def test_one_worker_is_stable_below_the_rate_and_not_above(preset, policy):
    service = rate_of(preset)
    low, high = 0.9 * service * (1 - SLACK), 1.1 * service
    stable = [growth(run(preset, policy, low, seed, 4000)) for seed in SEEDS]
    unstable = [growth(run(preset, policy, high, seed, 4000)) for seed in SEEDS]
    assert abs(np.mean([slope for slope, _ in stable])) < 0.005 * low
    assert max(most for _, most in stable) < 60
    slopes = np.array([slope for slope, _ in unstable])
    # SJF keeps the few largest jobs waiting: the same backlog of work in about a third of the requests.
    expected = (high - service) * (0.3 if "sjf" in policy else 1)
    assert np.all(slopes > 0)
    assert 0.6 * expected < slopes.mean() < 1.6 * expected
    assert min(most for _, most in unstable) > 2 * max(most for _, most in stable)


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_eight_workers_behind_round_robin(policy):
    service = 8 * rate_of("stab-1-1")
    low, high = 0.9 * service * (1 - SLACK), 1.1 * service
    stable = [growth(run("stab-1-1", policy, low, seed, 16_000, 8)) for seed in SEEDS[:2]]
    unstable = [growth(run("stab-1-1", policy, high, seed, 16_000, 8)) for seed in SEEDS[:2]]
    assert abs(np.mean([slope for slope, _ in stable])) < 0.005 * low
    assert max(most for _, most in stable) < 60
    assert 0.6 < np.mean([slope for slope, _ in unstable]) / (high - service) < 1.6


def test_the_queue_above_the_rate_grows_linearly():
    """At double the time the queue is double as long; below the rate it is not longer."""
    service = rate_of("stab-1-1")
    ratios = []
    for seed in SEEDS:
        result = run("stab-1-1", POLICIES[0], 1.3 * service, seed, 4000)
        end = result.table.arrival_time[-1]
        half, full = waiting(result, np.array([0.5, 1.0]) * end)
        ratios.append(full / half)
    assert 1.7 < np.mean(ratios) < 2.4


@pytest.mark.parametrize("policy", [*POLICIES, "sarathi:token_budget=512"])
def test_no_policy_processes_more_than_the_memory_per_slot(policy):
    """The argument of Theorem 1: after n slots at least the arrived work minus n·M is left, under any policy."""
    result = run("stab-1-1", policy, 1.5 * rate_of("stab-1-1"), 1, 2000)
    end, batch_time = result.table.arrival_time[-1], RATIOS["stab-1-1"][2]
    stopped = simulate(replace(system_of("stab-1-1"), horizon=end), result.table, policy, log=True)
    slots = len(stopped.log)
    assert slots <= end / batch_time + 1
    assert np.all(stopped.log["kv_tokens"] <= M)
    done = stopped.log["kv_tokens"].sum()
    finished = np.isfinite(stopped.requests["finish_time"])
    assert work_of(stopped)[finished].sum() <= done <= slots * M
    assert not stopped.completed
