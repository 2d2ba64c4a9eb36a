"""Users' tables: find the columns by their names, and the unit of the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches

import yaml

from kvgym.errors import ConfigError, TraceFormatError, shown, some
from kvgym.workloads.layout import FEATURE_COLUMNS
from kvgym.workloads.traces.clock import UNITS, plain_name, time_kind, without_unit
from kvgym.workloads.traces.sharing import FORECAST_COLUMNS, HASH_COLUMNS, SESSION_COLUMNS
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import Column, Columns, to_seconds

OWN_COLUMNS = (
    Column("arrival_time", "arrival_time", "seconds"),
    Column("prompt_len", "prompt_len", "tokens"),
    Column("output_len", "output_len", "tokens"),
    Column("predicted_output_len", "predicted_output_len", "positive", required=False),
    Column("predicted_low", "predicted_low", "positive", required=False),
    Column("predicted_high", "predicted_high", "positive", required=False),
    Column("class_id", "class_id", "index", required=False),
    Column("priority", "priority", "integer", required=False),
    Column("ttft_slo", "ttft_slo", "slo", required=False),
    Column("tbt_slo", "tbt_slo", "slo", required=False),
    Column("e2e_slo", "e2e_slo", "slo", required=False),
    Column("client_id", "client_id", "label", required=False),
    *(Column(name, name, "number", required=False) for name in FEATURE_COLUMNS),
    *SESSION_COLUMNS,
    *FORECAST_COLUMNS,
    *HASH_COLUMNS,
)
"""Columns of kvgym's own format: all that a trace may contain."""

SHORT = {"arrival": "arrival_time", "prompt": "prompt_len", "output": "output_len"}
"""Short names of the most important columns, for mappings."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "arrival_time": (
        "arrival_time", "arrival", "arrived_at", "arrival_timestamp", "timestamp", "time", "ts", "datetime",
        "start_time", "start_time_unix", "request_time", "request_timestamp", "created_at", "received_at",
        "submitted_at", "submit_time",
    ),
    "prompt_len": (
        "prompt_len", "prompt_length", "prompt_tokens", "num_prompt_tokens", "prompt_token_count", "input_len",
        "input_length", "input_tokens", "num_input_tokens", "input_token_count", "context_tokens", "request_tokens",
        "prefill_tokens", "num_prefill_tokens", "gen_ai_usage_input_tokens",
    ),
    "output_len": (
        "output_len", "output_length", "output_tokens", "num_output_tokens", "output_token_count", "completion_len",
        "completion_length", "completion_tokens", "num_completion_tokens", "generated_tokens",
        "num_generated_tokens", "response_len", "response_length", "response_tokens", "decode_tokens",
        "num_decode_tokens", "gen_ai_usage_output_tokens",
    ),
}  # fmt: skip
"""Names that are known without a mapping, in the form of :func:`plain_name`; optional columns need their own names."""

_IDENTITIES = frozenset(
    f"{owner}{end}"
    for owner in (
        "session",
        "conversation",
        "chat",
        "thread",
        "user",
        "client",
        "customer",
        "tenant",
        "account",
    )
    for end in ("", "_id", "_uuid", "_key", "_name")
)
"""Names of columns that say which requests belong together, in the form of :func:`plain_name`."""

_HINTS = {
    "arrival_time": {"at", "date", "when"},
    "prompt_len": {"in", "question"},
    "output_len": {"out", "answer"},
}
"""Words in unknown names that lead to a suggestion."""


def alias_table() -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return headings and rows of the table of known names in docs/traces.md."""
    rows = {short: (", ".join(ALIASES[target]),) for short, target in SHORT.items()}
    return ("column", "names that are known without a mapping"), rows


@dataclass(frozen=True)
class OwnTable:
    """The format of tables with one row per request and any column names; see docs/traces.md.

    Attributes:
        mapping: column names in the file by meaning: keys of :data:`SHORT` or targets of ``columns``.
            ``arrival="none"`` = there are no times.
        time_unit: key of :data:`UNITS`; None = determined by the values or the name if these are clear, else seconds.
        columns: possible columns, by default kvgym's own.
        aliases: known names of these columns.
    """

    mapping: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    columns: tuple[Column, ...] = OWN_COLUMNS
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: ALIASES)
    name: str = "table"
    description: str = "any table, CSV, JSON or Parquet: usual names of columns, or --columns; docs/traces.md"
    zero: str = "a prompt or output of length 0"
    batched: bool = False
    own_clock: bool = False
    block: int | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigError: an unknown key or unit.
        """
        valid = [*SHORT, *(c.target for c in self.columns)]
        for key, name in self.mapping.items():
            if key not in valid:
                meant = f"{name}={key}" if name in valid else f"{_meant(key)}={name}" if _meant(key) else ""
                hint = meant and f"write {meant}; "
                raise ConfigError(
                    f"columns: {shown(key)} is not a column of a request; {hint}valid: {', '.join(valid)}"
                )
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise ConfigError(f"time_unit = {shown(self.time_unit)}; valid: {', '.join(UNITS)}")

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these columns or keys can be read without further options."""
        return not self.resolve(names)[1]

    def refusal(self, source: SourceFile, what: str = "") -> TraceFormatError:
        """Return the error about a file that does not match: missing or ambiguous columns, and the mapping to give.

        Args:
            source: the file.
            what: beginning of the message, ``"unknown format; "``.
        """
        names, problems = source.names, "; ".join(self.resolve(source.names)[1])
        found = f"found columns {some(names, 60) or 'none'}: {problems}"
        message = f"{source.path}: {what}{found}. Name them: {self.mapping_of(names)}"
        return TraceFormatError(
            message,
            f"{message}\nin a scenario file, next to trace, and in Python: {self.field_of(names)}\n"
            "use arrival=none if there are no times; kvgym list traces shows the known formats",
        )

    def mapping_of(self, names: tuple[str, ...]) -> str:
        """Return the option that maps the columns of a file; unknown columns are guessed from their names."""
        return f'--columns "{",".join(f"{short}={name}" for short, name in self._guessed(names).items())}"'

    def field_of(self, names: tuple[str, ...]) -> str:
        """Return the mapping of :meth:`mapping_of` in the form of a scenario file."""
        return yaml.safe_dump(
            {"columns": self._guessed(names)}, sort_keys=False, default_flow_style=True, width=10**6
        )[1:-2]

    def _guessed(self, names: tuple[str, ...]) -> dict[str, str]:
        found, _ = self.resolve(names)
        left = [name for name in names if name not in found.values()]
        for target in SHORT.values():
            if target not in found and (near := _nearest(target, left)):
                found[target] = near
                left.remove(near)
        return {short: found.get(target, "NAME") for short, target in SHORT.items()}

    def read(self, source: SourceFile, tokenizer: object) -> tuple[Columns, list[str]]:
        """Return the columns in file order, times in seconds, and notes.

        Raises:
            TraceFormatError: a column is missing or ambiguous, or a value is wrong.
        """
        found, problems = self.resolve(source.names)
        if problems:
            raise self.refusal(source)
        kinds = {c.target: c.kind for c in self.columns}
        notes = []
        if "arrival_time" in found:
            name = found["arrival_time"]
            kinds["arrival_time"], how = time_kind(name, source.first_value(name), self.time_unit)
            notes.append(f"Times are {how}.")
        data = source.columns([Column(name, target, kinds[target]) for target, name in found.items()])
        if "arrival_time" in found:
            data["arrival_time"] = to_seconds(data["arrival_time"], kinds["arrival_time"])
        ignored = [name for name in source.names if name not in found.values()]
        return data, [
            columns_note(found, source.names),
            *identity_notes(ignored, "session_id" in data),
            *notes,
        ]

    def resolve(self, names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
        """Return the name of each column by its target, and the missing or ambiguous columns.

        A column with kvgym's own name takes precedence over those with other known names.
        """
        given = {SHORT.get(key, key): name for key, name in self.mapping.items()}
        untimed = given.get("arrival_time") == "none" and "none" not in names
        found, problems = {}, []
        for column in self.columns:
            target = column.target
            if target == "arrival_time" and untimed:
                continue
            if target in given:
                known = [name for name in names if name == given[target]]
                missing = f"there is no {given[target]!r}"
            else:
                free = [name for name in names if name not in given.values()]
                known = [target] if target in free else [name for name in free if self._known(name, column)]
                missing = f"no known name for the {_word(target)}"
            if len(known) == 1:
                found[target] = known[0]
            elif known:
                problems.append(f"{' and '.join(known)} may each be the {_word(target)}")
            elif column.required or target in given:
                problems.append(missing)
        return found, problems

    def _known(self, name: str, column: Column) -> bool:
        """Return whether a name is known for a column; names of times may end in a unit."""
        plain = plain_name(name)
        known = self.aliases.get(column.target, (column.target,))
        return plain in known or (column.kind == "seconds" and without_unit(plain) in known)


def columns_note(found: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the note on which columns of a file were read.

    Args:
        found: names of the columns that were read, by target.
        names: names of all columns.
    """
    used = ", ".join(f"{_word(target)} = {name}" for target, name in found.items())
    ignored = [name for name in names if name not in found.values()]
    return f"Columns: {used}{'; ignored: ' + ', '.join(ignored) if ignored else ''}."


def identity_notes(ignored: Iterable[str], sessions: bool = False) -> list[str]:
    """Return the note on ignored columns of sessions or users; none without such a column.

    Args:
        ignored: the columns.
        sessions: whether another column says which requests are turns of one session.
    """
    found = ", ".join(name for name in ignored if plain_name(name) in _IDENTITIES)
    effect = "requests are independent: no common beginnings, no order within a session, no quota of a user"
    remedy = "name one by --columns session_id=NAME or client_id=NAME"
    if sessions:
        effect = "clients share one system prompt and have no quotas"
        remedy = "where each client has its own, name it by --columns client_id=NAME"
    return [f"Not used: {found}; {effect}; {remedy}."] if found else []


def _meant(key: str) -> str:
    """Return the short name of the column that a mapping's key is an alias of, "" if it is none."""
    return next((word for word, target in SHORT.items() if plain_name(key) in ALIASES[target]), "")


def _nearest(target: str, names: Sequence[str]) -> str | None:
    """Return the name that is most similar to the known names of a column, None if none is similar."""
    words = {kind: {word for alias in known for word in alias.split("_")} for kind, known in ALIASES.items()}
    every = set().union(*words.values())
    distinctive = words.pop(target).difference(*words.values())

    def likeness(name: str) -> float:
        plain = plain_name(name)
        parts = plain.split("_")
        close = [found for word in parts for found in get_close_matches(word, every, 1, 0.8)]
        sure = bool((distinctive | _HINTS[target]).intersection(parts))
        if not sure and not distinctive.intersection(close):
            return 0.0
        return sure + max(SequenceMatcher(None, plain, alias).ratio() for alias in ALIASES[target])

    return max((name for name in names if likeness(name)), key=likeness, default=None)


def _word(target: str) -> str:
    """Return the name of a column in messages."""
    return next((word for word, column in SHORT.items() if column == target), target)
