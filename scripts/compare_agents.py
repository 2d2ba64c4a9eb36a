"""Compare learned agents with tuned baselines: the tables of docs/agents.md, as Markdown.

    python scripts/compare_agents.py --agents ppo_noisy=noisy ppo_unknown=unknown ppo_slo=slo
    python scripts/compare_agents.py --agents runs/noisy-0=noisy --quick      seconds, to see that it runs
    python scripts/compare_agents.py --curves noisy=runs/noisy-0,runs/noisy-1 --figure curves.png

Baselines are tuned with `kvgym.experiments.tuning.tune` on seeds from 1000, for every rate anew; agents were
trained on seeds drawn from their run's seed and selected on seeds from 1,000,000; what is reported are seeds from
2,000,000.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.agents.library import load_agent
from kvgym.cli.console import interval, number, percent
from kvgym.envs.agents import AgentPolicy
from kvgym.errors import KVGymError
from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.tuning import tune
from kvgym.metrics import metric_info

HELD_OUT = 2_000_000


@dataclass(frozen=True)
class Task:
    """What agents and baselines are compared on.

    Attributes:
        title: heading.
        scenario: base scenario.
        workload: changes of its workload.
        rates: requests per second of the main table.
        training_rate: nominal rate of training, for the sweep over 0.5 to 2 times.
        metric: what is compared.
        baselines: policies to tune, allowed the same information.
        spaces: values to search, by policy, where they differ from the library's.
        published: settings of the papers, compared as they are: what is best on tuning seeds may fail on others.
    """

    title: str
    scenario: str
    workload: dict[str, Any]
    rates: tuple[float, ...]
    training_rate: float
    metric: str
    baselines: tuple[str, ...]
    spaces: dict[str, dict[str, list[Any]]]
    published: tuple[str, ...] = ()

    def at(self, rate: float, **changes: Any) -> Scenario:
        """Return the scenario at a rate."""
        return load_scenario(self.scenario).override(workload={**self.workload, "rate": rate, **changes})


_MARGINS: dict[str, list[Any]] = {"protection": [0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2]}
_BUDGETS: dict[str, list[Any]] = {
    "token_budget": [128, 192, 256, 320, 352, 384, 416, 448, 512],
    "order": ["fcfs", "spf"],
    "watermark": [0.0, 0.02, 0.05, 0.1],
    "max_batch_requests": [128, 256],
}
_FIRST_COME = ("fcfs", "cost_aware", "alpha_greedy", "alpha_beta", "flow_control", "vllm", "sarathi")
_COMMON = {
    "fcfs": {"protection": [0.0, 0.02, 0.05, 0.08, 0.1, 0.15, 0.2]},
    "cost_aware": {"protection": [0.0, 0.02, 0.05, 0.1, 0.15]},
    "alpha_greedy": {"alpha": [0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3]},
    "alpha_beta": {"alpha": [0.05, 0.1, 0.15, 0.2], "beta": [0.05, 0.1, 0.2]},
    "flow_control": {"budget": [1, 2, 3, 4, 5, 6, 8]},
    "sarathi": _BUDGETS,
}

_PREDICTED = {
    **_COMMON,
    "mc_sf": _MARGINS,
    "mc_benchmark": _MARGINS,
    "ageing": {**_MARGINS, "rate": [0.01, 0.1, 1.0]},
    "work_conserving_sjf": {"chunk": [128, 256, 512, 1024]},
    "work_conserving_sjf_lookahead": {"chunk": [128, 256, 512, 1024]},
}

TASKS = {
    "default": Task(
        "Default scenario: Llama-2-70B on two A100, LMSYS lengths, exact predictions, 1,000 requests",
        "a100-llama2-70b",
        {"preset": "lmsys", "num_requests": 1000},
        (50.0,),
        50.0,
        "e2e_latency_mean",
        (
            "mc_sf", "mc_benchmark", "ageing", "work_conserving_sjf", "work_conserving_sjf_lookahead", *_FIRST_COME,
        ),
        _PREDICTED,
    ),
    "noisy": Task(
        "Noisy predictions (ε = 0.5), Llama-2-70B on two A100, LMSYS lengths, 2,000 requests",
        "a100-llama2-70b",
        {"preset": "lmsys", "num_requests": 2000, "predictions": {"kind": "noisy", "epsilon": 0.5}},
        (10.0, 20.0),
        20.0,
        "e2e_latency_mean",
        (
            "mc_sf:overrun=extend", "mc_benchmark:overrun=extend", "ageing:overrun=extend", "work_conserving_sjf",
            "work_conserving_sjf_lookahead", *_FIRST_COME,
        ),
        _PREDICTED,
        ("mc_sf:protection=0.1,overrun=extend", "mc_benchmark:protection=0.1,overrun=extend"),
    ),
    "unknown": Task(
        "Unknown output lengths (1 to 2,048), Llama-2-70B on two A100, LMSYS lengths, 2,000 requests",
        "a100-llama2-70b",
        {"preset": "lmsys", "num_requests": 2000, "predictions": {"kind": "interval", "bounds": [1, 2048]}},
        (10.0, 20.0),
        20.0,
        "e2e_latency_mean",
        ("a_min", "mc_longest", "work_conserving_fcfs", *_FIRST_COME),
        {
            **_COMMON,
            "mc_longest": {"protection": [0.0, 0.05]},
            "work_conserving_fcfs": {"chunk": [128, 256, 512]},
        },
        ("alpha_greedy:alpha=0.3", "alpha_beta:alpha=0.2,beta=0.1"),
    ),
    "slo": Task(
        "SLAI's workload, 50 % paying (TBT 0.1 s, others 0.5 s), Mistral-7B on one RTX 6000 Ada, 35 minutes",
        "slai-50",
        {"preset": "slai-paying-50"},
        (1.5, 1.8),
        1.5,
        "goodput",
        ("slai", "sarathi", "vllm", "work_conserving_fcfs"),
        {
            "slai": {
                "token_budget": [256, 320, 352, 384, 416, 448, 512], "low_offset": [None, 5.0],
                "order": ["fcfs", "spf"], "paying_first": [False, True],
            },
            "sarathi": {
                "token_budget": [256, 320, 352, 384, 416, 448, 512], "order": ["fcfs", "spf"],
                "watermark": [0.0, 0.05],
            },
            "vllm": {"max_batch_tokens": [512, 1024, 4096], "max_batch_requests": [32, 64, 256]},
            "work_conserving_fcfs": {"chunk": [128, 256, 384, 512]},
        },
    ),
}  # fmt: skip


def tuned(task: Task, rate: float, seeds: int, chosen: Sequence[str]) -> list[str]:
    """Return each baseline with its best hyperparameters at a rate; those that fail throughout are left out."""
    found = []
    for spec in chosen:
        name = spec.partition(":")[0]
        try:
            result = tune(spec, task.at(rate), space=task.spaces.get(name), metric=task.metric, seeds=seeds)
        except KVGymError as error:
            print(f"- `{spec}` at {rate:g}/s: {str(error)[:160]}")
            continue
        found.append(result.best.spec)
    return list(dict.fromkeys([*found, *(() if chosen != task.baselines else task.published)]))


def table(comparison: Comparison, agents: Sequence[str], metric: str) -> str:
    """Return means with intervals, and the improvement of each agent over each policy."""
    heads = ["policy", metric, "95 % interval", *(f"`{a}` better by" for a in agents)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for policy in comparison.policies:
        estimate = comparison.estimate(policy, metric)
        cells = [f"`{policy}`", number(estimate.value), interval(estimate)]
        for agent in agents:
            gain = comparison.improvement(agent, policy, metric)
            own = agent == policy or np.isnan(gain.value)
            cells.append("" if own else f"{percent(gain.value)} ({percent(gain.low)} – {percent(gain.high)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ranked(comparison: Comparison, policies: Sequence[str], metric: str) -> list[str]:
    """Return the policies that finished, best first."""
    means = {p: comparison.estimate(p, metric).value for p in policies}
    finished = [p for p in policies if not np.isnan(means[p])]
    return sorted(finished, key=lambda p: means[p], reverse=not metric_info(metric).lower_is_better)


def show(comparison: Comparison, agents: Sequence[str], metric: str, out: list[Any], heading: str) -> None:
    """Print a table and keep its figures."""
    print(f"\n### {heading}\n")
    print(table(comparison, agents, metric))
    for policy, message in comparison.errors().items():
        print(f"\n`{policy}`: {message[:200]}")
    for note in comparison.notes:
        if "horizon" in note:
            print(f"\n{note}")
    print(f"{heading}: done", file=sys.stderr)
    values = {p: comparison.estimate(p, metric).value for p in comparison.policies}
    out.append({"heading": heading, "metric": metric, "values": values})


def fixed_knobs(agent: AgentPolicy, knobs: Sequence[int]) -> AgentPolicy:
    """Return a policy that always chooses the same knobs, in the agent's own environment."""

    class Fixed:
        """Stands for a model."""

        def predict(
            self, observation: Any, deterministic: bool = True, action_masks: Any = None
        ) -> tuple[Any, None]:
            """Return the knobs."""
            return np.array(knobs), None

    name = "knobs-" + "-".join(map(str, knobs))
    return AgentPolicy(Fixed(), name=name, **agent.config.model_dump())


def best_fixed(agent: AgentPolicy, scenario: Scenario, metric: str, seeds: int) -> AgentPolicy:
    """Return the best fixed knobs among those the agent may choose, on tuning seeds."""
    levels = {"protection": (0, 1, 2, 3), "cap": (7,), "budget": (1, 2, 3, 4, 5, 7), "quantum": (0,)}
    levels |= agent.config.knobs
    grids = [levels[name] for name in ("protection", "cap", "budget", "quantum")]
    grid = [
        fixed_knobs(agent, (a, b, c, d))
        for a in grids[0]
        for b in grids[1]
        for c in grids[2]
        for d in grids[3]
    ]
    comparison = compare(scenario, grid, seeds=range(1000, 1000 + seeds))
    means = np.array([comparison.estimate(p, metric).value for p in comparison.policies])
    best = np.nanargmin(means) if metric.startswith("e2e") else np.nanargmax(means)
    return grid[int(best)]


def evaluate(agents: Sequence[tuple[str, str]], options: argparse.Namespace) -> list[Any]:
    """Evaluate agents on their tasks: main tables, sweep over rates, and a trace."""
    out: list[Any] = []
    for name in dict.fromkeys(task for _, task in agents):
        task = TASKS[name]
        specs = [spec for spec, other in agents if other == name]
        loaded = [load_agent(spec) for spec in specs]
        labels = [agent.info.name for agent in loaded]
        print(f"\n## {task.title}")
        held_out = range(HELD_OUT, HELD_OUT + options.seeds)
        chosen = task.baselines[:3] if options.quick else task.baselines
        changes: dict[str, Any] = {"num_requests": 30} if options.quick else {}
        if options.quick:
            task = Task(**{**vars(task), "workload": {**task.workload, **changes}})
        at_nominal: list[str] = []
        for rate in task.rates:
            started = time.perf_counter()
            baselines = tuned(task, rate, options.tuning_seeds, chosen)
            fixed = [
                best_fixed(agent, task.at(rate), task.metric, options.tuning_seeds) for agent in loaded[:1]
            ]
            comparison = compare(task.at(rate), [*loaded, *baselines, *fixed], seeds=held_out)
            show(comparison, labels, task.metric, out, f"{rate:g} requests/s")
            if rate == task.training_rate:
                at_nominal = ranked(comparison, baselines, task.metric)
            print(f"\n{time.perf_counter() - started:.0f} s")
        best = at_nominal[:5]  # the five best at the training rate
        for factor in () if options.quick else (0.5, 0.75, 1.25, 1.5, 2.0):
            rate = factor * task.training_rate
            comparison = compare(task.at(rate), [loaded[0], *best], seeds=held_out[: options.sweep_seeds])
            show(
                comparison, labels[:1], task.metric, out,
                f"{factor:g} times the training rate: {rate:g} requests/s (baselines as tuned at the training rate)",
            )  # fmt: skip
        if options.trace is not None:
            lengths = {"kind": "trace", "path": str(options.trace), "format": "auto"}
            for scale in (0.1, 0.2):
                workload: dict[str, Any] = {
                    "name": options.trace.name, "lengths": {**lengths, "rate_scale": scale}, "num_requests": 5000,
                    "predictions": task.workload.get("predictions", {"kind": "exact"}),
                }  # fmt: skip
                if name == "unknown":
                    workload["predictions"] = {"kind": "interval", "bounds": [1, 2048]}
                if name == "slo":
                    workload["classes"] = [
                        {"name": "paying", "weight": 0.5, "priority": 1, "tbt_slo": 0.1},
                        {"name": "free", "weight": 0.5, "priority": 0, "tbt_slo": 0.5},
                    ]
                base = load_scenario(task.scenario)
                scenario = Scenario(**{**base.model_dump(), "workload": workload, "too_long": "drop"})
                factor = scale * (3 if name == "slo" else 1)
                workload["lengths"]["rate_scale"] = factor
                comparison = compare(scenario, [*loaded[:1], *best], seeds=[HELD_OUT])
                heading = f"Azure conversation trace at {factor:g} times its rate (one replay, first 5,000 requests)"
                show(comparison, labels[:1], task.metric, out, heading)
    return out


def curves(runs: dict[str, list[Path]], figure: Path) -> None:
    """Draw the learning curves: mean and range over training seeds, baselines as lines."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(
        1, len(runs), figsize=(4.2 * len(runs), 3.2), squeeze=False, layout="constrained"
    )
    for axis, (name, folders) in zip(axes[0], runs.items(), strict=True):
        metric = TASKS[name].metric if name in TASKS else "e2e_latency_mean"
        rows = [list(csv.DictReader((f / "curve.csv").read_text().splitlines())) for f in folders]
        steps = [int(row["steps"]) for row in rows[0]]
        values = np.array([[float(row[metric]) for row in run[: len(steps)]] for run in rows])
        for run in values:
            axis.plot(np.array(steps) / 1e6, run, color="tab:blue", alpha=0.35, linewidth=0.8)
        axis.plot(
            np.array(steps) / 1e6, values.mean(axis=0), color="tab:blue", label=f"agent ({len(rows)} seeds)"
        )
        state = json.loads(
            sorted((folders[0] / "checkpoints").glob("step-*"))[-1].joinpath("state.json").read_text()
        )
        for k, (label, found) in enumerate(state["baselines"].items()):
            short = label if len(label) < 34 else label.partition(":")[0]
            axis.axhline(found[metric], color=f"C{k + 1}", linestyle="--", linewidth=1, label=short)
        axis.set(title=name, xlabel="environment steps, millions", ylabel=metric)
        axis.legend(fontsize=6)
    fig.savefig(figure, dpi=130)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--agents", nargs="*", default=[], metavar="AGENT=TASK", help="agents, and the task of each"
    )
    parser.add_argument("--seeds", type=int, default=30, help="held-out seeds")
    parser.add_argument("--sweep-seeds", type=int, default=30, help="held-out seeds of the sweep over rates")
    parser.add_argument("--tuning-seeds", type=int, default=5)
    parser.add_argument("--trace", type=Path, help="also replay this trace")
    parser.add_argument("--quick", action="store_true", help="small and fast")
    parser.add_argument(
        "--curves", nargs="*", default=[], metavar="NAME=RUN,RUN", help="training runs to draw"
    )
    parser.add_argument("--figure", type=Path, default=Path("curves.png"))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    pairs = [tuple(text.rsplit("=", 1)) for text in options.agents]
    for pair in pairs:
        if len(pair) != 2 or pair[1] not in TASKS:
            parser.error(f"--agents {'='.join(pair)}: expected AGENT=TASK with a task of {', '.join(TASKS)}")
    if options.quick:
        options.seeds, options.tuning_seeds = 2, 1
    out = evaluate([(a, b) for a, b in pairs], options)
    if options.json is not None:
        options.json.write_text(json.dumps(out, indent=1))
    if options.curves:
        runs = {
            name: [Path(p) for p in paths.split(",")]
            for name, paths in (text.split("=", 1) for text in options.curves)
        }
        curves(runs, options.figure)


if __name__ == "__main__":
    main()
