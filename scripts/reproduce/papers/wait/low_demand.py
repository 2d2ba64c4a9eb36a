"""Far below saturation, with the whole memory: the cost of waiting for thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym import load_hardware, make_workload
from papers.wait.equilibrium import rate_at
from papers.wait.setting import ENGINE, HARDWARE, scenario_of
from papers.wait.tables import HEADS, label, number, play, result_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.1, 0.5, 0.9)
POLICIES = {
    "fcfs": "fcfs",
    "vllm": "vllm:max_batch_requests=1024",
    "sarathi": "sarathi:token_budget=2048,max_batch_requests=1024",
    "wait (11)": "wait",
    "wait, practical": "wait:rule=practical,batch_limit=1024",
    "nested_wait (12)": "nested_wait",
}


def run(scale: Scale) -> Outcome:
    """Run the three types of the high-demand setting far below saturation, until all are done."""
    hardware = load_hardware(HARDWARE)
    classes = make_workload("wait-high").class_statistics
    most = rate_at(classes, hardware.kv_capacity, hardware.batch_time(engine=ENGINE))
    findings, rows = [], []
    curves: dict[str, list[float]] = {name: [] for name in POLICIES}
    shares = scale.pick(SHARES, (0.5,))
    for share in shares:
        workload = {"preset": "wait-high", "rate": share * most, "duration": scale.pick(200, 10)}
        s = scenario_of("low", workload, hardware.kv_capacity, None)
        outcome = play(s, POLICIES, scale.number_of_seeds(5, 1), scale)
        latency = {n: outcome.estimate(label(p), "e2e_latency_mean").value for n, p in POLICIES.items()}
        for name, value in latency.items():
            curves[name].append(value)
        rows += [[f"{share:g}", *row] for row in result_rows(outcome, POLICIES, "vllm")]
        times = latency["wait (11)"] / latency["fcfs"]
        findings.append(
            Finding(
                f"latency of WAIT at {share:g} of the sustainable rate",
                "Section 6.1: within acceptable limits",
                f"WAIT {number(latency['wait (11)'])} s, Nested WAIT {number(latency['nested_wait (12)'])} s, FCFS "
                f"{number(latency['fcfs'])} s",
                Verdict.NOT_REPRODUCED if times > 2 else Verdict.REPRODUCED,
                f"{number(times)} times FCFS's: a type takes one step for every n_j arrivals, even if the "
                f"GPU is idle.",
            )
        )
    table = Table(("share", "policy", *HEADS, "throughput / vLLM"), rows, f"Shares of {most:.1f} requests/s.")
    return Outcome(findings, [table], {"shares": list(shares), "curves": curves})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw mean latency against the share of the sustainable rate."""
    figure, (axes,) = new_figure()
    for (name, values), colour in zip(data["curves"].items(), palette(len(POLICIES)), strict=True):
        axes.plot(data["shares"], values, color=colour, marker="o", markersize=3, label=name)
    axes.set(yscale="log", xlabel="share of the sustainable rate", ylabel="mean latency, s")
    axes.legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    name="low-demand",
    title="Latency far below saturation",
    source="Section 6.1, right panels of Figures 7 and 8",
    run=run,
    draw=draw,
)
