"""Options that select a scenario and set its fields, which :mod:`kvgym.cli.fields` declares."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from kvgym.cli.fields import DESCRIBED_OPTIONS, FIELDS, INSIDE, SCENARIO_OPTIONS, TIMES, Field
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
    fields = [*declared, *(f"{INSIDE}{name}" for name in described)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(settings: list[str] | None = None, **given: Any) -> None:
            found = {name: given.pop(name, getattr(UNCHANGED, name)) for name in declared}
            inside = {name: given.pop(name, None) for name in described}
            for name, value in read_settings(settings or (), fields).items():
                last = name.removeprefix(INSIDE)
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
    if name in TIMES:
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


NUMBERS = frozenset(name.removeprefix(INSIDE) for name in FIELDS if _kinds(name) <= {int, float})
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
    if name in TIMES:
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
            (*DESCRIBED_OPTIONS[name].flags(name), f"--set {INSIDE}{name}")[0] for name in given
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
