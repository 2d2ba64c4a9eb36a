"""Fields of a scenario on the command line: for options of commands, ``--set`` and ``kvgym list fields``.

A new field is a line of :data:`SCENARIO_OPTIONS` and a field of
:class:`~kvgym.experiments.scenario_options.ScenarioOptions`; every command that takes its group then sets it: by an
option of its own if it is often used, and always by ``--set FIELD=VALUE``. A field with the name of a setting of the
engine needs no more; :mod:`kvgym.experiments.changes` applies the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field of a scenario on the command line.

    Attributes:
        group: name of a group, see :func:`group`.
        text: what it sets, the help of its option.
        metavar: what the help shows for the value; "" = it has no option of its own.
        short: short form of the option.
        complete: a list of ``kvgym list`` with values.
        kind: type of the value; None = the type of the field of
            :class:`~kvgym.experiments.scenario_options.ScenarioOptions`.
        least: the smallest valid value.
    """

    group: str
    text: str
    metavar: str = ""
    short: str = ""
    complete: str = ""
    kind: Any = None
    least: int | None = None

    def flags(self, name: str) -> list[str]:
        """Return the flags of its option, given its name; empty if it has none."""
        long = f"--{name.removeprefix(INSIDE).replace('_', '-')}"
        return [flag for flag in (long, self.short) if flag] if self.metavar else []


INSIDE = "hardware."
"""Prefix of fields of hardware."""

TIMES = {"ttft_slo", "tbt_slo", "e2e_slo", "horizon"}
"""Fields that are a time, in seconds or with a unit."""

SCENARIO_OPTIONS: dict[str, Field] = {
    "trace": Field("requests", "Replay a trace: CSV, JSON, JSONL or Parquet.", "FILE"),
    "trace_format": Field("requests", "Format of the trace (kvgym list traces); by default it is detected."),
    "columns": Field("requests", "Columns of the trace: arrival=ts,prompt=in,output=out.", "NAMES"),
    "time_unit": Field("requests", "Time unit of the trace: s, ms, us or ns.", "UNIT"),
    "rate_scale": Field("requests", "Factor on the trace's arrival rate."),
    "shared_prefix": Field("requests", "Assume shared prefixes, with N tokens of system prompt.", "N"),
    "workload": Field("requests", "Workload: a preset (kvgym list workloads).", "NAME", complete="workloads"),
    "rate": Field("requests", "Requests per second.", "RATE"),
    "num_requests": Field("requests", "Number of requests; of a trace the first N.", "N", "-n"),
    "predictions": Field("requests", "Predicted lengths: exact, none, noisy:epsilon=0.5, …", "SPEC"),
    "ttft_slo": Field("slos", "Target for the time to first token", "TIME"),
    "tbt_slo": Field("slos", "Target for the time between tokens", "TIME"),
    "e2e_slo": Field("slos", "Target for the time from arrival to completion of every request."),
    "too_long": Field(
        "lengths", "Requests longer than the KV capacity: error, drop or clip (both reported)."
    ),
    "hardware": Field(
        "hardware",
        "Name (kvgym list hardware), YAML file, or model=…,gpu=…,tp=…",
        "NAME",
        complete="hardware",
    ),
    "engine": Field("hardware", "Engine of the hardware: name, none, or figures as in base_ms=5.", "SPEC"),
    "batch_time": Field(
        "hardware", "Another batch-time model, as in unit or affine:constant=0.02,per_context_token=1e-6."
    ),
    "kv_capacity": Field("hardware", "KV memory, tokens.", "N"),
    "block_size": Field("hardware", "Tokens per block of KV memory."),
    "prefix_cache": Field(
        "hardware", "Prefix cache: computed, scheduled (as vLLM), radix (as SGLang) or off.", "KIND"
    ),
    "prefix_block": Field(
        "hardware", "Tokens per unit of the prefix cache, a multiple of the block size (default: a block)."
    ),
    "cache_rule": Field(
        "hardware",
        "How long the prefix cache keeps the KV of finished requests: lru, or e.g. fixed:tool=5 "
        "(kvgym list cache-rules).",
    ),
    "speculate": Field("hardware", "Speculation: eagle-chat:depth=4, … or off.", "SPEC"),
    "host_memory": Field("hardware", "KV memory of the host below each worker's, GiB.", "GIB"),
    "rules": Field("hardware", "Engine's rules: engine, as in servers today, or paper.", "NAME"),
    "workers": Field("cluster", "Number of equal workers.", "N"),
    "prefill_workers": Field("cluster", "Workers that process prompts only.", "N"),
    "decode_workers": Field("cluster", "Workers that generate tokens only.", "N"),
    "link": Field(
        "cluster",
        "Link from prefill to decode workers: 25GB/s, 200Gbit/s, with a latency 25GB/s+1ms, with the share that "
        "transfers attain 200GB/s+0.4ms,share=0.73, shared by all of a worker 25GB/s,shared (default: the GPU's, in a "
        "server of 8).",
    ),
    "local_prefill": Field(
        "cluster", "Whether the router chooses where requests are prefilled (true or false)."
    ),
    "fleet": Field("cluster", "Fewest and most workers of a fleet, as in 1-8.", "RANGE"),
    "startup": Field("cluster", "Start-up time of its workers: seconds, prepared or cold.", "TIME"),
    "autoscaler": Field(
        "cluster", "Autoscaler of a fleet (kvgym list autoscalers).", "NAME", complete="autoscalers"
    ),
    "router": Field("cluster", "Router (kvgym list routers), or an agent.", "NAME", complete="routers"),
    "router_view": Field(
        "cluster",
        "What routers know: exact, scraped, inflight or both.",
        "VIEW",
    ),
    "scrape": Field(
        "cluster",
        "Scrapes of workers: every 5s, or 5s+1s if they come late.",
        "TIME",
    ),
    "routers": Field("cluster", "Number of routers.", "N"),
    "sessions": Field(
        "requests",
        "When later turns of sessions arrive: at their recorded times (open), or when the turn before has finished and "
        "its think time has passed (closed).",
    ),
    "horizon": Field("window", "Time at which a run stops, instead of when all requests have finished."),
    "warm_up": Field(
        "window",
        "Begin of measuring: this long (30, 30s, 500ms), or this many requests (200r), after the first arrival.",
    ),
    "cool_down": Field(
        "window",
        "End of measuring: this long (30, 30s, 500ms), or this many requests (200r), before the last arrival.",
    ),
}
"""All fields, by their name in :class:`~kvgym.experiments.scenario_options.ScenarioOptions`, in its order."""

ROUTERS = Field("cluster", "Routers, comma-separated (kvgym list routers).", "NAMES", complete="routers")
"""``--router`` of commands that compare routers; the command splits the list."""

AUTOSCALERS = Field(
    "cluster", "Autoscalers, comma-separated (kvgym list autoscalers).", "NAMES", complete="autoscalers"
)
"""``--autoscaler`` of commands that compare autoscalers."""

DESCRIBED_OPTIONS: dict[str, Field] = {
    "model": Field(
        "described",
        "Model: preset or checkpoint (kvgym list models), a config.json, or YAML file.",
        "NAME",
        complete="models",
        kind=str,
    ),
    "gpu": Field("described", "GPU preset (kvgym list gpus) or YAML file.", "NAME", "", "gpus", str),
    "tp": Field("described", "Number of GPUs (tensor parallel; default: 1).", "N", kind=int),
    "weights": Field(
        "described",
        "Type of the weights: bf16, fp16, fp8, fp8_block, int8, nvfp4, mxfp4, int4 (default: the model's).",
        kind=str,
    ),
    "kv_dtype": Field("described", "Type of the KV cache (default: 16-bit).", kind=str),
    "memory_fraction": Field(
        "described", "Share of GPU memory that the engine may use (default: 0.9).", kind=float
    ),
    "kv_context": Field(
        "described",
        "Tokens of a request, for the KV of layers with a sliding window (default: 4,096).",
        kind=int,
        least=1,
    ),
}
"""Fields of a :class:`~kvgym.batch_time.deployments.described.Described`, ``hardware.NAME``. They come with
``--hardware``: ``--gpu h200`` is short for ``--hardware gpu=h200``."""

FIELDS: dict[str, Field] = {
    **SCENARIO_OPTIONS,
    **{f"{INSIDE}{name}": field for name, field in DESCRIBED_OPTIONS.items()},
}
"""All fields that ``--set`` knows, by name; the names are those of ``kvgym sweep``."""

ALL = tuple(SCENARIO_OPTIONS)
"""The names of all options."""


def group(*groups: str) -> tuple[str, ...]:
    """Return the names of the options of some groups, group by group.

    Args:
        *groups: of ``"requests"``, ``"slos"``, ``"lengths"``, ``"hardware"``, ``"cluster"`` and ``"window"``.
    """
    return tuple(name for one in groups for name, option in SCENARIO_OPTIONS.items() if option.group == one)
