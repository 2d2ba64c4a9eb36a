"""The tables of one environment in one block of memory, opened inside compiled code by address.

A compiled call from Python pays for every array it is given, a structured one most of all: a step would
spend more time on its seventeen tables than on the simulation. Environments therefore hand over one array of
addresses. The block keeps an environment's tables together, which is kind to the cache when many
environments are stepped in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import CHECKED, GUARD_BYTE, GUARD_SIZE, guarded, overwrite_error
from kvgym.compiling.tables import Table, declared
from kvgym.envs.scheduling.tables import Env
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.policy_interface import MEMORY_DTYPES, RuleMemory

RULE_TABLES = declared(RuleMemory, "rule_")
"""Tables that hold the memory of a kind's rule, by name, in the order of :class:`RuleMemory`."""

ENV_TABLES = declared(Env)

TABLES: dict[str, Table] = dict(
    sorted({**RUN_TABLES, **ENV_TABLES, **RULE_TABLES}.items(), key=lambda item: item[1].touched)
)
"""All tables of an environment by name, in the order of its row of addresses and of its block of memory.

Tables that every iteration touches come first and lie together, those that are in use as a whole before the others.
"""

PLACE = {name: k for k, name in enumerate(TABLES)}
"""Where a row of addresses has each table; its length comes NUM_TABLES later."""

NUM_TABLES = len(TABLES)


class Sizes(NamedTuple):
    """Lengths that decide the layout of a block.

    Attributes:
        num_requests: n, requests an episode can hold.
        slots: A, active requests at most.
        window: Q, length of the queue window.
        heap: room of the heap of waiting requests outside the window, 0 if the window follows the queue.
        gap_bins: length of the sparse histogram of token gaps.
        rule: lengths of the memory of a kind's rule: parameters, whole numbers, real numbers, profile.
        terms: numbers that registered reward terms remember.
        shown: W, length of the active window.
    """

    num_requests: int
    slots: int
    window: int
    heap: int
    gap_bins: int
    rule: tuple[int, ...] = (0, 0, 0, 0)
    terms: int = 0
    shown: int = 0

    def layout(self) -> tuple[tuple[str, Any, int], ...]:
        """Return (name, dtype, length) of every table, in the order of :data:`TABLES`."""
        lengths = {
            **self._asdict(),
            "": 1,
            "queued": 2 * self.num_requests,
            "log": 0,
            **dict(zip((table.length for table in RULE_TABLES.values()), self.rule, strict=True)),
        }
        return tuple((name, table.dtype, lengths[table.length]) for name, table in TABLES.items())

    def places(self) -> tuple[list[int], int]:
        """Return where each table begins in a block and how long that is, bytes.

        Tables begin on cache lines; in the checked build guard bytes are before, between and behind them.
        """
        begins, end = [], GUARD_SIZE
        for _, dtype, length in self.layout():
            begins.append(end)
            end += -(-np.dtype(dtype).itemsize * length // LINE) * LINE + GUARD_SIZE
        return begins, end

    @property
    def num_bytes(self) -> int:
        """Length of a block, bytes."""
        return self.places()[1]


LINE = 64
"""Bytes of a cache line, on which tables begin."""


def zeroed(count: int, size: int) -> NDArray[np.uint8]:
    """Return zeroed memory for ``count`` blocks in one allocation, uint8 (count, size), which begins on a cache line.

    It is one for the sake of huge pages, which systems give to large allocations.
    """
    buffer = np.zeros(count * size + LINE, np.uint8)
    start = -buffer.ctypes.data % LINE
    return buffer[start : start + count * size].reshape(count, size)


def rule_tables(memory: RuleMemory | None) -> dict[str, NDArray[Any]]:
    """Return the memory of a rule by the names of its tables; tables of length 0 where there is no rule."""
    arrays = memory if memory is not None else [np.zeros(0, dtype) for dtype in MEMORY_DTYPES]
    return dict(zip(RULE_TABLES, arrays, strict=True))


def control_row(tables: Sequence[NDArray[Any]], settings: NDArray[Any]) -> NDArray[np.int64]:
    """Return by what the stepping functions find an environment, int64 (2 NUM_TABLES + 1,).

    Addresses of the tables in the order of :data:`TABLES`, their lengths, and the address of the settings.
    The caller keeps all of them alive.
    """
    places = [table.ctypes.data for table in tables]
    return np.array([*places, *(table.size for table in tables), settings.ctypes.data], np.int64)


class Call(NamedTuple):
    """The arrays of a call of the stepping functions, with a row for each of N environments, see :class:`Arrays`.

    Those that have rows of several numbers name the length of these.
    """

    control: Annotated[Any, Table("i8", "control")]
    todo: Annotated[Any, Table("u1")]
    actions: Annotated[Any, Table("f8", "actions")]
    observations: Annotated[Any, Table("f4", "observation")]
    masks: Annotated[Any, Table("u1", "mask")]
    rewards: Annotated[Any, Table("f8")]
    terms: Annotated[Any, Table("f8", "terms")]
    outcomes: Annotated[Any, Table("i8")]
    ignored: Annotated[Any, Table("i8")]
    times: Annotated[Any, Table("f8")]


CALL_ARRAYS = declared(Call)

ARRAYS = (*CALL_ARRAYS, "given")
"""Arrays that a call is given, in the order of their addresses; the last has the dtype of the actions' space."""

WIDTHS = len(ARRAYS)
ACTIONS, OBSERVATIONS, GIVEN_ACTIONS = map(ARRAYS.index, ("actions", "observations", "given"))
FIRST, LAST, WORK, GIVEN = 2 * WIDTHS, 2 * WIDTHS + 1, 2 * WIDTHS + 2, 2 * WIDTHS + 3
"""Places in an order, see :class:`Arrays`."""

CHECK, PLAY = 1, 2
"""What an order asks for: that actions are looked at, and that environments do what they are to do, or both."""


class Arrays:
    """What calls of the stepping functions read and write, handed over as one array of addresses.

    Attributes:
        control: int64 (N, 2 NUM_TABLES + 1), where the tables of each lie, see :func:`control_row`.
        todo: uint8 (N,): what each is to do, see :func:`~kvgym.envs.scheduling.stepping.step_envs`.
        actions: float64 (N, a).
        observations: float32 (N, D), written.
        masks: uint8 (N, K), written.
        rewards: float64 (N,), written.
        terms: float64 (N, number of terms), written.
        outcomes: int64 (N,), written.
        ignored: int64 (N,), written: parts of the action that were not possible.
        times: float64 (N,), written: clocks, seconds.
        given: (N, a) of the dtype of the actions' space: actions as they came, before the call writes them to
            ``actions``.
        orders: int64 (1 or 1 + T, 26): what a call is given. The addresses of the arrays in the order of
            :data:`ARRAYS`, from WIDTHS on the lengths of their rows, then FIRST, LAST (not included) and WORK: which
            environments are meant, and what for; and GIVEN, where actions are to be taken from ``given``, how those are
            stored (:data:`~kvgym.envs.scheduling.actions.reading.STORED`), else 0. With T threads the first order is to
            look at the actions of all, the others divide the environments between them.
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
        """Allocate them for the environments of ``control``, given the lengths of the rows and the dtype of actions.

        T is ``threads``.
        """
        count = len(control)
        self.control = control
        self.todo = np.zeros(count, np.uint8)
        self.actions, self.given = (
            guarded(np.zeros((count, actions))),
            guarded(np.zeros((count, actions), dtype)),
        )
        self.observations = guarded(np.zeros((count, observation), np.float32))
        self.masks = guarded(np.zeros((count, mask), np.uint8))
        self.rewards, self.times = guarded(np.zeros(count)), guarded(np.zeros(count))
        self.terms = guarded(np.zeros((count, terms)))
        self.outcomes, self.ignored = guarded(np.zeros(count, np.int64)), guarded(np.zeros(count, np.int64))
        parts = 0 if threads == 1 else threads
        self.orders = np.zeros((1 + parts, GIVEN + 1), np.int64)
        self.orders[0, FIRST:GIVEN] = 0, count, CHECK if parts else CHECK | PLAY
        for k in range(parts):
            self.orders[1 + k, FIRST:GIVEN] = k * count // parts, (k + 1) * count // parts, PLAY
        for k, name in enumerate(ARRAYS):
            array = getattr(self, name)
            self.orders[:, k] = array.ctypes.data
            self.orders[:, WIDTHS + k] = array[0].size

    def renew_observations(self) -> None:
        """Have observations written to fresh memory from now on; what there is belongs to who has it."""
        self.observations = guarded(np.empty_like(self.observations))
        self.orders[:, OBSERVATIONS] = self.observations.ctypes.data

    @property
    def outputs(self) -> tuple[NDArray[Any], ...]:
        """All arrays that a call writes."""
        return tuple(getattr(self, name) for name in ARRAYS[OBSERVATIONS:GIVEN_ACTIONS])


class Block:
    """The memory of one environment: tables by name, and where they are.

    Attributes:
        tables: name -> array, all views of one buffer.
        memory: uint8, all of it.
        sizes: its sizes.
        control: int64 (2 NUM_TABLES + 1,), see :func:`control_row`.
    """

    def __init__(self, sizes: Sizes, settings: NDArray[Any], memory: NDArray[np.uint8] | None = None) -> None:
        """Set up tables for an environment with the given SETTINGS record, shape (1,).

        Args:
            sizes: their sizes.
            settings: the record.
            memory: zeroed, uint8 (``sizes.num_bytes``,), of which the caller has more; None allocates it.
        """
        self.sizes = sizes
        begins, total = sizes.places()
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

    def check(self, who: str) -> None:
        """Look, in the checked build, whether compiled code wrote outside of a table.

        Args:
            who: who is to blame, for the message.

        Raises:
            OutOfBoundsError: it has.
        """
        wrong = np.flatnonzero(self._guards & (self.memory != GUARD_BYTE))
        if len(wrong):
            before = [name for begin, name in self._places if begin < wrong[0]]
            raise overwrite_error(
                who, before[-1] if before else self._places[0][1], "behind" if before else "before"
            )

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied or pickled: addresses would be those of this block.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "tables of an environment are found by address; copy or pickle the environment, not its parts"
        )

    def __getitem__(self, name: str) -> Any:
        """Return a table."""
        return self.tables[name]
