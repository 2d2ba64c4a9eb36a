"""Replay a server's log in the simulator and compare observed with simulated latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.experiments.describing import describe_cluster, describe_hardware
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import Estimate, block_ratio_intervals
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.servers.validation.served import Floats, ServedLog, time_per_token
from kvgym.utils.arguments import explained

METRICS: Mapping[str, str] = {
    "ttft": "time to first token",
    "tbt": "mean time between the tokens of a request",
    "e2e_latency": "end-to-end latency",
}
"""Metrics compared, by request."""

QUANTILES = (0.5, 0.9, 0.95, 0.99)

STATISTICS = ("mean", *(f"p{round(100 * q)}" for q in QUANTILES))
"""Statistics over the requests of a log, in the order of :func:`summed_up`."""


def summed_up(values: Floats) -> Floats:
    """Return the :data:`STATISTICS` of values, float64 (5,)."""
    return np.concatenate([[values.mean()], np.quantile(values, QUANTILES)])


def _mean_alone(values: Floats) -> Floats:
    return np.asarray(values.mean(keepdims=True))


class Difference(NamedTuple):
    """One statistic of one metric, observed and simulated.

    Attributes:
        metric: key of :data:`METRICS`.
        statistic: key of :data:`STATISTICS`.
        observed: seconds.
        simulated: seconds.
        error: simulated / observed - 1 with an interval; NaN where observed is 0.
    """

    metric: str
    statistic: str
    observed: float
    simulated: float
    error: Estimate


QUARTERS = 4
"""Parts of a log between which drift is reported."""

LEAST = 5
"""Fewest requests of a part."""

LEAST_DRIFT = 0.01
"""Smallest change of an error that is drift."""


class Drift(NamedTuple):
    """The error of a metric's mean over the time of a log.

    Attributes:
        metric: key of :data:`METRICS`.
        errors: simulated / observed - 1 of each quarter of the requests, in order of arrival, with an interval.
    """

    metric: str
    errors: tuple[Estimate, ...]

    @property
    def is_clear(self) -> bool:
        """Whether first and last quarter differ by a per cent or more, and by more than chance.

        Chance: their intervals overlap.
        """
        first, last = self.errors[0], self.errors[-1]
        apart = last.low > first.high or last.high < first.low
        return apart and abs(last.value - first.value) >= LEAST_DRIFT


class Part(NamedTuple):
    """A part of the error of the mean end-to-end latency; all parts add up to it.

    Attributes:
        name: what the part is.
        observed: seconds per request.
        simulated: seconds per request.
    """

    name: str
    observed: float
    simulated: float


STEADY = 25
"""Requests of a block in which a start-up phase is looked for."""

SLOWER = 0.05
"""Share by which blocks of a start-up phase are slower than later ones, at least."""

FASTEST = 0.05
"""Share of requests with the least extra delay; what even these have is of client and API, not of waiting."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A log and the simulation of the same requests.

    Attributes:
        log: the served requests.
        scenario: the simulated scenario.
        result: the run.
    """

    log: ServedLog
    scenario: Scenario
    result: SimulationResult

    @property
    def setup(self) -> str:
        """The simulated hardware, memory and engine, and the name of the log."""
        return f"{describe_cluster(self.scenario)}{describe_hardware(self.scenario)}, {self.log.name}"

    def observed(self, metric: str) -> Floats:
        """Return seconds of a metric by request, float64 (n,); NaN where it has no value."""
        return np.asarray(getattr(self.log, metric))

    def simulated(self, metric: str) -> Floats:
        """Return simulated seconds of a metric by request, float64 (n,); NaN where it has no value."""
        records, arrival = self.result.requests, self.log.arrival_time
        ttft, e2e = records["first_token_time"] - arrival, records["finish_time"] - arrival
        gaps = self.log.output_len - (self.result.system.first_token != "uncounted")
        return {"ttft": ttft, "tbt": time_per_token(ttft, e2e, gaps), "e2e_latency": e2e}[metric]

    def pairs(self, metric: str) -> tuple[Floats, Floats]:
        """Return observed and simulated seconds of the requests that have both, each float64 (m,).

        Requests that the log skips are left out.
        """
        skip = self.log.skip
        observed, simulated = self.observed(metric)[skip:], self.simulated(metric)[skip:]
        both = np.isfinite(observed) & np.isfinite(simulated)
        return observed[both], simulated[both]

    def differences(self) -> list[Difference]:
        """Return every statistic of every metric that has values."""
        found = []
        for metric in METRICS:
            observed, simulated = self.pairs(metric)
            if not len(observed):
                continue
            ratios = block_ratio_intervals(simulated, observed, summed_up)
            figures = zip(STATISTICS, summed_up(observed), summed_up(simulated), ratios, strict=True)
            for name, x, y, ratio in figures:
                error = Estimate(ratio.value - 1, ratio.low - 1, ratio.high - 1, ratio.n)
                found.append(Difference(metric, name, float(x), float(y), error))
        return found

    def parts(self) -> list[Part]:
        """Return what the error of the mean end-to-end latency consists of, the largest part first; empty if unknown.

        Client and API: the delay of the first token that even the requests with the least extra delay have. Queue and
        prompts: the rest of the time to the first token, which is the engine's scheduling and the time of its prefills.
        Batches: the time between tokens. Waiting multiplies errors of batch times: of a loaded server only the last
        part is an error by itself.
        """
        skip, log = self.log.skip, self.log
        first = log.ttft[skip:], self.simulated("ttft")[skip:]
        rest = (
            log.e2e_latency[skip:] - first[0],
            self.simulated("e2e_latency")[skip:] - first[1],
        )
        if not np.isfinite([*first, *rest]).all():
            return []
        delay = max(float(np.quantile(first[0] - first[1], FASTEST)), 0.0)
        found = [
            Part("client and API", delay, 0.0),
            Part("queue and prompts", float(first[0].mean()) - delay, float(first[1].mean())),
            Part("batches between tokens", float(rest[0].mean()), float(rest[1].mean())),
        ]
        return sorted(found, key=lambda part: -abs(part.simulated - part.observed))

    def start_up(self) -> int:
        """Return the number of first requests in a start-up phase of the server, 0 without one.

        Blocks of requests are in it as long as observed times between tokens, compared with simulated ones, exceed
        those of the log's second half by more than :data:`SLOWER` and by more than any block of that half does.
        """
        observed, simulated = self.observed("tbt"), self.simulated("tbt")
        count = len(observed) // STEADY
        if count < 2 * QUARTERS:
            return 0
        both = np.isfinite(observed) & np.isfinite(simulated)
        x, y = (
            np.where(both, values, 0.0)[: count * STEADY].reshape(count, STEADY).sum(axis=1)
            for values in (observed, simulated)
        )
        ratio = x / np.maximum(y, 1e-12)
        later = ratio[count // 2 :]
        slow = ratio > max(float(np.median(later)) * (1 + SLOWER), float(later.max()))
        length = count if slow.all() else int(np.argmin(slow))
        return length * STEADY if length < count // 2 else 0

    def rank_correlation(self, metric: str) -> float:
        """Return Spearman's correlation over the requests, NaN where either side is constant."""
        from scipy.stats import spearmanr

        observed, simulated = self.pairs(metric)
        if len(observed) < 2 or np.ptp(observed) == 0 or np.ptp(simulated) == 0:
            return float("nan")
        return float(spearmanr(observed, simulated).statistic)

    def totals(self) -> dict[str, tuple[float, float]]:
        """Return makespan (s), throughputs (1/s, tokens/s) and evictions, observed and simulated.

        The throughputs are left out where nothing took any time; evictions that the log does not have are NaN.
        Requests that the log skips count in the evictions only, which a log has as a sum.
        """
        log, skip = self.log.compared(), self.log.skip
        begin = float(self.log.arrival_time[skip]) if skip else 0.0
        ends = log.makespan, float(self.result.requests["finish_time"][skip:].max()) - begin
        tokens = int(log.output_len.sum())
        counted = self.log.num_evictions
        evicted = float(self.result.requests["num_evictions"].sum())
        found = {"makespan": ends}
        if min(ends) > 0:
            found["request_throughput"] = (len(log) / ends[0], len(log) / ends[1])
            found["token_throughput"] = (tokens / ends[0], tokens / ends[1])
        found["evictions"] = (np.nan if counted is None else float(counted), evicted)
        return found

    def drifts(self) -> list[Drift]:
        """Return how the error of every metric changes over the log; empty for short logs."""
        found = []
        for metric in METRICS:
            observed, simulated = self.pairs(metric)
            if len(observed) < QUARTERS * LEAST:
                continue
            parts = zip(np.array_split(simulated, QUARTERS), np.array_split(observed, QUARTERS), strict=True)
            ratios = (block_ratio_intervals(x, y, _mean_alone, resamples=400)[0] for x, y in parts)
            errors = tuple(Estimate(r.value - 1, r.low - 1, r.high - 1, r.n) for r in ratios)
            found.append(Drift(metric, errors))
        return found


def has_token_times(replay: Replay) -> bool:
    """Return whether a request has positive times between its tokens, observed and simulated: :func:`loss` exists."""
    observed, simulated = replay.pairs("tbt")
    return bool(((observed > 0) & (simulated > 0)).any())


def loss(replay: Replay) -> float:
    """Return the loss of a fit, the mean of |log(simulated / observed)|; reports show :func:`mean_error` instead.

    Half the weight is on the statistics of token times and end-to-end latencies, half on the token times of single
    requests: distributions alone do not distinguish a small batch from a large one. Logarithms and absolute values
    limit the weight of outliers. Times that are 0 on either side are left out.

    Raises:
        ConfigError: none is left.
    """
    return _mean(replay, lambda ratio: np.abs(np.log(ratio)))


def mean_error(replay: Replay) -> float:
    """Return the error of a replay: the mean of |simulated / observed - 1|, over the same values as :func:`loss`.

    Raises:
        ConfigError: as of :func:`loss`.
    """
    return _mean(replay, lambda ratio: np.abs(ratio - 1))


def _mean(replay: Replay, distance: Callable[[Floats], Floats]) -> float:
    """Return the mean distance of simulated / observed from 1, half over statistics and half over requests."""
    token, whole = replay.pairs("tbt"), replay.pairs("e2e_latency")
    summed = np.array([summed_up(values) for values in (*token, *whole) if len(values)]).reshape(
        -1, 2, len(STATISTICS)
    )
    pairs = ((summed[:, 1].ravel(), summed[:, 0].ravel()), (token[1], token[0]))
    parts = []
    for x, y in pairs:
        positive = (x > 0) & (y > 0)
        parts.append(float(distance(x[positive] / y[positive]).mean()) if positive.any() else np.nan)
    if np.isnan(parts).any():
        raise ConfigError(f"{replay.log.name}: no positive times between tokens to compare")
    return float(np.mean(parts))


def without_long(log: ServedLog, kv_capacity: int) -> ServedLog:
    """Return the requests that the KV memory can hold, with a note of how many it cannot.

    Raises:
        ConfigError: it can hold none.
    """
    keep: NDArray[np.bool_] = log.prompt_len + log.output_len <= kv_capacity
    if keep.all():
        return log
    if not keep.any():
        raise ConfigError(f"{log.name}: no request fits into a KV capacity of {kv_capacity:,} tokens")
    count = int((~keep).sum())
    return log.select(
        keep, f"{count:,} of {len(log):,} requests are longer than {kv_capacity:,} tokens and were dropped."
    )


@explained
def replay_log(log: ServedLog, scenario: Scenario, policy: str | Policy, *, seed: int = 0) -> Replay:
    """Simulate the requests of a log, with their true lengths, to the end.

    The engine's API time counts unless the log has the engine's own times.

    Args:
        log: the served requests.
        scenario: hardware, engine, workers and rules; its workload and horizon are ignored.
        policy: the scheduler; if it needs predicted lengths, it gets the true ones.
        seed: seed of the policy's own randomness.

    Raises:
        WorkloadError: a request can never be served; see :func:`without_long`.
        ConfigError: the policy needs information that a log does not have.
        RunError: the policy makes no progress, or its decision is not possible.
    """
    made = make_policy(policy)
    known = bool({"predicted_length", "length_interval"} & set(made.info.needs))
    endless = scenario.model_copy(update={"system": scenario.system.model_copy(update={"horizon": None})})
    system, table = endless.make_system(), log.requests(known=known)
    if log.inside:
        for worker in system.all_workers:
            worker.batch_time.api_time = 0.0
    made = resolve_policy(made, system, table)
    result = simulate(system, table, made, router=endless.make_router(), seed=seed)
    return Replay(log, endless, result)
