"""Tasks: their contests and contestants; every scheduler that the requests allow takes part."""

import pytest
from compare_agents.contestants import AGENT, BUDGET, KNOBS, RULE, SCHEDULER, TRUE_LENGTHS, Given
from compare_agents.contests import FIRST_TUNING_SEED, HELD_OUT, Seeds
from compare_agents.schedulers import NOT_COMPARED, OF_PAPERS, SPACES, eligible
from compare_agents.studies import PARTS, TASKS, ablation, spread
from compare_agents.tasks import (
    KNOB_LEVELS,
    NOISY,
    PREDICTIONS,
    Plan,
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
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    agent, second = (
        save_agent(folder / f"{name}.json", waiting=k) for k, name in enumerate(("first", "second"))
    )
    return Plan(agent, second, trained=(agent, second), slo_trained=(agent, second), seeds=Seeds(2, 1))


def groups(contest):
    return {contestant.group for contestant in contest.contestants}


def test_every_rate_with_every_prediction_is_a_contest(plan):
    contests = latency(plan)
    assert len(contests) == 6 * 4
    assert {contest.row["requests/s"] for contest in contests} == {"8", "10", "12", "16", "20", "24"}
    assert all(groups(contest) == {AGENT, RULE, SCHEDULER, KNOBS, TRUE_LENGTHS} for contest in contests)
    for contest in contests[:1] + contests[-1:]:
        table = contest.benchmark.scenario.make_workload().sample(HELD_OUT)
        assert len(table) == 2000
        assert table.arrival_time[-1] == pytest.approx(2000 / float(contest.row["requests/s"]), rel=0.15)


def test_schedulers_know_no_more_than_the_requests_carry(plan):
    noisy, unknown = (small(kind).make_workload().sample(0) for kind in ("noisy", "interval"))
    services = mixture(plan, 1.0, PREDICTIONS[NOISY])[0].make_workload().sample(0)
    objectives = objectives_at(plan, 1.5, {"kind": "none"}).make_workload().sample(0)
    assert {"mc_sf", "ageing", "sarathi", "vllm_v1"} <= set(eligible(noisy))
    assert not {"mc_sf", "ageing", "slai", "wait"} & set(eligible(unknown))
    assert {"a_min", "mc_longest"} <= set(eligible(unknown))
    assert {"wait", "nested_wait", "flow_control_classes"} <= set(eligible(services))
    assert "slai" in eligible(objectives)
    compared = {name for table in (noisy, unknown, services, objectives) for name in eligible(table)}
    own = {n for n in POLICIES if POLICIES[n].__module__.startswith("kvgym.baselines")}
    assert own - compared == {n for n in own if n in NOT_COMPARED or "true_length" in POLICIES[n].info.needs}


def test_searched_hyperparameters_exist():
    for name, space in SPACES.items():
        assert plan_search(name, space).space.keys() == space.keys()
    for spec in (spec for specs in OF_PAPERS.values() for spec in specs):
        make_policy(spec)
    for name, levels in KNOB_LEVELS.items():
        assert set(levels) <= set(range(len(LEVELS[name])))


def test_the_objectives_are_those_of_the_training(plan):
    contests = slo(plan)
    assert {contest.row["requests/s"] for contest in contests} == {"1.5", "1.8", "2", "2.2"}
    trained = load_training("ranked_slo").services.families[0]
    for contest in contests:
        workload = contest.benchmark.scenario.workload
        assert workload["classes"] == trained.workload["classes"]
        assert workload["duration"] == trained.workload["duration"]
        assert contest.benchmark.scenario.system.horizon is None
        assert contest.benchmark.metric == "slo_attainment"
    labels = [e.label for e in contests[0].contestants]
    assert labels[:2] == [plan.slo_agent, plan.agent]
    assert {"slai", "sarathi", "vllm", "work_conserving_fcfs"} <= set(labels)


def test_loads_are_multiples_of_what_is_sustained(plan):
    for load in (0.8, 1.5):
        scenario, rate = mixture(plan, load, PREDICTIONS[NOISY])
        table = scenario.make_workload().sample(FIRST_TUNING_SEED)
        assert rate == pytest.approx(load * sustained_rate(scenario.make_system(), table), rel=0.01)
        assert scenario.make_workload().mean_rate == rate
        assert set(table.class_id) == {0, 1, 2}
    assert {contest.row["load"] for contest in mixed(plan)} == {"0.8", "1.1", "1.5"}
    trained = load_training("ranked").services.families[1].hardware["choice"]
    assert not {contest.row["hardware"] for contest in hardware(plan)} & set(trained)


def test_the_default_scenario_has_defaults_and_tuned(plan):
    (contest,) = default(plan)
    labels = {contestant.label for contestant in contest.contestants}
    table = contest.benchmark.tables()[0]
    assert set(eligible(table)) | {f"{name} (defaults)" for name in eligible(table)} <= labels


def test_a_trace_is_played_at_multiples_of_what_is_sustained(plan, tmp_path):
    trace = tmp_path / "mine.csv"
    lines = [f"{0.5 * k},{200 + k},{50 + k % 40}" for k in range(60)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *lines]) + "\n")
    contests = traces(Plan(plan.agent, traces=(trace,), seeds=plan.seeds))
    assert len(contests) == 3 * 2 * 3
    for contest in contests:
        scenario = contest.benchmark.scenario
        table = contest.benchmark.tables()[0]
        pace = (len(table) - 1) / (table.arrival_time[-1] - table.arrival_time[0])
        expected = float(contest.row["load"]) * sustained_rate(scenario.make_system(), table)
        assert pace == pytest.approx(expected, rel=0.02)
        assert (table.predicted_output_len is None) == (contest.row["lengths"] == "unknown")
        assert [e.group for e in contest.contestants].count(BUDGET) == 4


def test_parts_are_weights_within_their_range():
    taken = [name for changes in PARTS.values() for name in changes]
    known = {weight.name: weight for weight in WEIGHTS}
    assert len(taken) == len(set(taken))
    for changes in PARTS.values():
        for name, value in changes.items():
            assert known[name].low <= value <= known[name].high


def test_a_part_is_removed_from_learned_and_from_hand_set_weights(plan):
    contest = ablation(plan)[0]
    by_label = {contestant.label: contestant for contestant in contest.contestants}
    part = next(iter(PARTS))
    benchmark = Seeds(1, 1).benchmark(small("noisy", rate=80.0), LATENCY)
    for base, weights in ((plan.agent, {"waiting": 0.0}), ("ranked, set by hand", {})):
        found = by_label[f"{base} without {part}"].play(benchmark).values
        same = Given("x", "x", "ranked", changes={**weights, **PARTS[part]}).play(benchmark).values
        assert found == same
    assert len(by_label) == 2 * (1 + len(PARTS))


def test_ablation_needs_weights_of_ranked(plan, tmp_path):
    with pytest.raises(ConfigError, match="not an evolved policy"):
        ablation(Plan("ppo_noisy"))


def test_training_seeds_share_the_runs_of_the_tasks(plan):
    keys = {key for contest in latency(plan) for key in contest.run_keys()}
    contests = [contest for contest in spread(plan) if contest.row["service"].startswith("conversations")]
    assert len(contests) == 4
    for contest in contests:
        fresh = [
            e.label for e, key in zip(contest.contestants, contest.run_keys(), strict=True) if key not in keys
        ]
        assert fresh == [plan.slo_agent]  # the second of the training seeds


def test_nothing_to_compare_is_no_contest(plan):
    alone = Plan(plan.agent)
    assert traces(alone) == spread(alone) == []
    assert list(TASKS) == ["latency", "slo", "mixed", "default", "traces", "hardware", "spread", "ablation"]


def test_conversations_are_the_default_service(plan):
    assert conversations(plan, 20, PREDICTIONS[NOISY]).resolved().engine == "vllm-2023"
