"""Prompts of wanted lengths in tokens, without the server's tokenizer; requests that begin alike get texts that do.

Prompts are common words. The server counts the tokens of two short ones; after that the number of words follows from
the number of tokens. The words are single tokens of most vocabularies, so that lengths are usually exact; the length
that counts is the one the server reports.

The words of a block follow from its hash alone. Equal hashes therefore give equal text, so that the prefix cache of the
server finds what the trace says that it can. All other words follow from the number of the request: without hashes no
two prompts begin alike. In the closed loop of sessions, a turn with hashes that begin with those of the turn before,
output included, contains the real answer of that turn, since a server caches what it has generated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.workloads.table import RequestTable

WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city name team "
    "minute idea body back parent face others level office door health person art war history party "
    "result change morning reason research girl moment air teacher force "
).split()
"""Common words."""

PROBES = (16, 144)
"""Words of the two prompts by which the tokens of a word are measured."""

FEWEST, MOST = 0.25, 16.0
"""Tokens of a word that are plausible."""

_OWN = 1 << 32
"""Offset of numbers of requests, so that they are no hashes."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of a server.

    Attributes:
        tokens_per_word: tokens.
        fixed_tokens: tokens that every prompt has in addition to its words, such as those of a chat template.
        seed: seed of the words.
    """

    tokens_per_word: float = 1.0
    fixed_tokens: float = 0.0
    seed: int = 0

    @classmethod
    def measured(cls, short: int, long: int, seed: int = 0) -> Prompts:
        """Return the prompts of a server that counts these tokens in prompts of :data:`PROBES` words.

        A server that counts implausible tokens gets a word per token.
        """
        low, high = PROBES
        each = (long - short) / (high - low)
        return cls(each, short - each * low, seed) if FEWEST <= each <= MOST else cls(seed=seed)

    def text(self, tokens: int, number: int, hashes: NDArray[np.int32] | None = None, block: int = 1) -> str:
        """Return a prompt.

        Args:
            tokens: wanted length.
            number: number of the request; equal numbers give equal prompts.
            hashes: of its first blocks, (k,); None = none.
            block: tokens of a block.
        """
        words = max(1, round((tokens - self.fixed_tokens) / self.tokens_per_word))
        if hashes is None:
            return self.words(words, number)
        ends = np.round(np.arange(len(hashes) + 1) * (block / self.tokens_per_word)).astype(np.int64)
        source = np.repeat(hashes.astype(np.int64), np.diff(ends))[:words]
        inside = np.arange(len(source)) - np.repeat(ends[:-1], np.diff(ends))[:words]
        own = words - len(source)
        return self._drawn(
            np.concatenate([source, np.full(own, _OWN + number)]), np.concatenate([inside, np.arange(own)])
        )

    def words(self, count: int, number: int) -> str:
        """Return a prompt of a number of words."""
        return self._drawn(np.full(count, _OWN + number), np.arange(count))

    def _drawn(self, source: NDArray[np.int64], place: NDArray[np.int64]) -> str:
        """Return a word for each place in each source; equal ones give equal words."""
        with np.errstate(over="ignore"):  # wraps around, as meant
            x = np.full(len(source), self.seed, np.uint64)
            for part in (source, place):  # SplitMix64's function, Steele et al. 2014
                x = (x ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
                x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                x ^= x >> np.uint64(31)
        return " ".join(WORDS[i] for i in (x % np.uint64(len(WORDS))).tolist())


class Conversations:
    """The prompts of all requests of a table, each with the parts of its session so far.

    Args:
        prompts: prompts of the server.
        table: the requests.
    """

    def __init__(self, prompts: Prompts, table: RequestTable) -> None:
        self._prompts, self._table, self._hashes = prompts, table, table.hashes

    def first(self, i: int) -> list[str]:
        """Return the parts of a request that continues nothing: one text."""
        length, hashes = int(self._table.prompt_len[i]), self._hashes
        if hashes is None:
            return [self._prompts.text(length, i)]
        return [self._prompts.text(length, i, hashes.row(i), hashes.block)]

    def after(self, i: int, before: int, parts: list[str], answer: str) -> list[str]:
        """Return the parts of a turn: what was sent in the turn before, its answer, and the rest.

        Args:
            i: the request.
            before: the turn before.
            parts: those of the turn before.
            answer: its answer; "" = none.
        """
        if not answer or not self._continues(i, before):
            return self.first(i)
        table = self._table
        left = int(table.prompt_len[i] - table.prompt_len[before] - table.output_len[before])
        rest = self._prompts.words(max(1, round(left / self._prompts.tokens_per_word)), i)
        return [*parts, answer, f" {rest}"]

    def _continues(self, i: int, before: int) -> bool:
        """Return whether a request's hashes begin with prompt and output of another."""
        if self._hashes is None:
            return False
        whole = int(self._table.prompt_len[before] + self._table.output_len[before]) // self._hashes.block
        own, other = self._hashes.row(i)[:whole], self._hashes.row(before)[:whole]
        longer = self._table.prompt_len[i] > self._table.prompt_len[before] + self._table.output_len[before]
        return bool(longer and len(own) == whole and np.array_equal(own, other))
