"""Notes of many seeds are merged; notes on schedulers of engines name different rules."""

import pytest

from kvgym.baselines.iteration_level import VLLM_RULES
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.notes import merge_notes, merge_point_notes, rule_notes
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import POLICIES


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([(0, "clipped."), (1, "clipped.")], ["clipped."]),
        ([(0, "clipped."), (2, "clipped.")], ["Seeds 0, 2: clipped."]),
        ([(s, f"{3 * s + 2} of 1,000 were cut.") for s in (0, 1, 2)], ["Seeds 0–2: 2 to 8 of 1,000 were cut."]),
        ([(s, f"{900 * s + 500:,} left.") for s in range(4)], ["500 to 3,200 left."]),
        ([(0, "a:x=1 left 3."), (0, "a:x=2 left 4.")], ["Seed 0: a:x=1 left 3.", "Seed 0: a:x=2 left 4."]),
        ([(0, "1 left."), (0, "2 left."), (1, "2 left.")], ["Seed 0: 1 left.", "2 left."]),
        ([(s, "cut.") for s in (0, 1, 2, 4, 6, 7)], ["Seeds 0–2, 4, 6, 7: cut."]),
        ([], []),
    ],
)  # fmt: skip
def test_one_line(notes: list[tuple[int, str]], expected: list[str]) -> None:
    seeds = 2 if notes and notes[-1][0] == 1 else 4
    assert list(merge_notes(notes, seeds)) == expected


def test_rules() -> None:
    infos = [POLICIES[name].info for name in ("vllm", "fcfs", "vllm_v1")]
    lost = load_scenario("a100-llama3-8b")
    assert rule_notes(infos, lost) == [
        "vllm and vllm_v1 run under progress_on_evict = lost, requeue = arrival, blocks of 16, engine early-2024; the "
        "real engine recomputes and requeues at the front. --scenario vllm-v1 has these rules, blocks of 16, engine "
        "vllm-2024 on llama3-8b-a100-tp1; another engine: --engine."
    ]
    figures = build_scenario(lost, engine="base_ms=6", block_size=1)
    assert "blocks of 1, engine base_ms = 6; the real engine" in rule_notes(infos, figures)[0]
    slots = load_scenario("mc-sf-model-1")
    assert "requeue = arrival, blocks of 1; the real engine" in rule_notes(infos, slots)[0]
    assert dict(VLLM_RULES).items() <= load_scenario("vllm-v1").system.model_dump().items()
    assert rule_notes(infos, load_scenario("vllm-v1")) == []
    assert rule_notes(infos[1:2], lost) == []


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([((p, s), f"{p + s} cut.") for p in (0, 1, 2) for s in (0, 1)], ["0 to 3 cut."]),
        ([((p, s), f"{p + s} cut.") for p in (0, 2) for s in (0, 1)], ["2 of 3 points: 0 to 3 cut."]),
        ([((p, 1), f"{p} cut.") for p in (0, 1, 2)], ["Seed 1: 0 to 2 cut."]),
        ([((0, 0), "3 cut."), ((1, 1), "5 cut.")], ["2 of 3 points, seeds 0, 1: 3 to 5 cut."]),
        ([((0, 0), "3 cut."), ((0, 0), "3 cut."), ((0, 1), "3 cut.")], ["1 of 3 points: 3 cut."]),
        ([], []),
    ],
)
def test_one_line_for_points_and_seeds(notes: list[tuple[tuple[int, int], str]], expected: list[str]) -> None:
    assert list(merge_point_notes(notes, points=3, seeds=2)) == expected
