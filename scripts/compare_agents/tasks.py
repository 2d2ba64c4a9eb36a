"""What agents are compared on: tasks by name, each a list of cells.

Loads that are given as multiples are of what the worker sustains, by the estimate of
:mod:`kvgym.agents.evolution.capacity` on the requests of a tuning seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare_agents.cells import FIRST_TUNING_SEED, Cell, Seeds
from compare_agents.entrants import (
    AGENT,
    BUDGET,
    KNOBS,
    OTHER_AGENT,
    RULE,
    SCHEDULER,
    TRUE_LENGTHS,
    Entrant,
    FixedKnobs,
    Given,
)
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
"""What is known of output lengths, by the name that tables give it."""

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
"""Three services behind one worker; the lengths of chat are those of the workload, LMSYS's."""

BUDGETS = (128, 256, 512, 1024)
"""Token budgets of Sarathi-Serve, the best of which is chosen in hindsight, on what is reported."""

NEW_HARDWARE = ("mistral-7b-a100-tp1", "llama3-70b-a100-tp2", "llama2-70b-h100-tp4")
TRACE_HARDWARE = ("llama2-70b-a100-tp2", "llama3-8b-a100-tp1", "mistral-7b-a100-tp1")
LOADS = (0.7, 1.0, 1.4)
MOST_OF_A_TRACE = 3000

KNOB_LEVELS: dict[str, tuple[int, ...]] = {
    "protection": (0, 1, 2, 3, 4, 5, 6), "cap": (7,), "budget": (0, 1, 2, 3, 4, 5, 6, 7, 8), "quantum": (0, 1, 2, 3, 4),
}  # fmt: skip
"""What is searched of the knobs; caps on admissions brought nothing on other seeds, and are left out."""


@dataclass(frozen=True)
class Contest:
    """Who is compared, and on how much.

    Attributes:
        agent: name or file of the agent for mean latency.
        slo_agent: of the agent for objectives; "" = none.
        others: further agents, in the tasks latency and default.
        trained: agents of other training seeds, for the spread.
        slo_trained: the same of the agent for objectives.
        traces: files to replay.
        seeds: held-out and tuning seeds.
        quick: few requests, few rates, few schedulers: to see that it runs.
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
        """Return all values, or the last one where it must be quick."""
        return list(values[-1:] if self.quick else values)

    def requests(self, count: int) -> int:
        """Return a number of requests."""
        return min(count, 40) if self.quick else count

    def cell(
        self,
        task: str,
        row: dict[str, str],
        scenario: Scenario,
        entrants: Sequence[Entrant],
        metric: str = LATENCY,
    ) -> Cell:
        """Return a cell with the contest's seeds."""
        return Cell(task, row, self.seeds.bench(scenario, metric), tuple(entrants))


def by_hand() -> Given:
    """Return ``ranked`` with its defaults."""
    return Given(RULE, "ranked, set by hand", "ranked")


def agent_of(spec: str, group: str = AGENT, suffix: str = "", **differing: Any) -> Given:
    """Return an agent as an entrant."""
    return Given(group, f"{spec}{suffix}", spec, agent=True, **differing)


def knobs_for(contest: Contest) -> FixedKnobs:
    """Return the fixed knobs of a contest."""
    levels = (
        {"protection": (1,), "cap": (7,), "budget": (3, 5), "quantum": (0,)} if contest.quick else KNOB_LEVELS
    )
    return FixedKnobs(KNOBS, "best fixed knobs", levels)


def against_everything(contest: Contest, scenario: Scenario) -> list[Entrant]:
    """Return agent, rule, tuned schedulers, knobs, and the agent that knows true lengths."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    predictions = scenario.make_workload().spec.predictions
    kind = "exact" if predictions is None else predictions.kind
    names = eligible(table)[-2:] if contest.quick else None
    return [
        agent_of(contest.agent), by_hand(), *tuned_schedulers(table, kind, names), knobs_for(contest),
        agent_of(contest.agent, TRUE_LENGTHS, " with true lengths", true_lengths=True),
    ]  # fmt: skip


def against_budgets(contest: Contest) -> list[Entrant]:
    """Return agent, rule and Sarathi-Serve with each budget."""
    specs = [f"sarathi:token_budget={budget},order=spf,watermark=0.05" for budget in contest.some(BUDGETS)]
    return [agent_of(contest.agent), by_hand(), *(Given(BUDGET, spec, spec) for spec in specs)]


def conversations(contest: Contest, rate: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return the default scenario at a rate, 2,000 requests."""
    workload = {
        "preset": "lmsys", "num_requests": contest.requests(2000), "rate": rate, "predictions": dict(predictions),
    }  # fmt: skip
    return load_scenario(DEFAULT_SCENARIO).override(workload=workload)


def latency(contest: Contest) -> list[Cell]:
    """Mean latency over the range of rates, by what is known of output lengths."""
    cells = []
    for (known, predictions), rate in itertools.product(
        contest.some(list(PREDICTIONS.items())), contest.some(RATES)
    ):
        scenario = conversations(contest, rate, predictions)
        entrants = [
            *against_everything(contest, scenario),
            *(agent_of(a, OTHER_AGENT) for a in contest.others),
        ]
        row = {"lengths": known, "requests/s": f"{rate:g}"}
        cells.append(contest.cell("latency", row, scenario, entrants))
    return cells


def objectives_at(contest: Contest, rate: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return SLAI's service with objectives for the first token too, ten minutes of arrivals run to the end."""
    workload = {
        "preset": "slai-paying-50", "duration": 30 if contest.quick else 600, "rate": rate, "classes": SLO_CLASSES,
        "predictions": dict(predictions),
    }  # fmt: skip
    return load_scenario("slai-50").override(workload=workload)


def against_slo_schedulers(contest: Contest, scenario: Scenario) -> list[Entrant]:
    """Return the agent for objectives, the general one, rule, tuned schedulers and knobs."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    names = contest.some(SLO_SCHEDULERS)
    if table.predicted_output_len is not None and not contest.quick:
        names += ["work_conserving_sjf", "mc_sf"]
    agents = [agent_of(contest.slo_agent)] if contest.slo_agent else []
    if contest.agent != contest.slo_agent:
        agents.append(agent_of(contest.agent, OTHER_AGENT if agents else AGENT))
    return [*agents, by_hand(), *tuned_schedulers(table, "exact", names), knobs_for(contest)]


def slo(contest: Contest) -> list[Cell]:
    """Share of requests that meet their objectives, two classes of users."""
    cells = []
    for (known, predictions), rate in itertools.product(
        contest.some(list(SLO_PREDICTIONS.items())), contest.some(SLO_RATES)
    ):
        scenario = objectives_at(contest, rate, predictions)
        row = {"lengths": known, "requests/s": f"{rate:g}"}
        cells.append(
            contest.cell("slo", row, scenario, against_slo_schedulers(contest, scenario), ATTAINMENT)
        )
    return cells


def mixture(contest: Contest, load: float, predictions: Mapping[str, Any]) -> tuple[Scenario, float]:
    """Return three services behind one worker at a multiple of what it sustains, and the rate."""
    base = load_scenario(DEFAULT_SCENARIO)
    workload: dict[str, Any] = {
        "preset": "lmsys", "num_requests": contest.requests(2000), "classes": MIX, "predictions": dict(predictions),
        "limits": {"max_total_len": 12_000, "max_output_len": 2048},
    }  # fmt: skip
    rate = at_load(base.override(workload=workload), load)
    return base.override(workload={**workload, "rate": rate}), rate


def at_load(scenario: Scenario, load: float) -> float:
    """Return a multiple of what a worker sustains of a scenario's requests, in requests per second, rounded."""
    table = scenario.make_workload().sample(FIRST_TUNING_SEED)
    return float(f"{load * sustained_rate(scenario.make_system(), table):.3g}")


def mixed(contest: Contest) -> list[Cell]:
    """Mean latency of chat, long documents and classification behind one worker."""
    cells = []
    known = [NOISY, UNKNOWN]
    for name, load in itertools.product(contest.some(known), contest.some((0.8, 1.1, 1.5))):
        scenario, rate = mixture(contest, load, PREDICTIONS[name])
        row = {"lengths": name, "load": f"{load:g}", "requests/s": f"{rate:g}"}
        cells.append(contest.cell("mixed", row, scenario, against_everything(contest, scenario)))
    return cells


def default(contest: Contest) -> list[Cell]:
    """Mean latency on the default scenario; schedulers with their defaults, and tuned."""
    workload = {"preset": "lmsys", "num_requests": contest.requests(1000), "predictions": {"kind": "exact"}}
    scenario = load_scenario(DEFAULT_SCENARIO).override(workload=workload)
    entrants = [e for e in against_everything(contest, scenario) if e.group != TRUE_LENGTHS]
    names = {e.label for e in entrants if e.group == SCHEDULER}
    entrants += [Given(SCHEDULER, f"{name} (defaults)", name) for name in sorted(names)]
    entrants += [agent_of(a, OTHER_AGENT) for a in contest.others]
    return [contest.cell("default", {"lengths": "exact", "requests/s": "50"}, scenario, entrants)]


def hardware(contest: Contest) -> list[Cell]:
    """Mean latency on hardware that no training saw."""
    cells = []
    for name, (known, load) in itertools.product(
        contest.some(NEW_HARDWARE), itertools.product(contest.some([NOISY, UNKNOWN]), contest.some(LOADS))
    ):
        base = load_scenario(DEFAULT_SCENARIO).override(hardware=name)
        workload = {
            "preset": "lmsys",
            "num_requests": contest.requests(2000),
            "predictions": PREDICTIONS[known],
        }
        rate = at_load(base.override(workload=workload), load)
        row = {"hardware": name, "lengths": known, "load": f"{load:g}", "requests/s": f"{rate:g}"}
        scenario = base.override(workload={**workload, "rate": rate})
        cells.append(contest.cell("hardware", row, scenario, against_budgets(contest)))
    return cells


def replay(contest: Contest, path: Path, name: str, load: float, predictions: Mapping[str, Any]) -> Scenario:
    """Return the replay of the first rows of a trace at a multiple of what hardware sustains of them."""

    def scenario(rate_scale: float) -> Scenario:
        lengths = {"kind": "trace", "path": str(path), "format": "auto", "rate_scale": rate_scale}
        workload: dict[str, Any] = {"name": path.stem, "lengths": lengths, "predictions": dict(predictions)}
        workload["num_requests"] = contest.requests(MOST_OF_A_TRACE)
        return load_scenario(DEFAULT_SCENARIO).override(hardware=name, workload=workload, too_long="drop")

    recorded = scenario(1.0)
    system = recorded.make_system()
    table = recorded.sample(recorded.make_workload(), FIRST_TUNING_SEED, system.usable_capacity)
    pace = (len(table) - 1) / float(table.arrival_time[-1] - table.arrival_time[0])
    return scenario(float(f"{load * sustained_rate(system, table) / pace:.3g}"))


def traces(contest: Contest) -> list[Cell]:
    """Mean latency on replayed traces; intervals are over blocks of consecutive requests."""
    cells = []
    known = {NOISY: PREDICTIONS[NOISY], UNKNOWN: {"kind": "none"}}
    for path, name, (how, load) in itertools.product(
        contest.traces,
        contest.some(TRACE_HARDWARE),
        itertools.product(contest.some(list(known)), contest.some(LOADS)),
    ):
        row = {"trace": path.stem, "hardware": name, "lengths": how, "load": f"{load:g}"}
        scenario = replay(contest, path, name, load, known[how])
        cells.append(contest.cell("traces", row, scenario, against_budgets(contest)))
    return cells


Task = Callable[[Contest], list[Cell]]
