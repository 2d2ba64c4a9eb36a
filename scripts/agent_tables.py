"""Compare trained agents with rules on test seeds: tables of docs/agents.md, train_priority.md and routing.md there.

    for s in 0 1 2 3 4; do kvgym train admit_evict seed=$s --out runs/admit_evict/$s; done
    python scripts/agent_tables.py admit_evict --runs runs/admit_evict
    for s in 0 1 2 3 4 11 12 13 14 15; do kvgym train hidden_kinds seed=$s --out runs/hidden_kinds/$s; done
    python scripts/agent_tables.py hidden_kinds --runs runs/hidden_kinds --seeds 32
    python scripts/agent_tables.py routing_unequal --runs runs/routing_unequal --seeds 2       quick

Test seeds begin at 3,000,000; no training, choice of an agent or tuning has used them. All entries serve the same
requests, and gains over the base are paired by seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.agents import load_training
from kvgym.cli.console import number, percent
from kvgym.envs import AgentPolicy
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.statistics import improvement_interval, mean_interval
from kvgym.metrics.catalogue import metric_info
from kvgym.studies.benchmark.players import ConstantAnswer, RandomAnswers
from kvgym.workloads.workload import describe_workload

FIRST_SEED = 3_000_000


class Answers:
    """A model of kvgym/AdmitEvict-v0 that reads nothing.

    Args:
        drawn: whether answers are drawn uniformly from those that are possible; otherwise each is the first one, which
            admits the first request of the window if it fits and else runs the batch.
    """

    def __init__(self, drawn: bool) -> None:
        self.drawn, self._generator = drawn, np.random.default_rng(0)

    def predict(
        self, observation: Any, deterministic: bool = True, action_masks: Any = None
    ) -> tuple[Any, None]:
        """Return an answer."""
        return self._generator.choice(np.flatnonzero(action_masks)) if self.drawn else np.int64(0), None


@dataclass(frozen=True)
class Table:
    """What is compared.

    Attributes:
        scenario: name or file.
        rules: policies, or routers, in the order of rows.
        bases: the rules that gains are over.
        shipped: name of the agent that kvgym ships; "" = none.
        rates: requests per second; () = the scenario's own.
        metric: what is measured.
        policy: policy of the workers, where routers are compared; None = policies are.
        players: returns players that read nothing, as AgentPolicy objects.
    """

    scenario: str
    rules: tuple[str, ...]
    bases: tuple[str, ...]
    shipped: str = ""
    rates: tuple[float, ...] = ()
    metric: str = "e2e_latency_mean"
    policy: str | None = None
    players: Callable[[], Sequence[AgentPolicy]] = tuple


def admission_players() -> Sequence[AgentPolicy]:
    """Return players of kvgym/AdmitEvict-v0, in the environment of the training."""
    environment = load_training("admit_evict").env_config().model_dump()  # type: ignore[attr-defined]
    named = (("the first that fits, always", False), ("random", True))
    return [AgentPolicy(Answers(drawn), name=label, **environment) for label, drawn in named]


PRIORITY_RULES = ("past_future", "sarathi:token_budget=256", "sarathi:token_budget=128,order=spf")
"""Rules of the tables of kvgym/Priority-v0; order and budget of the last are tuned."""


UNEQUAL = Path(__file__).resolve().parent.parent / "configs/benchmark/kvgym-bench-2/routing-unequal.yaml"

TABLES = {
    "admit_evict": Table(
        "rush",
        ("fcfs", "mc_sf", "mc_sf:protection=0.1,overrun=extend", "mc_benchmark", "alpha_greedy", "alpha_beta",
         "learned_rank", "bounded_srpt", "ageing", "work_conserving_sjf_lookahead:chunk=32768", "vllm_v1",
         "sarathi:order=spf,token_budget=256", "ranked", "ranked_latency", "clairvoyant"),
        bases=("work_conserving_sjf_lookahead:chunk=32768", "ranked"),
        rates=(7.2, 10.0), players=admission_players,
    ),
    "conversations": Table(
        "conversations", (*PRIORITY_RULES, "ranked_chat", "ranked", "ranked_latency", "ranked_documents"),
        bases=("ranked_documents",),
    ),
    "hidden_kinds": Table(
        "hidden-kinds", (*PRIORITY_RULES, "ranked_chat", "ranked", "ranked_latency", "ranked_documents"),
        bases=("ranked_latency", "ranked_documents"), players=lambda: [ConstantAnswer(), RandomAnswers()],
    ),
    "routing_unequal": Table(
        str(UNEQUAL),
        ("join_shortest_queue", "rebalancing", "weighted", "routing", "lmetric:queued=true",
         "weighted:work=0,requests=0,pace=0,uncached=1,backlog=1"),
        bases=("lmetric:queued=true",), metric="slo_attainment",
        policy="vllm_v1:max_num_batched_tokens=512",
    ),
}  # fmt: skip


def cells(values: NDArray[np.float64], bases: Sequence[NDArray[np.float64]], metric: str) -> list[str]:
    """Return mean, interval, and the gain over each base, of values by seed."""
    own = mean_interval(values)
    found = [number(own.value), f"{number(own.low)} – {number(own.high)}"]
    for base in bases:
        gain = improvement_interval(values, base, lower_is_better=bool(metric_info(metric).lower_is_better))
        text = f"{percent(gain.value)} ({percent(gain.low)} – {percent(gain.high)})"
        found.append("" if np.array_equal(values, base) else text)
    return found


def table(
    chosen: Table, scenario: Scenario, others: Sequence[Any], agents: Sequence[Path], seeds: range
) -> list[str]:
    """Return the rows: rules and players, single agents, their mean, and the spread of their gains."""
    files = [str(path) for path in agents] + ([chosen.shipped] if chosen.shipped else [])
    entries: list[Any] = [*chosen.rules, *others, *files]
    found = (
        compare(scenario, entries, seeds=seeds)
        if chosen.policy is None
        else compare(scenario, [chosen.policy], routers=entries, seeds=seeds)
    )
    labels = found.policies
    values = [found.values(label, chosen.metric) for label in labels]
    bases = [values[chosen.rules.index(base)] for base in chosen.bases]
    first = len(chosen.rules) + len(others)
    names = [
        f"`{label}`" if isinstance(entry, str) else label
        for label, entry in zip(labels, entries, strict=True)
    ]
    names[first:] = [f"agent, training {path.stem}" for path in agents]
    names += [f"`{chosen.shipped}`, the shipped agent"] if chosen.shipped else []
    lines = [[name, *cells(value, bases, chosen.metric)] for name, value in zip(names, values, strict=True)]
    if agents:
        trained = values[first : first + len(agents)]
        mean = cells(np.mean(trained, axis=0), bases, chosen.metric)
        lines.insert(first + len(agents), [f"agents, mean of {len(agents)} trainings", *mean])
    heads = ["entry", chosen.metric, "95 % interval", *(f"over `{base}`" for base in chosen.bases)]
    rows = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(line)} |" for line in lines),
    ]
    return [*rows, *(f"\n{name}: {message}" for name, message in found.errors().items())]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables of a training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--runs", type=Path, help="folder with a run of each training seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rates", type=float, nargs="+", help="requests per second, instead of the table's")
    options = parser.parse_args(arguments)
    chosen = TABLES[options.table]
    agents = sorted(options.runs.iterdir(), key=lambda path: int(path.name)) if options.runs else []
    others = chosen.players()
    scenario = load_scenario(chosen.scenario)
    for rate in options.rates or chosen.rates or (None,):
        at = scenario
        if rate is not None:
            at = scenario.override(workload={**describe_workload(scenario.workload), "rate": rate})
        print(f"\n{scenario.name}{'' if rate is None else f', {rate:g} requests/s'}\n")
        seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        print("\n".join(table(chosen, at, others, agents, seeds)), flush=True)


if __name__ == "__main__":
    main()
