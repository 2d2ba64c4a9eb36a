"""``kvgym render``: play an episode of an environment and write pictures of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import typer

from kvgym.cli import console
from kvgym.cli.fields import Field, group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import policies_option, split_names
from kvgym.envs import CLUSTER_IDS, IDS, ROUTING_ID, SCALING_ID, environment_names
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions

DEFAULT_ID = "kvgym/AdmitCount-v0"


REPLACED = {
    "workers": Field("cluster", f"Number of equal workers, in {ROUTING_ID}.", "N", least=2),
}
_WORKERS = ("workers", "prefill_workers", "decode_workers", "link")
TAKEN = (*group("requests", "slos", "hardware"), *_WORKERS, "horizon")
"""Scenario options that become arguments of an environment."""

_SETTINGS = ("hardware", "engine", "batch_time", "workload")
"""Fields of a scenario that environments have as arguments."""


@scenario_options(*TAKEN, instead=REPLACED)
def render(
    options: ScenarioOptions,
    env: Annotated[
        str,
        typer.Argument(help=f"Id of an environment: {', '.join(IDS)}; kvgym/ may be omitted."),
    ] = DEFAULT_ID,
    policies: Annotated[
        list[str] | None,
        policies_option(
            "Player: greedy (admits as much as fits; the default), random (inside the mask), any policy or agent "
            f"(kvgym list policies, agents), in {ROUTING_ID} a router (kvgym list routers), or in {SCALING_ID} an "
            "autoscaler (kvgym list autoscalers). Several are shown side by side, on the same requests.",
        ),
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    scheduler: Annotated[
        str | None,
        typer.Option(help=f"Policy on every worker, in {ROUTING_ID} and {SCALING_ID} (kvgym list policies)."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of requests (as in kvgym compare) and policies.")
    ] = 0,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second.")] = 10,
    max_frames: Annotated[
        int, typer.Option(min=4, help="Maximum number of frames; longer episodes skip steps.")
    ] = 200,
    out: Annotated[Path, typer.Option("--out", "-o", help="Animation to write, .gif or .mp4.")] = Path(
        "episode.gif"
    ),
    png: Annotated[
        Path | None,
        typer.Option(help="Summary of the episode to write (default: the animation's name with .png)."),
    ] = None,
) -> None:
    """Play an episode of an environment; write a GIF or MP4 of it and a PNG summary.

    Frames show KV memory, the queue, running requests and the outcome of each request; for a cluster, memory and
    requests of every worker; for a fleet, workers by state, load and first tokens. Policies and agents act as in kvgym
    compare, whatever actions the environment has.

    kvgym render --policies mc_sf,fcfs --rate 40 shows two of them side by side.
    """
    from kvgym.envs.rendering.episode import record_episodes

    name = id_of(env)
    of_clusters = [(each, getattr(options, each), (ROUTING_ID,)) for each in _WORKERS]
    for field, value, ids in (*of_clusters, ("scheduler", scheduler, tuple(CLUSTER_IDS))):
        if value is not None and name not in ids:
            option = f"--{field.replace('_', '-')}"
            raise ConfigError(f"{option} {value}: {option} is for {' and '.join(ids)}, not for {name}")
    arguments = {**_arguments(scenario, options), "policy": scheduler}
    given = {key: value for key, value in arguments.items() if value is not None}
    made: Any = gym.make(name, disable_env_checker=True, **given).unwrapped
    records = record_episodes(
        made,
        split_names(policies) or [made.players()[0]],
        seed=seed,
        workload_seed=seed,
        path=out,
        png=png or out.with_suffix(".png"),
        fps=fps,
        max_frames=max_frames,
    )
    for record in records:
        figures = record.metrics
        console.print_line(
            f"{record.name} on {scenario}: {record.steps:,} steps, {figures['finished']:,.0f} requests finished"
            + ("" if record.completed else ", cut short")
            + f", mean latency {console.number(figures['e2e_latency_mean'])} s."
        )
    shown = records[0]
    console.print_line(f"animation: {shown.path} ({shown.frames} frames)")
    console.print_line(f"summary:   {shown.png}")


def _arguments(scenario: str, options: ScenarioOptions) -> dict[str, Any]:
    """Return the arguments of an environment for a scenario with options; None = not given."""
    from kvgym.experiments.changes import build_scenario

    base = build_scenario(scenario)
    changed = build_scenario(base, options, workers=None, horizon=None)
    arguments: dict[str, Any] = {
        "scenario": scenario,
        "rate": options.rate,
        "workers": options.workers,
        "horizon": options.horizon,
    }
    for name in _SETTINGS:
        if getattr(changed, name) != getattr(base, name):
            arguments[name] = getattr(changed, name)
    if options.prefill_workers is not None or options.decode_workers is not None:
        arguments["workers"] = changed.workers
    if changed.system != base.system:
        arguments["system"] = changed.system.model_dump()
    if (changed.hardware, changed.batch_time, changed.kv_capacity) != (
        base.hardware,
        base.batch_time,
        base.kv_capacity,
    ):
        arguments["kv_capacity"] = changed.make_system().kv_capacity
    return arguments


def id_of(env: str) -> str:
    """Return the full id of an environment given with or without ``kvgym/``.

    Raises:
        UnknownNameError: the environment does not exist.
    """
    full, known = env if "/" in env else f"kvgym/{env}", environment_names()
    if full not in known:
        raise UnknownNameError("environment", env, known)
    return full
