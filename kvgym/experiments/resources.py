"""How much is asked for, before it is begun: what cannot be done is refused at once, not after minutes."""

from __future__ import annotations

import os
from pathlib import Path

from kvgym.errors import ConfigError

BYTES_PER_REQUEST = 600
"""Columns of the table, its record while it runs, and the copies that metrics and files are made of, about."""


BYTES_PER_SLOT = 84
"""Of a request that may be active on a worker."""


def check_memory(num_requests: int, workers: int, kv_capacity: int) -> None:
    """Check that so many requests fit into the memory that is free.

    Args:
        num_requests: requests.
        workers: workers, each with places for as many as may be active.
        kv_capacity: of each, tokens.

    Raises:
        ConfigError: they do not, by an estimate that the message names.
    """
    needed = num_requests * BYTES_PER_REQUEST + workers * min(num_requests, kv_capacity) * BYTES_PER_SLOT
    check_free(needed, f"{num_requests:,} requests on {workers:,} worker(s)", "choose fewer")


def check_free(needed: int, what: str, remedy: str) -> None:
    """Check that something fits into the memory that is free.

    Args:
        needed: bytes, an estimate.
        what: what it is, for the message: "1,000 requests".
        remedy: what would be right.

    Raises:
        ConfigError: it does not.
    """
    free = free_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"{what} take about {needed // 10**9:,} GB of memory, {free / 1e9:,.1f} GB are free: {remedy}"
        )


def free_memory() -> int | None:
    """Return the bytes that this machine can still give, None where it does not say."""
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
