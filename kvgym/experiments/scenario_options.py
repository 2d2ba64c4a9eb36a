"""Options that change a scenario, and the default scenarios.

This module imports nothing else, so that the command line can parse its options before it loads the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_SCENARIO = "rush"
"""The scenario of commands and comparisons unless another is named."""

OVERLOAD_SCENARIO = "a100-llama2-70b"
"""The scenario of trained agents, and of environments that do not choose requests: several times what can be served."""

SERVER_SCENARIO = "vllm-v1"
"""The scenario with the engine rules of a current server."""

RULES: dict[str, dict[str, Any]] = {
    "engine": {
        "first_token": "counted", "progress_on_evict": "recompute", "requeue": "front", "block_size": 16,
        "output_kv": "next_iteration",
    },
    "paper": {"progress_on_evict": "lost", "requeue": "arrival", "block_size": 1, "output_kv": "at_once"},
}  # fmt: skip
"""Rules by name: ``engine``, as servers have them today, and ``paper``, of the MC-SF paper and its successors.

Those of the engine come with its prefix cache, ``prefix_cache: scheduled``, where requests have block hashes.
"""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Changes to a scenario, by the names that the command line and sweeps use; None leaves a field as it is.

    Attributes:
        trace: trace file to replay instead of the scenario's workload.
        trace_format: format of the trace, or of the scenario's own trace; likewise the next four.
        columns: names of its columns, ``"arrival=ts,prompt=input_tokens,output=output_tokens"``; columns that are not
            named stay as the scenario has them.
        time_unit: unit of its times, for example ``"ms"``.
        rate_scale: factor on its arrival rate.
        shared_prefix: tokens of a system prompt, to build block hashes from it and from sessions, see
            :mod:`kvgym.workloads.traces.histories`.
        workload: preset that replaces the scenario's workload.
        rate: requests per second.
        num_requests: number of requests; from a trace, the first ones.
        predictions: spec of the output-length predictions, ``"noisy:epsilon=0.5"``.
        ttft_slo: target for the time to first token of every request, seconds.
        tbt_slo: target for the time between tokens of every request, seconds.
        e2e_slo: deadline of every request, seconds from arrival to completion.
        too_long: see :class:`~kvgym.experiments.scenario.Scenario`; ``"error"`` also replaces the scenario's
            value.
        hardware: other hardware, which brings its own engine and KV capacity unless they are given too; or changes to
            the scenario's roofline, ``"roofline:tp=8"``.
        engine: name of an engine in the hardware file, ``"none"``, or figures as in ``"base_ms=5"``.
        batch_time: spec of a batch-time model that replaces the hardware's, ``"affine:constant=0.02"``.
        kv_capacity: KV memory, tokens.
        block_size: tokens per block of KV memory.
        prefix_cache: ``"computed"``, ``"scheduled"``, ``"radix"`` or ``"off"``, see
            :class:`~kvgym.simulator.system.System`.
        prefix_block: tokens per unit of the prefix cache, which is then on unless ``prefix_cache`` says otherwise.
        cache_rule: ``"fixed:tool=5"``, how long the prefix cache, which is then on likewise, keeps the KV of
            finished requests, see :mod:`kvgym.simulator.prefix.rules`.
        speculate: speculative decoding, ``"eagle-chat:depth=4"``, see
            :func:`kvgym.simulator.drafts.settings.make_speculation`; ``"off"`` switches it off.
        host_memory: KV memory of the host below that of each worker, GiB, with the prefix cache ``"scheduled"`` unless
            another is given, see :class:`~kvgym.experiments.caches.host_memory.HostMemorySettings`.
        rules: name of the engine's rules, see :data:`RULES`; None = those of the scenario. A
            roofline in place of other hardware has ``"engine"`` unless the scenario states its rules.
        workers: number of equal workers.
        prefill_workers: number of workers that process prompts only; with ``decode_workers``.
        decode_workers: number of workers that generate tokens only.
        link: link between the two, ``"25GB/s"``, or with latency and share ``"25GB/s+1ms,share=0.8"``, see
            :func:`kvgym.experiments.disaggregation.parse_link`; new separate workers, and other hardware, have the link
            of the GPU unless it is given, which must be if they do not fit into one server.
        local_prefill: whether the router may choose where requests are prefilled, see
            :class:`~kvgym.simulator.system.System`.
        fleet: fewest and most workers of a fleet, ``"1-8"``, at the start as many as the scenario has.
        startup: start-up time of its workers: seconds, ``"prepared"`` or ``"cold"``, see
            :class:`~kvgym.experiments.fleet.groups.FleetSettings`.
        autoscaler: autoscaler of a fleet.
        router: router of a cluster.
        router_view: what routers know of the workers: ``"exact"``, ``"scraped"``, ``"inflight"`` or ``"both"``, see
            :class:`~kvgym.simulator.knowledge.Knowledge`.
        scrape: interval of scrapes, ``"5s"``, or with a delay ``"5s+1s"``, which routers and an autoscaler know.
        routers: number of routers.
        sessions: ``"open"`` or ``"closed"``, when later turns of sessions arrive, see
            :class:`~kvgym.simulator.system.System`.
        horizon: seconds after which a run stops.
        warm_up: part at the beginning of a run that is not measured: seconds, or requests as in ``"200r"``.
        cool_down: the same at its end.
    """

    trace: Path | None = None
    trace_format: str = "auto"
    columns: str | None = None
    time_unit: str | None = None
    rate_scale: float = 1.0
    shared_prefix: int | None = None
    workload: str | None = None
    rate: float | None = None
    num_requests: int | None = None
    predictions: str | None = None
    ttft_slo: float | None = None
    tbt_slo: float | None = None
    e2e_slo: float | None = None
    too_long: str = "error"
    hardware: str | None = None
    engine: str | None = None
    batch_time: str | None = None
    kv_capacity: int | None = None
    block_size: int | None = None
    prefix_cache: str | None = None
    prefix_block: int | None = None
    cache_rule: str | None = None
    speculate: str | None = None
    host_memory: float | None = None
    rules: str | None = None
    workers: int | None = None
    prefill_workers: int | None = None
    decode_workers: int | None = None
    link: str | None = None
    local_prefill: bool | None = None
    fleet: str | None = None
    startup: str | None = None
    autoscaler: str | None = None
    router: str | None = None
    router_view: str | None = None
    scrape: str | None = None
    routers: int | None = None
    sessions: str | None = None
    horizon: float | None = None
    warm_up: float | str | None = None
    cool_down: float | str | None = None

    def given(self) -> dict[str, Any]:
        """Return the values that change something, by option."""
        return {name: value for name, value in vars(self).items() if value != getattr(UNCHANGED, name)}


UNCHANGED = ScenarioOptions()
"""No changes."""
