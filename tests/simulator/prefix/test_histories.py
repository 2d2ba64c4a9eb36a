"""Ten short histories of a prefix cache, worked by hand, for the functions of the engine and for the oracle.

The first line has the blocks of memory, the tokens of a block, when full units can be found (``computed``: from the end
of their batch, ``scheduled``: once they have memory), and the chain of each request; a letter stands for a content.

Every other line is an operation, its result, and the state after it: blocks in use, cached units in the order in which
they will be dropped, and unused blocks. ``start p 12 chunk 4`` starts request p with 12 tokens, at most 4 of them
beyond its hit in the first batch; the result is hit + chunk, or no if it does not fit. ``grow p 1`` gives it a token.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from helpers.runs.cache_driver import CacheDriver
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable
from oracles.prefix_cache import ReferencePool

HISTORIES = {
    "an aligned prompt computes its last unit again, as a copy": """
        5 2 computed p AB, q AB, r AB
        start p 4 -> 0+4: 2 - 3
        batch: 2 - 3
        end p: 0 BA 3
        start q 4 -> 2+2: 2 B 2
        batch: 2 B 2
        end q: 0 BBA 2
        start r 5 -> 4+1: 3 B 1
        batch: 3 B 1
        end r: 0 BBA 2
    """,
    "two requests share a beginning; the last holder gives it back": """
        8 2 scheduled p SABC, q SDE
        start p 8 -> 0+8: 4 - 4
        start q 7 -> 2+5: 7 - 1
        grow q 2 -> yes: 8 - 0
        end p: 5 CBA 0
        end q: 0 CBAEDS 2
    """,
    "the longest unused unit is dropped, the end of a chain first": """
        6 2 computed p ABC, q DE, r FG, s ABC
        start p 6 -> 0+6: 3 - 3
        batch: 3 - 3
        end p: 0 CBA 3
        start q 4 -> 0+4: 2 CBA 1
        batch: 2 CBA 1
        end q: 0 CBAED 1
        start r 4 -> 0+4: 2 BAED 0
        batch: 2 BAED 0
        end r: 0 BAEDGF 0
        start s 7 -> 4+3: 4 GF 0
        end s: 0 GFBA 2
    """,
    "a hit without a holder takes free memory": """
        4 2 computed p AB, q -, r AB
        start p 4 -> 0+4: 2 - 2
        batch: 2 - 2
        end p: 0 BA 2
        start q 3 -> 0+3: 2 BA 0
        start r 5 -> no: 2 BA 0
        end q: 0 BA 2
        start r 5 -> 4+1: 3 - 1
    """,
    "two prefills side by side keep copies, the first is found": """
        8 4 scheduled p ABC, q ABC, r ABC
        start p 12 chunk 4 -> 0+4: 1 - 7
        start q 12 chunk 8 -> 4+8: 3 - 5
        grow p 8 -> yes: 5 - 3
        end q: 3 CB 3
        end p: 0 CBCBA 3
        start r 13 -> 12+1: 4 CB 2
    """,
    "an evicted request loses its partial unit and finds the full ones": """
        5 2 computed p AB, q CD, r -
        start p 3 -> 0+3: 2 - 3
        batch: 2 - 3
        grow p 1 -> yes: 2 - 3
        grow p 1 -> yes: 3 - 2
        batch: 3 - 2
        start q 4 -> 0+4: 5 - 0
        batch: 5 - 0
        end p: 2 BA 1
        grow q 1 -> yes: 3 BA 0
        start p 5 -> no: 3 BA 0
        end q: 0 BADC 1
        start p 5 -> 4+1: 3 DC 0
    """,
    "starts of one decision hold their hits before memory is taken": """
        5 2 computed p AB, q CDE, r AF
        start p 4 -> 0+4: 2 - 3
        batch: 2 - 3
        end p: 0 BA 3
        start q 6, r 4 -> 0+6 2+2: 5 - 0
        batch: 5 - 0
        end q: 2 EDC 0
        end r: 0 EDCFA 0
    """,
    "starts of one decision do not find what they compute": """
        6 2 computed p AB, q AC, r AD
        start p 4, q 4 -> 0+4 0+4: 4 - 2
        batch: 4 - 2
        end p: 2 BA 2
        start r 4 -> 2+2: 4 B 1
        end q: 2 BCA 1
        end r: 0 BCAA 2
    """,
    "units of one token": """
        5 1 computed p abc, q abc, r abd
        start p 3 -> 0+3: 3 - 2
        batch: 3 - 2
        end p: 0 cba 2
        start q 3 -> 2+1: 3 c 1
        batch: 3 c 1
        grow q 1 -> yes: 4 c 0
        batch: 4 c 0
        end q: 0 ccba 1
        start r 3 -> 2+1: 3 cc 0
        batch: 3 cc 0
        end r: 0 ccdba 0
    """,
    "a chain dropped from its end is found from its beginning": """
        8 2 computed p ABCD, q ABCD, r EF
        start p 8 -> 0+8: 4 - 4
        batch: 4 - 4
        end p: 0 DCBA 4
        drop 1 -> 1: 0 CBA 5
        start r 6 -> 0+6: 3 CBA 2
        drop 1 -> 1: 3 BA 3
        start q 8 -> 4+4: 7 - 1
        batch: 7 - 1
        end r: 4 FE 2
        end q: 0 FEDCBA 2
    """,
}


def chains_of(text: str) -> dict[str, str]:
    """Return the chain of each request by its name; ``-`` is an empty one."""
    pairs = (part.split() for part in text.split(", "))
    return {name: chain.strip("-") for name, chain in pairs}


def engine(blocks: int, size: int, share: str, chains: dict[str, str]) -> tuple[CacheDriver, dict[int, str]]:
    """Return the engine's cache, with requests by number, and the letter of each content."""
    lengths = np.array([size * len(chain) for chain in chains.values()])
    hashes = BlockHashes.from_rows(chains.values(), lengths, size)
    ones = np.ones(len(chains), int)
    table = RequestTable(0 * ones, lengths + 1, ones, hashes=hashes)
    numbers = table.hashes.chains(size)
    letters = {}
    for chain, start in zip(chains.values(), numbers.chain_start.tolist(), strict=True):
        letters |= dict(zip(numbers.chain[start : start + len(chain)].tolist(), chain, strict=True))
    return CacheDriver(blocks * size, size, table, share), letters


def result_of(pool: Any, operation: str, ids: dict[str, Any]) -> str:
    """Carry out an operation; return its result as text."""
    kind, _, rest = operation.partition(" ")
    if kind == "start":
        words = [part.split() for part in rest.split(", ")]
        found = pool.admit_many([(ids[w[0]], int(w[1]), int(w[3]) if w[2:] else math.inf) for w in words])
        return "no" if found is None else " ".join(f"{hit}+{chunk}" for hit, chunk in found)
    if kind == "grow":
        name, tokens = rest.split()
        return "yes" if pool.grow(ids[name], int(tokens)) else "no"
    if kind == "drop":
        return str(pool.drop(int(rest)))
    if kind == "batch":
        pool.end_batch()
    else:
        pool.release(ids[rest])
    return ""


@pytest.mark.parametrize("title", HISTORIES)
def test_history(title):
    settings, *lines = HISTORIES[title].strip().splitlines()
    words = settings.split(maxsplit=3)
    blocks, size, share, chains = int(words[0]), int(words[1]), words[2], chains_of(words[3])
    oracle = ReferencePool(blocks, size, share, chains)
    ours, letters = engine(blocks, size, share, chains)
    for line in lines:
        operation, result, state = re.fullmatch(r" *(.*?)(?: -> (.*))?: (.*)", line).groups()
        assert result_of(oracle, operation, {name: name for name in chains}) == (result or ""), line
        oracle.check()
        found = oracle.state()
        assert state == f"{found['used']} {''.join(found['lru']) or '-'} {found['blank']}", line
        assert result_of(ours, operation, {name: i for i, name in enumerate(chains)}) == (result or ""), line
        used, cached = ours.in_use // size, "".join(letters[content] for content in ours.cached())
        assert state == f"{used} {cached or '-'} {blocks - used - len(cached)}", line
