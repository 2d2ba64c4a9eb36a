"""Figures of rows, worked by hand, and the tables made of them."""

import math

import pytest
from compare_agents.bench import Outcome
from compare_agents.figures import best_of, gain, mean_of, summary_of
from compare_agents.pages import page_of, row_table, task_table
from compare_agents.store import Store
from compare_agents.study_tables import ablation_tables, spread_tables

from helpers.comparing_runs import row_of

# Four seeds: (7 + 9 + 8 + 8) / 4 = 8 against 10: 20 % less; with 6.4 = 0.8 of it the same on every seed.
AGENT = ("agent", "mine", (7.0, 9.0, 8.0, 8.0))
TRUE = ("true lengths", "mine with true lengths", (5.6, 7.2, 6.4, 6.4))
SLOW = ("scheduler", "vllm", (20.0, 20.0, 20.0, 20.0))
FAST = ("scheduler", "sarathi:token_budget=128", (8.0, 12.0, 10.0, 10.0))
STUCK = ("scheduler", "mc_sf", "seed 2,000,000: livelock")


def entries(*made):
    return row_of(made).entries


def test_gains_are_paired():
    mine, fast, true = entries(AGENT, FAST, TRUE)
    found = gain(mine, fast, "e2e_latency_mean")
    assert found.value == pytest.approx(0.2)
    assert found.n == 4
    # A resample of pairs has between 4 times the second seed (9 / 12) and 4 times the first (7 / 8).
    assert 1 - 7 / 8 <= found.low <= 0.2 <= found.high <= 1 - 9 / 12
    left = gain(true, mine, "e2e_latency_mean")
    assert (left.value, left.low, left.high) == pytest.approx((0.2, 0.2, 0.2))
    more = gain(mine, fast, "slo_attainment")
    assert more.value == pytest.approx(-0.2)


def test_failures_have_no_gain_and_are_never_the_best():
    mine, stuck, fast = entries(AGENT, STUCK, FAST)
    assert math.isnan(gain(mine, stuck, "e2e_latency_mean").value)
    assert math.isnan(mean_of(stuck))
    assert best_of([stuck, fast, mine], "e2e_latency_mean") is mine
    assert best_of([stuck, fast, mine], "slo_attainment") is fast
    assert best_of([stuck], "e2e_latency_mean") is None


def test_summary_counts_rows():
    worse = ("scheduler", "fcfs", (6.0, 8.0, 7.0, 7.0))
    level = ("scheduler", "fcfs", (8.0, 8.0, 7.5, 8.5))
    rows = [row_of((AGENT, other)) for other in (FAST, worse, level, STUCK)]
    found = summary_of(rows, "scheduler")
    assert (found.rows, found.better, found.worse) == (3, 1, 1)
    assert (found.least, found.median, found.most) == pytest.approx((1 - 8 / 7, 0.0, 0.2))
    assert summary_of(rows, "budget") is None


def test_the_table_of_a_task():
    row = row_of((AGENT, STUCK, SLOW, FAST, TRUE))
    head, _, line, _ = task_table([row])
    assert head == (
        "| lengths | requests/s | `mine` | best tuned scheduler | true lengths | left to true lengths |"
    )
    assert line.startswith("| unknown | 20 | 8 | `sarathi` 10, +20.0 % (")
    assert line.endswith("| 6.400 | +20.0 % (+20.0 – +20.0) |")
    text = "\n".join(row_table(row))
    assert "### latency: lengths unknown, requests/s 20" in text
    assert "- scheduler `mc_sf` has no value: seed 2,000,000: livelock" in text
    assert "| scheduler | `vllm` | 20 (20 – 20) | +60.0 % (" in text


def test_budgets_are_named_by_their_size():
    budget = ("budget", "sarathi:token_budget=128,order=spf,watermark=0.05", (10.0, 10.0, 10.0, 10.0))
    assert "| 128: 10, +20.0 % (" in task_table([row_of((AGENT, budget))])[2]


def test_the_agent_that_fails_is_told():
    row = row_of((("agent", "mine", "seed 2,000,000: livelock"), FAST))
    assert task_table([row])[2] == "| unknown | 20 | fails | `sarathi` 10, – |"


def test_the_spread_of_training_seeds():
    other = ("training seed", "second", (9.0, 11.0, 10.0, 6.0))  # 36 / 40: 10 % better
    hand = ("ranked by hand", "by hand", (10.0, 10.0, 10.0, 2.0))  # 32 / 4 = 8: as good as mine
    text = "\n".join(spread_tables([row_of((AGENT, other, FAST, hand), task="spread", service="chat")]))
    assert "| `mine` | +20.0 % | **+20.0 %** | **+0.0 %** |" in text
    assert "| `second` | +10.0 % | **+10.0 %** | **-12.5 %** |" in text
    assert "| largest less smallest | 10.0 |" in text


def test_the_ablation():
    hand = ("ranked by hand", "by hand", (10.0, 10.0, 10.0, 10.0))
    made = [
        AGENT, hand,
        ("ablated", "mine without the gate", (10.5, 13.5, 12.0, 12.0)),
        ("ablated", "by hand without the gate", (10.0, 10.0, 10.0, 10.0)),
        ("ablated", "mine without room", "seed 2,000,003: livelock"),
    ]  # fmt: skip
    head, _, gate, room, _ = ablation_tables([row_of(made, task="ablation", service="chat")])
    assert head == "| without | mine: chat | by hand: chat |"
    assert gate == "| the gate | +50.0 % (+50.0 – +50.0) | 0 |"
    assert room == "| room | fails: seed 2,000,003: livelock |  |"


def test_a_page_is_made_of_the_file_alone():
    cell = {
        "task": "latency", "row": {"lengths": "unknown", "requests/s": "20"}, "metric": "e2e_latency_mean",
        "num_seeds": 4, "entrants": [
            {"group": "agent", "label": "mine", "run": "a"}, {"group": "scheduler", "label": "fcfs", "run": "b"},
            {"group": "fixed knobs", "label": "knobs", "run": "not there yet"},
        ],
    }  # fmt: skip
    runs = {"a": Outcome("mine", AGENT[2]), "b": Outcome("fcfs:protection=0.1", FAST[2])}
    page = page_of(Store(runs=runs, cells=[cell]))
    assert "| latency | best tuned scheduler | +20.0 % | +20.0 % … +20.0 % | 1 / 0 / 0 |" in page
    assert "| unknown | 20 | 8 | `fcfs` 10, +20.0 %" in page
    assert "`fcfs:protection=0.1`" in page
    assert "knobs |" not in page.partition("## Mean latency")[2]
    assert page_of(Store()).startswith("# Learned agents in figures")
