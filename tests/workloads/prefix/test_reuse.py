"""Reuse of requests that run one after another: worked by hand, and against a list of blocks."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.errors import WorkloadError
from kvgym.workloads import RequestTable, read_trace
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.prefix.reuse import SerialCache, repeated_hashes, replay

A, B, C, D, X, Y, Z = range(7)


def serve(cache, chain, tokens, size=4):
    """Run a request of a number of tokens; return the tokens that it hits."""
    hit = cache.serve(chain, (tokens - 1) // size, -(-tokens // size))
    return None if hit is None else size * hit


def test_the_tail_of_the_least_recent_chain_is_evicted_first():
    cache = SerialCache(5)
    assert [serve(cache, [A, B], 8), serve(cache, [C, D], 8)] == [0, 0]
    assert (cache.contents(), cache.blank) == ([B, A, D, C], 1)
    assert (serve(cache, [X, Y], 8), cache.contents(), cache.evicted) == (0, [A, D, C, Y, X], 1)
    assert (serve(cache, [A, B, Z], 12), cache.contents()) == (4, [Y, X, Z, B, A])
    assert cache.evicted == 3


@pytest.mark.parametrize(("capacity", "hits"), [(None, [0, 8, 12]), (16, [0, 8, 12]), (12, [0, 8, 0])])
def test_outputs_count_where_they_are_known(capacity, hits):
    """A session of three turns in one chain: 8 + 5 tokens, 9 + 4, 13 + 3; the last output token has no KV."""
    hashes = BlockHashes(np.arange(4), np.zeros(3, int), np.array([13, 13, 16]), 4)
    table = RequestTable([0, 1, 2], [8, 9, 13], [5, 4, 3], hashes=hashes)
    reuse = replay(table, capacity=capacity)
    assert reuse.hits.tolist() == hits
    assert (reuse.unit, reuse.prompt_tokens, reuse.too_long) == (4, 30, int(capacity == 12))
    assert reuse.hit_rate == sum(hits) / 30


class Blocks:
    """Blocks as records in one list, next victim first; a content is found in the block that has had it longest."""

    def __init__(self, units):
        self.free = [{"content": None, "since": 0} for _ in range(units)]
        self.time = 0

    def serve(self, chain, most, units):
        if units > len(self.free):
            return None
        held = []
        for content in chain[:most]:
            found = [block for block in self.free if block["content"] == content]
            if not found:
                break
            held.append(min(found, key=lambda block: block["since"]))
            self.free.remove(held[-1])
        hit = len(held)
        taken = [self.free.pop(0) for _ in range(units - hit)]
        for block in taken:
            block["content"] = None
        for block, content in zip(taken, chain[hit:], strict=False):
            self.time += 1
            block.update(content=content, since=self.time)
        for block in reversed(held + taken):
            if block["content"] is None:
                self.free.insert(0, block)
            else:
                self.free.append(block)
        return hit


@st.composite
def plays(draw):
    """Texts of letters, the tokens of a unit and a capacity; chains are beginnings of texts."""
    texts = draw(st.lists(st.text("ab", min_size=1, max_size=14), min_size=1, max_size=12))
    return texts, draw(st.integers(1, 3)), draw(st.integers(1, 14))


@settings(max_examples=150, deadline=None)
@given(plays())
def test_blocks_in_a_list_do_the_same(play):
    texts, unit, units = play
    cache, blocks, endless = SerialCache(units), Blocks(units), SerialCache(None)
    for text in texts:
        chain = [text[: i + unit] for i in range(0, len(text) - unit + 1, unit)]
        arguments = chain, (len(text) - 1) // unit, -(-len(text) // unit)
        hit = cache.serve(*arguments)
        assert hit == blocks.serve(*arguments)
        assert cache.contents() == [b["content"] for b in blocks.free if b["content"] is not None]
        assert cache.blank + len(cache.contents()) == units
        assert (hit or 0) <= endless.serve(*arguments)
        for content in cache.contents():  # what comes before is cached, too
            assert len(content) == unit or content[:-unit] in cache.contents()


@settings(max_examples=150, deadline=None)
@given(plays(), st.integers(1, 6))
def test_more_memory_finds_no_less(play, more):
    texts, unit, units = play
    units = max(units, *(-(-len(text) // unit) for text in texts), 1)  # what does not fit would not be served
    small, large, found = SerialCache(units), SerialCache(units + more), [0, 0]
    for text in texts:
        chain = [text[: i + unit] for i in range(0, len(text) - unit + 1, unit)]
        for k, cache in enumerate((small, large)):
            found[k] += cache.serve(chain, (len(text) - 1) // unit, -(-len(text) // unit))
        assert found[0] <= found[1]


def test_hashes_of_started_blocks_count_as_repeated(tmp_path):
    rows = [(9, [0, 1, 2]), (8, [0, 1]), (9, [0, 1, 2]), (4, [3])]
    table = RequestTable.from_columns(
        arrival_time=range(4),
        prompt_len=[tokens for tokens, _ in rows],
        output_len=[1] * 4,
        hashes=BlockHashes.from_rows([ids for _, ids in rows], [tokens for tokens, _ in rows], 4),
    )
    assert repeated_hashes(table) == (5, 9)
    assert replay(table).hits.tolist() == [0, 4, 8, 0]
    assert replay(table, unit=1).hits.tolist() == [0, 7, 8, 0]


def test_requests_without_hashes_have_no_reuse():
    table = RequestTable([0], [4], [1])
    for function in (replay, repeated_hashes):
        with pytest.raises(WorkloadError, match="these requests have no block hashes"):
            function(table)


def test_a_mooncake_trace(tmp_path):
    """Rows in the manner of the published traces: one hash a started block of 512 tokens."""
    rows = [(6755, [*range(14)]), (7319, [0, *range(14, 28)]), (6755, [*range(14)])]
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 9, "hash_ids": ids}) + "\n"
            for n, ids in rows
        )
    )
    table = read_trace(path)
    assert repeated_hashes(table) == (15, 43)
    assert replay(table).hits.tolist() == [0, 512, 13 * 512]
    assert replay(table, 16).hits.tolist() == [0, 512, 6752]
