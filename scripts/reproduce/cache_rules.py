"""Compare cache rules with and without memory of the host: the table of docs/prefix-cache.md.

    python scripts/reproduce/cache_rules.py                       the table (minutes)
    python scripts/reproduce/cache_rules.py --points 0.08:1 --seeds 2 --first-seed 900

Llama-3-8B on an H100 with 400,000 tokens of KV under `vllm_v1`, closed sessions of agents: they begin at Poisson times,
have about 16 turns and contexts of 8 to 60 thousand tokens, and wait after 85 % of turns for a tool (median 2.5 s, mean
5 s), else for a person (median 30 s, mean 45 s). The host has 25 GB/s in each direction. Every point of load and memory
has the same requests under all rules. Nothing was chosen on the seeds of the table.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import kvgym
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.experiments.caches.host_memory import HostMemorySettings
from kvgym.experiments.scenario_options import RULES as SERVER_RULES
from kvgym.experiments.statistics import Estimate, improvement_interval
from kvgym.simulator.system import System, Worker
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import GAP_KINDS, RequestTable

GPU_TOKENS, UNIT, SESSIONS, MOST = 400_000, 256, 170, 60_000
RULES = ("lru", "ends", "fixed:tool=inf", "order", "fixed:tool=10", "reload_cost", "clairvoyant")
KNOWN = RULES[:-1]
"""Those that a server can have."""
POINTS = ("0.06:0", "0.06:1", "0.08:0", "0.08:1", "0.08:3", "0.10:0", "0.10:1", "0.10:3", "0.16:3")
"""New sessions per second, and memory of the host as a multiple of the GPU's."""


def lognormal(rng: np.random.Generator, median: float, mean: float, count: int) -> np.ndarray:
    """Return draws, float64 (count,)."""
    return np.asarray(median * np.exp(np.sqrt(2 * np.log(mean / median)) * rng.standard_normal(count)))


def requests(rate: float, seed: int) -> RequestTable:
    """Return closed sessions that begin at ``rate`` per second; a rate changes when they begin, and nothing else."""
    rng = np.random.default_rng(seed)
    begins = np.cumsum(rng.exponential(1.0, SESSIONS)) / rate
    rows, chains = [], []
    for session, begin in enumerate(begins.tolist()):
        count = max(1, round(float(lognormal(rng, 13.0, 16.0, 1)[0])))
        own = 1 + lognormal(rng, 1200.0, 2000.0, count).astype(int)
        own[0] += 7000 + rng.integers(4000)
        outputs = 1 + lognormal(rng, 180.0, 250.0, count).astype(int)
        tools = rng.random(count) < 0.85
        thinks = np.where(tools, lognormal(rng, 2.5, 5.0, count), lognormal(rng, 30.0, 45.0, count))
        context = 0
        for turn in range(count):
            prompt, output = context + int(own[turn]), int(outputs[turn])
            if prompt + output > MOST:
                break
            context = prompt + output
            later, kind = (float(thinks[turn]), GAP_KINDS[int(tools[turn])]) if turn else (0.0, "user")
            rows.append(
                (begin + 1e-6 * turn, prompt, output, session, turn + 1, later, GAP_KINDS.index(kind))
            )
            chains.append((session, context // UNIT))
    order = sorted(range(len(rows)), key=rows.__getitem__)
    names = ("arrival_time", "prompt_len", "output_len", "session_id", "turn", "think_time", "gap_kind")
    columns = dict(zip(names, zip(*(rows[k] for k in order), strict=True), strict=True))
    texts = [[(chains[k][0], j) for j in range(chains[k][1])] for k in order]
    hashes = BlockHashes.from_rows(texts, np.array([len(text) * UNIT for text in texts]), UNIT)
    return RequestTable.from_columns(**columns).replace(hashes=hashes)


def measure(rule: str, rate: float, host: int, table: RequestTable) -> dict[str, float]:
    """Return figures of a run: mean turn latency and TTFT (s), and tokens found by the GPU and by the host."""
    hardware = load_hardware("roofline:model=llama3-8b,gpu=h100")
    memory = HostMemorySettings(tokens=host * GPU_TOKENS).memory(hardware) if host else None
    system = System.cluster(
        [Worker(GPU_TOKENS, hardware.batch_time())],
        **SERVER_RULES["engine"],
        prefix_cache="scheduled",
        prefix_block=UNIT,
        sessions="closed",
        cache_rule=rule,
        host_memory=memory,
    )
    result = kvgym.simulate(system, table, "vllm_v1")
    rows = result.requests
    known = result.worker["total_known_tokens"].sum()
    return {
        "latency": float((rows["finish_time"] - rows["arrival_time"]).mean()),
        "ttft": float((rows["first_token_time"] - rows["arrival_time"]).mean()),
        "gpu": float(result.worker["total_hit_tokens"].sum() / known),
        "host": float(UNIT * result.tier["total_first"].sum() / known) if host else 0.0,
        "busy": float(result.worker["busy_time"].sum() / rows["finish_time"].max()),
    }


def gain(found: Estimate) -> str:
    """Return a gain with its interval, percent."""
    return f"{100 * found.value:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def line(point: str, seeds: range) -> str:
    """Return a row of the table."""
    rate, host = float(point.split(":")[0]), int(point.split(":")[1])
    tables = [requests(rate, seed) for seed in seeds]
    runs = {rule: [measure(rule, rate, host, table) for table in tables] for rule in RULES}
    latency = {rule: np.array([run["latency"] for run in found]) for rule, found in runs.items()}
    base = {name: float(np.mean([run[name] for run in runs["lru"]])) for name in runs["lru"][0]}
    best = min(KNOWN, key=lambda rule: latency[rule].mean())
    left = improvement_interval(latency["clairvoyant"], latency[best], lower_is_better=True)
    cells = [
        f"{rate:g}, {f'{host} ×' if host else 'none'}",
        f"{base['latency']:.2f} ({base['ttft']:.2f})",
        f"{base['busy']:.0%}",
        f"{base['gpu']:.0%}, {base['host']:.0%}",
        *(
            gain(improvement_interval(latency[rule], latency["lru"], lower_is_better=True))
            for rule in RULES[1:]
        ),
        f"{gain(left)} over `{best}`",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", nargs="+", default=POINTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    names = ["sessions/s, host", "`lru`: latency (TTFT), s", "busy", "found by GPU, host"]
    print(f"| {' | '.join([*names, *(f'`{rule}`' for rule in RULES[1:]), 'left'])} |")
    print("|" + "---|" * (len(names) + len(RULES)))
    for point in given.points:
        print(line(point, range(given.first_seed, given.first_seed + given.seeds)), flush=True)
    print(f"\n{time.process_time():.0f} CPU seconds")


if __name__ == "__main__":
    main()
