"""Runs over rates and seeds, and the figures of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import Scale
from kvgym import RequestTable, make_policy, simulate
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.simulator.tables import FINISHED
from papers.slai.gaps import Array, token_gaps
from papers.slai.setting import Plan, plan_of


class Runner:
    """Runs policies on the requests of a scenario; can be sent to other processes.

    Args:
        scenario: hardware and workload; its arrivals are replaced by Poisson arrivals of each rate.
        plan: the lengths of arrivals and warm-up.
    """

    def __init__(self, scenario: Scenario, plan: Plan) -> None:
        self.scenario, self.plan, self.system = scenario, plan, scenario.make_system()

    def sample(self, rate: float, seed: int) -> RequestTable:
        """Return the requests of a rate and a seed."""
        arrivals = {"kind": "poisson", "rate": rate}
        workload = {"preset": self.scenario.workload, "arrivals": arrivals, "duration": self.plan.duration}
        made = self.scenario.override(workload=workload).make_workload()
        return self.scenario.sample(made, seed, self.system.kv_capacity)

    def measure(
        self, task: tuple[float, int, Sequence[str]]
    ) -> dict[tuple[str, float, int], dict[str, float]]:
        """Return the figures of policies at a rate, on a seed, by policy, rate and seed."""
        rate, seed, policies = task
        table = self.sample(rate, seed)
        runs = ((p, simulate(self.system, table, make_policy(p), seed=seed)) for p in policies)
        return {(policy, rate, seed): measure(result, self.plan) for policy, result in runs}

    def class_gaps(self, task: tuple[float, int, str]) -> tuple[float, float]:
        """Return the P99 TBT of paying and of free users in the window."""
        rate, seed, policy = task
        table = self.sample(rate, seed)
        owner, gap = token_gaps(self.system, table, policy, self.plan.window)
        paying, free = (quantile(gap[table.priority[owner] == priority], 0.99) for priority in (1, 0))
        return paying, free


class Measurements:
    """Figures of every run, by policy and rate, with one value per seed.

    Args:
        scenario: hardware and workload.
        policies: the policies.
        rates: requests per second.
        scale: the size.
        seeds: in a full run; every policy sees the same requests under each.
    """

    def __init__(
        self, scenario: Scenario, policies: Iterable[str], rates: Sequence[float], scale: Scale, seeds: int
    ) -> None:
        self.rates, self.seeds = tuple(rates), scale.number_of_seeds(seeds)
        self._scale, self._runner = scale, Runner(scenario, plan_of(scale))
        tasks = [(rate, seed, list(policies)) for rate in self.rates for seed in range(self.seeds)]
        self._runs = {k: v for found in scale.do_all(self._runner.measure, tasks) for k, v in found.items()}

    def values(self, policy: str, rate: float, column: str) -> Array:
        """Return a figure by seed, shape (seeds,)."""
        return np.array([self._runs[policy, rate, seed][column] for seed in range(self.seeds)])

    def curve(self, policy: str, column: str) -> Array:
        """Return a figure by rate and seed, shape (rates, seeds)."""
        return np.array([self.values(policy, rate, column) for rate in self.rates])

    def means(self, policy: str, column: str) -> list[float]:
        """Return a figure's mean over seeds by rate, for a curve."""
        return [float(value) for value in self.curve(policy, column).mean(axis=1)]

    def class_gaps(self, policies: Sequence[str], rates: Sequence[float]) -> dict[tuple[str, float], Array]:
        """Return the P99 TBT of paying and of free users by policy and rate, shape (2, seeds) each."""
        seeds = min(self.seeds, self._runner.plan.window_seeds)
        tasks = [(rate, seed, policy) for policy in policies for rate in rates for seed in range(seeds)]
        found = iter(self._scale.do_all(self._runner.class_gaps, tasks))
        return {
            (policy, rate): np.array([next(found) for _ in range(seeds)]).T
            for policy in policies
            for rate in rates
        }

    def rate_at(self, policy: str, bound: float) -> Array:
        """Return by seed the rate at which the median TTFT first exceeds ``bound``; NaN where it never does.

        Linear between the rates that were run.
        """
        medians = self.curve(policy, "ttft_median")
        out = np.full(self.seeds, np.nan)
        for seed in range(self.seeds):
            above = np.flatnonzero(medians[:, seed] > bound)
            if len(above) and above[0] > 0:
                k = int(above[0])
                low, high = medians[k - 1, seed], medians[k, seed]
                out[seed] = np.interp(bound, (low, high), (self.rates[k - 1], self.rates[k]))
        return out

    def at(self, policy: str, rates: Array, column: str) -> Array:
        """Return a figure by seed at a rate of its own for each, linear between those that were run."""
        by_rate = self.curve(policy, column)
        return np.array(
            [
                np.interp(rates[s], self.rates, by_rate[:, s]) if np.isfinite(rates[s]) else np.nan
                for s in range(self.seeds)
            ]
        )


def measure(result: Any, plan: Plan) -> dict[str, float]:
    """Return the figures of a run, in seconds; TTFT and SLOs over requests that arrive after the warm-up."""
    r, table, metrics = result.requests, result.table, compute_metrics(result)
    counted = table.arrival_time >= plan.warm_up
    ttft, paying = r["first_token_time"] - table.arrival_time, table.priority == 1
    served = (r["status"] == FINISHED) & (r["finish_time"] <= plan.duration)
    row = {
        "ttft_median": quantile(ttft[counted], 0.5),
        "ttft_p90": quantile(ttft[counted], 0.9),
        "ttft_mean": mean(ttft[counted]),
        "tbt_p99": metrics["tbt_p99"],
        "batch_time": float(result.worker["busy_time"][0] / result.worker["iteration"][0]),
        "kv_utilisation": metrics["kv_utilisation"],
        "kv_peak": metrics["kv_peak"],
        "evictions": metrics["evictions"],
        "served": mean(served),
    }
    for name, of in (("paying", counted & paying), ("free", counted & ~paying)):
        gap = r["max_token_gap"][of]
        row[f"ttft_mean_{name}"] = mean(ttft[of])
        row[f"tbt_met_{name}"] = mean(gap <= table.tbt_slo[of])
    return row


def mean(values: NDArray[Any]) -> float:
    """Return the mean, NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


def quantile(values: NDArray[Any], q: float) -> float:
    """Return a quantile, NaN of nothing."""
    return float(np.quantile(values, q)) if len(values) else float("nan")
