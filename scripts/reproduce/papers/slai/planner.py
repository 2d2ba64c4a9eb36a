"""Section 3: the resource planner, which may reassign waiting requests and migrate partly processed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym import simulate
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import ratio_interval
from kvgym.metrics.compute import compute_metrics
from papers.slai.gaps import Array
from papers.slai.measurements import Runner, mean
from papers.slai.setting import SPF, plan_of
from papers.slai.texts import change, mean_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = 4
RATES = (0.8, 1.2, 1.6, 2.0)  # requests per second and node
BUSY = 1.6  # the highest rate of the paper's figures
OVERLOAD = 4.0
# Mistral-7B: 32 layers x 8 KV heads x 128 numbers x 2 (K and V) x 2 bytes = 128 KiB a token, over a link of 25 GB/s.
TRANSFER = 131_072 / 25e9
RANDOM, SHORTEST, REASSIGN, MIGRATE, BOTH = ROUTERS = (
    "uniform_random",
    "join_shortest_queue",
    "rebalancing:migrate=false",
    "rebalancing:difference=0",
    "rebalancing",
)
NAMES = {
    RANDOM: "uniformly random",
    SHORTEST: "fewest requests",
    REASSIGN: "and reassigns",
    MIGRATE: "and migrates",
    BOTH: "and does both",
}


class Cluster(Runner):
    """Runs four nodes of Section 7 behind a router; can be sent to other processes."""

    def measure_routers(self, task: tuple[float, int]) -> dict[str, dict[str, float]]:
        """Return the figures of all routers at a rate per node, on a seed; each sees the same requests."""
        rate, seed = task
        table = self.sample(NODES * rate, seed)
        system = replace(self.system.replicate(NODES), transfer_time=TRANSFER)
        return {r: self._figures(simulate(system, table, SPF, router=r, seed=seed)) for r in ROUTERS}

    def measure_throughput(self, seed: int) -> dict[str, float]:
        """Return the requests per second that RAD finishes under twice that load, with free moves."""
        table = self.sample(NODES * OVERLOAD, seed)
        system = replace(self.system.replicate(NODES), horizon=self.plan.duration)
        results = {r: simulate(system, table, "rad", router=r, seed=seed) for r in (RANDOM, BOTH)}
        return {
            r: compute_metrics(x, ["request_throughput"])["request_throughput"] for r, x in results.items()
        }

    def _figures(self, result: Any) -> dict[str, float]:
        r, table = result.requests, result.table
        counted = table.arrival_time >= self.plan.warm_up
        wanted = ("tbt_p99", "evictions", "moves")
        return {
            "e2e": mean((r["finish_time"] - table.arrival_time)[counted]),
            "ttft": mean((r["first_token_time"] - table.arrival_time)[counted]),
            **compute_metrics(result, wanted),
        }


def run(scale: Scale) -> Outcome:
    """Compare routers on four nodes of Section 7, and RAD's throughput with and without a planner that moves."""
    rates, seeds = scale.pick(RATES, (BUSY,)), scale.number_of_seeds(5)
    cluster = Cluster(load_scenario("slai-5"), plan_of(scale))
    tasks = [(rate, seed) for rate in rates for seed in range(seeds)]
    runs = dict(zip(tasks, scale.do_all(cluster.measure_routers, tasks), strict=True))

    def values(router: str, rate: float, column: str) -> Array:
        return np.array([runs[rate, seed][router][column] for seed in range(seeds)])

    tables = [
        Table(
            ["requests/s and node", *(NAMES[r] for r in ROUTERS)],
            [[f"{rate:g}", *(mean_text(values(r, rate, column), digits) for r in ROUTERS)] for rate in rates],
            caption,
        )
        for column, digits, caption in (
            ("ttft", 3, "Mean TTFT, s:"),
            ("e2e", 2, "Mean end-to-end latency, s:"),
            ("moves", 0, "Requests moved:"),
        )
    ]
    against = ratio_interval(values(BOTH, BUSY, "ttft"), values(RANDOM, BUSY, "ttft"))
    ratio = ratio_interval(values(BOTH, BUSY, "ttft"), values(SHORTEST, BUSY, "ttft"))
    if against.value >= 1:
        verdict = Verdict.NOT_REPRODUCED
    else:
        verdict = Verdict.REPRODUCED if ratio.value < 0.95 else Verdict.CONDITIONS
    throughput = scale.do_all(cluster.measure_throughput, list(range(seeds)))
    random, both = (np.array([x[r] for x in throughput]) for r in (RANDOM, BOTH))
    equal = ratio_interval(random, both).value > 0.97
    findings = [
        Finding(
            f"monitoring nodes and moving requests minimises delay ({NODES} nodes, {BUSY:g}/s each)",
            "particularly useful; no figure",
            f"mean TTFT {change(values(BOTH, BUSY, 'ttft'), values(RANDOM, BUSY, 'ttft'))} against random "
            f"routing, moves contribute {change(values(BOTH, BUSY, 'ttft'), values(SHORTEST, BUSY, 'ttft'))}",
            verdict,
            "" if verdict is Verdict.REPRODUCED else "what helps is to watch the nodes when a request comes",
            condition="for routing by load on arrival; moves add little",
        ),
        Finding(
            "random routing with RAD is throughput-optimal, even where moving KV costs nothing",
            "as much as with any planner",
            f"{mean_text(random)} of {mean_text(both)} requests/s under twice that load",
            Verdict.REPRODUCED if equal else Verdict.NOT_REPRODUCED,
        ),
    ]
    drawn = {r: [float(values(r, rate, "ttft").mean()) for rate in rates] for r in ROUTERS}
    return Outcome(findings, tables, {"rates": list(rates), "ttft": drawn})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the mean TTFT against the rate."""
    figure, (axes,) = new_figure()
    for (router, means), colour in zip(data["ttft"].items(), palette(len(ROUTERS)), strict=True):
        axes.plot(data["rates"], means, color=colour, marker=".", label=NAMES[router])
    axes.set(yscale="log", xlabel="requests per second and node", ylabel="mean TTFT, s")
    axes.legend(fontsize=8)
    return figure


PLANNER = Experiment("planner", "The resource planner", "Section 3", run, draw)
