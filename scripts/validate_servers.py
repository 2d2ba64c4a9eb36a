"""Compare whole servers with their logs: the tables of docs/validation.md.

python scripts/validate_servers.py FOLDER            print the tables
python scripts/validate_servers.py FOLDER --write    put them into docs/validation.md

FOLDER holds logs of servers, not part of this repository: ``NAME.requests.jsonl`` with ``NAME.meta.json`` of vLLM, as
the benchmark of LLMServingSim 2 writes them, and ``vllm_h100.csv``, a row per load stage with mean latencies.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.servers.validation.replay import Replay, replay_log
from kvgym.servers.validation.served import read_served
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "validation.md"
FITTED = {"rtx4090"}
"""GPUs with a log that an engine was fitted to."""
LEAN = ",small_kernels_ms=0.02"
"""Hardware with half the default time of small kernels, the value that suits the servers of :func:`log_table`."""
BLOCK = 16
"""Tokens of a block of vLLM's prefix cache."""
STATISTICS = ("mean", "p50", "p99")


def served(hardware: str, capacity: int | None = None) -> Scenario:
    """Return a server under the rules of its engine."""
    return build_scenario("vllm-v1", hardware=hardware, kv_capacity=capacity)


def policy_of(arguments: Mapping[str, Any]) -> str:
    """Return the engine's scheduler with the limits of a server."""
    limits = ("max_num_seqs", "max_num_batched_tokens")
    return "vllm_v1:" + ",".join(f"{name}={arguments[name]}" for name in limits)


def percent(ratio: float) -> str:
    """Return an error in per cent, with a sign."""
    return f"{100 * ratio:+.1f} %"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replays(folder: Path) -> Iterator[tuple[str, Replay]]:
    """Yield the logs by request, each with its replay on the measured kernels of its GPU."""
    for path in sorted(folder.glob("*.requests.jsonl")):
        name = path.name.partition("_")[0]
        meta = json.loads(path.with_name(path.name.replace("requests.jsonl", "meta.json")).read_text("utf-8"))
        cache = meta["kv_cache"] or {}
        scenario = served(
            f"model={meta['engine_kwargs']['model']},gpu={GPUS.name(name)}",
            cache.get("num_kv_tokens"),
        )
        yield name, replay_log(read_served(path), scenario, policy_of(meta["engine_kwargs"]))


def log_table(folder: Path) -> str:
    """Return the errors of all statistics of the logs by request."""
    rows = []
    for name, replay in replays(folder):
        errors = {(d.metric, d.statistic): d.error.value for d in replay.differences()}
        speed = replay.totals()["token_throughput"]
        rows.append([
            GPUS.name(name) + (", fitted" if name in FITTED else ""),
            *(
                " / ".join(f"{100 * errors[metric, statistic]:+.1f}" for statistic in STATISTICS)
                for metric in ("ttft", "tbt", "e2e_latency")
            ),
            percent(speed[1] / speed[0] - 1),
            f"{replay.result.requests['num_evictions'].sum()}",
            f"{replay.rank_correlation('e2e_latency'):.4f}",
        ])  # fmt: skip
    heads = [f"{name}: mean / median / p99, %" for name in ("TTFT", "time between tokens", "E2E")]
    return table(["server", *heads, "tokens/s", "evictions, simulated", "rank correlation of E2E"], rows)


def stage_requests(stage: Mapping[str, str]) -> RequestTable:
    """Return the requests of a load stage, as its load generator makes them.

    Users in turn send the same prompt each time: the system prompt of their group, then a text of their own. Arrivals
    are a Poisson process with exactly ``requests`` of them in the stage (inference-perf, ``loadgen/load_timer.py``).
    Prompts do not grow from turn to turn: the longest of a stage has the length of a first turn.
    """
    rng = np.random.default_rng(0)
    count, group = int(stage["requests"]), int(stage["users_per_system_prompt"])
    gaps = rng.exponential(size=count)
    quantiles = [float(stage[f"prompt_len_{name}"]) for name in ("p10", "p10", "median", "p90", "p99", "max")]
    users = int(stage["system_prompts"]) * group
    prompts = np.interp(rng.random(users), [0.0, 0.1, 0.5, 0.9, 0.99, 1.0], quantiles).round().astype(int)
    common = int(stage["system_prompt_len"]) // BLOCK
    texts = [
        [(user // group if k < common else (user,), k) for k in range(-(-int(tokens) // BLOCK))]
        for user, tokens in enumerate(prompts)
    ]
    user = np.arange(count) % users
    return RequestTable.from_columns(
        arrival_time=np.cumsum(gaps) * float(stage["duration_s"]) / gaps.sum(),
        prompt_len=prompts[user],
        output_len=np.full(count, int(stage["requested_output_len"])),
        hashes=BlockHashes.from_rows([texts[k] for k in user], prompts[user], BLOCK),
    )


def stage_figures(stage: Mapping[str, str], options: str = "") -> tuple[float, float, float]:
    """Return the simulated mean E2E and TTFT of a load stage, seconds, and the share of prompts found in the cache.

    Args:
        stage: row of the table of stages.
        options: further settings of the hardware.
    """
    hardware = f"model={stage['model']},gpu=h100,tp={stage['tensor_parallel']}{options}"
    system = replace(served(hardware).make_system(), prefix_cache="computed", prefix_block=BLOCK)
    result = simulate(system, stage_requests(stage), policy_of(stage))
    records, arrival = result.requests, result.requests["arrival_time"]
    return (
        float((records["finish_time"] - arrival).mean()),
        float((records["first_token_time"] - arrival).mean()),
        compute_metrics(result, ["hit_rate"])["hit_rate"],
    )


def stage_table(folder: Path) -> str:
    """Return measured means of the load stages and the errors of simulated ones.

    The load generator counts two events per token, so its times per token are half, and counts the tokens of texts
    again: the requested lengths agree with its number of events.
    """
    rows, errors = [], []
    with (folder / "vllm_h100.csv").open(encoding="utf-8") as file:
        for stage in csv.DictReader(file):
            gaps = int(stage["requested_output_len"]) - 1
            e2e, ttft = float(stage["e2e_mean_s"]), float(stage["ttft_mean_s"])
            own, first, hits = stage_figures(stage)
            lean, lean_first, _ = stage_figures(stage, LEAN)
            token = (e2e - ttft) / gaps
            errors.append([
                own / e2e - 1, first / ttft - 1, (own - first) / gaps / token - 1,
                lean / e2e - 1, (lean - lean_first) / gaps / token - 1,
            ])  # fmt: skip
            rows.append([
                MODELS.name(stage["model"]), stage["tensor_parallel"], stage["experiment"].rpartition("-")[2],
                f"{float(stage['rate']):g}", f"{e2e:.2f}", f"{1e3 * ttft:.0f}", f"{1e3 * token:.1f}",
                f"{100 * hits:.0f} %", *map(percent, errors[-1]),
            ])  # fmt: skip
    middle = np.median(np.abs(errors), axis=0)
    heads = ["model", "TP", "load", "requests/s", "E2E, s", "TTFT, ms", "token, ms", "hit rate"]
    last = ["median, without sign", *[""] * (len(heads) - 1), *(f"{100 * x:.1f} %" for x in middle)]
    return table([*heads, "E2E", "TTFT", "token", "E2E, lean", "token, lean"], [*sorted(rows), last])


TABLES = {"logs": log_table, "stages": stage_table}
_BLOCK = re.compile(r"(<!-- servers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the logs")
    parser.add_argument("--write", action="store_true", help="update the page")
    args = parser.parse_args()
    found = {name: make(args.folder) for name, make in TABLES.items()}
    if not args.write:
        print("\n\n".join(found.values()))
        return
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_BLOCK.sub(lambda m: f"{m[1]}{found[m[2]]}\n{m[3]}", page), "utf-8")


if __name__ == "__main__":
    main()
