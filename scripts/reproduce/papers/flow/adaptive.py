"""Section 5: a policy that switches between flow control and greedy admission by the memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from papers.flow.runs import TUNING_SEED, choose, gather, interval, mean, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (2.0, 3.0, 3.5, 3.7, 3.9)
"""λ of each class; budgets of 12 satisfy (4) up to a total of 12."""
SEEDS = 5
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
FLOW, GREEDY = "flow_control:budget=12", ("fcfs", "alpha_greedy:alpha=0.7")


def run(scale: Scale) -> Outcome:
    """Run flow control, greedy admission and the switch over λ, lengths unknown, drained.

    The share of the switch has the least mean latency at λ = 3.5 on other seeds. Reproduced is a switch that is within
    1 % of the better of both at every λ.
    """
    rates, slots = scale.pick(RATES, (2.0, 3.5)), scale.pick(3000, 100)
    seeds = range(scale.number_of_seeds(SEEDS, 1))
    tuning = range(TUNING_SEED, TUNING_SEED + scale.pick(2, 1))
    tried = [f"{FLOW},greedy={share}" for share in SHARES]
    searched = gather(scale, "flow-unknown", tried, [slots], tuning, rate=3 * 3.5)
    found_shares = {policy: searched[policy, slots] for policy in tried}
    switch = choose(found_shares)
    policies = (FLOW, *GREEDY, switch)
    found = {rate: gather(scale, "flow-unknown", policies, [slots], seeds, rate=3 * rate) for rate in rates}
    curves = {
        policy: [mean(found[rate][policy, slots]["e2e_latency_mean"]) for rate in rates]
        for policy in policies
    }
    better = [
        min(np.nan_to_num(curves[p][i], nan=np.inf) for p in (FLOW, *GREEDY)) for i in range(len(rates))
    ]
    ratios = [value / least for value, least in zip(curves[switch], better, strict=True)]
    close = [rate for rate, ratio in zip(rates, ratios, strict=True) if ratio <= 1.01]
    finding = Finding(
        "a policy that switches between flow control and greedy admission by traffic combines both",
        "proposed as future work (Section 5)",
        "mean latency "
        + ", ".join(f"{ratio:.3f} at λ = {rate:g}" for rate, ratio in zip(rates, ratios, strict=True))
        + " times that of the better of both",
        Verdict.REPRODUCED
        if len(close) == len(rates)
        else Verdict.CONDITIONS
        if close
        else Verdict.NOT_REPRODUCED,
        f"Greedy up to {switch.rpartition('=')[2]} of the memory, budgets above.",
        condition="at λ = " + ", ".join(f"{rate:g}" for rate in close),
    )
    rows = [
        (f"{rate:g}", *(interval(found[rate][policy, slots]["e2e_latency_mean"]) for policy in policies))
        for rate in rates
    ]
    tables = (
        Table(
            ("λ of each class", *(f"`{policy}`" for policy in policies)),
            rows,
            f"Mean latency, slots; {slots:,} slots, drained:",
        ),
        Table(
            (
                "greedy share",
                *(f"**{share}**" if tried[k] == switch else f"{share}" for k, share in enumerate(SHARES)),
            ),
            [("E2E mean", *(number(mean(found_shares[policy]["e2e_latency_mean"])) for policy in tried))],
            f"Search at λ = 3.5, seeds from {TUNING_SEED}:",
        ),
    )
    return Outcome((finding,), tables, {"rates": rates, "curves": curves})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw mean latency against λ."""
    figure, (axes,) = new_figure(panel=(6.0, 3.6))
    for colour, (policy, curve) in zip(palette(len(data["curves"])), data["curves"].items(), strict=True):
        y = [np.nan if value is None else value for value in curve]
        axes.plot(data["rates"], y, marker="o", markersize=4, color=colour, label=policy)
    axes.set(yscale="log", xlabel="λ of each class, per slot", ylabel="mean latency, slots")
    axes.legend(fontsize=8)
    return figure


ADAPTIVE = Experiment("adaptive", "Switching by load", "Section 5", run, draw)
