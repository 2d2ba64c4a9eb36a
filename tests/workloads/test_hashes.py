import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.errors import ConfigError, WorkloadError
from kvgym.workloads import RequestTable
from kvgym.workloads.hashes import BlockHashes


def table_of(rows, prompts, block, outputs=None, times=None):
    n = len(prompts)
    return RequestTable.from_columns(
        arrival_time=np.arange(n) if times is None else times,
        prompt_len=prompts,
        output_len=[1] * n if outputs is None else outputs,
        hashes=BlockHashes.from_rows(rows, prompts, block),
    )


def units_of(table, unit):
    """The contents of each request, in units."""
    chain, start, length, count = table.chains(unit)
    assert (chain.dtype, start.dtype, length.dtype) == (np.int32, np.int64, np.int32)
    assert chain.max(initial=-1) < count
    return [chain[a : a + b].tolist() for a, b in zip(start, length, strict=True)]


def test_a_unit_that_divides_the_block_gives_each_block_contents_of_its_own():
    table = table_of([[7, 8], [7, 9], [7, 8]], [16, 13, 16], 8)
    assert units_of(table, 8) == [[0, 1], [0], [0, 1]]
    assert units_of(table, 4) == [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2, 3]]
    assert units_of(table, 2) == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert table.chains(4).num_contents == 6  # the second half of hash 9 is not full


def test_a_unit_of_several_blocks_is_the_hash_of_its_last_block():
    table = table_of([[1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 6]], [20, 15, 8], 4)
    assert units_of(table, 8) == [[0, 1], [0], [2]]
    assert units_of(table, 16) == [[0], [], []]
    assert units_of(table, 64) == [[], [], []]


def test_hashes_of_blocks_alone_are_chained():
    assert units_of(table_of([["a", "b"], ["c", "b"], ["a", "b"], ["b", "b"]], [8] * 4, 4), 4) == [
        [0, 1], [2, 3], [0, 1], [4, 5],
    ]  # fmt: skip


def test_a_table_without_hashes_has_no_chains():
    assert RequestTable([0], [9], [1]).chains(16) is None


def test_hashes_follow_their_rows():
    table = table_of([[1, 2], [1], [3]], [8, 4, 4], 4, times=[2.0, 1.0, 0.0])
    assert table.prompt_len.tolist() == [4, 4, 8]
    assert units_of(table, 4) == [[2], [0], [0, 1]]  # numbered as given, [[1, 2], ...] first
    assert units_of(table.select(np.array([True, False, True])), 4) == [[2], [0, 1]]
    assert units_of(table.select(slice(0, 1)), 4) == [[0]]
    assert units_of(table.faster(2), 4) == units_of(table, 4)
    assert units_of(pickle.loads(pickle.dumps(table)), 4) == units_of(table, 4)
    assert units_of(RequestTable(**table.columns(), hashes=table.hashes), 4) == units_of(table, 4)
    late = table.replace(arrival_time=[5.0, 3.0, 4.0])
    assert units_of(late, 4) == [[0], [0, 1], [2]]
    assert table.replace(hashes=None).chains(4) is None
    assert table.select(slice(0, 1)).hashes.chain is table.hashes.chain


def test_other_lengths_cut_hashes():
    table = table_of([[1, 2], [1, 2], [1, 2]], [8, 8, 8], 4, outputs=[9, 9, 9])
    shorter = table.replace(prompt_len=[5, 8, 20])
    assert shorter.hashes.chain_tokens.tolist() == [5, 8, 8]
    assert units_of(shorter, 4) == [[0], [0, 1], [0, 1]]
    whole = table.replace(hashes=BlockHashes.from_rows([[1, 2, 3, 4]] * 3, [16] * 3, 4))
    assert whole.replace(output_len=[9, 3, 1]).hashes.chain_tokens.tolist() == [16, 11, 9]
    assert whole.replace(prompt_len=[8, 7, 9]).hashes.chain_tokens.tolist() == [16, 7, 8]


def test_requests_may_share_one_stored_chain():
    hashes = BlockHashes(np.arange(5), np.zeros(3, int), np.array([4, 12, 19]), 4)
    assert [hashes.row(i).tolist() for i in range(3)] == [[0], [0, 1, 2], [0, 1, 2, 3, 4]]
    chain, start, length, count = hashes.chains(4)
    assert (chain.tolist(), start.tolist(), length.tolist(), count) == ([0, 1, 2, 3], [0] * 3, [1, 3, 4], 4)


@st.composite
def forests(draw):
    """Requests as texts of letters, the block and a unit; chains say which texts begin alike."""
    texts = draw(st.lists(st.text("ab", min_size=1, max_size=24), min_size=1, max_size=8))
    block, factor = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([1, 2, 3]))
    unit = block * factor if draw(st.booleans()) or block % factor else block // factor
    return texts, block, unit, draw(st.permutations(range(len(texts))))


@settings(max_examples=60, deadline=None)
@given(forests())
def test_equal_contents_are_equal_beginnings(forest):
    texts, block, unit, order = forest
    rows = [[text[: i + block] for i in range(0, len(text), block)] for text in texts]
    times = np.argsort(order)
    table = table_of(rows, [len(text) for text in texts], block, times=times)
    keep = np.arange(len(texts)) % 3 != 1
    for part, kept in ((table, [texts[i] for i in order]), (table.select(keep), None)):
        kept = kept or [texts[i] for i, k in zip(order, keep, strict=True) if k]
        found = units_of(part, unit)
        assert [len(row) for row in found] == [len(text) // unit for text in kept]
        beginnings = {}
        for text, row in zip(kept, found, strict=True):
            for j, content in enumerate(row):
                assert beginnings.setdefault(content, text[: (j + 1) * unit]) == text[: (j + 1) * unit]
        # A hash for a started block stands for its tokens and no other's: texts that part within it differ earlier.
        whole = {text[: (j + 1) * unit] for text in kept for j in range(len(text) // unit)}
        if block <= unit:
            assert len(beginnings) == len(whole)


def test_the_largest_hash_takes_no_more_memory_than_a_small_one():
    tracemalloc.start()
    made = BlockHashes([2**31 - 1, 7, 2**31 - 1], [0, 2], [8, 4], 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6
    chains = made.chains(4)
    assert chains.chain[: chains.chain_len[0]].tolist() == [0, 1]
    assert chains.chain[chains.chain_start[1]] == 0


def test_units_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("kvgym.utils.resources.free_memory", lambda: 10**9)
    hashes = BlockHashes([0], [0], [2**30], 2**30)
    with pytest.raises(ConfigError, match=r"1,073,741,824 units of 1 tokens take about 42 GB .*block_size"):
        hashes.chains(1)
    assert hashes.chains(2**20).num_contents == 1024


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockHashes.from_rows([[1], [1]], [4, 9], 4), "row 1: 1 hashes for 9 tokens; expected 3"),
        (lambda: BlockHashes.from_rows([[1]], [4, 9], 4), "1 rows of hashes, but tokens has 2"),
        (lambda: BlockHashes.from_rows([[1]], [-1], 4), "tokens, row 0: -1; expected a whole number from 0"),
        (lambda: BlockHashes.from_rows([[1]], [4], 0), "block = 0; expected a whole number"),
        (lambda: BlockHashes([0, 1], [0], [12], 4), "row 0: chain_start 0 and 3 hashes .* beyond chain"),
        (lambda: BlockHashes([0.5], [0], [4], 4), "chain has shape .* expected \\(n,\\) integers"),
        (lambda: BlockHashes([0, 1], [0, 1], [4], 4), "chain_start has 2 rows, chain_tokens 1"),
        (lambda: BlockHashes([0, 1], [2**63 - 1], [4], 4), "chain_start, row 0: 9223372036854775807; expected"),
        (lambda: BlockHashes([0], np.array([2**64 - 1], np.uint64), [4], 4), "chain_start, row 0: 184467440737"),
        (lambda: BlockHashes([2**31], [0], [4], 4), "chain, row 0: 2147483648; expected .* to 2\\^31 - 1"),
        (lambda: BlockHashes([0, 1, 2, 1], [0, 2], [8, 8], 4), "row 0, hash 1: .* not chained"),
        (lambda: table_of([[1, 2]], [8], 4).chains(3), "3 tokens does not fit hashes of 4 tokens"),
        (lambda: table_of([[1, 2]], [8], 4).chains(0), "unit of 0 tokens"),
        (lambda: table_of([[1, 2]], [8], 4).replace(hashes=[1]), "expected BlockHashes"),
        (
            lambda: table_of([[1, 2]], [8], 4).replace(hashes=BlockHashes.from_rows([[1]] * 2, [4, 4], 4)),
            "hashes have 2 rows; expected 1",
        ),
        (
            lambda: table_of([[1, 2]], [8], 4).replace(hashes=BlockHashes.from_rows([[1, 2, 3]], [12], 4)),
            "row 0: cover 12 tokens; expected at most prompt_len \\+ output_len = 9",
        ),
    ],
)  # fmt: skip
def test_wrong_hashes(make, message):
    with pytest.raises(WorkloadError, match=message):
        make()


def sessions(**columns):
    n = len(columns["arrival_time"])
    return RequestTable.from_columns(prompt_len=[1] * n, output_len=[1] * n, **columns)


def test_sessions_are_columns():
    table = sessions(
        arrival_time=[3, 1, 2],
        session_id=[4, 4, 7],
        turn=[3, 1, 1],
        think_time=[0.5, 0, 0],
        gap_kind=[1, 0, 0],
    )
    assert [table.turn.tolist(), table.gap_kind.tolist()] == [[1, 1, 3], [0, 0, 1]]
    assert table.select(slice(1, 3)).session_id.tolist() == [7, 4]
    assert table.faster(2).think_time.tolist() == [0, 0, 0.5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"session_id": [0, 0]}, "session_id and turn must come together"),
        ({"think_time": [0, 0]}, "think_time needs session_id and turn"),
        ({"session_id": [5, 5], "turn": [2, 1]}, "row 1: turn 1 of session 5 arrives after turn 2 \\(row 0\\)"),
        ({"session_id": [5, 5], "turn": [1, 1]}, "expected increasing turns"),
        ({"session_id": [5, 5], "turn": [0, 1]}, "column turn, row 0"),
        ({"session_id": [5, 5], "turn": [1, 2], "gap_kind": [0, 2]}, "gap_kind, row 1: 2; expected 0 \\(user\\)"),
        ({"session_id": [5, 5], "turn": [1, 2], "think_time": [0, np.inf]}, "think_time, row 1: .*inf"),
    ],
)  # fmt: skip
def test_wrong_sessions(columns, message):
    with pytest.raises(WorkloadError, match=message):
        sessions(arrival_time=[0, 1], **columns)
