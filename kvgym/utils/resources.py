"""Checks of memory before it is taken: free memory for what grows with a run, a limit for tables that settings size."""

from __future__ import annotations

import os
from pathlib import Path

from kvgym.errors import ConfigError

BYTES_PER_REQUEST = 600
"""Approximate bytes per request: columns of the table, its record during the run, and copies for metrics and files."""


BYTES_PER_SLOT = 84
"""Bytes per request that may be running on a worker."""


ALWAYS_FREE = 10**8
"""Bytes that are there without a look."""


LARGEST_TABLE = 2**30
"""Most bytes of a table that grows with a setting, such as the KV capacity, and not with the work of a run.

A larger one would be mostly unused, yet be allocated and cleared for every run or episode.
"""


def check_table(size: int, what: str, remedy: str) -> None:
    """Check that a table that a setting sizes is not too large; the same on every machine.

    Args:
        size: of the table, bytes.
        what: the table and the settings that size it, for the message.
        remedy: which setting to change, for the message.

    Raises:
        ConfigError: it has more than :data:`LARGEST_TABLE` bytes.
    """
    if size > LARGEST_TABLE:
        raise ConfigError(
            f"{what} takes {size / 2**30:,.1f} GiB; at most {LARGEST_TABLE / 2**30:g} GiB is possible: {remedy}"
        )


def check_memory(num_requests: int, workers: int, kv_capacity: int) -> None:
    """Check that the requests of a run fit into free memory.

    Args:
        num_requests: number of requests.
        workers: number of workers, each with slots for all requests that may be running.
        kv_capacity: KV memory of each, tokens.

    Raises:
        ConfigError: they do not fit, by an estimate in the message.
    """
    needed = num_requests * BYTES_PER_REQUEST + workers * min(num_requests, kv_capacity) * BYTES_PER_SLOT
    check_free(needed, f"{num_requests:,} requests on {workers:,} worker(s)", "choose fewer")


def check_free(needed: int, what: str, remedy: str) -> None:
    """Check that something fits into free memory.

    Args:
        needed: bytes, an estimate.
        what: name for the message, as in "1,000 requests".
        remedy: what to do instead, for the message.

    Raises:
        ConfigError: it does not fit.
    """
    free = free_memory() if needed > ALWAYS_FREE else None
    if free is not None and needed > free:
        raise ConfigError(
            f"{what} take about {needed // 10**9:,} GB of memory, {free / 1e9:,.1f} GB are free: {remedy}"
        )


def free_memory() -> int | None:
    """Return the free memory of this machine, bytes; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
