"""Time the environments: steps of every id, one at a time and 64 in a vector, states, pictures, and training.

Times are medians of process CPU time, measured in one process on one core. Actions are greedy admissions (as many as
fit), so that the worker is busy.

    python scripts/speed/envs.py                # about 3 minutes; needs kvgym[train] for the last part
    python scripts/speed/envs.py --smoke        # seconds: checks that it runs; its figures mean nothing
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from harness import AFFINE, command_line, write_json
from kvgym.envs import IDS, SCHEDULING_IDS
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scheduling.environment import ServingEnv
from stepping import (
    answering,
    cartpole,
    draw,
    microseconds,
    most_admissions,
    networks,
    play,
    play_vector,
    route,
    scale,
    state_costs,
)
from training import train_fps
from vectors import NARROW

PROFILE: dict[str, Any] = {"num_requests": 256}
TASK: dict[str, Any] = {**PROFILE, "batch_time": AFFINE}
Report = Callable[[str, Any], None]


def single(report: Report, steps: int, repeats: int) -> None:
    """Time one environment at a time."""
    for kind in SCHEDULING_IDS.values():
        ServingEnv(action=kind, **TASK).reset()  # compile
    report("CartPole-v1 raw step", microseconds(cartpole(steps), repeats))
    for name in SCHEDULING_IDS:
        report(f"{name} raw step", microseconds(play(gym.make(name, **TASK).unwrapped, steps), repeats))
    name = "kvgym/AdmitCount-v0"
    made = gym.make(name, **NARROW, **TASK)
    report(f"{name} gym.make step, narrow", microseconds(play(made, steps), repeats))
    calibrated = ServingEnv(action="admit_count", **NARROW, **PROFILE)
    report(f"{name} raw step, narrow, profile", microseconds(play(calibrated, steps), repeats))
    report("kvgym/Route-v0 raw step, 4 workers", microseconds(route(steps), repeats))
    hours = max(1, steps // 1000)
    report(
        "kvgym/Scale-v0 raw step, 6 workers, 150 requests",
        microseconds(scale(hours, alone=True), min(repeats, 3)),
    )
    report("kvgym/Scale-v0 episode of an hour", microseconds(scale(hours, alone=False), min(repeats, 3)))


def states(report: Report, steps: int, repeats: int) -> None:
    """Time saved states, in microseconds and relative to a raw step."""
    for name, env, steps_of in (
        ("kvgym/AdmitCount-v0", ServingEnv(**NARROW, **PROFILE), lambda env: play(env, 100)),
        ("kvgym/Route-v0, 4 workers", RoutingEnv(caches=False, **PROFILE), lambda env: route(100)),
        ("kvgym/Scale-v0", ScalingEnv(num_requests=18_000), lambda env: scale(1, alone=True)),
    ):
        step = microseconds(steps_of(env), repeats)
        for what, cost in state_costs(env, max(steps // 50, 1), repeats).items():
            report(f"{name} {what}, 256 requests", cost)
            report(f"{name} {what} / raw step", cost / step)


def vectors(report: Report, short: int, long: int, repeats: int) -> None:
    """Time small vector environments: ``short`` runs of steps alone, ``long`` ones with ends of episodes.

    ``vectors.py`` times large ones, with full queues as well, and compares checkouts.
    """
    sync = gym.make_vec("kvgym/AdmitCount-v0", num_envs=8, vectorization_mode="sync", **NARROW, **TASK)
    separate = play_vector(sync, short, restart=True, choose=most_admissions)
    report("kvgym/AdmitCount-v0, SyncVectorEnv of 8, steps alone", microseconds(separate, repeats))
    for name, kind in IDS.items():
        own = {"keep": {}, "route": {}, "scale": {"num_requests": 2000, "window": None}}
        envs = gym.make_vec(name, num_envs=64, **own.get(kind, TASK))
        alone = microseconds(play_vector(envs, short, restart=True), repeats)
        report(f"{name}, vector of 64, steps alone", alone)
        throughout = microseconds(play_vector(envs, long, restart=False), 1)
        report(f"{name}, vector of 64, ends of episodes included", throughout)


def decisions(report: Report, steps: int, repeats: int) -> None:
    """Time one decision per request: episodes of 200 requests under ranked_latency, ends and starts included."""
    name, task = "kvgym/Priority-v0", {"scenario": "hidden-kinds", "scheduler": "ranked_latency"}
    for count in (1, 64):
        env = gym.make(name, **task).unwrapped if count == 1 else gym.make_vec(name, num_envs=count, **task)
        for what, act in networks(env).items():
            step = microseconds(answering(env, act, steps if count == 1 else -(-steps // 16)), repeats)
            label = f"{name}, {'one environment' if count == 1 else f'vector of {count}'}, {what}"
            report(label, step)
            report(f"{label}, episodes per second", f"{1e6 / (200 * step):.0f}")


def main() -> None:
    """Run the benchmark."""
    options = command_line(__doc__).parse_args()
    steps, repeats = (50, 1) if options.smoke else (3000, 7)
    results: dict[str, Any] = {}

    def report(name: str, value: Any) -> None:
        results[name] = value
        print(f"{name}: {value:.3f} us" if isinstance(value, float) else f"{name}: {value}", flush=True)

    single(report, steps, repeats)
    states(report, steps, repeats)
    for name in ("kvgym/AdmitCount-v0", "kvgym/Route-v0"):
        report(f"{name} picture", microseconds(draw(name, 10 if options.smoke else 100), repeats))
    short, long = (2, 3) if options.smoke else (300, 1500)
    vectors(report, short, long, min(repeats, 3))
    decisions(report, *((200, 1) if options.smoke else (4000, 3)))
    if importlib.util.find_spec("sb3_contrib") is not None:
        envs, rollouts = (8, 1) if options.smoke else (256, 12)
        for algorithm in ("PPO", "MaskablePPO"):
            report(
                f"{algorithm}, 256 native environments",
                train_fps(algorithm, {**NARROW, **TASK}, envs, rollouts),
            )
    write_json(options.json, results)


if __name__ == "__main__":
    main()
