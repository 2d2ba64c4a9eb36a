"""Fields that can be swept: options of a scenario by name, and hyperparameters of policies."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, get_args, get_type_hints

from kvgym.batch_time.deployments.described import HardwareName
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario import Scenario, SystemSettings
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.utils.specs import parse_spec, parse_value, split_specs
from kvgym.workloads.workload import describe_workload, make_workload

_TYPES = {name: set(get_args(kind)) or {kind} for name, kind in get_type_hints(ScenarioOptions).items()}
"""Types of the options of a scenario, by name."""

DIRECT = tuple(_TYPES)
"""Fields that are set by their name alone, see :class:`~kvgym.experiments.scenario_options.ScenarioOptions`."""

TEXTS = tuple(name for name, kinds in _TYPES.items() if kinds <= {str, type(None)})
"""Text fields, where the value ``none`` is an ordinary word."""

PREFIXES = ("predictions", "workload", "system", "hardware")
"""Parts of a scenario with fields that are set by ``part.name``, in the workload also deeper."""

RANGE_FORMS = "name=low:high:step, name=low:high:*factor"
FORM = f"write name=1,2,5, {RANGE_FORMS}, or name=a|b where values have commas"
MOST_VALUES = 10_000
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def parse_values(text: str, where: str = "") -> tuple[Any, ...]:
    """Parse values such as ``"5:50:5"``, ``"1:64:*2"``, ``"8000,16492"`` or ``"none|noisy:epsilon=0.5"``.

    Ranges include both ends and are exact decimals; ``*`` multiplies. Lists may hold ranges. As in lists of policies,
    ``key=value`` belongs to the value before it.

    Args:
        text: the values.
        where: prefix of messages.

    Raises:
        ConfigError: a value is missing, or a range is empty or too long.
    """
    parts = [part.strip() for part in text.split("|" if "|" in text else ",")]
    if not all(parts):
        raise ConfigError(f"{where}{shown(text)}: a value is missing; {FORM}")
    if "|" not in text:
        parts = split_specs(text)
    values: list[Any] = []
    for part in parts:
        if is_range(part):
            values += number_range(part, where)
        else:
            values.append(parse_value(part))
    return tuple(values)


def is_range(text: str) -> bool:
    """Whether a text is three numbers separated by colons; the last may be a factor."""
    ends = [end.strip() for end in text.split(":")]
    return len(ends) == 3 and all(_NUMBER.fullmatch(end.removeprefix("*")) for end in ends)


def number_range(text: str, where: str = "") -> tuple[int | float, ...]:
    """Return ``low, low + step, …`` up to ``high`` of ``low:high:step``, or ``low, low · factor, …`` with ``*factor``.

    The values are integers if all three numbers are.

    Raises:
        ConfigError: the text is not a range, or has no value or more than :data:`MOST_VALUES` values.
    """
    try:
        low, high, step = (Decimal(part.strip().removeprefix("*")) for part in text.split(":"))
    except (ValueError, InvalidOperation):
        raise ConfigError(f"{where}{text} is not low:high:step; write {RANGE_FORMS}") from None
    by_factor = text.rpartition(":")[2].strip().startswith("*")
    if not (low.is_finite() and high.is_finite() and step.is_finite() and low <= high):
        raise ConfigError(f"{where}{text}: expected finite numbers, low ≤ high")
    if by_factor and not (step > 1 and low > 0):
        raise ConfigError(f"{where}{text}: expected a factor > 1 and low > 0")
    if not by_factor and step <= 0:
        raise ConfigError(f"{where}{text}: expected step > 0")
    values = [low]
    while (after := values[-1] * step if by_factor else low + len(values) * step) <= high:
        if len(values) == MOST_VALUES:
            raise ConfigError(f"{where}{text}: more than {MOST_VALUES:,} values; use a larger step")
        values.append(after)
    whole = all(x == x.to_integral_value() for x in (low, step)) and "." not in text
    return tuple(int(x) if whole else float(x) for x in values)


def check_fields(names: Sequence[str], policies: Sequence[str | Policy]) -> None:
    """Check that fields exist, and that hyperparameters among them belong to a policy of the sweep.

    Raises:
        UnknownNameError: a field does not exist.
        ConfigError: a hyperparameter belongs to a policy that is not in the sweep.
    """
    compared = {make_policy(policy).info.name for policy in policies}
    for name in names:
        part, dot, rest = name.partition(".")
        if name in DIRECT or (dot and rest and _part(part) in PREFIXES):
            continue
        if dot and rest and (part in POLICIES or part in compared):
            if part not in compared:
                raise ConfigError(
                    f"field {shown(name)}: policy {part} is not in the sweep; it compares "
                    f"{', '.join(sorted(compared))}"
                )
            continue
        known = [*DIRECT, *(f"{p}.…" for p in PREFIXES), "POLICY.hyperparameter"]
        raise UnknownNameError("field", name, known)


def set_fields(base: Scenario, point: Mapping[str, Any]) -> Scenario:
    """Return a scenario with fields set; hyperparameters of policies are ignored.

    Args:
        base: the scenario.
        point: values by field: the fields of :data:`DIRECT`, ``system.NAME``, ``predictions.NAME`` (also
            ``prediction.NAME``), ``hardware.NAME`` of a model and a GPU and ``workload.NAME``, at any depth of the
            workload's description.

    Raises:
        ConfigError: a value is out of range, or a field does not fit the scenario.
    """
    direct = {name: _typed(name, value) for name, value in point.items() if name in DIRECT}
    direct.setdefault("too_long", base.too_long)
    if direct.get("workers") == 1:
        direct.pop("router", None)  # it applies to the points with several workers
    parts = {name: name.partition(".") for name in point}
    options = {rest: point[name] for name, (part, _, rest) in parts.items() if rest and part == "hardware"}
    if options:
        given = HardwareName(direct.get("hardware", base.hardware) or "")
        if "hardware" in direct and not given.described:
            raise ConfigError(
                f"hardware.{next(iter(options))} is for hardware of a model and a GPU (docs/hardware.md); hardware = "
                f"{shown(given)} is a file"
            )
        direct["hardware"] = given.replaced(options) if given.described else HardwareName.of(options)
    inner = {
        rest: point[name] for name, (part, _, rest) in parts.items() if rest and _part(part) == "predictions"
    }
    whole = direct.pop("predictions", None) if inner else None
    chosen = build_scenario(base, **direct)
    changes: dict[str, Any] = {}
    if whole is not None:  # may be complete only together with the fields inside it
        kind, options = parse_spec(whole, "prediction")
        options |= {rest: value for rest, value in inner.items() if "." not in rest}
        changes["workload"] = {**describe_workload(chosen.workload), "predictions": {"kind": kind, **options}}
    for name, value in point.items():
        part, _, rest = parts[name]
        if _part(part) == "system" and rest:
            if rest not in SystemSettings.model_fields:
                raise UnknownNameError("field of system", rest, SystemSettings.model_fields)
            changes["system"] = {**changes.get("system", chosen.system.model_dump()), rest: value}
        elif _part(part) in ("predictions", "workload") and rest:
            inside = rest if part == "workload" else f"predictions.{rest}"
            described = changes.get("workload", describe_workload(chosen.workload))
            changes["workload"] = _set_inside(described, inside.split("."), value, name)
    if not changes:
        return chosen.model_copy(update={"name": base.name, "summary": base.summary})
    return chosen.override(**changes).model_copy(update={"name": base.name, "summary": base.summary})


def with_hyperparameters(spec: str, point: Mapping[str, Any]) -> Policy:
    """Return a policy with the hyperparameters that a point sets.

    Raises:
        ConfigError: the policy has no such hyperparameter, or the spec sets it too.
    """
    name = make_policy(spec).info.name
    own = {field.partition(".")[2]: value for field, value in point.items() if _of_policy(field, name)}
    if not own:
        return make_policy(spec)
    _, given = parse_spec(spec, "policy")
    if both := sorted(given.keys() & own.keys()):
        raise ConfigError(f"policy {shown(spec)} sets {both[0]}, which is swept; remove one of the two")
    return make_policy(spec, **own)


def _of_policy(field: str, name: str) -> bool:
    part, dot, _ = field.partition(".")
    return bool(dot) and part == name and part not in PREFIXES


def _part(name: str) -> str:
    """Return the name of a part of a scenario; ``prediction`` stands for ``predictions``."""
    return "predictions" if name == "prediction" else name


def _typed(name: str, value: Any) -> Any:
    """Return a value with the type of its option."""
    kinds = _TYPES[name]
    if Path in kinds:
        return Path(str(value))
    if name in TEXTS:
        return "none" if value is None else str(value)
    if str in kinds:  # a number or text
        return value
    if bool in kinds:
        found = {"true": True, "false": False}.get(str(value).lower())
        if found is None:
            raise ConfigError(f"{name} = {shown(value)}; expected true or false")
        return found
    whole = float not in kinds
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{name} = {shown(value)}; expected a {'whole ' if whole else ''}number")
    return value


def _set_inside(described: Mapping[str, Any], path: Sequence[str], value: Any, name: str) -> dict[str, Any]:
    """Return the description of a workload with one value set; the path may be one of its preset."""
    spec = make_workload(dict(described)).spec.model_dump(mode="json", exclude_none=True)
    found = dict(copy.deepcopy(dict(described)))
    if len(path) == 1:
        return {**found, path[0]: value}
    top = copy.deepcopy(spec.get(path[0]))
    place: Any = top
    for step in path[1:-1]:
        place = _entry(place, step, name)
    last = path[-1]
    if isinstance(place, list):
        place[_index(place, last, name)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        kind = "; set predictions too, as in predictions=noisy" if path[0] == "predictions" else ""
        raise ConfigError(
            f"field {shown(name)}: the workload has no {'.'.join(path[:-1])} with fields to set{kind}"
        )
    return {**found, path[0]: top}


def _entry(place: Any, step: str, name: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, step, name)]
    if isinstance(place, dict) and step in place:
        return place[step]
    there = ", ".join(place) if isinstance(place, dict) else "nothing"
    raise ConfigError(f"field {shown(name)}: the workload has no {shown(step)} there; valid: {there}")


def _index(place: Sequence[Any], step: str, name: str) -> int:
    if not step.isdecimal() or int(step) >= len(place):
        raise ConfigError(
            f"field {shown(name)}: expected a number below {len(place)} instead of {shown(step)}"
        )
    return int(step)
