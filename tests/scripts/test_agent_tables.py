"""The tables of trained agents: players that read nothing, rows of single agents, and of their mean."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import improvement_interval

METRIC, SEEDS = "e2e_latency_mean", range(5, 7)


@pytest.fixture
def tables(scripts):
    return scripts("agent_tables")


def few(count):
    scenario = load_scenario("rush")
    return scenario.override(workload={**scenario.workload, "rate": 30, "num_requests": count})


def test_players_answer_what_is_possible(tables):
    first, drawn = (tables.Answers(random) for random in (False, True))
    masks = np.array([0, 1, 0, 1], bool)
    assert first.predict(None, action_masks=masks)[0] == 0
    assert {int(drawn.predict(None, action_masks=masks)[0]) for _ in range(30)} == {1, 3}


def test_rows_have_means_and_paired_gains(tables, tmp_path):
    shipped = resources.files("kvgym.agents").joinpath("models", "ppo_noisy.npz").read_bytes()
    agents = [tmp_path / f"{k}.npz" for k in range(2)]
    for path in agents:
        Path(path).write_bytes(shipped)
    chosen = tables.Table("rush", ("fcfs", "mc_sf"), bases=("fcfs",), shipped="ppo_noisy")
    rows = tables.table(chosen, few(40), tables.admission_players(), agents, SEEDS)
    found = compare(few(40), ["fcfs", "ppo_noisy"], seeds=SEEDS)
    fcfs, agent = (found.values(name, METRIC) for name in ("fcfs", "ppo_noisy"))
    gain = f"{100 * improvement_interval(agent, fcfs, lower_is_better=True).value:+.1f} %"
    cells = {row[0]: row[1:] for row in ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:])}
    assert list(cells)[2:] == [
        "the first that fits, always", "random", "agent, training 0", "agent, training 1",
        "agents, mean of 2 trainings", "`ppo_noisy`, the shipped agent",
    ]  # fmt: skip
    assert float(cells["`fcfs`"][0]) == pytest.approx(fcfs.mean(), rel=1e-3)
    assert cells["`fcfs`"][2] == ""
    for label in ("agent, training 1", "`ppo_noisy`, the shipped agent"):
        assert cells[label][2].startswith(gain)
    assert cells["agents, mean of 2 trainings"] == cells["agent, training 0"]
