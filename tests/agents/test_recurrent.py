"""Agents with an LSTM: exports act like PyTorch, and the state lasts for an episode."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import kvgym
from kvgym.agents import load_training, train
from kvgym.agents.sb3.export import export
from kvgym.agents.sb3.networks import policy_for
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError

SMALL = {"scenario": "hidden-kinds", "num_requests": 8, "scheduler": "mc_sf"}
TINY = [
    "num_envs=2", "total_steps=32", "network.hidden=[4]", "env.scheduler=mc_sf", "env.num_requests=8",
    "evaluation.interval=16", "evaluation.seeds=2", "evaluation.baselines=[]",
    "hyperparameters.n_steps=8", "hyperparameters.batch_size=8",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def arguments_of(action: str) -> dict[str, Any]:
    return {"action": action, **SMALL} if action == "priority" else {"action": action, "num_requests": 8}


class Unplayed(gym.Env[Any, Any]):
    """The spaces of an environment, for a model that does not learn."""

    def __init__(self, config: EnvConfig) -> None:
        self.observation_space, self.action_space = spaces.observation_space(config), config.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}


def model_of(action: str, *, normalised: bool = False, **more: Any) -> RecurrentPPO:
    """Return a model with weights large enough for varied actions."""
    config = EnvConfig.of(**arguments_of(action))
    policy, policy_kwargs = policy_for("mlp", "recurrent_ppo", config, hidden=[12, 10], lstm=7)
    envs: Any = DummyVecEnv([lambda: Unplayed(config)])
    if normalised:
        envs = VecNormalize(envs, clip_obs=1e6)
        envs.obs_rms.mean[:], envs.obs_rms.var[:] = 0.3, 0.5
    arguments = {**policy_kwargs, **more}
    model = RecurrentPPO(policy, envs, policy_kwargs=arguments, n_steps=8, seed=0, device="cpu")
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.normal_(0.0, 0.4)
    return model


@pytest.mark.parametrize(
    ("action", "normalised"), [("knobs", False), ("priority", False), ("priority", True)]
)
def test_actions_and_states_are_those_of_torch(action: str, normalised: bool, tmp_path: Path) -> None:
    """Over several steps, in which some environments begin new episodes; from a file as well."""
    model = model_of(action, normalised=normalised)
    export(model, arguments_of(action)).save(tmp_path / "agent.npz")
    ours = kvgym.load_agent(tmp_path / "agent.npz").model
    envs, rng = model.get_vec_normalize_env(), np.random.default_rng(0)
    state = theirs = starts = None
    for _ in range(6):
        x = rng.uniform(-1, 1, (4, *model.observation_space.shape)).astype(np.float32)
        expected, theirs = model.predict(
            x if envs is None else envs.normalize_obs(x), theirs, starts, deterministic=True
        )
        found, state = ours.predict(x, state, starts)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        np.testing.assert_allclose(state, theirs, atol=1e-5)
        starts = rng.random(4) < 0.3
    alone, after = ours.predict(x[0])
    np.testing.assert_allclose(alone, ours.predict(x)[0][0], atol=1e-5)
    assert after[0].shape == (1, 1, 7)
    with pytest.raises(ConfigError, match=r"state must be two arrays of shape \(1, 4, 7\)"):
        ours.predict(x, after)


def test_the_agent_acts_as_evaluated(tmp_path: Path) -> None:
    """The command is the page's, with smaller numbers."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "train_priority.md").read_text("utf-8")
    page = page.replace("\\\n", " ")
    (command,) = re.findall(r"^kvgym train (.*recurrent_ppo.*) --out", page, re.MULTILINE)
    name, *changes = shlex.split(command)
    config = load_training(name, [*changes, *TINY])
    whole = train(config, tmp_path / "whole")
    assert np.load(tmp_path / "whole" / "final.npz")["lstm.state.weight"].shape == (64, 16)
    scenario, evaluation = config.evaluation_config().make_scenario(), config.evaluation
    workload, system = scenario.make_workload(), scenario.make_system()
    arguments = config.evaluation_config().model_dump()
    shutil.copy(tmp_path / "whole" / "model.zip", tmp_path / "copy.zip")
    agents = [
        kvgym.load_agent(tmp_path / "whole" / "final.npz"),
        kvgym.load_agent(tmp_path / "copy.zip", trusted=True, **arguments),
    ]
    assert type(agents[1].model) is RecurrentPPO
    for agent in agents:
        played = [
            kvgym.compute_metrics(kvgym.simulate(system, workload.sample(seed), agent))["e2e_latency_mean"]
            for seed in evaluation.workload_seeds
        ]
        assert np.mean(played) == pytest.approx(whole.curve[-1]["e2e_latency_mean"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["network.kind=slots"], "has an LSTM before an mlp; set network.kind=mlp"),
        (["warm_start.policy=fcfs"], "recurrent_ppo has no warm_start"),
        (["network.lstm=0"], "network.lstm"),
    ],
)
def test_wrong_configurations(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_training("hidden_kinds_ppo", ["algorithm=recurrent_ppo", *changes])


def test_two_layers_cannot_be_exported() -> None:
    with pytest.raises(ConfigError, match="expected one layer with biases"):
        export(model_of("knobs", n_lstm_layers=2), arguments_of("knobs"))
    with pytest.raises(ConfigError, match="LSTM before an mlp"):
        policy_for("slots", "recurrent_ppo", EnvConfig.of(action="knobs"))
