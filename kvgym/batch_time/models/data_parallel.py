"""Batch time of attention in data parallel: ranks with a part of the requests each, and experts over all GPUs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats, curve, lay_out
from kvgym.batch_time.models.kernels import KernelBatchTime, packed_curve, seconds_of_kernels
from kvgym.compiling.named import named_numbers
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel


class DataParallelParameters(NamedTuple):
    """Parameters of attention in data parallel.

    Attributes:
        ranks: groups of GPUs with requests of their own.
        shared: place of the curve over the tokens of all ranks.
        rank: place of the parameters of one rank, :class:`~kvgym.batch_time.models.kernels.KernelParameters`.
    """

    ranks: float
    shared: float
    rank: float


_data_parallel_parameters = named_numbers(DataParallelParameters)


@batch_time_kernel
def _data_parallel(load: Any, params: Any) -> Any:
    p = _data_parallel_parameters(params)
    prefills, decodes = float(load.num_prefills), float(load.num_decodes)
    # A request is on one rank, so fewer requests than ranks leave ranks without work.
    part = 1.0 / max(min(p.ranks, prefills), 1.0)
    decode_part = 1.0 / max(min(p.ranks, decodes), 1.0)
    prefill = (
        part * float(load.prefill_tokens),
        part * float(load.prefill_context),
        part * float(load.prefill_squares),
        part * float(load.prefill_products),
    )
    rank = params[int(p.rank) :]
    seconds = seconds_of_kernels(
        rank,
        part * prefills,
        decode_part * decodes,
        prefill,
        decode_part * float(load.decode_context),
        decode_part * float(load.draft_tokens),
    )
    tokens = float(load.prefill_tokens + load.num_decodes + load.draft_tokens)
    if tokens > 0.0:
        seconds += curve(params, p.shared, tokens)
    return seconds


class DataParallelBatchTime(BatchTimeModel):
    """Measured kernels of a mixture of experts with attention in data parallel.

    The requests of a batch are spread evenly over the ranks; the ranks that have some take equally long. Then the
    tokens of all ranks go through experts that are spread over all GPUs. Two things are simpler than in an engine: the
    requests of all ranks are one batch with one limit of memory, and no rank waits for one with longer requests.

    It is non-decreasing in every field of the load but the number of prefills: equal tokens of more prompts are on more
    ranks.

    Args:
        rank: kernels of one rank, without routed experts.
        ranks: number of ranks.
        shared: tokens of all ranks and seconds of experts and exchanges, shapes (n,).
    """

    kernel = _data_parallel

    def __init__(self, rank: KernelBatchTime, ranks: int, shared: tuple[Floats, Floats]) -> None:
        self.rank, self.ranks, self.shared = rank, ranks, shared
        self.source, self.device, self.valid_range = rank.source, rank.device, rank.valid_range
        self.asynchronous, self.api_time = rank.asynchronous, rank.api_time
        self._params = lay_out(
            DataParallelParameters,
            {"shared": packed_curve(shared), "rank": rank.params()},
            ranks=float(ranks),
        )

    def params(self) -> NDArray[np.float64]:
        """Return a copy of :class:`DataParallelParameters`, the curve and the rank's parameters, in seconds."""
        return self._params.copy()

    def spec(self) -> dict[str, Any]:
        """Return a dict of plain values that :func:`make_batch_time` accepts: hardware and engine by name."""
        return self.rank.spec()
