"""Engine overhead: the time of a batch outside the GPU kernels, for scheduling, input preparation and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from kvgym.errors import ConfigError, field_errors, shown
from kvgym.utils.reading import Description

NO_ENGINE = "none"
"""Name of the engine that adds nothing: GPU kernels only."""


class EngineOverhead(Description):
    """Time of a batch outside the GPU kernels: ``base_ms + per_request_ms * requests in the batch``.

    There is no term for prompt tokens, as measured prompts of single requests do not need one (docs/validation.md).

    Attributes:
        base_ms: milliseconds per batch, including empty ones.
        per_request_ms: milliseconds per request that the batch processes.
        year: year of the engine; None = unknown.
        source: measurements that the figures were fitted to, or another source.
        validated: measurements that they were tried on, the year and the agreement; empty = none. Lists show the
            part before the first colon, as in "engine of 2023: 19 token times …".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_ms: float = Field(ge=0)
    per_request_ms: float = Field(default=0.0, ge=0)
    year: int | None = None
    source: str = ""
    validated: str = ""

    def milliseconds(self, requests: int) -> float:
        """Return the overhead of a batch with this number of requests."""
        return self.base_ms + self.per_request_ms * requests

    def formula(self) -> str:
        """Return the overhead as a formula, for tables and reports."""
        if self.per_request_ms == 0:
            return f"{self.base_ms:g} ms per batch"
        return f"{self.base_ms:g} ms per batch + {self.per_request_ms:g} ms per request"


NONE = EngineOverhead(base_ms=0.0, source="GPU kernels only: a lower bound, engines take longer")
"""No overhead."""

_CPU_TIMES = "from the history of the Vidur simulator's repository (MIT)"

ENGINES: Mapping[str, EngineOverhead] = {
    "vllm-2023": EngineOverhead(
        base_ms=9.0,
        per_request_ms=0.29,
        year=2023,
        source=(
            "19 token times of Llama-2-70B on two A100, batches of 1 to 25, published with the Splitwise simulator "
            "(MIT; Patel et al., ISCA 2024)"
        ),
        validated=(
            "engine of 2023: the 19 token times that it was fitted to, median error 4.3 %, largest 6.8 %; on those of "
            "a batch size left out of the fit, 3.6 and 10.5 %; larger batches are extrapolated"
        ),
    ),
    "early-2024": EngineOverhead(
        base_ms=1.27,
        per_request_ms=0.109,
        year=2024,
        source=f"4 CPU times of batches of 8 to 64 decodes, Llama-2-7B on one A100, {_CPU_TIMES}",
        validated=(
            "engine of early 2024: only the 4 CPU times that it was fitted to, largest error 3.4 %; latency a third "
            "above vLLM 0.6's, half a year later"
        ),
    ),
    "vllm-2024": EngineOverhead(
        base_ms=1.0,
        year=2024,
        source=(
            "an estimate: what remained after vLLM 0.6 halved the engine's CPU work and hid part of it behind the GPU "
            "(its release notes, autumn 2024)"
        ),
        validated=(
            "engine of autumn 2024: two runs of 320 requests, vLLM 0.6.0, 8B and 7B models on A100, mean end-to-end "
            "latency -4 and -1 %"
        ),
    ),
    "vllm-2026": EngineOverhead(
        base_ms=0.0,
        year=2026,
        source=(
            "a log of 300 requests, vLLM 0.19, Llama-3.1-8B on an RTX 4090: the fit ends at its lower bound, as "
            "asynchronous scheduling prepares an iteration while the GPU runs the one before"
        ),
        validated=(
            "engine of 2026: a log of 300 requests, vLLM 0.19, Llama-3.1-8B on an RTX PRO 6000: mean end-to-end "
            "latency +3.6 %, rank correlation 0.9997"
        ),
    ),
    NO_ENGINE: NONE,
}
"""Engines by name, as on one GPU."""

ENGINES_OF_SEVERAL: Mapping[str, EngineOverhead] = {
    "early-2024": EngineOverhead(
        base_ms=3.75,
        per_request_ms=0.156,
        year=2024,
        source=f"4 CPU times of batches of 8 to 32 decodes, Llama-2-70B on two A100, {_CPU_TIMES}",
        validated=(
            "engine of early 2024: the 4 CPU times that it was fitted to, largest error 4.0 %, and one of four GPUs, "
            "64 decodes, -22 %"
        ),
    ),
}
"""Engines that differ if a model is split over several GPUs, as they then communicate between processes."""


def engines_of(tensor_parallel: int) -> dict[str, EngineOverhead]:
    """Return the engines by name for a model on this number of GPUs."""
    return {**ENGINES, **(ENGINES_OF_SEVERAL if tensor_parallel > 1 else {})}


def check_engine(engine: str, engines: Mapping[str, EngineOverhead]) -> None:
    """Check that an engine is one of the given ones.

    Raises:
        ValueError: it is not; Pydantic validators need this type.
    """
    if engine not in engines:
        raise ValueError(f"engine is {shown(engine)}; valid are {', '.join(engines)}, and names in engines")


def parse_overhead(value: Mapping[str, Any]) -> EngineOverhead:
    """Build the overhead from a mapping.

    Raises:
        ConfigError: a wrong field, which the message names.
    """
    try:
        return EngineOverhead.model_validate(dict(value))
    except ValidationError as error:
        wrong = field_errors(error, EngineOverhead, value)[0]
        raise ConfigError(
            f"engine overhead: {wrong}; fields: {', '.join(EngineOverhead.model_fields)}"
        ) from None
