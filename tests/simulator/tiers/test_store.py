"""What the memory below the GPU keeps and drops, against the rules in plain Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import as_records
from kvgym.simulator.prefix.host_memory import HostMemory, empty_tiers
from kvgym.simulator.prefix.rules import ENDS, FOREVER, LRU
from kvgym.simulator.tables import CONTENT, PREFIX, REQUEST, UNKNOWN, WORKER
from kvgym.simulator.tiers import store


class Manager:
    """The rules of the module in plain Python: a dict of units with their rank, position and transfers."""

    def __init__(self, capacity: int, chains: list[list[int]], ruled: bool) -> None:
        self.capacity, self.chains = capacity, chains
        self.units: dict[int, list[int]] = {}  # content -> rank, -position, transfers under way
        self.ranks: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.last = 0
        self.ruled = ruled

    def rank(self, i: int, now: int) -> int:
        """Return the rank of a request."""
        if i not in self.ranks:
            self.last += 1
            self.ranks[i] = 1 + 1024 * now if self.ruled else self.last
        return self.ranks[i]

    def offer(
        self, i: int, first: int, last: int, coming: set[int], now: int
    ) -> tuple[set[int], set[int]] | None:
        """Offer units; return those written and those dropped, None without room."""
        chain, rank = self.chains[i], 0
        offered = chain[first:last]
        missing = [content for content in offered if content not in self.units]
        if any(content not in coming for content in offered):  # what others are writing counts for nothing
            rank = self.rank(i, now)
        lacking = len(self.units) + len(missing) - self.capacity
        order = sorted((unit[:2], content) for content, unit in self.units.items())
        ready = [content for _, content in order if not self.units[content][2] and content not in offered]
        self.used[i] = max(self.used.get(i, 0), last)
        for content in offered:
            if content in self.units and content not in coming:
                self.use(content, rank)
        if lacking > len(ready):
            return None
        dropped = set(ready[: max(0, lacking)])
        for content in dropped:
            del self.units[content]
        for position, content in enumerate(chain[first:last], first):
            if content in missing:
                self.units[content] = [rank, -position, 1]
        return set(missing), dropped

    def use(self, content: int, rank: int) -> None:
        """Give a unit a rank."""
        self.units[content][0] = rank if self.ruled else max(self.units[content][0], rank)

    def end(self, i: int, until: int) -> None:
        """Let a request finish."""
        for content in reversed(self.chains[i][: self.used.pop(i, 0)]):
            if content in self.units:
                self.last += not self.ruled
                self.units[content][0] = 1 + 1024 * until if self.ruled else self.last


class Store:
    """The tables of a memory of some units, and calls of the functions of the module as plain Python."""

    def __init__(self, capacity: int, chains: list[list[int]], rule: int = LRU) -> None:
        contents = 1 + max(max(chain) for chain in chains)
        map_of_gpu = as_records(np.zeros(contents, CONTENT))
        map_of_gpu.unit[:] = UNKNOWN
        map_of_gpu.waiting[:] = UNKNOWN
        made = empty_tiers(HostMemory(capacity, 0.0, 0.0), 1, np.zeros((1, contents), CONTENT), len(chains))
        made["tier"]["owner"] = made["tier"].ctypes.data
        self.kept = made  # by address
        prefix = as_records(np.zeros(len(chains), PREFIX))
        prefix.chain[:] = np.cumsum([0, *map(len, chains)])[:-1]
        self.run: Any = SimpleNamespace(
            tier=as_records(made["tier"])[0],
            below=as_records(made["below"])[0],
            stored=as_records(made["stored"])[0],
            drops=as_records(made["drops"])[0],
            tiered=as_records(made["tiered"]),
            chain=np.concatenate(chains),
            prefix=prefix,
            contents=map_of_gpu,
            w=as_records(np.zeros(1, WORKER))[0],
            requests=as_records(np.zeros(len(chains), REQUEST)),
            problem=SimpleNamespace(prefix_unit=1, cache_rule=rule),
            **dict.fromkeys(("pool", "units", "held", "changed")),
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the module."""
        return uncompiled(getattr(store, name))(self.run, *arguments)

    def present(self) -> set[int]:
        """Return the units that are there."""
        return {k for k in range(len(self.run.stored)) if self.run.stored[k].rank > 0}


def test_by_hand() -> None:
    chains = [[0, 1, 2], [3, 4], [0, 5, 6]]
    s = Store(4, chains)
    for i in range(3):
        s.call("begin_use", i)
    assert s.call("offer", 0, 0, 3, 0.0) == 3
    assert s.call("offer", 1, 0, 2, 0.0) == 2  # nothing is busy: the tail of the first request goes
    assert s.present() == {0, 1, 3, 4}
    s.run.stored[1].busy_until = 9.0
    assert s.call("offer", 2, 0, 3, 1.0) == 2  # 0 is part of the offer and 1 is busy: the second request goes
    assert s.present() == {0, 1, 5, 6}
    assert s.run.tier.total_dropped == 3
    s.run.tiered[0].used = 3
    s.call("end_use", 0, 0.0)  # ranks 4 and 5 for 1 and 0; what is dropped has none
    assert [s.run.stored[k].rank for k in (5, 1, 0, 2)] == [3, 4, 5, 0]
    assert s.call("offer", 1, 0, 2, 10.0) == 2
    assert s.present() == {0, 1, 3, 4}  # those of rank 3 go


def test_an_offer_without_room_changes_nothing() -> None:
    s = Store(3, [[0, 1], [2, 3], [4, 5, 6, 7]])
    for i in range(3):
        s.call("begin_use", i)
    s.call("offer", 0, 0, 2, 0.0)
    s.run.stored[0].busy_until = s.run.stored[1].busy_until = 5.0
    assert s.call("offer", 1, 0, 2, 1.0) == UNKNOWN
    assert s.call("offer", 2, 0, 4, 9.0) == UNKNOWN  # more than all of it
    assert s.present() == {0, 1}
    assert s.call("offer", 1, 0, 2, 5.0) == 2
    assert s.present() == {0, 2, 3}


def test_rules_drop_what_is_kept_for_longest_last() -> None:
    chains = [[0, 1], [2, 3], [4, 5], [0, 6], [7, 8], [9, 10, 11]]
    s = Store(6, chains, ENDS)
    untils = (
        FOREVER + 1.0,
        FOREVER / 2 + 2.0,
        3.0,
        FOREVER + 6.0,
        6.0,
    )  # a tool, a person, the end of a session; …

    def begin(i: int, clock: float) -> int:
        s.run.w.clock = clock
        s.call("begin_use", i)
        return int(s.call("offer", i, 0, len(chains[i]), clock))

    def end(i: int) -> None:
        s.run.tiered[i].used = 2
        s.call("end_use", i, untils[i])

    for i in range(3):
        assert begin(i, 0.0) == 2
        end(i)
    assert begin(3, 4.0) == 1  # in place of the end of the session that is over
    assert s.present() == {0, 1, 2, 3, 4, 6}
    assert begin(4, 5.0) == 2  # its rest, and the end of the running request, which the GPU has
    assert s.present() == {0, 1, 2, 3, 7, 8}
    end(3)
    end(4)
    assert begin(5, 7.0) == 3  # another session that is over, and the end of what waits for a person
    assert s.present() == {0, 1, 2, 9, 10, 11}


@pytest.mark.parametrize("seed", range(6))
def test_random_plays(seed: int) -> None:
    """Offers, transfers that end later, loads and ends in random order; the heap is compacted in the longer ones."""
    rng = np.random.default_rng(seed)
    capacity, texts = int(rng.integers(2, 9)), 4
    chains = []
    for i in range(30):
        text, shared, length = int(rng.integers(texts)), int(rng.integers(0, 5)), int(rng.integers(1, 6))
        chains.append([10 * text + j if j < shared else 100 + 10 * i + j for j in range(length)])
    ruled = seed % 2 == 1
    s, m = Store(capacity, chains, ENDS if ruled else LRU), Manager(capacity, chains, ruled)
    done = [0] * len(chains)
    busy: list[
        tuple[set[int], set[int]]
    ] = []  # units of transfers under way: all, and those that are written
    for i in range(len(chains)):
        s.call("begin_use", i)
    refused = 0
    for now in range(600):
        s.run.w.clock = float(now)
        what = rng.random()
        i = int(rng.integers(max(0, now // 20 - 4), 1 + min(len(chains) - 1, now // 20)))
        coming = set().union(*(written for _, written in busy)) if busy else set()
        if what < 0.5 and done[i] < len(chains[i]):
            last = int(rng.integers(done[i] + 1, len(chains[i]) + 1))
            before, expected = s.present(), m.offer(i, done[i], last, coming, now)
            count = s.call("offer", i, done[i], last, float(now))
            if expected is None:
                refused += 1
                assert count == UNKNOWN
                assert s.present() == before
                continue
            written, dropped = expected
            assert count == len(written)
            assert s.present() == (before - dropped) | written
            for content in written:
                s.run.stored[content].ready_at = s.run.stored[content].busy_until = np.inf
            if written:
                busy.append((written, written))
            done[i] = last
        elif what < 0.7:
            found = 0
            while found < len(chains[i]) and chains[i][found] in m.units and chains[i][found] not in coming:
                found += 1
            if found:
                rank = s.call("rank_of", i)
                assert rank == m.rank(i, now)
                loaded = set(chains[i][:found])
                for content in loaded:
                    s.call("use", content, rank)
                    m.use(content, rank)
                    m.units[content][2] += 1
                    s.run.stored[content].busy_until = np.inf
                busy.append((loaded, set()))
                s.run.tiered[i].used = max(s.run.tiered[i].used, found)
                m.used[i] = max(m.used.get(i, 0), found)
        elif what < 0.9 and busy:
            ended, written = busy.pop(int(rng.integers(len(busy))))
            for content in ended:
                m.units[content][2] -= 1
                if content in written:
                    s.run.stored[content].ready_at = float(now)
                if not m.units[content][2]:
                    s.run.stored[content].busy_until = float(now)
        elif what >= 0.95:
            until = int(rng.integers(10**6))
            s.call("end_use", i, float(until))
            m.end(i, until)
        assert s.present() == m.units.keys()
        assert {k: s.run.stored[k].rank for k in m.units} == {k: unit[0] for k, unit in m.units.items()}
        assert s.run.tier.used == len(m.units) <= capacity
        assert s.run.tier.num_drops <= len(s.run.drops)
    assert refused > 0
