"""Engines by release: the time of a batch outside the large GPU kernels, and how the next batch is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from kvgym.errors import ConfigError, field_errors, shown
from kvgym.utils.reading import Description

NO_ENGINE = "none"
"""Name of the engine that adds nothing: GPU kernels only."""


class EngineOverhead(Description):
    """An engine's part in the time of a batch, and of an answer.

    A batch takes ``base_ms + per_request_ms * requests in the batch`` outside the GPU, and ``per_layer_ms`` in each
    layer for the small kernels that operator tables and rooflines lack. There is no term for prompt tokens, as measured
    prompts of single requests do not need one (docs/validation.md).

    Attributes:
        base_ms: milliseconds per batch, including empty ones.
        per_request_ms: milliseconds per request that the batch processes.
        per_layer_ms: milliseconds of small kernels per layer. Calibrated files and some tables have measured them.
        asynchronous: whether a batch is prepared while the one before it runs, the default of policies that follow an
            engine.
        api_ms: milliseconds that a request spends between the client and the scheduler, both ways: HTTP, tokenizer,
            first answer. It holds no batch.
        library: library of the kernels, where a GPU's tables have several.
        fused_quantisation: whether the inputs of 8-bit products are quantised by the operator before them.
        year: year of the engine; None = unknown.
        source: measurements that the figures were fitted to, or another source.
        validated: measurements that they were tried on, the year and the agreement; empty = none. Lists show the
            part before the first colon, as in "engine of 2023: 19 token times …".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_ms: float = Field(ge=0)
    per_request_ms: float = Field(default=0.0, ge=0)
    per_layer_ms: float = Field(default=0.015, ge=0)
    asynchronous: bool = False
    api_ms: float = Field(default=0.0, ge=0)
    library: Literal["vllm", "tensorrt-llm"] = "vllm"
    fused_quantisation: bool = True
    year: int | None = None
    source: str = ""
    validated: str = ""

    def milliseconds(self, requests: int) -> float:
        """Return the time of a batch with this number of requests outside the GPU."""
        return self.base_ms + self.per_request_ms * requests

    def formula(self, *, layers: bool = True) -> str:
        """Return its figures in one line, for tables and reports.

        Args:
            layers: name the time per layer, which calibrated files do not need.
        """
        terms = [f"{self.base_ms:g} ms per batch"]
        terms += [f"{self.per_request_ms:g} ms per request"] if self.per_request_ms else []
        terms += [f"{self.per_layer_ms:g} ms per layer"] if layers and self.per_layer_ms else []
        notes = ["asynchronous"] if self.asynchronous else []
        notes += [f"API {self.api_ms:g} ms"] if self.api_ms else []
        return ", ".join([" + ".join(terms), *notes])


NONE = EngineOverhead(
    base_ms=0.0, per_layer_ms=0.0, source="GPU kernels only: a lower bound, engines take longer"
)
"""No overhead."""

_LOOPS = "at fixed concurrency, AIConfigurator's samples (NVIDIA, Apache-2.0)"
_CPU_TIMES = "from the history of the Vidur simulator's repository (MIT)"

_OLD_KERNELS: Mapping[str, Any] = {"per_layer_ms": 0.04, "fused_quantisation": False}
"""Launches of kernels that were not fused: measured iterations on H100 of 2025 and before take 0.03 to 0.055 ms per
layer longer than their large kernels, for models of 32 to 80 layers on 1 to 8 GPUs."""

ENGINES: Mapping[str, EngineOverhead] = {
    "vllm-2023": EngineOverhead(
        **_OLD_KERNELS,
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
        **_OLD_KERNELS,
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
        **_OLD_KERNELS,
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
    "vllm-2025": EngineOverhead(
        base_ms=0.0,
        per_request_ms=0.024,
        per_layer_ms=0.04,
        asynchronous=True,
        year=2025,
        source=f"42 settings of Llama-3-70B fp8 on H100, vLLM of autumn 2025, {_LOOPS}",
        validated=(
            "engine of autumn 2025: only the settings that it was fitted to, median error of the time per output token "
            "2.3 %, 90th percentile 11 %"
        ),
    ),
    "vllm-2025-h200": EngineOverhead(
        base_ms=0.0,
        per_request_ms=0.005,
        per_layer_ms=0.022,
        asynchronous=True,
        year=2025,
        source=(
            f"56 settings of Llama-3-70B fp8 on H200, vLLM of autumn 2025, {_LOOPS}; less per layer than on H100, of "
            "which older products were measured"
        ),
        validated=(
            "engine of autumn 2025: only the settings that it was fitted to, median error of the time per output token "
            "3.1 %, 90th percentile 9.8 %"
        ),
    ),
    "tensorrt-llm-1.0": EngineOverhead(
        base_ms=0.0,
        per_request_ms=0.019,
        per_layer_ms=0.034,
        asynchronous=True,
        library="tensorrt-llm",
        year=2025,
        source=f"177 settings of Llama-3-8B on H100, TensorRT-LLM 1.0.0rc3, {_LOOPS}",
        validated=(
            "engine of 2025: only the settings that it was fitted to, median error of the time per output token 5.2 %, "
            "90th percentile 17 % (several GPUs with many requests wait for the host)"
        ),
    ),
    "tensorrt-llm-2025": EngineOverhead(
        base_ms=0.0,
        per_layer_ms=0.0,
        asynchronous=True,
        library="tensorrt-llm",
        year=2025,
        source=f"64 settings of Llama-3-70B fp8 on H200, TensorRT-LLM of autumn 2025, {_LOOPS}: the fit ends at 0",
        validated=(
            "engine of autumn 2025 to early 2026: 52 settings of DeepSeek-V3 on B200 that it was not fitted to, median "
            "error of the time per output token 6 to 25 % by release and type; those of the fit 5.8 %"
        ),
    ),
    "sglang-2025": EngineOverhead(
        base_ms=0.0,
        per_layer_ms=0.034,
        asynchronous=True,
        year=2025,
        source=f"24 settings of Qwen3-235B fp8 on H200, SGLang 0.5.6, {_LOOPS}",
        validated=(
            "engine of late 2025: 33 settings of DeepSeek-V3 on B200 that it was not fitted to, median error of the "
            "time per output token 12 %; those of the fit 8.7 %"
        ),
    ),
    "sglang-2026": EngineOverhead(
        base_ms=0.0,
        per_layer_ms=0.0,
        asynchronous=True,
        year=2026,
        source=f"50 settings of DeepSeek-V3 on B200, SGLang 0.5.9, {_LOOPS}: the fit ends at 0",
        validated=(
            "engine of early 2026: only the settings that it was fitted to, median error of the time per output token "
            "3.9 % with nvfp4, 16 % with fp8_block"
        ),
    ),
    "vllm-2026": EngineOverhead(
        base_ms=0.0,
        per_layer_ms=0.015,
        asynchronous=True,
        api_ms=8.0,
        year=2026,
        source=(
            "per layer and API: fifteen load stages of vLLM 0.15.1 on H100, among 0.01 to 0.04 ms and by the time to "
            "first token; per batch and request: a log of 300 requests, vLLM 0.19, Llama-3.1-8B on an RTX 4090, where "
            "the fit ends at 0, as an iteration is prepared while the GPU runs the one before"
        ),
        validated=(
            "engine of 2026: a log of 300 requests, vLLM 0.19, Llama-3.1-8B on an RTX PRO 6000: mean end-to-end "
            "latency +0.3 %, rank correlation 0.9994; the fifteen stages that it was chosen on: end-to-end 1.6 %, time "
            "to first token 5.7 %, medians"
        ),
    ),
    NO_ENGINE: NONE,
}
"""Engines by name, as on one GPU."""

ENGINES_OF_SEVERAL: Mapping[str, EngineOverhead] = {
    "early-2024": EngineOverhead(
        **_OLD_KERNELS,
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
