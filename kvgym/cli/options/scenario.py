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
class Declared:
    """A field of a scenario on the command line.

    Attributes:
        text: what it sets.
        group: name of a group, see :func:`group`.
        flags: names of its option; () = it has none.
        info: Typer's declaration of the option.
        kind: type of the value; None = the type of the field of :class:`ScenarioOptions`.
        is_time: whether the value is a time, in seconds or with a unit.
    """

    text: str
    group: str
    flags: tuple[str, ...] = ()
    info: Any = None
    kind: Any = None
    is_time: bool = False


def option(
    group: str,
    text: str,
    *flags: str,
    metavar: str,
    complete: str | None = None,
    kind: Any = None,
    least: int | None = None,
) -> Declared:
    """Declare a field with an option of its own.

    Args:
        group: name of its group.
        text: help text, one line.
        *flags: names of the option.
        metavar: what the help shows for the value.
        complete: a list of ``kvgym list`` with values.
        kind: type of the value, as in :class:`Declared`.
        least: the smallest valid value.
    """
    completion = None if complete is None else names(complete)
    info = typer.Option(
        *flags,
        metavar=metavar,
        help=text,
        rich_help_panel=PANELS[group],
        autocompletion=completion,
        min=least,
    )
    return Declared(text, group, flags, info, kind)


def _target(flag: str, text: str) -> Declared:
    return Declared(text, "slos", (flag,), time_option(flag, text, panel=PANELS["slos"]), is_time=True)


SCENARIO_OPTIONS: dict[str, Declared] = {
    "trace": option("requests", "Replay a trace: CSV, JSON, JSONL or Parquet.", "--trace", metavar="FILE"),
    "trace_format": Declared(
        "Format of the trace (kvgym list traces); by default it is detected.", "requests"
    ),
    "columns": option(
        "requests", "Columns of the trace: arrival=ts,prompt=in,output=out.", "--columns", metavar="NAMES"
    ),
    "time_unit": option(
        "requests", "Time unit of the trace: s, ms, us or ns.", "--time-unit", metavar="UNIT"
    ),
    "rate_scale": Declared("Factor on the trace's arrival rate.", "requests"),
    "shared_prefix": option(
        "requests", "Assume shared prefixes, with N tokens of system prompt.", "--shared-prefix", metavar="N"
    ),
    "workload": option(
        "requests",
        "Workload: a preset (kvgym list workloads).",
        "--workload",
        metavar="NAME",
        complete="workloads",
    ),
    "rate": option("requests", "Requests per second.", "--rate", metavar="RATE"),
    "num_requests": option(
        "requests",
        "Number of requests; of a trace the first N.",
        "--num-requests",
        "-n",
        metavar="N",
    ),
    "predictions": option(
        "requests", "Predicted lengths: exact, none, noisy:epsilon=0.5, …", "--predictions", metavar="SPEC"
    ),
    "ttft_slo": _target("--ttft-slo", "Target for the time to first token"),
    "tbt_slo": _target("--tbt-slo", "Target for the time between tokens"),
    "e2e_slo": Declared(
        "Target for the time from arrival to completion of every request.", "slos", is_time=True
    ),
    "too_long": Declared(
        "Requests longer than the KV capacity: error, drop or clip (both reported).", "lengths"
    ),
    "hardware": option(
        "hardware",
        "Name (kvgym list hardware), YAML file, or model=…,gpu=…,tp=…",
        "--hardware",
        metavar="NAME",
        complete="hardware",
    ),
    "engine": option(
        "hardware",
        "Engine of the hardware: name, none, or figures as in base_ms=5.",
        "--engine",
        metavar="SPEC",
    ),
    "batch_time": Declared(
        "Another batch-time model, as in unit or affine:constant=0.02,per_context_token=1e-6.", "hardware"
    ),
    "kv_capacity": option("hardware", "KV memory, tokens.", "--kv-capacity", metavar="N"),
    "block_size": Declared("Tokens per block of KV memory.", "hardware"),
    "prefix_cache": option(
        "hardware", "Prefix cache: computed, scheduled (as vLLM) or off.", "--prefix-cache", metavar="KIND"
    ),
    "prefix_block": Declared(
        "Tokens per unit of the prefix cache, a multiple of the block size (default: a block).", "hardware"
    ),
    "cache_rule": Declared(
        "How long the prefix cache keeps the KV of finished requests: lru, or e.g. fixed:tool=5 "
        "(kvgym list cache-rules).",
        "hardware",
    ),
    "rules": option(
        "hardware", "Engine's rules: engine, as in servers today, or paper.", "--rules", metavar="NAME"
    ),
    "workers": option("cluster", "Number of equal workers.", "--workers", metavar="N"),
    "prefill_workers": option(
        "cluster", "Workers that process prompts only.", "--prefill-workers", metavar="N"
    ),
    "decode_workers": option(
        "cluster", "Workers that generate tokens only.", "--decode-workers", metavar="N"
    ),
    "link": Declared(
        "Link from prefill to decode workers: 25GB/s, 200Gbit/s, with a latency 25GB/s+1ms (default: the GPU's).",
        "cluster",
    ),
    "router": option(
        "cluster", "Router (kvgym list routers), or an agent.", "--router", metavar="NAME", complete="routers"
    ),
    "sessions": Declared(
        "When later turns of sessions arrive: at their recorded times (open), or when the turn before has finished and "
        "its think time has passed (closed).",
        "requests",
    ),
    "horizon": Declared(
        "Time at which a run stops, instead of when all requests have finished.", "window", is_time=True
    ),
    "warm_up": Declared(
        "Begin of measuring: this long (30, 30s, 500ms), or this many requests (200r), after the first arrival.",
        "window",
    ),
    "cool_down": Declared(
        "End of measuring: this long (30, 30s, 500ms), or this many requests (200r), before the last arrival.",
        "window",
    ),
}
"""All fields, by their name in :class:`~kvgym.experiments.scenario_options.ScenarioOptions`, in its order."""

ROUTERS = option(
    "cluster",
    "Routers, comma-separated (kvgym list routers).",
    "--router",
    metavar="NAMES",
    complete="routers",
)
"""``--router`` of commands that compare routers; the command splits the list."""

DESCRIBED_OPTIONS: dict[str, Declared] = {
    "model": option(
        "described",
        "Model: preset (kvgym list models) or YAML file.",
        "--model",
        metavar="NAME",
        complete="models",
        kind=str | None,
    ),
    "gpu": option(
        "described",
        "GPU preset (kvgym list gpus) or YAML file.",
        "--gpu",
        metavar="NAME",
        complete="gpus",
        kind=str | None,
    ),
    "tp": option(
        "described", "Number of GPUs (tensor parallel; default: 1).", "--tp", metavar="N", kind=int | None
    ),
    "weights": Declared(
        "Type of the weights: bf16, fp16, fp8, int8, fp4, int4 (default: the model's).",
        "described",
        kind=str | None,
    ),
    "kv_dtype": Declared("Type of the KV cache (default: 16-bit).", "described", kind=str | None),
    "memory_fraction": Declared(
        "Share of GPU memory that the engine may use (default: 0.9).", "described", kind=float | None
    ),
}
"""Fields of a :class:`~kvgym.batch_time.deployments.described.Described`, ``hardware.NAME``. They come with
``--hardware``: ``--gpu h200`` is short for ``--hardware gpu=h200``."""

_INSIDE = "hardware."

FIELDS: dict[str, Declared] = {
    **SCENARIO_OPTIONS,
    **{f"{_INSIDE}{name}": declared for name, declared in DESCRIBED_OPTIONS.items()},
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
    *taken: str, instead: Mapping[str, Declared] | None = None
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
                    raise ConfigError(f"{name} is given by {FIELDS[name].flags[0]} and by --set")
                place[last] = value
            if "hardware" in found:
                found["hardware"] = _hardware(found["hardware"], inside)
            command(options=ScenarioOptions(**found), **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [
            _parameter(name, each)
            for table in (declared, described)
            for name, each in table.items()
            if each.flags
        ]
        parameters += [parameter for parameter in own if parameter.name != "options"]
        parameters.append(_settings(fields))
        wrapped.numbers = NUMBERS & {*declared, *described}  # type: ignore[attr-defined]
        return with_parameters(wrapped, parameters)

    return decorate


def _parameter(name: str, option: Declared) -> inspect.Parameter:
    kind = option.kind or _TYPES[name]
    default = getattr(UNCHANGED, name, None)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option.info]
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
    if FIELDS[name].is_time:
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
        flags = ", ".join((*DESCRIBED_OPTIONS[name].flags, f"--set {_INSIDE}{name}")[0] for name in given)
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
