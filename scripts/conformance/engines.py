"""The engines that kvgym is compared with: their schedulers, random workloads, and kvgym's side of the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from conformance import ours, vllm_engine
from conformance.cases import Case, Schedule
from conformance.wheel import unpacked
from kvgym.baselines.vllm_releases import RELEASES
from kvgym.errors import ConfigError

ENGINE_RULES = {"progress_on_evict": "recompute", "requeue": "front"}
"""Settings of the system for engines that recompute a preempted request from the front of the queue."""

EMPTY_STEP = "after an empty step"
"""Class of differences: the engine ran a step without tokens, which is part of the next batch here."""


@dataclass(frozen=True)
class Comparison:
    """An engine and kvgym's policy that follows it.

    Attributes:
        name: the engine with its release.
        described: engine and release for recorded schedules.
        draw: returns the random workload of a seed.
        theirs: plays it in the engine.
        ours: plays it in kvgym; the second argument is whether the KV of output tokens is written at once.
        classify: returns the class of a first difference, ``"other"`` if it is not known.
    """

    name: str
    described: dict[str, str]
    draw: Callable[[int], Case]
    theirs: Callable[[Case], Schedule]
    ours: Callable[[Case, bool], Schedule]
    classify: Callable[[str, Schedule], str]


def play_vllm(case: Case, at_once: bool = False) -> Schedule:
    """Return kvgym's schedule of a case for vLLM."""
    output_kv = "at_once" if at_once else "next_iteration"
    by_priority = case.settings["policy"] == "priority"
    return ours.play(case, "vllm_v1", by_priority, output_kv=output_kv, **ENGINE_RULES)


def classify(found: str, theirs: Schedule) -> str:
    """Return the class of a first difference."""
    step = found.split(",")[0].removeprefix("step ")
    if step.isdigit() and any(one.empty for one in theirs.steps[: int(step) + 1]):
        return EMPTY_STEP
    return "other"


def comparison_of(engine: str, version: str, source: Path | None, cache: Path) -> Comparison:
    """Return a comparison.

    Args:
        engine: ``vllm``, ``sarathi`` or ``vidur``.
        version: release of vLLM.
        source: folder with the engine's sources; of vLLM, None = its wheel.
        cache: folder for wheels.

    Raises:
        ConfigError: kvgym does not follow that release, or the sources cannot be had.
    """
    release = ".".join(version.split(".")[:2])
    if release not in RELEASES:
        raise ConfigError(
            f"version = {version}: kvgym follows vLLM {' and '.join(RELEASES)}; give one of these releases"
        )
    folder = unpacked("vllm", version, cache) if source is None else source
    scheduler = vllm_engine.Engine(folder)

    def draw(seed: int) -> Case:
        case = vllm_engine.draw_case(seed, options=release != "0.24")
        return replace(case, settings=case.settings | {"engine_version": release})

    return Comparison(
        f"vllm {version}", {"engine": "vllm", "version": version}, draw, scheduler.play, play_vllm, classify
    )
