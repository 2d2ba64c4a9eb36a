"""The system being simulated: one worker's memory, its batch-time model, and the rules of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvgym.batch_time.base import BatchTimeModel
from kvgym.errors import ConfigError, WorkloadError
from kvgym.simulator.tables import (
    PROBLEM,
    PROGRESS_KEPT,
    PROGRESS_LOST,
    PROGRESS_RECOMPUTE,
    REQUEUE_ARRIVAL,
    REQUEUE_BACK,
    REQUEUE_FRONT,
)
from kvgym.workloads.table import RequestTable

FIRST_TOKEN = {"counted": (1, 1), "uncounted": (0, 1), "decode": (0, 0)}
PROGRESS_ON_EVICT = {"lost": PROGRESS_LOST, "recompute": PROGRESS_RECOMPUTE, "kept": PROGRESS_KEPT}
REQUEUE = {"arrival": REQUEUE_ARRIVAL, "front": REQUEUE_FRONT, "back": REQUEUE_BACK}


@dataclass(frozen=True)
class System:
    """A worker and the rules it runs by.

    Attributes:
        kv_capacity: KV memory, tokens.
        batch_time: duration of an iteration.
        first_token: ``"counted"`` (Jaillet et al.; flow control): the last prefill iteration emits output
            token 1, so a request takes o iterations with a whole prefill. ``"uncounted"`` (SLAI; stability
            framework): that iteration shows a first token, and o decode iterations follow. ``"decode"``
            (WAIT): prefill shows nothing, the first token comes from the first of o decode iterations.
        progress_on_evict: what an evicted request keeps. ``"lost"``: nothing, it returns as unprocessed.
            ``"recompute"``: its output tokens, whose KV is prefilled again with the prompt (vLLM).
            ``"kept"``: everything; its KV comes back on admission (swap at no cost).
        requeue: where an evicted request re-enters the queue: by ``"arrival"``, at the ``"front"``, or at
            the ``"back"``; several evicted at once enter in the order of the decision.
        horizon: seconds after which the run stops at the next iteration boundary; inf = when all are done.
        stall_limit: decisions in a row without any new token after which the run is declared a livelock;
            None = 10,000 plus 20 times the longest request.
    """

    kv_capacity: int
    batch_time: BatchTimeModel
    first_token: str = "counted"
    progress_on_evict: str = "lost"
    requeue: str = "arrival"
    horizon: float = np.inf
    stall_limit: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        if not (isinstance(self.kv_capacity, int | np.integer) and 2 <= self.kv_capacity < 2**31):
            raise ConfigError(
                f"kv_capacity = {self.kv_capacity!r}; expected a whole number of tokens, 2 … 2^31-1"
            )
        for name, valid in (
            ("first_token", FIRST_TOKEN),
            ("progress_on_evict", PROGRESS_ON_EVICT),
            ("requeue", REQUEUE),
        ):
            if getattr(self, name) not in valid:
                raise ConfigError(f"{name} = {getattr(self, name)!r}; valid: {', '.join(valid)}")
        if not self.horizon > 0:
            raise ConfigError(f"horizon = {self.horizon!r}; expected seconds > 0, or inf")
        if self.stall_limit is not None and self.stall_limit < 1:
            raise ConfigError(f"stall_limit = {self.stall_limit!r}; expected a whole number ≥ 1, or None")

    def check_fits(self, table: RequestTable) -> None:
        """Check that every request can be served alone.

        Raises:
            WorkloadError: a request whose KV at its last token exceeds the capacity.
        """
        peak = table.prompt_len + table.output_len
        too_long = peak > self.kv_capacity
        if too_long.any():
            i = int(np.argmax(peak))
            raise WorkloadError(
                f"{int(too_long.sum())} of {len(table)} requests can never be served: prompt + output exceeds "
                f"kv_capacity = {self.kv_capacity} tokens (longest: request {i}, {table.prompt_len[i]} + "
                f"{table.output_len[i]} = {peak[i]}). Drop or clip them, or choose hardware with more memory."
            )

    def to_record(self, table: RequestTable, needs: frozenset[str], log: bool) -> np.ndarray[Any, Any]:
        """Return the settings in the simulator's layout, dtype PROBLEM, shape (1,)."""
        problem = np.zeros(1, PROBLEM)
        p = problem[0]
        longest = int((table.prompt_len + table.output_len).max()) if len(table) else 0
        p["kv_capacity"] = self.kv_capacity
        p["num_requests"] = len(table)
        p["prefill_emits"], p["ttft_at_prefill"] = FIRST_TOKEN[self.first_token]
        p["progress_on_evict"] = PROGRESS_ON_EVICT[self.progress_on_evict]
        p["requeue"] = REQUEUE[self.requeue]
        p["stall_limit"] = self.stall_limit or 10_000 + 20 * longest
        p["horizon"] = self.horizon
        p["keep_log"] = log
        p["reveal_output"] = "true_length" in needs
        p["reveal_predicted"] = "predicted_length" in needs
        p["reveal_interval"] = "length_interval" in needs
        p["reveal_class"] = "class" in needs
        p["reveal_slo"] = "slo" in needs
        return problem
