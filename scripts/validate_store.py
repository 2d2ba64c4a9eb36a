"""Compare host memory, and a store below it, with two published measurements of LMCache.

**Agents' sessions, host memory and NVMe** (ATOM, two MI300X).

Up to 32 users replay recorded sessions of an agent for 20 minutes. The KV of the GPUs (78 % of their memory, 8-bit) has
below it nothing, host memory (64 GB), or that and NVMe (200 GB), in units of 256 tokens. LMCache gives each of the two
ranks a memory of its own of the size that is set; by the recipe's words it is the size of all. So both are computed.

The sessions are not at hand, so others are drawn. From the tool that replays them are the quartiles of the first
prompts (8,832, 16,512, 20,160 and 71,168 tokens; at 100,000, the limit of the run, a new session begins), the beginning
that sessions share (half of 15,000 tokens of tools and instructions), and the users: 7 more come every 30 s
while there is headroom. From the recipe are 93 to 97 % of each prompt from the turn before, and outputs of 100 to 500
tokens. Assumed are 5 s from an answer to the next turn on average, 25 GB/s from the host for each GPU and 5 GB/s from
the drive (the defaults), and a roofline of the GPUs, as no kernels are measured. Nothing is fitted: absolute
times depend on all of this; what can be compared are signs, and the order of the three. With the usual shares of the
data sheet the GPUs are three times as fast as the published figures say, so the same is computed with a third of them.

Source: ROCm/ATOM, pull request 890, ``recipes/atom_vllm/LMCache-KV-Cache-Offload.md``; callanjfox/kv-cache-tester,
``docs/trace_replay_tester.md``. The model is MiniMax-M2.5, shape from its config.json.

**Jobs of 8 turns, host memory of 64 or 400 GB** (an H100, Llama-3.1-8B). Jobs arrive at random; prompts grow from 2,000
to 13,000 tokens, outputs have 20, and a tool takes 0.5 s. Their number is not given; here it is 400, and where the GPU
cannot keep up, times grow with it: only signs can be compared.

Source: H.-C. Lin, "Large-DRAM sweep", April 2026,
https://hungchun0201.github.io/agentic-ai-survey/ai-infra-basics/lmcache/bottleneck-analysis.html.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import kvgym
from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.batch_time.deployments.described import Roofline
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.batch_time.hardware.shapes import Experts, ModelShape
from kvgym.batch_time.models.roofline import ASSUMED_SHARES
from kvgym.experiments.caches.host_memory import HostMemorySettings, TierSettings
from kvgym.experiments.scenario_options import RULES
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import make_policy
from kvgym.policies.results import SimulationResult
from kvgym.simulator.system import System
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

USERS, MORE, EVERY, SECONDS = 32, 7, 30.0, 1200.0
UNIT, COMMON, LONGEST = 256, 7_500, 100_000  # tokens
STARTS = (8_832, 16_512, 20_160, 71_168, LONGEST)  # tokens of the first prompt: least, quartiles, most
TURNS, PAUSE = 100, 5.0  # of a user, more than 20 minutes have; s
JOBS, RATES = 400, (1, 3, 6, 10, 15)
MODEL = ModelShape(
    name="MiniMax-M2.5",
    num_layers=62,
    hidden=3072,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    ffn=1536,
    vocab=200_064,
    experts=Experts(count=256, per_token=8, ffn=1536),
)
HOST, NVME = 64e9 / 2**30, 200e9 / 2**30  # GiB
BELOW: dict[str, dict[str, Any] | None] = {
    "GPU only": None,
    "with host memory": {"gib": HOST},
    "with host memory and NVMe": {"gib": HOST, "below": TierSettings(gib=NVME)},
    "with host memory of each rank": {"gib": 2 * HOST},
    "with host memory and NVMe of each rank": {"gib": 2 * HOST, "below": TierSettings(gib=2 * NVME)},
}
PUBLISHED = {
    "GPU only": (208, 84.0, 207.3, 6_975, 0.756),
    "with host memory": (331, 47.1, 150.2, 11_664, 0.813),
    "with host memory and NVMe": (374, 38.7, 88.2, 13_462, 0.834),
}
"""Requests, TTFT (s) and its 95th percentile, input tokens/s, and the share of these that was found."""


def first_prompt(rng: np.random.Generator) -> int:
    """Return the length of the first prompt of a session, tokens."""
    return int(np.exp(np.interp(rng.random(), np.linspace(0, 1, len(STARTS)), np.log(STARTS))))


def requests(seed: int) -> RequestTable:
    """Return the requests of all users; a user's sessions follow each other."""
    rng, columns, chains = np.random.default_rng(seed), [], []
    for user in range(USERS):
        session, prompt, begin = 0, first_prompt(rng), EVERY * ((user + MORE - 1) // MORE)
        for turn in range(TURNS):
            output, pause = int(rng.integers(100, 500)), rng.exponential(PAUSE)
            columns.append((begin + 60.0 * turn, prompt, output, user, turn + 1, pause))
            units = range((prompt + output) // UNIT)
            chains.append([(j,) if j < COMMON // UNIT else (user, session, j) for j in units])
            prompt = int((prompt + output) / rng.uniform(0.93, 0.97))
            if prompt > LONGEST:
                session, prompt = session + 1, first_prompt(rng)
    arrival, *others = zip(*columns, strict=True)
    order = np.argsort(arrival, kind="stable")
    names = ("prompt_len", "output_len", "session_id", "turn", "think_time")
    table = RequestTable.from_columns(
        arrival_time=np.asarray(arrival)[order],
        **{name: np.asarray(column)[order] for name, column in zip(names, others, strict=True)},
    )
    ordered = [chains[k] for k in order]
    tokens = np.array([len(chain) * UNIT for chain in ordered])
    return table.replace(hashes=BlockHashes.from_rows(ordered, tokens, UNIT))


def jobs(rate: float, seed: int) -> RequestTable:
    """Return jobs of 8 turns that arrive at a rate, jobs/s."""
    begins = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, JOBS)).tolist()
    rows = sorted(
        (begins[job] + 20.0 * turn, 2_000 + 11_000 * turn // 7, 20, job, turn + 1, 0.5)
        for job in range(JOBS)
        for turn in range(8)
    )
    chains = [[(job, j) for j in range((prompt + 20) // UNIT)] for _, prompt, _, job, *_ in rows]
    names = ("arrival_time", "prompt_len", "output_len", "session_id", "turn", "think_time")
    table = RequestTable.from_columns(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    tokens = np.array([len(chain) * UNIT for chain in chains])
    return table.replace(hashes=BlockHashes.from_rows(chains, tokens, UNIT))


def run(
    hardware: Hardware, below: dict[str, Any] | None, table: RequestTable, chunk: int, horizon: float
) -> SimulationResult:
    """Return the result of a worker of vLLM with LMCache below it, which writes no outputs and loads before a batch."""
    memory = None
    if below is not None:
        memory = HostMemorySettings(load="wait", outputs=False, **below).memory(hardware)
    assert hardware.kv_capacity is not None
    system = System(
        hardware.kv_capacity,
        hardware.batch_time(),
        **RULES["engine"],
        prefix_cache="scheduled",
        prefix_block=UNIT,
        sessions="closed",
        horizon=horizon,
        host_memory=memory,
    )
    return kvgym.simulate(system, table, make_policy("vllm_v1", max_num_batched_tokens=chunk))


def measure(seed: int, below: dict[str, Any] | None, slower: int) -> list[float]:
    """Return the published figures of a run, and the shares that the GPU, the host and the store had."""
    flops, bandwidth = (share / slower for share in ASSUMED_SHARES)
    hardware = Roofline(
        model=MODEL,
        gpu="mi300x",
        tp=2,
        weights="fp8",
        kv_dtype="fp8",
        memory_fraction=0.78,
        compute_efficiency=flops,
        memory_efficiency=bandwidth,
    ).hardware("two MI300X")
    result = run(hardware, below, requests(seed), 16_384, SECONDS)
    rows = result.requests[result.requests["finish_time"] > 0]
    ttft = rows["first_token_time"] - rows["arrival_time"]
    rates = compute_metrics(result, ["hit_rate", "host_hit_rate", "store_hit_rate"]).values()
    hits = [0.0 if np.isnan(rate) else rate for rate in rates]
    throughput = rows["prompt_len"].sum() / SECONDS
    return [len(rows), ttft.mean(), np.quantile(ttft, 0.95), throughput, sum(hits), *hits]


def line(name: str, found: Any, base: Any) -> None:
    """Print a row of the table; what has changed from ``base`` stands behind it."""
    cells = [f"{found[0]:.0f}", f"{found[1]:.1f}", f"{found[2]:.1f}", f"{found[3]:,.0f}"]
    if found is not base:
        cells = [
            f"{c}, {100 * (x / y - 1):+.0f} %" for c, x, y in zip(cells, found[:4], base[:4], strict=True)
        ]
    hits = f"{found[4]:.1%}" + (f" ({', '.join(f'{x:.0%}' for x in found[5:])})" if len(found) > 5 else "")
    print(f"| {name} | {' | '.join(cells)} | {hits} |", flush=True)


def job_times(rate: float, seed: int) -> list[float]:
    """Return the mean time of a job with 0, 64 and 400 GB of host memory, seconds."""
    hardware, times = load_hardware("model=llama3-8b,gpu=h100"), []
    for size in (0.0, 64e9, 400e9):
        below = {"gib": size / 2**30} if size > 0 else None
        result = run(hardware, below, jobs(rate, seed), 8192, math.inf)
        times.append(compute_metrics(result, ["job_completion_time_mean"])["job_completion_time_mean"])
    return times


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print("| | requests | TTFT (s) | p95 | input tokens/s | found (by GPU, host, NVMe) |")
    print("|---|---|---|---|---|---|")
    for name, figures in PUBLISHED.items():
        line(f"published, {name}", figures, PUBLISHED["GPU only"])
    for slower in (1, 3):
        base = None
        for name, below in BELOW.items():
            found = np.mean([measure(seed, below, slower) for seed in range(seeds)], axis=0)
            base = found if base is None else base
            line(name + (", GPUs of a third" if slower > 1 else ""), found, base)
    print("\n| jobs/s | GPU only, time of a job (s) | 64 GB | 400 GB |")
    print("|---|---|---|---|")
    for rate in RATES:
        base, *others = np.mean([job_times(rate, seed) for seed in range(seeds)], axis=0)
        cells = " | ".join(f"{x:.1f}, {100 * (x / base - 1):+.0f} %" for x in others)
        print(f"| {rate} | {base:.1f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
