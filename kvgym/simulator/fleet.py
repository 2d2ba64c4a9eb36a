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
from kvgym.utils.checks import check_one_of, real_number, whole_number

ROLES = {"mixed": ROLE_MIXED, "prefill": ROLE_PREFILL, "decode": ROLE_DECODE}
DRAINS = ("finish", "requeue")

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
    """

    pools: tuple[Pool, ...]
    budget: int | None = None
    control: float | None = None
    penalty: float = 20.0
    switch: float | None = None

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
