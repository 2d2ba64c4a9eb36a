"""Reuse of a prefix cache by requests that run one after another, in plain Python: an upper bound for overlapping ones.

A hit is the longest run of a request's first units that are cached, less what leaves at least one token of the prompt
to compute. New units take blank memory first, then the memory of the least recently released units. A request releases
its units from the last to the first. Copies stay: a unit that is computed again is cached next to the first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import WorkloadError
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class Reuse:
    """Hits of requests that run one after another.

    Attributes:
        unit: tokens of a unit.
        capacity: tokens of the cache, None = infinite.
        hits: int64 (n,), tokens of each request's prompt that are cached when it starts.
        prompt_tokens: tokens of all prompts.
        units_evicted: units that made room for others.
        too_long: requests that exceed the capacity; they hit nothing and leave the cache as it is.
    """

    unit: int
    capacity: int | None
    hits: NDArray[np.int64]
    prompt_tokens: int
    units_evicted: int
    too_long: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that hit, 0 without requests."""
        return float(self.hits.sum() / self.prompt_tokens) if self.prompt_tokens else 0.0


class SerialCache:
    """A cache of units for requests that run one after another.

    Args:
        units: units of memory, None = infinite.
    """

    def __init__(self, units: int | None) -> None:
        self.blank = units
        self.evicted = 0
        self._found: dict[int, int] = {}  # block of a content, the first of its copies
        self._copies: dict[int, list[int]] = {}  # further blocks
        self._free: OrderedDict[int, int] = OrderedDict()  # content of each block, next victim first
        self._next = 0

    def contents(self) -> list[int]:
        """Return what is cached, next victim first."""
        return list(self._free.values())

    def serve(self, chain: list[int], most: int, units: int) -> int | None:
        """Run one request and return the number of units that it hits, None if it does not fit.

        Args:
            chain: contents of its full units.
            most: most units that may hit.
            units: units of memory that it needs, private ones included.
        """
        if self.blank is not None and units > self.blank + len(self._free):
            return None
        held = []
        for content in chain[:most]:
            if (block := self._found.get(content)) is None:
                break
            held.append(block)
            del self._free[block]
        hit = len(held)
        self._take(units - hit)
        for content in chain[hit:]:
            block = self._next
            self._next += 1
            held.append(block)
            if content in self._found:
                self._copies.setdefault(content, []).append(block)
            else:
                self._found[content] = block
        self._free.update(zip(reversed(held), reversed(chain), strict=True))
        if self.blank is not None:
            self.blank += units - len(chain)
        return hit

    def _take(self, count: int) -> None:
        """Take blank units, then the least recently released ones."""
        if self.blank is None:
            return
        fresh = min(count, self.blank)
        self.blank -= fresh
        self.evicted += count - fresh
        for _ in range(count - fresh):
            block, content = self._free.popitem(last=False)
            further = self._copies.get(content)
            if self._found[content] != block:
                self._copies[content].remove(block)
            elif further:
                self._found[content] = further.pop(0)
            else:
                del self._found[content]


def hashes_of(table: RequestTable) -> BlockHashes:
    """Return the block hashes of requests.

    Raises:
        WorkloadError: they have none.
    """
    if table.hashes is None:
        raise WorkloadError(
            "these requests have no block hashes, so there is no reuse: use a trace with hashes or a workload with "
            "prefixes, or leave unit and sizes out"
        )
    return table.hashes


def replay(table: RequestTable, unit: int | None = None, capacity: int | None = None) -> Reuse:
    """Run the requests one after another, in order of arrival, through a prefix cache.

    A request holds its prompt, and of its output what its hashes cover: none in traces.

    Args:
        table: requests with hashes.
        unit: tokens of a unit, see :meth:`RequestTable.chains`; None = those of a hash.
        capacity: tokens of the cache, None = infinite.

    Raises:
        WorkloadError: the requests have no hashes, or the unit does not fit them.
    """
    hashes = hashes_of(table)
    unit = hashes.block if unit is None else unit
    chain, start, length, _ = hashes.chains(unit)
    # The last output token is never computed on, so its KV is not there.
    held = np.maximum(
        table.prompt_len, np.minimum(hashes.chain_tokens, table.prompt_len + table.output_len - 1)
    )
    rows = zip(
        start.tolist(),
        np.minimum(length, held // unit).tolist(),
        ((table.prompt_len - 1) // unit).tolist(),
        (-(-held // unit)).tolist(),
        strict=True,
    )
    cache, contents = SerialCache(None if capacity is None else capacity // unit), chain.tolist()
    served = [cache.serve(contents[a : a + count], most, units) for a, count, most, units in rows]
    return Reuse(
        unit=unit,
        capacity=capacity,
        hits=unit * np.array([hit or 0 for hit in served], np.int64),
        prompt_tokens=int(table.prompt_len.sum()),
        units_evicted=cache.evicted,
        too_long=served.count(None),
    )


def repeated_hashes(table: RequestTable) -> tuple[int, int]:
    """Return how many hashes an earlier request had, the last ones of started blocks included, and how many there are.

    Raises:
        WorkloadError: the requests have no hashes.
    """
    hashes = hashes_of(table)
    seen: set[int] = set()
    repeated = total = 0
    for i in range(len(hashes)):
        row = hashes.row(i).tolist()
        before = len(seen)
        seen.update(row)
        total += len(row)
        repeated += len(row) - (len(seen) - before)
    return repeated, total
