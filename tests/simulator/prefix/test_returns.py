"""Cache rules, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import records
from kvgym.errors import WorkloadError
from kvgym.policies.contract.cache_invariants import check_cache
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run
from kvgym.simulator.prefix.returns import best_time, class_of
from kvgym.simulator.prefix.rules import parse_rule
from kvgym.simulator.system import System
from kvgym.simulator.tables import GAP_CLASSES, POOL, WORKER
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import GAP_KINDS, RequestTable

USER, TOOL = map(GAP_KINDS.index, ("user", "tool"))


@pytest.mark.parametrize(
    ("gap", "expected"), [(0, 0), (2**-4, 0), (0.07, 1), (1, 4), (1.1, 5), (1024, 14), (2049, 15), (1e9, 15)]
)
def test_classes_of_gaps_end_at_powers_of_two(gap, expected):
    assert uncompiled(class_of)(gap) == expected


def time_to_live(gaps: list[float], turns: int, dropped: int) -> float:
    """Return the choice of the rule after some gaps, with 10 units of memory, 100 s after the start."""
    pool, worker = records(POOL, 1)[0], records(WORKER, 1)[0]
    for gap in gaps:
        pool.gaps[TOOL * GAP_CLASSES + uncompiled(class_of)(gap)] += 1
    pool.gap_counts[TOOL], pool.turn_counts[TOOL] = len(gaps), turns
    worker.total_dropped_units = dropped
    return float(uncompiled(best_time)(pool, worker, 10, 7.0, TOOL, 100.0))


@pytest.mark.parametrize(
    ("gaps", "turns", "dropped", "expected"),
    [
        ([], 3, 50, 7),  # nothing is known
        ([1, 1, 1, 8], 4, 0, 8),  # nothing is dropped: memory costs nothing, and 8 s find all of them
        # A place lasts 10 * 100 / 50 = 20 s, so a second costs 0.05. Of the times to live 1 s is worth 3 - 4 * 0.05 and
        # 8 s are worth 4 - (3 + 8) * 0.05; as none comes back between, 2 and 4 s are worth less.
        ([1, 1, 1, 8], 4, 50, 8),
        # It lasts 4 s: 1 s is worth 3 - 4 / 4 = 2, and 8 s are worth 4 - 11 / 4.
        ([1, 1, 1, 8], 4, 250, 1),
        # Only one turn in ten comes back, after 8 s, and a place lasts 20 s: 1 - (9 * 8 + 8) / 20 is below 0.
        ([8], 10, 50, 0),
    ],
)
def test_reload_cost_weighs_the_gaps_seen_so_far(gaps, turns, dropped, expected):
    assert time_to_live(gaps, turns, dropped) == expected


def sessions(last: int = 7, kinds: tuple[int, int] = (USER, TOOL)) -> RequestTable:
    """Return turns of sessions A, B and C, each of 4 tokens, which is all that a session has in common.

    Their first turns end at 1, 2 and 3 s. What follows: A: a person, at 20 s; B: a tool, at 10 s; C: nothing. At 5 s D
    comes, which needs half of the memory of 16 tokens.

    Args:
        last: prompt of D, tokens.
        kinds: what A and B wait for.
    """
    rows = [(0, "A", 1), (1, "B", 1), (2, "C", 1), (5, "D", 1), (10, "B", 2), (20, "A", 2)]
    chains = [[(name, j) for j in range(2)] for _, name, _ in rows]
    prompts = np.array([4, 4, 4, last, 5, 5])
    return RequestTable.from_columns(
        arrival_time=[float(row[0]) for row in rows],
        prompt_len=prompts,
        output_len=np.ones(6, int),
        session_id=["ABCD".index(row[1]) for row in rows],
        turn=[row[2] for row in rows],
        think_time=[0, 0, 0, 0, 8, 19],
        gap_kind=[USER, USER, USER, USER, kinds[1], kinds[0]],
        hashes=BlockHashes.from_rows(chains, np.full(6, 4), 2),
    )


@pytest.mark.parametrize(
    ("rule", "hits"),
    [
        # Three sessions leave 12 of 16 tokens; D needs 8, so two units are dropped: those of A, the first to end.
        ("lru", {"B": 4, "A": 0}),
        (
            "fixed:user=100,tool=100",
            {"B": 4, "A": 0},
        ),  # in the order of the deadlines, which is the order of the ends
        ("fixed:tool=100,user=0", {"B": 4, "A": 0}),
        # Only B is not kept. When it comes back it needs a unit more than is free, and A has the earliest deadline.
        ("fixed:tool=0,user=100", {"B": 0, "A": 2}),
        ("clairvoyant", {"B": 4, "A": 4}),  # C does not come back
        ("ends", {"B": 4, "A": 4}),  # which its last turn says
        ("order", {"B": 4, "A": 4}),
    ],
)
@pytest.mark.parametrize("loop", ["open", "closed"])
def test_rules_by_hand(rule: str, hits: dict[str, Any], loop: str) -> None:
    system = System(
        16, UnitBatchTime(), block_size=2, prefix_cache="computed", cache_rule=rule, sessions=loop
    )
    result = kvgym.simulate(system, sessions(), "fcfs", log=True, compiled=False)
    assert result.requests["finish_time"].tolist() == [1, 2, 3, 6, 11, 21]
    found = {round(row["start_time"]): int(row["hit_tokens"]) for row in result.log if row["num_admitted"]}
    assert {"B": found[10], "A": found[20]} == hits


def test_a_pin_has_the_units_that_are_entered_after_the_end():
    """The decision is made ahead: the last unit of a finished request, full with its last token, is entered later."""
    table = RequestTable.from_columns(
        arrival_time=[0.0, 0.0, 9.0],
        prompt_len=[4, 5, 20],
        output_len=[5, 7, 1],
        session_id=[0, 1, 2],
        turn=[1, 1, 1],
        hashes=BlockHashes.from_rows(
            [[(text, j) for j in range(count)] for text, count in (("a", 4), ("b", 6), ("c", 10))],
            np.array([8, 12, 20]),
            2,
        ),
    )
    system = System(
        24,
        UnitBatchTime(),
        progress_on_evict="recompute",
        block_size=2,
        output_kv="next_iteration",
        prefix_cache="scheduled",
        cache_rule="fixed:user=inf",
    )
    simulation, _ = prepare_run(system, table, make_policy("vllm_v1", async_scheduling=True), compiled=False)
    pinned = []
    while not simulation.run(budget=1):
        check_cache(simulation)
        pinned.append(int((simulation.units[0]["pins"] > 0).sum()))
    assert pinned[4:6] == [3, 4]  # at the end of the first request, and one batch later


@pytest.mark.parametrize(
    ("rule", "hits"),
    [
        # D needs three quarters of the memory now, and B waits for a person, A for a tool: four units are dropped.
        ("lru", {"B": 0, "A": 0}),
        ("ends", {"B": 4, "A": 0}),  # C and A, the first to end
        ("order", {"B": 0, "A": 4}),  # C and B
        ("clairvoyant", {"B": 4, "A": 0}),  # C and A, which comes last
    ],
)
def test_ends_and_order_by_hand(rule: str, hits: dict[str, Any]) -> None:
    system = System(16, UnitBatchTime(), block_size=2, prefix_cache="computed", cache_rule=rule)
    result = kvgym.simulate(system, sessions(11, (TOOL, USER)), "fcfs", log=True, compiled=False)
    found = {round(row["start_time"]): int(row["hit_tokens"]) for row in result.log if row["num_admitted"]}
    assert {"B": found[10], "A": found[20]} == hits


def test_rules_that_observe_turns_need_sessions():
    table = RequestTable([0.0], [3], [2])
    for rule in ("reload_cost", "ends", "order", "clairvoyant"):
        system = System(16, UnitBatchTime(), prefix_cache="computed", cache_rule=rule)
        with pytest.raises(WorkloadError, match=f"cache rule '{rule}' observes the turns of sessions"):
            kvgym.simulate(system, table, "fcfs")


def test_numbers_are_in_the_order_of_the_kinds():
    assert parse_rule("fixed:tool=3,user=5")[1] == (5.0, 3.0)
    assert GAP_KINDS == ("user", "tool")
