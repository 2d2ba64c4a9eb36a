"""When separate prefill workers pay, and when roles should change: the tables of docs/cookbook.md and docs/fleets.md.

    python scripts/fleets/compare_splits.py capacity    what eight workers sustain, by mix and split: three minutes
    python scripts/fleets/compare_splits.py roles       the load of scale-split, by split and rule: two minutes
    python scripts/fleets/compare_splits.py roles --runs runs/split --agents 5   also with agents, trained there

Capacity is the highest rate at which 95 % of the requests have their first token within 1 s and no gap between tokens
over 30 ms, over five simulated minutes of Poisson arrivals, seeds 0 to 2. The roles have five test seeds from
3,000,000; budgets and rules are chosen on seeds 0 and 1, and agents learn on others.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from compare_autoscalers import FIRST_SEED, TUNING
from numpy.typing import NDArray

from kvgym.agents import load_training, train
from kvgym.baselines.autoscalers.given import Plan
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.metrics.attainment import slo_met
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.policies.scaling import Autoscaler
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

WORKERS = 8
SHARE = 0.95
"""Share of the requests that must meet both targets."""
SEEDS, SECONDS, CLOSE = (0, 1, 2), 300.0, 1.02
"""Seeds and length of a run for a capacity, and the ratio of rates at which the search ends."""

MIXES: dict[str, tuple[float, float]] = {
    "writing": (200, 700), "conversations": (600, 250), "code": (1800, 350), "labels": (1500, 12),
    "retrieval": (3000, 60), "agents": (4000, 400), "documents": (4000, 150),
}  # fmt: skip
"""Mean prompt and output of each mix, tokens; log-normal with 0.9 of them as medians."""

BUDGETS = (192, 256, 512)
"""Token budgets of workers that serve whole requests; those of a split have 512."""
SPLIT_BUDGET = 512

BEST = {"conversations": 3, "documents": 5, "labels": 7, "writing": 1, "code": 3}
"""Prefill workers of the split that carries most of each mix, by the table of capacities."""

RULES = tuple(
    f"roles:base={base},ratio={ratio}" for base in (-1.3, -1.2, -1.1, -1.0) for ratio in (0.6, 0.65, 0.7)
)


def policy(budget: int) -> str:
    """Return vLLM's scheduler with a token budget."""
    return f"vllm_v1:max_num_batched_tokens={budget},max_num_seqs={min(budget, 256)}"


def split(system: System, prefill: int) -> tuple[System, str]:
    """Return workers that stay, some of which prefill and the others decode, with a router; 0 = all serve whole."""
    worker = system.workers[0]
    roles = ["prefill"] * prefill + ["decode" if prefill else "mixed"] * (WORKERS - prefill)
    router = "least_outstanding_work" if prefill else "join_shortest_queue"
    return replace(system, workers=tuple(replace(worker, role=role) for role in roles), fleet=None), router


def poisson(scenario: Scenario, mix: str, rate: float) -> Scenario:
    """Return a scenario with Poisson arrivals of one mix."""
    prompt, output = ({"kind": "lognormal", "median": 0.9 * mean, "mean": mean} for mean in MIXES[mix])
    load = {
        "duration": SECONDS, "arrivals": {"kind": "poisson", "rate": rate}, "ttft_slo": 1.0, "tbt_slo": 0.03,
        "lengths": {"kind": "independent", "prompt": prompt, "output": output},
        "limits": {"max_prompt_len": 8000, "max_output_len": 2000},
    }  # fmt: skip
    return scenario.override(workload=load)


def capacity(scenario: Scenario, prefill: int, mix: str, budget: int, seed: int) -> float:
    """Return the highest rate with enough requests within their targets, by bisection from 8 requests a second."""
    system, router = split(scenario.make_system(), prefill)
    low, high, rate = 0.0, math.inf, 8.0
    while rate > 0.25 and high / max(low, 1e-9) > CLOSE:
        table = poisson(scenario, mix, rate).make_workload().sample(seed)
        result = simulate(system, table, policy(budget), router=router, seed=seed)
        if slo_met(result).mean() >= SHARE:
            low = rate
        else:
            high = rate
        rate = rate * 2 if high == math.inf else rate / 2 if low == 0 else math.sqrt(low * high)
    return low


def interval(values: Sequence[float]) -> str:
    """Return the mean and half of its 95 % interval by Student's t."""
    quantile = {3: 4.303, 5: 2.776, 10: 2.262}.get(len(values), math.nan)
    return f"{np.mean(values):.1f} ± {quantile * np.std(values, ddof=1) / math.sqrt(len(values)):.1f}"


def print_capacities(mixes: Sequence[str]) -> None:
    """Print the capacity of each mix, together and for every split."""
    base, splits = load_scenario("scale-split"), range(1, WORKERS)
    names = " | ".join(f"{p}/{WORKERS - p}" for p in splits)
    print(f"| requests/s | prompt, output | together | budget | {names} | best split |")
    print(f"|---|{'---|' * (4 + len(splits))}")
    for mix in mixes:
        lengths = MIXES[mix]
        whole = {b: [capacity(base, 0, mix, b, seed) for seed in SEEDS] for b in BUDGETS}
        budget = max(whole, key=lambda b: np.mean(whole[b]))
        parts = {p: [capacity(base, p, mix, SPLIT_BUDGET, seed) for seed in SEEDS] for p in splits}
        best = max(np.mean(rates) for rates in parts.values()) / np.mean(whole[budget])
        cells = [interval(rates) for rates in (whole[budget], *parts.values())]
        middle = " | ".join(cells[1:])
        print(
            f"| {mix} | {lengths[0]:,}, {lengths[1]} | {cells[0]} | {budget} | {middle} | {100 * (best - 1):+.0f} % |",
            flush=True,
        )


class Roles:
    """Runs of the load of ``scale-split``.

    Args:
        scenario: the scenario.
        whole: whether workers stay, and serve requests whole.
        switch: whether a change of role takes the time of the scenario; otherwise it is a stop and a start.
    """

    def __init__(self, scenario: Scenario, whole: bool = False, switch: bool = True) -> None:
        self._workload, self._policy = scenario.make_workload(), scenario.policies[0]
        self._system, self._router = scenario.make_system(), scenario.router
        if whole:
            self._system, self._router = split(self._system, 0)
        elif not switch:
            self._system = replace(self._system, fleet=replace(self._system.fleet, switch=None))
        self._tables: dict[int, RequestTable] = {}

    def missed(
        self, seeds: Sequence[int], rule: str | Autoscaler | None, chosen: str = ""
    ) -> NDArray[np.float64]:
        """Return the shares of requests that missed a target, of all and then of each mix, (seeds, 1 + mixes)."""
        rows = []
        for seed in seeds:
            if seed not in self._tables:
                self._tables[seed] = self._workload.sample(seed)
            table = self._tables[seed]
            result = simulate(
                self._system, table, chosen or self._policy, router=self._router, autoscaler=rule, seed=seed
            )
            rows.append(shares(result))
        return np.array(rows)

    def at_random(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the same of random actions in ``kvgym/Scale-v0``."""
        env = ScalingEnv(scenario="scale-split", window=None)
        rows = []
        for seed in seeds:
            observation, info = env.reset(options={"workload_seed": seed})
            play, over = env.player("random", seed), False
            while not over:
                observation, _, ended, cut, info = env.step(play(observation, info["action_mask"]))
                over = ended or cut
            rows.append(shares(env.result()))
        return np.array(rows)


def shares(result: SimulationResult) -> NDArray[np.float64]:
    """Return the share of requests that missed a target: of all, then of each mix, (1 + mixes,)."""
    late, mix = ~slo_met(result), result.table.class_id
    assert mix is not None
    return np.array([late.mean(), *(late[mix == m].mean() for m in range(len(result.table.classes)))])


def trained(folder: Path, seed: int) -> str:
    """Return the file of the agent of a training seed, after training it if it is not there."""
    if not (folder / f"{seed}" / "final.json").is_file():
        config = load_training("scale_split").model_copy(update={"seed": seed, "jobs": 1})
        train(config, folder / f"{seed}")
    return str(folder / f"{seed}" / "best.json")


def print_roles(seeds: Sequence[int], agents: Sequence[str]) -> None:
    """Print what fixed splits, changing ones and rules miss on the load of ``scale-split``."""
    scenario = load_scenario("scale-split")
    whole, roles, stops = Roles(scenario, whole=True), Roles(scenario), Roles(scenario, switch=False)
    fixed = {p: f"fixed:workers={p}/{WORKERS - p}" for p in range(1, WORKERS)}
    classes = scenario.make_workload().spec.classes
    best = [BEST[c.name] for c in classes]
    starts = [
        max(t for t, r in zip(c.arrivals.times, c.arrivals.rates, strict=True) if r > 0) for c in classes
    ]  # type: ignore[union-attr]
    plan = Plan(file=[(start, (p, WORKERS - p)) for start, p in zip(starts, best, strict=True)])
    budget = min(BUDGETS, key=lambda b: whole.missed(TUNING, None, policy(b))[:, 0].mean())
    rule = min(RULES, key=lambda spec: roles.missed(TUNING, spec)[:, 0].mean())

    def row(name: str, found: NDArray[np.float64]) -> None:
        cells = [f"{100 * share:.1f} %" for share in found.mean(axis=0)[1:]]
        print(f"| {name} | {interval(100 * found[:, 0])} % | {' | '.join(cells)} |", flush=True)

    print(f"| requests that missed a target | all | {' | '.join(c.name for c in classes)} |")
    print(f"|---|{'---|' * (1 + len(classes))}")
    for p, spec in fixed.items():
        row(f"{p} prefill, {WORKERS - p} decode", roles.missed(seeds, spec))
    row(f"all serve whole requests, budget {budget}", whole.missed(seeds, None, policy(budget)))
    row(
        f"the best split of each mix, {', '.join(f'{p}/{WORKERS - p}' for p in best)}",
        roles.missed(seeds, plan),
    )
    row("the same by stops and starts", stops.missed(seeds, plan))
    row(f"`{rule}`", roles.missed(seeds, rule))
    row("random actions in `Scale-v0`", roles.at_random(seeds))
    for k, agent in enumerate(agents):
        row(f"agent {k}", roles.missed(seeds, agent))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("capacity", "roles"))
    parser.add_argument(
        "--mixes", nargs="+", default=list(MIXES), choices=MIXES, help="rows of the capacities"
    )
    parser.add_argument("--seeds", type=int, default=5, help="test seeds of the roles")
    parser.add_argument("--agents", type=int, default=0, help="training seeds")
    parser.add_argument("--runs", type=Path, default=Path("runs/split"), help="folder of the training runs")
    options = parser.parse_args(arguments)
    if options.table == "capacity":
        print_capacities(options.mixes)
        return
    agents = [trained(options.runs, seed) for seed in range(options.agents)]
    print_roles(range(FIRST_SEED, FIRST_SEED + options.seeds), agents)


if __name__ == "__main__":
    main()
