"""Schedules recorded from engines by ``scripts/conformance --freeze`` are still those of kvgym's policies."""

from dataclasses import replace
from pathlib import Path

import pytest
from conformance import frozen
from conformance.cases import COMPARED, difference
from conformance.engines import (
    AHEAD_COMPARED,
    CHECKOUT_COMPARED,
    classify,
    play_sglang,
    play_sorted,
    play_vllm,
)

FILES = sorted(Path(__file__).parent.glob("*.jsonl"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_schedules_are_equal(path):
    engine, recorded = frozen.read(path)
    assert path.stem == "-".join(engine.values())
    assert len(recorded) >= 4
    assert any(step.preempted or step.cached for _, theirs in recorded for step in theirs.steps)
    for case, theirs in recorded:
        if engine["engine"] == "vllm":
            compared = AHEAD_COMPARED if "async" in engine.get("options", "") else COMPARED
            played = play_vllm(case, compiled=not (case.depth or case.host_blocks))
            assert difference(played, theirs, compared) == "", case
        elif engine["engine"] == "sglang":
            assert difference(play_sglang(case), theirs) == "", case
        else:
            assert difference(play_sorted(case), theirs, CHECKOUT_COMPARED) == "", case


def test_another_release_or_memory_is_noticed():
    _, played = frozen.read(Path(__file__).parent / "vllm-0.33.0.jsonl")
    for change in ({"engine_version": "0.24"}, {"watermark": 0.6}):
        usual = {"max_num_active_seqs": None, "prefill_schedule_interval": 1}
        usual |= {"long_prefill_token_threshold_adaptive": False} if "engine_version" in change else {}
        others = [replace(case, settings=case.settings | usual | change) for case, _ in played]
        found = [difference(play_vllm(c), theirs) for c, (_, theirs) in zip(others, played, strict=True)]
        assert any(found)
    assert any(difference(play_vllm(case, at_once=True), theirs) for case, theirs in played)


def test_a_decision_at_another_time_or_without_the_cache_is_noticed():
    _, ahead = frozen.read(Path(__file__).parent / "vllm-0.33.0-async.jsonl")
    at_once = [replace(case, settings=case.settings | {"async_scheduling": False}) for case, _ in ahead]
    pairs = list(zip(at_once, ahead, strict=True))
    assert any(difference(play_vllm(case), theirs, AHEAD_COMPARED) for case, (_, theirs) in pairs)
    _, cached = frozen.read(Path(__file__).parent / "vllm-0.33.0-prefix.jsonl")
    assert any(difference(play_vllm(replace(case, texts=())), theirs) for case, theirs in cached)


def test_a_cache_of_single_units_is_noticed():
    """SGLang drops whole leaves, keeps no copies, and sorts by all whole blocks of a prompt."""
    _, played = frozen.read(Path(__file__).parent / "sglang-0.5.23.jsonl")
    others = [difference(play_sglang(case, prefix_cache="computed"), theirs) for case, theirs in played]
    assert sum(map(bool, others)) >= 5


def test_a_file_is_read_as_it_was_written(tmp_path):
    for path in FILES:
        engine, played = frozen.read(path)
        frozen.write(tmp_path / "copy", engine, played)
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    assert frozen.choose(played, 3)[0] in played
    assert frozen.choose([], 3) == []


def test_differences_are_named():
    _, ((_, schedule), *_) = frozen.read(FILES[0])
    first, *rest = schedule.steps
    other = replace(schedule, steps=(replace(first, blocks=first.blocks + 1), *rest))
    found = difference(other, schedule)
    assert found == f"step 0, blocks: {first.blocks + 1} here, {first.blocks} in the engine"
    empty = replace(schedule, steps=(replace(first, empty=True), *rest))
    again = replace(schedule, steps=(replace(first, preempted=(0,), tokens=((0, 3),)), *rest))
    assert classify(found, schedule, "vllm 0.33.0") == "other"
    assert classify(found, empty, "vllm 0.33.0") == "after an empty step"
    assert classify(found, empty, "vllm 0.33.0, asynchronous scheduling") == "other"
    assert classify(found, again, "Vidur") == "a preempted request starts again in the same batch"
    assert classify("step 0, cached: …", schedule, "sglang 0.5.23") == "other"
    assert classify("step 0, cached: …", again, "sglang 0.5.23") == "after a preemption"
    in_place = classify("step 0, waiting: …", schedule, "sglang 0.5.23, in-place")
    assert in_place == "the queue is sorted in place"
    assert classify("first_token times: …", schedule, "Vidur").startswith("a prompt preempted half way")
    assert classify("finish times: …", schedule, "Vidur") == "other"
    endless = replace(schedule, finish=(*schedule.finish[:-1], float("nan")))
    assert [difference(s, replace(s)) for s in (schedule, endless)] == ["", ""]
    assert [classify("", s, "vllm 0.33.0") for s in (schedule, endless)] == ["", "without an end in both"]
    found = difference(schedule, endless)
    assert found.startswith("finish times")
    assert classify(found, endless, "vllm 0.33.0, offloading") == "without an end in the engine"
    unlike = replace(schedule, steps=(replace(first, unlike="a reason"), *rest))
    assert classify("step 0, blocks: …", unlike, "vllm 0.33.0, offloading") == "a reason"
    assert "steps here" in difference(replace(schedule, steps=tuple(rest[:0])), schedule)
    assert difference(replace(schedule, finish=()), schedule).startswith("finish times")
