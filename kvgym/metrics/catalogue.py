"""Names, units and directions of all metrics, and the registry of those that other distributions add.

:mod:`kvgym.metrics` defines and computes the standard ones; docs/own-metric.md has an example of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.policies.runner import SimulationResult
from kvgym.utils.arguments import explained
from kvgym.utils.registry import Registry, load_plugins, same_definition
from kvgym.utils.user_code import calling

STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class MetricInfo:
    """Description of a metric.

    Attributes:
        unit: unit, "1" for ratios.
        summary: one line; the module's docstring has the definition.
        lower_is_better: True, False, or None if neither applies.
    """

    unit: str
    summary: str
    lower_is_better: bool | None


LATENCIES: dict[str, MetricInfo] = {
    "e2e_latency": MetricInfo("s", "completion - arrival", True),
    "ttft": MetricInfo("s", "first token - arrival", True),
    "tbt": MetricInfo("s", "gap between consecutive output tokens", True),
    "tpot": MetricInfo("s", "mean gap between output tokens of a request", True),
    "queueing_delay": MetricInfo("s", "first admission - arrival", True),
    "job_completion_time": MetricInfo("s", "last completion - first arrival of a session", True),
    "service_time": MetricInfo("s", "sum of the latencies of the turns of a session", True),
}
"""Metrics reported as ``<name>_<statistic>``, see :data:`STATISTICS`."""

SCALARS: dict[str, MetricInfo] = {
    "request_throughput": MetricInfo("1/s", "requests finished per second", False),
    "token_throughput": MetricInfo("tokens/s", "output tokens of finished requests per second", False),
    "generated_token_throughput": MetricInfo("tokens/s", "output tokens generated, repeats included", None),
    "processed_token_throughput": MetricInfo("tokens/s", "prefill and output tokens processed", None),
    "goodput": MetricInfo("1/s", "requests per second that met all of their SLOs", False),
    "slo_attainment": MetricInfo("1", "share of requests that met all of their SLOs", False),
    "ttft_attainment": MetricInfo("1", "share of the requests with a TTFT SLO that met it", False),
    "tbt_attainment": MetricInfo("1", "share of the requests with a TBT SLO that met it", False),
    "e2e_attainment": MetricInfo("1", "share of the requests with a deadline that met it", False),
    "evictions": MetricInfo("1", "requests evicted", True),
    "recomputed_tokens": MetricInfo("tokens", "KV tokens lost by evictions", True),
    "put_back": MetricInfo("1", "requests selected before the memory check that then did not fit", True),
    "overflows": MetricInfo("1", "decisions that evicted or put back a request", True),
    "moves": MetricInfo("1", "requests that the router moved from one worker to another", None),
    "kv_utilisation": MetricInfo("1", "time average of KV memory in use / capacity, in whole blocks", None),
    "kv_peak": MetricInfo("1", "most KV memory in use / capacity, in whole blocks", None),
    "hit_rate": MetricInfo(
        "1", "share of the tokens to prefill that first starts found in the prefix cache", None
    ),
    "hit_rate_resumed": MetricInfo("1", "the same for starts after an eviction", None),
    "hit_tokens": MetricInfo("tokens", "prefill tokens saved by the prefix cache", None),
    "cached_share": MetricInfo("1", "time average of cached KV memory that is not in use / capacity", None),
    "cache_evictions": MetricInfo("1", "units dropped from the prefix cache to make room", None),
    "batch_size": MetricInfo("1", "requests per iteration", None),
    "active_requests": MetricInfo("1", "time average of active requests", None),
    "busy_fraction": MetricInfo("1", "share of time spent in batches", None),
    "iterations": MetricInfo("1", "batches executed", None),
    "makespan": MetricInfo("s", "end of the run - first arrival", True),
    "duration": MetricInfo("s", "end of the run - time 0", None),
    "input_tokens": MetricInfo("tokens", "prompt tokens of finished requests", None),
    "output_tokens": MetricInfo("tokens", "output tokens of finished requests", None),
    "jain_fairness": MetricInfo("1", "Jain's index of the requests' token rates", False),
    "client_fairness": MetricInfo("1", "Jain's index of the clients' token rates", False),
    "service_difference": MetricInfo(
        "tokens", "largest difference of service between two waiting clients", True
    ),
    "worst_client_ttft": MetricInfo("s", "mean TTFT of the client with the largest", True),
    "max_wait": MetricInfo("s", "longest time from arrival to first admission", True),
    "first_turn_latency": MetricInfo("s", "mean of e2e_latency over first turns of sessions", True),
    "later_turn_latency": MetricInfo("s", "mean of e2e_latency over later turns", True),
    "first_turn_ttft": MetricInfo("s", "mean of ttft over first turns of sessions", True),
    "later_turn_ttft": MetricInfo("s", "mean of ttft over later turns", True),
    "sessions_finished": MetricInfo("1", "sessions with all turns finished", False),
    "sessions_unfinished": MetricInfo("1", "sessions with turns left when the run stopped", True),
    "finished": MetricInfo("1", "requests finished", False),
    "unfinished": MetricInfo("1", "requests not finished when the run stopped", True),
}
"""Metrics with one value per run."""

STANDARD_METRICS = (*(f"{family}_{s}" for family in LATENCIES for s in STATISTICS), *SCALARS)
"""The names of kvgym's own metrics, in order."""


@dataclass(frozen=True)
class Metric:
    """A registered metric.

    Attributes:
        name: its name.
        measure: returns the value of a run, NaN if nothing was measured.
        info: unit, summary and direction.
        finished_only: whether it ignores unfinished requests, as latencies do. A search for hyperparameters then
            compares it only between runs that finished the same number of requests.
    """

    name: str
    measure: Callable[[SimulationResult], float]
    info: MetricInfo
    finished_only: bool = False

    def value(self, result: SimulationResult) -> float:
        """Return its value for a run, a finite number or NaN.

        Raises:
            UserCodeError: the function raises an exception.
            ConfigError: it returns anything else.
        """
        with calling(self.measure, "metric", "measure"):
            value = self.measure(result)
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not number or math.isinf(value):
            raise ConfigError(
                f"metric {shown(self.name)} returned {shown(value)}; expected a finite number, or NaN if nothing was "
                "measured"
            )
        return float(value)


METRICS: Registry[Metric] = Registry(
    "metric",
    partial(load_plugins, "kvgym.metrics", "metrics"),
    same=lambda one, other: same_definition(one.measure, other.measure),
)
"""Registered metrics. Other distributions add theirs by an entry point in group ``kvgym.metrics``."""

F = TypeVar("F", bound=Callable[[SimulationResult], float])


@explained
def register_metric(
    name: str,
    summary: str,
    *,
    unit: str = "1",
    lower_is_better: bool | None = None,
    finished_only: bool = False,
) -> Callable[[F], F]:
    """Return a decorator that registers a function as a metric.

    Comparisons, sweeps, searches, reports and result files then have it under its name. Environments report only
    :data:`STANDARD_METRICS` with the last step, and all in ``metrics()``. :func:`kvgym.experiments.check_metric` checks
    it.

    Args:
        name: an identifier that no other metric has.
        summary: one line.
        unit: unit, "1" for ratios and counts.
        lower_is_better: True, False, or None if neither applies; None cannot be optimised or bounded.
        finished_only: see :class:`Metric`.

    Raises:
        ConfigError: an argument is wrong, or the name is taken.
    """
    where = f"metric {shown(name)}"
    if not isinstance(name, str) or not name.isidentifier() or name in STANDARD_METRICS or name in LATENCIES:
        raise ConfigError(f"{where}: expected an identifier, as in acme_cost, that no standard metric has")
    for what, text in (("summary", summary), ("unit", unit)):
        if not isinstance(text, str) or not text.strip() or len(text.splitlines()) != 1:
            raise ConfigError(f"{where}: {what} = {shown(text)}; expected one line of text")
    for what, given, valid in (
        ("lower_is_better", lower_is_better, (True, False, None)),
        ("finished_only", finished_only, (True, False)),
    ):
        if not any(given is one for one in valid):
            raise ConfigError(f"{where}: {what} = {shown(given)}; valid: {', '.join(map(str, valid))}")

    def register(measure: F) -> F:
        if not callable(measure):
            raise ConfigError(f"{where}: expected a function of a SimulationResult, got {shown(measure)}")
        METRICS.add(name, Metric(name, measure, MetricInfo(unit, summary, lower_is_better), finished_only))
        return measure

    return register


@explained
def metric_info(name: str) -> MetricInfo:
    """Return the description of a metric such as ``"ttft_p99"`` or ``"goodput"``.

    Raises:
        UnknownNameError: there is no such metric.
    """
    if name in SCALARS:
        return SCALARS[name]
    family, _, statistic = name.rpartition("_")
    if statistic in STATISTICS and family in LATENCIES:
        return LATENCIES[family]
    if name in METRICS:
        return METRICS[name].info
    raise UnknownNameError("metric", name, metric_names())


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics, in order: the standard ones, then the registered ones."""
    return (*STANDARD_METRICS, *METRICS)
