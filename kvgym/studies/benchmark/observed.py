"""What the process of a candidate holds of a run: the tables of a simulation without what policies may not know.

The caller's process simulates. Before every decision it sends the words of the tables that have changed
(:class:`Shown`); the candidate's process writes them into tables of its own (:class:`Mirror`), which the candidate sees
through the usual views. Restored before every decision, they have whatever the caller's tables have.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.decision import Decision, read_decision
from kvgym.simulator.loop import decide, worker_row
from kvgym.simulator.policy_interface import PolicyDecision, check_memories, policy_memory
from kvgym.simulator.simulation import Simulation
from kvgym.workloads.layout import FEATURE_COLUMNS
from kvgym.workloads.table import RequestTable

HIDDEN = frozenset(
    (
        "workload", "targets", "gap_counts", "gap_sums", "log", "script", "due", "scheduled", "hidden_extras",
        "children", "renewals",
    )
)  # fmt: skip
"""Tables that stay with the caller: true lengths, later arrivals and turns, and records for the metrics."""

LINE = 64
"""Bytes to which tables are aligned."""


class Place(NamedTuple):
    """Where a table is among the bytes that are sent: ``size`` of them from ``start``; none of a hidden table."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class Outline:
    """All that is sent once for a run: the simulation without tables, and the places of these."""

    simulation: Simulation
    places: tuple[Place, ...]


def blank_table(table: RequestTable, needs: frozenset[str]) -> RequestTable:
    """Return requests with the same columns and blank values, but for what a policy with these needs gets in advance.

    Features are shown in advance, as agents read them in one go.
    """
    n = len(table)
    given: dict[str, Any] = {
        name: np.full(n, value)
        for name, value in (
            ("arrival_time", 0.0), ("prompt_len", 1), ("output_len", 1), ("predicted_output_len", 1),
            ("predicted_low", 1), ("predicted_high", 1), ("class_id", 0), ("priority", 0), ("ttft_slo", 1.0),
            ("tbt_slo", 1.0), ("e2e_slo", 1.0), ("client_id", 0),
        )
        if getattr(table, name) is not None
    }  # fmt: skip
    if "features" not in needs:
        given |= {name: np.zeros(n) for name in FEATURE_COLUMNS if getattr(table, name) is not None}
    given |= dict.fromkeys(("session_id", "turn", "think_time", "gap_kind", "job_id"))
    given |= dict.fromkeys(("hashes", "forecasts", "parents"))
    classes = table.classes if "class_rates" in needs else ()
    return replace(table, **given, notes=(), classes=classes)


class Shown:
    """The tables of a simulation as they are shown to a candidate.

    Args:
        simulation: the simulation, which goes on.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._turns = np.zeros_like(simulation.turns)  # only the rows of requests that have arrived
        self._places = tuple(_places(simulation))
        self._now, self._sent = _words(self._places), _words(self._places)
        self._copies = [
            (part, (self._turns if place.name == "turns" else getattr(simulation, place.name)).reshape(-1))
            for place, part in zip(self._places, _parts(self._now, self._places), strict=True)
            if place.size
        ]

    def outline(self) -> Outline:
        """Return what the candidate's process needs to hold the same tables."""
        bare = copy.copy(self.simulation)
        vars(bare).update({place.name: None for place in self._places})
        memories = [policy_memory()] * len(self.simulation.workers)
        vars(bare).update(policies=(), _kernel=None, _memory=memories, _held=None)
        if isinstance(bare, ClusterSimulation):
            vars(bare).update(router=None, events=np.zeros(2), _router_kernels=[None, None])
        bare.table = blank_table(self.simulation.table, self.simulation.needs)
        return Outline(bare, self._places)

    def changes(self) -> bytes:
        """Return the places and the values of the words that have changed since the last call."""
        simulation = self.simulation
        if len(self._turns):
            arrived = simulation.requests["prompt_len"] > 0
            self._turns["row"][arrived] = simulation.turns["row"][arrived]
        for into, table in self._copies:
            into[:] = table.view(np.uint8)
        places = np.flatnonzero(self._now != self._sent)
        values = self._now[places]
        self._sent[places] = values
        return places.tobytes() + values.tobytes()


class Mirror:
    """The tables that a candidate sees, in its own process.

    Attributes:
        simulation: the simulation that has them; it cannot be run.
    """

    def __init__(self, outline: Outline) -> None:
        self.simulation, places = outline.simulation, outline.places
        self._rows: dict[int, NDArray[np.int64]] = {}  # of addresses, by worker
        self._clean, self._used = _words(places), _words(places)
        for place, part in zip(places, _parts(self._used, places), strict=True):
            bare = np.zeros(place.shape, place.dtype)
            table = part.view(place.dtype).reshape(place.shape) if place.size else bare
            setattr(self.simulation, place.name, table)

    def update(self, changes: bytes) -> None:
        """Take over changes, and undo what was written into the tables here."""
        places, values = np.frombuffer(changes, np.int64).reshape(2, -1)
        self._clean[places] = values
        self._used[:] = self._clean

    def consult(self, decision: Decision | None = None) -> Decision:
        """Return what the policy of the worker that decides would do, as plain numbers; nothing executes it.

        Args:
            decision: of a policy in Python; None = call the compiled policy.

        Raises:
            ConfigError: the policy was not reset for this run.
            InvalidDecisionError: the decision is not well-formed.
        """
        simulation: Any = self.simulation
        k = simulation.current
        if decision is not None:
            simulation._enter(decision)
        else:
            if k not in self._rows:
                simulation._load_kernel()
                memory, tables = simulation._memory[k], Run(*simulation.tables_of(k).values())
                check_memories([memory], simulation.policy_name)
                batch_time, params = simulation.batch_time_of(k)
                self._rows[k] = worker_row(
                    tables, batch_time, params, simulation._kernel, memory, compiled=simulation.compiled
                )
            (decide.compiled if simulation.compiled else uncompiled(decide))(self._rows[k])
        made = PolicyDecision(
            *(getattr(simulation, name)[k] for name in ("decision", "admit", "admit_tokens", "evict"))
        )
        return read_decision(made, simulation.active[k, : int(simulation.worker["num_active"])])


def _places(simulation: Simulation) -> Iterator[Place]:
    """Yield the places of all tables."""
    end = 0
    for name in (*RUN_TABLES, *(["last_worker"] if isinstance(simulation, ClusterSimulation) else [])):
        table = getattr(simulation, name)
        size = 0 if name in HIDDEN else table.nbytes
        yield Place(name, table.dtype, table.shape, end, size)
        end += -(-size // LINE) * LINE


def _words(places: Sequence[Place]) -> NDArray[np.int64]:
    """Return zeroed memory for all tables."""
    return np.zeros(sum(-(-place.size // LINE) * LINE for place in places) // 8, np.int64)


def _parts(words: NDArray[np.int64], places: Sequence[Place]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of each table."""
    memory = words.view(np.uint8)
    for place in places:
        yield memory[place.start : place.start + place.size]
