"""The contract of batch-time models: seconds that one iteration of a worker takes, from its load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.simulator.compiled import Kernel, kernel, uncompiled
from kvgym.simulator.tables import LOAD, records

BATCH_TIME_SIGNATURE = numba.types.float64(numba.from_dtype(LOAD), numba.types.float64[::1])
"""Signature of every batch-time kernel: ``(load record, parameters) -> seconds``."""

LOAD_FIELDS: tuple[str, ...] = tuple(LOAD.names or ())


def batch_time_kernel(function: Any) -> Kernel:
    """Make a batch-time kernel: ``function(load, params) -> seconds`` in Numba's subset of Python."""
    return kernel(BATCH_TIME_SIGNATURE)(function)


class BatchTimeModel(ABC):
    """Seconds per iteration as a pure function of the batch's load.

    A model is non-negative and non-decreasing in every field of the load. The compiled loop calls
    :attr:`kernel` with :meth:`params`; Python code calls the object itself.

    Attributes:
        kernel: the compiled function of this class, see :data:`BATCH_TIME_SIGNATURE`.
        source: where the figures come from, one line.
        valid_range: for each load quantity it was fitted on, the (low, high) range; empty = everywhere.
    """

    kernel: Kernel
    source: str = ""
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
            table[name] = np.broadcast_to(column, shape).ravel()
        function, params = uncompiled(self.kernel), self.params()
        out = np.array([function(table[i], params) for i in range(len(table))], dtype=np.float64)
        return out.reshape(shape) if shape else float(out[0])
