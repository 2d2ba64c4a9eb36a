"""Figure 6: effects of token budget, number of requests and number of decodes on batches and memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym.batch_time import BatchTimeModel
from kvgym.experiments.scenario import load_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, BUDGET = 2048, 512  # tokens, Section 6.1
BUDGETS = (32, 64, 128, 256, 512, 1024, 2048)
"""Token budgets of Figure 6a."""
DECODES = (0, 16, 32, 48, 64, 80, 96, 112, 128)
"""Requests of Figure 6b, decodes of Figure 6c."""


def chunk_times(time: BatchTimeModel, prompt: int, budget: int) -> list[float]:
    """Return the seconds of each batch of a prompt alone on the worker, in chunks of the budget."""
    out = []
    for start in range(0, prompt, budget):
        chunk = min(budget, prompt - start)
        load = {"prefill_tokens": chunk, "prefill_context": start, "prefill_squares": chunk * chunk}
        out.append(time(num_prefills=1, prefill_products=chunk * start, **load))
    return out


def mixed_time(time: BatchTimeModel, decodes: int, context: int, budget: int) -> float:
    """Return the seconds of a batch of decodes at one context and a prompt's first chunk that fills the budget."""
    chunk = budget - decodes
    load = {"prefill_tokens": chunk, "prefill_squares": chunk * chunk}
    return time(num_prefills=1, num_decodes=decodes, decode_context=decodes * context, **load)


def run(scale: Scale) -> Outcome:
    """Compute all three panels; reproduced are curves that rise or fall throughout as the text says."""
    system = load_scenario("slai-5").make_system()
    time, memory = system.batch_time, system.kv_capacity
    chunks = [chunk_times(time, PROMPT, budget) for budget in BUDGETS]
    ttft, slowest = [sum(times) for times in chunks], [max(times) for times in chunks]
    used = [count * (PROMPT + 1) / memory for count in DECODES]
    mixed = [mixed_time(time, count, PROMPT, BUDGET) for count in DECODES]
    fit = memory // (PROMPT + 1)
    findings = [
        Finding(
            "a small token budget costs TTFT, a large one makes long batches (6a)",
            "TTFT falls, batch time rises with the budget",
            f"TTFT {ttft[0]:.2f} → {ttft[-1]:.2f} s, longest batch {slowest[0]:.3f} → {slowest[-1]:.3f} s "
            f"from {BUDGETS[0]} to {BUDGETS[-1]} tokens",
            _verdict(_falls(ttft) and _rises(slowest)),
            "28 ms of every batch are an assumed overhead; the rest is the roofline",
        ),
        Finding(
            "memory grows with the number of active requests (6b)",
            "steadily",
            f"{100 * (PROMPT + 1) / memory:.2f} % per request of {PROMPT:,} tokens; {fit} fill it",
            Verdict.CONSTRUCTION,
            f"Every request holds its KV. The cap of 128 in Section 7 is above {fit}, so alone it does not prevent "
            "evictions of such requests",
        ),
        Finding(
            "a batch takes longer the more decodes it has, at a token budget of 512 (6c)",
            "significantly longer",
            f"{mixed[0]:.3f} s with none, {mixed[-1]:.3f} s with {DECODES[-1]}",
            _verdict(_rises(mixed)),
            "each decode reads its KV; the displaced part of the prompt's chunk is cheaper",
        ),
    ]
    head = ["token budget", *(f"{budget}" for budget in BUDGETS)]
    budgets = Table(
        head,
        [["TTFT, s", *(f"{x:.2f}" for x in ttft)], ["longest batch, s", *(f"{x:.3f}" for x in slowest)]],
        f"A prompt of {PROMPT:,} tokens alone on the worker:",
    )
    counts = Table(
        ["requests", *(f"{count}" for count in DECODES)],
        [
            ["memory in use, %", *(f"{100 * x:.0f}" for x in used)],
            ["batch of 512 tokens with that many decodes, s", *(f"{x:.3f}" for x in mixed)],
        ],
        f"Requests with {PROMPT:,} tokens of KV:",
    )
    data = {"ttft": ttft, "slowest": slowest, "used": used, "mixed": mixed}
    return Outcome(findings, [budgets, counts], data)


def _rises(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _falls(values: list[float]) -> bool:
    return all(a > b for a, b in pairwise(values))


def _verdict(holds: bool) -> Verdict:
    return Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the three panels."""
    figure, panels = new_figure(3)
    first, second, third = palette(3)
    panels[0].plot(BUDGETS, data["ttft"], color=first, marker=".", label="TTFT")
    panels[0].plot(BUDGETS, data["slowest"], color=second, marker=".", label="longest batch")
    panels[0].set(
        xscale="log", xlabel="token budget", ylabel="seconds", title=f"A prompt of {PROMPT:,} tokens"
    )
    panels[0].legend()
    panels[1].plot(DECODES, [100 * x for x in data["used"]], color=third, marker=".")
    panels[1].axhline(100, color="#57606a", linewidth=0.8, linestyle=":")
    panels[1].set(xlabel="active requests", ylabel="percent of the KV memory")
    panels[2].plot(DECODES, data["mixed"], color=second, marker=".")
    panels[2].set(
        xlabel="decodes in the batch", ylabel="batch time, s", title="512 tokens in all", ylim=(0, None)
    )
    return figure


PARAMETERS = Experiment(
    "figure-6", "What a batch and the memory cost", "Section 6.1, Figure 6", run, draw,
    covers=("Figure 6a", "Figure 6b", "Figure 6c"), cheap=True,
)  # fmt: skip
