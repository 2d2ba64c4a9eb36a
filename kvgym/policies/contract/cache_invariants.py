"""Invariants of prefix caches, found by searching its tables from scratch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

from kvgym.simulator.tables import BUSY, FINISHED, UNKNOWN


def check_cache(simulation: Any) -> None:
    """Check the prefix caches of the workers that are not in a batch; does nothing without one.

    Args:
        simulation: a :class:`~kvgym.simulator.simulation.Simulation`, or a cluster, before a decision.
    """
    for k in range(len(simulation.workers) if simulation.system.prefix_unit else 0):
        if simulation.workers[k]["phase"] != BUSY:
            _check_worker(simulation, k)


def _check_worker(simulation: Any, k: int) -> None:
    unit, size = simulation.system.prefix_unit, simulation.system.block_size
    worker, pool, capacity = simulation.workers[k], simulation.pool[k], simulation.problem[k]["kv_capacity"]
    units, contents = simulation.units[k], simulation.contents[k]
    prefix, chain, held = simulation.prefix, simulation.chain, simulation.held
    active = simulation.active[k][: int(worker["num_active"])]

    def chain_of(i: int) -> list[int]:
        start, length = int(prefix["chain"][i]), int(prefix["length"][i])
        return list(map(int, chain[start : start + length]))

    copies: dict[int, list[int]] = {}
    for content, first in enumerate(contents["unit"].tolist()):
        ring: list[int] = []
        b = first
        while b != UNKNOWN and (not ring or b != first):
            ring.append(b)
            assert units["content"][b] == content
            assert units["copy_before"][units["copy_after"][b]] == b
            b = int(units["copy_after"][b])
        if ring:
            copies[content] = ring
    in_map = [b for ring in copies.values() for b in ring]
    assert len(set(in_map)) == len(in_map)

    holders: Counter[int] = Counter()
    own = private = 0
    for slot in active:
        i, kv = int(slot["request_id"]), int(slot["num_kv_tokens"])
        count = int(prefix["num_units"][i])
        start = int(prefix["held"][i])
        mine = held[start : start + count].tolist()
        assert [int(units["content"][b]) for b in mine] == chain_of(i)[:count]
        assert count * unit <= kv
        holders.update(mine)
        memory = -(-kv // size) * size
        own += memory
        private += memory - count * unit
    assert {b: int(units["holders"][b]) for b in in_map} == {b: holders[b] for b in in_map}
    assert set(holders) <= set(in_map)

    cached, b, before = [], int(pool["head"]), UNKNOWN
    while b != UNKNOWN:
        assert units["before"][b] == before
        cached.append(b)
        before, b = b, int(units["after"][b])
    assert pool["tail"] == before
    pins = _check_pins(simulation, k)
    assert {b: int(units["pins"][b]) for b in in_map} == {b: pins[b] for b in in_map}
    assert sorted(cached) == sorted(b for b in in_map if not holders[b] and not pins[b])
    if simulation.system.prefix_cache == "radix":
        before_it = {later: c for i in range(len(prefix)) for c, later in itertools.pairwise(chain_of(i))}
        assert all(len(ring) == 1 for ring in copies.values())
        for a, b in itertools.pairwise([UNKNOWN, *cached]):  # the units of a node, from the last to the first
            assert units["ends"][b] or (
                a != UNKNOWN and before_it[units["content"][a]] == units["content"][b]
            )
    free = sum(not holders[b] for b in in_map)
    assert pool["num_cached"] == free
    assert worker["kv_allocated"] == private + unit * len(holders)
    assert worker["kv_shared"] == own - worker["kv_allocated"]
    assert worker["kv_cached"] == unit * free
    assert worker["kv_allocated"] + unit * free <= capacity

    total = {content: sum(holders[b] for b in ring) for content, ring in copies.items()}
    for i in range(len(prefix)):
        contents_of = chain_of(i)
        for earlier, later in itertools.pairwise(contents_of):
            if later in copies:
                assert earlier in copies
                assert total[earlier] >= total[later]
    row = worker["queue_head"]
    while row != UNKNOWN:
        r, p = simulation.requests[row], prefix[row]
        known = int(r["num_kv_tokens"] + r["num_prefill_left"])
        if p["most"] > 0:
            fresh = 0
            while fresh < min((known - 1) // unit, int(p["length"])) and chain_of(row)[fresh] in copies:
                fresh += 1
            assert p["num_units"] == fresh
            assert r["num_kv_tokens"] == fresh * unit
        row = int(r["queue_next"])


def _check_pins(simulation: Any, k: int) -> Counter[int]:
    """Check the list of pins of a worker; return how many of them each unit has."""
    pool, prefix, units = simulation.pool[k], simulation.prefix, simulation.units[k]
    found: Counter[int] = Counter()
    i, before, due, count = int(pool["first_pin"]), UNKNOWN, -math.inf, 0
    while i != UNKNOWN:
        row = prefix[i]
        assert simulation.requests[i]["status"] == FINISHED
        assert row["before"][0] == before
        assert row["deadline"] >= due
        mine = simulation.held[int(row["held"]) :][: int(row["left"])].tolist()
        chain = simulation.chain[int(row["chain"]) :][: len(mine)].tolist()
        assert mine
        assert units["content"][mine].tolist() == chain
        found.update(mine)
        before, due, i, count = i, row["deadline"], int(row["after"][0]), count + 1
    assert pool["last_pin"] == before
    assert pool["num_pins"] == count
    return found
