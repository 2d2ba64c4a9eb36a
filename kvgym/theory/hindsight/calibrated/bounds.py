"""Bounds that no scheduler beats with calibrated batch times, whatever it knows of the requests.

The bounds hold for every schedule that the engine can carry out: batches of any prefill chunks and decodes, pauses,
evictions with progress lost, kept or recomputed, blocks of any size, waiting, and on a cluster any routing; with true
lengths and arrivals known or not. They depend only on arrivals, lengths, memory and batch-time models. All requests
must be served: with a horizon a scheduler could leave out the long ones.

**Alone** (per request). Request i arrives at a_i, and its prefill and decodes take at least d_i seconds, one after the
other (:mod:`kvgym.theory.hindsight.calibrated.work`). So it ends at C_i ≥ a_i + d_i.

**One machine** (in aggregate). Spread the work of a batch for its requests evenly over its duration. The work sums up
to at most the duration, so this is a schedule of one machine that works at unit rate. On this machine request i
receives at least its work w_i; any surplus is left out. With r workers the machine works at rate r; equivalently, all
work takes 1 / r of the time. With unequal workers, work is counted in units of each worker. The units are scaled so
that all workers would take equally long for all requests, and a piece costs what it costs on the cheapest. Hence:

- Σ C_i is at least the sum that the machine reaches with shortest remaining work first (Schrage 1968).
- A request ends later than the mean time m_i of its work: the work of a token is spread evenly over its batch, and
  the batches of all later tokens follow, each with its least time. So C_i ≥ m_i + l_i, where the *lag* l_i is the
  mean, over the work, of the time that must still follow. And Σ m_i is at least the sum that the machine reaches if
  it always works on the released work of the request with the least total work
  (:func:`~kvgym.theory.hindsight.calibrated.machine.least_mean_times`). The work of the j-th token is released at the
  earliest time at which the tokens before it can exist. Up to the coarseness of pieces, this bound includes the first
  one (Alone), and most of the second.
- A price on the machine's time gives a bound for loads at which batches are neither full nor those of one request
  (:mod:`~kvgym.theory.hindsight.calibrated.prices`). It applies if all workers serve whole requests.
- The last request ends no sooner than the machine would finish all work (makespan), from any arrival on.

Requests within targets: those that alone would miss one, and those that the machine leaves out
(:mod:`~kvgym.theory.hindsight.calibrated.deadlines`), miss theirs. This bounds attainment, and with the makespan
goodput.

Separate prefill and decode workers are two machines. Each gives a bound, in which the other's part counts as time only.

A batch-time model has many floors, and each gives different works. All of these bounds hold, so the best is taken. The
constants are shared as F k_i / M. This makes the bound tight if memory is scarce, and loose if batches stay small
because there are few requests; then the first bound is tight.

The mean times of a machine with releases as a bound: Goemans, Queyranne, Schulz, Skutella, Wang, "Single machine
scheduling with release dates", 2002; here with lags, and with work released token by token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.metrics.attainment import WITHIN_SLO, check_targets, has_targets
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.deadlines import least_late
from kvgym.theory.hindsight.calibrated.machine import last_completion, least_completions, least_mean_times
from kvgym.theory.hindsight.calibrated.prices import Steps, groups_of, priced
from kvgym.theory.hindsight.calibrated.work import (
    AloneTimes,
    Costs,
    Demand,
    Rules,
    alone_times,
    demand,
    least_costs,
    least_of,
    mean_composition,
    prefix,
)
from kvgym.theory.hindsight.interval import TOLERANCE
from kvgym.workloads.table import RequestTable

METRICS: dict[str, str] = {
    "e2e_latency_mean": "finish",
    "ttft_mean": "first",
    "makespan": "finish",
    "token_throughput": "finish",
    "request_throughput": "finish",
    "slo_attainment": "finish",
    "goodput": "finish",
}
"""Metrics with a bound, and whether it concerns the last token of requests or the first."""

LATENCIES = ("e2e_latency_mean", "ttft_mean", "makespan")
"""Those of them that are bounded from below."""

FILLINGS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Shares of the memory in use at which floors are made high; each gives a bound."""

PRICED, SHARES, GROUPS = (0.1, 0.3, 1.0), (0.1, 0.4), 3
"""Shares of the memory for which prices are sought, values of β, and groups of each request's decodes."""

FEW, MANY, PIECES = 4, 32, 100_000
"""Pieces of a request's decodes: while choosing a floor, at most, and in total over all requests."""


@dataclass(frozen=True)
class Bound:
    """A value that no schedule beats.

    Attributes:
        metric: name of the metric.
        value: no schedule has less; for a throughput, none has more.
        method: the argument that gave it.
        alone: the bound from the first argument only, each request on its own.
    """

    metric: str
    value: float
    method: str
    alone: float


def bound_calibrated(table: RequestTable, system: System, metric: str = "e2e_latency_mean") -> Bound:
    """Return a bound on what any scheduler reaches, see :func:`bounds_calibrated`."""
    return bounds_calibrated(table, system, [metric])[metric]


def bounds_calibrated(
    table: RequestTable, system: System, metrics: Iterable[str] | None = None
) -> dict[str, Bound]:
    """Return bounds on what any scheduler reaches, by metric.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        metrics: some of :data:`METRICS`; None = all, those of targets only if a request has one.

    Raises:
        ConfigError: there is no bound on a metric, there are no requests, or the system has a horizon.
        WorkloadError: a request can never be served.
    """
    usual = [metric for metric in METRICS if metric not in WITHIN_SLO or has_targets(table)]
    names = usual if metrics is None else list(metrics)
    for metric in names:
        check_boundable(table, system, metric)
    alone: AloneByKind = {}
    untils = {"first", "finish"} if set(WITHIN_SLO) & set(names) else {METRICS[metric] for metric in names}
    pools = {until: Pools(table, system, until, alone) for until in untils}
    found: dict[str, Bound] = {}
    for metric in names:
        least = metric if metric in LATENCIES else "makespan"
        if least not in found:
            found[least] = _best_bound(pools[METRICS[least]], least)
        if metric.endswith("throughput"):
            found[metric] = _rate(table, metric, found[least])
        elif metric in WITHIN_SLO:
            found[metric] = _within_targets(pools, metric, found[least])
    return {metric: found[metric] for metric in names}


def _rate(table: RequestTable, metric: str, span: Bound) -> Bound:
    """Return the bound on a throughput that follows from that on the makespan."""
    amount = len(table) if metric == "request_throughput" else int(table.output_len.sum())
    return Bound(metric, _per_second(amount, span.value), span.method, _per_second(amount, span.alone))


def _within_targets(pools: Mapping[str, Pools], metric: str, span: Bound) -> Bound:
    """Return the bound on the share of requests within their targets, or on their number per second of makespan."""
    table = pools["first"].table
    targets = {"first": table.ttft_slo, "finish": table.e2e_slo}
    possible = ~pools["finish"].gap_exceeds(table.tbt_slo)
    for until, slo in targets.items():
        if slo is not None:
            possible &= pools[until].demand(0, FILLINGS[0], FEW).least <= slo * (1 + TOLERANCE)
    late = 0
    for until, slo in targets.items():
        some = possible & np.isfinite(slo) if slo is not None else np.zeros(len(table), np.bool_)
        if slo is not None and some.any():
            for case in pools[until].cases():
                needs = pools[until].demand(*case, FEW)
                late = max(
                    late, least_late(needs.release[some], needs.work[some], (needs.release + slo)[some])
                )
    how = "targets missed in windows of one machine" if late else "targets missed by requests alone"
    alone, met = int(possible.sum()), int(possible.sum()) - late
    if metric == "goodput":
        return Bound(metric, _per_second(met, span.value), how, _per_second(alone, span.alone))
    return Bound(metric, met / len(table), how, alone / len(table))


def _best_bound(pools: Pools, metric: str) -> Bound:
    table = pools.table
    coarse = [(_bound_on(pools.demand(*case, FEW), metric), case) for case in pools.cases()]
    best, case = max(coarse, key=lambda found: found[0].value)
    fine = int(np.clip(PIECES // len(table), FEW, MANY))
    if fine > FEW:
        best = max(best, _bound_on(pools.demand(*case, fine), metric), key=lambda b: b.value)
    if metric.endswith("latency_mean") or metric == "ttft_mean":
        end = pools.about_the_end()
        choices = [pools.steps(filling, end) for filling in PRICED] if len(pools.pools) == 1 else []
        value = priced(choices, SHARES) / len(table) if choices else 0.0
        best = max(best, Bound(metric, value, "prices of a worker's time", 0.0), key=lambda b: b.value)
    return replace(best, alone=max(b.alone for b, _ in coarse))


def check_boundable(table: RequestTable, system: System, metric: str) -> None:
    """Check that there is a bound on a metric.

    Raises:
        ConfigError: there is none, there are no requests, or the system has a horizon or a prefix cache.
        WorkloadError: a request can never be served.
    """
    if metric not in METRICS:
        raise ConfigError(f"no bound on metric {shown(metric)}; there is one on: {', '.join(METRICS)}")
    check_targets([metric], table)
    if len(table) == 0:
        raise ConfigError("no requests, so nothing to bound; give at least one")
    if np.isfinite(system.horizon):
        raise ConfigError(
            f"horizon = {system.horizon:g} s: a run that may leave requests out has no bound; bounds need a system "
            "without horizon"
        )
    system.check_independent("a bound")
    system.check_fits(table)


def _per_second(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else float("inf")


def _bound_on(needs: Demand, metric: str) -> Bound:
    count = len(needs.release)
    if metric in ("e2e_latency_mean", "ttft_mean"):
        arrivals = float(needs.release.sum())
        alone = float(needs.least.mean())
        choices = [(alone, "each request alone")]
        choices.append(((_mean_times(needs) - arrivals) / count, "mean times of the work on one machine"))
        completions = least_completions(needs.release, needs.work)
        choices.append(((completions - arrivals) / count, "shortest remaining work first on one machine"))
    else:
        first = float(needs.release[0])
        alone = float((needs.release + needs.least).max()) - first
        choices = [(alone, "each request alone")]
        last = last_completion(needs.piece_release, needs.piece_work) - first
        choices.append((last, "all work on one machine"))
    value, method = max(choices)
    return Bound(metric, value, method, alone)


def _mean_times(needs: Demand) -> float:
    """Return the least sum of completion times by mean times and lags."""
    some = needs.work > 0
    weight = np.divide(1.0, needs.work, out=np.zeros_like(needs.work), where=some)
    rank = np.empty(len(some), np.int64)
    rank[np.argsort(needs.work, kind="stable")] = np.arange(len(some))
    least = least_mean_times(needs.piece_release, needs.piece_work, needs.piece_owner, rank, weight)
    return least + float(needs.lag[some].sum()) + float((needs.release + needs.least)[~some].sum())


AloneByKind = dict[tuple[int, int], AloneTimes]
"""Least times of batches with one request, by the worker's memory and the identity of its batch-time model."""


class Pools:
    """The machines that requests need, and their costs there: workers that share requests are one machine.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        until: ``"finish"``, or ``"first"`` for the first token only.
        alone: known times of batches with one request, by kind of worker; extended in place.
    """

    def __init__(self, table: RequestTable, system: System, until: str, alone: AloneByKind) -> None:
        emits = system.first_token == "counted"
        writes = emits and not system.unwritten_tokens
        self.table, self.system = table, system
        self.rules = Rules(emits, writes, system.progress_on_evict == "recompute", system.block_size)
        self.first = table.prompt_len + int(writes)
        self.decodes = table.output_len - int(emits)
        if until == "first":
            self.decodes = np.full(len(table), int(system.first_token == "decode"), np.int64)
        self.lengths = int((table.prompt_len + table.output_len).max()) + 2
        count, apart = len(system.all_workers), system.num_prefill_workers
        if system.local_prefill:
            apart = 0  # any worker may do both
        self.pools = [range(apart), range(apart, count)] if apart else [range(count)]
        shown = max(
            1, system.transfer_overlap
        )  # with an overlap, at least one layer is sent after the prefill
        moving = system.transfer_latency + system.transfer_time * self.first / shown
        self.handover = np.where(self.decodes > 0, moving, 0.0) if apart else np.zeros(len(table))
        self._alone = alone
        self._costs: dict[tuple[int, float], Costs] = {}
        self._demands: dict[tuple[int, float, int], Demand] = {}

    def cases(self) -> list[tuple[int, float]]:
        """Return the machines by number, each with several ways to count work."""
        return [(k, f) for k in range(len(self.pools)) if k == 0 or self.decodes.any() for f in FILLINGS]

    def demand(self, machine: int, filling: float, groups: int) -> Demand:
        """Return the work of the requests on a machine.

        Args:
            machine: its number.
            filling: how full batches are for which floors are high, relative to the memory.
            groups: pieces that decodes are put into, of each request.
        """
        if (machine, filling, groups) not in self._demands:
            prefill, decode = (self.costs(k, filling) for k in (0, len(self.pools) - 1))
            self._demands[machine, filling, groups] = demand(
                self.table,
                self.decodes,
                self.first,
                self.handover,
                prefill,
                decode,
                groups,
                prefills=machine == 0,
                generates=machine == len(self.pools) - 1,
            )
        return self._demands[machine, filling, groups]

    def costs(self, machine: int, filling: float) -> Costs:
        """Return the least costs of requests on workers that share them, as if one worked as fast as all."""
        if (machine, filling) not in self._costs:
            self._costs[machine, filling] = self._shared_costs(self.pools[machine], filling)
        return self._costs[machine, filling]

    def gap_exceeds(self, slo: NDArray[np.float64] | None) -> NDArray[np.bool_]:
        """Return whether the last decode of a request, the end of a gap, takes longer than its TBT target, (n,)."""
        if slo is None:
            return np.zeros(len(self.table), np.bool_)
        least = self.costs(len(self.pools) - 1, FILLINGS[0]).decode_time[
            self.first + np.maximum(self.decodes, 1) - 1
        ]
        return np.asarray((self.decodes > int(not self.rules.emits)) & (least > slo * (1 + TOLERANCE)))

    def about_the_end(self) -> float:
        """Return about when all requests could be done, seconds; bounds hold whatever it is."""
        needs = self.demand(0, 1.0, 1)
        first = float(needs.release[0])
        return first + 1.25 * (last_completion(needs.release, needs.work) - first) + float(needs.least.mean())

    def steps(self, filling: float, end: float) -> Steps:
        """Return the batches that the requests need of the only machine there is.

        Args:
            filling: as of :meth:`demand`.
            end: about when all might be done, seconds.
        """
        costs, table, first, decodes = self.costs(0, filling), self.table, self.first, self.decodes
        arrival, number = table.arrival_time, 1.0 + self.decodes
        time = prefix(costs.decode_time)
        generating = time[first + decodes] - time[first]
        ends = prefix(time[1:] - costs.decode_end)
        tails = costs.prefill_end + generating
        tails = tails + decodes * time[first + decodes] - (ends[first + decodes] - ends[first])
        everyone, zeros = np.arange(len(table)), np.zeros(len(table))
        parts: list[tuple[Any, ...]] = [
            (everyone, arrival, costs.prefill_own[table.prompt_len], zeros, zeros + 1.0)
        ]
        for some, begin, next_ in groups_of(first, decodes, GROUPS):
            offset = costs.prefill_time[table.prompt_len[some]] + time[begin] - time[first[some]]
            own, held = (np.minimum(c[begin], c[next_ - 1]) for c in (costs.decode_own, costs.decode_held))
            parts.append((some, arrival[some] + offset, own, held, (next_ - begin).astype(np.float64)))
        owner = np.concatenate([part[0] for part in parts])
        release, own, held, count = (np.concatenate([part[k] for part in parts]) for k in (1, 2, 3, 4))
        return Steps(
            release, own, held, count, 1 / number[owner], costs.constant,
            float(self.system.usable_capacities.max()), float((tails / number - arrival).sum()),
            len(self.system.all_workers), max(end, float(release.max()) + 1e-6),
        )  # fmt: skip

    def _shared_costs(self, workers: range, filling: float) -> Costs:
        capacities, different = self.system.usable_capacities, dict[tuple[int, int], list[int]]()
        for k in workers:
            kind = int(capacities[k]), id(self.system.all_workers[k].batch_time)
            different.setdefault(kind, []).append(k)
        costs = []
        for kind, members in different.items():
            capacity, model = kind[0], self.system.all_workers[members[0]].batch_time
            if kind not in self._alone:
                self._alone[kind] = alone_times(model, capacity, self.lengths)
            at = mean_composition(self.table.prompt_len, self.first, self.decodes, capacity, filling)
            costs.append(least_costs(model, self._alone[kind], capacity, self.lengths, self.rules, at))
        totals = [self._all_work(c) for c in costs]
        scales = [totals[0] / total if total > 0 else 1.0 for total in totals]
        speed = float(np.dot(scales, [len(members) for members in different.values()]))
        return least_of(costs, [scale / speed for scale in scales])

    def _all_work(self, costs: Costs) -> float:
        work = prefix(costs.decode_work)
        decodes = work[self.first + self.decodes] - work[self.first]
        return float((costs.prefill_work[self.table.prompt_len] + decodes).sum())
