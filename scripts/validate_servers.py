"""Compare engines at fixed concurrency and whole servers with measurements: tables of docs/validation.md.

python scripts/validate_servers.py FOLDER            print the tables, and those of fits and of like rows
python scripts/validate_servers.py FOLDER --write    put them into docs/validation.md

FOLDER holds measurements, not part of this repository: ``rows*.csv``, engines at fixed concurrency (see
scripts/validation/closed_loops.py); logs of servers, ``NAME.requests.jsonl`` with ``NAME.meta.json`` of vLLM, as the
benchmark of LLMServingSim 2 writes them; and ``vllm_h100.csv``, a row per load stage with mean latencies.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from validation.accuracy import (
    GROUP,
    HEADS,
    LOG_PEERS,
    STAGE_PEERS,
    fit_table,
    loop_lines,
    peers_table,
    spread,
    summary_table,
    times_of,
)
from validation.closed_loops import Row, read_rows
from validation.tables import markdown, percent

from kvgym.batch_time.hardware.overhead import ENGINES
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.servers.validation.replay import METRICS, Replay, replay_log
from kvgym.servers.validation.served import read_served
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "validation.md"
FITTED = {"rtx-4090"}
"""GPUs with a log that an engine was fitted to."""
BLOCK = 16
"""Tokens of a block of vLLM's prefix cache."""
NEWEST = ENGINES["vllm-2026"]
STATISTICS = ("mean", "p50", "p99")


def served(hardware: str, capacity: int | None = None) -> Scenario:
    """Return a server under the rules of its engine."""
    return build_scenario("vllm-v1", hardware=hardware, kv_capacity=capacity)


def policy_of(arguments: Mapping[str, Any]) -> str:
    """Return the engine's scheduler with the limits of a server."""
    limits = ("max_num_seqs", "max_num_batched_tokens")
    return "vllm_v1:" + ",".join(f"{name}={arguments[name]}" for name in limits)


@functools.cache
def replays(folder: Path) -> dict[str, Replay]:
    """Return the logs by request with their replays on the measured kernels of their GPU, by GPU."""
    found = {}
    for path in sorted(folder.rglob("*.requests.jsonl")):
        gpu = GPUS.name(path.name.partition("_")[0])
        meta = json.loads(path.with_name(path.name.replace("requests.jsonl", "meta.json")).read_text("utf-8"))
        cache = meta["kv_cache"] or {}
        model = meta["engine_kwargs"]["model"]
        scenario = served(f"model={model},gpu={gpu}", cache.get("num_kv_tokens"))
        found[gpu] = replay_log(read_served(path), scenario, policy_of(meta["engine_kwargs"]))
    return found


def log_table(folder: Path) -> str:
    """Return the errors of all statistics of the logs by request."""
    rows = []
    for gpu, replay in replays(folder).items():
        errors = {(d.metric, d.statistic): d.error.value for d in replay.differences()}
        speed = replay.totals()["token_throughput"]
        rows.append([
            gpu + (", fitted" if gpu in FITTED else ""),
            *(
                " / ".join(f"{100 * errors[metric, statistic]:+.1f}" for statistic in STATISTICS)
                for metric in METRICS
            ),
            percent(speed[1] / speed[0] - 1),
            f"{replay.result.requests['num_evictions'].sum()}",
            f"{replay.rank_correlation('e2e_latency'):.4f}",
        ])  # fmt: skip
    heads = [f"{name}: mean / median / p99, %" for name in ("TTFT", "time between tokens", "E2E")]
    return markdown(["server", *heads, "tokens/s", "evictions, simulated", "rank correlation of E2E"], rows)


def log_lines(folder: Path) -> list[list[str]]:
    """Return the lines of the logs in the table of accuracy: errors by request."""
    lines = []
    for gpu, replay in replays(folder).items():
        pairs = [replay.pairs(metric) for metric in ("tbt", "e2e_latency", "ttft")]
        errors = [simulated / observed - 1 for observed, simulated in pairs]
        engine = ["vllm", "0.19.0", times_of(NEWEST, fitted=gpu in FITTED)]
        lines.append(
            [
                "llama3-8b",
                gpu,
                "bf16",
                *engine,
                f"{len(replay.log)} requests",
                *map(spread, errors),
                LOG_PEERS,
            ]
        )
    return lines


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


class Stage(NamedTuple):
    """A load stage, measured and simulated.

    Attributes:
        row: row of the table of stages.
        measured: mean E2E, TTFT and time per token, seconds.
        simulated: the same.
        hits: simulated share of prompts found in the cache.
    """

    row: Mapping[str, str]
    measured: tuple[float, float, float]
    simulated: tuple[float, float, float]
    hits: float

    @property
    def errors(self) -> tuple[float, ...]:
        """Simulated / measured - 1 of E2E, TTFT and time per token."""
        return tuple(x / y - 1 for x, y in zip(self.simulated, self.measured, strict=True))


def simulated_stage(row: Mapping[str, str]) -> Stage:
    """Return a load stage with its simulation.

    The load generator counts two events per token, so its times per token are half, and counts the tokens of texts
    again: the requested lengths agree with its number of events.
    """
    hardware = f"model={row['model']},gpu=h100,tp={row['tensor_parallel']}"
    system = replace(served(hardware).make_system(), prefix_cache="computed", prefix_block=BLOCK)
    result = simulate(system, stage_requests(row), policy_of(row))
    records, arrival = result.requests, result.requests["arrival_time"]
    gaps = int(row["requested_output_len"]) - 1
    means = [
        (float(row["e2e_mean_s"]), float(row["ttft_mean_s"])),
        (
            float((records["finish_time"] - arrival).mean()),
            float((records["first_token_time"] - arrival).mean()),
        ),
    ]
    measured, simulated = ((e2e, ttft, (e2e - ttft) / gaps) for e2e, ttft in means)
    return Stage(row, measured, simulated, compute_metrics(result, ["hit_rate"])["hit_rate"])


@functools.cache
def stages(folder: Path) -> list[Stage]:
    """Return the load stages with their simulations."""
    (path,) = folder.rglob("vllm_h100.csv")
    with path.open(encoding="utf-8") as file:
        return [simulated_stage(row) for row in csv.DictReader(file)]


def stage_table(folder: Path) -> str:
    """Return measured means of the load stages and the errors of simulated ones."""
    rows = []
    for stage in stages(folder):
        row, (e2e, ttft, token) = stage.row, stage.measured
        rows.append([
            MODELS.name(row["model"]), row["tensor_parallel"], row["experiment"].rpartition("-")[2],
            f"{float(row['rate']):g}", f"{e2e:.2f}", f"{1e3 * ttft:.0f}", f"{1e3 * token:.1f}",
            f"{100 * stage.hits:.0f} %", *map(percent, stage.errors),
        ])  # fmt: skip
    heads = ["model", "TP", "load", "requests/s", "E2E, s", "TTFT, ms", "token, ms", "hit rate"]
    last = ["median, without sign", *[""] * (len(heads) - 1), *stage_medians(folder)]
    return markdown([*heads, "E2E", "TTFT", "token"], [*sorted(rows), last])


def stage_medians(folder: Path) -> list[str]:
    """Return the median errors without sign of E2E, TTFT and time per token over the load stages."""
    middle = np.median(np.abs([stage.errors for stage in stages(folder)]), axis=0)
    return [f"{100 * error:.1f} %" for error in middle]


def stage_lines(folder: Path) -> list[list[str]]:
    """Return the lines of the load stages in the table of accuracy."""
    lines = []
    for model in dict.fromkeys(stage.row["model"] for stage in stages(folder)):
        errors = np.array([stage.errors for stage in stages(folder) if stage.row["model"] == model])
        line = ["vllm", "early 2026", times_of(NEWEST, fitted=True), f"{len(errors)} stages"]
        line += [spread(errors[:, k]) for k in (2, 0, 1)]
        lines.append([MODELS.name(model), "h100-80gb", "bf16", *line, STAGE_PEERS])
    return lines


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of engines at fixed concurrency."""
    return [row for path in sorted(folder.rglob("rows*.csv")) for row in read_rows(path)]


def accuracy_table(folder: Path) -> str:
    """Return errors of all measurements by model, GPU and release, with those that other simulators publish."""
    loops = [[*line, "–"] for line in loop_lines(rows_of(folder))]
    return markdown([*GROUP, *HEADS, "others"], [*loops, *stage_lines(folder), *log_lines(folder)])


TABLES = {
    "accuracy": accuracy_table,
    "peers": lambda folder: peers_table(stage_medians(folder)),
    "logs": log_table,
    "stages": stage_table,
}
"""Tables of the page, by the name in their markers."""
MORE = {
    "summary": lambda folder: summary_table(rows_of(folder)),
    "fits": lambda folder: fit_table(rows_of(folder)),
}
"""Tables that are printed only."""
_BLOCK = re.compile(r"(<!-- servers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the measurements")
    parser.add_argument("--write", action="store_true", help="update the page")
    args = parser.parse_args()
    if not args.write:
        shown = [f"{name}\n\n{make(args.folder)}" for name, make in {**TABLES, **MORE}.items()]
        print("\n\n".join(shown))
        return
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]](args.folder)}\n{m[3]}", page), "utf-8")


if __name__ == "__main__":
    main()
