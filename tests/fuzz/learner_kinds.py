"""Kinds of input for learners: checkpoints, trusted files of Stable-Baselines3, and unusual settings."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from fuzz.kinds import Kind, raw, refuse, written
from fuzz.state_kinds import described, rebuilt
from helpers.training.tiny_training import TINY

DQN = {
    **TINY,
    "algorithm": "dqn",
    "hyperparameters": {"learning_starts": 4, "batch_size": 4, "train_freq": 2, "buffer_size": 40},
    "env": {**TINY["env"], "action": "admit_count"},
}
SETTINGS = {"ppo": TINY, "dqn": DQN}


def _fresh(settings: Any) -> Any:
    from kvgym.agents.runs.config import make_training
    from kvgym.agents.sb3.algorithms import make_environments, make_model, wrap

    config = make_training(settings)
    return make_model(config, wrap(config, make_environments(config, 0)))


@functools.cache
def learner(name: str) -> tuple[Any, bytes]:
    """Return a slightly trained learner, and the bytes of its checkpoint."""
    from kvgym.agents.sb3.learner_state import save_learner

    model = _fresh(SETTINGS[name])
    model.learn(24)
    with tempfile.TemporaryDirectory() as folder:
        save_learner(model, Path(folder) / "model.pt")
        return model, (Path(folder) / "model.pt").read_bytes()


def _content(data: bytes) -> Any:
    """Return the content of a checkpoint, tensors as arrays."""
    import torch

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().numpy()
        if isinstance(value, dict):
            return {k if isinstance(k, str) else f"#{k}": plain(x) for k, x in value.items()}
        return [plain(x) for x in value] if isinstance(value, list | tuple) else value

    return plain(torch.load(io.BytesIO(data), weights_only=True))


def _tensors(value: Any) -> Any:
    """Return a checkpoint's content with arrays as tensors, and integer keys restored."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        value = value.astype(np.float64) if value.dtype == np.longdouble else value
        value = value.astype(value.dtype.newbyteorder("="))  # the only byte order of PyTorch
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, dict):
        return {
            int(k[1:]) if k.startswith("#") and k[1:].isdecimal() else k: _tensors(x)
            for k, x in value.items()
        }
    return [_tensors(x) for x in value] if isinstance(value, list) else value


def learner_seeds() -> list[Any]:
    found: list[Any] = []
    for name in SETTINGS:
        data = learner(name)[1]
        tree = json.loads(json.dumps(described(_content(data))))
        found += [{"learner": name, "content": tree}] * 3 + [{"learner": name, "data": raw(data)}]
    return found


def play_learner(content: Any, folder: Path) -> None:
    """Continue from a checkpoint."""
    import torch

    from kvgym.agents.sb3.learner_state import load_learner

    content = content if isinstance(content, dict) else {}
    name = str(content.get("learner"))
    model, good = learner(name if name in SETTINGS else "ppo")
    data = content.get("data")
    if not isinstance(data, bytes):
        buffer = io.BytesIO()
        torch.save(_tensors(rebuilt(content.get("content"), _content(good))), buffer)
        data = buffer.getvalue()
    try:
        load_learner(model, written(folder, "model.pt", data))
        model.learn(16, reset_num_timesteps=False)
        weights = model.policy.state_dict().values()
        refuse(not all(bool(x.isfinite().all()) for x in weights), "weights that are not finite")
    finally:
        load_learner(model, written(folder, "good.pt", good))


LEARNER = Kind("learner", learner_seeds, play_learner, weight=0.3, quick=False)


@functools.cache
def zip_members() -> dict[str, bytes]:
    """Return the members of a ``model.zip``."""
    buffer = io.BytesIO()
    learner("ppo")[0].save(buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def zip_seeds() -> list[Any]:
    arguments = {**TINY["env"]}
    members = {name: raw(data) for name, data in zip_members().items()}
    plain = {**members, "data": json.loads(zip_members()["data"])}
    return [{"members": members, "arguments": arguments}, {"members": plain, "arguments": arguments}]


def play_zip(content: Any, folder: Path) -> None:
    """Load a trusted file of Stable-Baselines3 and predict once."""
    import numpy as np

    from kvgym.agents.library import load_agent

    content = content if isinstance(content, dict) else {}
    members, arguments = content.get("members"), content.get("arguments")
    path = folder / "agent.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members if isinstance(members, dict) else {}).items():
            with contextlib.suppress(ValueError):
                plain = data if isinstance(data, bytes) else json.dumps(data).encode()
                archive.writestr(str(name).replace("\x00", "")[:100] or "x", plain)
    given = {str(k): v for k, v in arguments.items()} if isinstance(arguments, dict) else {}
    given.pop("name", None)
    given.pop("trusted", None)
    policy: Any = load_agent(path, trusted=True, **given)
    size = policy.model.observation_space.shape[0]
    action, _ = policy.model.predict(np.zeros(size, np.float32), deterministic=True)
    refuse(not np.isfinite(np.asarray(action, float)).all(), "actions that are not finite")


ZIP = Kind("zip", zip_seeds, play_zip, weight=0.2, quick=False)


def learning_seeds() -> list[Any]:
    a2c = {"algorithm": "a2c", "hyperparameters": {"n_steps": 4, "learning_rate": "lin_1e-3", "gamma": 0.99}}
    return [
        TINY,
        DQN,
        {**TINY, **a2c},
        {**TINY, "network": {"kind": "slots", "row_dim": 4, "context_dim": 4}},
    ]


def play_learning(content: Any, folder: Path) -> None:
    """Train briefly with unusual settings: they are rejected, or training works."""
    from kvgym.agents.runs.config import load_training
    from kvgym.agents.sb3.config import TrainConfig

    path = written(folder, "training.yaml", content)
    config = load_training(path)
    if not isinstance(config, TrainConfig):
        return
    model = _fresh(config.model_dump(mode="json"))
    steps = config.num_envs * getattr(model, "n_steps", 1) * getattr(model, "n_epochs", 1)
    steps += getattr(getattr(model, "train_freq", None), "frequency", 1)
    work = steps + getattr(model, "gradient_steps", 1) + sum(config.network.hidden)
    if work < 2000:  # more would only take long
        model.learn(min(config.total_steps, 16))


LEARNING = Kind("learning", learning_seeds, play_learning, weight=0.3, quick=False)
