"""Synthetic prefixes: which beginnings are equal, by hand and against what the lengths say."""

import itertools

import numpy as np
import pytest

from kvgym.errors import ConfigError, WorkloadError
from kvgym.workloads import make_workload
from kvgym.workloads.prefix.reuse import replay

BASE = {
    "arrivals": {"kind": "poisson", "rate": 2},
    "lengths": {
        "kind": "independent",
        "prompt": {"kind": "uniform", "low": 1, "high": 9},
        "output": {"kind": "uniform", "low": 1, "high": 6},
    },
    "num_requests": 60,
}


def workload(n=60, **prefixes):
    return make_workload({**BASE, "num_requests": n, "prefixes": {"block": 4, **prefixes}})


def rows_of(table, unit=4):
    chain, start, length, _ = table.chains(unit)
    return [chain[a : a + n].tolist() for a, n in zip(start, length, strict=True)]


def common(a, b):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def test_arrivals_and_own_lengths_do_not_move():
    plain = make_workload(BASE).sample(3)
    table = workload(levels=[{"count": 3, "tokens": 10}, {"count": 2, "tokens": 5}]).sample(3)
    np.testing.assert_array_equal(table.arrival_time, plain.arrival_time)
    np.testing.assert_array_equal(table.output_len, plain.output_len)
    np.testing.assert_array_equal(table.prompt_len, plain.prompt_len + 15)
    assert table.session_id is None
    assert plain.chains(4) is None


def test_requests_share_the_blocks_that_are_full_where_they_part():
    """Prefixes of 10 and 5 tokens: two blocks of 4 are a system prompt's, the third a user's, the rest a request's."""
    rows = rows_of(workload(levels=[{"count": 3, "tokens": 10}, {"count": 2, "tokens": 5}]).sample(3))
    shared = {common(a, b) for a, b in itertools.combinations(rows, 2)}
    assert shared == {0, 2, 3}
    assert len({row[0] for row in rows}) == 3
    assert len({row[2] for row in rows}) == 6
    own = [content for row in rows for content in row[3:]]
    assert len(set(own)) == len(own)
    # Tokens of a block in which two part are not shared in smaller units either.
    small = rows_of(workload(levels=[{"count": 1, "tokens": 10}]).sample(3), unit=1)
    assert {common(a, b) for a, b in itertools.combinations(small, 2)} == {8}


def test_popular_prefixes_are_drawn_more_often():
    rows = rows_of(workload(3000, levels=[{"count": 4, "tokens": 4, "zipf": 1}]).sample(0))
    counts = np.sort(np.bincount([row[0] for row in rows])[[*{row[0] for row in rows}]])[::-1]
    np.testing.assert_allclose(counts / 3000, np.array([12, 6, 4, 3]) / 25, atol=0.03)


def test_a_turn_begins_with_all_before_it():
    turns = {"number": 3, "open": 4, "gaps": [{"kind": "tool", "median": 2.0}]}
    table = workload(levels=[{"count": 2, "tokens": 6}], turns=turns).sample(1)
    own = make_workload(BASE).sample(1).prompt_len
    rows = rows_of(table)
    for session in set(table.session_id.tolist()):
        members = np.flatnonzero(table.session_id == session)
        assert table.turn[members].tolist() == [*range(1, 1 + len(members))]
        assert len(members) <= 3
        tokens = 6
        for i in members:
            assert table.prompt_len[i] == tokens + own[i]
            tokens = int(table.prompt_len[i] + table.output_len[i])
            assert len(rows[i]) == tokens // 4
        for one, other in itertools.pairwise(members):
            assert common(rows[one], rows[other]) == len(rows[one])
            assert table.hashes.chain_start[one] == table.hashes.chain_start[other]
    assert table.think_time.tolist() == [0.0 if turn == 1 else 2.0 for turn in table.turn]
    assert table.gap_kind.tolist() == [0 if turn == 1 else 1 for turn in table.turn]
    first = table.turn == 1
    hits = replay(table).hits
    before = table.prompt_len - own
    np.testing.assert_array_equal(
        hits[~first], np.minimum(before[~first] - 1, table.prompt_len[~first] - 1) // 4 * 4
    )


def test_a_session_ends_before_its_context_is_too_long():
    table = workload(turns={"number": 100, "open": 2, "max_context": 40}).sample(0)
    assert (table.prompt_len + table.output_len).max() <= 40
    assert table.turn.max() > 2
    with pytest.raises(
        WorkloadError, match=r"request .* has .* tokens with its session; give turns a max_context"
    ):
        make_workload(
            workload(turns={"number": 10, "open": 1}).spec, lengths={"prompt": {"high": 2**31 - 1}}
        ).sample(0)


def test_a_first_turn_that_is_too_long_is_shortened():
    lengths = {"prompt": {"kind": "uniform", "low": 1, "high": 100}}
    wanted = make_workload(
        workload(turns={"number": 5, "open": 3}, levels=[{"tokens": 7}]).spec, lengths=lengths
    )
    bounded = make_workload(wanted.spec, prefixes={"turns": {"max_context": 60}}).sample(0)
    total = bounded.prompt_len + bounded.output_len
    assert total.max() == 60
    assert (bounded.turn[total == 60] == 1).any()
    assert any("shortened to a context of 60 tokens" in line for line in bounded.notes)
    small = make_workload(wanted.spec, prefixes={"turns": {"max_context": 8}})
    with pytest.raises(WorkloadError, match="no room for a prompt and an output behind prefixes of 7 tokens"):
        small.sample(0)


def test_a_longer_run_begins_with_a_shorter_one():
    options = {
        "levels": [{"count": 5, "tokens": {"kind": "uniform", "low": 1, "high": 30}, "zipf": 0.8}],
        "turns": {
            "number": {"kind": "uniform", "low": 1, "high": 6},
            "open": 7,
            "gaps": [{"median": 1, "mean": 3}],
        },
    }
    short, long = workload(**options).sample(5), workload(200, **options).sample(5)
    for name, column in short.columns().items():
        np.testing.assert_array_equal(column, long.columns()[name][:60], name)
    beginning = long.select(slice(0, 60))
    for one, other in zip(short.chains(4), beginning.chains(4), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (workload(**options).sample(6).prompt_len != short.prompt_len).any()


def test_limits_cut_what_is_shared():
    table = make_workload(
        workload(levels=[{"count": 1, "tokens": 10}]).spec, limits={"max_prompt_len": 9}
    ).sample(0)
    assert table.prompt_len.max() == 9
    assert {tuple(row[:2]) for row in rows_of(table)} == {(0, 1)}


def test_two_seeds_draw_other_lengths_of_prefixes():
    levels = [{"count": 1, "tokens": {"kind": "uniform", "low": 100, "high": 10_000}}]
    least = [workload(levels=levels).sample(seed).prompt_len.min() for seed in range(3)]
    assert len(set(least)) == 3


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ({}, "nothing is shared: give levels or turns"),
        ({"levels": [{"tokens": 0}]}, "levels.0: tokens"),
        ({"levels": [{"count": 0, "tokens": 1}]}, "levels.0: count"),
        (
            {"levels": [{"count": 1000, "tokens": 1}, {"count": 1001, "tokens": 1}]},
            "levels have 1,001,000 prefixes",
        ),
        ({"turns": {"number": 2}}, "turns: open: Field required"),
        (
            {"turns": {"number": 2, "open": 1, "gaps": [{"median": 2, "mean": 1}]}},
            "mean = 1.0 is below median = 2.0",
        ),
        ({"turns": {"number": 2, "open": 1, "gaps": [{"kind": "robot", "median": 2}]}}, "gaps.0: kind"),
        ({"levels": [{"tokens": 9}], "block": 0}, "block"),
        ({"system": {"tokens": 9}}, "system"),
    ],
)
def test_wrong_prefixes(prefixes, message):
    with pytest.raises(ConfigError, match=message):
        make_workload({**BASE, "prefixes": prefixes})


def test_traces_have_prefixes_of_their_own(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("arrival_time,prompt_len,output_len\n0,5,5\n")
    prefixes = {"levels": [{"tokens": 8}]}
    with pytest.raises(ConfigError, match="a replayed trace says what its requests share"):
        make_workload({"trace": str(path), "prefixes": prefixes})
    drawn = make_workload(
        {
            "trace": str(path),
            "mode": "resample",
            "arrivals": BASE["arrivals"],
            "num_requests": 3,
            "prefixes": prefixes,
        }
    )
    assert drawn.sample(0).prompt_len.tolist() == [13] * 3
    monkeypatch.setattr("kvgym.workloads.prefix.prefixes.MAX_HASHES", 5)
    with pytest.raises(WorkloadError, match="hashes of 16 tokens; at most 5 are allowed"):
        drawn.sample(0)
