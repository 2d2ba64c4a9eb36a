"""Time of a decision in vLLM: kvgym's policies and vLLM's own rule.

python scripts/conformance time --version 0.33.0
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance import vllm_engine
from conformance.cases import Case
from conformance.integration import LIMITS
from conformance.integration_engine import Engine
from conformance.wheel import default_cache, unpacked
from kvgym.errors import KVGymError

POLICIES = ("fcfs", "vllm_v1", "sarathi", "mc_sf", "ranked")
STEPS, OUTPUT = 300, 400


def load(running: int) -> Case:
    """Return requests that all run at the same time, and as many that wait for a place."""
    count = 2 * running
    return Case(
        arrival=(0.0,) * count, prompt=(64,) * count, output=(OUTPUT,) * count, priority=(0,) * count,
        blocks=running * (64 + OUTPUT) // 16, block_size=16,
        settings=LIMITS | {"max_num_seqs": running, "max_num_batched_tokens": 1 << 16},
    )  # fmt: skip


def timed(scheduler: Any, case: Case, make_request: Any) -> tuple[float, float]:
    """Return the median CPU seconds of ``schedule()``, and of the decision in it; 0 without a policy of kvgym."""
    for i in range(len(case.arrival)):
        scheduler.add_request(make_request(i))
    decided, decide = [], getattr(scheduler, "_decide", None)
    if decide is not None:

        def measured() -> Any:
            began = time.thread_time()
            plan = decide()
            decided.append(time.thread_time() - began)
            return plan

        scheduler._decide = measured
    whole = []
    for _ in range(STEPS):
        began = time.thread_time()
        output = scheduler.schedule()
        whole.append(time.thread_time() - began)
        names = list(output.num_scheduled_tokens)
        emits = [not scheduler.requests[name].is_prefill_chunk for name in names]
        scheduler.update_from_output(output, vllm_engine._outputs(names, emits))
    rest = slice(STEPS // 6, None)  # after the prompts
    return statistics.median(whole[rest]), statistics.median(decided[rest]) if decided else 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    reader = argparse.ArgumentParser(
        "python scripts/conformance time", description="Time of a decision in vLLM."
    )
    add = reader.add_argument
    add("--version", default="0.33.0", help="release of vLLM, default 0.33.0")
    add("--source", type=Path, metavar="FOLDER", help="folder with the package vllm, in place of its wheel")
    add("--cache", type=Path, metavar="FOLDER", help=f"folder for wheels, default {default_cache()}")
    add("--running", type=int, default=256, help="running requests, default 256")
    add(
        "--policy", action="append", metavar="POLICY", help=f"may be repeated; default: {', '.join(POLICIES)}"
    )
    options = reader.parse_args(arguments)
    case = load(options.running)
    try:
        folder = options.source or unpacked("vllm", options.version, options.cache or default_cache())
        engine = Engine(folder, options.version)
        whole, _ = timed(engine._make_scheduler(case), case, lambda i: engine._make_request(case, i))
        print(f"vLLM's own rule: schedule() {1e6 * whole:.0f} µs at {options.running} running requests")
        settings = {"predictions": "requests", "trust_requests": True}
        carried = {"predicted_len": OUTPUT}
        for policy in options.policy or POLICIES:
            scheduler = engine.make_scheduler(case, settings | {"policy": policy})
            whole, decision = timed(scheduler, case, lambda i: engine.make_request(case, i, carried))
            print(
                f"{policy}: schedule() {1e6 * whole:.0f} µs, of which the decision {1e6 * decision:.0f} µs; "
                f"{scheduler.decisions} decisions, {sum(scheduler.own_rule.values())} by vLLM's own rule"
            )
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None
