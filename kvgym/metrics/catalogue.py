"""All metrics with unit, direction and computation, and the registry of those that other distributions add.

:mod:`kvgym.metrics.compute` defines the standard ones; docs/own-metric.md has an example of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.metrics import fleets, host_memory
from kvgym.metrics.measured import STATISTICS, Measured, gap_statistics, ratio, statistics
from kvgym.policies.results import ended
from kvgym.policies.runner import SimulationResult
from kvgym.utils.arguments import explained
from kvgym.utils.registry import Registry, load_plugins, same_definition
from kvgym.utils.user_code import calling

S = TypeVar("S")
T = TypeVar("T")


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


@dataclass(frozen=True)
class Computed(MetricInfo, Generic[S, T]):
    """A metric of kvgym's own.

    Attributes:
        compute: returns its value for a run or a part of it, NaN if nothing was measured.
        of: what only some runs have, one of :data:`PARTS`; other runs have no value. Empty = all runs have one.
    """

    compute: Callable[[S], T]
    of: str = ""


LATENCIES: dict[str, Computed[Measured, dict[str, float]]] = {
    "e2e_latency": Computed("s", "completion - arrival", True, lambda m: statistics(m.e2e[m.done])),
    "ttft": Computed("s", "first token - arrival", True, lambda m: statistics(m.ttft[m.done])),
    "tbt": Computed("s", "gap between consecutive output tokens", True, lambda m: gap_statistics(m.scope)),
    "tpot": Computed("s", "mean gap between output tokens of a request", True,
        lambda m: statistics(m.tpot())),
    "queueing_delay": Computed("s", "first admission - arrival", True, lambda m: statistics(m.waited)),
    "job_completion_time": Computed("s", "last completion - first arrival of a session", True,
        lambda m: statistics(m.jobs.completion), "sessions"),
    "service_time": Computed("s", "sum of the latencies of the turns of a session", True,
        lambda m: statistics(m.jobs.service), "sessions"),
    "job_makespan": Computed("s", "last completion - first arrival of a job of several sessions", True,
        lambda m: statistics(m.whole_jobs.completion.copy()), "jobs"),
    "job_wait": Computed("s", "makespan of a job - its time alone on empty workers", True,
        lambda m: m.job_statistics(np.subtract), "jobs"),
    "job_slowdown": Computed("1", "makespan of a job / its time alone on empty workers", True,
        lambda m: m.job_statistics(np.divide), "jobs"),
}  # fmt: skip
"""Metrics reported as ``<name>_<statistic>``, see :data:`STATISTICS`."""

SCALARS: dict[str, Computed[Measured, float]] = {
    "request_throughput": Computed("1/s", "requests finished per second", False,
        lambda m: ratio(m.count(m.left), m.scope.span)),
    "token_throughput": Computed("tokens/s", "output tokens of finished requests per second", False,
        lambda m: ratio(m.table.output_len[m.left].sum(), m.scope.span)),
    "generated_token_throughput": Computed("tokens/s", "output tokens generated, repeats included", None,
        lambda m: ratio(m.total("total_output_tokens"), m.scope.counting)),
    "processed_token_throughput": Computed("tokens/s", "prefill and output tokens processed", None,
        lambda m: ratio(m.total("total_output_tokens") + m.total("total_prefill_tokens"), m.scope.counting)),
    "goodput": Computed("1/s", "requests per second that met all of their SLOs", False,
        lambda m: ratio(m.good(m.left), m.scope.span), "targets"),
    "slo_attainment": Computed("1", "share of requests that met all of their SLOs", False,
        lambda m: ratio(m.good(m.scope.counted), m.count(m.arrived & m.scope.counted)), "targets"),
    "ttft_attainment": Computed("1", "share of the requests with a TTFT SLO that met it", False,
        lambda m: m.attained("ttft"), "targets"),
    "tbt_attainment": Computed("1", "share of the requests with a TBT SLO that met it", False,
        lambda m: m.attained("tbt"), "targets"),
    "e2e_attainment": Computed("1", "share of the requests with a deadline that met it", False,
        lambda m: m.attained("e2e"), "targets"),
    "evictions": Computed("1", "requests evicted", True, lambda m: m.total("total_evicted")),
    "recomputed_tokens": Computed("tokens", "KV tokens lost by evictions, and by retries in a fleet", True,
        lambda m: m.total("total_recomputed_tokens")),
    "put_back": Computed("1", "requests selected before the memory check that then did not fit", True,
        lambda m: m.total("total_put_back")),
    "overflows": Computed("1", "decisions that evicted or put back a request", True,
        lambda m: m.total("total_overflows")),
    "moves": Computed("1", "requests that the router moved from one worker to another", None,
        lambda m: m.total("total_received")),
    "kv_utilisation": Computed("1", "time average of KV memory in use / capacity, in whole blocks", None,
        lambda m: m.share_of_memory("kv_time")),
    "kv_peak": Computed("1", "most KV memory in use / capacity, in whole blocks", None,
        lambda m: (m.result.worker["peak_kv_tokens"] / m.capacities).max()),
    "hit_rate": Computed("1", "share of the tokens to prefill that first starts found in the prefix cache", None,
        lambda m: ratio(m.total("total_hit_tokens"), m.total("total_known_tokens"))),
    "hit_rate_resumed": Computed("1", "the same for starts after an eviction", None,
        lambda m: ratio(m.total("total_hit_resumed"), m.total("total_known_resumed"))),
    "hit_tokens": Computed("tokens", "prefill tokens saved by the prefix cache", None,
        lambda m: m.total("total_hit_tokens") + m.total("total_hit_resumed"), "cache"),
    "cached_share": Computed("1", "time average of cached KV memory that is not in use / capacity", None,
        lambda m: m.share_of_memory("cached_time"), "cache"),
    "cache_evictions": Computed("1", "units dropped from the prefix cache to make room", None,
        lambda m: m.total("total_dropped_units"), "cache"),
    "tokens_per_step": Computed("tokens", "output tokens of a request per decode, with speculation", None,
        lambda m: ratio(m.total("total_decodes") + m.total("total_accepted"), m.total("total_decodes")), "drafts"),
    "acceptance_rate": Computed("1", "share of verified drafts that were right", None,
        lambda m: ratio(m.total("total_accepted"), m.total("total_drafted")), "drafts"),
    "drafted_tokens": Computed("tokens", "drafts verified", None, lambda m: m.total("total_drafted"), "drafts"),
    "wasted_tokens": Computed("tokens", "drafts verified that were wrong", None,
        lambda m: m.total("total_drafted") - m.total("total_accepted"), "drafts"),
    "host_hit_rate": Computed("1", "share of the tokens to prefill that first starts loaded from the host", None,
        host_memory.host_hit_rate, "host"),
    "store_hit_rate": Computed("1", "the same from the store below the host", None, host_memory.store_hit_rate,
        "store"),
    "loaded_tokens": Computed("tokens", "KV tokens loaded to the GPU", None,
        host_memory.loaded_tokens, "host"),
    "stored_tokens": Computed("tokens", "KV tokens written to the host", None,
        host_memory.stored_tokens, "host"),
    "load_wait": Computed("s", "time that batches waited for loads, for each request that loaded", True,
        host_memory.load_wait, "host"),
    "stall_time": Computed("s", "time that batches waited for writes from memory that they took", True,
        host_memory.stall_time, "host"),
    "host_use": Computed("1", "time average of the host's KV memory in use / its size", None,
        host_memory.host_use, "host"),
    "link_use": Computed("1", "share of time in which the link from the host was busy", None,
        host_memory.link_use, "host"),
    "batch_size": Computed("1", "requests per iteration", None,
        lambda m: ratio(m.total("total_batch_requests"), m.total("iteration"))),
    "active_requests": Computed("1", "time average of active requests", None,
        lambda m: ratio(m.total("active_time"), m.scope.counting)),
    "busy_fraction": Computed("1", "share of time spent in batches", None,
        lambda m: ratio(m.total("busy_time"), m.scope.counting * len(m.scope.worker))),
    "iterations": Computed("1", "batches executed", None, lambda m: m.total("iteration")),
    "makespan": Computed("s", "end of the run - first arrival", True, lambda m: m.makespan),
    "duration": Computed("s", "end of the run - time 0", None, lambda m: m.end),
    "input_tokens": Computed("tokens", "prompt tokens of finished requests", None,
        lambda m: m.table.prompt_len[m.finished].sum()),
    "output_tokens": Computed("tokens", "output tokens of finished requests", None,
        lambda m: m.table.output_len[m.finished].sum()),
    "jain_fairness": Computed("1", "Jain's index of the requests' token rates", False, Measured.fairness),
    "client_fairness": Computed("1", "Jain's index of the clients' token rates", False,
        Measured.client_fairness, "clients"),
    "service_difference": Computed("tokens", "largest difference of service between two waiting clients", True,
        Measured.service_difference, "clients"),
    "worst_client_ttft": Computed("s", "mean TTFT of the client with the largest", True,
        Measured.worst_client_ttft, "clients"),
    "max_wait": Computed("s", "longest time from arrival to first admission", True, Measured.max_wait),
    "first_turn_latency": Computed("s", "mean of e2e_latency over first turns of sessions", True,
        lambda m: m.mean_of_turns(m.e2e, first=True), "sessions"),
    "later_turn_latency": Computed("s", "mean of e2e_latency over later turns", True,
        lambda m: m.mean_of_turns(m.e2e, first=False), "sessions"),
    "first_turn_ttft": Computed("s", "mean of ttft over first turns of sessions", True,
        lambda m: m.mean_of_turns(m.ttft, first=True), "sessions"),
    "later_turn_ttft": Computed("s", "mean of ttft over later turns", True,
        lambda m: m.mean_of_turns(m.ttft, first=False), "sessions"),
    "sessions_finished": Computed("1", "sessions with all turns finished", False, lambda m: m.jobs.finished,
        "sessions"),
    "sessions_unfinished": Computed("1", "sessions with turns left when the run stopped", True,
        lambda m: m.jobs.unfinished, "sessions"),
    "jobs_finished": Computed("1", "jobs with all requests finished", False, lambda m: m.whole_jobs.finished,
        "jobs"),
    "job_fairness": Computed("1", "Jain's index of the slowdowns of jobs", False, Measured.job_fairness,
        "jobs"),
    "finished": Computed("1", "requests finished", False, lambda m: m.count(m.finished)),
    "unfinished": Computed("1", "requests that had not ended when the run stopped", True,
        lambda m: m.count(m.arrived & ~ended(m.records))),
    "transfer_wait": Computed("s", "mean time by which shared links prolong a request's transfers", True,
        Measured.transfer_wait, "links"),
    "local_prefills": Computed("1", "finished requests prefilled and decoded by one worker, where routers choose", None,
        Measured.local_prefills, "stages"),
    "gpu_hours": Computed("h", "GPU-hours of a fleet, from the order to start a worker until it is off", True,
        fleets.gpu_hours, "fleet"),
    "fleet_cost": Computed("h", "GPU-hours by price, and the penalty of requests that missed a target", True,
        fleets.fleet_cost, "fleet"),
    "goodput_per_gpu_hour": Computed("1/h", "requests that met all of their SLOs for each GPU-hour of a fleet", False,
        fleets.goodput_per_gpu_hour, "fleet"),
    "ready_workers": Computed("1", "time average of ready workers of a fleet", None,
        fleets.ready_workers, "fleet"),
    "time_to_scale": Computed("s", "mean time from the order to start a worker until it is ready", True,
        fleets.time_to_scale, "fleet"),
    "late_time": Computed("s", "time with fewer ready workers than the target", True,
        fleets.late_time, "fleet"),
    "wasted_warm_time": Computed("1", "share of billed time in which a worker could serve and no batch ran", True,
        fleets.wasted_warm_time, "fleet"),
    "cancelled_time": Computed("s", "time of starts that were cancelled", True,
        fleets.cancelled_time, "fleet"),
    "unrouted_time": Computed("s", "time that requests spent outside, as no worker was ready, summed", True,
        fleets.unrouted_time, "fleet"),
    "target_changes": Computed("1", "changes of an autoscaler's targets", None,
        fleets.target_changes, "fleet"),
    "aborted": Computed("1", "requests that users gave up before the first token", True,
        fleets.aborted, "fleet"),
    "failed": Computed("1", "requests that ended as their worker failed", True, fleets.failed, "fleet"),
    "shed": Computed("1", "requests that the router refused, and that did not come again", True, fleets.shed),
    "retries": Computed("1", "further tries of requests, after a loss, a refusal or the end of a user's patience", True,
        fleets.retries, "fleet"),
    "lost_tokens": Computed("tokens", "KV tokens of requests that were lost with their workers", True,
        fleets.lost_tokens, "fleet"),
}  # fmt: skip
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
