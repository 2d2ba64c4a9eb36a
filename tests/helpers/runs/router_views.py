"""Views of routers made by hand, for their kernels as plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvgym.compiling.records import records
from kvgym.kernels import UNKNOWN, RouterView
from kvgym.simulator.prefix.host_memory import BELOW
from kvgym.simulator.tables import CONTENT, PREFIX, PROBLEM, REQUEST, SLOT, WORKER


def router_view(
    problems: Sequence[Mapping[str, Any]],
    workers: Sequence[Mapping[str, Any]],
    hits: Sequence[int] = (),
    *,
    prompt: int = 30,
    unit: int = 10,
    session: int = UNKNOWN,
    previous: int = UNKNOWN,
    hosts: Sequence[Sequence[int]] = (),
    backlog: Sequence[int] = (),
    **request: Any,
) -> RouterView:
    """Return the view of a router that sends request 0 to one of the workers.

    Args:
        problems: settings of each worker.
        workers: state of each worker.
        hits: units of the prompt that each has in its prefix cache; () = no cache.
        prompt: tokens of the prompt.
        unit: tokens of a unit.
        session: of the request.
        previous: worker of the session's previous request.
        hosts: which units of the prompt the memory of each worker's host has; () = no such memory.
        backlog: prompt tokens that the requests of each worker have yet to prefill; () = as in the tables.
        **request: other columns of the request.
    """
    count, length = len(workers), prompt // unit
    tables = records(PROBLEM, count), records(WORKER, count), records(REQUEST, 1)
    row = {"prompt_len": prompt, "num_prefill_left": prompt, "predicted_len": UNKNOWN, **request}
    for table, rows in zip(tables, (problems, workers, [row]), strict=True):
        for k, values in enumerate(rows):
            for name, value in values.items():
                table[name][k] = value
    tables[1]["queue_head"] = UNKNOWN
    contents, prefix = records(CONTENT, count, length), records(PREFIX, 1)
    contents["unit"] = UNKNOWN
    if hits:
        tables[0]["prefix_unit"], prefix["length"] = unit, length
        for k, found in enumerate(hits):
            contents["unit"][k, :found] = 0
    below = records(BELOW, count, length if hosts else 0)
    for k, units in enumerate(hosts):
        below["there"][k, list(units)] = 1
    chain = np.arange(length, dtype=np.int32)
    return RouterView(
        *tables, records(SLOT, count, 1), contents, np.zeros((count, 0)), below, chain, prefix,
        0.0, 0, 0, count, UNKNOWN, session, previous, np.zeros(0, np.uint8),
        np.array(backlog, np.int64), 0.0, 0,
    )  # fmt: skip
