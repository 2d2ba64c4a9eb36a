"""What a worker is told to do at an iteration boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Decision:
    """What a worker is to do until the next iteration boundary: evict, then admit, then run.

    Attributes:
        admit: ids of waiting requests to activate, in order.
        evict: ids of active requests to send back to the queue, in order.
        tokens: tokens to process in the coming iteration by request id: a prefill chunk, 1 or 0 for a decode
            step, 0 = paused. Requests left out run in full: the whole prefill, or one decode step.
        wait_until: do not run a batch, but wait for the next arrival, at the latest until this time
            (seconds; ``math.inf`` = the next arrival). None = run a batch; an empty one stalls the worker
            for the time of an empty batch.
        put_back: requests that were picked without a look at memory and stay in the queue because it does not
            suffice: a count for the metrics, which changes nothing.
    """

    admit: Sequence[int] = ()
    evict: Sequence[int] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)
    wait_until: float | None = None
    put_back: int = 0
