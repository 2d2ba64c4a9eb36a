"""Settings of speculative decoding, and the tables of a run with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel
from kvgym.errors import ConfigError, WorkloadError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.drafts.acceptance import Acceptance, chances, find_acceptance
from kvgym.simulator.drafts.tables import DRAFTS, MAX_DEPTH, RULES, SPECULATION, TABLE
from kvgym.utils.arguments import explained_class
from kvgym.utils.checks import real_number, whole_number
from kvgym.utils.seeding import stream
from kvgym.utils.specs import parse_spec
from kvgym.workloads.table import RequestTable

_MOST_SECONDS = 1e3


@explained_class
@dataclass(frozen=True)
class Speculation:
    """Speculative decoding on one worker: a decode verifies drafts besides its own token.

    Attributes:
        acceptance: name of a published acceptance (:data:`~kvgym.simulator.drafts.acceptance.ACCEPTANCES`), or the
            rates of right drafts by position, each of those after right ones only.
        depth: most drafts of a request in a batch, 1 … 16.
        choose: ``"fixed"``: always ``depth``. ``"table"``: by the requests in the batch, as ``by_batch`` says.
            ``"cost"``: as many as give the most expected tokens per second by the batch-time model and the acceptance
            so far. ``"cost_each"``: the same with a number for each request, by its own acceptance.
        by_batch: ranges of requests and their number of drafts, ``((1, 16, 3), (17, 64, 1))``, from 1 on; sizes
            between and behind ranges have the number of the range before them.
        lookahead: tokens of memory reserved beyond those of a batch; None = ``depth`` if the drafter writes KV of its
            own (EAGLE, MTP, draft models), 0 for n-grams.
        spread: standard deviation between requests on the logit of the rates; None = that of the acceptance.
        by_class: acceptances of the classes, by ``class_id``; empty = all requests have ``acceptance``.
        recorded: for each request the drafts that are right after 0, 1, … output tokens, in place of an acceptance.
        draft_ms: milliseconds per batch for making its drafts; None, as for the next three: the acceptance's.
        draft_ms_per_pass: and per draft of the request with the most.
        draft_us: and microseconds per draft.
        draft_ns_per_kv_token: and nanoseconds per token in the cache of the requests that decode.
    """

    acceptance: str | tuple[float, ...] = "eagle-chat"
    depth: int = 3
    choose: str = "fixed"
    by_batch: tuple[tuple[int, int, int], ...] = ()
    lookahead: int | None = None
    spread: float | None = None
    by_class: tuple[str | tuple[float, ...], ...] = ()
    recorded: tuple[tuple[int, ...], ...] | None = None
    draft_ms: float | None = None
    draft_ms_per_pass: float | None = None
    draft_us: float | None = None
    draft_ns_per_kv_token: float | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
            UnknownNameError: an unknown acceptance.
        """
        whole_number(self.depth, "speculation: depth", f"1 … {MAX_DEPTH} drafts", most=MAX_DEPTH)
        if not isinstance(self.choose, str) or self.choose not in RULES:
            raise ConfigError(f"speculation: choose = {shown(self.choose)}; valid: {', '.join(RULES)}")
        if self.lookahead is not None:
            whole_number(self.lookahead, "speculation: lookahead", "tokens, 0 … 64", least=0, most=64)
        if (RULES[self.choose] == TABLE) != bool(self.by_batch):
            raise ConfigError(
                f"speculation: choose = {self.choose} with by_batch = {shown(self.by_batch)}; expected choose = table "
                "with ranges such as [[1, 16, 3], [17, 64, 1]], or neither"
            )
        self._check_ranges()
        for name in ("spread", "draft_ms", "draft_ms_per_pass", "draft_us", "draft_ns_per_kv_token"):
            if getattr(self, name) is not None:
                expected = f"a number, 0 … {_MOST_SECONDS:g}"
                real_number(
                    getattr(self, name), f"speculation: {name}", expected, lambda x: 0 <= x <= _MOST_SECONDS
                )
        for given in (self.acceptance, *self.by_class):
            find_acceptance(given)

    def _check_ranges(self) -> None:
        end = 0
        for k, row in enumerate(self.by_batch):
            valid = isinstance(row, tuple | list) and len(row) == 3 and all(type(x) is int for x in row)
            if not valid or not end < row[0] <= row[1] or (k == 0 and row[0] != 1) or not row[2] >= 0:
                raise ConfigError(
                    f"speculation: by_batch[{k}] = {shown(row)}; expected ascending ranges [first, last, drafts] of "
                    "requests, the first from 1 on"
                )
            end = row[1]

    def check(self, batch_time: BatchTimeModel, workers: int, first_token: str) -> None:
        """Check that a system can speculate.

        Raises:
            ConfigError: it is a cluster, its batch times do not depend on drafts, or it does not count the first token.
        """
        if workers:
            raise ConfigError(
                f"speculation with {workers} workers; expected one worker: clusters and fleets do not speculate yet"
            )
        if first_token != "counted":
            raise ConfigError(
                f"speculation with first_token = {first_token}; expected counted: the rules of papers decode one token"
            )
        kernel = getattr(batch_time, "kernel", None)
        if isinstance(kernel, Kernel) and not kernel.reads("draft_tokens"):
            raise ConfigError(
                f"speculation with batch time {type(batch_time).__name__}, which does not depend on draft_tokens, so "
                "that drafts would cost nothing; expected a model of an engine, or a kernel that reads that field"
            )

    @property
    def own(self) -> Acceptance:
        """The acceptance, with the settings that replace parts of it."""
        found = find_acceptance(self.acceptance)
        given: dict[str, Any] = {
            "spread": self.spread,
            "base_ms": self.draft_ms,
            "ms_per_pass": self.draft_ms_per_pass,
            "us_per_draft": self.draft_us,
            "ns_per_kv_token": self.draft_ns_per_kv_token,
        }
        return found._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def reserved(self) -> int:
        """Tokens of memory beyond those of a batch."""
        return self.lookahead if self.lookahead is not None else self.depth * self.own.owns_kv

    @property
    def memory(self) -> int:
        """Tokens of memory that a request may take beyond its prompt and output."""
        return self.depth + self.reserved

    def depths(self, slots: int) -> NDArray[np.int32]:
        """Return the number of drafts for 0, 1, … ``slots`` requests in a batch, int32 (slots + 1,); (0,) if fixed."""
        if not self.by_batch:
            return np.zeros(0, np.int32)
        starts = np.array([first for first, _, _ in self.by_batch])
        drafts = np.minimum([number for *_, number in self.by_batch], self.depth)
        sizes = np.maximum(np.arange(slots + 1), 1)
        return drafts[np.searchsorted(starts, sizes, side="right") - 1].astype(np.int32)

    def odds(self, table: RequestTable, seed: int) -> NDArray[np.float64]:
        """Return what is right of the requests of a table, float64 (n (1 + depth),).

        It has for each request a word for its draws, and the probability that its first 1, 2, … drafts are right.
        """
        rng, n = stream(seed, "drafts"), len(table)
        found = np.empty((n, 1 + self.depth))
        found[:, 0] = rng.integers(0, 2**32, n)
        normal = rng.standard_normal(n)
        found[:, 1:] = chances(self.own, self.depth, normal)
        if self.by_class and table.class_id is None:
            raise WorkloadError(
                "speculation by_class needs requests with classes; the workload has no class_id"
            )
        for k, given in enumerate(self.by_class):
            rows = table.class_id == k
            of_class = replace(self, acceptance=given, by_class=()).own
            found[rows, 1:] = chances(of_class, self.depth, normal[rows])
        return found.ravel()

    def rights(self, table: RequestTable) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        """Return the recorded numbers of right drafts in one row, int8 (N,), and where each request begins, (n,)."""
        rows = self.recorded or ()
        lengths = np.array([len(row) for row in rows], np.int64)
        if len(rows) != len(table) or (lengths < table.output_len).any():
            raise WorkloadError(
                f"speculation: recorded has {len(rows)} rows; expected one for each of {len(table)} requests, with at "
                "least as many numbers as the request has output tokens"
            )
        flat = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.zeros(0)
        return np.clip(flat, 0, MAX_DEPTH).astype(np.int8), np.concatenate([[0], np.cumsum(lengths)[:-1]])

    def spec(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as plain values for a file."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        usual = Speculation()
        return {name: value for name, value in plain.items() if value != getattr(usual, name)}


def make_speculation(given: str | Mapping[str, Any] | Speculation | None) -> Speculation | None:
    """Return the speculation that a text or a mapping describes; None for None or ``"off"``.

    Args:
        given: ``"eagle-chat:depth=4,choose=cost"``, the name of an acceptance with other settings; or all settings by
            name.

    Raises:
        ConfigError: another form, an unknown setting, or a value out of range.
    """
    if given is None or isinstance(given, Speculation) or given == "off":
        return given if isinstance(given, Speculation) else None
    if isinstance(given, str):
        name, options = parse_spec(given, "speculation")
        given = {"acceptance": name, **options}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"speculation = {shown(given)}; expected a name, as in eagle-chat:depth=4, or settings"
        )
    valid = [f.name for f in fields(Speculation)]
    if unknown := sorted(map(str, set(given) - set(valid))):
        raise ConfigError(f"speculation: unknown setting {', '.join(unknown)}; valid: {', '.join(valid)}")
    return Speculation(**{name: _tuples(value) for name, value in given.items()})


def _tuples(value: Any) -> Any:
    """Return lists as tuples, so that settings are hashable."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def draft_tables(
    speculation: Speculation | None, table: RequestTable, slots: int, seed: int
) -> dict[str, NDArray[Any]]:
    """Return the tables of a run with speculation by name; none without it.

    Args:
        speculation: the settings; None = off.
        table: the requests.
        slots: most active requests.
        seed: of the run; equal seeds have equal drafts under all depths and policies.
    """
    if speculation is None:
        return {}
    record = np.zeros((1, 1), SPECULATION)
    s, own = record[0, 0], speculation.own
    s["depth"], s["rule"] = speculation.depth, RULES[speculation.choose]
    s["per_batch"], s["per_pass"] = own.base_ms / 1e3, own.ms_per_pass / 1e3
    s["per_draft"], s["per_context"] = own.us_per_draft / 1e6, own.ns_per_kv_token / 1e9
    s["seeded"] = speculation.recorded is None
    given = {
        "speculation": record,
        "drafts": np.zeros((1, slots), DRAFTS),
        "depths": speculation.depths(slots),
    }
    if speculation.recorded is None:
        return given | {"odds": speculation.odds(table, seed)}
    rights, first = speculation.rights(table)
    return given | {"rights": rights, "first_right": first}
