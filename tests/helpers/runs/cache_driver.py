"""A prefix cache that tests change operation by operation, with the functions of the engine as plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import as_records, records
from kvgym.simulator.prefix import cache, plan
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.prefix.empty import empty_caches
from kvgym.simulator.prefix.host_memory import BELOW, TIER
from kvgym.simulator.prefix.pins import begin_pin, make_room
from kvgym.simulator.tables import REQUEST, UNKNOWN, WORKER
from kvgym.workloads.table import RequestTable


class CacheDriver:
    """The operations of the oracle's pool, see :class:`oracles.prefix_cache.ReferencePool`; a unit is a block.

    Args:
        capacity: memory, tokens.
        unit: tokens of a unit.
        table: the requests, with block hashes.
        share: ``"computed"``: full units can be found from the end of their batch; ``"scheduled"``: at once.
    """

    def __init__(self, capacity: int, unit: int, table: RequestTable, share: str = "computed") -> None:
        made = empty_caches(table, unit, np.array([capacity]), False)
        own = {name: made[name][0] for name in ("units", "contents", "changed")}
        tables = {**made, **own, "pool": as_records(made["pool"])[0]}
        tables |= {"tier": records(TIER, 1)[0], "below": records(BELOW, 0)}
        self.cache = PrefixCache(
            *(
                as_records(array) if name in ("units", "contents", "prefix") else array
                for name in PrefixCache._fields
                for array in [tables[name]]
            )
        )
        self.requests, self.worker = records(REQUEST, len(table)), records(WORKER, 1)[0]
        fields = ("kv_capacity", "prefix_unit", "prefix_tree")
        self.problem = records(np.dtype([(name, "i8") for name in fields]), 1)[0]
        self.problem.kv_capacity, self.problem.prefix_unit = capacity, unit
        self.unit, self.share, self.in_use, self.kv = unit, share, 0, dict[int, int]()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the prefix cache."""
        return uncompiled(getattr(plan if hasattr(plan, name) else cache, name))(self.cache, *arguments)

    def blocks(self, tokens: int) -> int:
        """Return the tokens of the blocks of a request alone."""
        return -(-tokens // self.unit) * self.unit

    def admit_many(self, starts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]] | None:
        """Start requests (id, known tokens, largest chunk) together if they fit; return the hit and chunk of each."""
        self.cache.pool.stamp += 1
        need, sizes = 0, list[tuple[int, int]]()
        for i, known, chunk in starts:
            row = self.requests[i]
            row.num_kv_tokens, row.num_prefill_left = 0, known
            self.call("start_waiting", self.requests, self.unit, i)
            hit, tokens = int(row.num_kv_tokens), min(int(row.num_prefill_left), chunk)
            sizes.append((hit, tokens))
            need += self.blocks(hit + tokens) - self.unit * self.call("plan_change", i, False)
        if self.in_use + need > self.problem.kv_capacity:
            for i, _, _ in starts:
                self.call("forget_hit", i)
            return None
        for (i, _, _), (hit, _) in zip(starts, sizes, strict=True):
            self.in_use += hit - self.unit * self.call("hold_hit", i)
            self.kv[i] = hit
        assert all(self.grow(i, tokens) for (i, _, _), (_, tokens) in zip(starts, sizes, strict=True))
        return sizes

    def admit(self, i: int, known: int, chunk: int) -> tuple[int, int] | None:
        """Start request ``i`` if it fits; return its hit and the tokens of its chunk."""
        sizes = self.admit_many([(i, known, chunk)])
        return sizes[0] if sizes else None

    def grow(self, i: int, tokens: int) -> bool:
        """Give a running request more tokens if they fit."""
        more = self.blocks(self.kv[i] + tokens) - self.blocks(self.kv[i])
        if self.in_use + more > self.problem.kv_capacity:
            return False
        self.kv[i] += tokens
        self.in_use += more
        uncompiled(make_room)(self.cache, self.requests, self.problem, self.worker, self.in_use)
        if self.share == "scheduled":
            self.end_batch()
        return True

    def end_batch(self) -> None:
        """Enter full units into the map."""
        for i, kv in self.kv.items():
            self.call("share_up_to", self.requests, self.unit, i, kv, 0.0)

    def release(self, i: int) -> None:
        """End a request."""
        kept = self.unit * self.call("give_up", i)
        self.in_use -= self.blocks(self.kv.pop(i)) - kept

    def drop(self, count: int) -> int:
        """Drop up to ``count`` cached units; return how many."""
        dropped, spare = 0, int(self.cache.pool.spare)
        while dropped < count and self.cache.pool.head != UNKNOWN:
            self.call("drop_first", 0.0)
            dropped += 1
        self.call("show_dropped", self.requests, self.unit, self.worker, spare)
        return dropped

    def pin(self, i: int, deadline: float) -> None:
        """Pin the units of a request that has just ended."""
        uncompiled(begin_pin)(self.cache, i, deadline)

    def cached(self) -> list[int]:
        """Return the contents of the cached units, the next victim first."""
        found, b = [], self.cache.pool.head
        while b != UNKNOWN:
            found.append(int(self.cache.units[b].content))
            b = self.cache.units[b].after
        return found
