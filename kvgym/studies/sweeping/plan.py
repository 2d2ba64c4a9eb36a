"""Sweep plans: a scenario, fields with values, policies and seeds, in Python or YAML."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvgym.errors import ConfigError, UnknownNameError, field_errors, shown, some
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario, located
from kvgym.metrics.catalogue import metric_info
from kvgym.studies.sweeping.fields import TEXTS, check_fields, parse_values
from kvgym.utils.arguments import explained
from kvgym.utils.checks import MAX_SEEDS
from kvgym.utils.reading import Description, parse_fields, read_text, shipped_texts
from kvgym.utils.specs import split_specs

Value = int | float | bool | str | None
MOST_POINTS = 100_000
SEEDS = 5

DEFAULT_METRICS = (
    "e2e_latency_mean", "ttft_mean", "ttft_p99", "tbt_p99", "token_throughput", "request_throughput", "kv_utilisation",
    "evictions",
)  # fmt: skip


class SweepPlan(Description):
    """A description of a sweep: JSON-able, frozen, unknown keys are rejected.

    Attributes:
        name: id.
        summary: one line.
        scenario: name, file or fields of the scenario to vary.
        fields: values by field, see :mod:`.fields`: a list, or text such as ``"5:50:5"``. A field with one value is
            set at every point and not swept.
        combine: ``"grid"`` = every combination, the last field fastest; ``"zip"`` = the first values of all fields,
            the second, …
        points: points in addition to those of ``fields``, each with a value for the same fields.
        policies: policies to run at every point; empty = those of the scenario.
        seeds: number of seeds; None = 5, or 1 if every point replays a trace, which is the same for all seeds.
        first_seed: the first seed.
        metrics: metrics in table and report; all are saved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "sweep"
    summary: str = ""
    scenario: str | dict[str, Any] = DEFAULT_SCENARIO
    fields: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    combine: Literal["grid", "zip"] = "grid"
    points: tuple[dict[str, Value], ...] = ()
    policies: tuple[str, ...] = ()
    seeds: int | None = Field(default=None, ge=1, le=MAX_SEEDS)
    first_seed: int = Field(default=0, ge=0)
    metrics: tuple[str, ...] = DEFAULT_METRICS

    @field_validator("fields", mode="before")
    @classmethod
    def _values(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: _listed(str(name), values) for name, values in given.items()}

    @field_validator("policies", "metrics", mode="before")
    @classmethod
    def _texts(cls, given: Any) -> Any:
        return tuple(split_specs(given)) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _consistent(self) -> SweepPlan:
        for name in self.metrics:
            metric_info(name)
        if not self.metrics:
            raise ValueError("metrics: expected at least one")
        lengths = {name: len(values) for name, values in self.fields.items() if len(values) > 1}
        if self.combine == "zip" and len(set(lengths.values())) > 1:
            raise ValueError(f"fields combined by zip have different numbers of values: {lengths}")
        for point in self.points:
            if self.swept and set(point) != set(self.swept):
                raise ValueError(f"points: {point} has other fields than {', '.join(self.swept)}")
        return self

    @property
    def swept(self) -> tuple[str, ...]:
        """The fields with several values, in order."""
        found = tuple(name for name, values in self.fields.items() if len(values) > 1)
        return found or (tuple(self.points[0]) if self.points else ())

    def all_seeds(self, scenarios: Sequence[Scenario]) -> tuple[int, ...]:
        """Return the seeds, the same at every point.

        Args:
            scenarios: the scenarios of the points.
        """
        default = 1 if all(scenario.replays for scenario in scenarios) else SEEDS
        return tuple(range(self.first_seed, self.first_seed + (self.seeds or default)))

    @property
    def fixed(self) -> dict[str, Value]:
        """The fields with one value, unless points set them."""
        return {
            name: values[0]
            for name, values in self.fields.items()
            if len(values) == 1 and name not in self.swept
        }

    def make_points(self) -> tuple[dict[str, Value], ...]:
        """Return the points, each with a value per swept field; one point without fields if nothing is swept.

        Raises:
            ConfigError: there are too many points.
        """
        several = {name: values for name, values in self.fields.items() if len(values) > 1}
        found: list[dict[str, Value]] = []
        if several or not self.points:
            grid = self.combine == "grid"
            lengths = [len(values) for values in several.values()]
            count = math.prod(lengths) if grid else max([1, *lengths])
            if count > MOST_POINTS:
                raise ConfigError(f"a grid of {count:,} points; expected at most {MOST_POINTS:,}")
            if grid or not several:
                found = grid_points(several)
            else:
                found = [dict(zip(several, row, strict=True)) for row in zip(*several.values(), strict=True)]
        found += [{name: point[name] for name in self.swept} for point in self.points]
        return tuple(dict(pairs) for pairs in dict.fromkeys(tuple(point.items()) for point in found))

    def make_scenario(self) -> Scenario:
        """Return the scenario to vary.

        Raises:
            ConfigError: the scenario is wrong or does not exist.
        """
        if isinstance(self.scenario, str):
            return load_scenario(self.scenario)
        content = {"name": self.name, "summary": self.summary, **self.scenario}
        try:
            return Scenario.model_validate(content)
        except ValidationError as error:
            raise ConfigError(_first(error, "scenario", Scenario, content)) from None

    def check(self) -> None:
        """Check that the fields exist.

        Raises:
            ConfigError: a field does not exist, or belongs to a policy that is not in the sweep.
        """
        check_fields([*self.fields, *self.swept], self.policies or self.make_scenario().policies)


def grid_points(values: Mapping[str, Sequence[Any]], most: int | None = None) -> list[dict[str, Any]]:
    """Return the points of a grid in order, the last field changing fastest.

    Args:
        values: values by field; without fields, the grid has one point.
        most: maximum number of points, drawn without replacement by a generator with seed 0; None = all.
    """
    rows: Iterable[Sequence[Any]] = itertools.product(*values.values())
    sizes = tuple(map(len, values.values()))
    if most is not None and most < math.prod(sizes):
        drawn = np.sort(np.random.default_rng(0).choice(math.prod(sizes), most, replace=False))
        places = np.stack(np.unravel_index(drawn, sizes), axis=1).tolist()
        rows = ([own[k] for own, k in zip(values.values(), place, strict=True)] for place in places)
    return [dict(zip(values, row, strict=True)) for row in rows]


def _listed(name: str, values: Any) -> Any:
    """Return the values of a field as a list, from text, which may be a range, or from a NumPy array."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str):
        listed = parse_values(values, f"field {name}: ")
    elif isinstance(values, Sequence):
        if not values:
            raise ValueError(f"{name}: expected at least one value")
        listed = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    else:
        listed = (values,)
    return tuple("none" if value is None else value for value in listed) if name in TEXTS else listed


def make_plan(content: Mapping[str, Any] | SweepPlan, origin: str = "sweep") -> SweepPlan:
    """Return a plan from its fields.

    Args:
        content: fields of :class:`SweepPlan`; a plan is returned unchanged.
        origin: source of the fields, for messages.

    Raises:
        ConfigError: a field is unknown or wrong.
    """
    if isinstance(content, SweepPlan):
        return content
    try:
        return SweepPlan.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_first(error, origin, SweepPlan, content)) from None


def _first(error: ValidationError, origin: str, model: type[BaseModel], content: Mapping[str, Any]) -> str:
    wrong = field_errors(error, model, content, "field ")[0]
    return f"{origin}: {wrong}; fields: {', '.join(model.model_fields)}"


def plan_names() -> dict[str, str]:
    """Return the sweeps that come with kvgym and their summaries."""
    return {name: load_plan(name).summary for name in sorted(shipped_texts("experiment"))}


@explained
def load_plan(name_or_path: str | Path) -> SweepPlan:
    """Return a plan by name, or from a YAML file (a path, or a name ending in .yaml or .yml).

    Raises:
        UnknownNameError: no plan with that name comes with kvgym.
        ConfigError: the file cannot be read or a field is wrong.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        return _parse(read_text(path, "sweep file"), str(path), path.stem, path.parent)
    if name_or_path not in shipped_texts("experiment"):
        raise UnknownNameError("sweep", name_or_path, shipped_texts("experiment"))
    return _parse(shipped_texts("experiment")[name_or_path], f"{name_or_path}.yaml", name_or_path)


def _parse(text: str, origin: str, name: str, folder: Path | None = None) -> SweepPlan:
    where = f"sweep file {origin}"
    fields = parse_fields(text, where)
    if folder is not None and isinstance(fields.get("scenario"), dict):
        fields["scenario"] = located(fields["scenario"], folder)
    return make_plan({"name": name, **fields}, where)


def read_fields(texts: Sequence[str]) -> tuple[SweepPlan | None, dict[str, Any]]:
    """Return the plan named among texts, if any, and the fields that others set, as in ``rate=5:50:5``.

    Raises:
        ConfigError: a text is neither the name of a plan nor a field, or a field is given twice.
    """
    named, given = None, {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if equals and name and values:
            if name in given:
                raise ConfigError(f"field {name} is given twice; put its values into one")
            given[name] = values
        elif not equals and named is None:
            named = load_plan(text)
        else:
            raise ConfigError(
                f"{shown(text)}: expected name=values" + ("" if equals else "; a plan is already named")
            )
    return named, given


def changes_of(old: SweepPlan, new: SweepPlan) -> str:
    """Return the fields in which a plan differs from an old one, "" if there are none."""
    before, after = old.model_dump(), new.model_dump()
    fields = {**before.pop("fields"), **before}, {**after.pop("fields"), **after}
    names = [
        name for name in dict.fromkeys([*fields[0], *fields[1]]) if fields[0].get(name) != fields[1].get(name)
    ]
    said = [f"{name} = {_shown(fields[1].get(name))}, was {_shown(fields[0].get(name))}" for name in names]
    return "; ".join(said[:3]) + "; …" * (len(said) > 3)


def _shown(given: Any) -> str:
    return some(given, 40) or "–" if isinstance(given, list | tuple) else shown(given, 40)
