"""Prompts of wanted lengths in tokens, without the server's tokenizer.

Prompts are random common words. The server counts the tokens of two short ones; after that the number of words follows
from the number of tokens. The words are single tokens of most vocabularies, so that lengths are usually exact; the
length that counts is the one the server reports. No two prompts begin alike, so a prefix cache has none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        """Return the prompts of a server that counts these tokens in prompts of :data:`PROBES` words."""
        low, high = PROBES
        each = max((long - short) / (high - low), 1e-3)
        return cls(each, short - each * low, seed)

    def text(self, tokens: int, number: int) -> str:
        """Return a prompt.

        Args:
            tokens: wanted length.
            number: equal numbers give equal prompts.
        """
        return self.words(max(1, round((tokens - self.fixed_tokens) / self.tokens_per_word)), number)

    def words(self, count: int, number: int) -> str:
        """Return a prompt of a number of words."""
        drawn = np.random.default_rng([self.seed, number]).integers(len(WORDS), size=count)
        return " ".join(WORDS[i] for i in drawn)
