"""Block hashes that are assumed from sessions and system prompts: by hand, and against token lists in plain Python."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.workloads import load_trace, make_workload, read_trace
from kvgym.workloads.traces.histories import BLOCK, with_histories
from kvgym.workloads.traces.trace import Trace

LOG = """timestamp,session_id,client_id,input_tokens,output_tokens
0,a,x,100,20
1,b,x,64,10
2,a,x,150,30
3,c,y,64,5
4,a,x,40,5
5,b,x,80,4
6,a,x,60,9
"""
"""Session a continues, is cut at 4 s and continues from there; b continues; c is of another client."""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def rows_of(hashes, unit=BLOCK):
    chain, start, length, _ = hashes.chains(unit)
    return [chain[a : a + n].tolist() for a, n in zip(start, length, strict=True)]


def common(a, b):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def test_a_log_by_hand(log):
    """A system prompt of 40 tokens: two full blocks of 16. Numbers are by first appearance in the chains."""
    trace = load_trace(log, shared_prefix=40)
    hashes = trace.extra["hashes"]
    assert hashes.block == 16
    assert hashes.chain_tokens.tolist() == [120, 74, 180, 69, 45, 84, 69]
    rows = rows_of(hashes)
    assert [len(row) for row in rows] == [7, 4, 11, 4, 2, 5, 4]
    shared = {(i, j): common(rows[i], rows[j]) for i, j in itertools.combinations(range(7), 2)}
    # Within a session all of the earlier turn; within a client the system prompt; otherwise nothing.
    assert shared[0, 2] == 7
    assert shared[1, 5] == 4
    assert shared[4, 6] == 2
    assert {shared[pair] for pair in [(0, 1), (0, 4), (0, 5), (0, 6), (2, 6), (4, 5)]} == {2}
    assert {shared[i, j] for i, j in shared if 3 in (i, j)} == {0}
    assert trace.notes[-1] == (
        "Block hashes are assumed, see docs/prefix-cache.md: 3 of 4 later turns begin with the history of their "
        "session (the others are shorter), 7 of 7 requests with a system prompt of 40 tokens, one for each client."
    )


def test_prompts_shorter_than_the_system_prompt_do_not_have_it(log):
    rows = rows_of(load_trace(log, shared_prefix=48).extra["hashes"])
    assert common(rows[0], rows[1]) == 3
    assert common(rows[0], rows[4]) == 0
    assert common(rows[4], rows[6]) == 2


def test_without_sessions_requests_share_the_system_prompt(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n0,40,9\n1,70,9\n")
    trace = load_trace(path, shared_prefix=32)
    assert common(*rows_of(trace.extra["hashes"])) == 2
    assert trace.notes[-1].endswith(": 2 of 2 requests with a system prompt of 32 tokens.")
    nothing = load_trace(path, shared_prefix=0)
    assert common(*rows_of(nothing.extra["hashes"])) == 0
    assert "nothing: there are no sessions and no system prompt" in nothing.notes[-1]


def test_off_is_the_same_trace(log):
    assert "hashes" not in load_trace(log).extra
    assert load_trace(log, shared_prefix=0).extra["hashes"] is not None
    assert load_trace(log).notes == load_trace(log, shared_prefix=0).notes[:-1]


def token_lists(sessions, clients, prompts, outputs, shared):
    """Tokens of each request, prompt and output."""
    found, last = [], {}
    for row, (session, client, prompt, output) in enumerate(
        zip(sessions, clients, prompts, outputs, strict=True)
    ):
        before = last.get(session, [])
        if not before or prompt < len(before):
            before = [("system", client, k) for k in range(shared)] if prompt >= shared else []
        own = [(row, k) for k in range(prompt + output - len(before))]
        found.append([*before, *own])
        last[session] = found[-1]
    return found


REQUEST = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 150), st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=14), st.integers(0, 70), st.booleans(), st.booleans())
def test_token_lists_share_the_same_blocks(requests, shared, of_clients, of_sessions):
    sessions, clients, prompts, outputs = (
        np.array(column, np.int64) for column in zip(*requests, strict=True)
    )
    n = len(requests)
    extra = {"session_id": sessions} if of_sessions else {}
    extra |= {"client_id": 5 * clients} if of_clients else {}
    trace = Trace("log.csv", "table", "", n, np.arange(n, dtype=float), prompts, outputs, extra)
    hashes = with_histories(trace, shared).extra["hashes"]
    tokens = token_lists(
        sessions.tolist() if of_sessions else range(n),
        clients.tolist() if of_clients else [0] * n,
        prompts.tolist(),
        outputs.tolist(),
        shared,
    )
    assert hashes.chain_tokens.tolist() == [len(one) for one in tokens]
    rows = rows_of(hashes)
    for i, j in itertools.combinations(range(n), 2):
        assert common(rows[i], rows[j]) == common(tokens[i], tokens[j]) // BLOCK, (i, j)


def test_scenarios_files_and_options_build_them(log):
    described = make_workload({"trace": str(log), "shared_prefix": 40}).sample(0)
    option = build_scenario("vllm-v1", trace=log, shared_prefix=40).make_workload().sample(0)
    read = read_trace(log, shared_prefix=40)
    for table in (option, read):
        np.testing.assert_array_equal(table.hashes.chain, described.hashes.chain)
    # The history of turns before a window stays.
    late = make_workload({"trace": str(log), "shared_prefix": 40, "start": 1.5, "end": 5.5}).sample(0)
    assert rows_of(late.hashes)[0] == rows_of(described.hashes)[2]


def test_mistakes_are_named(log, tmp_path):
    hashed = tmp_path / "hashed.csv"
    hashed.write_text("timestamp,input_tokens,output_tokens,hash_ids,hash_block\n0,20,9,1 2,16\n")
    with pytest.raises(ConfigError, match=r"shared_prefix = 16: .* has block hashes.*leave shared_prefix"):
        load_trace(hashed, shared_prefix=16)
    with pytest.raises(ConfigError, match="shared_prefix = -1; expected a whole number of tokens ≥ 0"):
        load_trace(log, shared_prefix=-1)
    with pytest.raises(ConfigError, match="resample draws lengths without sessions"):
        make_workload({"trace": str(log), "mode": "resample", "shared_prefix": 40, "rate": 1})


def test_comparisons_find_what_is_assumed_and_say_what_is_missing(log):
    def notes(**options):
        found = compare(build_scenario("vllm-v1", trace=log, **options), ["fcfs"], seeds=1)
        return found.values("fcfs", "hit_rate")[0], "\n".join(found.notes)

    rate, text = notes(prefix_cache="scheduled")
    assert rate == 0
    assert (
        "The prefix cache finds nothing, as these requests have no block hashes: --shared-prefix TOKENS"
        in text
    )
    rate, text = notes()
    assert np.isnan(rate)
    assert "The prefix cache is off although requests belong to sessions" in text
    assert "--prefix-cache scheduled --shared-prefix TOKENS" in text
    rate, text = notes(prefix_cache="scheduled", shared_prefix=40)
    # Of 558 prompt tokens: blocks of the system prompt and of turns before; one token of a prompt is always computed.
    assert rate == (0 + 32 + 112 + 0 + 32 + 64 + 32) / 558
    assert "finds nothing" not in text
    assert "although requests share beginnings" in notes(shared_prefix=40)[1]


def test_workloads_without_a_trace_are_referred_to_prefixes():
    found = compare(build_scenario("vllm-v1", prefix_cache="computed", num_requests=20), ["fcfs"], seeds=1)
    assert any("no block hashes: give the workload prefixes" in note for note in found.notes)
    assert not any("prefix cache" in note for note in compare("vllm-v1", ["fcfs"], seeds=1).notes)
