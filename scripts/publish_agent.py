"""Copy the best agent of a training run into the package and write its model card.

    python scripts/publish_agent.py results/noisy ppo_noisy --figures noisy.json --limits "Not tried above 40/s."
    python scripts/publish_agent.py --renew ppo_noisy --figures noisy.json

`--figures` is the file that scripts/compare_agents, or scripts/compare_routers.py for a router, wrote with --json. The
card has the training, the figures on held-out seeds, and the limits. `--renew` replaces only the figures of a card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from compare_agents.contestants import AGENT, BUDGET, KNOBS, OTHER_AGENT, RULE, SCHEDULER
from compare_agents.figures import mean_of
from compare_agents.store import Store

from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import Model, load_model
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.metrics import metric_info
from kvgym.routing import ROUTERS

AGENTS, BASELINES = (AGENT, OTHER_AGENT), (SCHEDULER, BUDGET, KNOBS, RULE)

MODELS = Path(__file__).resolve().parent.parent / "agents" / "models"


def figures(path: Path, agent: str, name: str) -> list[str]:
    """Return table rows: heading, the agent's value, the best baseline and its value."""
    rows = ["| where | metric | agent | best baseline there | its value |", "|---|---|---|---|---|"]
    for where, metric, values, baselines in parts(path):
        if agent in values and baselines:
            best = (min if metric_info(metric).lower_is_better else max)(
                baselines, key=lambda k: baselines[k]
            )
            rows.append(f"| {where} | {metric} | {values[agent]:.4g} | `{best}` | {baselines[best]:.4g} |")
    if len(rows) == 2:
        raise SystemExit(f"{path} has no figures of {agent}; name it with --as")
    return rows


def parts(path: Path) -> Iterator[tuple[str, str, dict[str, float], dict[str, float]]]:
    """Yield heading, metric, and means of agents and of baselines of each compared row."""
    content = json.loads(path.read_text())
    if isinstance(content, dict):
        for row in Store.load(path).rows():
            agents = {e.label: mean_of(e) for group in AGENTS for e in row.group(group) if e.outcome.values}
            others = {
                e.outcome.spec: mean_of(e)
                for group in BASELINES
                for e in row.group(group)
                if e.outcome.values
            }
            if row.task not in ("ablation", "spread"):
                yield f"{row.task}: {', '.join(row.row.values())}", row.metric, agents, others
        return
    for part in content:
        values = {k: v for k, v in part["values"].items() if v == v}
        baselines = {k: v for k, v in values.items() if k.partition(":")[0] in ROUTERS}
        yield part["heading"], part["metric"], values, baselines


def origin_of_network(model: NumpyModel, libraries: dict[str, str]) -> list[str]:
    """Return the training of a network, Markdown."""
    training = dict(model.metadata["training"])
    shown, metric = training["evaluation"], training["evaluation"]["metric"]
    used = ", ".join(f"{k} {v}" for k, v in libraries.items() if k in ("torch", "stable-baselines3"))
    return [
        f"Configuration `{training['name']}`, seed {training['seed']}: {training['algorithm']}, {model.header.network}",
        f"network, {training['total_steps']:,} environment steps on {training['num_envs']} environments; this is the",
        f"agent after {model.metadata['steps']:,} steps, the best of the run's periodic evaluations",
        f"({shown['seeds']} workloads from seed {shown['first_seed']:,}), where its {metric} was "
        f"{model.metadata['evaluation'][metric]:.4g}. {used}.",
        "",
        "```yaml",
        yaml.safe_dump({"env": training["env"]}, sort_keys=False).strip(),
        "```",
    ]


def origin_of_weights(model: EvolvedModel, libraries: dict[str, str]) -> list[str]:
    """Return the training of evolved weights, Markdown."""
    training, metric = dict(model.metadata["training"]), model.metadata["training"]["metric"]
    generations = model.metadata["generations"]
    held_out, population = training["held_out"], training["population"]
    centre = "centre" if training.get("average") is None else "average of the centres"
    episodes, better = model.metadata["episodes"], model.metadata["held_out"][f"improvement_{metric}"]
    used = ", ".join(f"{k} {v}" for k, v in libraries.items() if k in ("cma", "numpy"))
    return [
        f"Configuration `{training['name']}`, seed {training['seed']}: {training['algorithm']}, {population}",
        f"candidates on {training['services_per_generation']} services per generation; weights of `{model.name}`.",
        f"This is the {centre} of the search after {generations:,} generations ({episodes:,} episodes), the best",
        f"on {held_out['services']} services from seed {held_out['first_seed']:,}; there its {metric} was",
        f"{better:.1f} % better than the best of "
        f"{', '.join(f'`{spec}`' for spec in training['reference'])}. {used}.",
        "",
        "```yaml",
        yaml.safe_dump({"services": training["services"]}, sort_keys=False).strip(),
        "```",
    ]


def card(
    model: Model, name: str, rows: Sequence[str], limits: Sequence[str], run: dict[str, Any], page: str
) -> str:
    """Return the model card, Markdown; ``page`` of the documentation has all figures."""
    use = f"`kvgym compare --policies {name},mc_sf`, or in Python `kvgym.make_policy({name!r})`;"
    source = [
        "Means over 30 held-out seeds from 2,000,000, baselines tuned on seeds from 1,000",
        f"(`scripts/compare_agents`, [docs/{page}](../../docs/{page})); traces are replayed once:",
    ]
    if isinstance(model, EvolvedModel) and model.kind == "router":
        policy = model.metadata["training"]["policy"]
        use = (
            f"`kvgym compare --workers 4 --policies {policy} --router {name},join_shortest_queue`, or in Python "
            f"`kvgym.routing.make_router({name!r})`;"
        )
        source = [
            f"Means over 30 held-out seeds from 2,000,000 under `{policy}`",
            "(`scripts/compare_routers.py`, [docs/routing.md](../../docs/routing.md)):",
        ]
    if isinstance(model, NumpyModel):
        file, origin = f"{name}.npz", origin_of_network(model, run["libraries"])
        what = "the weights are NumPy arrays, read without PyTorch or pickle"
    else:
        file, origin = f"{name}.json", origin_of_weights(model, run["libraries"])
        what = "the weights are plain JSON, checked when they are read"
    lines = [
        f"# {name}",
        "",
        f"{model.metadata['training']['summary']}.",
        "",
        use,
        f"{what} ([{file}]({file})).",
        "",
        "## Trained on",
        "",
        *origin,
        "",
        "## Figures",
        "",
        *source,
        "",
        *rows,
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in limits),
        "",
    ]
    return "\n".join(lines)


def renamed(model: Model, name: str) -> Model:
    """Return the model with its name in the package."""
    metadata = {**model.metadata, "name": name}
    if isinstance(model, NumpyModel):
        return NumpyModel(replace(model.header, metadata=metadata), model.arrays)
    return replace(model, metadata=metadata)


def renewed(text: str, rows: Sequence[str]) -> str:
    """Return a card with new figures."""
    lines = text.splitlines()
    first = lines.index(next(line for line in lines if line.startswith("| where |")))
    last = first + lines[first:].index("")
    return "\n".join([*lines[:first], *rows, *lines[last:], ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Copy the weights and write the card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of the training run")
    parser.add_argument("name", nargs="?", help="name of the agent in the package")
    parser.add_argument("--renew", metavar="NAME", help="replace only the figures in the card of this agent")
    parser.add_argument("--figures", type=Path, required=True, help="JSON of scripts/compare_agents")
    parser.add_argument("--as", dest="label", help="label of the agent in the figures; default: the name")
    parser.add_argument("--page", default="agents_tables.md", help="page of docs/ with all its figures")
    parser.add_argument("--limits", nargs="+", help="limits of the agent, for its card")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the agents")
    options = parser.parse_args(arguments)
    if options.renew:
        path = options.models / f"{options.renew}.md"
        rows = figures(options.figures, options.label or options.renew, options.renew)
        path.write_text(renewed(path.read_text(), rows))
        return
    if not (options.run and options.name and options.limits):
        parser.error("a new card needs RUN, NAME and --limits; --renew NAME keeps all but the figures")
    model = renamed(load_model(options.run), options.name)
    rows = figures(options.figures, options.label or options.name, options.name)
    run = json.loads((options.run / "run.json").read_text())
    options.models.mkdir(parents=True, exist_ok=True)
    model.save(options.models / f"{options.name}{'.npz' if isinstance(model, NumpyModel) else '.json'}")
    (options.models / f"{options.name}.md").write_text(
        card(model, options.name, rows, options.limits, run, options.page)
    )


if __name__ == "__main__":
    main()
