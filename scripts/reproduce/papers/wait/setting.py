"""The paper's hardware and engine rules, and scenarios with them."""

from __future__ import annotations

from typing import Any

from kvgym.experiments.scenario import Scenario

HARDWARE = "llama2-7b-a100-tp1"
ENGINE = "none"
"""The paper's experiments run on the Vidur simulator, which counts no work outside the GPU."""

RULES = {"first_token": "decode", "progress_on_evict": "lost", "requeue": "back"}
AFFINE: dict[str, Any] = {"kind": "affine", "constant": 10.868e-3, "per_context_token": 0.3061e-6}
"""Eq. (1) fitted to the calibrated hardware, as the experiment ``figure-3`` finds it, rounded."""

BIN_RATES = (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)


def scenario_of(
    name: str, workload: dict[str, Any], capacity: int, model: dict[str, Any] | None, **rules: Any
) -> Scenario:
    """Return a scenario of the paper's engine; ``model`` None is the calibrated hardware."""
    time = {"hardware": HARDWARE, "engine": ENGINE} if model is None else {"batch_time": model}
    content = {"name": name, "summary": name, "workload": workload, "kv_capacity": capacity, **time}
    return Scenario.model_validate({**content, "system": {**RULES, **rules}})
