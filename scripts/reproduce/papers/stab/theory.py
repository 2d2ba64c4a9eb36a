"""The printed rates from equation (1)."""

from __future__ import annotations

import numpy as np

from harness import print_table
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.stability import (
    cumulative_memory,
    implied_batch_time,
    mean_cumulative_memory_uniform,
    service_rate,
)
from papers.stab.setting import CHUNK, PRINTED, PRINTED_8_GPUS, SLACK, M, bounds_of, rate_of

PRINTED_8_1 = {"trimmed_5": 4.977, "trimmed_10": 5.862}


def print_theory() -> None:
    """Print the rates of Tables 1, 3 and 4 from equation (1)."""
    print("## The printed rates from equation (1)\n")
    rows = []
    for name, (batch_time, printed, _) in PRINTED.items():
        prompt, output = bounds_of(load_scenario(name).make_workload())
        by_chunk = [rate_of(name, batch_time, chunk) for chunk in (128, 256, CHUNK, 4096)]
        lengths = np.arange(prompt[0], prompt[1] + 1)
        ratio = {"stab-1-1": 1.0, "stab-2-1": 0.5, "stab-1-2": 2.0}[name]
        tied = cumulative_memory(lengths, np.maximum((lengths * ratio).astype(np.int64), 1), CHUNK).mean()
        rows.append(
            (
                name.removeprefix("stab-").replace("-", ":"),
                f"{batch_time:.4f}",
                f"{printed:.3f}",
                *(f"{rate:.3f} ({rate / printed - 1:+.1%})" for rate in by_chunk),
                f"{service_rate(M, batch_time, tied):.3f}",
            )
        )
    head = (
        "ratio",
        "b̄, s",
        "printed",
        "chunk 128",
        "256",
        str(CHUNK),
        "whole prompts",
        "output = ratio × prompt",
    )
    print_table(head, rows)
    printed = PRINTED["stab-1-1"][1]
    print(f"Eight workers: 8 × {printed} = {8 * printed:.3f} (printed {PRINTED_8_GPUS[0]}); ", end="")
    print(
        f"8 × {rate_of('stab-1-1', 0.0372):.3f} = {8 * rate_of('stab-1-1', 0.0372):.3f} with chunks of {CHUNK}.\n"
    )
    prompt, output = bounds_of(load_scenario("stab-8-1").make_workload())
    mean = mean_cumulative_memory_uniform(prompt, output, CHUNK)
    implied = {name: implied_batch_time(M, rate, mean) for name, rate in PRINTED_8_1.items()}
    print(f"8:1 prints rates but no batch times; with prompts {prompt} and outputs {output} they follow from")
    print(
        ", ".join(f"b̄ = {b:.4f} s ({name}, rate {PRINTED_8_1[name]})" for name, b in implied.items()) + ".\n"
    )
    print(f"δ = {SLACK:.4f}.\n")
