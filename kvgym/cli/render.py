"""The command ``kvgym render``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.envs import SCHEDULING_IDS
from kvgym.errors import UnknownNameError
from kvgym.experiments.scenario import DEFAULT_SCENARIO

DEFAULT_ID = "kvgym/AdmitCount-v0"


def render(
    env: Annotated[
        str,
        typer.Argument(help=f"Id of an environment: {', '.join(SCHEDULING_IDS)}; kvgym/ may be left out."),
    ] = DEFAULT_ID,
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="greedy (admits as much as fits) or random (inside the mask)."),
    ] = "greedy",
    scenario: Annotated[
        str,
        typer.Option("--scenario", "-s", help="Name (see kvgym list scenarios) or YAML file of a scenario."),
    ] = DEFAULT_SCENARIO,
    num_requests: Annotated[
        int | None, typer.Option("--num-requests", "-n", min=1, help="Requests of the episode.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, instead of the workload's.")
    ] = None,
    kv_capacity: Annotated[int | None, typer.Option(help="Replace the KV capacity, tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policy.")] = 0,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second.")] = 10,
    max_frames: Annotated[int, typer.Option(min=4, help="Most frames; longer episodes skip steps.")] = 200,
    out: Annotated[Path, typer.Option("--out", "-o", help="Animation to write, .gif or .mp4.")] = Path(
        "episode.gif"
    ),
    png: Annotated[
        Path | None,
        typer.Option(help="Summary of the episode to write (default: the animation's name with .png)."),
    ] = None,
) -> None:
    """Play an episode of an environment and write it as a GIF or MP4, and a PNG of the whole.

    Frames show KV memory, queue and active set, and what became of each request.
    """
    from kvgym.envs.rendering.episode import PLAYERS, record_episode

    if policy not in PLAYERS:
        raise UnknownNameError("policy", policy, PLAYERS)
    given: dict[str, Any] = {"num_requests": num_requests, "rate": rate, "kv_capacity": kv_capacity}
    record = record_episode(
        {"action": action_of(env), "scenario": scenario, **given},
        policy,
        seed=seed,
        path=out,
        png=png or out.with_suffix(".png"),
        fps=fps,
        max_frames=max_frames,
    )
    console.out.print(
        f"{policy} on {scenario}: {record.steps:,} steps, "
        f"{record.metrics['finished']:,.0f} requests finished"
        + ("." if record.completed else ", cut short."),
        markup=False,
    )
    console.out.print(f"animation: {record.path} ({record.frames} frames)", markup=False, soft_wrap=True)
    console.out.print(f"summary:   {record.png}", markup=False, soft_wrap=True)


def action_of(env: str) -> str:
    """Return the kind of action behind an environment's id, with or without ``kvgym/``.

    Raises:
        UnknownNameError: there is no such id.
    """
    full = env if "/" in env else f"kvgym/{env}"
    if full not in SCHEDULING_IDS:
        raise UnknownNameError("environment", env, SCHEDULING_IDS)
    return SCHEDULING_IDS[full]
