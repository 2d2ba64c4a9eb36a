"""The interface of compiled policies: view, decision and memory of a kernel.

A kernel is a function of three named tuples of tables and reads their fields by name; compiled code passes them by
address (:mod:`kvgym.compiling.references`)::

    @policy_kernel
    def kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None: ...

It is called at every iteration boundary of a worker. By default the decision runs all active requests and admits none.
See :mod:`kvgym.kernels` for building blocks and :mod:`kvgym.simulator.tables` for the fields of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
from numba import types
from numpy.typing import ArrayLike, NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import Kernel, jit_expand, kernel
from kvgym.compiling.references import Reference
from kvgym.compiling.tables import Table, declared, opener
from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, Run, cache_tables
from kvgym.simulator.drafts.tables import DRAFTS
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.sessions import SESSION
from kvgym.simulator.tables import DECISION, LOAD, PROBLEM, REQUEST, SLOT, WORKER
from kvgym.workloads.layout import EXTRA
from kvgym.workloads.table import RequestTable


class PolicyView(NamedTuple):
    """The view of a kernel: n requests in the run, at most A active. Read-only, with one exception.

    Attributes:
        problem: PROBLEM record, the settings of the run (``kv_capacity`` in tokens, ``block_size``,
            ``prefill_emits`` …).
        worker: WORKER record (``clock`` in seconds, ``kv_allocated`` between iterations, ``num_active``, ``queue_head``
        …).
        requests: REQUEST (n,), by request id; rows of requests that have not arrived are blank, and so are the
            columns that the policy did not declare to need.
        active: SLOT (A,), the active set in order of activation; the first ``worker.num_active`` rows count.
            The exception: ``active[k].planned`` belongs to the decision. It is the number of tokens that slot
            ``k`` processes in the next iteration, read where ``decision.record.explicit`` is 1. UNKNOWN =
            all, which is its value when the kernel is called.
        queued: int32 (2n,), ids of the requests that joined the queue since the last decision, by arrival or by
            eviction, in order; the first ``worker.num_queued`` entries count. Requests that a router has
            moved away are listed backwards from its end, see :func:`kvgym.kernels.left_request`.
        finished: int32 (A,), ids of the requests that finished since the last decision; the first
            ``worker.num_finished`` entries count.
        cache: the :class:`~kvgym.simulator.prefix.cache.PrefixCache`, for
            :func:`kvgym.simulator.apply_decision.shared_by`; its tables are empty if ``problem.prefix_unit`` is 0.
        sessions: SESSION (n,), by request id: the session of each request that has arrived; empty without the need
            ``session``.
        extras: EXTRA (n,), by request id: ``client_id``, ``e2e_slo``, ``renewed_len`` and ``tenths``, see
            :class:`~kvgym.workloads.forecasts.Forecasts`; blank until the request arrives, and in columns that the
            policy did not declare to need. It has no rows if no request carries what the policy needs of it.
        load: LOAD record, scratch space for the load of a batch, for which ``batch_time`` returns the duration.
        batch_time: the worker's batch-time kernel, ``(load, batch_params) -> seconds``.
        batch_params: float64 (k,), its parameters.
        drafts: DRAFTS (A,), the drafts of the active requests, parallel to ``active``; empty if ``problem.drafts`` is
            0, as without speculation. See :func:`kvgym.kernels.decode_tokens`.
    """

    problem: Any
    worker: Any
    requests: Any
    active: Any
    queued: Any
    finished: Any
    cache: Any
    sessions: Any
    extras: Any
    load: Any
    batch_time: Any
    batch_params: Any
    drafts: Any


class PolicyDecision(NamedTuple):
    """The decision of a kernel, to be written: evict, then admit, then run.

    Attributes:
        record: DECISION record: ``act`` (RUN or WAIT), ``explicit`` (1: token counts are read), ``num_admit``,
            ``num_evict``, ``num_put_back`` (a count for the metrics), and ``wait_until`` (with WAIT: seconds,
            inf = the next arrival), and ``ahead`` (1: made while the last batch ran, see
            :mod:`kvgym.simulator.kernels.ahead`).
        admit: int32 (A,), ids of the waiting requests to admit, in order; ``num_admit`` entries count.
        admit_tokens: int32 (A,), tokens that each of them processes in the next iteration, read where
            ``explicit`` is 1; UNKNOWN = all.
        evict: int32 (A,), slots to evict, in order; ``num_evict`` entries count.
    """

    record: Any
    admit: Any
    admit_tokens: Any
    evict: Any


class PolicyMemory(NamedTuple):
    """The memory of a kernel: hyperparameters, and values kept between the decisions of a run.

    Attributes:
        params: float64 (k,), hyperparameters; read-only.
        state: int64 (k,), whole numbers.
        reals: float64 (k,), real numbers.
        profile: int32 (k,), mostly the KV tokens in use at future iterations,
            :mod:`kvgym.simulator.kernels.future_memory`.
    """

    params: Annotated[NDArray[np.float64], Table("f8", "params")]
    state: Annotated[NDArray[np.int64], Table("i8", "state")]
    reals: Annotated[NDArray[np.float64], Table("f8", "reals")]
    profile: Annotated[NDArray[np.int32], Table("i4", "profile")]


class MemoryRoom(NamedTuple):
    """Sizes of the run that a policy's memory was prepared for; kernels index the memory unchecked.

    Attributes:
        kv_capacity: KV memory of the worker, tokens of whole blocks.
        max_requests: most requests.
        block_size: tokens of a block.
        num_classes: number of classes with known rates.
        needs: what the policy must observe.
    """

    kv_capacity: int
    max_requests: int
    block_size: int
    num_classes: int
    needs: frozenset[str]


MEMORY_DTYPES = tuple(np.dtype(table.dtype) for table in declared(PolicyMemory).values())
"""Dtypes of the arrays of a memory; each has one dimension and is contiguous."""


def policy_memory(
    params: ArrayLike = (0.0,),
    *,
    state: ArrayLike = (0,),
    reals: ArrayLike = (0.0,),
    profile: ArrayLike = (0, 0),
) -> PolicyMemory:
    """Return a memory with the given numbers, as arrays of the dtypes that kernels expect."""
    given = (params, state, reals, profile)
    return PolicyMemory(
        *(guarded(np.ascontiguousarray(a, dtype)) for a, dtype in zip(given, MEMORY_DTYPES, strict=True))
    )


def check_room(
    room: MemoryRoom | None,
    policy: str,
    capacity: int,
    block: int,
    table: RequestTable,
    needs: frozenset[str],
) -> None:
    """Check that the memory of a policy was prepared for a run, or for one at least as large.

    Args:
        room: what it was prepared for; None: nothing.
        policy: name of the policy.
        capacity: KV memory of the worker, tokens of whole blocks.
        block: tokens of a block.
        table: the requests.
        needs: what the policy may observe in the run.

    Raises:
        ConfigError: it was prepared for another run, so that compiled code would access it out of bounds.
    """
    if room is None:
        raise ConfigError(f"policy {shown(policy)} has not been reset for this run; reset it first")
    n = len(table)
    fits = (room.kv_capacity, room.block_size) == (capacity, block) and room.max_requests >= n
    if "class_rates" in room.needs:
        fits = fits and room.num_classes >= len(table.classes)
    if not (fits and room.needs <= needs):
        raise ConfigError(
            f"policy {shown(policy)} was reset for another run ({room.max_requests} requests, "
            f"kv_capacity {room.kv_capacity}, block_size {room.block_size}) than this one ({n} requests, "
            f"{capacity}, {block}, needs {', '.join(sorted(needs)) or 'nothing'}); reset it with the "
            "SystemInfo of this run"
        )


def check_memories(memories: Sequence[PolicyMemory], policy: str) -> PolicyMemory:
    """Check that compiled code can open the memories of a policy, which it gets by address.

    Returns:
        The first of them; a memory of zeros if there is none.

    Raises:
        ConfigError: an array has another dtype or shape.
    """
    array: Any
    for memory in memories:
        for name, array, kind in zip(memory._fields, memory, MEMORY_DTYPES, strict=True):
            if array.dtype != kind or array.ndim != 1 or not array.flags.c_contiguous:
                raise ConfigError(
                    f"policy {shown(policy)}: its {name} array has dtype {array.dtype} and shape {array.shape}; "
                    f"expected {kind}, one dimension, contiguous"
                )
    return memories[0] if memories else policy_memory()


@jit_expand
def view_of(run: Run, batch_time: Any, batch_params: Any) -> PolicyView:
    """Return the view of a worker's kernel: its tables and its batch-time model."""
    return PolicyView(
        run.problem,
        run.w,
        run.requests,
        run.active,
        run.queued,
        run.finished,
        cache_tables(run),
        run.sessions,
        run.extras,
        run.load,
        batch_time,
        batch_params,
        run.drafts,
    )


@jit_expand
def decision_of(run: Run) -> PolicyDecision:
    """Return the tables that the kernel of a worker writes its decision to."""
    return PolicyDecision(run.decision, run.admit, run.admit_tokens, run.evict)


_DECIDED = {"decision": "record"} | {name: name for name in ("admit", "admit_tokens", "evict")}

deciding: Callable[[Run, PolicyDecision], Run] = opener(
    Run,
    "def deciding(run, decision):",
    "Return the tables of a run with another decision.",
    [f"decision.{_DECIDED[name]}" if name in _DECIDED else f"run.{name}" for name in Run._fields],
)


def table_type(dtype: Any, dimensions: int = 1) -> Any:
    """Return the Numba type of a contiguous table."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), dimensions, "C")


def tuple_type(cls: type[Any], *members: Any) -> Any:
    """Return the Numba type of a named tuple with fields of the given types."""
    untyped: Any = types.NamedTuple
    return untyped(members, cls)


_I4 = types.int32[::1]
MEMORY = tuple_type(PolicyMemory, *map(table_type, MEMORY_DTYPES))
"""Numba type of :class:`PolicyMemory`."""

_CACHE = tuple_type(
    PrefixCache,
    *(
        table_type(RUN_TABLES[name].dtype)
        if RUN_TABLES[name].length
        else numba.from_dtype(RUN_TABLES[name].dtype)
        for name in PrefixCache._fields
    ),
)

POLICY_SIGNATURE = types.void(
    Reference(
        tuple_type(
            PolicyView,
            numba.from_dtype(PROBLEM),
            numba.from_dtype(WORKER),
            table_type(REQUEST),
            table_type(SLOT),
            _I4,
            _I4,
            _CACHE,
            table_type(SESSION),
            table_type(EXTRA),
            numba.from_dtype(LOAD),
            types.FunctionType(BATCH_TIME_SIGNATURE),
            types.float64[::1],
            table_type(DRAFTS),
        )
    ),
    Reference(tuple_type(PolicyDecision, numba.from_dtype(DECISION), _I4, _I4, _I4)),
    Reference(MEMORY),
)
"""Signature of a compiled policy, ``(view, decision, memory)``."""


def policy_kernel(function: Callable[[PolicyView, PolicyDecision, PolicyMemory], None]) -> Kernel:
    """Return the kernel of a compiled policy from a function ``(view, decision, memory)``."""
    return kernel(POLICY_SIGNATURE, "scheduler")(function)
