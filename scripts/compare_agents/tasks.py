"""Tasks that agents are compared on, each a list of contests.

A load is a multiple of the sustained rate that :mod:`kvgym.agents.evolution.capacity` estimates from the requests of a
tuning seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare_agents.contestants import (
    AGENT,
    BUDGET,
    KNOBS,
    OTHER_AGENT,
    RULE,
    SCHEDULER,
    TRUE_LENGTHS,
    Contestant,
    FixedKnobs,
    Given,
)
from compare_agents.contests import FIRST_TUNING_SEED, Contest, Seeds
from compare_agents.schedulers import eligible, tuned_schedulers
from kvgym.agents.evolution.capacity import sustained_rate
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario

LATENCY, ATTAINMENT = "e2e_latency_mean", "slo_attainment"

NOISY, UNKNOWN = "noisy, ε = 0.5", "unknown"
PREDICTIONS: dict[str, dict[str, Any]] = {
    "noisy, ε = 0.2": {"kind": "noisy", "epsilon": 0.2},
    NOISY: {"kind": "noisy", "epsilon": 0.5},
    "noisy, ε = 0.8": {"kind": "noisy", "epsilon": 0.8},
    UNKNOWN: {"kind": "interval", "bounds": [1, 2048]},
}
"""Predictions of output lengths, by their name in the tables."""

RATES = (8, 10, 12, 16, 20, 24)
SLO_RATES = (1.5, 1.8, 2.0, 2.2)
SLO_CLASSES = [
    {"name": "paying", "weight": 0.5, "priority": 1, "tbt_slo": 0.1, "ttft_slo": 5},
    {"name": "free", "weight": 0.5, "priority": 0, "tbt_slo": 0.5, "ttft_slo": 30},
]
SLO_PREDICTIONS: dict[str, dict[str, Any]] = {UNKNOWN: {"kind": "none"}, "exact": {"kind": "exact"}}
SLO_SCHEDULERS = ("slai", "sarathi", "vllm", "work_conserving_fcfs")

MIX = [
    {"name": "chat", "weight": 0.6},
    {
        "name": "documents", "weight": 0.1,
        "prompt": {"kind": "lognormal", "median": 3000, "sigma": 0.6},
        "output": {"kind": "lognormal", "median": 150, "sigma": 0.6},
    },
    {
        "name": "classification", "weight": 0.3,
        "prompt": {"kind": "lognormal", "median": 300, "sigma": 0.5},
        "output": {"kind": "uniform", "low": 1, "high": 5},
    },
]  # fmt: skip
"""Three services on one worker; chat has the lengths of the workload, LMSYS's."""

BUDGETS = (128, 256, 512, 1024)
"""Token budgets of Sarathi-Serve; the best one is chosen on the reported results."""

NEW_HARDWARE = ("mistral-7b-a100-tp1", "llama3-70b-a100-tp2", "llama2-70b-h100-tp4-2023")
TRACE_HARDWARE = ("llama2-70b-a100-tp2", "llama3-8b-a100-tp1", "mistral-7b-a100-tp1")
LOADS = (0.7, 1.0, 1.4)
MOST_OF_A_TRACE = 3000

KNOB_LEVELS: dict[str, tuple[int, ...]] = {
    "protection": (0, 1, 2, 3, 4, 5, 6), "cap": (7,), "budget": (0, 1, 2, 3, 4, 5, 6, 7, 8), "quantum": (0, 1, 2, 3, 4),
}  # fmt: skip
"""Searched levels of the knobs. Caps on admissions gained nothing on other seeds and are left out."""


@dataclass(frozen=True)
class Plan:
    """Agents, traces and seeds of a comparison.

    Attributes:
        agent: name or file of the agent for mean latency.
        slo_agent: the same for objectives; "" = none.
        others: further agents, in the tasks latency and default.
        trained: agents of other training seeds, for the spread.
        slo_trained: the same for objectives.
        traces: files to replay.
        seeds: held-out and tuning seeds.
        quick: few requests, rates and schedulers, to test that it runs.
    """

    agent: str
    slo_agent: str = ""
    others: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    slo_trained: tuple[str, ...] = ()
    traces: tuple[Path, ...] = ()
    seeds: Seeds = field(default_factory=Seeds)
    quick: bool = False

    def some(self, values: Sequence[Any]) -> list[Any]:
        """Return all values, or the last one if quick."""
        return list(values[-1:] if self.quick else values)

    def requests(self, count: int) -> int:
        """Return the number of requests, fewer if quick."""
        return min(count, 40) if self.quick else count

    def contest(
        self,
        task: str,
        row: dict[str, str],
        scenario: Scenario,
        contestants: Sequence[Contestant],
        metric: str = LATENCY,
    ) -> Contest:
        """Return a contest with the plan's seeds."""
        return Contest(task, row, self.seeds.benchmark(scenario, metric), tuple(contestants))


def by_hand() -> Given:
    """Return ``ranked`` with its defaults."""
    return Given(RULE, "ranked, set by hand", "ranked")


def agent_of(spec: str, group: str = AGENT, suffix: str = "", **differing: Any) -> Given:
    """Return an agent as a contestant."""
    return Given(group, f"{spec}{suffix}", spec, agent=True, **differing)


def knobs_for(plan: Plan) -> FixedKnobs:
    """Return the fixed knobs of a plan."""
    levels = (
        {"protection": (1,), "cap": (7,), "budget": (3, 5), "quantum": (0,)} if plan.quick else KNOB_LEVELS
    )
    return FixedKnobs(KNOBS, "best fixed knobs", levels)


def against_all(plan: Plan, scenario: Scenario) -> list[Contestant]:
    """Return the agent, ``ranked`` by hand, tuned schedulers, knobs, and the agent with true lengths."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    predictions = scenario.make_workload().spec.predictions
    kind = "exact" if predictions is None else predictions.kind
    names = eligible(table)[-2:] if plan.quick else None
    return [
        agent_of(plan.agent), by_hand(), *tuned_schedulers(table, kind, names), knobs_for(plan),
        agent_of(plan.agent, TRUE_LENGTHS, " with true lengths", true_lengths=True),
    ]  # fmt: skip


def against_budgets(plan: Plan) -> list[Contestant]:
    """Return the agent, ``ranked`` by hand, and Sarathi-Serve with each budget."""
    specs = [f"sarathi:token_budget={budget},order=spf,watermark=0.05" for budget in plan.some(BUDGETS)]
    return [agent_of(plan.agent), by_hand(), *(Given(BUDGET, spec, spec) for spec in specs)]


def conversations(plan: Plan, rate: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return the default scenario at a rate, 2,000 requests."""
    workload = {
        "preset": "lmsys", "num_requests": plan.requests(2000), "rate": rate, "predictions": dict(predictions),
    }  # fmt: skip
    return load_scenario(DEFAULT_SCENARIO).override(workload=workload)


def latency(plan: Plan) -> list[Contest]:
    """Mean latency by rate and by predictions of output lengths."""
    contests = []
    for (known, predictions), rate in itertools.product(
        plan.some(list(PREDICTIONS.items())), plan.some(RATES)
    ):
        scenario = conversations(plan, rate, predictions)
        contestants = [
            *against_all(plan, scenario),
            *(agent_of(a, OTHER_AGENT) for a in plan.others),
        ]
        row = {"lengths": known, "requests/s": f"{rate:g}"}
        contests.append(plan.contest("latency", row, scenario, contestants))
    return contests


def objectives_at(plan: Plan, rate: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return SLAI's service with objectives for the first token too, ten minutes of arrivals."""
    workload = {
        "preset": "slai-paying-50", "duration": 30 if plan.quick else 600, "rate": rate, "classes": SLO_CLASSES,
        "predictions": dict(predictions),
    }  # fmt: skip
    return load_scenario("slai-50").override(workload=workload)


def against_slo_schedulers(plan: Plan, scenario: Scenario) -> list[Contestant]:
    """Return the agent for objectives, the general one, ``ranked`` by hand, tuned schedulers and knobs."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    names = plan.some(SLO_SCHEDULERS)
    if table.predicted_output_len is not None and not plan.quick:
        names += ["work_conserving_sjf", "mc_sf"]
    agents = [agent_of(plan.slo_agent)] if plan.slo_agent else []
    if plan.agent != plan.slo_agent:
        agents.append(agent_of(plan.agent, OTHER_AGENT if agents else AGENT))
    return [*agents, by_hand(), *tuned_schedulers(table, "exact", names), knobs_for(plan)]


def slo(plan: Plan) -> list[Contest]:
    """Share of requests that meet their objectives, two classes of users."""
    contests = []
    for (known, predictions), rate in itertools.product(
        plan.some(list(SLO_PREDICTIONS.items())), plan.some(SLO_RATES)
    ):
        scenario = objectives_at(plan, rate, predictions)
        row = {"lengths": known, "requests/s": f"{rate:g}"}
        contests.append(
            plan.contest("slo", row, scenario, against_slo_schedulers(plan, scenario), ATTAINMENT)
        )
    return contests


def mixture(plan: Plan, load: float, predictions: Mapping[str, Any]) -> tuple[Scenario, float]:
    """Return three services on one worker at a multiple of its sustained rate, and the rate."""
    base = load_scenario(DEFAULT_SCENARIO)
    workload: dict[str, Any] = {
        "preset": "lmsys", "num_requests": plan.requests(2000), "classes": MIX, "predictions": dict(predictions),
        "limits": {"max_total_len": 12_000, "max_output_len": 2048},
    }  # fmt: skip
    rate = at_load(base.override(workload=workload), load)
    return base.override(workload={**workload, "rate": rate}), rate


def at_load(scenario: Scenario, load: float) -> float:
    """Return a multiple of the sustained rate of a scenario's requests, requests per second, rounded."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    return float(f"{load * sustained_rate(scenario.make_system(), table):.3g}")


def mixed(plan: Plan) -> list[Contest]:
    """Mean latency of chat, long documents and classification on one worker."""
    contests = []
    known = [NOISY, UNKNOWN]
    for name, load in itertools.product(plan.some(known), plan.some((0.8, 1.1, 1.5))):
        scenario, rate = mixture(plan, load, PREDICTIONS[name])
        row = {"lengths": name, "load": f"{load:g}", "requests/s": f"{rate:g}"}
        contests.append(plan.contest("mixed", row, scenario, against_all(plan, scenario)))
    return contests


def default(plan: Plan) -> list[Contest]:
    """Mean latency on the default scenario; schedulers with their defaults, and tuned."""
    workload = {"preset": "lmsys", "num_requests": plan.requests(1000), "predictions": {"kind": "exact"}}
    scenario = load_scenario(DEFAULT_SCENARIO).override(workload=workload)
    contestants = [e for e in against_all(plan, scenario) if e.group != TRUE_LENGTHS]
    names = {e.label for e in contestants if e.group == SCHEDULER}
    contestants += [Given(SCHEDULER, f"{name} (defaults)", name) for name in sorted(names)]
    contestants += [agent_of(a, OTHER_AGENT) for a in plan.others]
    return [plan.contest("default", {"lengths": "exact", "requests/s": "50"}, scenario, contestants)]


def hardware(plan: Plan) -> list[Contest]:
    """Mean latency on hardware that no training used."""
    contests = []
    for name, (known, load) in itertools.product(
        plan.some(NEW_HARDWARE), itertools.product(plan.some([NOISY, UNKNOWN]), plan.some(LOADS))
    ):
        base = load_scenario(DEFAULT_SCENARIO).override(hardware=name)
        workload = {
            "preset": "lmsys",
            "num_requests": plan.requests(2000),
            "predictions": PREDICTIONS[known],
        }
        rate = at_load(base.override(workload=workload), load)
        row = {"hardware": name, "lengths": known, "load": f"{load:g}", "requests/s": f"{rate:g}"}
        scenario = base.override(workload={**workload, "rate": rate})
        contests.append(plan.contest("hardware", row, scenario, against_budgets(plan)))
    return contests


def replay(plan: Plan, path: Path, name: str, load: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return a replay of the first rows of a trace at a multiple of the sustained rate."""

    def scenario(rate_scale: float) -> Scenario:
        lengths = {"kind": "trace", "path": str(path), "format": "auto", "rate_scale": rate_scale}
        workload: dict[str, Any] = {"name": path.stem, "lengths": lengths, "predictions": dict(predictions)}
        workload["num_requests"] = plan.requests(MOST_OF_A_TRACE)
        return load_scenario(DEFAULT_SCENARIO).override(hardware=name, workload=workload, too_long="drop")

    recorded = scenario(1.0)
    system = recorded.make_system()
    table = recorded.sample(recorded.make_workload(), FIRST_TUNING_SEED, system.usable_capacity)
    pace = (len(table) - 1) / float(table.arrival_time[-1] - table.arrival_time[0])
    return scenario(float(f"{load * sustained_rate(system, table) / pace:.3g}"))


def traces(plan: Plan) -> list[Contest]:
    """Mean latency on replayed traces; intervals are over blocks of consecutive requests."""
    contests = []
    known = {NOISY: PREDICTIONS[NOISY], UNKNOWN: {"kind": "none"}}
    for path, name, (how, load) in itertools.product(
        plan.traces,
        plan.some(TRACE_HARDWARE),
        itertools.product(plan.some(list(known)), plan.some(LOADS)),
    ):
        row = {"trace": path.stem, "hardware": name, "lengths": how, "load": f"{load:g}"}
        scenario = replay(plan, path, name, load, known[how])
        contests.append(plan.contest("traces", row, scenario, against_budgets(plan)))
    return contests


Task = Callable[[Plan], list[Contest]]
