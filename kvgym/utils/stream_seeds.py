"""Seeds of random streams: the bits of :class:`numpy.random.SeedSequence` in a fraction of its time.

A sample of a workload seeds 3 to 14 generators, and NumPy takes longer to seed one than to draw a hundred numbers.

Source of the algorithm: O'Neill, "Developing a seed_seq alternative", as NumPy implements it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

_WORD = 2**32 - 1
_LEFT, _RIGHT = 0xCA01F9DD, 0x4973F715
Pool = tuple[int, int, int, int]
"""State of a seed sequence, numbers of 32 bits."""


def _constants(first: int, factor: int, start: int, count: int) -> tuple[int, ...]:
    """Return ``count`` constants of a hash, from the one at ``start`` on."""
    powers = itertools.accumulate(
        itertools.repeat(factor, start + count), lambda x, y: x * y & _WORD, initial=first
    )
    return tuple(itertools.islice(powers, start, start + count))


_OUT = _constants(0x8B51F9DD, 0x58F38DED, 0, 9)


@functools.lru_cache(maxsize=4096)
def _hashed(place: int, word: int) -> Pool:
    """Return the four hashes of a word at a place, from 4 on, as the pool takes them in."""
    constants = _constants(0x43B0D7E5, 0x931E8875, 4 * place, 5)
    hashes = [(word ^ before) * after & _WORD for before, after in itertools.pairwise(constants)]
    a, b, c, d = ((hashed ^ hashed >> 16) * _RIGHT & _WORD for hashed in hashes)
    return a, b, c, d


class StreamSeed(ISpawnableSeedSequence):
    """The seed sequence ``numpy.random.SeedSequence(seed, spawn_key=key)``, for PCG64 and its children.

    Args:
        pool: state after the words of the seed and of the key.
        place: number of these words; a seed has at least four.
    """

    def __init__(self, pool: Pool, place: int) -> None:
        self._pool, self._place, self._spawned = pool, place, 0

    @classmethod
    def of(cls, seed: int, key: Sequence[int]) -> StreamSeed:
        """Return the sequence of a seed ≥ 0 and a key of numbers from 0 to 2^32 - 1."""
        found = _root(seed)
        for word in key:
            found = found.child(word)
        return found

    def child(self, word: int) -> StreamSeed:
        """Return the sequence with one more number in its key."""
        (a, b, c, d), (e, f, g, h) = self._pool, _hashed(self._place, word)
        a, b, c, d = (
            a * _LEFT - e & _WORD,
            b * _LEFT - f & _WORD,
            c * _LEFT - g & _WORD,
            d * _LEFT - h & _WORD,
        )
        return StreamSeed((a ^ a >> 16, b ^ b >> 16, c ^ c >> 16, d ^ d >> 16), self._place + 1)

    def spawn(self, n_children: int) -> list[StreamSeed]:
        """Return children with further numbers in their keys, from 0 in the first call."""
        first = self._spawned
        self._spawned += n_children
        return [self.child(word) for word in range(first, self._spawned)]

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return four words of 64 bits, whatever is asked for, because that is what PCG64 asks for."""
        words = 0
        for k in range(8):
            word = (self._pool[k & 3] ^ _OUT[k]) * _OUT[k + 1] & _WORD
            words |= (word ^ word >> 16) << 32 * k
        return np.frombuffer(words.to_bytes(32, "little"), "<u8")


@functools.lru_cache(maxsize=64)
def _root(seed: int) -> StreamSeed:
    """Return the sequence of a seed without a key."""
    a, b, c, d = np.random.SeedSequence(seed).pool.tolist()
    return StreamSeed((a, b, c, d), max(4, -(-seed.bit_length() // 32)))
