"""Block hashes of logs that have none, from sessions and system prompts: an approximation.

A log with session ids and lengths says which requests may begin alike, not that they do. The assumption: a turn's
prompt begins with the prompt and the output of the turn before, and a session with a system prompt of a given length,
one for each client. What contradicts the lengths is not assumed: a prompt that is shorter than its history begins a
new history, and one that is shorter than the system prompt does not have it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.utils.checks import whole_number
from kvgym.workloads.base import MAX_TOKENS
from kvgym.workloads.prefix.prefixes import part_hashes
from kvgym.workloads.traces.trace import Trace

BLOCK = 16
"""Tokens of a hash. A block in which two requests part is not shared."""


def with_histories(trace: Trace, shared: int) -> Trace:
    """Return a trace with block hashes that follow from its sessions, its clients and a system prompt.

    Args:
        trace: the trace, its rows in order of arrival.
        shared: tokens of the system prompt with which sessions begin, without sessions requests; 0 = none.

    Raises:
        ConfigError: the number is wrong, or the trace has block hashes.
    """
    shared = whole_number(shared, "shared_prefix", "a whole number of tokens ≥ 0", 0, MAX_TOKENS)
    if "hashes" in trace.extra:
        raise ConfigError(
            f"shared_prefix = {shared}: {trace.path} has block hashes, which say what requests share; leave "
            "shared_prefix (--shared-prefix) out"
        )
    n, prompt = len(trace), trace.prompt_len
    total = prompt + trace.output_len
    first = np.arange(n) if (ids := trace.extra.get("session_id")) is None else begun(ids, prompt, total)
    has = (prompt >= shared)[first]
    clients = np.unique(trace.extra.get("client_id", np.zeros(n, np.int64)), return_inverse=True)[1]
    nodes = np.where(has, clients[first] + 1, 0)
    ends = np.stack([np.zeros(n, np.int64), np.where(has, shared, 0)], axis=1)
    hashes = part_hashes(nodes[:, None], ends, first, total, BLOCK)
    return replace(
        trace, extra={**trace.extra, "hashes": hashes}, notes=(*trace.notes, _note(trace, first, has, shared))
    )


def begun(
    session_id: NDArray[np.int64], prompt: NDArray[np.int64], total: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the request with which the history of each request begins, int64 (n,).

    Args:
        session_id: int64 (n,), in order of arrival.
        prompt: tokens of the prompts, int64 (n,).
        total: tokens of prompts and outputs, int64 (n,).
    """
    order = np.argsort(session_id, kind="stable")
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(session_id[order]) != 0) | (prompt[order[1:]] < total[order[:-1]])
    first = np.empty(len(order), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    return first


def _note(trace: Trace, first: NDArray[np.int64], has: NDArray[np.bool_], shared: int) -> str:
    """Return the note on what requests are assumed to share."""
    n, parts = len(trace), []
    if (ids := trace.extra.get("session_id")) is not None:
        later, found = n - len(np.unique(ids)), n - len(np.unique(first))
        short = " (the others are shorter)" if found < later else ""
        parts.append(f"{found:,} of {later:,} later turns begin with the history of their session{short}")
    if shared:
        each = ", one for each client" if "client_id" in trace.extra else ""
        parts.append(f"{int(has.sum()):,} of {n:,} requests with a system prompt of {shared:,} tokens{each}")
    listed = ", ".join(parts) or "nothing: there are no sessions and no system prompt"
    return f"Block hashes are assumed, see docs/prefix-cache.md: {listed}."
