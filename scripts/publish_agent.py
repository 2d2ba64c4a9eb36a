"""Copy the best agent of a training run into the package and write its model card.

    python scripts/publish_agent.py results/noisy ppo_noisy --figures noisy.json --limits "Not tried above 40/s."
    python scripts/publish_agent.py --renew ppo_noisy

`--figures` is a file of results of `kvgym benchmark`, by default the one of docs/benchmark. The card has the training,
the figures, and the limits. `--renew` replaces only the figures of a card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import Model, load_model
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.studies.benchmark.running import BenchmarkResult
from kvgym.studies.benchmark.tasks import load_suite

ROOT = Path(__file__).resolve().parent.parent
MODELS, RESULTS = ROOT / "agents" / "models", ROOT / "docs" / "benchmark"


def figures(path: Path) -> list[str]:
    """Return table rows: task, metric, the agent's value, the best rule and its value, the reference, and the score."""
    result = BenchmarkResult.load(path)
    suite, scores = load_suite(result.suite), result.scores()
    rows = [
        "| task | metric | agent | best rule there | its value | reference | score |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, values in result.values.items():
        task = suite.task(name)
        if name in result.errors:
            continue
        best, spec = task.best("rule")
        cells = [
            task.metric,
            *(f"{task.sign * float(np.mean(x)):.4g}" for x in (values, task.reference_values)),
        ]
        rows.append(
            f"| `{name}` | {cells[0]} | {cells[1]} | `{spec}` | {best:.4g} | {cells[2]} | {scores[name].mean():.2f} |"
        )
    return rows


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


def card(model: Model, name: str, rows: Sequence[str], limits: Sequence[str], run: dict[str, Any]) -> str:
    """Return the model card, Markdown."""
    use = f"`kvgym compare --policies {name},mc_sf`, or in Python `kvgym.make_policy({name!r})`;"
    if isinstance(model, EvolvedModel) and model.kind == "router":
        policy = model.metadata["training"]["policy"]
        use = (
            f"`kvgym compare --workers 4 --policies {policy} --router {name},join_shortest_queue`, or in Python "
            f"`kvgym.policies.routing.make_router({name!r})`;"
        )
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
        "Means over the test seeds of the tasks of [the benchmark](../../docs/benchmark-suite.md); a score of 0 is",
        "the plain rule, 1 the reference in hindsight:",
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
    first = lines.index(next(line for line in lines if line.startswith("| task |")))
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
    parser.add_argument(
        "--figures", type=Path, help="results of kvgym benchmark (default: of docs/benchmark)"
    )
    parser.add_argument("--limits", nargs="+", help="limits of the agent, for its card")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the agents")
    options = parser.parse_args(arguments)
    if not (options.renew or (options.run and options.name and options.limits)):
        parser.error("a new card needs RUN, NAME and --limits; --renew NAME keeps all but the figures")
    rows = figures(options.figures or RESULTS / f"{options.renew or options.name}.json")
    if options.renew:
        path = options.models / f"{options.renew}.md"
        path.write_text(renewed(path.read_text(), rows))
        return
    model = renamed(load_model(options.run), options.name)
    run = json.loads((options.run / "run.json").read_text())
    options.models.mkdir(parents=True, exist_ok=True)
    model.save(options.models / f"{options.name}{'.npz' if isinstance(model, NumpyModel) else '.json'}")
    (options.models / f"{options.name}.md").write_text(card(model, options.name, rows, options.limits, run))


if __name__ == "__main__":
    main()
