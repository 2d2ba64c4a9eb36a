"""Gains of rows, worked by hand, and the tables and pages made from them."""

import csv
import math

import pytest
from compare_agents.benchmark import Outcome
from compare_agents.figures import best_of, gain, mean_of, summary_of
from compare_agents.pages import ablation_tables, page_of, spread_tables
from compare_agents.store import Store
from compare_agents.tables import policy_lines, task_line, write_tables

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


def test_the_line_of_a_row_has_the_best_of_each_group():
    line = task_line(row_of((AGENT, STUCK, SLOW, FAST, TRUE)))
    assert list(line)[:6] == [
        "lengths", "requests/s", "agent", "e2e_latency_mean", "scheduler", "scheduler_value",
    ]  # fmt: skip
    assert (line["lengths"], line["agent"], line["e2e_latency_mean"]) == ("unknown", "mine", "8")
    assert (line["scheduler"], line["scheduler_value"]) == ("sarathi", "10")
    assert line["scheduler_gain_percent"] == "20.0"
    assert (line["true_lengths_value"], line["true_lengths_left_low"]) == ("6.400", "20.0")


def test_a_row_lists_every_policy_and_failures_last():
    agent, vllm, sarathi, stuck = policy_lines(row_of((AGENT, STUCK, SLOW, FAST)))
    assert "agent_better_percent" not in agent
    assert (vllm["policy"], vllm["mean"], vllm["low"], vllm["agent_better_percent"]) == (
        "vllm",
        "20",
        "20",
        "60.0",
    )
    assert sarathi["policy"] == "sarathi:token_budget=128"
    assert (stuck["policy"], stuck["failure"]) == ("mc_sf", "seed 2,000,000: livelock")
    assert "mean" not in stuck


def test_budgets_are_named_by_their_size():
    budget = ("budget", "sarathi:token_budget=128,order=spf,watermark=0.05", (10.0, 10.0, 10.0, 10.0))
    line = task_line(row_of((AGENT, budget)))
    assert (line["sarathi_budget"], line["sarathi_budget_value"]) == ("128", "10")


def test_an_agent_that_fails_has_no_value_and_no_gain():
    line = task_line(row_of((("agent", "mine", "seed 2,000,000: livelock"), FAST)))
    assert (line["e2e_latency_mean"], line["scheduler_value"], line["scheduler_gain_percent"]) == (
        "",
        "10",
        "",
    )


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


def test_page_and_tables_are_made_of_the_file_alone(tmp_path):
    contest = {
        "task": "latency", "row": {"lengths": "unknown", "requests/s": "20"}, "metric": "e2e_latency_mean",
        "num_seeds": 4, "contestants": [
            {"group": "agent", "label": "mine", "run": "a"}, {"group": "scheduler", "label": "fcfs", "run": "b"},
            {"group": "fixed knobs", "label": "knobs", "run": "not there yet"},
        ],
    }  # fmt: skip
    runs = {"a": Outcome("mine", AGENT[2]), "b": Outcome("fcfs:protection=0.1", FAST[2])}
    store = Store(runs=runs, contests=[contest])
    page = page_of(store, tables="tables")
    assert "| latency | best tuned scheduler | +20.0 % | +20.0 % … +20.0 % | 1 / 0 / 0 |" in page
    assert "fixed knobs |" not in page
    assert "| [policies.csv](tables/policies.csv) | 2 |" in page
    assert page_of(Store()).startswith("# Learned agents in figures")
    write_tables(store, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latency.csv", "policies.csv"]
    with (tmp_path / "policies.csv").open() as file:
        mine, fcfs = csv.DictReader(file)
    assert (mine["requests/s"], mine["mean"]) == ("20", "8")
    assert (fcfs["policy"], fcfs["agent_better_percent"]) == ("fcfs:protection=0.1", "20.0")
    assert (tmp_path / "latency.csv").read_text().count("\n") == 2
