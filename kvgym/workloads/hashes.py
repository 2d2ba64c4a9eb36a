"""Chains of block hashes: a ragged column that says which requests begin with the same tokens."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import chain as joined
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError, shown
from kvgym.utils.checks import MOST, whole_numbers
from kvgym.utils.resources import check_free


class Chains(NamedTuple):
    """Chains in units of a cache: equal numbers mean equal tokens in the unit and in all units before it.

    Attributes:
        chain: int32 (T,), contents, numbered by first appearance, so that those of a chain lie together.
        chain_start: int64 (n,), position in ``chain`` of each request's first unit. Requests may overlap.
        chain_len: int32 (n,), number of full units that are known of each request.
        num_contents: contents are below it; those of started blocks that are not full are not used.
    """

    chain: NDArray[np.int32]
    chain_start: NDArray[np.int64]
    chain_len: NDArray[np.int32]
    num_contents: int


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """Hashes of the first tokens of each request, one for each started block of ``block`` tokens.

    Hashes are chained: one stands for its block and for all blocks before it. A request's last hash may stand for
    fewer than ``block`` tokens. Selected rows share ``chain`` with the column that they come from.

    Attributes:
        chain: int32 (T,), ≥ 0.
        chain_start: int64 (n,), position in ``chain`` of each request's first hash.
        chain_tokens: int64 (n,), tokens that each request's hashes cover, from its first token on, ≥ 0: the prompt in
            traces. It has ceil(``chain_tokens`` / ``block``) hashes.
        block: tokens of a block, ≥ 1.
    """

    chain: NDArray[np.int32]
    chain_start: NDArray[np.int64]
    chain_tokens: NDArray[np.int64]
    block: int

    def __post_init__(self) -> None:
        """Convert and check the arrays.

        Raises:
            WorkloadError: arrays of wrong shapes or ranges, or hashes that are not chained.
        """
        block = _checked_block(self.block)
        chain, start, tokens = (
            whole_numbers(getattr(self, name), name, WorkloadError, most=most)
            for name, most in _ARRAYS.items()
        )
        if start.shape != tokens.shape:
            raise WorkloadError(
                f"chain_start has {len(start):,} rows, chain_tokens {len(tokens):,}; expected the same number"
            )
        count = -(-tokens // block)
        if (beyond := start + count > len(chain)).any():
            row = int(np.argmax(beyond))
            raise WorkloadError(
                f"row {row}: chain_start {start[row]} and {count[row]} hashes for chain_tokens {tokens[row]} "
                f"(block {block}) end beyond chain, which has {len(chain)}"
            )
        vars(self).update(chain=chain.astype(np.int32), chain_start=start, chain_tokens=tokens, block=block)
        for name in _ARRAYS:
            getattr(self, name).setflags(write=False)
        _check_chained(*self._with(self.chain_start, count * block).chains(block))

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[Hashable]], tokens: ArrayLike, block: int) -> BlockHashes:
        """Number the hashes of a trace: equal numbers for equal hashes after equal hashes.

        Args:
            rows: the hashes of each request, of any type; those of a block alone are chained.
            tokens: tokens that they cover, (n,).
            block: tokens of a block.

        Raises:
            WorkloadError: the number of hashes of a row is not ceil(tokens / block).
        """
        block = _checked_block(block)
        known: dict[tuple[int, Hashable], int] = {}
        chains: list[list[int]] = []
        for row in rows:
            parent, numbers = -1, []
            for value in row:
                parent = known.setdefault((parent, value), len(known))
                numbers.append(parent)
            chains.append(numbers)
        count = np.fromiter(map(len, chains), np.int64, len(chains))
        covered = whole_numbers(tokens, "tokens", WorkloadError)
        if covered.shape != count.shape:
            raise WorkloadError(f"{len(count):,} rows of hashes, but tokens has {len(covered):,}")
        if (wrong := count != -(-covered // block)).any():
            at = int(np.argmax(wrong))
            raise WorkloadError(f"row {at}: {wrong_count(int(count[at]), int(covered[at]), block)}")
        chain = np.fromiter(joined.from_iterable(chains), np.int32, int(count.sum()))
        return cls(chain, np.cumsum(count) - count, covered, block)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.chain_start)

    def __getitem__(self, rows: Any) -> BlockHashes:
        """Return the hashes of some requests: a slice, a mask (n,) or indices."""
        return self._with(self.chain_start[rows], self.chain_tokens[rows])

    def cut(self, tokens: NDArray[np.int64]) -> BlockHashes:
        """Return the hashes of at most ``tokens`` tokens of each request, int64 (n,)."""
        return self._with(self.chain_start, np.minimum(self.chain_tokens, tokens))

    def row(self, i: int) -> NDArray[np.int32]:
        """Return the hashes of request ``i``, (its started blocks,)."""
        start = int(self.chain_start[i])
        return self.chain[start : start - (-int(self.chain_tokens[i]) // self.block)]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a file: hashes as text, ``"0 1 2"``, tokens of a block, and covered tokens."""
        texts = np.empty(len(self), object)
        texts[:] = [" ".join(map(str, self.row(i).tolist())) for i in range(len(self))]
        return {
            "hash_ids": texts,
            "hash_block": np.full(len(self), self.block),
            "hash_tokens": self.chain_tokens,
        }

    def chains(self, unit: int) -> Chains:
        """Return the chains in units of ``unit`` tokens; only full units count.

        If ``unit`` divides the block, unit j of a block is a content of its own for each hash of that block. If the
        block divides the unit, the hash of a unit's last block stands for the unit.

        The chains of the last unit are kept for the next run of the same requests.

        Raises:
            WorkloadError: neither divides the other.
        """
        made_for, chains = _LAST.get(self, (0, None))
        if chains is None or made_for != unit:
            chains = self._chains_of(unit)
            _LAST[self] = unit, chains
        return chains

    def _chains_of(self, unit: int) -> Chains:
        """Make the chains in units of ``unit`` tokens."""
        if unit < 1 or (self.block % unit and unit % self.block):
            raise WorkloadError(
                f"a unit of {unit:,} tokens does not fit hashes of {self.block:,} tokens each: one must divide the "
                f"other; use a unit of {self.block:,} tokens"
            )
        starts, group = np.unique(self.chain_start, return_inverse=True)
        longest = np.zeros(len(starts), np.int64)
        np.maximum.at(longest, group, self.chain_tokens)
        parts, step = max(self.block // unit, 1), max(unit // self.block, 1)
        count = -(-longest // self.block) if parts > 1 else longest // unit
        total = int((longest // unit).sum())
        check_free(
            total * _BYTES_PER_UNIT,
            f"block hashes of {total:,} units of {unit:,} tokens",
            "use larger units (block_size, prefix_block) or fewer requests",
        )
        first, position = positions(count)
        numbers, num_contents = renumber(self.chain[np.repeat(starts, count) + (position + 1) * step - 1])
        if parts > 1:
            units = longest // unit
            blocks = np.repeat(first, units)
            first, position = positions(units)
            numbers = numbers[blocks + position // parts] * np.int32(parts) + (position % parts).astype(
                np.int32
            )
            num_contents *= parts
        if num_contents > 2**31:
            raise WorkloadError(
                f"{num_contents:,} units of {unit} tokens; use larger units or fewer requests"
            )
        return Chains(numbers, first[group], (self.chain_tokens // unit).astype(np.int32), num_contents)

    def _with(self, start: NDArray[np.int64], tokens: NDArray[np.int64]) -> BlockHashes:
        """Return other beginnings of the same chains, without checking them again."""
        other = object.__new__(BlockHashes)
        vars(other).update(vars(self), chain_start=start, chain_tokens=tokens)
        return other


_LAST: WeakKeyDictionary[BlockHashes, tuple[int, Chains]] = WeakKeyDictionary()

_ARRAYS = {"chain": 2**31 - 1, "chain_start": MOST, "chain_tokens": MOST}
"""The arrays of :class:`BlockHashes`, and the largest number in each."""


_BYTES_PER_UNIT = 40
"""Bytes per unit of the chains while they are made."""


def wrong_count(count: int, tokens: int, block: int) -> str:
    """Return the message about a number of hashes that does not fit a length."""
    return (
        f"{count} hashes for {tokens} tokens; expected {-(-tokens // block)}, one for each started block of {block} "
        "tokens; correct the row or the block"
    )


def _checked_block(block: Any) -> int:
    """Return the number of tokens of a block as an int."""
    if isinstance(block, bool) or not isinstance(block, int | np.integer) or not 1 <= block < 2**31:
        raise WorkloadError(f"block = {shown(block)}; expected a whole number of tokens ≥ 1")
    return int(block)


def positions(count: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where rows of ``count`` entries begin when they are joined, and each entry's position in its row."""
    first = np.cumsum(count) - count
    return first, np.arange(count.sum()) - np.repeat(first, count)


def renumber(values: NDArray[Any]) -> tuple[NDArray[np.int32], int]:
    """Return the values numbered from 0 by first appearance, and how many differ."""
    if values.max(initial=-1) >= 8 * len(
        values
    ):  # a table with a row for each possible value would be too large
        values = np.unique(values, return_inverse=True)[1]
    first = np.full(int(values.max(initial=-1)) + 1, len(values))
    np.minimum.at(first, values, np.arange(len(values)))
    present = np.flatnonzero(first < len(values))
    number = np.empty(len(first), np.int32)
    number[present[np.argsort(first[present])]] = np.arange(len(present), dtype=np.int32)
    return number[values], len(present)


def _check_chained(
    chain: NDArray[np.int32], start: NDArray[np.int64], length: NDArray[np.int32], num_contents: int
) -> None:
    """Check that a hash always follows the same one."""
    before = np.empty_like(chain)
    before[1:] = chain[:-1]
    before[start[length > 0]] = -1
    follows = np.empty(num_contents, np.int32)
    follows[chain] = before
    if (other := follows[chain] != before).any():
        at = int(np.argmax(other))
        row = int(np.argmax((start <= at) & (at < start + length)))
        raise WorkloadError(
            f"row {row}, hash {at - start[row]}: it follows other hashes than in another place, so the hashes are not "
            "chained; make them with BlockHashes.from_rows, which chains them"
        )
