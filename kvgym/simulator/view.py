"""Views for policies in plain Python: read-only columns of a worker, limited to the declared needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.compiling.kernel import uncompiled
from kvgym.errors import InformationError, shown
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.decision import Decision, read_decision
from kvgym.simulator.policy_interface import PolicyDecision, PolicyMemory, PolicyView
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.tables import OPEN, UNKNOWN
from kvgym.workloads.layout import FEATURE_COLUMNS

# Columns that exist only for policies with the given need.
_GUARDED = {
    "output_len": ("output_len", "true_length"),
    "predicted_output_len": ("predicted_len", "predicted_length"),
    "predicted_low": ("predicted_low", "length_interval"),
    "predicted_high": ("predicted_high", "length_interval"),
    "class_id": ("class_id", "class"),
    "ttft_slo": ("ttft_slo", "slo"),
    "tbt_slo": ("tbt_slo", "slo"),
    "e2e_slo": ("e2e_slo", "slo"),
    "client_id": ("client_id", "client"),
    "renewed_output_len": ("renewed_len", "renewed_length"),
    "predicted_tenths": ("tenths", "length_distribution"),
}

# The same of columns that only the table of requests has.
_OF_TABLE = {name: (name, "features") for name in FEATURE_COLUMNS}

# The same of the tables of sessions; all of them have the need "session" as well.
_OF_SESSIONS = {
    "session_id": ("session_id", "session"),
    "turn": ("turn", "session"),
    "previous": ("previous", "session"),
    "previous_worker": ("previous", "session"),
    "gap_kind": ("gap_kind", "class"),
    "next_kind": ("next_kind", "class"),
    "next_prompt_len": ("next_prompt", "true_length"),
    "next_think_time": ("next_think", "true_length"),
}


class RequestColumns:
    """Columns of some requests, as read-only arrays of equal length m.

    Always: ``request_id`` int64, ``arrival_time`` float64 seconds, ``prompt_len`` tokens, ``priority``,
    ``num_evictions``, ``num_output_tokens`` (generated), ``num_prefill_left`` (tokens still to prefill),
    ``num_kv_tokens`` (KV held; of a waiting request: KV that comes back on admission). With the matching
    need: ``predicted_output_len`` (predicted_length), ``predicted_low`` and ``predicted_high``
    (length_interval), ``output_len`` (true_length), ``class_id`` (class), ``ttft_slo``, ``tbt_slo`` and ``e2e_slo``
    (slo), ``client_id`` (client), ``renewed_output_len`` (renewed_length), ``predicted_tenths`` (m, 10)
    (length_distribution), ``feature_0`` to ``feature_3`` (features; 0 where requests have fewer).

    With the need ``session``: ``session_id``, ``turn``, ``previous`` (request of the turn before, -1 for a first turn)
    and ``previous_worker`` (its worker, -1 for a first turn). With the need ``class`` as well: ``gap_kind`` and
    ``next_kind``, what the times before and after the turn are, an index of :data:`~kvgym.workloads.table.GAP_KINDS`;
    -1 = unknown, as ``next_kind`` is until the turn has finished. With ``true_length`` as well: ``next_prompt_len`` of
    the turn that follows, 0 if none does, and ``next_think_time``, seconds until it, NaN if none does.
    """

    def __init__(self, simulation: Any, ids: NDArray[np.int64], slots: NDArray[Any] | None) -> None:
        """Wrap the given request ids; ``slots`` are their rows of the active set, if active."""
        self._simulation = simulation
        self._slots = slots
        self.request_id = ids
        self.request_id.setflags(write=False)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.request_id)

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises:
            InformationError: the policy did not declare the need for it.
            AttributeError: there is no such column.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        source = name
        guarded = {**_GUARDED, **_OF_TABLE, **_OF_SESSIONS}
        if name in guarded:
            source, need = guarded[name]
            for asked in (need, "session") if name in _OF_SESSIONS else (need,):
                if asked not in self._simulation.needs:
                    raise InformationError(
                        f"policy {shown(self._simulation.policy_name)} read {shown(name)} but declares "
                        f"needs = {sorted(self._simulation.needs)}; add {shown(asked)} to PolicyInfo.needs"
                    )
        if self._slots is not None and name in _IN_SLOTS:
            column = self._slots[source].copy()
        elif name in _ALWAYS or name in _GUARDED:
            column = self._column(source)
        elif name in _OF_TABLE:
            turns, given = self._simulation.turns, getattr(self._simulation.table, name)
            rows = turns["row"][self.request_id] if len(turns) else self.request_id
            column = np.zeros(len(self)) if given is None else given[rows]
        elif name in _OF_SESSIONS:
            column = self._simulation.sessions[source][self.request_id]
            if name == "previous_worker":
                column = np.where(column == UNKNOWN, UNKNOWN, self._simulation.requests["worker"][column])
        else:
            raise AttributeError(f"no request column {shown(name)}; valid: {', '.join([*_ALWAYS, *guarded])}")
        column.setflags(write=False)
        found: NDArray[Any] = column
        return found

    def _column(self, source: str) -> NDArray[Any]:
        """Return a column of the tables of requests; of a fact that no request carries, its blank value."""
        requests, extras = self._simulation.requests, self._simulation.extras
        if source in requests.dtype.names:
            return np.asarray(requests[source][self.request_id])
        if len(extras):
            return np.asarray(extras[source][self.request_id])
        shape = (len(self), *extras.dtype[source].shape)
        return np.full(shape, np.inf if source == "e2e_slo" else UNKNOWN, extras.dtype[source].base)


_ALWAYS = (
    "request_id",
    "arrival_time",
    "prompt_len",
    "priority",
    "num_evictions",
    "num_output_tokens",
    "num_prefill_left",
    "num_kv_tokens",
)
_IN_SLOTS = ("num_output_tokens", "num_prefill_left", "num_kv_tokens")


def _waiting(simulation: Any, worker: int) -> RequestColumns:
    """Return the waiting requests of a worker, in queue order."""
    ids = np.empty(int(simulation.workers["num_waiting"][worker]), np.int64)
    following = simulation.requests["queue_next"]
    i = int(simulation.workers["queue_head"][worker])
    for j in range(len(ids)):
        ids[j] = i
        i = int(following[i])
    return RequestColumns(simulation, ids, None)


def _active(simulation: Any, worker: int) -> RequestColumns:
    """Return the active requests of a worker, in order of activation."""
    slots = simulation.active[worker, : int(simulation.workers["num_active"][worker])]
    return RequestColumns(simulation, slots["request_id"].astype(np.int64), slots)


def simulation_of(view: SystemView | ClusterView) -> Any:
    """Return the simulation behind a view. It holds what policies and routers may not observe: for tools alone."""
    return view._simulation


class SystemView:
    """A worker at an iteration boundary, read-only.

    Attributes:
        clock: seconds.
        iteration: batches executed so far.
        kv_capacity: tokens of whole blocks.
        kv_tokens: KV tokens of the active set between iterations.
        kv_allocated: memory they take, tokens of whole blocks.
        block_size: tokens of a block; see :meth:`allocated`.
        prefill_emits: whether completing a prefill also generates output token 1.
        prefill_writes: whether it also writes the KV of that token.
        num_waiting: requests in the queue.
        num_active: requests in the active set.
    """

    def __init__(self, simulation: Any) -> None:
        """Wrap a :class:`~kvgym.simulator.simulation.Simulation`, or tables of the same shape."""
        self._simulation = simulation

    @property
    def _worker(self) -> int:
        """Row of the tables that belongs to the worker that decides."""
        return getattr(self._simulation, "current", 0)

    @property
    def role(self) -> str:
        """``"mixed"``, ``"prefill"`` or ``"decode"``."""
        return ("mixed", "prefill", "decode")[int(self._simulation.worker["role"])]

    @property
    def clock(self) -> float:
        """Seconds since the start of the run."""
        return float(self._simulation.worker["clock"])

    @property
    def iteration(self) -> int:
        """Batches executed so far."""
        return int(self._simulation.worker["iteration"])

    @property
    def kv_capacity(self) -> int:
        """KV memory, tokens of whole blocks."""
        return int(self._simulation.problem[self._worker]["kv_capacity"])

    @property
    def block_size(self) -> int:
        """Tokens of a block: memory is allocated in whole blocks."""
        return int(self._simulation.problem[self._worker]["block_size"])

    def allocated(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """Return the memory that requests take, in tokens of whole blocks.

        The sum of these, not of tokens, must fit into :attr:`kv_capacity`. The memory that the active set needs if
        all decode is ``view.allocated(view.active.num_kv_tokens + 1).sum()``.

        Args:
            tokens: KV tokens of each request, whole numbers ≥ 0, of any shape.
        """
        size = self.block_size
        blocks: NDArray[np.int64] = -(-np.asarray(tokens, np.int64) // size)
        return blocks * size

    @property
    def kv_tokens(self) -> int:
        """KV tokens of the active set between iterations."""
        return int(self._simulation.worker["kv_tokens"])

    @property
    def kv_allocated(self) -> int:
        """KV memory in use between iterations, tokens of whole blocks."""
        return int(self._simulation.worker["kv_allocated"])

    @property
    def prefill_emits(self) -> bool:
        """Whether the iteration that completes a prefill also generates output token 1."""
        return bool(self._simulation.problem[self._worker]["prefill_emits"])

    @property
    def prefill_writes(self) -> bool:
        """Whether it also writes the KV of that token, 1 token more; see ``output_kv`` of the system."""
        return bool(self._simulation.problem[self._worker]["prefill_writes"])

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return int(self._simulation.worker["num_waiting"])

    @property
    def num_active(self) -> int:
        """Requests in the active set."""
        return int(self._simulation.worker["num_active"])

    @property
    def waiting(self) -> RequestColumns:
        """The waiting requests, in queue order."""
        return _waiting(self._simulation, self._worker)

    @property
    def active(self) -> RequestColumns:
        """The active requests, in order of activation."""
        return _active(self._simulation, self._worker)

    @property
    def finished(self) -> NDArray[np.int64]:
        """Ids of the requests that finished since the last decision."""
        count = int(self._simulation.worker["num_finished"])
        return self._simulation.finished[self._worker, :count].astype(np.int64)

    @property
    def left(self) -> NDArray[np.int64]:
        """Ids of the requests that a router moved away since the last decision, see :mod:`kvgym.policies.routing`."""
        count, queued = int(self._simulation.worker["num_left"]), self._simulation.queued[self._worker]
        return queued[::-1][:count].astype(np.int64)

    def rule_view(self, worker: int) -> PolicyView:
        """Return the view of a worker's kernel, for uncompiled code (:func:`kvgym.compiling.kernel.uncompiled`).

        Args:
            worker: its index.
        """
        return self._rule_view(self._simulation.python_tables(), worker)

    def _rule_view(self, tables: dict[str, Any], worker: int) -> PolicyView:
        batch_time, batch_params = self._simulation.batch_time_of(worker)
        return PolicyView(
            tables["problem"][worker],
            tables["workers"][worker],
            tables["requests"],
            tables["active"][worker],
            tables["queued"][worker],
            tables["finished"][worker],
            PrefixCache(
                *(
                    tables[name] if RUN_TABLES[name].shared else tables[name][worker]
                    for name in PrefixCache._fields
                )
            ),
            tables["sessions"],
            tables["extras"],
            tables["load"][worker],
            uncompiled(batch_time),
            batch_params,
            tables["drafts"][worker],
        )

    def consult(self, kernel: Any, memory: PolicyMemory) -> Decision:
        """Run a compiled policy's kernel as plain Python and return its decision.

        Args:
            kernel: the policy's kernel.
            memory: its parameters and state; the call may change the state.
        """
        tables, n = self._simulation.python_tables(), self._worker
        view = self._rule_view(tables, n)
        made = PolicyDecision(*(tables[name][n] for name in ("decision", "admit", "admit_tokens", "evict")))
        uncompiled(kernel)(view, made, memory)
        return read_decision(made, view.active[: self.num_active])


class ClusterView:
    """A cluster when a request must be routed, or when requests may be moved; read-only.

    Attributes:
        request_id: the request to route; UNKNOWN when requests may be moved.
        candidates: workers it may go to by its role; in a fleet those that are ready.
        allowed: workers it may go to: these, or with ``local_prefill`` of the system all that are ready.
        boundary: the worker that has just ended a batch or a wait, when requests may be moved; else None.
    """

    def __init__(self, simulation: Any, request_id: int, workers: range, boundary: int | None = None) -> None:
        """Wrap a :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation`."""
        self._simulation = simulation
        self.request_id = request_id
        self._workers = workers
        is_open = getattr(simulation, "open_places", ())
        everywhere = range(len(simulation.workers)) if len(getattr(simulation, "stage", ())) else workers

        def ready(given: range) -> Sequence[int]:
            return [k for k in given if is_open[k] == OPEN] if len(is_open) else given

        self.candidates, self.allowed = ready(workers), ready(everywhere)
        self.boundary = boundary

    @property
    def span(self) -> tuple[int, int]:
        """The first of the workers of the request's role, and their end (exclusive)."""
        return self._workers.start, self._workers.stop

    def waiting(self, worker: int) -> RequestColumns:
        """The waiting requests of a worker, in queue order.

        Raises:
            InformationError: the router does not see the present.
        """
        self._check_present()
        return _waiting(self._simulation, worker)

    def active(self, worker: int) -> RequestColumns:
        """The active requests of a worker, in order of activation, as of before a running batch.

        Raises:
            InformationError: the router does not see the present.
        """
        self._check_present()
        return _active(self._simulation, worker)

    def _check_present(self) -> None:
        if len(self._simulation.sent):
            raise InformationError(
                "only a router with router_view = exact sees the requests of a worker; columns have what others know"
            )

    @property
    def clock(self) -> float:
        """Seconds since the start of the run."""
        return float(self._simulation.tracker[0]["clock"])

    @property
    def session(self) -> int:
        """Number of the request's session, from 0; UNKNOWN without sessions, and when requests may be moved."""
        return int(self._simulation.router_view(self).session)

    @property
    def previous_worker(self) -> int:
        """The worker of the session's previous request, UNKNOWN if there is none.

        For a request that is handed over it is the worker that decoded the previous one.
        """
        return int(self._simulation.router_view(self).previous)

    @property
    def hits(self) -> NDArray[np.int64]:
        """Tokens of the request that each worker has in its prefix cache, int64 (r,), as the router knows it.

        These are the prompt tokens that it need not compute, of a request that is handed over the KV tokens that need
        not be transferred. With a ``cache_staleness`` of the system, or scrapes, late changes are not known yet.
        """
        found: NDArray[np.int64] = self._simulation.router_view(self).hits()
        return found

    @property
    def missing(self) -> NDArray[np.int64]:
        """Tokens of the request that each worker lacks: to be computed or transferred, int64 (r,)."""
        columns = self.request
        found: NDArray[np.int64] = columns.num_kv_tokens[0] + columns.num_prefill_left[0] - self.hits
        return found

    @property
    def request(self) -> RequestColumns:
        """The request, as one row of columns, limited to the needs of the policy."""
        return RequestColumns(self._simulation, np.array([self.request_id], np.int64), None)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of all workers, shape (r,), as the router knows them.

        Args:
            name: ``num_waiting``, ``num_active``, ``kv_tokens``, ``kv_allocated`` (memory in use, tokens of whole
                blocks), ``kv_capacity``, ``outstanding_requests`` or ``outstanding_tokens`` (prompt and predicted
                output tokens of unfinished requests); ``batch_base``, ``batch_decode``, ``batch_context`` and
                ``batch_prefill`` (approximate seconds of its batches, see
                :class:`~kvgym.simulator.batch_time.RoughFigures`).

        Raises:
            AttributeError: another name.
        """
        if name in _FIXED_COLUMNS:
            column = self._simulation.problem[name].copy()
        elif name in _CLUSTER_COLUMNS:
            column = self._simulation.known_workers(self)[name].copy()
        else:
            raise AttributeError(
                f"no worker column {shown(name)}; valid: {', '.join((*_FIXED_COLUMNS, *_CLUSTER_COLUMNS))}"
            )
        column.setflags(write=False)
        found: NDArray[Any] = column
        return found


_FIXED_COLUMNS = ("kv_capacity", "batch_base", "batch_decode", "batch_context", "batch_prefill")
_CLUSTER_COLUMNS = (
    "num_waiting",
    "num_active",
    "kv_tokens",
    "kv_allocated",
    "outstanding_requests",
    "outstanding_tokens",
)
