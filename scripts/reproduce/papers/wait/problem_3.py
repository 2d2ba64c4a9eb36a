"""Problem (3): the most throughput subject to bounds on latency and TTFT, by kvgym tune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym import make_batch_time, make_workload
from kvgym.errors import KVGymError
from kvgym.studies.tuning.tune import tune
from kvgym.theory.fluid import batch_memory, full_batch_time
from papers.wait.setting import AFFINE, scenario_of
from papers.wait.tables import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUNDS = (8.0, 10.0, 12.0, 15.0)  # s, on the mean latency; the mean TTFT may be a tenth of it
SPACES: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "wait": ("wait", {"thresholds": ["6/4/2", "7/5/3", "8/5/3", "8/6/3", "5/4/2", "4/3/2"]}),
    "sarathi": (
        "sarathi:watermark=0.0",
        {"token_budget": [512, 2048, 8192], "max_batch_requests": [1024, 2048]},
    ),
    "fcfs": ("fcfs", {"protection": [0.0, 0.05, 0.1, 0.2, 0.3]}),
}


def run(scale: Scale) -> Outcome:
    """The three types of the high demand with linear batch times, rates of n* = 6/4/2, and C = 1.05 M*."""
    classes = make_workload("wait-high").class_statistics
    n, model = np.array([6, 4, 2]), make_batch_time(AFFINE)
    rate = float(n.sum() / full_batch_time(classes, n, model))
    duration = scale.pick(60.0, 4.0)
    workload = {"preset": "wait-high", "rate": rate, "duration": duration}
    s = scenario_of("problem-3", workload, int(1.05 * batch_memory(classes, n)), AFFINE)
    bounds, seeds = scale.pick(BOUNDS, (1000.0,)), scale.number_of_seeds(5, 1)
    best: dict[str, list[float | None]] = {name: [] for name in SPACES}
    rows = []
    for bound in bounds:
        for name, (spec, space) in SPACES.items():
            subject = f"e2e_latency_mean<={bound:g},ttft_mean<={bound / 10:g}"
            chosen = {k: v[:2] for k, v in space.items()} if scale.quick else space
            try:
                found = tune(
                    spec,
                    s,
                    space=chosen,
                    metric="token_throughput",
                    subject_to=subject,
                    seeds=seeds,
                    jobs=scale.jobs,
                    ray=scale.ray,
                ).best
            except KVGymError:  # no configuration keeps the bounds
                best[name].append(None)
                rows.append([f"{bound:g}", f"{bound / 10:g}", name, "none keeps them", "", "", ""])
                continue
            best[name].append(found.value)
            cells = [number(found.value), *(number(x) for x in found.others.values())]
            rows.append([f"{bound:g}", f"{bound / 10:g}", name, f"`{found.spec}`", *cells])
    kept = {name: sum(x is not None for x in values) for name, values in best.items()}
    last = {name: values[-1] for name, values in best.items()}
    finding = Finding(
        "problem (3) can be posed for any scheduler",
        "Section 2.6, (3); no figures",
        "; ".join(f"{name}: {kept[name]} of {len(bounds)} bounds kept" for name in SPACES)
        + f"; most at the loosest: {', '.join(f'{k} {number(v)}' for k, v in last.items() if v is not None)} tokens/s",
        Verdict.CONSTRUCTION,
        "`kvgym tune … --metrics token_throughput --subject-to …` over small grids, all requests served, at "
        f"{rate:.0f} requests/s. Thresholds make every request wait, so tight bounds on latency favour "
        f"Sarathi.",
    )
    head = (
        "latency ≤, s",
        "TTFT ≤, s",
        "policy",
        "best configuration",
        "output tokens/s",
        "latency, s",
        "TTFT, s",
    )
    return Outcome([finding], [Table(head, rows)], {"bounds": list(bounds), "best": best})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the most throughput against the bound on latency."""
    figure, (axes,) = new_figure()
    for (name, values), colour in zip(data["best"].items(), palette(3), strict=True):
        points = [(b, v) for b, v in zip(data["bounds"], values, strict=True) if v is not None]
        axes.plot(*(zip(*points, strict=True) if points else ([], [])), color=colour, marker="o", label=name)
    axes.set(xlabel="bound on the mean latency, s (TTFT: a tenth)", ylabel="most output tokens/s")
    axes.legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    name="problem-3",
    title="Problem (3): throughput subject to bounds on latency and TTFT",
    source="Section 2.6, (3)",
    run=run,
    draw=draw,
)
