"""Theorem 2: Nested WAIT with the memory of (14), and with less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym import System, make_batch_time
from kvgym.runner import simulate
from kvgym.theory.buffers import memory_bound
from kvgym.theory.nested import nested_batch_time, nested_thresholds
from kvgym.workloads.workload import make_workload
from papers.wait.setting import AFFINE, RULES
from papers.wait.tables import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, ENDS, RATES = 10, (20, 40, 80, 160), (12.0, 24.0, 48.0, 96.0)  # Section 6.2; requests per second
DELTA = 0.1
HORIZONS = (50, 100, 200, 400)
NAMES = {"total": "(14)", "queues": "M^π and queues", "batch": "M^π"}
"""Memories: all terms of (14), without the fluctuations, and the full batch alone."""


def one(task: tuple[int, tuple[int, ...], int, int]) -> tuple[float, float]:
    """Return the evictions of a run, and the mean latency of the requests that finish within it."""
    capacity, thresholds, horizon, seed = task
    prompt = {"kind": "constant", "value": PROMPT}
    classes = [
        {"rate": r, "prompt": prompt, "output": {"kind": "constant", "value": o}}
        for r, o in zip(RATES, ENDS, strict=True)
    ]
    table = make_workload({"classes": classes, "duration": horizon}).sample(seed)
    system = System(capacity, make_batch_time(AFFINE), horizon=float(horizon), **RULES)
    policy = f"nested_wait:thresholds={'/'.join(map(str, thresholds))},segments={'/'.join(map(str, ENDS))}"
    done = simulate(system, table, policy).requests
    finished = done["finish_time"] <= horizon
    latency = float((done["finish_time"] - done["arrival_time"])[finished].mean())
    return float(done["num_evictions"].sum()), latency


def run(scale: Scale) -> Outcome:
    """Run thresholds that satisfy (12) with the three memories.

    Theorem 2 is reproduced if evictions occur in at most a share δ of the runs, and latency does not grow, by more than
    a tenth from the second horizon on.
    """
    horizons, seeds = scale.pick(HORIZONS, HORIZONS[:2]), scale.number_of_seeds(20, 2)
    model = make_batch_time(AFFINE)
    n = nested_thresholds(RATES, PROMPT, ENDS, model)
    batches = horizons[-1] / nested_batch_time(n, PROMPT, ENDS, model)
    bound = memory_bound(n, PROMPT, ENDS, RATES, batches, DELTA)
    memories = {
        "total": int(np.ceil(bound.total)),
        "queues": int(np.ceil(bound.batch + bound.queues)),
        "batch": int(np.ceil(bound.batch)),
    }
    tasks = [(c, tuple(n.tolist()), t, s) for c in memories.values() for t in horizons for s in range(seeds)]
    found = np.array(scale.do_all(one, tasks)).reshape(len(memories), len(horizons), seeds, 2)
    runs = {name: int((found[k, -1, :, 0] > 0).sum()) for k, name in enumerate(memories)}
    mean = {name: found[k, :, :, 1].mean(axis=1) for k, name in enumerate(memories)}
    level = mean["total"][-1] <= 1.1 * mean["total"][min(1, len(horizons) - 1)]
    thresholds = "/".join(map(str, n))
    findings = [
        Finding(
            "with the memory of (14): memory is not exceeded with probability 1 − δ, latency is bounded",
            f"Theorem 2, δ = {DELTA:g}",
            f"evictions in {runs['total']} of {seeds} runs; latency {number(mean['total'][0])} s at T = {horizons[0]}, "
            f"{number(mean['total'][-1])} s at {horizons[-1]}",
            Verdict.REPRODUCED if runs["total"] <= DELTA * seeds and level else Verdict.NOT_REPRODUCED,
            f"n = {thresholds}, {memories['total']:,} tokens: {number(bound.total / bound.batch)} times M^π.",
        ),
        Finding(
            "less memory does not suffice where types are unknown",
            "Proposition 5 and Theorem 2: some memory beyond M^π is needed",
            f"M^π and queues: evictions in {runs['queues']} of {seeds} runs; M^π alone: in {runs['batch']} of {seeds}, "
            f"latency {number(mean['batch'][0])} to {number(mean['batch'][-1])} s",
            Verdict.REPRODUCED if runs["batch"] > DELTA * seeds else Verdict.NOT_REPRODUCED,
            f"M^π = {memories['batch']:,}, with queues {memories['queues']:,} tokens. The newest requests are evicted, "
            "so that latency hardly changes.",
        ),
    ]
    rows = [
        [
            NAMES[name],
            f"{c:,}",
            f"{t}",
            f"{int((found[k, j, :, 0] > 0).sum())} of {seeds}",
            number(float(found[k, j, :, 0].mean())),
            number(float(found[k, j, :, 1].mean())),
        ]
        for k, (name, c) in enumerate(memories.items())
        for j, t in enumerate(horizons)
    ]
    head = ("memory", "tokens", "T, s", "runs with evictions", "evictions", "latency, s")
    curves = {NAMES[name]: mean[name].tolist() for name in memories}
    return Outcome(findings, [Table(head, rows)], {"horizons": list(horizons), "curves": curves})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the mean latency against the horizon."""
    figure, (axes,) = new_figure()
    for (name, curve), colour in zip(data["curves"].items(), palette(3), strict=True):
        axes.plot(data["horizons"], curve, color=colour, marker="o", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="length of the run T, s", ylabel="mean latency, s")
    axes.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="theorem-2",
    title="Theorem 2: Nested WAIT with the memory of (14) and with less",
    source="Section 5.3, Theorem 2, (14)",
    run=run,
    draw=draw,
    covers=("Theorem 2",),
)
