"""Trace formats with texts: lengths come from a tokenizer, and equal beginnings from comparing tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, TraceFormatError, shown, some
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import KINDS, Columns, parse_value

Tokenizer = Callable[[str], "int | Sized"]
"""Converts a text to its number of tokens or to the tokens."""


def count_words(text: str) -> int:
    """Return the number of words, which the papers use in place of tokens (MC-SF, Section 5.2)."""
    return len(text.split())


@dataclass(frozen=True)
class ConversationFormat:
    """A format with one conversation per record; its first question and answer make a request.

    Attributes:
        name: its name.
        description: one line.
        turns: key of the list of turns.
        role: key of a turn's speaker.
        text: key of a turn's text.
    """

    name: str
    description: str
    turns: str
    role: str
    text: str
    batched: bool = False
    own_clock: bool = False
    block: int | None = None
    zero: str = "no question with an answer, or an empty one,"

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these columns or keys has this format."""
        return self.turns in names

    def read(self, source: SourceFile, tokenizer: Tokenizer) -> tuple[Columns, list[str]]:
        """Return prompt and output lengths in file order, and notes."""
        if not self.matches(source.names):
            raise TraceFormatError(
                f"{source.path}: key {shown(self.turns)} is missing; found {', '.join(source.names) or 'none'}"
            )
        lengths: list[tuple[int, int]] = []
        for place, record in source.rows(self.turns):
            pair = self._first_exchange(source.path, place, record.get(self.turns))
            lengths.append((_count(tokenizer, pair[0]), _count(tokenizer, pair[1])) if pair else (0, 0))
        table = np.array(lengths, np.float64).reshape(-1, 2)
        return {"prompt_len": table[:, 0], "output_len": table[:, 1]}, []

    def _first_exchange(self, path: Path, place: str, turns: Any) -> tuple[str, str] | None:
        """Return the first question and the first answer after it, None if there is no such pair."""
        if not isinstance(turns, list):
            raise TraceFormatError(f"{path}, {place}, key {shown(self.turns)}: expected a list of turns")
        question = None
        for turn in turns:
            text = turn.get(self.text) if isinstance(turn, dict) else None
            if not isinstance(text, str) or self.role not in turn:
                raise TraceFormatError(
                    f"{path}, {place}, key {shown(self.turns)}: "
                    f"expected turns with {shown(self.role)} and text in {shown(self.text)}"
                )
            speaker = str(turn[self.role]).lower()
            if question is None and speaker in ("user", "human"):
                question = text
            elif question is not None and speaker not in ("user", "human", "system"):
                return question, text
        return None


@dataclass(frozen=True)
class AgentFormat:
    """A format with one call of a model per record, with the messages of its whole prompt.

    A session's calls are in order; ``pre_gap`` is the time between a call's end and the next. The gap before a call is
    a tool's if its last message is one, else a person's. Tokens are compared in blocks of ``block``.

    Attributes:
        name: its name.
        description: one line.
        block: tokens of a hash.
    """

    name: str
    description: str
    block: int = 16
    batched: bool = False
    own_clock: bool = False
    zero: str = "an empty prompt or answer"

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these columns or keys has this format."""
        return {"session_id", "input", "output_length"} <= set(names)

    def read(self, source: SourceFile, tokenizer: Tokenizer) -> tuple[Columns, list[str]]:
        """Return lengths, hashes, sessions and their gaps in file order, and notes."""
        if not self.matches(source.names):
            found = some(source.names, 60) or "none"
            raise TraceFormatError(
                f"{source.path}: expected session_id, input and output_length; found {found}"
            )
        tokens_of = functools.lru_cache(1 << 16)(functools.partial(_tokens, tokenizer))
        rows: dict[str, list[Any]] = {
            name: [] for name in (*_AGENT_KEYS, "prompt_len", "gap_kind", "hash_ids")
        }
        for place, record in source.rows(*(key for key, _ in _AGENT_KEYS.values()), "input"):
            messages = record.get("input")
            if not isinstance(messages, list) or not all(
                isinstance(m, dict) and "role" in m for m in messages
            ):
                raise TraceFormatError(
                    f"{source.path}, {place}, key 'input': expected a list of messages with 'role' and 'content'"
                )
            tokens = [token for message in messages for token in tokens_of(_text(message))]
            rows["prompt_len"].append(len(tokens))
            rows["hash_ids"].append(
                [tuple(tokens[i : i + self.block]) for i in range(0, len(tokens), self.block)]
            )
            rows["gap_kind"].append(bool(messages) and messages[-1]["role"] in ("tool", "function"))
            for target, (key, kind) in _AGENT_KEYS.items():
                try:
                    rows[target].append(parse_value(record.get(key, 0 if key == "pre_gap" else None), kind))
                except ValueError:
                    raise TraceFormatError(
                        f"{source.path}, {place}, key {shown(key)}: {shown(record.get(key))}; expected "
                        f"{KINDS[kind].expected}"
                    ) from None
        data: Columns = {}
        for name, values in rows.items():
            data[name] = np.empty(len(values), object if name in ("session_id", "hash_ids") else np.float64)
            data[name][:] = values
        return data, []


_AGENT_KEYS = {
    "session_id": ("session_id", "label"),
    "output_len": ("output_length", "tokens"),
    "think_time": ("pre_gap", "seconds"),
}
"""Key and kind of an agent trace's columns, by target."""


def _text(message: dict[str, Any]) -> str:
    """Return a message as text: its role, content and calls of tools."""
    parts = [message["role"], message.get("content"), message.get("tool_calls")]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[Any, ...]:
    """Return the tokens of a text.

    Raises:
        ConfigError: the tokenizer only counts them.
    """
    tokens = text.split() if tokenizer is count_words else tokenizer(text)
    if not isinstance(tokens, Iterable):
        raise ConfigError(
            "tokenizer: returned a number; this trace needs the tokens themselves, to compare prompts"
        )
    return tuple(tokens)


def _count(tokenizer: Tokenizer, text: str) -> int:
    """Return the number of tokens of a text."""
    tokens = tokenizer(text)
    return tokens if isinstance(tokens, int) else len(tokens)
