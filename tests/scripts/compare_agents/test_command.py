"""The scripts that compare agents and publish them, with small inputs."""

import json

import compare_routers
import publish_agent
import pytest
from compare_agents.benchmark import Outcome
from compare_agents.command import main
from compare_agents.store import Store
from compare_agents.studies import STUDIES, TASKS

from helpers.comparing_runs import save_agent
from helpers.evolution_runs import TINY
from kvgym.agents.evolution.training import train as evolve
from kvgym.agents.library import load_model
from kvgym.agents.runs.config import load_training, make_training
from kvgym.agents.sb3.training import train


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Two agents, and a trace."""
    folder = tmp_path_factory.mktemp("agents")
    lines = [f"{0.5 * k},{200 + k},{50 + k % 40}" for k in range(60)]
    (folder / "trace.csv").write_text("\n".join(["arrival_time,prompt_len,output_len", *lines]) + "\n")
    for k, name in enumerate(("general", "slo")):
        save_agent(folder / f"{name}.json", waiting=0.5 + k)
    return folder


@pytest.fixture(scope="module")
def quick(agents, tmp_path_factory):
    """The whole comparison, quick; returns its command line and its files."""
    folder = tmp_path_factory.mktemp("quick")
    general, slo = str(agents / "general.json"), str(agents / "slo.json")
    arguments = [
        "--agent", general, "--slo-agent", slo, "--training-seeds", general, slo, "--slo-training-seeds", slo, general,
        "--traces", str(agents / "trace.csv"), "--quick", "--jobs", "1", "--json", str(folder / "all.json"),
        "--markdown", str(folder / "page.md"), "--tables", str(folder / "tables"),
    ]  # fmt: skip
    main(arguments)
    return arguments, folder


def test_every_task_is_compared(quick, agents):
    _, folder = quick
    store = Store.load(folder / "all.json")
    assert list(dict.fromkeys(row.task for row in store.rows())) == list(TASKS)
    for row in store.rows():
        assert len(row.entries) >= 3
        for entry in row.entries:
            assert not entry.outcome.error, (row, entry.label)
            assert all(value > 0 for value in entry.outcome.values)
    page = (folder / "page.md").read_text()
    for name in (*(task for task in TASKS if task not in STUDIES), "policies"):
        assert f"[{name}.csv](tables/{name}.csv)" in page
        assert (folder / "tables" / f"{name}.csv").is_file()
    assert "largest less smallest" in page


def test_finished_runs_are_not_repeated(quick, capsys, tmp_path):
    arguments, folder = quick
    before = (folder / "all.json").read_text()
    main(arguments)
    assert ", 0 runs to do in 0 jobs" in capsys.readouterr().err
    assert (folder / "all.json").read_text() == before
    main(
        [
            "--json",
            str(folder / "all.json"),
            "--markdown",
            str(tmp_path / "again.md"),
            "--tables",
            str(tmp_path / "tables"),
        ]
    )
    assert (tmp_path / "again.md").read_text() == (folder / "page.md").read_text()
    for path in (folder / "tables").iterdir():
        assert (tmp_path / "tables" / path.name).read_text() == path.read_text()


def test_another_agent_does_not_repeat_the_tuning(quick, agents, capsys, tmp_path):
    _, folder = quick
    other = save_agent(tmp_path / "other.json", waiting=3.0)
    file = tmp_path / "all.json"
    file.write_text((folder / "all.json").read_text())
    main(["--agent", other, "--tasks", "default", "mixed", "--quick", "--json", str(file), "--jobs", "1"])
    captured = capsys.readouterr()
    assert "2 contests, 3 runs to do in 2 jobs" in captured.err  # the agent twice, once with true lengths too
    assert "| default | best tuned scheduler |" in captured.out


def test_learning_curves(tmp_path, capsys):
    for seed in (0, 1):
        evolve(make_training({**TINY, "generations": 2, "seed": seed}), tmp_path / f"run-{seed}")
    folders = [str(tmp_path / f"run-{seed}") for seed in (0, 1)]
    main(["--curves", *folders, "--figure", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").stat().st_size > 1000
    out = capsys.readouterr().out
    for seed in (0, 1):
        last = (tmp_path / f"run-{seed}" / "curve.csv").read_text().splitlines()[-1].split(",")
        row = next(line for line in out.splitlines() if line.startswith(f"| tiny | {seed} |"))
        assert f"| {last[0]} generations |" in row


def test_mistakes_are_reported_before_anything_runs(agents, tmp_path, capsys):
    general = str(agents / "general.json")
    for arguments, text in (
        (["--agent", "unknown"], "unknown agent 'unknown'"),
        (["--agent", general, "--tasks", "traces"], "task traces: nothing to compare; give --traces"),
        (["--agent", general, "--tasks", "spread"], "give --training-seeds or --slo-training-seeds"),
        (["--agent", general, "--tasks", "traces", "--traces", "no.csv"], "no.csv"),
        (["--agent", general, "--seeds", "0"], "at least 1"),
        (["--figure", "x.png", "--agent", general], "give --curves"),
        (["--curves", str(tmp_path)], "holds no training run"),
        ([], "nothing to do"),
    ):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert text in f"{error.value} {capsys.readouterr().err}"


def figures_of(path, agent, spec, values, other=(3.0, 3.0)):
    """Write figures in which an agent has some values and a scheduler others."""
    contestants = [
        {"group": "agent", "label": agent, "run": "a"},
        {"group": "scheduler", "label": spec, "run": "b"},
    ]
    contest = {"task": "latency", "row": {"lengths": "unknown"}, "metric": "e2e_latency_mean", "num_seeds": 2}
    runs = {"a": Outcome(agent, values), "b": Outcome(spec, other)}
    Store(runs=runs, contests=[{**contest, "contestants": contestants}]).save(path)


def test_compare_and_publish_a_network(tmp_path, capsys):
    run = tmp_path / "noisy"
    small = {
        "env.num_requests": 10, "num_envs": 2, "hyperparameters.n_steps": 8, "hyperparameters.batch_size": 16,
        "total_steps": 16, "evaluation.interval": 16, "evaluation.seeds": 1,
    }  # fmt: skip
    train(load_training("noisy", small), run)
    figures = tmp_path / "figures.json"
    main(
        ["--agent", str(run), "--tasks", "default", "--quick", "--json", str(figures), "--curves", str(run),
         "--figure", str(tmp_path / "curves.png")]
    )  # fmt: skip
    assert "| default | best tuned scheduler |" in capsys.readouterr().out
    assert (tmp_path / "curves.png").stat().st_size > 1000
    publish_agent.main(
        [str(run), "ppo_tiny", "--figures", str(figures), "--as", str(run), "--limits", "None known.",
         "--models", str(tmp_path)]
    )  # fmt: skip
    assert load_model(tmp_path / "ppo_tiny.npz").header.metadata["name"] == "ppo_tiny"
    card = (tmp_path / "ppo_tiny.md").read_text()
    for heading in ("# ppo_tiny", "## Trained on", "## Figures", "## Limits", "- None known."):
        assert heading in card
    assert "| default: exact, 50 | e2e_latency_mean |" in card
    figures_of(figures, str(run), "fcfs", (2.0, 4.0))
    publish_agent.main(
        ["--renew", "ppo_tiny", "--figures", str(figures), "--as", str(run), "--models", str(tmp_path)]
    )
    renewed = (tmp_path / "ppo_tiny.md").read_text()
    changed = [a for a, b in zip(renewed.splitlines(), card.splitlines(), strict=True) if a != b]
    assert changed == ["| latency: unknown | e2e_latency_mean | 3 | `fcfs` | 3 |"]


def test_publish_evolved_weights(tmp_path):
    evolve(make_training({**TINY, "generations": 2}), tmp_path / "run")
    figures_of(tmp_path / "figures.json", "run", "mc_sf:protection=0.1", (1.0, 1.0), other=(1.0, 1.4))
    publish_agent.main(
        [str(tmp_path / "run"), "tiny_margin", "--figures", str(tmp_path / "figures.json"), "--as", "run",
         "--limits", "None known.", "--models", str(tmp_path)]
    )  # fmt: skip
    assert load_model(tmp_path / "tiny_margin.json").metadata["name"] == "tiny_margin"
    card = (tmp_path / "tiny_margin.md").read_text()
    for text in (
        "# tiny_margin",
        "weights of `mc_sf`",
        "| latency: unknown | e2e_latency_mean | 1 | `mc_sf:protection=0.1` | 1.2 |",
    ):
        assert text in card
    with pytest.raises(SystemExit, match="no figures of other"):
        publish_agent.main(
            [str(tmp_path / "run"), "x", "--figures", str(tmp_path / "figures.json"), "--as", "other", "--limits", "-",
             "--models", str(tmp_path)]
        )  # fmt: skip


def test_compare_and_publish_a_router(tmp_path, capsys):
    family = {**TINY["services"]["families"][0], "workers": 2}
    config = {
        **TINY, "router": "weighted", "policy": "fcfs", "fixed": {}, "weights": ["work", "pace"], "generations": 2,
        "services": {"families": [family]}, "reference": ["join_shortest_queue"],
    }  # fmt: skip
    evolve(make_training(config), tmp_path / "run")
    figures = tmp_path / "figures.json"
    compare_routers.main(
        [str(tmp_path / "run"), "--policy", "fcfs", "--others", "weighted:pace=2.0", "round_robin", "--loads", "0.5",
         "--seeds", "2", "--num-requests", "20", "--json", str(figures)]
    )  # fmt: skip
    text = capsys.readouterr().out
    assert "better than `weighted:pace=2.0`" in text
    assert text.count("load 0.5") == len(compare_routers.CLUSTERS) * len(compare_routers.PREDICTIONS)
    parts = json.loads(figures.read_text())
    assert set(parts[0]["values"]) == {str(tmp_path / "run"), "weighted:pace=2.0", "round_robin"}
    publish_agent.main(
        [str(tmp_path / "run"), "tiny_router", "--figures", str(figures), "--as", str(tmp_path / "run"),
         "--limits", "None known.", "--models", str(tmp_path)]
    )  # fmt: skip
    card = (tmp_path / "tiny_router.md").read_text()
    assert "weights of `weighted`" in card
    assert "--policies fcfs --router tiny_router" in card
    assert "under `fcfs`" in card
    assert card.count("| e2e_latency_mean |") == len(parts)
