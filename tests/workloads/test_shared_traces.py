"""Traces that say what requests share: hashes of blocks, and sessions."""

import json

import numpy as np
import pytest

from helpers.servers.trace_files import write
from kvgym.errors import ConfigError, TraceFormatError, WorkloadError
from kvgym.workloads import RequestTable, read_trace, write_requests
from kvgym.workloads.hashes import BlockHashes


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(*requests):
    """Rows of (tokens, hashes), one a second."""
    return lines(
        {"timestamp": 1000 * i, "input_length": tokens, "output_length": 5, "hash_ids": ids}
        for i, (tokens, ids) in enumerate(requests)
    )


def bailian(*chats):
    """Rows of (chat, parent, seconds, turn)."""
    return lines(
        {
            "chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": 20, "output_length": 5,
            "type": "text", "turn": turn, "hash_ids": [1, 100 + chat],
        }
        for chat, parent, time, turn in chats
    )  # fmt: skip


def test_mooncake_hashes_are_of_512_tokens(tmp_path):
    table = read_trace(write(tmp_path, mooncake((1000, [9, 4]), (1024, [9, 7]), (512, [9])), "a.jsonl"))
    assert (table.hashes.block, table.hashes.chain_tokens.tolist()) == (512, [1000, 1024, 512])
    chains = table.chains(512)
    assert [chains.chain_len.tolist(), chains.num_contents] == [[1, 2, 1], 2]
    assert table.chains(16).chain_len.tolist() == [62, 64, 32]


def test_hashes_of_another_number_of_tokens_are_recognised_by_the_lengths(tmp_path):
    table = read_trace(write(tmp_path, mooncake((1000, [*range(16)]), (65, [0, 20])), "a.jsonl"))
    assert table.hashes.block == 64
    assert "Each hash id stands for 64 tokens, which follows from the lengths." in table.notes


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1000, [1, 2]), (600, [1])], "line 2: 1 hashes for 600 tokens; expected 2, one for each started block"),
        ([(1000, [1, 2]), (600, [1, 2, 3])], "line 2: 3 hashes for 600 tokens; expected 2"),
        ([(1000, 7)], "line 1, column 'hash_ids': 7; expected a list of hashes"),
        ([(1000, [1, None])], "line 1, column 'hash_ids': .*; expected a list of hashes"),
        ([(1000, [1, 1.5])], "line 1, column 'hash_ids': .*; expected a list of hashes"),
        ([(1000, [1, float("inf")])], "line 1, column 'hash_ids': .*; expected a list of hashes"),
        ([(1000, [1, [2]])], "line 1, column 'hash_ids': .*; expected a list of hashes"),
        ([(1000, None)], "line 1, column 'hash_ids': nothing; expected a list of hashes"),
    ],
)  # fmt: skip
def test_wrong_hashes_name_the_line(tmp_path, rows, message):
    with pytest.raises(TraceFormatError, match=message):
        read_trace(write(tmp_path, mooncake(*rows), "a.jsonl"))


def test_hashes_stay_with_their_rows(tmp_path):
    rows = mooncake((600, [1, 2]), (0, []), (512, [3]), (700, [1, 4])).splitlines()
    table = read_trace(write(tmp_path, "\n".join([rows[3], *rows[:3]]), "a.jsonl"), debatch=False)
    assert table.prompt_len.tolist() == [600, 512, 700]
    hashes = [table.hashes.row(i).tolist() for i in range(3)]
    assert hashes[0][0] == hashes[2][0]
    assert len({h for row in hashes for h in row}) == 4
    assert len(read_trace(tmp_path / "a.jsonl", start=1.5, max_requests=1).hashes) == 1


def test_a_first_continuation_stays_in_its_session(tmp_path):
    rows = bailian((1, -1, 0, 1), (2, -1, 1, 1), (3, 1, 5, 2), (4, 1, 6, 2), (5, 3, 9, 3), (6, 4, 9.5, 4))
    table = read_trace(write(tmp_path, rows, "a.jsonl"))
    session = table.session_id
    assert table.turn.tolist() == [1, 1, 2, 2, 3, 4]
    assert session[0] == session[2] == session[4]
    assert session[3] == session[5]
    assert len(set(session.tolist())) == 3
    assert (table.hashes.block, table.chains(16).chain_len.tolist()) == (16, [1] * 6)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, -1, 0, 1), (2, 9, 1, 2)], "line 2: parent_chat_id 9 is no chat_id of the file; add its row, or write -1"),
        ([(1, -1, 0, 1), (1, -1, 1, 1)], "line 2: chat_id 1 occurs twice"),
        ([(1, 2, 0, 1), (2, 1, 1, 2)], "chat_id 1 continues itself through parent_chat_id 2; write -1"),
        ([(1, 1, 0, 1)], "line 1: chat_id 1 continues itself"),
        ([(1, -1, 0, 2), (2, 1, 1, 2)], "line 2: turn 2 continues chat 1, which is turn 2; expected a later turn"),
        ([(1, -1, 5, 1), (2, 1, 1, 2)], "line 2: turn 2 at 1 s comes before the chat that it continues"),
    ],
)  # fmt: skip
def test_wrong_sessions_name_the_line(tmp_path, rows, message):
    with pytest.raises(TraceFormatError, match=message):
        read_trace(write(tmp_path, bailian(*rows), "a.jsonl"))


def call(session, *messages, gap=0.0, output=7):
    turns = [dict(zip(("role", "content"), message, strict=True)) for message in messages]
    return {"session_id": session, "model": "m", "input": turns, "output_length": output, "pre_gap": gap}


def test_agent_traces_share_the_tokens_that_they_repeat(tmp_path):
    system = ("system", " ".join(["word"] * 31))  # with its role 32 tokens
    first, answer, result = ("user", "a b"), ("assistant", "c"), ("tool", "d")
    rows = [
        call("x", system, first),
        call("x", system, first, answer, result, gap=0.5),
        call("y", system, ("user", "a other")),
    ]
    path = write(tmp_path, lines(rows), "a.jsonl")
    table = read_trace(path)
    assert table.prompt_len.tolist() == [35, 39, 35]
    assert [table.session_id.tolist(), table.turn.tolist()] == [[0, 0, 1], [1, 2, 1]]
    assert [table.think_time.tolist(), table.gap_kind.tolist()] == [[0, 0.5, 0], [0, 1, 0]]
    chain, start, length, _ = table.chains(16)
    assert [chain[a : a + n].tolist() for a, n in zip(start, length, strict=True)] == [[0, 1]] * 3
    letters = read_trace(path, tokenizer=list)
    assert letters.prompt_len[0] == len("system\n" + system[1]) + len("user\na b")
    with pytest.raises(ConfigError, match="needs the tokens themselves"):
        read_trace(path, tokenizer=len)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "text"}, "line 1, key 'input': expected a list of messages"),
        ({"input": [{"content": "a"}]}, "expected a list of messages with 'role'"),
        ({"output_length": -1}, "line 1, key 'output_length': -1; expected a whole number of tokens"),
        ({"pre_gap": "soon"}, "key 'pre_gap': 'soon'; expected a number of seconds"),
    ],
)
def test_wrong_agent_traces(tmp_path, change, message):
    with pytest.raises(TraceFormatError, match=message):
        read_trace(write(tmp_path, lines([{**call("x", ("user", "a")), **change}]), "a.jsonl"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_own_files_keep_hashes_and_sessions(tmp_path, suffix):
    table = RequestTable.from_columns(
        arrival_time=[0.5, 1.5, 2.5], prompt_len=[5, 9, 3], output_len=[4, 1, 2], session_id=[3, 0, 3],
        turn=[1, 1, 4], think_time=[0, 0, 0.1], gap_kind=[0, 0, 1],
        hashes=BlockHashes.from_rows([[0, 1, 2, 3], [0, 1, 4], []], [8, 6, 0], 2),
    )  # fmt: skip
    path = tmp_path / f"own{suffix}"
    write_requests(table, path)
    again = read_trace(path)
    for name, column in table.columns().items():
        np.testing.assert_array_equal(again.columns()[name], column, name)
    assert again.hashes.block == 2
    for mine, theirs in zip(again.chains(1), table.chains(1), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_own_tables_may_have_texts_as_sessions_and_no_turns(tmp_path):
    rows = "timestamp,prompt_tokens,completion_tokens,session_id\n3,5,5,b\n1,5,5,b\n2,5,5,a\n"
    table = read_trace(write(tmp_path, rows))
    assert [table.session_id.tolist(), table.turn.tolist()] == [[0, 1, 0], [1, 1, 2]]
    huge = "arrival_time,prompt_len,output_len,session_id\n0,5,5,123456789012345678901\n1,5,5,7\n"
    assert read_trace(write(tmp_path, huge)).session_id.tolist() == [0, 1]
    text = 'arrival_time,prompt_len,output_len,hash_ids,hash_block\n0,5,5,"1 2",4\n1,5,5,"[1,3]",3\n'
    with pytest.raises(TraceFormatError, match="line 3: hash_block differs from the first row's, 4"):
        read_trace(write(tmp_path, text, "b.csv"))
    with pytest.raises(TraceFormatError, match="does not follow from the lengths; add a column hash_block"):
        read_trace(write(tmp_path, "arrival_time,prompt_len,output_len,hash_ids\n0,11,5,1\n", "c.csv"))
    turns = "arrival_time,prompt_len,output_len,session_id,turn\n0,5,5,0,2\n1,5,5,0,1\n"
    with pytest.raises(WorkloadError, match="turn 1 of session 0 arrives after turn 2"):
        read_trace(write(tmp_path, turns, "d.csv"))
