"""Options that select and change a scenario, declared once for all commands.

A field of a scenario is a line of :data:`SCENARIO_OPTIONS` and a field of
:class:`~kvgym.experiments.scenario_options.ScenarioOptions`; every command that takes its group then sets it: by an
option of its own if it is often used, and always by ``--set FIELD=VALUE``. A field with the name of a setting of the
engine needs no more; :mod:`kvgym.experiments.changes` applies the others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from kvgym.cli.options.shared import names, seconds_of, time_option
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.experiments.scenario_options import UNCHANGED, ScenarioOptions

ScenarioOption = Annotated[
    str,
    typer.Option(
        "--scenario",
        "-s",
        metavar="NAME",
        help="Name (kvgym list scenarios) or YAML file.",
        autocompletion=names("scenarios"),
    ),
]

PANELS = {
    "requests": "Requests", "slos": "Requests", "lengths": "Requests", "hardware": "Hardware", "described": "Hardware",
    "cluster": "Cluster",
}  # fmt: skip
"""Panels of help texts, by the group of their options."""


@dataclass(frozen=True)
class Field:
    """A field of a scenario on the command line.

    Attributes:
        group: name of a group, see :func:`group`.
        text: what it sets, the help of its option.
        metavar: what the help shows for the value; "" = it has no option of its own.
        short: short form of the option.
        complete: a list of ``kvgym list`` with values.
        kind: type of the value; None = the type of the field of :class:`ScenarioOptions`.
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
        long = f"--{name.removeprefix(_INSIDE).replace('_', '-')}"
        return [flag for flag in (long, self.short) if flag] if self.metavar else []


_INSIDE = "hardware."
_TIMES = {"ttft_slo", "tbt_slo", "e2e_slo", "horizon"}
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
    "prefix_cache": Field("hardware", "Prefix cache: computed, scheduled (as vLLM) or off.", "KIND"),
    "prefix_block": Field(
        "hardware", "Tokens per unit of the prefix cache, a multiple of the block size (default: a block)."
    ),
    "cache_rule": Field(
        "hardware",
        "How long the prefix cache keeps the KV of finished requests: lru, or e.g. fixed:tool=5 "
        "(kvgym list cache-rules).",
    ),
    "rules": Field("hardware", "Engine's rules: engine, as in servers today, or paper.", "NAME"),
    "workers": Field("cluster", "Number of equal workers.", "N"),
    "prefill_workers": Field("cluster", "Workers that process prompts only.", "N"),
    "decode_workers": Field("cluster", "Workers that generate tokens only.", "N"),
    "link": Field(
        "cluster",
        "Link from prefill to decode workers: 25GB/s, 200Gbit/s, with a latency 25GB/s+1ms (default: the GPU's).",
    ),
    "router": Field("cluster", "Router (kvgym list routers), or an agent.", "NAME", complete="routers"),
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

DESCRIBED_OPTIONS: dict[str, Field] = {
    "model": Field("described", "Model: preset (kvgym list models) or YAML file.", "NAME", "", "models", str),
    "gpu": Field("described", "GPU preset (kvgym list gpus) or YAML file.", "NAME", "", "gpus", str),
    "tp": Field("described", "Number of GPUs (tensor parallel; default: 1).", "N", kind=int),
    "weights": Field(
        "described", "Type of the weights: bf16, fp16, fp8, int8, fp4, int4 (default: the model's).", kind=str
    ),
    "kv_dtype": Field("described", "Type of the KV cache (default: 16-bit).", kind=str),
    "memory_fraction": Field(
        "described", "Share of GPU memory that the engine may use (default: 0.9).", kind=float
    ),
}
"""Fields of a :class:`~kvgym.batch_time.deployments.described.Described`, ``hardware.NAME``. They come with
``--hardware``: ``--gpu h200`` is short for ``--hardware gpu=h200``."""

FIELDS: dict[str, Field] = {
    **SCENARIO_OPTIONS,
    **{f"{_INSIDE}{name}": field for name, field in DESCRIBED_OPTIONS.items()},
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


def scenario_options(
    *taken: str, instead: Mapping[str, Field] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command options of a scenario, and ``--set``.

    The command receives their values as ``options``, a :class:`~kvgym.experiments.scenario_options.ScenarioOptions`.
    Its attribute ``numbers`` has the names of those that set one number.

    Args:
        *taken: names of :data:`SCENARIO_OPTIONS`.
        instead: declarations that replace those of the table for this command.
    """
    declared = {name: each for name, each in SCENARIO_OPTIONS.items() if name in taken} | dict(instead or {})
    described = DESCRIBED_OPTIONS if "hardware" in declared else {}
    fields = [*declared, *(f"{_INSIDE}{name}" for name in described)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(settings: list[str] | None = None, **given: Any) -> None:
            found = {name: given.pop(name, getattr(UNCHANGED, name)) for name in declared}
            inside = {name: given.pop(name, None) for name in described}
            for name, value in read_settings(settings or (), fields).items():
                last = name.removeprefix(_INSIDE)
                place = found if last == name else inside
                if place[last] != getattr(UNCHANGED, last, None):
                    raise ConfigError(f"{name} is given by {FIELDS[name].flags(name)[0]} and by --set")
                place[last] = value
            if "hardware" in found:
                found["hardware"] = _hardware(found["hardware"], inside)
            command(options=ScenarioOptions(**found), **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [
            _parameter(name, each)
            for table in (declared, described)
            for name, each in table.items()
            if each.metavar
        ]
        parameters += [parameter for parameter in own if parameter.name != "options"]
        parameters.append(_settings(fields))
        wrapped.numbers = NUMBERS & {*declared, *described}  # type: ignore[attr-defined]
        return with_parameters(wrapped, parameters)

    return decorate


def _parameter(name: str, field: Field) -> inspect.Parameter:
    panel, flags = PANELS[field.group], field.flags(name)
    info = typer.Option(
        *flags,
        metavar=field.metavar,
        help=field.text,
        rich_help_panel=panel,
        autocompletion=names(field.complete) if field.complete else None,
        min=field.least,
    )
    if name in _TIMES:
        info = time_option(flags[0], field.text, panel=panel)
    kind = _TYPES[name] if field.kind is None else field.kind | None
    default = getattr(UNCHANGED, name, None)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _settings(fields: Sequence[str]) -> inspect.Parameter:
    """Return the parameter of ``--set``."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [(f"{name}=", FIELDS[name].text) for name in fields if name.startswith(incomplete)]

    info = typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set any field of the scenario: kvgym list fields.",
        autocompletion=complete,
    )
    kind = Annotated[list[str] | None, info]
    return inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


_TYPES = get_type_hints(ScenarioOptions)


def _kinds(name: str) -> set[Any]:
    """Return the types of a field, without None."""
    kind = FIELDS[name].kind or _TYPES[name]
    return (set(get_args(kind)) or {kind}) - {type(None)}


NUMBERS = frozenset(name.removeprefix(_INSIDE) for name in FIELDS if _kinds(name) <= {int, float})
"""Fields that are one number."""


def read_settings(texts: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """Read values of fields, by name, from texts such as ``"block_size=16"``.

    Args:
        texts: the texts.
        fields: names of :data:`FIELDS` that are valid here.

    Raises:
        ConfigError: a text has another form, a field is given twice, or a value has another type.
        UnknownNameError: there is no such field here.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        where = f"--set {shown(text)}"
        if not equals or not value:
            raise ConfigError(f"{where}: expected FIELD=VALUE, as in block_size=16 (kvgym list fields)")
        if name not in fields:
            raise UnknownNameError("field of --set", name, fields)
        if name in found:
            raise ConfigError(f"{where}: {name} is given twice")
        found[name] = _value(name, value, where)
    return found


def _value(name: str, text: str, where: str) -> Any:
    """Return the value of a field that a text gives.

    Raises:
        ConfigError: the value has another type.
    """
    kinds = _kinds(name)
    if name in _TIMES:
        return seconds_of(text, f"--set {name}")
    if kinds == {Path}:
        return Path(text)
    if not kinds <= {int, float}:
        return text
    if "," in text or ":" in text:
        raise ConfigError(f"{where}: expected one value; for several: kvgym sweep {name}={text}")
    try:
        return float(text) if float in kinds else int(text)
    except ValueError:
        raise ConfigError(f"{where}: expected a {'' if float in kinds else 'whole '}number") from None


def _hardware(hardware: str | None, described: Mapping[str, Any]) -> str | None:
    """Return the hardware, which is given by name or by options of a model and a GPU.

    Raises:
        ConfigError: both are given.
    """
    given = {name: value for name, value in described.items() if value is not None}
    if not given:
        return hardware
    if hardware is not None:
        flags = ", ".join(
            (*DESCRIBED_OPTIONS[name].flags(name), f"--set {_INSIDE}{name}")[0] for name in given
        )
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
