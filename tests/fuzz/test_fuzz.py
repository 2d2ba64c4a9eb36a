"""Fuzzing: a short run, the corpus of earlier findings, and the fuzzer itself."""

import json
import random
from pathlib import Path

import pytest

from fuzz.campaign import Report, failures, load_corpus, plan, play, prepare, run, save, shrink
from fuzz.judging import CLEAR, FINE, FOREIGN, HANG, LONG, MEMORY, SILENT, SilentError, judge
from fuzz.kinds import Kind, all_kinds
from fuzz.trees import mutate, places, revive
from helpers.amount import number
from kvgym.errors import LIMIT, ConfigError, KVGymError
from kvgym.workloads import base

CORPUS = load_corpus(Path(__file__).parent / "corpus")
CASES = number(2000, 400)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(base, "MAX_REQUESTS", base.MAX_REQUESTS)
    prepare()


def test_nothing_fails():
    kinds = {name: kind for name, kind in all_kinds().items() if kind.quick}
    report = run(kinds, CASES, seed=20260, jobs=1)
    assert not report.findings, "\n\n".join(failures(report))
    assert sum(report.counts.values()) >= CASES - len(kinds)
    for name in kinds:  # rejecting all mutations, or none, would test little
        assert report.counts[name, CLEAR] > 0
    assert sum(report.counts[name, FINE] for name in kinds) > CASES / 10
    assert report.table().splitlines()[-2].split()[0] == "all"


@pytest.mark.parametrize(("kind", "tree"), [case[:2] for case in CORPUS], ids=[case[2] for case in CORPUS])
def test_corpus(kind, tree):
    verdict = play(all_kinds()[kind], tree)
    assert not verdict.failed, f"{verdict.outcome}: {verdict.message}\n{verdict.trace}"


def _loops():
    while True:
        pass


def _raises(error):
    raise error


@pytest.mark.parametrize(
    ("play_it", "outcome"),
    [
        (lambda: None, FINE),
        (lambda: _raises(ConfigError("no")), CLEAR),
        (lambda: _raises(SilentError("wrong")), SILENT),
        (lambda: _raises(KeyError("x")), FOREIGN),
        (lambda: _raises(MemoryError()), MEMORY),
        (lambda: _raises(KVGymError("")), LONG),
        (_loops, HANG),
    ],
)
def test_classes(play_it, outcome, monkeypatch):
    monkeypatch.setattr("fuzz.judging.SECONDS", 0.05)
    verdict = judge(play_it)
    assert verdict.outcome == outcome
    assert verdict.failed == (outcome not in (FINE, CLEAR))


def test_long_messages_are_cut_and_kept():
    error = ConfigError("it is\n wrong " + "x" * 1000 + " expected y")
    assert len(str(error)) == LIMIT
    assert str(error).startswith("it is wrong x")
    assert str(error).endswith(" expected y")
    assert error.details.endswith("x expected y")
    assert len(error.details) > 1000


def _naive(content, folder):
    """A reader with a bug: it divides by a field."""
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ConfigError("expected rows")
    for row in content["rows"]:
        if isinstance(row, int) and not isinstance(row, bool):
            1 / row


NAIVE = Kind("naive", lambda: [{"rows": [1, 2, 3], "name": "x" * 40, "more": {"a": [1, 2]}}], _naive)


def test_a_bug_is_found_with_its_smallest_input(tmp_path):
    report = Report()
    for index in range(400):
        tree = NAIVE.make(1, index)
        verdict = play(NAIVE, tree)
        if verdict.failed:
            tree, verdict = shrink(tree, verdict, lambda candidate: play(NAIVE, candidate))
        report.note(NAIVE.name, (1, index), tree, verdict)
    assert [key[:2] for key in report.findings] == [("naive", FOREIGN)]
    (finding,) = report.findings.values()
    assert finding.tree == {"rows": [0]}
    assert "ZeroDivisionError" in finding.verdict.trace
    assert "--case naive:1:" in failures(report)[0]
    (path,) = save(report, tmp_path)
    assert load_corpus(tmp_path) == [("naive", {"rows": [0]}, path.name)]
    assert json.loads(path.read_text())["was"].startswith("foreign: division")


def test_inputs_are_functions_of_seed_and_number():
    assert NAIVE.make(1, 5) == NAIVE.make(1, 5)
    assert len({json.dumps(NAIVE.make(1, k)) for k in range(50)}) > 30
    assert plan({"naive": NAIVE}, 120, 3) == plan({"naive": NAIVE}, 120, 3)
    assert sum(end - first for _, first, end in plan({"naive": NAIVE}, 120, 3)) == 120


def test_trees():
    tree = {"a": [1, {"$bytes": "\xff"}], "b": {"$odd": "complex"}}
    assert revive(tree) == {"a": [1, b"\xff"], "b": 1 + 2j}
    assert len(list(places(tree))) == 7
    before = json.dumps(tree)
    for k in range(300):
        json.dumps(mutate(tree, random.Random(k), odd=True))
    assert json.dumps(tree) == before
