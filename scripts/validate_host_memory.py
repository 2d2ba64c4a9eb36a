"""Compare host memory below the GPU with a published measurement: llm-d's benchmark of CPU offloading.

45 clients send requests one after the other to 8 workers: 45 groups of 10 prompts of 30,000 or 8,000 tokens that the
prompts of a group share and 256 of their own, in random order; outputs of 1,024. The KV of the groups is 1.35 million
tokens; the GPUs hold 1.19 million, and each host 656,000 for its worker. The load generator begins again when all
prompts have been sent, so measured are 450 requests after as many others; 90 more keep the load up.

Nothing is fitted: kernels and engine are kvgym's, and the router has the weights of the guide's own values file, 2 for
few requests (here: few waiting ones), 2 for free memory, 1 for the prefix on the GPU; with host memory, 1 for the
prefix on the GPU or the host. Two other routers show what depends on it.

Source: llm-d's guide "tiered prefix cache", part "cpu": Qwen3-32B on 16 H100, 8 engines of two, 9,271 and 41,000 blocks
of 16 tokens; inference-perf draws the prompts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import kvgym
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.experiments.caches.host_memory import HostMemorySettings
from kvgym.experiments.scenario_options import RULES
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import System, Worker
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

CLIENTS, GROUPS, OUTPUT, OWN, BLOCK = 45, 45, 1024, 256, 16
BEFORE, MEASURED, AFTER = 450, 450, 90  # requests, in the order in which they are sent
GPU_BLOCKS, HOST_BLOCKS, WORKERS = 9_271, 41_000, 8
ROUTERS = {
    "llm-d": ("prefix_aware:prefix=1,queue=2,free=2,relative=false", ",host=1"),
    "llm-d, host unseen": ("prefix_aware:prefix=1,queue=2,free=2,relative=false", ""),
    "`prefix_aware`": ("prefix_aware", ""),
    "`round_robin`": ("round_robin", ""),
}
"""By name: a router, and what it has in addition with host memory."""
PUBLISHED = {
    30_000: ([9.0, 20.9, 37.8, 38_535], [6.7, 15.9, 31.0, 46_663]),
    8_000: ([0.12, 0.09, 18.4, 23_390], [0.13, 0.11, 18.6, 23_033]),
}
"""By shared tokens, without and with host memory: mean and 90th percentile of TTFT, mean latency (s), tokens/s."""


def requests(shared: int, seed: int) -> RequestTable:
    """Return the requests; clients begin within a second."""
    rng = np.random.default_rng(seed)
    tokens, turns = shared + OWN + OUTPUT, (BEFORE + MEASURED + AFTER) // CLIENTS
    rounds = (turns * CLIENTS) // MEASURED + 1
    groups = np.concatenate([rng.permutation(np.repeat(np.arange(GROUPS), 10)) for _ in range(rounds)])
    begins = np.sort(rng.random(CLIENTS)).tolist()
    columns = sorted(
        (begins[client] + 60.0 * turn, client, turn + 1, int(groups[turn * CLIENTS + client]))
        for client in range(CLIENTS)
        for turn in range(turns)
    )
    arrival, client_id, number, group = zip(*columns, strict=True)
    chains = [
        [(g, j) for j in range(shared // BLOCK)]
        + [(g, k, j) for j in range(shared // BLOCK, tokens // BLOCK)]
        for k, g in enumerate(group)
    ]
    hashes = BlockHashes.from_rows(chains, np.full(len(chains), tokens // BLOCK * BLOCK), BLOCK)
    return RequestTable.from_columns(
        arrival_time=arrival,
        prompt_len=[shared + OWN] * len(chains),
        output_len=[OUTPUT] * len(chains),
        session_id=client_id,
        turn=number,
        think_time=[0.0] * len(chains),
    ).replace(hashes=hashes)


def measure(shared: int, seed: int, router: str, host: dict[str, Any] | None) -> list[float]:
    """Return the four figures of a run on the published deployment, and the hits of the GPU and of the host."""
    hardware = load_hardware("roofline:model=qwen3-32b,gpu=h100,tp=2")
    memory = None if host is None else HostMemorySettings(tokens=HOST_BLOCKS * BLOCK, **host).memory(hardware)
    system = System.cluster(
        [Worker(GPU_BLOCKS * BLOCK, hardware.batch_time())] * WORKERS,
        **RULES["engine"],
        prefix_cache="scheduled",
        sessions="closed",
        host_memory=memory,
    )
    policy = make_policy("vllm_v1", max_num_batched_tokens=8192)
    result = kvgym.simulate(system, requests(shared, seed), policy, router=router, seed=seed)
    rows = np.sort(result.requests, order="arrival_time")[BEFORE : BEFORE + MEASURED]
    ttft = rows["first_token_time"] - rows["arrival_time"]
    ends = np.sort(result.requests["finish_time"])
    rate = (shared + OWN + OUTPUT) * MEASURED / (ends[BEFORE + MEASURED - 1] - ends[BEFORE - 1])
    whole = result.worker["total_known_tokens"].sum()
    found = [
        result.worker["total_hit_tokens"].sum() / whole,
        BLOCK * result.tier["total_first"].sum() / whole,
    ]
    latency = (rows["finish_time"] - rows["arrival_time"]).mean()
    return [ttft.mean(), np.quantile(ttft, 0.9), latency, rate, *found]


def figures(shared: int, seeds: int, router: str, host: dict[str, Any] | None = None) -> list[float]:
    """Return means over seeds, see :func:`measure`."""
    return [float(x) for x in np.mean([measure(shared, k, router, host) for k in range(seeds)], axis=0)]


def line(name: str, found: list[float], base: list[float] | None = None) -> None:
    """Print a row of the table; with ``base``, what has changed from there."""
    cells = [f"{found[0]:.2f}", f"{found[1]:.2f}", f"{found[2]:.1f}", f"{found[3]:,.0f}"]
    if base is not None:
        cells = [
            f"{cell}, {100 * (x / y - 1):+.0f} %"
            for cell, x, y in zip(cells, found[:4], base[:4], strict=True)
        ]
    hits = f"{found[4]:.0%}, {found[5]:.0%}" if len(found) > 4 else ""
    print(f"| {name} | {' | '.join(cells)} | {hits} |", flush=True)


def main() -> None:
    """Print a table for each length of prompts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    for shared, (without, with_host) in PUBLISHED.items():
        print(f"\n{shared:,} shared tokens\n")
        print("| | TTFT (s) | p90 | latency (s) | tokens/s | found by GPU, host |")
        print("|---|---|---|---|---|---|")
        line("published, GPU only", without)
        line("published, with host memory", with_host, without)
        for name, (router, further) in ROUTERS.items():
            base = figures(shared, seeds, router)
            if name != "llm-d, host unseen":
                line(f"{name}, GPU only", base)
            for load in ("overlap", "wait", "async") if name == "llm-d" else ("overlap",):
                found = figures(shared, seeds, router + further, {"load": load})
                line(f"{name}, with host memory, `{load}`", found, base)


if __name__ == "__main__":
    main()
