"""The memory below the GPU: its settings and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.records import sparse_zeros
from kvgym.errors import ConfigError, shown
from kvgym.simulator.tables import UNKNOWN
from kvgym.utils.arguments import explained_class
from kvgym.utils.checks import check_flag, real_number, whole_number

LOADS = ("overlap", "wait", "async")
"""What waits for loads: a batch takes as long as the longer of both, or begins when they have ended; or the request
alone waits.
"""

SHARED = ("worker", "host", "all")
"""Which workers share a memory: none, those of a host, or all."""

LEAST_RANK = 1
"""Rank of a content that is dropped before all others."""

HOST, STORE = 1, 2
"""Marks of contents in the host, and in the store below it."""

WRITES = ("through", "back")
"""When units are written: as they are computed, or when they are dropped above."""

LOAD_IF = ("always", "cheaper")
"""What is loaded: all that is found, or what is there before it could be computed."""

_MAX_TOKENS, _MAX_SECONDS = 2**40, 1e6


BELOW = np.dtype(
    [
        ("safe_at", "f8"),  # s, when the last write from the GPU's memory ends
        ("source", "i4"),  # unit of the GPU from which it reads
        ("there", "i4"),  # sum of the marks of the memories that have it, 0: none
        ("position", "i4"),  # in all chains with it
        ("waiting", "i4"),  # waiting requests with a hit that contains it
    ],
    align=True,
)
"""A content as a worker finds it below the GPU."""

STORED = np.dtype(
    [
        ("rank", "i8"),  # by which it is dropped, 0: it is not there
        ("offer", "i8"),  # number of the last offer that it was part of
        ("written", "i8"),  # number of the offer that wrote it last
        ("ready_at", "f8"),  # s, when its write ends
        ("busy_until", "f8"),  # s, when its last transfer ends
        ("loaded_at", "f8"),  # s, when its last load ends for which only the request waits
        ("decision", "i8"),  # stamp of the last one that starts such a load
        ("loads", "i4"),  # unit of the GPU that such a load fills
        ("writer", "i4"),  # request that wrote it last
        ("position", "i4"),  # in all chains with it
        ("following", "i4"),  # the next content that comes over the same link, see `tiers.rows`
        ("stamp", "i4"),  # of its entry in the heap of units to be dropped
    ],
    align=True,
)
"""A content in a memory below the GPU, see :mod:`kvgym.simulator.tiers.store`."""

DROP = np.dtype([("key", "i8"), ("content", "i4"), ("stamp", "i4")], align=True)
"""Entry of the heap of units to be dropped; without effect if the unit has another stamp by now."""

TIERED = np.dtype(
    [
        ("rank", "i8"),  # there, 0: none yet
        ("memory", "i4"),  # the worker with that memory, from 1 on
        ("offered", "i4"),  # units that it has offered since its start
        ("first", "i4"),  # first unit that it has offered or loaded at all
        ("used", "i4"),  # and the end of these
        ("loaded", "i4"),  # units that it has loaded before its start
        ("kind", "i4"),  # what its start comes to in the decision, see `tiers.loading`
        ("following", "i4"),  # next request that has finished since the last batch
        ("until", "f8"),  # s, to which its KV is kept then
        ("loaded_at", "f8"),  # s, when that load ends
        ("stored_at", "f8"),  # s, when its last write ends
        ("wake", "f8"),  # s, when what it waits for has been transferred
    ],
    align=True,
)
"""What the memory below knows of a request."""

TIER = np.dtype(
    [
        ("mark", "i8"),  # of contents that are there: HOST, or STORE below it
        # Of the memory: the first worker that shares it, which has `capacity` … `num_drops` and `used_time`.
        ("number", "i8"),
        ("sharers", "i8"),  # workers that share it
        ("shares", "i8"),  # 1: this memory or the one below it is shared
        ("capacity", "i8"),  # units
        ("used", "i8"),  # units
        ("outputs", "i8"),  # 1: units with output tokens are written, too
        ("back", "i8"),  # 1: units are written when the GPU drops them
        ("overlaps", "i8"),  # 1: loads overlap with the batch
        ("cheaper", "i8"),  # 1: loads only what ends before it could be computed
        ("asynchronous", "i8"),  # 1: only the request waits for its load
        ("together", "i8"),  # 1: the next batch waits for its loads nevertheless
        ("num_begun", "i8"),  # loads so far for which only the request waits
        ("num_kept", "i8"),  # waiting requests with what they have loaded, or are loading
        ("wake", "f8"),  # s, next end of a transfer that a waiting request needs
        ("first_ended", "i4"),  # requests that have finished since the last batch
        ("last_ended", "i4"),
        ("load_time", "f8"),  # s per unit
        ("store_time", "f8"),  # s per unit
        ("latency", "f8"),  # s per transfer
        ("last_rank", "i8"),
        ("offer", "i8"),  # number of the last offer
        ("num_drops", "i8"),  # entries of the heap of units to be dropped
        ("room", "i8"),  # most entries of it
        ("up_free", "f8"),  # s, when the link to the GPU is free
        ("planned", "i8"),  # stamp of the decision of which `plan_free` counts the starts
        ("plan_free", "f8"),  # s, the same after the starts of a plan
        ("down_free", "f8"),  # s, when the link from it is free
        ("loaded_at", "f8"),  # s, end of the loads of the next batch
        ("fence", "f8"),  # s, end of the writes from memory that the next batch takes
        ("counted_until", "f8"),  # s, to which `used_time` has been counted
        # How compiled code reaches its tables and its kernel, see `prefix.tier_hook`.
        ("row", "i8"),
        ("owner", "i8"),  # the record of the first worker that shares the memory
        ("first_row", "i8"),  # and its row
        ("row_stride", "i8"),
        ("lower_row", "i8"),  # the tables with those of the memory below this one, 0: there is none
        ("handle", "i8"),
        ("second_handle", "i8"),
        (
            "first",
            "i8",
            (2,),
        ),  # contents that come over the link down, and of a store over the link up to the host
        ("last", "i8", (2,)),
        # And how that reaches the batch times.
        ("batch_time", "i8"),
        ("second_batch_time", "i8"),
        ("batch_params", "i8"),
        ("num_batch_params", "i8"),
        # Totals over the run.
        ("total_loads", "i8"),
        ("total_loaded", "i8"),  # units
        ("total_first", "i8"),  # those of them at first starts
        ("total_stored", "i8"),  # units
        ("total_dropped", "i8"),  # units
        ("total_refused", "i8"),  # offers without room
        ("stall_time", "f8"),  # s, batches waited for writes
        ("wait_time", "f8"),  # s, and for loads
        ("up_time", "f8"),  # s, the link to the GPU was busy
        ("down_time", "f8"),  # s, and the link from it
        ("used_time", "f8"),  # integral of used units over time
    ],
    align=True,
)
"""Scalars of a memory below the GPU, and of the links to it from above."""


@explained_class
@dataclass(frozen=True)
class Tier:
    """A memory of KV, with a link in both directions to what is above.

    A link carries one transfer after the other, in the order in which they are submitted.

    Attributes:
        tokens: its size, tokens, for each worker unless it is shared; what is not a whole unit of the prefix cache
            stays empty.
        load_time: seconds per token on the way up.
        store_time: seconds per token on the way down.
        latency: further seconds per transfer, one for each request that loads or writes in a batch.
        shared: the workers that share one such memory, which have links of their own to it: ``"worker"``: none,
            ``"host"``: those of a host, see :class:`HostMemory`, ``"all"``.
    """

    tokens: int
    load_time: float
    store_time: float
    latency: float = 0.0
    shared: str = "worker"

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        place = self.place
        whole_number(self.tokens, f"{place}: tokens", "a whole number ≥ 1, at most 2^40", most=_MAX_TOKENS)
        for name in ("load_time", "store_time", "latency"):
            what = f"{place}: {name}"
            real_number(getattr(self, name), what, "seconds, 0 … 1e6", lambda x: 0 <= x <= _MAX_SECONDS)
        if self.shared not in SHARED:
            raise ConfigError(f"{place}: shared = {shown(self.shared)}; valid: {', '.join(SHARED)}")

    def owners(self, workers: int, workers_per_host: int) -> NDArray[np.int64]:
        """Return the first of the workers that share the memory of each worker, int64 (workers,)."""
        size = {"worker": 1, "host": workers_per_host, "all": workers}[self.shared]
        return np.arange(workers) // size * size

    @property
    def place(self) -> str:
        """Where it is among the settings."""
        return "host_memory: below"

    def check_unit(self, unit: int) -> None:
        """Check that it holds a unit of the prefix cache; ``unit`` are its tokens.

        Raises:
            ConfigError: it does not.
        """
        if self.tokens < unit:
            raise ConfigError(
                f"{self.place}: tokens = {self.tokens}, but a unit of the prefix cache has {unit}; "
                "expected at least that"
            )

    def records(self, unit: int, num_contents: int, mark: int, owners: NDArray[np.int64]) -> NDArray[Any]:
        """Return empty memories in the simulator's layout, TIER (r,).

        Args:
            unit: that of the prefix cache, tokens.
            num_contents: most units that there are.
            mark: of contents that are there.
            owners: see :meth:`owners`.
        """
        workers = np.arange(len(owners))
        tier = np.zeros(len(owners), TIER)
        tier["number"], tier["sharers"] = owners, (owners[:, None] == owners).sum(axis=1)
        tier["mark"], tier["capacity"] = mark, np.where(owners == workers, self.tokens // unit, 0)
        tier["first"] = tier["last"] = UNKNOWN
        tier["room"] = 2 * min(self.tokens // unit, num_contents) + 64
        tier["load_time"], tier["store_time"] = self.load_time * unit, self.store_time * unit
        tier["latency"] = self.latency
        tier["loaded_at"] = tier["fence"] = -np.inf
        tier["wake"], tier["first_ended"] = np.inf, UNKNOWN
        return tier


@explained_class
@dataclass(frozen=True)
class HostMemory(Tier):
    """KV memory of the host, below that of each worker.

    Units of the prefix cache are written down as they are computed, and found there when the GPU has dropped them.

    Attributes:
        tokens: as in :class:`Tier`, as the next three.
        load_time: from the host to the GPU.
        store_time: from the GPU to the host.
        latency: of a transfer.
        shared: ``"host"``: by the workers of a host.
        load: ``"overlap"``: a batch with loads takes as long as the longer of both, as where layer n + 1 is loaded
            while layer n computes. ``"wait"``: it begins when its loads have ended. ``"async"``: the request waits
            with the memory for its load while others run, as in vLLM.
        outputs: whether units with output tokens are written, too.
        load_if: ``"always"``: all that is found is loaded, as in engines. ``"cheaper"``: a request that starts loads
            what it finds there if that ends earlier than a batch which computes it alone; else it computes it.
        write: ``"through"``: units are written as they are computed. ``"back"``: when the GPU drops them; the batch
            that takes their memory waits for it, and the host drops first what the GPU has as well.
        below: a disk or another store below the host; None = none. What has been written to the host goes down there,
            and what only the store has is read into the host before it is loaded.
        workers_per_host: workers of a host, in their order, that share what is ``shared: host``.
    """

    load: str = "overlap"
    outputs: bool = True
    load_if: str = "always"
    write: str = "through"
    below: Tier | None = None
    workers_per_host: int = 1

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        super().__post_init__()
        for name, valid in (("load", LOADS), ("load_if", LOAD_IF), ("write", WRITES)):
            if getattr(self, name) not in valid:
                found = shown(getattr(self, name))
                raise ConfigError(f"host_memory: {name} = {found}; valid: {', '.join(valid)}")
        if not check_flag(self.outputs, "host_memory: outputs") and self.write == "back":
            raise ConfigError(
                "host_memory: write = 'back' writes all that is dropped; leave out outputs: false"
            )
        if not (self.below is None or isinstance(self.below, Tier)):
            raise ConfigError(f"host_memory: below = {shown(self.below)}; expected a Tier or None")
        plain = (self.load_if, self.write, self.shared, self.below) == ("always", "through", "worker", None)
        if self.load == "async" and not plain:
            raise ConfigError(
                "host_memory: load = async with load_if = cheaper, write = back, shared or below is not modelled; use "
                "overlap or wait"
            )
        whole_number(self.workers_per_host, "host_memory: workers_per_host", "a whole number ≥ 1")
        if "host" in [tier.shared for tier in self.tiers] and self.workers_per_host == 1:
            raise ConfigError("host_memory: shared = 'host' needs workers_per_host, at least 2")

    @property
    def place(self) -> str:
        """Where it is among the settings."""
        return "host_memory"

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """All memories, from the GPU down."""
        return (self,) if self.below is None else (self, self.below)

    def check(self, system: Any) -> None:
        """Check that a system may have this memory.

        Args:
            system: a :class:`~kvgym.simulator.system.System`.

        Raises:
            ConfigError: it may not.
        """
        if system.prefix_cache != "scheduled":
            raise ConfigError(
                f"host_memory with prefix_cache = {system.prefix_cache}: what is written and found below the GPU "
                "follows vLLM; set prefix_cache: scheduled, or leave host_memory out"
            )
        for tier in self.tiers:
            tier.check_unit(system.prefix_unit)
        apart = any(worker.role != "mixed" for worker in system.workers)
        without = {
            "speculation": system.speculation is not None,
            "prefill and decode workers": apart,
            "a fleet": system.fleet is not None,
        }
        for other, given in without.items():
            if given:
                raise ConfigError(f"host_memory with {other} is not modelled; leave one of them out")


def empty_tiers(
    memory: HostMemory | None, unit: int, contents: NDArray[Any] | None, num_requests: int
) -> dict[str, NDArray[Any]]:
    """Return the tables of empty memories below the GPU, by the names of the tables of a run.

    The tables of the store follow those of the host, but for its record, which is ``lower``.

    Args:
        memory: its settings; None = none: no tables, as they have no rows or are zero.
        unit: tokens of a unit of the prefix cache.
        contents: those of the prefix caches, CONTENT (r, D); None without any.
        num_requests: number of requests.
    """
    if memory is None:
        return {}
    assert contents is not None
    workers, num_contents = contents.shape
    records = [
        tier.records(unit, num_contents, mark, tier.owners(workers, memory.workers_per_host))
        for tier, mark in zip(memory.tiers, (HOST, STORE), strict=False)
    ]
    records[0]["asynchronous"] = memory.load == "async"
    records[0]["outputs"], records[0]["overlaps"] = memory.outputs, memory.load == "overlap"
    records[0]["cheaper"], records[0]["back"] = memory.load_if == "cheaper", memory.write == "back"
    records[0]["last_rank"] = LEAST_RANK if memory.write == "back" else 0
    no_lower = np.zeros(workers, TIER)
    no_lower["first"] = no_lower["last"] = UNKNOWN  # nothing comes from there
    records[0]["shares"] = any(record["sharers"].max() > 1 for record in records)
    return {
        "tier": records[0],
        "lower": records[1] if memory.below is not None else no_lower,
        "below": np.zeros((workers, num_contents), BELOW),
        "stored": sparse_zeros((workers, len(records) * num_contents), STORED),
        "drops": sparse_zeros((workers, int(sum(record["room"][0] for record in records))), DROP),
        "tiered": np.zeros(len(records) * num_requests, TIERED),
    }
