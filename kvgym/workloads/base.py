"""Base classes of workload descriptions: immutable, strict models that convert to JSON, and random ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvgym.errors import ConfigError, WorkloadError, field_errors, shown

MAX_TOKENS = 2**31 - 1
"""Largest length in a request table, tokens."""


TRACE_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
"""Suffixes that distinguish trace files from presets and other files; with ``trace:`` a file may have any suffix."""

MAX_REQUESTS = 10_000_000
"""Most requests that a workload draws, about 1 GB in a run; set ``kvgym.workloads.base.MAX_REQUESTS`` to allow more."""


def check_size(count: float, why: str) -> None:
    """Check, before memory is allocated, that at most :data:`MAX_REQUESTS` requests will be drawn.

    Args:
        count: estimated number.
        why: what causes the number, for the message.

    Raises:
        WorkloadError: there would be more.
    """
    if not count <= MAX_REQUESTS:
        raise WorkloadError(
            f"{why}: about {count:,.4g} draws; at most {MAX_REQUESTS:,} are allowed "
            "(kvgym.workloads.base.MAX_REQUESTS); lower the rate, the duration or the number of requests"
        )


def _other_keys(value: Any) -> list[Any]:
    """Return the keys in nested mappings that are not strings."""
    if isinstance(value, list | tuple):
        return [key for item in value for key in _other_keys(item)]
    if not isinstance(value, Mapping):
        return []
    return [key for key in value if not isinstance(key, str)] + _other_keys(list(value.values()))


class Spec(BaseModel):
    """Immutable description; unknown keys and invalid values raise :class:`ConfigError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **data: Any) -> None:
        """Validate ``data``.

        Raises:
            ConfigError: names each wrong field, its value and the reason.
        """
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError("; ".join(field_errors(error, type(self), data))) from None
        except TypeError:
            if not (wrong := _other_keys(data)):
                raise
            raise ConfigError(f"there is no field {shown(wrong[0])}; names of fields are strings") from None


class IntRange(Spec):
    """An integer drawn uniformly from ``low`` to ``high``, both included, once per sample."""

    low: int = Field(ge=0, le=MAX_TOKENS)
    high: int = Field(ge=0, le=MAX_TOKENS)

    @model_validator(mode="after")
    def _ordered(self) -> IntRange:
        if self.high < self.low:
            raise ValueError(f"high = {self.high} is below low = {self.low}")
        return self

    def draw(self, rng: np.random.Generator) -> int:
        """Return one draw."""
        return int(rng.integers(self.low, self.high, endpoint=True))


class FloatRange(Spec):
    """A number drawn uniformly from [``low``, ``high``), once per sample."""

    low: float = Field(ge=0)
    high: float = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> FloatRange:
        if self.high < self.low:
            raise ValueError(f"high = {self.high} is below low = {self.low}")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """Return one draw."""
        return float(rng.uniform(self.low, self.high))
