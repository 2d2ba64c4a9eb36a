"""The tables of empty prefix caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.records import sparse_zeros
from kvgym.simulator.blocks import num_units
from kvgym.simulator.tables import CONTENT, POOL, PREFIX, UNIT, UNKNOWN
from kvgym.workloads.hashes import Chains
from kvgym.workloads.table import RequestTable


def empty_caches(
    table: RequestTable, unit: int, capacities: NDArray[np.int64], timed: bool
) -> dict[str, NDArray[Any]]:
    """Return the tables of empty prefix caches, by the names of the fields of ``PrefixCache``.

    Args:
        table: the requests; without block hashes none finds anything.
        unit: tokens of a unit; 0 = no prefix cache: the table of pools alone, as the others have no rows.
        capacities: memory of each worker, tokens, (r,). ``pool``, ``units``, ``contents`` and ``changed`` have a row
            for each.
        timed: whether ``changed`` is kept.

    Raises:
        WorkloadError: the unit does not fit the blocks that the hashes stand for.
        ConfigError: a table would be too large.
    """
    r = len(capacities)
    pool = sparse_zeros((r,), POOL)
    if not unit:
        _clear_pool(pool)
        return {"pool": pool}
    units, chains = num_units(int(capacities.max()), unit), table.chains(unit)
    tables: dict[str, NDArray[Any]] = {
        "pool": pool,
        "units": sparse_zeros((r, units), UNIT),
        "contents": np.empty((r, 0 if chains is None else chains.num_contents), CONTENT),
        "chain": np.zeros(0, np.int32) if chains is None else chains.chain,
        "held": sparse_zeros((0 if chains is None else int(chains.chain_len.sum()),), np.int32),
        "prefix": sparse_zeros((len(table),), PREFIX),
    }
    tables["changed"] = np.full((r, tables["contents"].shape[1] if timed else 0), -np.inf)
    clear_caches(tables, chains)
    return tables


def clear_caches(tables: Mapping[str, NDArray[Any]], chains: Chains | None) -> None:
    """Write empty prefix caches into tables that are at least as large as :func:`empty_caches` makes them.

    Args:
        tables: by name; ``prefix`` is zeroed, ``chain`` has the chains already.
        chains: those of the requests, None if none are known.
    """
    _clear_pool(tables["pool"])
    contents = tables["contents"]
    contents["unit"], contents["waiting"], contents["stamp"] = UNKNOWN, UNKNOWN, 0
    if chains is not None:
        prefix = tables["prefix"][: len(chains.chain_len)]
        prefix["chain"], prefix["length"] = chains.chain_start, chains.chain_len
        prefix["held"] = np.cumsum(chains.chain_len) - chains.chain_len


def _clear_pool(pool: NDArray[Any]) -> None:
    for name in ("head", "tail", "spare", "first_pin", "last_pin"):
        pool[name] = UNKNOWN
