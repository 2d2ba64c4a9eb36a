"""Tables are declared once: a field of a named tuple is a table of every simulation, cluster and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated, Any, NamedTuple

import numpy as np

from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.tables import FRONT, SPARSE, WHOLE, Table, declared, opener
from kvgym.envs.scheduling.memory import TABLES
from kvgym.envs.scheduling.tables import Env
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.policy_interface import PolicyMemory

ADDING = """
from importlib.machinery import SourceFileLoader

ADDED = {
    "kvgym.simulator.boundary": {
        "active": 'own: Annotated[Any, Table("i4", "slots")]',
        "requests": 'common: Annotated[Any, Table("f8", "num_requests", shared=True)]',
    },
    "kvgym.envs.scheduling.tables": {"episode": 'extra: Annotated[Any, Table("i8", "window")]'},
}

def get_code(self, name, usual=SourceFileLoader.get_code):
    if name not in ADDED:
        return usual(self, name)
    source = self.get_source(name)
    for field, line in ADDED[name].items():
        assert source.count(f"    {field}: Annotated[") == 1
        source = source.replace(f"    {field}: Annotated[", f"    {line}\\n    {field}: Annotated[")
    return compile(source, self.path, "exec")

SourceFileLoader.get_code = get_code
"""
"""Adds a table that each worker has, one that workers share, and one of environments."""

USING = """

import kvgym
from kvgym.compiling.kernel import uncompiled
from kvgym.envs import ServingEnv
from kvgym.envs.scheduling.opening import open_environment
from kvgym.simulator.simulation import Simulation

env = ServingEnv(scenario="mc-sf-model-2", num_requests=8, queue_window=3)
env.reset(seed=0)
total = sum(env.step(int(env.action_masks().argmax()))[1] for _ in range(3))
table, system = env.episodes.slots[0].table, env.episodes.system
pair = system.replicate(2)
print([total, *(kvgym.simulate(s, table, "fcfs").requests["finish_time"].sum() for s in (system, pair))])
"""

CHECKING = """
simulation = Simulation(system, table)
assert simulation.own.shape == simulation.active.shape and simulation.common.shape == (len(table),)
block = env.episodes.slots[0].block
e = uncompiled(open_environment)(env.episodes.control[0])
e.extra[:], e.run.own[:], e.run.common[:] = 1, 2, 3
assert block["extra"].tolist() == [1] * 3 and (block["own"] == 2).all() and (block["common"] == 3).all()
assert e.run.own.shape == block["active"].shape and e.run.common.shape == block["requests"].shape
assert (block["targets"] != 2).all() and (block["requests"]["arrival_time"] == table.arrival_time).any()
"""


def output_of(program: str) -> str:
    """Run a program as plain Python and return its output."""
    plain = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_line_adds_a_table_everywhere():
    """The table has no effect on runs or episodes."""
    assert output_of(ADDING + USING + CHECKING) == output_of(USING)


def test_tables_are_ordered_by_what_is_touched():
    """Tables used as a whole are adjacent, so that one range of memory is fetched; the rest is in field order."""
    declared_first = [*declared(Run), *declared(Env), *declared(PolicyMemory, "rule_")]
    touched = [table.touched for table in TABLES.values()]
    assert touched == sorted(touched)
    assert set(touched) == {WHOLE, FRONT, SPARSE}
    for part in (WHOLE, FRONT, SPARSE):
        names = [name for name, table in TABLES.items() if table.touched == part]
        assert names == [name for name in declared_first if name in names]
    assert [*RUN_TABLES] == ["workers" if field == "w" else field for field in Run._fields]


class Pair(NamedTuple):
    one: Annotated[Any, Table("i8")]
    free: Any
    many: Annotated[Any, Table("f8", "n", touched=FRONT, name="numbers")]


def test_openers_are_made_of_declarations():
    tables = declared(Pair, "my_")
    assert list(tables) == ["my_one", "my_numbers"]
    one, many = tables.values()
    values = [one.opening("where[0]", "where[1]"), "free + 1", many.opening("where[2]", "where[3]")]
    open_pair = uncompiled(opener(Pair, "def open_pair(where, free):", "", values))
    number, numbers = np.array([7]), np.arange(3.0)
    pair = open_pair(np.array([number.ctypes.data, 9, numbers.ctypes.data, 2]), 4)
    assert (pair.one, pair.free, pair.many.tolist()) == (7, 5, [0, 1])
    rows = [table.opening_rows("where[0]", "2", "where[1]") for table in tables.values()]
    open_rows = uncompiled(opener(Pair, "def open_rows(where):", "", [rows[0], "0", rows[1]]))
    pair = open_rows(np.array([np.arange(4.0).ctypes.data, 2]))
    assert (pair.one.shape, pair.many.shape) == ((2,), (2, 2))
