"""Requests of a workload in pieces: the same as in one table, for runs that are too long for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seed, whole_number
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.arrivals import ArrivalProcess, Times
from kvgym.workloads.lengths import Lengths
from kvgym.workloads.mixtures import MixedLengths
from kvgym.workloads.predictions import DistributionPrediction, RankPrediction
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload


@explained
def pieces_of(workload: Workload, seed: int, size: int) -> Iterator[RequestTable]:
    """Return the requests of :meth:`Workload.sample` in tables of ``size`` requests, the last one shorter; equal bits.

    Arrivals are seconds since the beginning of the first table. Notes and rates are those of a piece.

    Args:
        workload: with a number of requests.
        seed: the seed.
        size: requests of a piece.

    Raises:
        ConfigError: the requests cannot be drawn one after another; the message names the reason.
    """
    check_pieces(workload)
    seed, size = check_seed(seed), whole_number(size, "size", "a whole number ≥ 1")
    return _drawn(_Drawing(workload), seed, size)


def _drawn(drawing: _Drawing, seed: int, size: int) -> Iterator[RequestTable]:
    left = int(drawing.spec.num_requests)  # type: ignore[arg-type]  # checked
    while left > 0:
        drawing.count = min(size, left)
        left -= drawing.count
        yield drawing.sample(seed)


def check_pieces(workload: Workload) -> None:
    """Check that the requests of a workload can be drawn in pieces.

    Raises:
        ConfigError: they cannot.
    """
    spec = workload.spec
    process: Any = type(spec.arrivals)
    own = spec.arrivals is None or any(
        getattr(process, name) is not getattr(ArrivalProcess, name) for name in ("sample", "_mapping")
    )
    predictor, source = spec.predictions, spec.lengths
    reasons = {
        "a trace that is replayed": spec.replays,
        "a number of requests that is not fixed": not isinstance(spec.num_requests, int),
        f"arrivals of kind {shown(getattr(spec.arrivals, 'kind', 'by class'))}": own,
        "common prefixes": spec.prefixes is not None,
        "limits that drop requests": spec.limits.policy == "drop",
        "predictions that depend on all requests": isinstance(
            predictor, RankPrediction | DistributionPrediction
        ),
        "predictions that are renewed": predictor is not None and predictor.renew_every is not None,
        "kinds with features": isinstance(source, MixedLengths) and bool(source.kinds[0].features),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(
                f"workload {shown(spec.name)} has {reason}, so its requests cannot be drawn in pieces; change that "
                "(e.g. with --predictions exact), or run it in one piece"
            )


class _Drawing(Workload):
    """A workload with generators that continue from one sample to the next.

    Attributes:
        count: requests of the next sample.
    """

    count = 0

    def __init__(self, workload: Workload) -> None:
        """Draw the requests of ``workload``."""
        self.spec, self.trace = workload.spec, workload.trace
        self._clock = 0.0  # of the arrivals at rate 1
        self._generators: dict[Any, _Continuing] = {}

    def _stream(self, seed: int, name: str, *key: int) -> np.random.Generator:
        where = name, *key
        if where not in self._generators:
            self._generators[where] = _Continuing(np.random.PCG64(stream_seed(seed, name, *key)))
        return self._generators[where]

    def _arrivals(self, seed: int) -> tuple[Times, Lengths | None]:
        process = self.spec.arrivals
        assert process is not None
        gaps = process._gaps(self.count, self._stream(seed, "arrivals"))
        clock = np.cumsum(np.concatenate([[self._clock], gaps]))[1:]
        self._clock = float(clock[-1])
        return process._times(clock), self._draw_classes(seed, self.count) if self.spec.classes else None


class _Continuing(np.random.Generator):
    """A generator with children that continue as well: it spawns them once."""

    _children: list[np.random.Generator] | None = None

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        """Return the children, the same ones each time."""
        if self._children is None:
            self._children = super().spawn(n_children)
        return self._children
