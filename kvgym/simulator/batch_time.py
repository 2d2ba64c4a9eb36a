"""The interface of batch-time models: seconds of one iteration of a worker, from its load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.compiling.kernel import Kernel, jit_inline, kernel, uncompiled
from kvgym.compiling.records import records
from kvgym.errors import ConfigError, RunError, shown
from kvgym.simulator.tables import BAD_CLOCK, BAD_DURATION, LOAD
from kvgym.utils.arguments import explained
from kvgym.utils.user_code import calling

BATCH_TIME_SIGNATURE = numba.types.float64(numba.from_dtype(LOAD), numba.types.float64[::1])
"""Signature of every batch-time kernel: ``(load record, parameters) -> seconds``."""

LOAD_FIELDS: tuple[str, ...] = tuple(LOAD.names or ())


@jit_inline
def clear_load(load: Any) -> None:
    """Set a load to the load of an empty batch."""
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = load.num_decodes = load.decode_context = 0
    load.draft_tokens = 0


@explained
def batch_time_kernel(function: Callable[..., float]) -> Kernel:
    """Make a batch-time kernel: ``function(load, params) -> seconds`` in Numba's subset of Python."""
    return kernel(BATCH_TIME_SIGNATURE, "batch times")(function)


class Device(NamedTuple):
    """The GPU of a worker, for defaults that depend on it.

    Attributes:
        name: product name.
        memory: bytes of device memory.
    """

    name: str
    memory: float


class RoughFigures(NamedTuple):
    """A worker's speed, for routers: its batch-time model as a linear function, in seconds.

    Attributes:
        base: per batch.
        decode: per decoding request.
        context: per token in memory.
        prefill: per prompt token.
    """

    base: float
    decode: float
    context: float
    prefill: float


def params_of(model: BatchTimeModel) -> NDArray[np.float64]:
    """Return a copy of the parameters of a model for a run, float64 (k,).

    Raises:
        ConfigError: they are not such an array, or the model has no kernel.
        UserCodeError: a model from outside kvgym raised an exception.
    """
    name, found = type(model).__name__, getattr(model, "kernel", None)
    signature = found.signature if isinstance(found, Kernel) else None
    # Comparing signatures takes as long as the rest of this.
    if signature is not BATCH_TIME_SIGNATURE and signature != BATCH_TIME_SIGNATURE:
        raise ConfigError(
            f"batch-time model {name}: kernel = {shown(found)}; expected one made by batch_time_kernel"
        )
    with calling(model, "batch-time model", "params"):
        params = np.array(model.params(), np.float64)
    if params.ndim != 1:
        raise ConfigError(
            f"batch-time model {name}: params has shape {params.shape}; expected numbers in one dimension"
        )
    return params


class BatchTimeModel(ABC):
    """Seconds per iteration as a pure function of the batch's load.

    A model is non-negative and non-decreasing in every field of the load. The compiled loop calls
    :attr:`kernel` with :meth:`params`; Python code calls the object itself.

    Attributes:
        kernel: the compiled function of this class, see :data:`BATCH_TIME_SIGNATURE`.
        source: where the figures come from, one line.
        valid_range: for each load quantity it was fitted on, the (low, high) range; empty = everywhere.
        device: the GPU that it describes; None = unknown.
        asynchronous: whether its engine prepares a batch while the one before it runs; the default of policies that
            follow an engine.
        api_time: seconds from a request's arrival until the engine's queue has it, which hold no batch.
    """

    kernel: Kernel
    source: str = ""
    device: Device | None = None
    asynchronous: bool = False
    api_time: float = 0.0
    valid_range: Mapping[str, tuple[float, float]] = {}

    @abstractmethod
    def params(self) -> NDArray[np.float64]:
        """Return the parameters the kernel reads, dtype float64, shape (k,), C-contiguous."""

    def __call__(self, **load: ArrayLike) -> Any:
        """Return the duration of a batch, in seconds.

        Args:
            **load: fields of :data:`~kvgym.simulator.tables.LOAD` by name, integers or equal-shape (n,)
                arrays; fields left out are 0.

        Returns:
            float for scalars, else float64 array of shape (n,).

        Raises:
            TypeError: an unknown field name.
        """
        unknown = set(load) - set(LOAD_FIELDS)
        if unknown:
            raise TypeError(f"unknown load field {sorted(unknown)}; valid: {', '.join(LOAD_FIELDS)}")
        columns = {name: np.asarray(value) for name, value in load.items()}
        shape = np.broadcast_shapes(*(c.shape for c in columns.values())) if columns else ()
        table = records(LOAD, max(1, int(np.prod(shape))))
        for name, column in columns.items():
            try:
                table[name] = np.broadcast_to(column, shape).ravel()
            except (OverflowError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"load field {name} = {shown(load[name])}: {error}; expected numbers"
                ) from None
        function, params = uncompiled(self.kernel), self.params()
        out = np.array([function(table[i], params) for i in range(len(table))], dtype=np.float64)
        return out.reshape(shape) if shape else float(out[0])

    def rough_figures(self, kv_capacity: int) -> RoughFigures:
        """Return a linear approximation of this model; it is exact where the model is linear.

        Its slopes are those of secants: over up to 64 more decodes, over memory use from little to full, and
        over a prompt of up to 512 tokens.

        Args:
            kv_capacity: memory of the worker, tokens.
        """
        count, prompt = 64, min(512, kv_capacity)
        least = count + 1  # every decode has at least one token of context
        full = max(kv_capacity, 2 * least)
        one, many, last = self(
            num_decodes=np.array([1, least, least]), decode_context=np.array([least, least, full])
        ).tolist()
        chunk = {"num_prefills": 1, "prefill_tokens": prompt, "prefill_squares": prompt * prompt}
        prefill = (self(num_decodes=1, decode_context=least, **chunk) - one) / prompt
        decode, context = (many - one) / count, (last - many) / (full - least)
        return RoughFigures(max(0.0, one - decode - context * least), decode, context, prefill)


def duration_error(status: int, worker: Any, load: Any, where: str) -> RunError | None:
    """Return the error for a batch with a duration that the engine refuses.

    Args:
        status: the engine's status.
        worker: WORKER record, for its clock and the duration.
        load: LOAD record of the batch.
        where: the run and its position, for the message.

    Returns:
        The error; None for any other status.
    """
    duration, clock = float(worker["batch_duration"]), float(worker["clock"])
    if status == BAD_DURATION:
        found = ", ".join(f"{name} = {int(load[name])}" for name in LOAD_FIELDS if load[name])
        return RunError(
            f"{where}: the batch-time model, with swaps, gives a batch {duration:g} s; expected 0 … 1e12 "
            f"(load: {found or 'empty'})"
        )
    if status == BAD_CLOCK:
        return RunError(
            f"{where}: the clock at {clock:g} s cannot resolve a batch of {duration:g} s; use arrival times, waits "
            "and a horizon that are nearer to 0"
        )
    return None
