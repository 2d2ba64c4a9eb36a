"""Requests and batches of the plain scheduler ``ranked``, written from docs/ranked.md ("Score")."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kvgym.batch_time import LOAD_FIELDS
from kvgym.errors import InformationError

INF = math.inf


@dataclass(eq=False)
class Job:
    """A request: its revealed information, its state at this boundary, and the results of its last scoring."""

    id: int
    arrival: float
    predicted: int
    low: int
    high: int
    group: int
    ttft: float
    tbt: float
    first: float
    last: float
    gap: float
    most: int  # most output tokens that it has ever had
    made: int = 0
    left: int = 0
    kv: int = 0
    evictions: int = 0
    active: bool = False
    base: float = 0.0
    rest: float = 0.0  # when the base was computed
    added: float = 0.0  # by its deadline
    pressed: bool = False  # when that was computed

    @property
    def score(self) -> float:
        return self.base + self.added

    @property
    def has_objective(self) -> bool:
        return self.ttft < INF or self.tbt < INF

    @property
    def tokens(self) -> int:
        """Return the tokens that it processes if nothing limits the batch."""
        return max(self.left, 1)

    def deadline(self) -> float:
        if math.isnan(self.last):
            return self.arrival + self.ttft
        missed = self.first - self.arrival > self.ttft or self.gap > self.tbt
        return -INF if missed else self.last + self.tbt

    def shown(self, time: float) -> None:
        """Record that a token has been emitted."""
        if math.isnan(self.last):
            self.first = time
        else:
            self.gap = max(self.gap, time - self.last)
        self.last = time


def revealed(rows: Any, name: str, k: int) -> int:
    """Return an optional column's entry, -1 if the policy may not observe it."""
    try:
        return int(getattr(rows, name)[k])
    except InformationError:
        return -1


def in_order(job: Job) -> tuple[float, int]:
    return job.score, job.id


Batch = list[tuple[Job, int]]
"""Requests with tokens to process."""


def load_of(batch: Batch) -> dict[str, int]:
    load = dict.fromkeys(LOAD_FIELDS, 0)
    for job, tokens in batch:
        if job.left == 0:
            load["num_decodes"] += 1
            load["decode_context"] += job.kv
        else:
            load["num_prefills"] += 1
            load["prefill_tokens"] += tokens
            load["prefill_context"] += job.kv
            load["prefill_squares"] += tokens * tokens
            load["prefill_products"] += tokens * job.kv
    return load


def prefix(items: Batch, size: int) -> Batch:
    """Return the first items with ``size`` tokens in total, the last one possibly in part."""
    batch = Batch()
    for job, tokens in items:
        part = min(tokens, size)
        if part == 0:
            break
        batch.append((job, part))
        size -= part
    return batch
