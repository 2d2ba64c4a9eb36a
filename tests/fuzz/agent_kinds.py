"""Kinds of input: trained agents and folders of training runs."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.file_kinds import SMALL
from fuzz.kinds import Kind, raw, refuse, written

ENV = {"workload": SMALL["workload"], "kv_capacity": 400, "queue_window": 2, "active_window": 2}


def network_seeds() -> list[Any]:
    from kvgym.agents.trained.header import Header
    from kvgym.agents.trained.numpy_model import FORMAT, VERSION
    from kvgym.envs.scheduling.config import EnvConfig
    from kvgym.envs.scheduling.observations import active_features, observation_size, queue_features

    config = EnvConfig.of(action="admit_count", **ENV)
    queue, active = queue_features(config), active_features(config)
    rows = 2 * len(queue) + 2 * len(active)
    header = Header(
        network="mlp", action="admit_count", algorithm="ppo", choices=(3,), hidden=(4,),
        num_fixed=observation_size(config) - rows, queue_window=2, queue_features=len(queue), active_window=2,
        active_features=len(active), env_arguments=config.model_dump(mode="json"),
    )  # fmt: skip
    content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(header)}
    arrays = {name: list(shape) for name, shape in header.shapes().items()}
    tree = {"header": json.loads(json.dumps(content)), "arrays": arrays}
    return [tree, tree, raw(archive(tree))]


def archive(tree: Any) -> bytes:
    """Return the file of a network with constant weights; ``arrays`` holds their shapes."""
    tree = tree if isinstance(tree, dict) else {}
    shapes = tree.get("arrays")
    arrays: dict[str, Any] = {}
    for name, shape in (shapes if isinstance(shapes, dict) else {}).items():
        fine = (
            isinstance(shape, list) and len(shape) < 4 and all(type(n) is int and 0 <= n < 300 for n in shape)
        )
        arrays[str(name)] = np.full(shape if fine else (2,), 0.1, np.float32)
        if not fine:  # a header without the data that it announces
            arrays[str(name)] = b"\x93NUMPY\x01\x00" + _announced(shape)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in {"header": np.array(json.dumps(tree.get("header"))), **arrays}.items():
            part = io.BytesIO()
            if isinstance(value, bytes):
                part.write(value)
            else:
                np.save(part, value)
            if name and "\x00" not in name:
                file.writestr(f"{name[:200]}.npy", part.getvalue())
    return buffer.getvalue()


def _announced(shape: Any) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}\n".encode("utf-8", "replace")[
        :60000
    ]
    return len(text).to_bytes(2, "little") + text


def play_network(content: Any, folder: Path) -> None:
    from kvgym.agents.library import load_agent

    path = written(folder, "agent.npz", content if isinstance(content, bytes) else archive(content))
    policy: Any = load_agent(path)
    model = policy.model
    for legal in (None, np.ones(sum(model.header.choices) or 1, bool)):
        if legal is not None and model.header.outputs.real:
            continue
        action, _ = model.predict(np.zeros(model.header.observation_size, np.float32), action_masks=legal)
        refuse(not np.isfinite(np.asarray(action, float)).all(), "actions that are not finite")


NETWORK = Kind("network", network_seeds, play_network, weight=2)


def evolved_seeds() -> list[Any]:
    from importlib import resources

    folder = resources.files("kvgym.agents").joinpath("models")
    texts = [folder.joinpath(name).read_text("utf-8") for name in ("routing.json", "ranked_slo.json")]
    return [*map(json.loads, texts), raw(texts[0])]


def play_evolved(content: Any, folder: Path) -> None:
    from kvgym.agents.library import load_agent

    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    made: Any = load_agent(written(folder, "agent.json", data))
    for name, value in made.hyperparameters().items():
        refuse(_not_finite(value), f"a weight that is not finite: {name}")


def _not_finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_not_finite, value))
    return isinstance(value, float) and math.isnan(value)


EVOLVED = Kind("evolved", evolved_seeds, play_evolved)


def run_seeds() -> list[Any]:
    row = {
        "steps": 0,
        "return": -1.5,
        "e2e_latency_mean": 2.5,
        "ttft_mean": 1.0,
        "ttft_p99": 1.0,
        "tbt_p99": 1.0,
    }
    evolved = {
        "generation": 0,
        "cpu_seconds": 1.5,
        "held_out": 0.9,
        "best": 0.9,
        "improvement_ttft_mean": 3.0,
    }
    rows = [[*row], [str(value) for value in row.values()], ["1000", "-1", "2", "1", "1", "1"]]
    state = {
        "steps": 1000,
        "best": 2.5,
        "best_step": 0,
        "best_score": -2.5,
        "rows": [row],
        "baselines": {"fcfs": row},
    }
    config = {"name": "small", "algorithm": "maskable_ppo", "env": ENV, "num_envs": 2}
    run = {"seed": 0, "command": "kvgym train", "libraries": {"torch": "2.3"}, "resumed": []}
    of_evolution = {"name": "small", "algorithm": "openai_es", "policy": "ranked"}
    tree = {"config": config, "run": run, "curve": rows, "state": state}
    curve = [[*evolved], [str(value) for value in evolved.values()]]
    texts = {name: raw(json.dumps(value)) for name, value in (("run", run), ("state", state))}
    return [
        tree,
        {**tree, "config": of_evolution, "curve": curve},
        {**tree, **texts, "curve": raw(as_csv(rows))},
    ]


def as_csv(rows: Any) -> str:
    """Return rows as CSV; anything else becomes one line."""
    lines = rows if isinstance(rows, list) else [rows]
    return (
        "\n".join(",".join(map(str, line)) if isinstance(line, list) else str(line) for line in lines) + "\n"
    )


def play_run(content: Any, folder: Path) -> None:
    """Read a folder's learning curve, and all that a resume reads before it trains."""
    from kvgym.agents.curves import read_curve
    from kvgym.agents.runs.checkpoints import latest_checkpoint, read_part
    from kvgym.agents.runs.folder import note_resume

    content = content if isinstance(content, dict) else {"config": content}
    step = folder / "checkpoints" / "step-000000001000"
    step.mkdir(parents=True, exist_ok=True)
    written(folder, "config.yaml", content.get("config"))
    for place, name, value in ((folder, "run", content.get("run")), (step, "state", content.get("state"))):
        written(place, f"{name}.json", value if isinstance(value, bytes) else json.dumps(value).encode())
    curve = content.get("curve")
    written(
        folder, "curve.csv", curve if isinstance(curve, bytes) else as_csv(curve).encode("utf-8", "replace")
    )
    note_resume(folder, {"steps": 1})
    refuse(
        not isinstance(json.loads((folder / "run.json").read_text("utf-8"))["resumed"], list),
        "resumes that are no list",
    )
    latest_checkpoint(folder / "checkpoints")
    read_part(step, "state.json")
    read_curve(folder)


RUN = Kind("run", run_seeds, play_run, weight=2)
