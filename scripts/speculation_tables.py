"""Speculative decoding: the tables of docs/speculation.md.

    python scripts/speculation_tables.py verification    batch times with drafts, next to measured step times
    python scripts/speculation_tables.py acceptance      published acceptances
    python scripts/speculation_tables.py day             a day of load under each depth and rule, prefills included

The day takes about five minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvgym import RequestTable, System, simulate
from kvgym.batch_time import BatchTimeModel, load_hardware
from kvgym.metrics.compute import compute_metrics
from kvgym.simulator.drafts.acceptance import (
    ACCEPTANCES,
    Acceptance,
    expected_tokens,
    find_acceptance,
)
from kvgym.simulator.drafts.settings import Speculation

SMALL, LARGE = "kernels:model=llama3-8b,gpu=h100-80gb", "kernels:model=llama3-70b,gpu=h100-80gb,tp=4"
ENGINE = {
    "block_size": 16,
    "output_kv": "next_iteration",
    "progress_on_evict": "recompute",
    "requeue": "front",
}

MEASURED = (5.89, 21.0e-3, 0.0393e-3, 1.2)
"""Fit of SpecDecode-Bench (arXiv 2601.11580) to steps of vLLM, Llama-3.1-8B on an H100: milliseconds per step, token
and KV token, and for the engine."""

BATCHES = ((64, 0), (16, 3), (64, 3), (128, 5), (256, 3))
CONTEXT = 1024

DAY, LOW, HIGH = 600.0, 0.08, 0.92  # seconds, and shares of what can be served without speculation
PROMPT, OUTPUT = 768, 512
DEPTHS = (1, 2, 3, 4, 5)

ROWS: tuple[tuple[str, str, str], ...] = (
    ("8B, EAGLE, chat", SMALL, "eagle-chat"),
    ("8B, EAGLE, code", SMALL, "eagle-code"),
    ("8B, n-gram, code", SMALL, "ngram-code"),
    ("70B, EAGLE, chat", LARGE, "eagle-chat"),
    ("70B, MTP", LARGE, "mtp"),
)


def print_table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def verification() -> Iterator[Sequence[str]]:
    """Yield batch times with drafts: measured, by the model, and with drafts in place of other tokens, ms."""
    model = load_hardware(SMALL).batch_time()
    per_step, per_token, per_context, engine = MEASURED
    for n, k in BATCHES:
        context = n * CONTEXT
        measured = per_step + per_token * n * (1 + k) + per_context * context
        own = model(num_decodes=n, decode_context=context, draft_tokens=n * k)
        chunks = model(
            num_prefills=n, prefill_tokens=n * (1 + k), prefill_context=context,
            prefill_squares=n * (1 + k) ** 2, prefill_products=context * (1 + k),
        )  # fmt: skip
        decodes = model(num_decodes=n * (1 + k), decode_context=context * (1 + k))
        others = (f"{1e3 * chunks:.1f}", f"{1e3 * decodes:.1f}") if k else ("–", "–")
        yield (f"{n}, {k}", f"{measured:.1f} ({measured + engine:.1f})", f"{1e3 * own:.1f}", *others)


def acceptances() -> Iterator[Sequence[str]]:
    """Yield the acceptances with their rates, tokens per step, spread and source."""
    for name, acceptance in ACCEPTANCES.items():
        rates = " ".join(f"{rate:.2f}".removeprefix("0") for rate in acceptance.rates)
        tokens = ", ".join(f"{expected_tokens(acceptance, k):.2f}" for k in (1, 3, 5, 7))
        yield f"`{name}`", rates, tokens, f"{acceptance.spread:g}", acceptance.source.partition(":")[0]


def served_rate(model: BatchTimeModel) -> float:
    """Return the requests per second that batches of 256 serve without speculation, prompts of 768, outputs of 512."""
    decode = float(model(num_decodes=256, decode_context=256 * CONTEXT)) / 256
    prefill = float(model(num_prefills=1, prefill_tokens=PROMPT, prefill_squares=PROMPT**2)) - float(model())
    return 1 / (OUTPUT * decode + prefill)


def requests_of_a_day(rate: float, seed: int) -> RequestTable:
    """Return requests at a rate that follows a sine over a day, from LOW to HIGH times ``rate``."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / (HIGH * rate), int(1.2 * HIGH * rate * DAY)))
    times = times[times < DAY]
    share = (LOW + HIGH) / 2 - (HIGH - LOW) / 2 * np.cos(2 * np.pi * times / DAY)
    times = times[rng.uniform(0, HIGH, len(times)) < share]
    lengths = (rng.exponential(mean, len(times)).astype(int) + 1 for mean in (PROMPT, OUTPUT))
    prompt, output = (np.minimum(tokens, 8000) for tokens in lengths)
    return RequestTable.from_columns(arrival_time=times, prompt_len=prompt, output_len=output)


def best_ranges(model: BatchTimeModel, acceptance: Acceptance) -> tuple[tuple[int, int, int], ...]:
    """Return the best depth for each number of decodes at the usual context, as ranges."""
    found: list[tuple[int, int, int]] = []
    last = 0
    for n in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024):
        speeds = []
        for k in range(DEPTHS[-1] + 1):
            seconds = float(model(num_decodes=n, decode_context=n * CONTEXT, draft_tokens=n * k))
            making = acceptance.base_ms + acceptance.ms_per_pass * k + 1e-3 * acceptance.us_per_draft * n * k
            making += 1e-6 * acceptance.ns_per_kv_token * n * CONTEXT
            speeds.append(expected_tokens(acceptance, k) / (seconds + (making / 1e3 if k else 0.0)))
        found.append((last + 1, n, int(np.argmax(speeds))))
        last = n
    return tuple(found)


def settings_of(model: BatchTimeModel, acceptance: str) -> dict[str, Speculation | None]:
    """Return the settings that are compared, by the heading of their column."""
    settings: dict[str, Speculation | None] = {"none": None}
    settings |= {f"{k}": Speculation(acceptance, k) for k in DEPTHS}
    ranges = best_ranges(model, find_acceptance(acceptance))
    settings["table"] = Speculation(acceptance, DEPTHS[-1], "table", ranges)
    settings["cost"] = Speculation(acceptance, DEPTHS[-1], "cost")
    settings["cost_each"] = Speculation(acceptance, DEPTHS[-1], "cost_each")
    return settings


def milliseconds(hardware: str, model: BatchTimeModel, speculation: Speculation | None, seeds: int) -> float:
    """Return the mean time per output token after the first over the requests of days, ms; inf if a queue remains."""
    capacity, rate = load_hardware(hardware).kv_capacity, served_rate(model)
    found = []
    for seed in range(seeds):
        table = requests_of_a_day(rate, seed)
        system = System(kv_capacity=capacity, batch_time=model, speculation=speculation, **ENGINE)  # type: ignore[arg-type]
        metrics = compute_metrics(simulate(system, table, "vllm_v1:async_scheduling=false", seed=seed))
        late = metrics["ttft_p99"] > 10.0  # seconds: the peak is not carried
        found.append(math.inf if late else 1e3 * metrics["tpot_mean"])
    return float(np.mean(found))


def day(seeds: int) -> Iterator[Sequence[str]]:
    """Yield the mean time per token over a day under each depth and rule, ms."""
    for name, hardware, acceptance in ROWS:
        model: Any = load_hardware(hardware).batch_time()
        values = {
            column: milliseconds(hardware, model, speculation, seeds)
            for column, speculation in settings_of(model, acceptance).items()
        }
        fixed = min(value for column, value in values.items() if column == "none" or column.isdigit())
        gain = f"{100 * (1 - values['cost_each'] / fixed):.1f} %"
        yield (name, *(f"{v:.2f}" if math.isfinite(v) else "fails" for v in values.values()), gain)


def main() -> None:
    """Print the table that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("verification", "acceptance", "day"))
    parser.add_argument("--seeds", type=int, default=2, help="days that are averaged, default 2")
    options = parser.parse_args()
    if options.table == "verification":
        heads = (
            "batch, drafts",
            "measured, ms (with engine)",
            "kvgym",
            "drafts as prompt chunks",
            "as further decodes",
        )
        print_table(heads, verification())
    elif options.table == "acceptance":
        heads = ("name", "rates by position", "tokens per step at depth 1, 3, 5, 7", "spread", "source")
        print_table(heads, acceptances())
    else:
        columns = ("none", *(f"{k}" for k in DEPTHS), "table", "cost", "cost_each")
        print_table(("", *columns, "cost_each over the best fixed depth"), day(options.seeds))


if __name__ == "__main__":
    main()
