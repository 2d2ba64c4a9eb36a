"""Layout of an environment's tables: how many rows an episode needs, and the content that episodes begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.memory import Block, Rows, Sizes, rule_tables
from kvgym.envs.scheduling.revealed import columns_size, reveals_extras
from kvgym.policies.policy import SystemInfo
from kvgym.simulator.blocks import num_units
from kvgym.simulator.prefix.empty import clear_caches
from kvgym.simulator.recording.gaps import SPARSE_HEADER, sparse_length
from kvgym.simulator.sessions import empty_sessions
from kvgym.simulator.system import System
from kvgym.simulator.tables import UNKNOWN
from kvgym.workloads.forecasts import extra_tables
from kvgym.workloads.layout import words
from kvgym.workloads.table import RequestTable


def _power_of_two(rows: int) -> int:
    """Return the smallest power of two from ``rows`` on; 0 for 0."""
    return 1 << (rows - 1).bit_length() if rows else 0


class Layout:
    """The layouts of the tables of environments of one configuration.

    Args:
        config: the configuration.
        system: the system of the episodes.
        settings: SETTINGS record, shape (1,).
        info: what a policy gets before an episode.
        turns: whether the turns of sessions are followed, in the open loop as well.
    """

    def __init__(
        self, config: EnvConfig, system: System, settings: NDArray[Any], info: SystemInfo, turns: bool
    ) -> None:
        self._config, self._system, self._settings, self._info = config, system, settings, info
        self._turns = turns or system.sessions == "closed"
        self._beginnings: dict[Sizes, NDArray[np.uint8]] = {}

    def rows(self, table: RequestTable) -> Rows:
        """Return the numbers of rows that the requests of an episode need."""
        unit = self._system.prefix_unit
        chains = table.chains(unit) if unit else None
        renewals = 0
        if table.forecasts is not None and "renewed_length" in self._config.information:
            renewals = len(table.forecasts.renewed)
        edges = 0 if table.parents is None else len(table.parents.rows)
        children = edges if self._system.sessions == "closed" else 0
        if chains is None:
            return Rows(len(table), renewals=renewals, children=children)
        held = int(chains.chain_len.sum())
        return Rows(len(table), chains.num_contents, len(chains.chain), held, renewals, children)

    def sizes(self, rows: Rows) -> Sizes:
        """Return the sizes of tables with room for these rows.

        The tables of chains, renewals and children, which differ between episodes, get a power of two, so that few
        layouts are in use.
        """
        config, unit = self._config, self._system.prefix_unit
        n = max(1, rows.num_requests)
        closed = n if self._system.sessions == "closed" else 0
        return Sizes(
            num_requests=n,
            slots=min(n, self._system.usable_capacity),
            window=config.queue_window,
            heap=0 if config.queue_order in ("queue", "rank") else n + 2,
            gap_bins=sparse_length(n),
            rule=tuple(table.size for table in self._rule_tables(n).values()),
            terms=int(self._settings["term_memory"].sum()),
            shown=config.active_window,
            notes=config.kind.num_notes(config),
            columns=columns_size(config, n),
            extras=n if reveals_extras(config) else 0,
            renewals=_power_of_two(rows.renewals),
            units=num_units(self._system.usable_capacity, unit),
            contents=_power_of_two(rows.contents),
            chain=_power_of_two(rows.chain),
            held=_power_of_two(rows.held),
            prefix=n if unit else 0,
            turns=n if self._turns else 0,
            script=closed,
            due=closed,
            scheduled=1 + closed if closed else 0,
            children=_power_of_two(rows.children),
        )

    def larger(self, sizes: Sizes, needed: Rows) -> Sizes:
        """Return sizes with room for the needed rows as well; requests get twice the room they need."""
        present = Rows.of(sizes)
        n = present.num_requests if needed.num_requests <= present.num_requests else 2 * needed.num_requests
        return self.sizes(Rows(n, *map(max, needed[1:], present[1:])))

    def fits(self, sizes: Any, own: Sizes, most: int) -> bool:
        """Return whether these are the sizes ``own``, or others of this configuration with at most ``most`` rows."""
        if not _are_sizes(sizes):
            return False
        if sizes == own:
            return True
        rows = Rows.of(sizes)
        return all(0 <= count <= most for count in rows) and sizes == self.sizes(rows)

    def _rule_tables(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the initial tables of the action kind's rule for an episode of n requests."""
        info = replace(self._info, max_requests=n)
        return rule_tables(self._config.kind.policy_memory(self._config, info))

    def _beginning(self, sizes: Sizes) -> NDArray[np.uint8]:
        """Return the initial content of a block, without the episode's own data; cached by size."""
        if sizes not in self._beginnings:
            block = Block(sizes, self._settings)
            worker = block["workers"][0]
            worker["queue_head"] = worker["queue_tail"] = UNKNOWN
            block["episode"][0]["cursor"] = UNKNOWN
            block["gap_counts"][0] = SPARSE_HEADER
            for name in ("start_time", "first_token_time", "last_token_time", "finish_time", "ready_time"):
                block["requests"][name] = np.nan
            block["requests"]["worker"] = UNKNOWN
            for name, content in self._rule_tables(sizes.num_requests).items():
                block[name][:] = content
            self._beginnings[sizes] = block.memory
        return self._beginnings[sizes]

    def begin(self, block: Block, table: RequestTable, needs: frozenset[str]) -> None:
        """Write the beginning of an episode, for which the block has room.

        Args:
            block: the tables.
            table: the requests.
            needs: what is revealed of them.
        """
        block.memory[:] = self._beginning(block.sizes)
        words(block["problem"])[:] = words(self._system.to_record(table, needs, log=False))
        words(block["workload"])[: len(table)] = words(table.to_records())
        if len(block["columns"]):
            block["columns"][: table.features.size] = table.features.ravel()
        if len(block["extras"]):
            for name, content in extra_tables(table, needs, always=True).items():
                block[name][: len(content)] = content
        if self._system.prefix_unit:
            chains = table.chains(self._system.prefix_unit)
            if chains is not None:
                block["chain"][: len(chains.chain)] = chains.chain
            clear_caches(block.tables, chains)
        if self._turns:
            prefix, closed = block["prefix"][: len(table)], self._system.sessions == "closed"
            made = empty_sessions(table, prefix, closed=closed, exposed=True)
            for name in ("turns", "script", "due", "scheduled", "children"):
                block[name][: len(made[name])] = made[name]


def _are_sizes(given: Any) -> bool:
    """Return whether these are sizes of whole numbers; a damaged state may hold arrays, which cannot be compared."""
    if not isinstance(given, Sizes):
        return False
    numbers = (number for part in given for number in (part if isinstance(part, tuple) else (part,)))
    return all(isinstance(number, int) for number in numbers)
