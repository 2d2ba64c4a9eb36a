"""Section 5: a policy that switches between flow control and greedy admission by the memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
CLOSE = 1.01
"""Latencies within 1 % are equal."""


def run(scale: Scale) -> Outcome:
    """Run flow control, greedy admission and the switch over λ, lengths unknown, drained.

    The share of the switch has the least mean latency at λ = 3.5 on other seeds. The verdict is by the λ at which flow
    control and greedy admission differ by more than 1 %, as any mixture of equal rules is their equal. Reproduced is a
    switch that is within 1 % of the better rule at all of them, if each rule is the better one at some: otherwise it
    need not switch.
    """
    rates, slots = scale.pick(RATES, (2.0, 3.5)), scale.pick(3000, 100)
    seeds = range(scale.number_of_seeds(SEEDS, 1))
    tuning = range(TUNING_SEED, TUNING_SEED + scale.pick(2, 1))
    tried = [f"{FLOW},greedy={share}" for share in SHARES]
    searched = gather(scale, "flow-unknown", tried, [slots], tuning, rate=3 * 3.5)
    found_shares = {policy: searched[policy, slots] for policy in tried}
    switch = choose(found_shares)
    policies = (FLOW, *GREEDY, *tried)
    found = {rate: gather(scale, "flow-unknown", policies, [slots], seeds, rate=3 * rate) for rate in rates}
    latency = {
        policy: [mean(found[rate][policy, slots]["e2e_latency_mean"]) for rate in rates]
        for policy in policies
    }
    flow = np.array(latency[FLOW])
    greedy = np.min(np.nan_to_num([latency[p] for p in GREEDY], nan=np.inf), axis=0)
    better = np.minimum(flow, greedy)
    differ = [i for i in range(len(rates)) if max(flow[i], greedy[i]) > CLOSE * better[i]]
    ratios = {policy: np.array(latency[policy]) / better for policy in tried}
    others = np.concatenate([ratios[policy] for policy in tried if policy != switch])
    finding = Finding(
        "a policy that switches between flow control and greedy admission by traffic combines both",
        "proposed as future work (Section 5)",
        "mean latency "
        + ", ".join(f"{ratios[switch][i]:.3f} at λ = {rates[i]:g}" for i in differ)
        + " times the latency of the better of both",
        verdict_of(flow[differ], greedy[differ], ratios[switch][differ]),
        "Only the λ at which the rules differ by more than 1 % count. Flow control is at no λ more than "
        f"{max(flow / better) - 1:.1%} behind greedy admission, so a switch has little to gain. The share "
        f"{switch.rpartition('=')[2]} was chosen at λ = 3.5, where the rules are nearly equal; the others, with "
        f"{others.min():.3f} … {others.max():.3f} times the latency of the better rule, do as flow control.",
        condition="at λ = " + ", ".join(f"{rates[i]:g}" for i in differ if ratios[switch][i] <= CLOSE),
    )
    shares = {policy: policy.rpartition("=")[2] for policy in tried}
    rows = [
        (
            f"{rate:g}",
            *(interval(found[rate][policy, slots]["e2e_latency_mean"]) for policy in (FLOW, *GREEDY, switch)),
        )
        for rate in rates
    ]
    tables = (
        Table(
            ("λ of each class", *(f"`{policy}`" for policy in (FLOW, *GREEDY, switch))),
            rows,
            f"Mean latency, slots; {slots:,} slots, drained:",
        ),
        Table(
            ("greedy share", *(f"**{shares[p]}**" if p == switch else shares[p] for p in tried)),
            [("E2E mean", *(number(mean(found_shares[policy]["e2e_latency_mean"])) for policy in tried))],
            f"Search at λ = 3.5, seeds from {TUNING_SEED}:",
        ),
        Table(
            ("λ of each class", "flow control", "greedy admission", *(shares[p] for p in tried)),
            [
                (
                    f"{rate:g}",
                    *(f"{x / better[i]:.3f}" for x in (flow[i], greedy[i])),
                    *(f"{ratios[policy][i]:.3f}" for policy in tried),
                )
                for i, rate in enumerate(rates)
            ],
            "Mean latency of both rules and of every share, as a multiple of the better rule's:",
        ),
    )
    curves = {policy: latency[policy] for policy in (FLOW, *GREEDY, switch)}
    return Outcome((finding,), tables, {"rates": rates, "curves": curves})


def verdict_of(
    flow: NDArray[np.float64], greedy: NDArray[np.float64], ratios: NDArray[np.float64]
) -> Verdict:
    """Return the verdict on a switch.

    Args:
        flow: mean latency of flow control at the λ where the rules differ.
        greedy: the one of greedy admission.
        ratios: the one of the switch, as a multiple of the better rule's.
    """
    close = ratios <= CLOSE
    if not close.any() or (flow < greedy).all() or (greedy < flow).all():
        return Verdict.NOT_REPRODUCED
    return Verdict.REPRODUCED if close.all() else Verdict.CONDITIONS


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
