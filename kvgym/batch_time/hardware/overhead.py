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
        source: source of the figures.
        validated: measurements that they were compared with, the year and the agreement; empty = none. Lists show the
            part before the first colon, as in "engine of 2023: 19 measured token times …".
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


NONE = EngineOverhead(base_ms=0.0, source="GPU kernels only")
"""No overhead."""


ENGINES: Mapping[str, EngineOverhead] = {
    "vllm-2026": EngineOverhead(
        base_ms=0.0,
        year=2026,
        source=(
            "vLLM 0.19 with asynchronous scheduling, which prepares an iteration while the GPU runs the one before; "
            "fitted to a log of 300 requests of Llama-3.1-8B on an RTX 4090"
        ),
        validated=(
            "vLLM 0.19, 2026: mean end-to-end latency of 300 requests on an RTX PRO 6000 within 5 %, nothing fitted"
        ),
    ),
    "vllm-2024": EngineOverhead(
        base_ms=1.0,
        year=2024,
        source=(
            "an estimate: what remained after vLLM 0.6 halved the engine's CPU work and hid part of it behind the GPU "
            "(its release notes, autumn 2024)"
        ),
        validated="vLLM 0.6.0, 2024: two runs of 320 requests of 7B and 8B models on A100, -4 and -1 %",
    ),
    NO_ENGINE: NONE,
}
"""Engines by name and year, for measured kernels and for rooflines."""


def check_engine(engine: str, engines: Mapping[str, EngineOverhead]) -> None:
    """Check that an engine is one of the given ones, or ``"none"``.

    Raises:
        ValueError: it is not; Pydantic validators need this type.
    """
    if engine not in (*engines, NO_ENGINE):
        raise ValueError(f"engine is {shown(engine)}, engines holds: {', '.join(engines) or 'none'}")


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
