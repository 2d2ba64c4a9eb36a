"""The tables of one environment in one block of memory, which compiled code opens by address.

Every array argument of a compiled call from Python takes time, structured ones most of all: a step would spend more
time on its seventeen tables than on the simulation. Environments therefore pass one array of addresses. The block
keeps an environment's tables together, which suits the cache when many environments are stepped in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import CHECKED, GUARD_BYTE, GUARD_SIZE, guarded, overwrite_error
from kvgym.compiling.tables import Table, declared
from kvgym.envs.scheduling.tables import Env
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.policy_interface import MEMORY_DTYPES, PolicyMemory

RULE_TABLES = declared(PolicyMemory, "rule_")
"""Tables that hold the memory of a kind's rule, by name, in the order of :class:`PolicyMemory`."""

ENV_TABLES = declared(Env)

TABLES: dict[str, Table] = dict(
    sorted({**RUN_TABLES, **ENV_TABLES, **RULE_TABLES}.items(), key=lambda item: item[1].touched)
)
"""All tables of an environment by name, in the order of its row of addresses and of its block of memory.

Tables that every iteration uses come first and are adjacent, starting with those that are used as a whole.
"""

PLACE = {name: k for k, name in enumerate(TABLES)}
"""Index of each table in a row of addresses; its length is NUM_TABLES later."""

NUM_TABLES = len(TABLES)


class Rows(NamedTuple):
    """Numbers of rows that differ between the episodes of an environment, see :class:`Sizes`."""

    num_requests: int
    contents: int = 0
    chain: int = 0
    held: int = 0
    renewals: int = 0
    children: int = 0

    @classmethod
    def of(cls, sizes: Sizes) -> Rows:
        """Return those for which a block has room."""
        return cls(*(getattr(sizes, name) for name in cls._fields))

    def fit(self, room: Rows) -> bool:
        """Return whether there is room for them."""
        return all(rows <= most for rows, most in zip(self, room, strict=True))


class Sizes(NamedTuple):
    """Lengths that determine the layout of a block.

    Attributes:
        num_requests: n, capacity for requests of an episode.
        slots: A, upper limit of active requests.
        window: Q, length of the queue window.
        heap: size of the heap of waiting requests outside the window, 0 if the window follows the queue.
        gap_bins: length of the sparse histogram of token gaps.
        rule: lengths of the memory of a kind's rule: parameters, whole numbers, real numbers, profile.
        terms: size of the memory of registered reward terms.
        shown: W, length of the active window.
        notes: length of the memory of the kind of action.
        columns: feature columns times n if they are revealed, else 0.
        extras: n if clients, distributions, renewals or deadlines are observed, else 0.
        renewals: capacity for the renewed predictions of an episode, 0 if they are not observed.
        units: N, units of the prefix cache, 0 without one, as for the following.
        contents: capacity for different contents of the chains of an episode.
        chain: capacity for the chains.
        held: capacity for the sum of their lengths, which overlap in ``chain``.
        prefix: n.
        turns: n where the turns of sessions are followed, else 0.
        sessions: 0, since environments do not reveal sessions.
        script: n in the closed loop of sessions, 0 in the open one, as for the following.
        due: n.
        scheduled: 1 + n.
        children: capacity for the pairs of a request and one that waits for its end.
    """

    num_requests: int
    slots: int
    window: int
    heap: int
    gap_bins: int
    rule: tuple[int, ...] = (0, 0, 0, 0)
    terms: int = 0
    shown: int = 0
    notes: int = 0
    columns: int = 0
    extras: int = 0
    renewals: int = 0
    units: int = 0
    contents: int = 0
    chain: int = 0
    held: int = 0
    prefix: int = 0
    turns: int = 0
    sessions: int = 0
    script: int = 0
    due: int = 0
    scheduled: int = 0
    children: int = 0

    def layout(self) -> tuple[tuple[str, Any, int], ...]:
        """Return (name, dtype, length) of every table, in the order of :data:`TABLES`."""
        lengths = {
            **self._asdict(),
            "": 1,
            "queued": 2 * self.num_requests,
            "speculation": 0,
            "log": 0,
            "changed": 0,
            "below": 0,
            "stored": 0,
            "drops": 0,
            "tiered": 0,
            **dict(zip((table.length for table in RULE_TABLES.values()), self.rule, strict=True)),
        }
        return tuple((name, table.dtype, lengths[table.length]) for name, table in TABLES.items())

    @property
    def num_bytes(self) -> int:
        """Length of a block, bytes."""
        return places_of(self)[1]


@functools.lru_cache(maxsize=64)
def places_of(sizes: Sizes) -> tuple[tuple[int, ...], int]:
    """Return the start of each table in a block, and the length of the block, bytes.

    Tables begin on cache lines; in the checked build there are guard bytes before, between and after them.
    """
    begins, end = [], GUARD_SIZE
    for _, dtype, length in sizes.layout():
        begins.append(end)
        end += -(-np.dtype(dtype).itemsize * length // LINE) * LINE + GUARD_SIZE
    return tuple(begins), end


LINE = 64
"""Bytes of a cache line; tables begin on one."""


def zeroed(count: int, size: int) -> NDArray[np.uint8]:
    """Return zeroed memory for ``count`` blocks, uint8 (count, size), which begins on a cache line.

    It is a single allocation, because systems use huge pages for large ones.
    """
    buffer = np.zeros(count * size + LINE, np.uint8)
    start = -buffer.ctypes.data % LINE
    return buffer[start : start + count * size].reshape(count, size)


def rule_tables(memory: PolicyMemory | None) -> dict[str, NDArray[Any]]:
    """Return the memory of a rule by the names of its tables; tables of length 0 if there is no rule."""
    arrays = memory if memory is not None else [np.zeros(0, dtype) for dtype in MEMORY_DTYPES]
    return dict(zip(RULE_TABLES, arrays, strict=True))


def control_row(tables: Sequence[NDArray[Any]], settings: NDArray[Any]) -> NDArray[np.int64]:
    """Return the row by which the stepping functions access an environment, int64 (2 NUM_TABLES + 1,).

    It has the addresses of the tables in the order of :data:`TABLES`, their lengths, and the address of the settings.
    The caller must keep all of them alive.
    """
    places = [table.ctypes.data for table in tables]
    return np.array([*places, *(table.size for table in tables), settings.ctypes.data], np.int64)


class Call(NamedTuple):
    """The arrays of a call of the stepping functions, with a row for each of N environments, see :class:`Arrays`.

    Arrays with rows of several numbers name the length of a row.
    """

    control: Annotated[Any, Table("i8", "control")]
    todo: Annotated[Any, Table("u1")]
    actions: Annotated[Any, Table("f8", "actions")]
    converted: Annotated[Any, Table("f8", "actions")]
    observations: Annotated[Any, Table("f4", "observation")]
    masks: Annotated[Any, Table("u1", "mask")]
    rewards: Annotated[Any, Table("f8")]
    terms: Annotated[Any, Table("f8", "terms")]
    outcomes: Annotated[Any, Table("i8")]
    ignored: Annotated[Any, Table("i8")]
    times: Annotated[Any, Table("f8")]


CALL_ARRAYS = declared(Call)

ARRAYS = (*CALL_ARRAYS, "given")
"""Arrays of a call, in the order of their addresses; the last has the dtype of the actions' space."""

WIDTHS = len(ARRAYS)
ACTIONS, OBSERVATIONS, GIVEN_ACTIONS = map(ARRAYS.index, ("actions", "observations", "given"))
FIRST, LAST, COUNT, WORK, GIVEN, PARTS, TAKEN, NEXT, ORDER = range(2 * WIDTHS, 2 * WIDTHS + 9)
"""Indices in an order, see :class:`Arrays`."""

CHECK, PLAY = 1, 2
"""Bits of the work of an order: check the actions, and process the environments' ``todo``."""


class Arrays:
    """Inputs and outputs of calls of the stepping functions, passed as one array of addresses.

    Attributes:
        control: int64 (N, 2 NUM_TABLES + 1), row of each environment, see :func:`control_row`.
        todo: uint8 (N,): work of each environment, see :func:`~kvgym.envs.scheduling.stepping.step_envs`.
        actions: float64 (N, a).
        converted: float64 (N, a), written: the actions in the units of the kind, if ``unit_actions`` is on.
        observations: float32 (N, D), written.
        masks: uint8 (N, K), written.
        rewards: float64 (N,), written.
        terms: float64 (N, number of terms), written.
        outcomes: int64 (N,), written.
        ignored: int64 (N,), written: parts of the action that were not possible.
        times: float64 (N,), written: clocks, seconds.
        given: (N, a) of the dtype of the actions' space: unconverted actions, which the call copies to ``actions``.
        orders: int64 (1 or 1 + T, 33), arguments of calls. An order has the addresses of the arrays in the order of
            :data:`ARRAYS`, and from WIDTHS on the lengths of their rows. FIRST and LAST (exclusive)
            environment follow, COUNT (N), then WORK (:data:`CHECK`, :data:`PLAY`); GIVEN is the dtype code of ``given``
            (:data:`~kvgym.envs.scheduling.actions.reading.STORED`), or 0 if actions are in ``actions``. With
            T threads the first order checks all actions, and the others divide the environments between them. PARTS
            is their number: a call that has finished its own part helps with the others. TAKEN is the address of the
            number of environments of the part that have been taken, and NEXT that of the next part's order.
        taken: int64 (1 or 1 + T, 8), these numbers, which must be 0 before the calls of T threads.
    """

    def __init__(
        self,
        control: NDArray[np.int64],
        actions: int,
        observation: int,
        mask: int,
        terms: int,
        threads: int = 1,
        dtype: Any = np.float64,
    ) -> None:
        """Allocate the arrays for the environments of ``control``.

        The arguments after it are the lengths of rows, T, and the dtype of ``given``.
        """
        count = len(control)
        self.control = control
        self.todo = np.zeros(count, np.uint8)
        self.actions, self.converted, self.given = (
            guarded(np.zeros((count, actions), kind)) for kind in (np.float64, np.float64, dtype)
        )
        self.observations = guarded(np.zeros((count, observation), np.float32))
        self.masks = guarded(np.zeros((count, mask), np.uint8))
        self.rewards, self.times = guarded(np.zeros(count)), guarded(np.zeros(count))
        self.terms = guarded(np.zeros((count, terms)))
        self.outcomes, self.ignored = guarded(np.zeros(count, np.int64)), guarded(np.zeros(count, np.int64))
        parts = 0 if threads == 1 else threads
        self.orders = np.zeros((1 + parts, ORDER), np.int64)
        self.taken = np.zeros((1 + parts, LINE // 8), np.int64)  # on a cache line each
        self.orders[:, COUNT], self.orders[:, PARTS] = count, max(parts, 1)
        self.orders[0, FIRST:COUNT], self.orders[0, WORK] = (0, count), CHECK if parts else CHECK | PLAY
        for k, order in enumerate(self.orders):
            following = self.orders[1 + k % parts if parts else 0]
            order[TAKEN], order[NEXT] = self.taken[k].ctypes.data, following.ctypes.data
        for k, order in enumerate(self.orders[1:]):
            order[FIRST:COUNT], order[WORK] = (k * count // parts, (k + 1) * count // parts), PLAY
        for k, name in enumerate(ARRAYS):
            array = getattr(self, name)
            self.orders[:, k] = array.ctypes.data
            self.orders[:, WIDTHS + k] = array[0].size

    def renew_observations(self) -> None:
        """Write future observations to new memory, because the present array has been returned."""
        self.observations = guarded(np.empty_like(self.observations))
        self.orders[:, OBSERVATIONS] = self.observations.ctypes.data

    @property
    def outputs(self) -> tuple[NDArray[Any], ...]:
        """All arrays that a call writes."""
        return tuple(getattr(self, name) for name in ARRAYS[OBSERVATIONS:GIVEN_ACTIONS])


class Block:
    """The memory of one environment: tables by name, and their addresses.

    Attributes:
        tables: name -> array, all views of one buffer.
        memory: uint8, the buffer.
        sizes: its sizes.
        control: int64 (2 NUM_TABLES + 1,), see :func:`control_row`.
    """

    def __init__(self, sizes: Sizes, settings: NDArray[Any], memory: NDArray[np.uint8] | None = None) -> None:
        """Create the tables of an environment.

        Args:
            sizes: sizes of the tables.
            settings: SETTINGS record, shape (1,).
            memory: zeroed buffer, uint8 (``sizes.num_bytes``,); None allocates it.
        """
        self.sizes = sizes
        begins, total = places_of(sizes)
        self.memory = zeroed(1, total)[0] if memory is None else memory
        self.tables: dict[str, Any] = {}
        for begin, (name, dtype, length) in zip(begins, sizes.layout(), strict=True):
            end = begin + np.dtype(dtype).itemsize * length
            self.tables[name] = self.memory[begin:end].view(dtype)
        self.control = control_row(list(self.tables.values()), settings)
        if CHECKED:
            self._guards = np.ones(total, bool)
            for begin, table in zip(begins, self.tables.values(), strict=True):
                self._guards[begin : begin + table.nbytes] = False
            self._places = sorted(zip(begins, self.tables, strict=True))
            self.memory[self._guards] = GUARD_BYTE

    def check(self, culprit: str) -> None:
        """Check, in the checked build, that compiled code has not written outside a table.

        Args:
            culprit: the code to blame, for the message.

        Raises:
            OutOfBoundsError: it has written outside it.
        """
        wrong = np.flatnonzero(self._guards & (self.memory != GUARD_BYTE))
        if len(wrong):
            before = [name for begin, name in self._places if begin < wrong[0]]
            raise overwrite_error(
                culprit, before[-1] if before else self._places[0][1], "behind" if before else "before"
            )

    def __getstate__(self) -> NoReturn:
        """Refuse copying and pickling, because a copy would have the addresses of this block.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "compiled code accesses the tables of an environment by address; copy or pickle the whole environment"
        )

    def __getitem__(self, name: str) -> Any:
        """Return a table."""
        return self.tables[name]
