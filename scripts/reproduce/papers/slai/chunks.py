"""Equation (7): the best chunks of a prompt, and the gap in the known service rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from formulas.tile_capacity import mean_request_time, request_time
from formulas.tile_chunks import (
    attained_request_time,
    best_chunks,
    capacity_gap,
    least_request_time,
    prefill_time,
)
from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym.batch_time import TileBatchTime
from kvgym.experiments.scenario import load_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LCM, COLUMN = 256, 128  # tokens: t*_lcm and t*_col of the A100's tiling (256, 128, 32)
PROMPTS = (256, 512, 1024, 2048, 4096, 7936)
OVERHEADS = (0.0, 0.0001, 0.001, 0.003, 0.028)


def run(scale: Scale) -> Outcome:
    """Compare chunks of t_lcm with the best ones; a bound is refuted if explicit batches go below it."""
    scenario = load_scenario("slai-tile")
    system = scenario.make_system()
    assert isinstance(system.batch_time, TileBatchTime)
    node = system.batch_time.node
    prompt = PROMPTS[-1]
    ways = {size: prefill_time([size] * (prompt // size), node) for size in (COLUMN, LCM)}
    least, printed = (float(f(prompt, 0, node)) for f in (least_request_time, request_time))
    table = scenario.sample(scenario.make_workload(), 0, system.kv_capacity)
    lengths = table.prompt_len, table.output_len
    whole = -(-table.prompt_len // LCM) * LCM, table.output_len  # Assumption 3
    gap, gap_whole = capacity_gap(*lengths, node), capacity_gap(*whole, node)
    means = {
        "printed T̄^R": mean_request_time(*lengths, node),
        "bound without ceilings": mean_request_time(*lengths, node, chunk=1),
        "bound of the best chunks": float(np.mean(least_request_time(*lengths, node))),
        "attained": float(np.mean(attained_request_time(*lengths, node))),
    }
    best = best_chunks(prompt, node).tolist()
    findings = [
        Finding(
            "chunks of t_lcm tokens complete the self-attention of a prefill in minimal time (Appendix B.1)",
            f"chunks of {LCM}",
            f"{prompt:,} tokens: {ways[LCM]:.5f} s in chunks of {LCM}, {ways[COLUMN]:.5f} s in chunks of {COLUMN}",
            Verdict.REFUTED if ways[COLUMN] < ways[LCM] * (1 - 1e-9) else Verdict.REPRODUCED,
            "the best chunks have t_col tokens, the first what is left (proof in formulas/tile_chunks.py): the "
            "second product of (6) then skips more masked entries",
        ),
        Finding(
            "no batches serve requests in less than Σ T*^R(j) (Proposition 1, from which Theorem 1 follows)",
            "lower bound",
            f"{COLUMN} prompts of {prompt:,} tokens: {COLUMN * ways[COLUMN]:.3f} s, bound {COLUMN * printed:.3f} s",
            Verdict.REFUTED if ways[COLUMN] < printed * (1 - 1e-9) else Verdict.REPRODUCED,
            f"by {100 * (1 - ways[COLUMN] / printed):.2f} % only: where t_row > t_col the printed term with t_lcm is "
            "no bound. With the best chunks' attention in its place the proposition and the theorem hold, and these "
            f"batches attain it ({least / ways[COLUMN]:.6f})",
        ),
        Finding(
            "gap between the rate served and the bound on every scheduler",
            "none (throughput optimality)",
            f"{100 * gap_whole:.2f} % with prompts in multiples of {LCM}, {100 * gap:.2f} % with Section 7's lengths",
            Verdict.REPRODUCED if gap_whole < 1e-9 else Verdict.NOT_REPRODUCED,
            "the gap is the part of a column of tiles that a prompt's short chunk leaves empty; "
            "Assumption 3 excludes it",
        ),
    ]
    by_length = [
        [f"{p:,}", *(f"{1000 * x:.2f}" for x in _times(p, node)), " + ".join(map(str, _runs(p, node)))]
        for p in PROMPTS
    ]
    head = [
        "prompt tokens",
        f"in chunks of {LCM}, ms",
        f"of {COLUMN}, ms",
        "whole, ms",
        "bound, ms",
        "best with 0.1 ms per batch",
    ]
    bests = [[f"{1000 * o:g}", f"{len(best_chunks(prompt, node, overhead=o))}"] for o in OVERHEADS]
    tables = [
        Table(head, by_length, "Prefill alone on the worker, without an overhead, by (7):"),
        Table(
            ["overhead per batch, ms", "chunks"], bests, f"Number of the best chunks of {prompt:,} tokens:"
        ),
        Table(
            ["mean time of a request", "seconds"],
            [[name, f"{value:.5f}"] for name, value in means.items()],
            "Section 7's lengths:",
        ),
    ]
    assert sum(best) == prompt
    curve = [
        prefill_time([size] * (4096 // size), node) for size in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    ]
    return Outcome(findings, tables, {"seconds": curve, "least": float(least_request_time(4096, 0, node))})


def _times(prompt: int, node: Any) -> list[float]:
    ways = ([LCM] * (prompt // LCM), [COLUMN] * (prompt // COLUMN), [prompt])
    return [*(prefill_time(way, node) for way in ways), float(least_request_time(prompt, 0, node))]


def _runs(prompt: int, node: Any) -> list[str]:
    """Return the best chunks with a tenth of a millisecond per batch, equal neighbours as e.g. 3 × 256."""
    out, chunks = list[tuple[int, int]](), best_chunks(prompt, node, overhead=0.0001).tolist()
    for chunk in chunks:
        if out and out[-1][1] == chunk:
            out[-1] = (out[-1][0] + 1, chunk)
        else:
            out.append((1, chunk))
    return [f"{count} × {chunk}" for count, chunk in out]


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the prefill time of 4,096 tokens against the size of equal chunks."""
    figure, (axes,) = new_figure()
    sizes = [16 * 2**k for k in range(len(data["seconds"]))]
    axes.plot(sizes, data["seconds"], color=palette(1)[0], marker=".")
    axes.axhline(data["least"], color="#57606a", linewidth=0.8, linestyle=":", label="bound")
    axes.set(xscale="log", yscale="log", xlabel="tokens of each chunk", ylabel="prefill of 4,096 tokens, s")
    axes.legend()
    return figure


CHUNKS = Experiment(
    "equation-7",
    "The best chunks, and the gap",
    "Equations (6), (7), (11)–(13), Appendix B.1",
    run,
    draw,
    covers=("Proposition 1",),
    cheap=True,
)
