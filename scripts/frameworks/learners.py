"""What learners reach with default settings, and with a few other ones: the table of docs/frameworks.md.

A2C, DQN and PPO of Stable-Baselines3, and CleanRL's own ``ppo.py``, unchanged, from a checkout of CleanRL (``pip
install tyro tensorboard``). Each training adds lines to a file, from which the table is made::

    for s in 0 1 2; do python scripts/frameworks/learners.py --seed $s --cleanrl ../cleanrl/cleanrl; done
    python scripts/frameworks/learners.py --ids kvgym/Priority-v0 --learners PPO --steps 2048       quick
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO

from kvgym.agents import make_sb3_env
from kvgym.agents.sb3.networks import policy_for
from kvgym.envs import SCHEDULING_IDS, EnvConfig, play
from kvgym.studies.benchmark.tasks import SUITE, scenario_file

FIRST_TEST = 3_000_000

Act = Callable[[Any, Any], Any]
"""An answer to an observation and a mask."""


@dataclass(frozen=True)
class Task:
    """An environment, and what its learners are compared with.

    Attributes:
        rule: the best plain rule, a policy or a router.
        constants: answers to every observation, in every number of a Box; the best one is shown.
        arguments: of the environment.
        changes: arguments that help a learner.
        reference: its rewards are subtracted from those of a learner with changes; "" = no such learner.
    """

    rule: str
    constants: tuple[float, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""


SHORT = {"queue_window": 16, "active_window": 16, "queue_order": "predicted", "epochs": "decision"}

TASKS = {
    "kvgym/AdmitCount-v0": Task("ranked", (1, 2, 4), changes={**SHORT, "must_admit": True}, reference="fcfs"),
    "kvgym/Route-v0": Task(
        "weighted", (0, 1, 2, 3), {"scenario": str(scenario_file(SUITE, "routing-unequal")), "policy": "vllm_v1"}
    ),
    "kvgym/Priority-v0": Task(
        "ranked", (-0.5, 0, 0.5), reference="ranked",
        changes={"answer": "optional_length", "information": ["predicted_length"]},
    ),
    "kvgym/Rank-v0": Task("ranked", (-0.5, 0, 0.5), reference="ranked"),
}  # fmt: skip

LEARNERS = ("A2C", "DQN", "PPO", "CleanRL", "changed")


def registered(env_id: str) -> str:
    """Return the id, or another one for the same environment with the task's arguments."""
    arguments = TASKS[env_id].arguments
    if not arguments:
        return env_id
    spec, name = gym.spec(env_id), env_id.replace("kvgym", "learners")
    if name not in gym.registry:
        entry, limit = spec.entry_point, spec.max_episode_steps
        gym.register(name, entry, max_episode_steps=limit, kwargs={**spec.kwargs, **arguments})
    return name


def episode(env: gym.Env[Any, Any], act: Act, seed: int) -> tuple[float, bool]:
    """Play the requests of a seed; return the return, and whether all were served."""
    observation, info = env.reset(seed=seed, options={"workload_seed": seed})
    total, over = 0.0, False
    while not over:
        observation, reward, ended, cut, info = env.step(act(observation, info.get("action_mask")))
        total, over = total + float(reward), ended or cut
    return total, bool(info["completed"])


Results = list[tuple[float, bool]]


def constant(env: gym.Env[Any, Any], value: float) -> Act:
    """Return what gives one answer."""
    space = env.action_space
    answer = np.full(space.shape, value, space.dtype) if isinstance(space, spaces.Box) else int(value)
    return lambda observation, mask: answer


def plain(env_id: str, seeds: Sequence[int]) -> dict[str, Results]:
    """Return what players reach that learn nothing."""
    task, env = TASKS[env_id], gym.make(registered(env_id))
    constants = [[episode(env, constant(env, value), seed) for seed in seeds] for value in task.constants]
    env.action_space.seed(0)
    drawn = [episode(env, lambda o, mask: env.action_space.sample(mask=mask), seed) for seed in seeds]
    if env_id == "kvgym/Route-v0":
        rule = [episode(env, env.unwrapped.player(task.rule, seed), seed) for seed in seeds]  # type: ignore[attr-defined]
    else:
        rule = [(play(env, task.rule, workload_seed=seed, within_actions=False)[1], True) for seed in seeds]
    best = max(
        constants, key=lambda found: (sum(done for _, done in found), sum(value for value, _ in found))
    )
    return {"constant": best, "random": drawn, "rule": rule}


class CleanRL:
    """An agent that CleanRL's ``ppo.py`` has trained, as Stable-Baselines3's models act.

    Args:
        script: the script, which runs as it is.
        env_id: its environment.
        steps: environment steps.
        seed: of the training.
    """

    def __init__(self, script: Path, env_id: str, steps: int, seed: int) -> None:
        before, path = sys.argv, str(script.resolve())
        sys.argv = [path, "--env-id", env_id, "--total-timesteps", str(steps), "--seed", str(seed)]
        try:
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.chdir(folder),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                self.agent = runpy.run_path(path, run_name="__main__")["agent"]
        finally:
            sys.argv = before

    @torch.no_grad()
    def predict(self, observation: Any, deterministic: bool = True) -> tuple[int, None]:
        """Return the most probable answer, or draw one."""
        x = torch.as_tensor(observation, dtype=torch.float32)[None]
        logits = self.agent.actor(x)
        answer = logits.argmax(1) if deterministic else self.agent.get_action_and_value(x)[0]
        return int(answer[0]), None


def changed(env_id: str, steps: int, seed: int) -> Any:
    """Train PPO from where a rule stands: rewards relative to one, no discount, sixteen environments, masks."""
    task, action = TASKS[env_id], SCHEDULING_IDS[env_id]
    masked = action == "admit_count"
    config = EnvConfig.of(action=action, **task.changes)
    policy, arguments = policy_for("mlp", "maskable_ppo" if masked else "ppo", config)
    envs = make_sb3_env(action, 16, seed=seed, reward_reference=task.reference, **task.changes)
    made: Any = (MaskablePPO if masked else stable_baselines3.PPO)(
        policy, envs, policy_kwargs=arguments, seed=seed, device="cpu", n_steps=128, batch_size=512, gamma=1.0,
        gae_lambda=0.98,
    )  # fmt: skip
    return made.learn(steps)


def trained(learner: str, env_id: str, steps: int, seed: int, cleanrl: Path | None) -> Any:
    """Return a trained model; None if the learner does not apply."""
    name = registered(env_id)
    discrete = isinstance(gym.make(name).action_space, spaces.Discrete)
    if learner == "changed":
        return changed(env_id, steps, seed) if TASKS[env_id].reference else None
    if learner == "CleanRL":
        return CleanRL(cleanrl / "ppo.py", name, steps, seed) if cleanrl and discrete else None
    if learner == "DQN" and not discrete:
        return None
    memory = (
        {"buffer_size": steps} if learner == "DQN" else {}
    )  # the default would reserve 25 GiB, and not fill it
    made = getattr(stable_baselines3, learner)("MlpPolicy", name, seed=seed, device="cpu", **memory)
    return made.learn(steps)


def reached(learner: str, env_id: str, model: Any, seeds: Sequence[int], best: bool) -> Results:
    """Return what a trained model reaches with its most probable answers, or with drawn ones."""
    changes = TASKS[env_id].changes if learner == "changed" else {}
    env: Any = gym.make(registered(env_id), **changes)
    masked = isinstance(model, MaskablePPO)

    def act(observation: Any, mask: Any) -> Any:
        masks = {"action_masks": env.unwrapped.action_masks()} if masked else {}
        return model.predict(observation, deterministic=best, **masks)[0]

    return [episode(env, act, seed) for seed in seeds]


def cell(found: list[dict[str, Any]]) -> str:
    """Return the mean, its deviation over trainings, and the share of episodes that ended if not all did."""
    if not found:
        return "–"
    means = [np.mean([value for value, _ in each["results"]]) for each in found]
    served = np.mean([done for each in found for _, done in each["results"]])
    spread = f" ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
    return f"{np.mean(means):.1f}{spread}" + ("" if served == 1 else f", {1 - served:.0%} stall")


def table(lines: list[dict[str, Any]]) -> str:
    """Return the table of what the lines of the file say."""
    headings = ("id", "answers", "constant", "random", "best rule", *LEARNERS)
    rows: list[Sequence[str]] = [headings, ["---"] * len(headings)]
    for env_id in TASKS:
        for how in ("most probable", "drawn"):
            own = [each for each in lines if each["id"] == env_id and each["how"] in ("", how)]
            players = ("constant", "random", "rule", *LEARNERS)
            cells = [cell([each for each in own if each["player"] == player]) for player in players]
            if own:
                rows.append([f"`{env_id.removeprefix('kvgym/')}`", how, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cleanrl", type=Path, help="folder with CleanRL's ppo.py (default: without)")
    parser.add_argument("--ids", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--learners", nargs="*", default=list(LEARNERS), choices=LEARNERS)
    parser.add_argument("--steps", type=int, default=30_720)
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--test-seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/learners.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tests = range(FIRST_TEST, FIRST_TEST + options.test_seeds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a", encoding="utf-8") as file:

        def write(env_id: str, player: str, how: str, results: Results) -> None:
            line = {"id": env_id, "player": player, "how": how, "seed": options.seed, "results": results}
            print(json.dumps(line), file=file, flush=True)

        for env_id in options.ids:
            for player, results in plain(env_id, tests).items() if options.seed == 0 else ():
                write(env_id, player, "", results)
            for learner in options.learners:
                model = trained(learner, env_id, options.steps, options.seed, options.cleanrl)
                for how in ("most probable", "drawn") if model is not None else ():
                    write(env_id, learner, how, reached(learner, env_id, model, tests, how != "drawn"))
    print(table([json.loads(line) for line in options.out.read_text("utf-8").splitlines()]))
    print(f"{time.process_time() / 60:.1f} CPU minutes")


if __name__ == "__main__":
    main()
