"""A few seconds of random play: no faults, reports of faults, and continued plays."""

from __future__ import annotations

import json

import pytest

import random_play
from helpers.amount import some
from playing import segments
from playing.segments import KINDS, play_segment


@pytest.mark.parametrize("number", some(range(2 * len(KINDS)), 2))
def test_no_faults(number):
    played = play_segment(0, number, steps=300)
    assert not played["fault"], played
    assert played["steps"] >= 300


def test_seed_and_number_determine_a_segment():
    one, again, other, next_one = (
        play_segment(seed, number, 40) for seed, number in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert one == again
    assert len({json.dumps({**s, "number": 0}) for s in (one, other, next_one)}) == 3


def test_faults_are_reported_and_set_the_exit_status(tmp_path, monkeypatch, capsys):
    """Wrong returns are reported for every segment with a completed episode."""

    def wrong(*arguments):
        raise AssertionError("the rewards latency add up to 2; e2e_latency_mean makes 1")

    monkeypatch.setattr(segments, "check_returns", wrong)
    monkeypatch.setattr("sys.argv", ["random_play.py", "--steps", "3000", "--out", str(tmp_path)])
    assert random_play.main() == 1
    report = (tmp_path / "report.md").read_text()
    assert "AssertionError: the rewards latency add up to 2" in report
    assert '"num_requests"' in report, "the configuration is missing"
    assert "add up to 2" in capsys.readouterr().out


def test_a_stopped_play_continues(tmp_path):
    whole = random_play.play(1200, 5, 1, tmp_path / "whole")
    random_play.play(400, 5, 1, tmp_path / "parts")
    journal = tmp_path / "parts" / "segments.jsonl"
    journal.write_text(journal.read_text()[:-20])  # the last line is incomplete
    with pytest.raises(ValueError, match="continue it with --resume, or choose another --out"):
        random_play.play(1200, 5, 1, tmp_path / "parts")
    assert random_play.play(1200, 5, 1, tmp_path / "parts", resume=True) == whole
    with pytest.raises(ValueError, match="was not played with seed 6"):
        random_play.play(2400, 6, 1, tmp_path / "parts", resume=True)
    assert random_play.report(whole, 5).startswith("1,2")
