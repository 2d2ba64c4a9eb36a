"""The gaps between tokens, request by request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym import RequestTable, System, make_policy
from kvgym.policies.runner import prepare_run
from kvgym.simulator.tables import FINISHED

Array = NDArray[np.float64]


def token_gaps(
    system: System, table: RequestTable, policy: str, window: tuple[float, float]
) -> tuple[NDArray[np.int64], Array]:
    """Return every gap between tokens that ends in a window of time: its request, and its seconds.

    The simulator keeps one histogram of all gaps; here it is stopped after each iteration of the window.
    """
    run, _ = prepare_run(system, table, make_policy(policy))
    ended = False
    while not ended and run.worker["clock"] < window[0]:
        ended = run.run(budget=20)
    last, owners, gaps = run.requests["last_token_time"].copy(), [np.empty(0, np.int64)], [np.empty(0)]
    slots = run.active[0, : run.worker["num_active"]]
    before = slots["request_id"].astype(np.int64)
    last[before] = slots["last_token_time"]
    while not ended and run.worker["clock"] < window[1]:
        ended = run.run(budget=1)
        slots = run.active[0, : run.worker["num_active"]]
        left, before = (
            before[run.requests["status"][before] == FINISHED],
            slots["request_id"].astype(np.int64),
        )
        ids = np.concatenate((left, before))
        times = np.concatenate((run.requests["finish_time"][left], slots["last_token_time"]))
        later = times > last[ids]  # not where either is NaN, before the first token
        owners.append(ids[later])
        gaps.append((times - last[ids])[later])
        moved = later | np.isnan(last[ids])
        last[ids[moved]] = times[moved]
    return np.concatenate(owners), np.concatenate(gaps)
