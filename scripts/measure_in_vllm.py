"""Mean latency of two policies inside a running vLLM, measured and predicted. It needs a GPU and vLLM 0.33.

    python scripts/measure_in_vllm.py --policies fcfs,ranked

A small model with random weights serves the same requests, all sent at once, under each policy. A first run under the
first policy measures the duration of batches by their load, and a linear model is fitted to it. The policies see that
model, and the simulator predicts their mean latencies with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import kvgym
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, KVGymError
from kvgym.integrations.vllm import check_release
from kvgym.policies.policy import make_policy

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""A Llama of about 0.2 billion parameters."""

BLOCKS, BLOCK_SIZE = 1500, 16
"""KV memory: about a quarter of what 200 requests take, so that the policies differ."""

GUESS = {"constant": 0.005, "per_prefill_token": 1e-6, "per_decode_token": 1e-5}
"""Batch times that the first run assumes, seconds."""

FIELDS = {
    "per_prefill_token": ("prefill_tokens",),
    "per_decode_token": ("num_decodes",),
    "per_context_token": ("decode_context", "prefill_context"),
}
"""Parameters of the linear model, with the fields of the load that they multiply."""


def requests_of(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return prompt and output lengths, tokens, (count,) each: a few long outputs among many short ones."""
    draw = np.random.default_rng(seed)
    return draw.integers(32, 512, count), np.clip(draw.lognormal(4.5, 1.0, count), 4, 1500).astype(int)


def serve(policy: str, count: int, batch_time: dict[str, float]) -> dict[str, Any]:
    """Serve the requests in vLLM; return mean latency, loads and durations of batches, and how many steps failed."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is then an object of this process
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        settings = {
            "policy": policy,
            "predictions": "requests",
            "trust_requests": True,
            "batch_time": {"kind": "affine", **batch_time},
        }
        engine = LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=4096, block_size=BLOCK_SIZE,
            num_gpu_blocks_override=BLOCKS, max_num_batched_tokens=8192, max_num_seqs=256, async_scheduling=False,
            enable_prefix_caching=False, scheduler_cls="kvgym.integrations.vllm.Scheduler",
            additional_config={"kvgym": settings},
        ).llm_engine  # fmt: skip
    scheduler = engine.engine_core.engine_core.scheduler
    draw, prompts, outputs = np.random.default_rng(1), *requests_of(count)
    began = time.perf_counter()
    for i, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True)):
        params = SamplingParams(
            max_tokens=output, ignore_eos=True, detokenize=False, extra_args={"predicted_len": output}
        )
        ids = draw.integers(10, 32000, prompt).tolist()
        engine.add_request(str(i), {"prompt_token_ids": ids}, params)
    latency, loads, seconds = [], [], []
    while engine.has_unfinished_requests():
        before = time.perf_counter()
        done = sum(output.finished for output in engine.step())
        after = time.perf_counter()
        latency += [after - began] * done
        load = scheduler._mirror.load[0]
        loads.append([1.0, *(float(sum(load[name] for name in names)) for names in FIELDS.values())])
        seconds.append(after - before)
    return {
        "mean_latency": float(np.mean(latency)), "loads": loads, "seconds": seconds,
        "decisions": scheduler.decisions, "own_rule": dict(scheduler.own_rule),
    }  # fmt: skip


def fit(loads: list[list[float]], seconds: list[float]) -> dict[str, float]:
    """Fit the linear model to measured batches; the first tenth is left out, as it compiles and captures."""
    rest = slice(len(seconds) // 10, None)
    found, _ = nnls(np.array(loads)[rest], np.array(seconds)[rest])
    return dict(zip(("constant", *FIELDS), found.tolist(), strict=True))


def predict(policy: str, count: int, batch_time: dict[str, float]) -> float:
    """Return the mean latency of a policy in the simulator, seconds."""
    prompts, outputs = requests_of(count)
    table = kvgym.RequestTable.from_columns(
        arrival_time=np.zeros(count), prompt_len=prompts, output_len=outputs, predicted_output_len=outputs
    )
    system = kvgym.System(
        kv_capacity=(BLOCKS - 1) * BLOCK_SIZE, block_size=BLOCK_SIZE, batch_time=AffineBatchTime(**batch_time),
        progress_on_evict="recompute", requeue="front", output_kv="next_iteration",
    )  # fmt: skip
    records = kvgym.simulate(system, table, policy).requests
    return float((records["finish_time"] - records["arrival_time"]).mean())


def check_machine() -> None:
    """Check that a model can be served here.

    Raises:
        ConfigError: vLLM is missing or its release unknown, or there is no GPU.
    """
    check_release()
    if not importlib.import_module("torch").cuda.is_available():
        raise ConfigError("PyTorch finds no GPU; run this where vLLM can serve a model")


def apart(policy: str, count: int, batch_time: dict[str, float]) -> dict[str, Any]:
    """Call :func:`serve` in another process, which frees the GPU when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        given = json.dumps([policy, count, batch_time, str(out)])
        done = subprocess.run([sys.executable, __file__, "--serve", given], check=False)
        if done.returncode:
            raise ConfigError(f"vLLM did not serve the requests with policy {policy}; its messages are above")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--policies", default="fcfs,ranked", help="two policies, default fcfs,ranked")
    reader.add_argument("--requests", type=int, default=200, help="number of requests, default 200")
    reader.add_argument("--serve", help=argparse.SUPPRESS)
    options = reader.parse_args(arguments)
    if options.serve:
        policy, count, batch_time, out = json.loads(options.serve)
        Path(out).write_text(json.dumps(serve(policy, count, batch_time)))
        return
    policies = options.policies.split(",")
    if len(policies) != 2:
        reader.error(f"--policies {options.policies}: expected two, separated by a comma")
    if options.requests < 2:
        reader.error(f"--requests {options.requests}: expected a whole number ≥ 2")
    try:
        for policy in policies:
            make_policy(policy)
        check_machine()
        measure(*policies, options.requests)
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None


def measure(first: str, second: str, requests: int) -> None:
    """Serve the requests under two policies, and print measured and predicted latencies."""
    measured = apart(first, requests, GUESS)
    batch_time = fit(measured["loads"], measured["seconds"])
    print("batch times, seconds:", {name: float(f"{value:.3g}") for name, value in batch_time.items()})
    means = {}
    for policy in (first, second):
        found = apart(policy, requests, batch_time)
        means[policy] = found["mean_latency"], predict(policy, requests, batch_time)
        print(
            f"{policy}: mean latency {means[policy][0]:.3f} s measured, {means[policy][1]:.3f} s predicted; "
            f"{found['decisions']} decisions, by vLLM's own rule {found['own_rule'] or 0}"
        )
    ratios = [means[second][k] / means[first][k] for k in (0, 1)]
    print(f"{second} / {first}: {ratios[0]:.3f} measured, {ratios[1]:.3f} predicted")


if __name__ == "__main__":
    main()
