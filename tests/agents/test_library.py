"""Trained agents by name, file or run folder: in comparisons, and without PyTorch."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

import kvgym
from helpers.training.tiny_training import TINY
from kvgym.agents import train
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import agent_names, is_router, load_agent, load_model, model_card
from kvgym.agents.runs.config import make_training
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.errors import ConfigError, KVGymError, UnknownNameError
from kvgym.experiments.scenario import load_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(make_training(TINY), folder)
    return folder


def test_one_agent_in_many_forms(run):
    scenario = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 30})
    specs = [str(run), str(run / "best.npz"), str(run / "final.npz"), str(run / "model.zip")]
    comparison = kvgym.compare(scenario, ["fcfs", *specs], seeds=2)
    values = [comparison.values(p, "e2e_latency_mean") for p in comparison.policies]
    assert not comparison.errors()
    assert comparison.policies == (
        "fcfs",
        str(run),
        str(run / "best"),
        str(run / "final"),
        str(run / "model"),
    )
    assert np.array_equal(values[1], values[2])
    assert np.array_equal(values[3], values[4])


def test_an_agent_that_draws_its_actions(run):
    agent = load_agent(f"{run}:deterministic=false")
    assert not agent.deterministic
    assert agent.info.name == str(run)
    assert agent.hyperparameters() == {"deterministic": False}
    assert load_agent(f"{run / 'best.npz'}:deterministic=True").deterministic
    assert not is_router(f"{run}:deterministic=false")
    with pytest.raises(ConfigError, match="an evolved policy draws no actions"):
        load_agent("ranked_chat:deterministic=false")


def test_a_registered_name_takes_precedence_over_an_agent(tmp_path, monkeypatch):
    folder = tmp_path / "ranked"
    folder.mkdir()
    (folder / "config.yaml").write_text("policy: ranked")
    EvolvedModel("ranked", {}, {"waiting": 3.0}).save(folder / "best.json")
    monkeypatch.chdir(tmp_path)
    assert kvgym.make_policy("ranked").hyperparameters() == {}
    assert kvgym.make_policy("ranked", waiting=2.0).hyperparameters() == {"waiting": 2.0}
    assert load_agent("ranked").hyperparameters() == {"waiting": 3.0}
    assert kvgym.make_policy("./ranked").hyperparameters() == {"waiting": 3.0}


def test_labels_and_specs_that_look_like_paths(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "run.5")
    assert load_agent(tmp_path / "run.5").info.name.endswith("run.5")
    (tmp_path / "config.yaml").write_text("name: x")
    monkeypatch.chdir(tmp_path)
    for spec in ("", "mc_sf:" + "x" * 300):
        with pytest.raises(KVGymError, match="policy"):
            kvgym.make_policy(spec)


def test_a_stable_baselines_file_of_its_own(run, tmp_path):
    copy = tmp_path / "model.zip"
    copy.write_bytes((run / "model.zip").read_bytes())
    with pytest.raises(ConfigError, match="has no environment arguments"):
        load_agent(copy)
    with pytest.raises(ConfigError, match=r"can run any code; if it is your own, give trusted=True"):
        load_agent(copy, **TINY["env"])
    agent = load_agent(copy, trusted=True, **TINY["env"])
    table = kvgym.make_workload("lmsys", num_requests=10).sample(0)
    system = load_scenario("a100-llama2-70b").make_system()
    assert kvgym.simulate(system, table, agent).completed


@pytest.mark.parametrize("name", agent_names())
def test_every_card(name):
    card = model_card(name)
    assert card.startswith(f"# {name}\n")
    for heading in ("## Trained on", "## Figures", "## Limits"):
        assert heading in card


def shipped(kind):
    return pytest.mark.parametrize("name", [n for n in agent_names() if isinstance(load_model(n), kind)])


@shipped(NumpyModel)
def test_every_shipped_network(name):
    """Each has a scenario it was trained on, finishes there, and is not worse than first come first served."""
    model = load_model(name)
    training = make_training(model.header.metadata["training"])
    agent = load_agent(name)
    scenario = training.evaluation_config().model_copy(update={"load": (1.0, 1.0)}).make_scenario()
    comparison = kvgym.compare(scenario, [agent, "fcfs"], seeds=[5_000_000])
    assert not comparison.errors()
    assert comparison.improvement(name, "fcfs", training.evaluation.metric).value > 0
    assert len(model.header.env_arguments) > 3


@shipped(EvolvedModel)
def test_all_shipped_evolved_weights(name):
    """They finish in the middle of every family that they were trained on, on the whole better than a simple rule."""
    training = make_training(load_model(name).metadata["training"])
    gains = []
    for family in training.services.families:
        scenario = family.typical()
        if is_router(name):
            other = "round_robin"
            found = kvgym.compare(scenario, [training.policy], seeds=[5_000_000], routers=[name, other])
        else:
            other = "fcfs:protection=0.1"
            found = kvgym.compare(scenario, [name, other], seeds=[5_000_000])
        assert name not in found.errors()
        if other not in found.errors():
            gains.append(found.improvement(name, other, training.metric).value)
    assert np.mean(gains) > 0


def test_agents_load_without_pytorch(run):
    """Loading and running an agent, by name in make_policy too, imports neither PyTorch nor Stable-Baselines3."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['stable_baselines3'] = None\n"
        "import kvgym\n"
        f"c = kvgym.compare(policies=[{str(run)!r}], seeds=1)\n"
        "assert not c.errors(), c.errors()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_training_without_the_extra_names_it(tmp_path):
    code = (
        "import sys\n"
        "sys.modules['stable_baselines3'] = sys.modules['torch'] = None\n"
        f"sys.argv = ['kvgym', 'train', 'noisy', '--out', {str(tmp_path / 'run')!r}]\n"
        "from kvgym.cli.app import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install "kvgym[train]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_errors(run, tmp_path):
    with pytest.raises(UnknownNameError, match="unknown agent 'ppo_nosy'"):
        load_model("ppo_nosy")
    with pytest.raises(UnknownNameError):
        model_card("none")
    with pytest.raises(ConfigError, match="No such file"):
        load_agent(tmp_path / "none.npz")
    (tmp_path / "damaged.npz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"damaged\.npz"):
        kvgym.make_policy(str(tmp_path / "damaged.npz"))
    (tmp_path / "config.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match="no agent yet"):
        kvgym.make_policy(str(tmp_path))
    with pytest.raises(KVGymError, match="no such Stable-Baselines3 file"):
        load_agent(tmp_path / "none.zip", action="knobs")
    with pytest.raises(UnknownNameError, match="unknown policy 'mc_fs'"):
        kvgym.make_policy("mc_fs")
    with pytest.raises(UnknownNameError, match="unknown agent 'results/agnt'"):
        kvgym.make_policy("results/agnt")
