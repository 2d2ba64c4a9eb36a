"""The engines that kvgym is compared with: their schedulers, random workloads, and kvgym's side of the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from conformance import offload_engine, ours, sarathi_engine, sglang_engine, vidur_engine, vllm_engine
from conformance.cases import COMPARED, Case, Schedule
from conformance.wheel import unpacked
from kvgym.baselines.vllm_releases import RELEASES
from kvgym.errors import ConfigError

ENGINE_RULES = {"progress_on_evict": "recompute", "requeue": "front"}
"""Settings of the system for engines that recompute a preempted request from the front of the queue."""

NAMES = {"sarathi": "Sarathi-Serve", "vidur": "Vidur"}
"""Engines that are compared from a checkout."""

CHECKOUT_COMPARED = tuple(name for name in COMPARED if name != "blocks")
"""What is compared there: these engines take all blocks of a prompt at once, kvgym chunk by chunk."""

AHEAD_COMPARED = tuple(name for name in COMPARED if name not in ("running", "waiting"))
"""What is compared with asynchronous scheduling: its running and waiting requests are those of an earlier moment."""

EMPTY_STEP = "after an empty step"
"""Class of differences: the engine ran a step without tokens, which is part of the next batch here."""

ENDLESS = "without an end in both"
"""Class of schedules: the engine preempts and restarts the same requests for ever, and so does kvgym."""

STUCK = "without an end in the engine"
"""Class of schedules: what requests have loaded keeps others out for ever; in kvgym they give it up."""

UNCOMPUTED = "blocks of a preempted request that were never computed"
"""Class of differences: with priorities, the engine caches what it scheduled for a request that the step preempts."""

RESTART = "a preempted request starts again in the same batch"
"""Class of differences: in kvgym a request that the decision evicts cannot be admitted by it."""

PREEMPTED = "after a preemption"
"""Class of differences: in SGLang, what a preempted request leaves was used when it was prefilled."""

EQUAL_HITS = "the queue is sorted in place"
"""Class of differences: in SGLang, requests with equal hits keep the order of the decision before."""

VLLM, SGLANG = "0.33.0", "0.5.23"
"""Releases that are compared by default; of SGLang the only one."""

VARIANTS = (sglang_engine.IN_PLACE, sglang_engine.TOUCHED)
"""Variants of SGLang's side of the comparison."""

PARTIAL_PROMPT = "a prompt preempted half way is shorter when it starts again"
"""Class of differences: Vidur restarts a request with the tokens it had processed as its prompt."""


@dataclass(frozen=True)
class Comparison:
    """An engine and kvgym's policy that follows it.

    Attributes:
        name: the engine with its release.
        described: engine and release for recorded schedules.
        draw: returns the random workload of a seed.
        theirs: plays it in the engine.
        ours: plays it in kvgym; the second argument is whether the KV of output tokens is written at once.
        compared: fields of a step that are compared.
    """

    name: str
    described: dict[str, str]
    draw: Callable[[int], Case]
    theirs: Callable[[Case], Schedule]
    ours: Callable[[Case, bool], Schedule]
    compared: tuple[str, ...] = COMPARED


def play_vllm(case: Case, at_once: bool = False, compiled: bool = True) -> Schedule:
    """Return kvgym's schedule of a case for vLLM."""
    by_priority = case.settings["policy"] == "priority"
    settings = {**_memory(at_once), **ENGINE_RULES}
    return ours.play(case, "vllm_v1", by_priority, compiled=compiled, **settings)


def play_sglang(case: Case, at_once: bool = False, prefix_cache: str = "radix") -> Schedule:
    """Return kvgym's schedule of a case for SGLang."""
    return ours.play(case, "lpm", by_hit=True, prefix_cache=prefix_cache, **_memory(at_once), **ENGINE_RULES)


def play_sorted(case: Case, at_once: bool = False) -> Schedule:
    """Return kvgym's schedule of a case for Sarathi-Serve or Vidur, with requests by number."""
    found = ours.play(case, vidur_engine.policy_of(case), **_memory(at_once), **ENGINE_RULES)
    steps = (
        replace(s, running=tuple(sorted(s.running)), tokens=tuple(sorted(s.tokens))) for s in found.steps
    )
    return replace(found, steps=tuple(steps))


def _memory(at_once: bool) -> dict[str, str]:
    return {"output_kv": "at_once" if at_once else "next_iteration"}


def classify(found: str, theirs: Schedule, engine: str) -> str:
    """Return the class of a first difference with an engine, ``"other"`` if it is not known.

    Without a difference it is :data:`ENDLESS` or ``""``.
    """
    if not found:
        return "" if theirs.ends else ENDLESS
    number = found.split(",")[0].removeprefix("step ")
    if not number.isdigit() and not theirs.ends:
        return STUCK
    if not number.isdigit():
        return PARTIAL_PROMPT if engine == "Vidur" and found.startswith("first_token") else "other"
    steps = theirs.steps[: int(number) + 1]
    if any(step.empty for step in steps) and "asynchronous" not in engine:
        return EMPTY_STEP
    if engine.startswith("sglang"):
        if "in-place" in engine and ", cached:" not in found:
            return EQUAL_HITS
        return PREEMPTED if any(step.preempted for step in steps) else "other"
    if unlike := [step.unlike for step in steps if step.unlike]:
        return unlike[-1]
    if "speculation" in engine and ", cached:" in found and any(step.preempted for step in steps):
        return UNCOMPUTED
    restarts = steps and {i for i, _ in steps[-1].tokens} & {*steps[-1].preempted}
    return RESTART if restarts else "other"


def comparison_of(
    engine: str,
    version: str | None,
    source: Path | None,
    cache: Path,
    prefix_cache: bool = False,
    async_scheduling: bool = False,
    variant: str | None = None,
    speculation: bool = False,
    offloading: bool = False,
) -> Comparison:
    """Return a comparison.

    Args:
        engine: ``vllm``, ``sglang``, ``sarathi`` or ``vidur``.
        version: release of vLLM or SGLang; None = the newest that is followed.
        source: folder with the engine's package; of vLLM and SGLang, None = its wheel.
        cache: folder for wheels.
        prefix_cache: whether vLLM's prefix caching is on, and requests begin with common texts.
        async_scheduling: whether vLLM decides a batch when the one before it starts.
        variant: one of :data:`VARIANTS`.
        speculation: whether decodes verify drafts in vLLM.
        offloading: whether vLLM's offloading connector keeps KV in the memory of the host; prefix caching is on then.

    Raises:
        ConfigError: kvgym does not follow that release, or the sources are missing.
    """
    if variant and engine != "sglang":
        raise ConfigError("--variant is for SGLang; leave it out")
    if engine != "vllm" and (prefix_cache or async_scheduling or speculation or offloading):
        raise ConfigError(
            "--prefix-cache, --async-scheduling, --speculation and --offloading are for vLLM; leave them out"
        )
    if offloading and (async_scheduling or speculation or (version or VLLM) != VLLM):
        raise ConfigError(
            f"--offloading follows vLLM {VLLM} without --async-scheduling and --speculation; leave them out"
        )
    if async_scheduling and speculation:
        raise ConfigError("--async-scheduling with --speculation is not modelled; leave one out")
    if engine == "sglang":
        return _sglang(version or SGLANG, source, cache, variant)
    if engine != "vllm":
        return _checkout(engine, source)
    version = version or VLLM
    release = ".".join(version.split(".")[:2])
    if release not in RELEASES:
        raise ConfigError(
            f"version = {version}: kvgym follows vLLM {' and '.join(RELEASES)}; give one of these releases"
        )
    if speculation and release == "0.24":
        raise ConfigError(
            "--speculation with 0.24: kvgym follows the drafts of vLLM 0.33; leave --version out"
        )
    kind = offload_engine if offloading else vllm_engine
    scheduler = kind.Engine(unpacked("vllm", version, cache) if source is None else source)

    def draw(seed: int) -> Case:
        options = release != "0.24"
        if offloading:
            case = offload_engine.draw_case(seed)
        else:
            case = vllm_engine.draw_case(seed, options, prefix_cache, async_scheduling, speculation)
        settings = case.settings | {"engine_version": release}
        return replace(case, settings=settings | ({"async_scheduling": True} if async_scheduling else {}))

    described = {"engine": "vllm", "version": version}
    name, compared = f"vllm {version}", COMPARED
    on = {"prefix caching": prefix_cache, "asynchronous scheduling": async_scheduling}
    on |= {"speculation": speculation, "offloading": offloading}
    if used := [option for option, value in on.items() if value]:
        name = ", ".join([name, *used])
        described["options"] = "-".join(option.split()[0] for option in used).replace("asynchronous", "async")
    if async_scheduling:
        compared = AHEAD_COMPARED
    return Comparison(name, described, draw, scheduler.play, play_vllm, compared)


def _sglang(version: str, source: Path | None, cache: Path, variant: str | None) -> Comparison:
    """Return the comparison with SGLang's prefix cache and policy."""
    if version != SGLANG:
        raise ConfigError(f"version = {version}: kvgym follows SGLang {SGLANG}; give this release")
    engine = sglang_engine.Engine(unpacked("sglang", version, cache) if source is None else source, variant)
    name = f"sglang {version}" + (f", {variant}" if variant else "")
    described = {"engine": "sglang", "version": version}
    return Comparison(name, described, sglang_engine.draw_case, engine.play, play_sglang)


def _checkout(engine: str, source: Path | None) -> Comparison:
    """Return the comparison with an engine in a checkout."""
    if source is None or not (source / engine).is_dir():
        raise ConfigError(
            f"source = {source}: expected a checkout of {NAMES[engine]}, with the folder {engine}; give --source FOLDER"
        )
    module = {"sarathi": sarathi_engine, "vidur": vidur_engine}[engine]
    scheduler = module.Engine(source)
    return Comparison(
        NAMES[engine], {"engine": engine}, module.draw_case, scheduler.play, play_sorted, CHECKOUT_COMPARED
    )
