"""Table 1: mean end-to-end latency of 1,000 requests at 50 per second, over 50 runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import spearmanr

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from papers.mc_sf.setting import LATENCY, MC_BENCHMARK, MC_SF, POLICIES, interval, number

PUBLISHED = {
    "MC-SF": (32.112, 0.354, 33.097, 31.505),
    "MC-Benchmark": (46.472, 0.310, 47.135, 45.838),
    "α = 0.3": (51.933, 0.324, 52.532, 51.204),
    "α = 0.25": (51.046, 0.351, 51.757, 50.279),
    "α = 0.2, β = 0.2": (50.401, 0.343, 51.035, 49.700),
    "α = 0.2, β = 0.1": (50.395, 0.360, 51.083, 49.586),
    "α = 0.1, β = 0.2": (53.393, 1.457, 56.357, 49.488),
    "α = 0.1, β = 0.1": (50.862, 0.946, 53.978, 49.086),
}
"""Mean, standard deviation, maximum and minimum over 50 runs, seconds."""

CLOSE = 0.05
"""A ratio of means within this share of the published one counts as the same."""


class SameRequests:
    """Runs a policy on the requests of seed 0 at the arrivals of another seed; work for an executor."""

    def __init__(self, scenario: Scenario, policy: str) -> None:
        self.scenario, self.policy = scenario, policy

    def __call__(self, seed: int) -> float:
        """Return the mean latency, seconds."""
        workload, system = self.scenario.make_workload(), self.scenario.make_system()
        table = workload.sample(0).replace(arrival_time=workload.sample(seed).arrival_time)
        return compute_metrics(simulate(system, table, self.policy, seed=seed), [LATENCY])[LATENCY]


def run(scale: Scale) -> Outcome:
    """Compare the eight policies of the scenario."""
    scenario = load_scenario("mc-sf-table-1")
    found = compare(scenario, seeds=scale.number_of_seeds(scenario.seeds), jobs=scale.jobs, ray=scale.ray)
    head = (
        "policy", "published mean, s", "std", "max", "min", "here mean, s (95 %)", "std", "max", "min",
        "published ratio to MC-SF", "ratio here", "evictions per run",
    )  # fmt: skip
    seeds = range(len(found.seeds))
    fixed = {
        policy: float(np.std(scale.do_all(SameRequests(scenario, policy), seeds), ddof=1))
        for policy in (MC_SF, MC_BENCHMARK)
    }
    return Outcome(_findings(found, fixed), [Table(head, [_row(found, policy) for policy in found.policies])])


def _row(found: Comparison, policy: str) -> tuple[str, ...]:
    published, values = PUBLISHED[POLICIES[policy]], found.values(policy, LATENCY)
    here = (values.std(ddof=1), values.max(), values.min())
    return (
        POLICIES[policy],
        *(number(x, 3) for x in published),
        interval(found.estimate(policy, LATENCY)),
        *(number(x) for x in here),
        number(published[0] / PUBLISHED["MC-SF"][0], 3),
        number(found.ratio(policy, MC_SF, LATENCY).value, 3),
        number(found.estimate(policy, "evictions").value, 1),
    )


def _findings(found: Comparison, fixed: Mapping[str, float]) -> list[Finding]:
    """Return the findings.

    Reproduced is: MC-SF first, where the interval of every other policy's ratio to it lies above 1; a ratio, within
    5 % of the published one; a level, within 5 %; an order, with a rank correlation of 0.8 or more. A spread is
    reproduced with conditions, where it is within a factor of 1.5 under them.
    """
    others = [policy for policy in found.policies if policy != MC_SF]
    ratios = {policy: found.ratio(policy, MC_SF, LATENCY) for policy in others}
    first = all(ratio.low > 1 for ratio in ratios.values())
    published = PUBLISHED["MC-Benchmark"][0] / PUBLISHED["MC-SF"][0]
    close = abs(ratios[MC_BENCHMARK].value / published - 1) <= CLOSE
    level = found.estimate(MC_SF, LATENCY)
    same = abs(level.value / PUBLISHED["MC-SF"][0] - 1) <= CLOSE
    variants = others[1:]
    order = spearmanr(
        [PUBLISHED[POLICIES[policy]][0] for policy in variants],
        [found.estimate(policy, LATENCY).value for policy in variants],
    ).statistic
    return [
        Finding(
            "MC-SF has the lowest mean latency of the eight",
            "1.45 to 1.66 times as much for the others",
            f"{min(r.value for r in ratios.values()):.2f} to {max(r.value for r in ratios.values()):.2f} times",
            Verdict.REPRODUCED if first else Verdict.NOT_REPRODUCED,
            "MC-Benchmark comes second, as published." if min(ratios, key=lambda p: ratios[p].value) == MC_BENCHMARK
            else "",
        ),
        Finding(
            "MC-Benchmark / MC-SF",
            number(published, 3),
            interval(ratios[MC_BENCHMARK], 3),
            Verdict.REPRODUCED if close else Verdict.NOT_REPRODUCED,
        ),
        Finding(
            "level: mean latency of MC-SF",
            "32.112 s",
            f"{interval(level)} s",
            Verdict.REPRODUCED if same else Verdict.NOT_REPRODUCED,
            "Batch times are Vidur's composition, checked against its predictions. So the difference lies "
            "in the workload (lengths by published mean and median, as the conversations cannot be "
            "redistributed) or in details the paper does not state, for example the memory of a word.",
        ),
        Finding(
            "order of the six α, β variants",
            "α = 0.2 before 0.25 before 0.3; α = 0.1, β = 0.2 last",
            f"rank correlation {order:+.2f}",
            Verdict.REPRODUCED if order >= 0.8 else Verdict.NOT_REPRODUCED,
            "Overflow is rare here, so a margin mostly costs concurrency: smaller α is better, including "
            "α = 0.1 with β = 0.2, the last one in the paper.",
        ),
        Finding(
            "standard deviation over runs, MC-SF and MC-Benchmark",
            "0.354 and 0.310 s",
            " and ".join(number(float(np.std(found.values(policy, LATENCY), ddof=1))) for policy in fixed)
            + " s; with fixed requests and random arrivals only "
            + " and ".join(number(spread) for spread in fixed.values()) + " s",
            Verdict.CONDITIONS
            if all(1 / 1.5 <= x / PUBLISHED[POLICIES[policy]][1] <= 1.5 for policy, x in fixed.items())
            else Verdict.NOT_REPRODUCED,
            "Here every seed also draws heavy-tailed lengths. Arrivals alone give the published spread, "
            "so the 50 runs seem to have used the same 1,000 conversations in the same order.",
            condition="if all runs have the same requests and only their arrivals are random"),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    name="table-1",
    title="Table 1: eight policies",
    source="Table 1",
    run=run,
    covers=("Table 1",),
    cheap=True,
)
