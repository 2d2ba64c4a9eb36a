"""Checkpoints have the whole state of a learner and run no code."""

import os

import numpy as np
import pytest
import torch

from helpers.amount import some
from helpers.training.tiny_training import TINY
from kvgym.agents import resume, train
from kvgym.agents.runs.checkpoints import latest_checkpoint
from kvgym.agents.runs.config import make_training
from kvgym.agents.sb3.algorithms import make_environments, make_model, wrap
from kvgym.agents.sb3.learner_state import load_learner, save_learner
from kvgym.errors import ConfigError

DQN = {"learning_starts": 4, "batch_size": 4, "train_freq": 2, "buffer_size": 40}


def fresh(config):
    return make_model(config, wrap(config, make_environments(config, 0)))


def test_weights_counters_and_scales_are_restored(tmp_path):
    config = make_training(TINY)
    model, again, other = fresh(config), fresh(config), fresh(config)
    model.learn(64)
    save_learner(model, tmp_path / "model.pt")
    load_learner(again, tmp_path / "model.pt")
    assert again.num_timesteps == model.num_timesteps == 64
    assert again._n_updates == model._n_updates > 0
    mine, theirs = (learner.get_vec_normalize_env().ret_rms for learner in (again, model))
    assert (mine.mean, mine.var, mine.count) == (theirs.mean, theirs.var, theirs.count)
    assert mine.count > other.get_vec_normalize_env().ret_rms.count
    assert again.policy.optimizer.state_dict()["state"]
    for name, weights in model.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[name], weights)


def test_replay_buffers_are_restored(tmp_path):
    settings = {"algorithm": "dqn", "hyperparameters": DQN, "env": {**TINY["env"], "action": "admit_count"}}
    config = make_training({**TINY, **settings})
    model, again = fresh(config), fresh(config)
    model.learn(24)
    save_learner(model, tmp_path / "model.pt")
    load_learner(again, tmp_path / "model.pt")
    assert again.exploration_rate == model.exploration_rate < 1
    assert again.replay_buffer.pos == model.replay_buffer.pos > 0
    for name in ("actions", "rewards", "dones"):
        assert np.array_equal(getattr(again.replay_buffer, name), getattr(model.replay_buffer, name))
    smaller = fresh(make_training({**TINY, **settings, "hyperparameters": {**DQN, "buffer_size": 20}}))
    with pytest.raises(ConfigError, match="expected"):
        load_learner(smaller, tmp_path / "model.pt")


def damage(part):
    """Change what a checkpoint says of its optimiser."""

    def changed(optimiser):
        if part in ("step", "exp_avg_sq"):
            optimiser["state"][0][part] = optimiser["state"][0][part] * 0 - 1
        else:
            name, value = part
            optimiser["param_groups"][0][name] = value

    return changed


@pytest.mark.parametrize(
    "part",
    some(
        ["exp_avg_sq", "step", ("betas", (1.0, 0.999)), ("lr", -1.0), ("eps", 0.0), ("weight_decay", 1e9)], 3
    ),
    ids=lambda part: part if isinstance(part, str) else part[0],
)
def test_a_damaged_optimiser_is_an_error(tmp_path, part):
    config = make_training(TINY)
    model = fresh(config)
    model.learn(64)
    save_learner(model, tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    damage(part)(content["parameters"]["policy.optimizer"])
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match="optimiser"):
        load_learner(fresh(config), tmp_path / "model.pt")


class Evil:
    """Leaves a folder behind where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_checkpoint_runs_code(tmp_path):
    train(make_training(TINY), tmp_path / "run")
    checkpoint, _ = latest_checkpoint(tmp_path / "run" / "checkpoints")
    torch.save({"parameters": Evil(tmp_path / "evil")}, checkpoint / "model.pt")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        resume(tmp_path / "run")
    assert not (tmp_path / "evil").exists()
