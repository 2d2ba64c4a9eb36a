"""Workload specifications of inference-perf, read as workloads of kvgym.

Source: kubernetes-sigs/inference-perf, commit 7de5ef2 (2026), ``inference_perf/config/config.py`` and the modules of
``config`` and ``datagen`` that it names. Read are ``load`` (constant or Poisson, with stages) and ``data`` (random,
synthetic or shared_prefix); server, tokenizer, metrics and reports say how to measure, not what.

- **Times.** Both load types draw exponential gaps; ``constant`` then scales those of a stage to its duration. Here both
  are Poisson processes with the rates of the stages and nothing in the pauses between them.
- **Lengths** have the stated distribution, clamped to ``min`` and ``max`` and rounded, as 1,000 of its quantiles.
- **Prefixes.** Each system prompt is equally likely. If a specification sends more requests than it has questions, it
  repeats them; the question is then shared, too, and one token follows that is the request's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvgym.errors import ConfigError, shown
from kvgym.utils.reading import parse_fields, parse_yaml, read_text, validate_fields
from kvgym.workloads.base import MAX_TOKENS

SUFFIXES = (".yaml", ".yml")
"""Suffixes of specifications."""

_QUANTILES = 1000
_WHAT = "workload specification"
_FORMER = {"num_groups": "num_unique_system_prompts", "num_prompts_per_group": "num_users_per_system_prompt"}
_REMEDIES = {
    "trace": "a trace has its own times and lengths: give its file with --trace",
    "sweep": "its stages depend on the server's measurements: give stages, or use kvgym capacity",
    "multimodal": "kvgym has texts only: remove it",
}


class _Distribution(BaseModel):
    """Lengths in tokens: fields and defaults of inference-perf."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: Literal["normal", "skew_normal", "lognormal", "uniform", "poisson", "fixed"] = "normal"
    min: int = Field(default=10, ge=0, le=MAX_TOKENS)
    max: int = Field(default=1024, ge=1, le=MAX_TOKENS)
    mean: float = Field(default=512.0, ge=1, le=MAX_TOKENS)
    std_dev: float | None = Field(default=None, ge=0, le=MAX_TOKENS)
    variance: float | None = Field(default=None, ge=0, le=float(MAX_TOKENS) ** 2)
    skew: float = Field(default=0.0, ge=-1000, le=1000)
    total_count: int | None = None

    @model_validator(mode="after")
    def _ordered(self) -> _Distribution:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} is above max = {self.max}")
        return self

    def lengths(self, shifted: bool) -> dict[str, Any]:
        """Return the description of a length distribution of kvgym.

        Args:
            shifted: whether a lognormal distribution begins at ``min``, as for the types random and synthetic.
        """
        if self.type == "fixed":
            return _constant(int(self.mean))
        if self.type == "uniform":
            return {"kind": "uniform", "low": max(self.min, 1), "high": self.max}
        quantiles = np.rint(np.clip(self._quantiles(shifted), max(self.min, 1), self.max)).astype(np.int64)
        values, counts = np.unique(quantiles, return_counts=True)
        return {"kind": "discrete", "values": values.tolist(), "weights": counts.astype(float).tolist()}

    def _quantiles(self, shifted: bool) -> Any:
        """Return the quantiles in the middle of equal shares, float64 (:data:`_QUANTILES`,), tokens."""
        from scipy import stats  # slow to import

        shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        spread = math.sqrt(self.variance) if self.variance is not None else self.std_dev
        spread = 200.0 if spread is None else spread
        if self.type == "poisson":
            return stats.poisson(self.mean).ppf(shares)
        if spread == 0:
            return np.full(_QUANTILES, self.mean)
        if self.type == "lognormal":
            start = self.min if shifted else 0
            mean = self.mean - start if self.mean > start else 1.0
            sigma = math.sqrt(math.log1p((spread / mean) ** 2))
            return start + stats.lognorm(sigma, scale=mean * math.exp(-(sigma**2) / 2)).ppf(shares)
        skew = self.skew if self.type == "skew_normal" else 0.0
        return stats.skewnorm(skew, self.mean, spread).ppf(shares)


class _SharedPrefix(BaseModel):
    """System prompts and the questions that follow them."""

    model_config = ConfigDict(extra="forbid")

    num_unique_system_prompts: int = Field(default=10, ge=1)
    num_users_per_system_prompt: int = Field(default=10, ge=1)
    system_prompt_len: int | _Distribution = 100
    question_len: int | _Distribution = 50
    output_len: int | _Distribution = 50
    question_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    seed: int | None = None
    enable_multi_turn_chat: Literal[False] = False


class _Data(BaseModel):
    """The parts of ``data`` that say what is sent."""

    type: Literal["random", "synthetic", "shared_prefix"]
    input_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    shared_prefix: _SharedPrefix | None = None


class _Stage(BaseModel):
    """Requests per second for some seconds."""

    rate: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    duration: float = Field(gt=0, le=1e9, allow_inf_nan=False)


class _Load(BaseModel):
    """The parts of ``load`` that say when it is sent; ``interval`` are seconds between stages."""

    type: Literal["constant", "poisson"] = "constant"
    interval: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    stages: tuple[_Stage, ...] = Field(min_length=1)


def is_specification(path: Path) -> bool:
    """Return whether a file is a workload specification: a YAML mapping with ``data`` and ``load``.

    Raises:
        ConfigError: it has the suffix of one, and cannot be read or is no YAML.
    """
    if path.suffix.lower() not in SUFFIXES:
        return False
    content = parse_yaml(read_text(path, _WHAT), f"{_WHAT} {path}")
    return isinstance(content, Mapping) and {"data", "load"} <= content.keys()


def read_specification(path: Path) -> dict[str, Any]:
    """Return the description of the workload that a file specifies, for :func:`kvgym.workloads.make_workload`.

    Raises:
        ConfigError: the file is none, or has what kvgym does not simulate; the message has a remedy.
    """
    origin = f"{_WHAT} {path}"
    content = parse_fields(read_text(path, _WHAT), origin)
    data, load = (_section(content, name, origin) for name in ("data", "load"))
    stages = validate_fields(_Load, load, f"{origin}, load")
    sent = sum(stage.rate * stage.duration for stage in stages.stages)
    described = _requests(validate_fields(_Data, data, f"{origin}, data"), sent, origin)
    return {"name": path.name, **_times(stages), **described}


def _section(content: Mapping[str, Any], name: str, origin: str) -> dict[str, Any]:
    """Return ``data`` or ``load`` with today's names of fields; refuse what has no meaning here."""
    found = content.get(name)
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{origin}: no {name}; inference-perf's have data and load. A scenario is given with --scenario"
        )
    for field, remedy in _REMEDIES.items():
        if found.get(field):
            raise ConfigError(f"{origin}: {name}.{field}: {remedy}")
    section = dict(found)
    prefix = section.get("shared_prefix")
    if isinstance(prefix, Mapping):
        if prefix.get("enable_multi_turn_chat"):
            raise ConfigError(
                f"{origin}: {name}.shared_prefix.enable_multi_turn_chat: write these chats as prefixes with turns in "
                "a scenario file (docs/cookbook.md), or set it to false"
            )
        section["shared_prefix"] = {_FORMER.get(key, key): value for key, value in prefix.items()}
    kinds = ("random", "synthetic", "shared_prefix") if name == "data" else ("constant", "poisson")
    kind = section.get("type", "mock" if name == "data" else "constant")
    if kind not in kinds:
        instead = "give its requests with --trace" if name == "data" else "give stages of rate and duration"
        raise ConfigError(
            f"{origin}: {name}.type {shown(kind)} is none of {', '.join(kinds)}: {instead}, or use one of these"
        )
    return section


def _requests(data: _Data, sent: float, origin: str) -> dict[str, Any]:
    """Return lengths and prefixes of a workload that sends about ``sent`` requests."""
    if data.type != "shared_prefix":
        if data.input_distribution is None or data.output_distribution is None:
            raise ConfigError(
                f"{origin}: data.type {data.type} needs input_distribution and output_distribution"
            )
        return {
            "lengths": _pair(*(d.lengths(True) for d in (data.input_distribution, data.output_distribution)))
        }
    shared = data.shared_prefix or _SharedPrefix()
    question = _length(shared.question_distribution or shared.question_len)
    output = _length(shared.output_distribution or shared.output_len)
    levels = [{"count": shared.num_unique_system_prompts, "tokens": _length(shared.system_prompt_len)}]
    if sent > shared.num_unique_system_prompts * shared.num_users_per_system_prompt:
        levels.append({"count": shared.num_users_per_system_prompt, "tokens": question})
        question = _constant(1)
    return {"lengths": _pair(question, output), "prefixes": {"levels": levels}}


def _pair(prompt: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "independent", "prompt": prompt, "output": output}


def _length(given: int | _Distribution) -> dict[str, Any]:
    return given.lengths(False) if isinstance(given, _Distribution) else _constant(given)


def _constant(tokens: int) -> dict[str, Any]:
    return {"kind": "constant", "value": tokens}


def _times(load: _Load) -> dict[str, Any]:
    """Return arrivals and duration of the stages."""
    times, rates, clock = [], [], 0.0
    for number, stage in enumerate(load.stages):
        if number and load.interval:
            times.append(clock)
            rates.append(0.0)
            clock += load.interval
        times.append(clock)
        rates.append(stage.rate)
        clock += stage.duration
    arrivals = {"kind": "piecewise", "times": times, "rates": rates, "period": clock}
    return {"arrivals": arrivals, "duration": clock}
