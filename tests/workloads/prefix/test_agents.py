"""Synthetic agents: a job worked by hand, contexts of spawned and forked agents, and jobs in the closed loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvgym
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.metrics.compute import compute_metrics
from kvgym.simulator.system import System
from kvgym.workloads.prefix.prefixes import Prefixes
from kvgym.workloads.table import RequestTable


def plain(n, prompt=8, output=4):
    return RequestTable.from_columns(
        arrival_time=np.arange(float(n)), prompt_len=np.full(n, prompt), output_len=np.full(n, output)
    )


def agents(number=2, levels=(), place=1, max_context=None, **agents):
    turns = {"number": number, "open": place, "gaps": [{"kind": "tool", "median": 2.0}], "agents": agents}
    return Prefixes(levels=levels, turns=turns | {"max_context": max_context}, block=4)


def parents(table):
    return [each.tolist() for each in np.split(table.parents.rows, table.parents.start[1:-1])]


def test_a_job_by_hand():
    # Two agents of two turns each: the first turn, the agents in rounds, the last turn of the first agent.
    table = agents(children=2).apply(plain(8), 0)
    assert table.session_id.tolist() == [0, 1, 2, 1, 2, 0, 6, 7]
    assert table.turn.tolist() == [1, 1, 1, 2, 2, 2, 1, 1]
    assert table.job_id.tolist() == [0] * 6 + [6] * 2
    assert parents(table) == [[], [0], [0], [1], [2], [0, 3, 4], [], [6]]
    assert table.prompt_len.tolist() == [8, 8, 8, 20, 20, 20, 8, 8]
    assert (table.think_time > 0).tolist() == [False] * 3 + [True] * 3 + [False] * 2
    apart = agents(children=2, join=False).apply(plain(8), 0)
    assert parents(apart) == [[], [0], [0], [1], [2], [0], [], [6]]
    deep = agents(children=1, depth=2).apply(plain(6), 0)
    assert parents(deep) == [[], [0], [1], [2], [1, 3], [0, 4]]
    assert deep.session_id.tolist() == [0, 1, 2, 2, 1, 0]


def test_forked_agents_begin_with_what_was_said_and_spawned_ones_with_their_own_prompt():
    levels = [{"count": 1000, "tokens": 8}]
    spawned, forked = (
        agents(children=2, levels=levels, mode=mode).apply(plain(6), 3) for mode in ("spawn", "fork")
    )
    assert spawned.prompt_len.tolist() == [16, 16, 16, 28, 28, 28]
    assert forked.prompt_len.tolist() == [16, 28, 28, 40, 40, 28]
    rows = [forked.hashes.row(i).tolist() for i in range(6)]
    assert rows[1][:5] == rows[2][:5] == rows[5][:5] == rows[0]
    assert rows[3][:8] == rows[1]
    assert len({row[5] for row in (rows[1], rows[2], rows[5])}) == 3
    apart = [spawned.hashes.row(i).tolist() for i in range(3)]
    assert not set(apart[0]) & set(apart[1])  # three of a thousand prompts
    assert len(set(apart[0][:2]) | set(apart[1][:2]) | set(apart[2][:2])) == 6


def test_an_agent_ends_before_a_turn_that_is_too_long():
    # A forked agent has 12 tokens before its first turn; with at most 30, none has a second turn.
    table = agents(number=3, children=1, mode="fork", max_context=30).apply(plain(4), 0)
    assert table.session_id.tolist() == [0, 1, 0, 3]
    assert parents(table) == [[], [0], [0, 1], []]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["spawn", "fork"]),
)
def test_jobs_of_any_shape(seed, children, depth, join, mode):
    levels = [{"count": 2, "tokens": {"kind": "uniform", "low": 1, "high": 9}}]
    shape = agents(
        {"kind": "uniform", "low": 1, "high": 4},
        levels,
        3,
        200,
        children=children,
        depth=depth,
        join=join,
        mode=mode,
    )
    table = shape.apply(plain(60), seed)
    assert ((table.prompt_len + table.output_len) <= 200).all()
    of, row = table.parents.edges
    assert (table.job_id[of] == table.job_id[row]).all()
    roots = table.parents.roots
    assert roots.sum() == len(np.unique(table.job_id))
    first = table.turn == 1
    assert (np.diff(table.parents.start)[first & ~roots] == 1).all()  # the turn that has called it
    assert table.hashes.chain_tokens.tolist() == (table.prompt_len + table.output_len).tolist()


@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_jobs_run_in_the_closed_loop(mode):
    table = agents(3, children=3, place=4, mode=mode).apply(plain(60), 1)
    system = System(600, UnitBatchTime(), sessions="closed", prefix_cache="computed", prefix_block=4)
    m = compute_metrics(kvgym.simulate(system, table, "fcfs", compiled=False))
    assert m["unfinished"] == 0
    assert m["jobs_finished"] == len(np.unique(table.job_id))
    assert m["job_slowdown_mean"] >= 1
