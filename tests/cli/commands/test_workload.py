"""``kvgym workload``: tables, JSON and picture of traces, presets and scenarios."""

import json
from pathlib import Path

import pytest

# Two prompts of 12 and 13 tokens that begin alike, one of 9 that does not, and the first again: blocks of 4.
ROWS = [(0, 12, [1, 2, 3]), (2, 13, [1, 2, 4, 5]), (4, 9, [6, 7, 8]), (10, 12, [1, 2, 3])]


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shared.jsonl"
    lines = (
        {"arrival_time": t, "prompt_len": n, "output_len": 2, "hash_ids": ids, "session_id": 0, "turn": k + 1,
         "think_time": 2 * k, "gap_kind": k % 2}
        for k, (t, n, ids) in enumerate(ROWS)
    )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_trace_as_json(kvgym, trace):
    code, out, _ = kvgym("workload", trace, "--json", "--cache-sizes", "20,1.6e1")
    found = json.loads(out)
    assert code == 0
    assert [found["requests"], found["seconds"]] == [4, 10]
    assert found["rate"]["mean"] == 0.3
    assert [found["prompt_len"][name] for name in ("mean", "p50", "max", "total")] == [11.5, 12, 13, 46]
    assert found["sessions"]["count"] == 1
    assert found["sessions"]["turns"]["mean"] == 4
    assert {kind: gap["mean"] for kind, gap in found["sessions"]["gaps"].items()} == {"user": 4, "tool": 4}
    reuse = found["reuse"]
    assert [reuse["unit"], reuse["hashes"], reuse["repeated_hashes"]] == [4, 13, 5]
    # The second prompt hits 8 tokens, the last one 8, as its last unit is computed. Of 4 blocks the third prompt takes
    # the blank one and the tail of the second prompt, two blocks: the last one then hits 4.
    hits = {cache["capacity"]: cache["hit_tokens"] for cache in reuse["caches"]}
    assert hits == {16: 12, 20: 16, None: 16}


def test_a_trace_as_tables_with_a_picture(kvgym, trace):
    out = kvgym.output("workload", trace, "-n", "3", "--unit", "2", "--plot", "pictures/a.svg")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith("shared.jsonl") for line in lines)
    assert "hashes 2 of 10 repeat an earlier one (20.00%)" in lines
    assert "reuse in units of 2 tokens, one request after another" in lines
    assert "infinite 8 23.53% 0" in lines
    assert "note: The first 3 of 4 requests are used." in lines
    assert "Reuse, one request after another" in Path("pictures/a.svg").read_text("utf-8")


def test_a_preset_and_a_scenario(kvgym, trace, tmp_path):
    out = kvgym.output("workload", "mcsf-model-1")
    assert "reuse unknown: no block hashes, so every prompt counts as new" in " ".join(out.split())
    (tmp_path / "mine.yaml").write_text(
        """
summary: chats with one system prompt
hardware: llama3-8b-a100-tp1
workload:
  arrivals: {kind: poisson, rate: 2}
  lengths: {kind: independent, prompt: {kind: constant, value: 30}, output: {kind: constant, value: 10}}
  num_requests: 50
  prefixes:
    levels: [{tokens: 64}]
    turns: {number: 3, open: 5}
"""
    )
    code, out, _ = kvgym("workload", "mine.yaml", "--json", "--rate", 4, "-n", 40)
    found = json.loads(out)
    assert code == 0
    assert [found["requests"], found["prompt_len"]["max"], found["reuse"]["unit"]] == [
        40,
        64 + 30 + 2 * 40,
        16,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "unknown workload, scenario or trace file 'nothing'"),
        (("missing.jsonl",), "missing.jsonl: no such file"),
        (("lmsys", "--unit", "16"), "these requests have no block hashes, so there is no reuse"),
        (("shared.jsonl", "--unit", "3"), "a unit of 3 tokens does not fit hashes of 4 tokens"),
        (
            ("shared.jsonl", "--cache-sizes", "1e6,big"),
            "--cache-sizes: 'big'; expected whole numbers of tokens",
        ),
    ],
)
def test_mistakes(kvgym, trace, arguments, message):
    err = kvgym.error("workload", *arguments)
    assert message in " ".join(err.split())


def test_a_trace_as_an_option(kvgym, trace):
    assert kvgym.output("workload", "--trace", trace) == kvgym.output("workload", trace)
    assert "give one workload" in kvgym.error("workload")
    assert "give one workload" in kvgym.error("workload", "lmsys", "--trace", trace)
