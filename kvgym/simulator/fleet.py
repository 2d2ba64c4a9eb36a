"""Settings of a worker, and of a fleet: a cluster with places at which workers start and stop during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.tables import ROLE_DECODE, ROLE_MIXED, ROLE_PREFILL
from kvgym.utils.arguments import explained_class
from kvgym.utils.checks import check_flag, check_one_of, real_number, whole_number

ROLES = {"mixed": ROLE_MIXED, "prefill": ROLE_PREFILL, "decode": ROLE_DECODE}
DRAINS = ("finish", "requeue")
ON_LOSS = ("retry", "fail")

MAX_CAPACITY = 2**31 - 1
"""Most tokens that a KV cache may hold."""

STARTUP = 60.0
"""Seconds from the order to start a worker until it is ready, where nothing more is known."""


def check_capacity(kv_capacity: Any) -> None:
    """Check a size of a KV memory; ConfigError if it is none."""
    whole_number(
        kv_capacity, "kv_capacity", "a whole number of tokens, 2 … 2^31-1", least=2, most=MAX_CAPACITY
    )


def check_model(batch_time: Any) -> None:
    """Check that a value is a batch-time model; ConfigError if not."""
    if not isinstance(batch_time, BatchTimeModel):
        raise ConfigError(
            f"batch_time = {shown(batch_time)}; expected a BatchTimeModel, as make_batch_time returns"
        )


@explained_class
@dataclass(frozen=True)
class Worker:
    """One worker of a cluster.

    Attributes:
        kv_capacity: KV memory, tokens.
        batch_time: duration of an iteration.
        role: ``"mixed"`` serves whole requests. With disaggregation, ``"prefill"`` processes prompts only and
            hands requests over to a ``"decode"`` worker.
    """

    kv_capacity: int
    batch_time: BatchTimeModel
    role: str = "mixed"

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        check_capacity(self.kv_capacity)
        check_model(self.batch_time)
        check_one_of(self.role, "role", tuple(ROLES))


@explained_class
@dataclass(frozen=True)
class Pool:
    """Places for equal workers of one role.

    Attributes:
        count: workers that are ready at the start.
        least: fewest workers that an autoscaler may want.
        most: the number of places.
        startup: seconds from the order to start until the worker is ready; the median if they vary.
        sigma: spread of start-up times, the standard deviation of their logarithm; 0 = none.
        gpus: GPUs of a worker.
        price: cost of a GPU-second of this pool, relative to others.
        min_uptime: seconds that a worker must have been ready before a lower target drains it.
        drain: what happens to waiting requests of a worker that drains: ``"finish"`` they stay, ``"requeue"`` they are
            routed again, if another worker can take them.
        drain_limit: seconds after which a draining worker is stopped, and what it has is lost as in a failure; None =
            never.
    """

    count: int
    most: int
    least: int = 1
    startup: float = STARTUP
    sigma: float = 0.0
    gpus: int = 1
    price: float = 1.0
    min_uptime: float = 0.0
    drain: str = "finish"
    drain_limit: float | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        whole_number(self.most, "most", "1 … 10,000 workers", most=10_000)
        for name in ("count", "least"):
            whole_number(
                getattr(self, name), name, f"0 … most = {self.most} workers", least=0, most=self.most
            )
        whole_number(self.gpus, "gpus", "1 … 10,000 GPUs of a worker", most=10_000)
        for name in ("startup", "sigma", "price", "min_uptime"):
            real_number(getattr(self, name), name, "a number, 0 … 1e6", lambda x: 0 <= x <= 1e6)
        if self.drain not in DRAINS:
            raise ConfigError(f"drain = {shown(self.drain)}; valid: {', '.join(DRAINS)}")
        if self.drain_limit is not None:
            real_number(self.drain_limit, "drain_limit", "seconds, 0 … 1e6", lambda x: 0 <= x <= 1e6)


@explained_class
@dataclass(frozen=True)
class Failures:
    """How workers of a fleet fail.

    A ready or draining worker fails after an exponential time; the batch that runs is thrown away, and the KV of all
    of its requests is lost, on their way from or to it included. Its place is empty for the repair time; the pool
    starts another worker at another place at once, or there then.

    Attributes:
        mtbf: mean seconds from the start of a worker to its failure; inf = only those of ``at``. Llama 3 was trained
            with 419 unplanned interruptions in 54 days on 16,384 H100 (arXiv 2407.21783, Section 3.3.4): 6,300 h for a
            worker of eight GPUs.
        repair: seconds for which the place cannot be used.
        at: further failures: seconds and the place, which does not fail unless a worker is ready or draining there.
    """

    mtbf: float = math.inf
    repair: float = 600.0
    at: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        real_number(self.mtbf, "mtbf", "seconds, at least 1", lambda x: x >= 1)
        real_number(self.repair, "repair", "seconds, 0 … 1e9", lambda x: 0 <= x <= 1e9)
        if not isinstance(self.at, tuple) or not all(isinstance(x, tuple) and len(x) == 2 for x in self.at):
            raise ConfigError(f"at = {shown(self.at)}; expected pairs of seconds and a place")
        for time, place in self.at:
            real_number(time, "time of a failure", "seconds, 0 … 1e12", lambda x: 0 <= x <= 1e12)
            whole_number(place, "place of a failure", "a place, from 0", least=0)


@explained_class
@dataclass(frozen=True)
class Users:
    """How users behave when they wait, or are refused.

    Attributes:
        patience: seconds from the arrival after which a user without a first token goes away; the median if they
            vary. inf = never.
        sigma: spread of patience, the standard deviation of its logarithm; 0 = none.
        again: probability that a user tries again with the same request after going away, or being refused. The
            patience then starts again; latencies count from the first arrival.
        delay: seconds until then.
        most: most further tries of a user.
    """

    patience: float = math.inf
    sigma: float = 0.0
    again: float = 0.0
    delay: float = 0.0
    most: int = 1

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        real_number(self.patience, "patience", "seconds, at least 0.001", lambda x: x >= 1e-3)
        real_number(self.sigma, "sigma", "a number, 0 … 5", lambda x: 0 <= x <= 5)
        real_number(self.again, "again", "a probability, 0 … 1", lambda x: 0 <= x <= 1)
        real_number(self.delay, "delay", "seconds, 0 … 1e9", lambda x: 0 <= x <= 1e9)
        whole_number(self.most, "most", "0 … 1,000 further tries", least=0, most=1000)


@explained_class
@dataclass(frozen=True)
class Fleet:
    """The pools of a cluster, in the order of its workers, and what they cost.

    Attributes:
        pools: the pools; places are numbered through them.
        budget: most GPUs of starting, ready and draining workers together; None = no limit.
        control: seconds between questions to the autoscaler; None = as it has them.
        penalty: cost of a request that missed its SLO, in GPU-seconds.
        switch: seconds that a worker needs to change to another pool of equal hardware when it has drained; None =
            such a change is a stop and a start.
        failures: how workers fail.
        users: how users behave.
        on_loss: what becomes of a request that is lost, with its worker or as a drain is cut: ``"retry"`` it arrives
            again, ``"fail"`` it ends.
        retry_delay: seconds after which it arrives again.
        keep_tokens: whether it continues after the tokens that its user has; their KV is computed with the prompt. Else
            all is computed again.
    """

    pools: tuple[Pool, ...]
    budget: int | None = None
    control: float | None = None
    penalty: float = 20.0
    switch: float | None = None
    failures: Failures = Failures()
    users: Users = Users()
    on_loss: str = "retry"
    retry_delay: float = 0.0
    keep_tokens: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        if not isinstance(self.pools, tuple) or not self.pools:
            raise ConfigError(f"pools = {shown(self.pools)}; expected at least one Pool")
        if self.budget is not None:
            used = sum(pool.count * pool.gpus for pool in self.pools)
            whole_number(
                self.budget, "budget", "a whole number of GPUs ≥ those used at the start", least=max(1, used)
            )
        if self.control is not None:
            real_number(self.control, "control", "seconds > 0, at most 1e6", lambda x: 0 < x <= 1e6)
        real_number(self.penalty, "penalty", "GPU-seconds, 0 … 1e9", lambda x: 0 <= x <= 1e9)
        if self.switch is not None:
            real_number(self.switch, "switch", "seconds, 0 … 1e6", lambda x: 0 <= x <= 1e6)
        check_one_of(self.on_loss, "on_loss", ON_LOSS)
        real_number(self.retry_delay, "retry_delay", "seconds, 0 … 1e9", lambda x: 0 <= x <= 1e9)
        check_flag(self.keep_tokens, "keep_tokens")
        for _, place in self.failures.at:
            whole_number(
                place, "place of a failure", f"0 … {self.num_places - 1}", least=0, most=self.num_places - 1
            )

    @property
    def num_places(self) -> int:
        """Places of all pools."""
        return sum(pool.most for pool in self.pools)

    @property
    def pool_of(self) -> tuple[int, ...]:
        """The pool of each place."""
        return tuple(g for g, pool in enumerate(self.pools) for _ in range(pool.most))

    @property
    def limit(self) -> float:
        """The budget, GPUs; inf without one."""
        return math.inf if self.budget is None else self.budget

    def kinds(self, workers: Sequence[Worker]) -> tuple[int, ...]:
        """Return the hardware of each pool as a number, equal for pools that may exchange workers.

        Args:
            workers: the worker of each place.
        """
        if self.switch is None:
            return ()
        firsts = [workers[self.pool_of.index(g)] for g in range(len(self.pools))]
        hardware = [
            (worker.kv_capacity, worker.batch_time.kernel, worker.batch_time.params().tobytes(), pool.gpus)
            for worker, pool in zip(firsts, self.pools, strict=True)
        ]
        return tuple(map(hardware.index, hardware))

    def check(self, workers: Sequence[Worker], cache_rule: str) -> None:
        """Check that the fleet suits a cluster.

        Args:
            workers: the workers of the cluster, one for each place, of one role in a pool.
            cache_rule: the rule of their prefix caches.

        Raises:
            ConfigError: it does not.
        """
        if len(workers) != self.num_places:
            raise ConfigError(
                f"a fleet of {self.num_places} places and {len(workers)} workers; expected a worker for each place"
            )
        for g in range(len(self.pools)):
            roles = {worker.role for worker, pool in zip(workers, self.pool_of, strict=True) if pool == g}
            if len(roles) > 1:
                raise ConfigError(
                    f"pool {g} has workers of roles {', '.join(sorted(roles))}; expected one role"
                )
        kinds = self.kinds(workers)
        if self.switch is not None and len(set(kinds)) == len(kinds):
            raise ConfigError(
                f"switch = {self.switch:g} s, but no two pools have equal hardware and memory; expected pools that may "
                "exchange workers, or none"
            )
        if cache_rule != "lru":
            raise ConfigError(f"cache_rule = {shown(cache_rule)} in a fleet; expected lru")
