"""Traces of agents, worked by hand: conversations with subagents (weka), and Mooncake's turns with delays."""

import json

import numpy as np
import pytest

from kvgym.errors import TraceFormatError
from kvgym.workloads.traces.reader import detected_format, load_trace


def call(t, prompt, output=10, *ids, **more):
    return {"t": t, "type": "s", "model": "m", "in": prompt, "out": output, "hash_ids": list(ids), **more}


def subagent(t, requests, agent="a", status="completed"):
    return {"t": t, "type": "subagent", "agent_id": agent, "status": status, "requests": requests}


def written(path, *conversations, block=64):
    lines = [
        json.dumps({"id": str(k), "block_size": block, "hash_id_scope": "local", "requests": requests})
        for k, requests in enumerate(conversations)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


# The main agent calls two subagents after its first call; its second call waits for them, a third was launched apart.
FIRST = [
    call(0.0, 130, 10, 1, 2, 3, api_time=2.0, stop="tool_use"),
    subagent(2.0, [call(2.5, 64, 5, 9, api_time=1.0), call(4.0, 128, 5, 9, 10, api_time=2.0)], "a"),
    subagent(2.0, [call(3.0, 64, 5, 9, api_time=6.0)], "b"),
    subagent(2.0, [call(3.0, 10, 5, 9, api_time=90.0)], "c", "async_launched"),
    call(10.0, 200, 10, 1, 2, 3, 4, api_time=1.0, input_types=["tool_result"], stop="end_turn"),
    call(31.0, 210, 10, 1, 2, 3, 4),
]


def test_a_conversation_with_subagents(tmp_path):
    path = written(tmp_path / "x.jsonl", FIRST, [call(0.0, 64, 1, 1)])
    assert detected_format(path) == "weka"
    table = load_trace(path).to_table()
    # In order of time: the first call, a's first, b's and c's, a's second, then the rest of the main agent.
    assert table.prompt_len.tolist() == [130, 64, 64, 10, 128, 200, 210, 64]
    assert table.session_id.tolist() == [0, 1, 2, 3, 1, 0, 0, 4]
    assert table.job_id.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    rows = np.split(table.parents.rows, table.parents.start[1:-1])
    assert [each.tolist() for each in rows] == [[], [0], [0], [0], [1], [0, 2, 4], [5], []]
    assert table.think_time.tolist() == [
        0,
        0.5,
        1,
        1,
        0.5,
        1,
        20,
        0,
    ]  # b has ended at 9, the second call at 11
    assert table.gap_kind.tolist() == [0, 1, 1, 1, 1, 1, 0, 0]
    hashes = [table.hashes.row(i).tolist() for i in range(8)]
    assert hashes[1] == hashes[2] == hashes[3] == hashes[4][:1]  # of one conversation
    assert hashes[7][0] not in hashes[0]  # hash 1 of another conversation
    assert hashes[5][:3] == hashes[0]
    assert table.hashes.chain_tokens.tolist() == [130, 64, 64, 10, 128, 200, 210, 64]


def test_times_on_the_clock_of_the_subagent(tmp_path):
    # 0.25 is before 2.0, so the file's subagents have clocks of their own: 2.25 and, in the other conversation, 12.
    requests = [
        call(0.0, 10, 1, api_time=1.0),
        subagent(2.0, [call(0.25, 20, 1, api_time=0.5)]),
        call(3.0, 30, 1),
    ]
    other = [
        call(0.0, 10, 1, api_time=1.0),
        subagent(5.0, [call(7.0, 40, 1, api_time=1.0)]),
        call(13.5, 50, 1),
    ]
    trace = load_trace(written(tmp_path / "x.jsonl", requests, other))
    assert trace.extra["think_time"].tolist() == [0, 1.25, 0.25, 0, 11, 0.5]
    assert any("counted from the beginning of their subagent" in note for note in trace.notes)
    trace = load_trace(written(tmp_path / "y.jsonl", other))
    assert trace.extra["think_time"].tolist() == [0, 6, 5.5]


def test_a_subagent_goes_on_and_one_that_outlasts_a_call_is_not_waited_for_there(tmp_path):
    requests = [
        call(0.0, 1, 1, api_time=1.0),
        subagent(1.0, [call(1.0, 2, 1, api_time=1.0)], "a"),
        subagent(1.0, [call(1.0, 3, 1, api_time=9.0)], "b"),
        call(3.0, 4, 1, api_time=1.0),
        subagent(5.0, [call(5.0, 5, 1, api_time=1.0)], "a"),
        call(12.0, 6, 1),
    ]
    table = load_trace(written(tmp_path / "x.jsonl", requests)).to_table()
    assert table.prompt_len.tolist() == [1, 2, 3, 4, 5, 6]
    assert table.session_id.tolist() == [0, 1, 2, 0, 1, 0]
    rows = np.split(table.parents.rows, table.parents.start[1:-1])
    assert [each.tolist() for each in rows] == [[], [0], [0], [0, 1], [1, 3], [2, 3, 4]]


def test_without_recorded_ends_delays_or_beginnings_count(tmp_path):
    trace = load_trace(
        written(tmp_path / "x.jsonl", [call(0.0, 1, 1), call(8.0, 1, 1, think_time=3.0), call(9.5, 1, 1)])
    )
    assert trace.extra["think_time"].tolist() == [0, 3, 1.5]
    assert "hashes" not in trace.extra
    assert not trace.has_times


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"t": "soon"}, "line 1: key 't': 'soon'; expected a number of seconds"),
        ({"in": 1.5}, "line 1: key 'in': 1.5; expected a whole number of tokens"),
        ({"hash_ids": 7}, "line 1: key 'hash_ids': 7; expected a list of hashes"),
    ],
)
def test_mistakes(wrong, problem, tmp_path):
    with pytest.raises(TraceFormatError, match=problem):
        load_trace(written(tmp_path / "x.jsonl", [call(0.0, 1) | wrong]))


def test_mistakes_of_conversations(tmp_path):
    path = written(tmp_path / "x.jsonl", [call(0.0, 1)])
    path.write_text(path.read_text() + path.read_text().replace("64", "16"))
    with pytest.raises(TraceFormatError, match="line 2: block_size 16 differs from 64 before"):
        load_trace(path)
    path.write_text('{"block_size": 64, "requests": [3]}\n')
    with pytest.raises(TraceFormatError, match="line 1: expected 'requests' with a list of objects"):
        load_trace(path)


def turns(path, *rows):
    names = ("session_id", "input_length", "output_length")
    records = [dict(zip(names, row[:3], strict=True)) | row[3] for row in rows]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_turns_with_delays(tmp_path):
    path = turns(
        tmp_path / "x.jsonl",
        ("a", 600, 5, {"timestamp": 1000, "hash_ids": [1, 2]}),
        ("b", 512, 5, {"timestamp": 1500, "hash_ids": [1]}),
        ("a", 700, 6, {"delay": 2500, "hash_ids": [1, 3]}),
        ("a", 800, 7, {"delay": 500, "hash_ids": [1, 3]}),
    )
    assert detected_format(path) == "mooncake_sessions"
    trace = load_trace(path)
    assert trace.arrival_time.tolist() == [0, 0.5, 2.5, 3]
    assert trace.extra["session_id"].tolist() == [0, 1, 0, 0]
    assert trace.extra["turn"].tolist() == [1, 1, 2, 3]
    assert trace.extra["think_time"].tolist() == [0, 0, 2.5, 0.5]
    assert trace.extra["hashes"].block == 512
    alone = turns(tmp_path / "y.jsonl", ("a", 1, 1, {"delay": 0}), ("a", 2, 1, {"delay": 250}))
    trace = load_trace(alone)
    assert not trace.has_times
    assert trace.extra["think_time"].tolist() == [0, 0.25]


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (("a", 1, 1, {"timestamp": 5, "delay": 5}), "line 2: timestamp and delay; expected one of them"),
        (("b", 1, 1, {}), "line 2: no timestamp in the first turn of a session"),
        (("a", 1, 1, {"delay": -1}), "line 2: key 'delay': -1; expected a number of milliseconds"),
    ],
)
def test_mistakes_of_turns(second, problem, tmp_path):
    path = turns(tmp_path / "x.jsonl", ("a", 1, 1, {"timestamp": 0}), second)
    with pytest.raises(TraceFormatError, match=problem):
        load_trace(path)
