"""Tables whose columns have names of their own: which column is what, and in which unit its times are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from kvgym.errors import ConfigError, TraceFormatError, shown, some
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import DATE, DECIMAL_COMMA, PER_SECOND, Column, Columns, to_seconds

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
)
"""Columns of kvgym's own format: all that a trace may say of a request."""

SHORT = {"arrival": "arrival_time", "prompt": "prompt_len", "output": "output_len"}
"""Short words for the columns that a mapping is mostly about."""

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
"""Names that are known without a mapping, as :func:`plain_name` writes them; the optional columns have their own."""

_HINTS = {
    "arrival_time": {"at", "date", "when"},
    "prompt_len": {"in", "question"},
    "output_len": {"out", "answer"},
}
"""Words in names that are not known, but lead to a guess in a suggestion."""

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
"""Units of times by their symbols."""

_UNIT_WORDS = {
    word: unit
    for unit, words in {
        "seconds": "s sec secs second seconds",
        "milliseconds": "ms msec millis millisecond milliseconds",
        "microseconds": "us usec micros microsecond microseconds",
        "nanoseconds": "ns nsec nano nanos nanosecond nanoseconds",
    }.items()
    for word in words.split()
}
_EPOCH = (datetime(2015, 1, 1, tzinfo=timezone.utc), datetime(2040, 1, 1, tzinfo=timezone.utc))


def plain_name(name: str) -> str:
    """Return the name of a column in small letters, with ``_`` between words: ``startTime`` is ``start_time``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def alias_table() -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return headings and rows of the table of known names, as docs/traces.md shows it."""
    rows = {short: (", ".join(ALIASES[target]),) for short, target in SHORT.items()}
    return ("column", "names that are known without a mapping"), rows


@dataclass(frozen=True)
class OwnTable:
    """The format of tables with one row per request and any names; see docs/traces.md.

    Attributes:
        mapping: names of columns in the file by what they are: keys of :data:`SHORT` or of :data:`OWN_COLUMNS`.
            ``arrival="none"`` says that there are no times.
        time_unit: key of :data:`UNITS`; None = told by the values or the name where that leaves no doubt, else
            seconds.
    """

    mapping: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    name: str = "table"
    description: str = "any table, CSV, JSON or Parquet: usual names of columns, or --columns; docs/traces.md"
    zero: str = "a prompt or output of length 0"
    batched: bool = False
    own_clock: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigError: a key or a unit that there is not.
        """
        valid = [*SHORT, *(c.target for c in OWN_COLUMNS)]
        for key, name in self.mapping.items():
            if key not in valid:
                meant = f"{name}={key}" if name in valid else f"{_meant(key)}={name}" if _meant(key) else ""
                hint = meant and f"write {meant}; "
                raise ConfigError(
                    f"columns: {shown(key)} is no column of a request; {hint}valid: {', '.join(valid)}"
                )
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise ConfigError(f"time_unit = {shown(self.time_unit)}; valid: {', '.join(UNITS)}")

    def matches(self, names: tuple[str, ...]) -> bool:
        """Whether a file with these columns or keys can be read without being told more."""
        return not self._resolve(names)[1]

    def complaint(self, names: tuple[str, ...]) -> str:
        """Return what is missing, or in doubt, about a file with these columns, and the mapping to give."""
        problems = self._resolve(names)[1]
        return f"found columns {some(names, 60) or 'none'}: {'; '.join(problems)}. Name them: {self.mapping_of(names)}"

    def mapping_of(self, names: tuple[str, ...]) -> str:
        """Return the option that maps the columns of a file; those that are not known by how their names look."""
        found, _ = self._resolve(names)
        left = [name for name in names if name not in found.values()]
        for target in SHORT.values():
            if target not in found and (near := _nearest(target, left)):
                found[target] = near
                left.remove(near)
        given = {short: found.get(target, "NAME") for short, target in SHORT.items()}
        return f'--columns "{",".join(f"{short}={name}" for short, name in given.items())}"'

    def read(self, source: SourceFile, tokenizer: object) -> tuple[Columns, list[str]]:
        """Return the columns in file order, times in seconds, and notes.

        Raises:
            TraceFormatError: a column is missing or in doubt, or a value is wrong.
        """
        found, problems = self._resolve(source.names)
        if problems:
            raise TraceFormatError(f"{source.path}: {self.complaint(source.names)}")
        kinds = {c.target: c.kind for c in OWN_COLUMNS}
        notes = []
        if "arrival_time" in found:
            name = found["arrival_time"]
            kinds["arrival_time"], how = self._time_kind(name, source.first_row().get(name))
            notes.append(f"Times are {how}.")
        data = source.columns([Column(name, target, kinds[target]) for target, name in found.items()])
        if "arrival_time" in found:
            data["arrival_time"] = to_seconds(data["arrival_time"], kinds["arrival_time"])
        short = {target: word for word, target in SHORT.items()}
        used = ", ".join(f"{short.get(target, target)} = {name}" for target, name in found.items())
        ignored = [name for name in source.names if name not in found.values()]
        notes.insert(0, f"Columns: {used}{'; ignored: ' + ', '.join(ignored) if ignored else ''}.")
        return data, notes

    def _resolve(self, names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
        """Return the name of each column by its target, and what is missing or in doubt."""
        given = {SHORT.get(key, key): name for key, name in self.mapping.items()}
        untimed = given.get("arrival_time") == "none" and "none" not in names
        found, problems = {}, []
        for column in OWN_COLUMNS:
            target = column.target
            if target == "arrival_time" and untimed:
                continue
            if target in given:
                known = [name for name in names if name == given[target]]
                missing = f"there is no {given[target]!r}"
            else:
                known = [name for name in names if self._known(name, target) and name not in given.values()]
                missing = f"none is known as the {_word(target)}"
            if len(known) == 1:
                found[target] = known[0]
            elif known:
                problems.append(f"{' and '.join(known)} may each be the {_word(target)}")
            elif column.required or target in given:
                problems.append(missing)
        return found, problems

    @staticmethod
    def _known(name: str, target: str) -> bool:
        """Whether a name stands for a column without a mapping; times may name their unit."""
        plain = plain_name(name)
        if target == "arrival_time":
            stem, _, last = plain.rpartition("_")
            plain = stem if stem and last in _UNIT_WORDS else plain
        return plain in ALIASES.get(target, (target,))

    def _time_kind(self, name: str, value: Any) -> tuple[str, str]:
        """Return the kind of a column of times by its first value, and how it was told."""
        if self.time_unit is not None:
            return UNITS[self.time_unit], f"in {UNITS[self.time_unit]}, as told"
        if isinstance(value, datetime) or (isinstance(value, str) and re.match(DATE, value.strip())):
            return "datetime", "dates, counted from the first"
        try:
            number = float(value)
        except (TypeError, ValueError):
            number_like = isinstance(value, str) and re.fullmatch(DECIMAL_COMMA, value.strip())
            return ("seconds", "numbers") if number_like else ("datetime", "dates")
        word = plain_name(name).rpartition("_")[2]
        if word in _UNIT_WORDS:
            return _UNIT_WORDS[word], f"in {_UNIT_WORDS[word]}, as {name} says"
        for unit, per_second in PER_SECOND.items():
            seconds = number / per_second
            if _EPOCH[0].timestamp() <= seconds < _EPOCH[1].timestamp():
                day = datetime.fromtimestamp(seconds, timezone.utc).date()
                return unit, f"{unit} since 1970, counted from the first, of {day}"
        return "seconds", "read as seconds: nothing says otherwise (another unit: --time-unit ms, us or ns)"


def _meant(key: str) -> str:
    """Return the short word for what a key of a mapping is another name of, "" where it is of none."""
    return next((word for word, target in SHORT.items() if plain_name(key) in ALIASES[target]), "")


def _nearest(target: str, names: Sequence[str]) -> str | None:
    """Return the name that is most like what a column is called elsewhere, None where none is."""
    words = {kind: {word for alias in known for word in alias.split("_")} for kind, known in ALIASES.items()}
    every = set().union(*words.values())
    telling = words.pop(target).difference(*words.values())

    def likeness(name: str) -> float:
        plain = plain_name(name)
        parts = plain.split("_")
        close = [found for word in parts for found in get_close_matches(word, every, 1, 0.8)]
        sure = bool((telling | _HINTS[target]).intersection(parts))
        if not sure and not telling.intersection(close):
            return 0.0
        return sure + max(SequenceMatcher(None, plain, alias).ratio() for alias in ALIASES[target])

    return max((name for name in names if likeness(name)), key=likeness, default=None)


def _word(target: str) -> str:
    """Return what a column is called in messages."""
    return next((word for word, column in SHORT.items() if column == target), target)
