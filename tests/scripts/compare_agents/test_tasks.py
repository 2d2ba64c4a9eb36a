"""Tasks: who is compared with whom on what, and that nobody who may know the same is left out."""

import pytest
from compare_agents.cells import FIRST_TUNING_SEED, HELD_OUT, Seeds
from compare_agents.entrants import AGENT, BUDGET, KNOBS, RULE, SCHEDULER, TRUE_LENGTHS, Given
from compare_agents.schedulers import NOT_COMPARED, OF_PAPERS, SPACES, eligible
from compare_agents.studies import PARTS, TASKS, ablation, spread
from compare_agents.tasks import (
    KNOB_LEVELS,
    NOISY,
    PREDICTIONS,
    Contest,
    conversations,
    default,
    hardware,
    latency,
    mixed,
    mixture,
    objectives_at,
    slo,
    traces,
)

from helpers.comparing_runs import save_agent, small
from kvgym.agents.evolution.capacity import sustained_rate
from kvgym.agents.runs.config import load_training
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.envs.scheduling.actions.knobs import LEVELS
from kvgym.errors import ConfigError
from kvgym.experiments.tuning.tune import plan_search
from kvgym.policy import POLICIES, make_policy

LATENCY = "e2e_latency_mean"


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    agent, second = (
        save_agent(folder / f"{name}.json", waiting=k) for k, name in enumerate(("first", "second"))
    )
    return Contest(agent, second, trained=(agent, second), slo_trained=(agent, second), seeds=Seeds(2, 1))


def groups(cell):
    return {entrant.group for entrant in cell.entrants}


def test_every_rate_and_every_information_is_a_cell(contest):
    cells = latency(contest)
    assert len(cells) == 6 * 4
    assert {cell.row["requests/s"] for cell in cells} == {"8", "10", "12", "16", "20", "24"}
    assert all(groups(cell) == {AGENT, RULE, SCHEDULER, KNOBS, TRUE_LENGTHS} for cell in cells)
    for cell in cells[:1] + cells[-1:]:
        table = cell.bench.scenario.make_workload().sample(HELD_OUT)
        assert len(table) == 2000
        assert table.arrival_time[-1] == pytest.approx(2000 / float(cell.row["requests/s"]), rel=0.15)


def test_schedulers_know_no_more_than_the_requests_carry(contest):
    noisy, unknown = (small(kind).make_workload().sample(0) for kind in ("noisy", "interval"))
    services = mixture(contest, 1.0, PREDICTIONS[NOISY])[0].make_workload().sample(0)
    objectives = objectives_at(contest, 1.5, {"kind": "none"}).make_workload().sample(0)
    assert {"mc_sf", "ageing", "sarathi", "vllm_v1"} <= set(eligible(noisy))
    assert not {"mc_sf", "ageing", "slai", "wait"} & set(eligible(unknown))
    assert {"a_min", "mc_longest"} <= set(eligible(unknown))
    assert {"wait", "nested_wait", "flow_control_classes"} <= set(eligible(services))
    assert "slai" in eligible(objectives)
    compared = {name for table in (noisy, unknown, services, objectives) for name in eligible(table)}
    own = {n for n in POLICIES if POLICIES[n].__module__.startswith("kvgym.baselines")}
    assert own - compared == {n for n in own if n in NOT_COMPARED or "true_length" in POLICIES[n].info.needs}


def test_what_is_searched_exists():
    for name, space in SPACES.items():
        assert plan_search(name, space).space.keys() == space.keys()
    for spec in (spec for specs in OF_PAPERS.values() for spec in specs):
        make_policy(spec)
    for name, levels in KNOB_LEVELS.items():
        assert set(levels) <= set(range(len(LEVELS[name])))


def test_the_objectives_are_those_of_the_training(contest):
    cells = slo(contest)
    assert {cell.row["requests/s"] for cell in cells} == {"1.5", "1.8", "2", "2.2"}
    trained = load_training("ranked_slo").services.families[0]
    for cell in cells:
        workload = cell.bench.scenario.workload
        assert workload["classes"] == trained.workload["classes"]
        assert workload["duration"] == trained.workload["duration"]
        assert cell.bench.scenario.system.horizon is None
        assert cell.bench.metric == "slo_attainment"
    labels = [e.label for e in cells[0].entrants]
    assert labels[:2] == [contest.slo_agent, contest.agent]
    assert {"slai", "sarathi", "vllm", "work_conserving_fcfs"} <= set(labels)


def test_loads_are_multiples_of_what_is_sustained(contest):
    for load in (0.8, 1.5):
        scenario, rate = mixture(contest, load, PREDICTIONS[NOISY])
        table = scenario.make_workload().sample(FIRST_TUNING_SEED)
        assert rate == pytest.approx(load * sustained_rate(scenario.make_system(), table), rel=0.01)
        assert scenario.make_workload().mean_rate == rate
        assert set(table.class_id) == {0, 1, 2}
    assert {cell.row["load"] for cell in mixed(contest)} == {"0.8", "1.1", "1.5"}
    trained = load_training("ranked").services.families[1].hardware["choice"]
    assert not {cell.row["hardware"] for cell in hardware(contest)} & set(trained)


def test_the_default_scenario_has_defaults_and_tuned(contest):
    (cell,) = default(contest)
    labels = {entrant.label for entrant in cell.entrants}
    table = cell.bench.tables()[0]
    assert set(eligible(table)) | {f"{name} (defaults)" for name in eligible(table)} <= labels


def test_a_trace_is_played_at_multiples_of_what_is_sustained(contest, tmp_path):
    trace = tmp_path / "mine.csv"
    lines = [f"{0.5 * k},{200 + k},{50 + k % 40}" for k in range(60)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *lines]) + "\n")
    cells = traces(Contest(contest.agent, traces=(trace,), seeds=contest.seeds))
    assert len(cells) == 3 * 2 * 3
    for cell in cells:
        scenario = cell.bench.scenario
        table = cell.bench.tables()[0]
        pace = (len(table) - 1) / (table.arrival_time[-1] - table.arrival_time[0])
        expected = float(cell.row["load"]) * sustained_rate(scenario.make_system(), table)
        assert pace == pytest.approx(expected, rel=0.02)
        assert (table.predicted_output_len is None) == (cell.row["lengths"] == "unknown")
        assert [e.group for e in cell.entrants].count(BUDGET) == 4


def test_parts_are_weights_at_values_that_they_take():
    taken = [name for changes in PARTS.values() for name in changes]
    known = {weight.name: weight for weight in WEIGHTS}
    assert len(taken) == len(set(taken))
    for changes in PARTS.values():
        for name, value in changes.items():
            assert known[name].low <= value <= known[name].high


def test_a_part_is_taken_away_from_learned_and_from_hand_set_weights(contest):
    cell = ablation(contest)[0]
    by_label = {entrant.label: entrant for entrant in cell.entrants}
    part = next(iter(PARTS))
    bench = Seeds(1, 1).bench(small("noisy", rate=80.0), LATENCY)
    for base, weights in ((contest.agent, {"waiting": 0.0}), ("ranked, set by hand", {})):
        found = by_label[f"{base} without {part}"].play(bench).values
        same = Given("x", "x", "ranked", changes={**weights, **PARTS[part]}).play(bench).values
        assert found == same
    assert len(by_label) == 2 * (1 + len(PARTS))


def test_ablation_needs_weights_of_ranked(contest, tmp_path):
    with pytest.raises(ConfigError, match="no evolved policy"):
        ablation(Contest("ppo_noisy"))


def test_training_seeds_share_the_runs_of_the_tasks(contest):
    keys = {key for cell in latency(contest) for key in cell.run_keys()}
    cells = [cell for cell in spread(contest) if cell.row["service"].startswith("conversations")]
    assert len(cells) == 4
    for cell in cells:
        fresh = [e.label for e, key in zip(cell.entrants, cell.run_keys(), strict=True) if key not in keys]
        assert fresh == [contest.slo_agent]  # the second of the training seeds


def test_nothing_to_compare_is_no_cell(contest):
    alone = Contest(contest.agent)
    assert traces(alone) == spread(alone) == []
    assert list(TASKS) == ["latency", "slo", "mixed", "default", "traces", "hardware", "spread", "ablation"]


def test_conversations_are_the_default_service(contest):
    assert conversations(contest, 20, PREDICTIONS[NOISY]).resolved().engine == "vllm-2023"
