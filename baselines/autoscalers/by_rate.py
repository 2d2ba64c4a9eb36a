"""Autoscalers that divide a rate of requests by what a worker serves: dynamo's planner, and a foresight of the load.

Pools of one role have equal shares of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.baselines.autoscalers.engines import Engine, rate_of
from kvgym.baselines.autoscalers.metrics import seconds
from kvgym.policies.hyperparameters import choice, flag, positive, whole
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

DIGITS = 3
"""Significant digits of mean lengths with which the rate of a worker is calculated."""


def workers_for(rate: float, each: float) -> int:
    """Return the workers for a rate, of which each serves ``each`` requests per second."""
    return math.ceil(rate / each)


def _rounded(length: float) -> float:
    return float(f"{length:.{DIGITS}g}")


def _share(pools: Sequence[PoolView], pool: PoolView) -> float:
    """Return the share of the requests that a pool serves."""
    return 1 / sum(other.role == pool.role for other in pools)


@register_autoscaler
class Dynamo(Autoscaler):
    """The planner of NVIDIA Dynamo: by throughput every 180 s, if wanted also by load every 5 s.

    By throughput it wants ⌈predicted rate / rate of a worker⌉ workers of each pool. The rate of a worker is that of the
    batch size that serves most while a prompt without a queue takes at most ``ttft`` and a batch at most ``itl``.
    Mean lengths are those of the last 180 s, and so is the rate, or what a line through the last two says.

    By load, with the size by throughput as the least, it adds a worker if the estimated time to the first token of the
    next request (prefill and mixed workers), or that of the next decode (decode and mixed), exceeds its target on
    *all* workers. It removes one if the work of n workers fits on n − 1: of the time to the first token, what the queue
    adds is below ``sensitivity`` times what the target leaves for it; a decode takes less than ``sensitivity`` times
    its target; and the memory suffices. Mixed workers need all of it. Nothing changes while workers start or drain.

    The times are those of the worker's batch-time model; there, of a performance model that is corrected by what
    is measured. ARIMA, Kalman and Prophet predictors are left out; the limit of 8 GPUs is the fleet's budget. The
    planner counts requests at its frontend when they end (``demand=completions``), or as its router sends them.

    Source: ai-dynamo/dynamo, ``planner/core/throughput_scaling.py``, ``load_scaling.py``,
    ``perf_model/engine_query.py`` and ``config/defaults.py``.
    """

    info = AutoscalerInfo(
        name="dynamo", summary="the rate by what a worker serves within targets, as Dynamo's planner", weight="share",
        needs=frozenset({"tokens"}),
    )  # fmt: skip
    interval = 5.0

    ttft: float = positive(0.5)
    """target of the time to the first token, s."""
    itl: float = positive(0.05)
    """target of the time of a decode, s."""
    load: bool = flag(False)
    """also scale by load."""
    adjust: float = positive(180.0)
    """seconds between sizes by throughput."""
    predictor: str = choice("constant", ("constant", "trend"))
    """constant: the last rate; trend: a line through the last two."""
    demand: str = choice("arrivals", ("arrivals", "completions"))
    """requests that are counted."""
    sensitivity: float = positive(0.8)
    """share of the targets below which a worker is removed by load."""
    share: float = positive(1.0)
    """share of a worker's rate that is planned for; 1 there."""
    batch_tokens: int = whole(8192)
    """most tokens of a batch."""
    sequences: int = whole(1024)
    """most requests of a batch."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the past."""
        super().reset(fleet, seed)
        if fleet.control is None and not self.load:
            self._every = self.adjust
        self._bounds = [0] * len(fleet.pools)  # sizes by throughput
        self._begin, self._rates = 0.0, [0.0]
        self._arrivals = self._prompts = self._ends = self._outputs = 0
        self._prompt = self._output = 0.0

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes by throughput, or by load with these as the least."""
        self._arrivals, self._prompts = self._arrivals + view.arrivals, self._prompts + view.prompt_tokens
        self._ends, self._outputs = self._ends + view.completions, self._outputs + view.finished_tokens
        if view.time >= self._begin + self.adjust:
            self._plan(view)
        if not self.load:
            return [bound or pool.target for bound, pool in zip(self._bounds, view.pools, strict=True)]
        if self._prompt == 0 or any(p.starting or p.draining or p.ready != p.target for p in view.pools):
            return [pool.target for pool in view.pools]
        return [
            max(pool.target + self._step(pool), bound)
            for bound, pool in zip(self._bounds, view.pools, strict=True)
        ]

    def _plan(self, view: FleetView) -> None:
        """Set the sizes by throughput from what has been counted since the last time."""
        count = self._arrivals if self.demand == "arrivals" else self._ends
        self._rates = [*self._rates[-1:], count / (view.time - self._begin)]
        if self._arrivals:
            self._prompt = _rounded(self._prompts / self._arrivals)
        if self._ends:
            self._output = _rounded(self._outputs / self._ends)
        self._begin, self._arrivals, self._prompts, self._ends, self._outputs = view.time, 0, 0, 0, 0
        if self._prompt == 0 or self._output == 0:
            return
        last, now = self._rates
        rate = max(0.0, 2 * now - last) if self.predictor == "trend" else now
        for g, pool in enumerate(view.pools):
            each = rate_of(self._engine(pool), self._prompt, self._output, self.ttft, self.itl)
            self._bounds[g] = max(1, workers_for(rate * _share(view.pools, pool), each * self.share))

    def _engine(self, pool: PoolView) -> Engine:
        return Engine(pool.worker, self.batch_tokens, self.sequences)

    def _step(self, pool: PoolView) -> int:
        """Return the change of a pool's size by load."""
        n = pool.ready
        if n == 0:
            return 0
        rows = list(zip(*(x.tolist() for x in self._state(pool)), strict=True))
        steps = []
        if pool.role != "decode":
            high = all(self._first(pool, *row) > self.ttft for row in rows)
            steps.append(1 if high else -all(self._queue_fits(pool, n, *row) for row in rows))
        if pool.role != "prefill":
            high = all(self._decode(pool, active, kv) > self.itl for _, active, kv in rows)
            steps.append(1 if high else -all(self._decodes_fit(pool, n, *row) for row in rows))
        if n == 1:
            return max(0, *steps)
        return max(steps)

    def _state(self, pool: PoolView) -> tuple[np.ndarray, ...]:
        """Return the queued prompt tokens, requests in a batch, and tokens in memory of each worker."""
        return pool.prefill_tokens, pool.active, pool.kv * pool.worker.kv_capacity

    def _first(self, pool: PoolView, queued: float, active: float, kv: float) -> float:
        """Return the estimated time to the first token of the next request."""
        decodes = (active, kv) if pool.role == "mixed" else (0, 0)
        return self._engine(pool).prefill_time(queued + self._prompt, self._prompt, *decodes)

    def _queue_fits(self, pool: PoolView, n: int, queued: float, active: float, kv: float) -> bool:
        more = n / max(1, n - 1)
        own = self._first(pool, 0, active, kv * more)
        left = (self.ttft - own) * self.sensitivity
        return left > 0 and self._first(pool, queued * more, active, kv * more) - own < left

    def _decode(self, pool: PoolView, active: float, kv: float) -> float:
        """Return the estimated time of the next decode, with one more request."""
        tokens = active * self._prompt / max(1.0, self._output) if pool.role == "mixed" else 0
        return self._engine(pool).decode_time(active + 1, kv + self._prompt, tokens, self._prompt)

    def _decodes_fit(self, pool: PoolView, n: int, queued: float, active: float, kv: float) -> bool:
        more = n / max(1, n - 1)
        held = (kv + (queued if pool.role == "mixed" else 0)) * more
        if held >= pool.worker.kv_capacity:
            return False
        return self._decode(pool, active * more, held) < self.itl * self.sensitivity


@register_autoscaler
class Foresight(Autoscaler):
    """Knows the rates of the arrivals to come, but not the moment of each: what forecasts could be worth at most.

    It wants ⌈highest rate until a worker that is ordered at the next question is ready / (share · rate of a worker)⌉,
    with the rate of a worker that is saturated by requests of mean lengths. Where no arrival process has drawn the
    requests, as in a trace, the rates are those of each minute.
    """

    info = AutoscalerInfo(
        name="foresight", summary="the highest rate until the next worker is ready; clairvoyant, a reference",
        needs=frozenset({"arrivals_ahead"}), weight="share",
    )  # fmt: skip
    interval = 15.0

    share: float = positive(0.8)
    """share of a worker's rate that is planned for."""
    bursts: bool = flag(False)
    """also know the bursts of the seed."""
    margin: float = seconds(0.0)
    """seconds by which it looks further ahead."""
    batch_tokens: int = whole(8192)
    """most tokens of a batch."""
    sequences: int = whole(1024)
    """most requests of a batch."""

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes for the rates ahead."""
        ahead = view.ahead
        if ahead is None:
            return [pool.target for pool in view.pools]
        profile = ahead.rates.drawn if self.bursts else ahead.rates.mean
        lengths = _rounded(ahead.prompt_len), _rounded(ahead.output_len)
        found = []
        for pool in view.pools:
            engine = Engine(pool.worker, self.batch_tokens, self.sequences)
            until = view.time + pool.settings.startup + self._every + self.margin
            most = profile.most(view.time, until) * _share(view.pools, pool)
            found.append(workers_for(most, self.share * rate_of(engine, *lengths, math.inf, math.inf)))
        return found
