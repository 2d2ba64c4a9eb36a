"""Options that select and change a scenario, declared once for all commands.

A new option is a line of :data:`SCENARIO_OPTIONS` and a field of
:class:`~kvgym.experiments.scenario_options.ScenarioOptions`; every command that takes its group then has it. An option
with the name of a setting of the engine needs no more; :mod:`kvgym.experiments.changes` applies the others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from kvgym.cli.options.shared import names, time_option
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import UNCHANGED, ScenarioOptions

ScenarioOption = Annotated[
    str,
    typer.Option(
        "--scenario",
        "-s",
        help="Name (see kvgym list scenarios) or YAML file of a scenario.",
        autocompletion=names("scenarios"),
    ),
]


@dataclass(frozen=True)
class Declared:
    """Declaration of a command-line option.

    Attributes:
        info: Typer's declaration: names, help, completion.
        group: name of a group, see :func:`group`.
        kind: type of the value; None = the type of the field that the option sets.
    """

    info: Any
    group: str = ""
    kind: Any = None


def _option(group: str, text: str, *flags: str, complete: str | None = None, kind: Any = None) -> Declared:
    completion = None if complete is None else names(complete)
    return Declared(typer.Option(*flags, help=text, autocompletion=completion), group, kind)


SCENARIO_OPTIONS: dict[str, Declared] = {
    "trace": _option("requests", "Replay a request trace: CSV, JSON, JSONL or Parquet, format detected."),
    "trace_format": _option("requests", "Format of the trace (kvgym list traces).", complete="traces"),
    "columns": _option(
        "requests", "Column names of your own trace: arrival=timestamp,prompt=input_tokens,output=…"
    ),
    "time_unit": _option("requests", "Time unit of your own trace: s, ms, us or ns."),
    "rate_scale": _option("requests", "Multiply the trace's arrival rate."),
    "shared_prefix": _option(
        "requests",
        "For prefix caches, of a trace without block hashes: assume that turns of a session_id begin with all before, "
        "and sessions (of a client_id) with a system prompt of this many tokens (0: none).",
    ),
    "workload": _option(
        "requests",
        "Replace the scenario's workload by a preset (kvgym list workloads).",
        complete="workloads",
    ),
    "rate": _option("requests", "Requests per second, instead of the workload's."),
    "num_requests": _option(
        "requests", "Number of requests (of a trace: the first n).", "--num-requests", "-n"
    ),
    "predictions": _option(
        "requests",
        "Output-length predictions that schedulers receive: exact, none, noisy:epsilon=0.5, …",
    ),
    "ttft_slo": Declared(
        time_option(
            "--ttft-slo",
            "Target for every request's time to first token; goodput counts requests that meet it",
        ),
        "slos",
    ),
    "tbt_slo": Declared(
        time_option("--tbt-slo", "The same for the time between two tokens of a request"), "slos"
    ),
    "e2e_slo": Declared(
        time_option("--e2e-slo", "The same for the time from arrival to completion of a request"), "slos"
    ),
    "too_long": _option(
        "lengths", "Requests longer than the KV capacity: error, drop or clip (both reported)."
    ),
    "hardware": _option(
        "hardware",
        "Replace the scenario's hardware: name (kvgym list hardware), YAML file, or model=…,gpu=…,tp=…",
        complete="hardware",
    ),
    "engine": _option(
        "hardware",
        "Replace the engine: its name in the hardware file, none, or e.g. base_ms=5,per_request_ms=0.1.",
    ),
    "batch_time": _option(
        "hardware",
        "Replace the batch-time model: e.g. unit, or affine:constant=0.02,per_context_token=1e-6.",
    ),
    "kv_capacity": _option("hardware", "Replace the KV capacity, tokens."),
    "block_size": _option("hardware", "Replace the block size, the number of tokens per block of KV memory."),
    "prefix_cache": _option(
        "hardware",
        "Prefix cache: computed keeps KV for later requests that begin alike (block hashes in the trace); scheduled "
        "shares it as soon as it is scheduled, as vLLM does; or off.",
    ),
    "prefix_block": _option(
        "hardware", "Tokens per unit of the prefix cache (default: a block); a multiple of the block size."
    ),
    "cache_rule": _option(
        "hardware",
        "How long the prefix cache keeps the KV of finished requests: lru, or e.g. fixed:tool=5 "
        "(kvgym list cache-rules).",
    ),
    "rules": _option(
        "hardware",
        "Rules of the engine: engine, as in servers today (an evicted request keeps its output, recomputes its KV and "
        "goes to the front; blocks of 16), or paper. Default: the scenario's; with --model and --gpu engine.",
    ),
    "workers": _option("cluster", "Run a cluster with this number of equal workers."),
    "prefill_workers": _option(
        "cluster", "Run a cluster with this number of workers that process prompts only."
    ),
    "decode_workers": _option(
        "cluster", "With --prefill-workers: number of workers that generate tokens only."
    ),
    "link": _option(
        "cluster", "Link between them: 25GB/s, 200Gbit/s, with a latency 25GB/s+1ms (default: the GPU's)."
    ),
    "router": _option(
        "cluster",
        "Router of a cluster, which assigns requests to workers (kvgym list routers).",
        complete="routers",
    ),
    "sessions": _option(
        "requests",
        "When later turns of sessions arrive: at their recorded times (open), or when the turn before has finished and "
        "its think time has passed (closed).",
    ),
    "horizon": Declared(
        time_option("--horizon", "Stop at this time instead of when all requests have finished"), "window"
    ),
    "warm_up": _option(
        "window",
        "Start measuring this long (30, 30s, 500ms), or this many requests (200r), after the first arrival.",
        kind=str | None,
    ),
    "cool_down": _option(
        "window",
        "Stop measuring this long (30, 30s, 500ms), or this many requests (200r), before the last arrival.",
        kind=str | None,
    ),
}
"""All options, by the field of :class:`~kvgym.experiments.scenario_options.ScenarioOptions` that they set, in the order
of help texts."""

ROUTERS = _option(
    "cluster",
    "Router of a cluster, which assigns requests to workers (kvgym list routers), or an evolved router; several, "
    "comma-separated, are compared.",
    complete="routers",
)
"""``--router`` of commands that compare routers; the command splits the list."""

DESCRIBED_OPTIONS: dict[str, Declared] = {
    "model": _option(
        "described",
        "Model to serve: preset (kvgym list models) or YAML file.",
        complete="models",
        kind=str | None,
    ),
    "gpu": _option(
        "described", "GPU preset (kvgym list gpus) or YAML file.", complete="gpus", kind=str | None
    ),
    "tp": _option("described", "Number of GPUs (tensor parallel; default: 1).", kind=int | None),
    "weights": _option(
        "described",
        "Type of the weights: bf16, fp16, fp8, int8, fp4, int4 (default: the model's).",
        kind=str | None,
    ),
    "kv_dtype": _option("described", "Type of the KV cache (default: 16-bit).", kind=str | None),
    "memory_fraction": _option(
        "described",
        "Share of GPU memory that the engine may use (default: 0.9).",
        kind=float | None,
    ),
}
"""Options of a :class:`~kvgym.batch_time.deployments.described.Described`, by field. They come with ``--hardware``:
``--gpu h200`` is short for ``--hardware gpu=h200``."""


ALL = tuple(SCENARIO_OPTIONS)
"""The names of all options."""


def group(*groups: str) -> tuple[str, ...]:
    """Return the names of the options of some groups, group by group.

    Args:
        *groups: of ``"requests"``, ``"slos"``, ``"lengths"``, ``"hardware"``, ``"cluster"`` and ``"window"``.
    """
    return tuple(name for one in groups for name, option in SCENARIO_OPTIONS.items() if option.group == one)


def scenario_options(
    after: Mapping[str, Sequence[str]], instead: Mapping[str, Declared] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command options of a scenario.

    The command receives their values as ``options``, a :class:`~kvgym.experiments.scenario_options.ScenarioOptions`.
    Its attribute ``numbers`` has the names of those that set one number.

    Args:
        after: names of :data:`SCENARIO_OPTIONS`, by the parameter of the command that they follow in the help.
        instead: declarations that replace those of the table for this command.
    """
    declared = {**SCENARIO_OPTIONS, **(instead or {})}
    taken = [name for some in after.values() for name in some]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            fields = {name: given.pop(name) for name in taken}
            if "hardware" in fields:
                described = {name: given.pop(name) for name in DESCRIBED_OPTIONS}
                fields["hardware"] = _hardware(fields["hardware"], described)
            command(options=ScenarioOptions(**fields), **given)

        parameters = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "options":
                continue
            parameters.append(parameter)
            for name in after.get(parameter.name, ()):
                parameters.append(_parameter(name, declared[name]))
                if name == "hardware":
                    parameters += [_parameter(*each) for each in DESCRIBED_OPTIONS.items()]
        wrapped.numbers = NUMBERS & {*taken, *DESCRIBED_OPTIONS}  # type: ignore[attr-defined]
        return with_parameters(wrapped, parameters)

    return decorate


def _parameter(name: str, option: Declared) -> inspect.Parameter:
    kind = option.kind or _TYPES[name]
    default = getattr(UNCHANGED, name, None)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option.info]
    )


_TYPES = get_type_hints(ScenarioOptions)

NUMBERS = frozenset(
    name
    for name, option in {**SCENARIO_OPTIONS, **DESCRIBED_OPTIONS}.items()
    for kind in [option.kind or _TYPES[name]]
    if (set(get_args(kind)) or {kind}) <= {int, float, type(None)}
)
"""Options that set one number."""


def _hardware(hardware: str | None, described: Mapping[str, Any]) -> str | None:
    """Return the hardware, which is given by name or by options of a model and a GPU.

    Raises:
        ConfigError: both are given.
    """
    given = {name: value for name, value in described.items() if value is not None}
    if not given:
        return hardware
    if hardware is not None:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"--hardware and {flags} exclude each other: these describe hardware")
    from kvgym.batch_time.deployments.described import HardwareName

    return HardwareName.of(given)


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Replace the signature of a function that takes keyword arguments, as Typer reads it."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return command
