"""Reproduce Section 7 and Appendix F of the SLAI paper: TTFT and TBT against the request rate, and capacities.

A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice". The
scenarios slai-5, slai-50 and slai-95 hold hardware, workload and policies. Prints Markdown tables, and writes them with
every measurement and the figure to --out. What comes out is discussed in docs/reproductions/slai.md.

    python scripts/reproduce/slai.py            # a few minutes on one core
    python scripts/reproduce/slai.py --quick    # seconds: shows that it runs, the figures mean nothing
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvgym import RequestTable, System, make_policy, simulate
from kvgym.experiments.comparison import jsonable, run_context
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.statistics import Estimate, mean_interval, ratio_interval
from kvgym.metrics import compute_metrics
from kvgym.policy import CompiledPolicy
from kvgym.report.plots import PALETTE, STYLE
from kvgym.runner import system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import FINISHED

Array = NDArray[np.float64]

SCENARIOS = {"slai-5": "5 % paying", "slai-50": "50 % paying", "slai-95": "95 % paying"}
NAMES = {
    "vllm": "vLLM",
    "sarathi": "Sarathi FCFS",
    "sarathi:order=spf": "Sarathi SPF",
    "slai:order=fcfs": "SLAI FCFS, δ = 10",
    "slai": "SLAI SPF, δ = 10",
    "slai:offset=5": "SLAI SPF, δ = 5",
    "slai:low_offset=5": "SLAI SPF, dynamic δ",
    "slai:low_offset=5,paying_first=true": "SLAI SPF, dynamic δ, paying first",
}
FCFS, SPF, FIXED, DYNAMIC, PAYING_FIRST = (
    "sarathi", "sarathi:order=spf", "slai", "slai:low_offset=5", "slai:low_offset=5,paying_first=true"
)  # fmt: skip
COMPARED = [name for name in NAMES if name not in ("slai:offset=5", PAYING_FIRST)]
WATCHED = ("vllm", FCFS, SPF, DYNAMIC)
PAPER_RATES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
# Finer where the medians pass 0.5 s, and on to where Sarathi FCFS falls behind for good.
RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0)
SENSITIVITY_RATES = tuple(round(0.4 + 0.1 * k, 1) for k in range(25))
OVERHEADS = (0.003, 0.015, 0.028, 0.04)
TTFT_BOUND, FCFS_AT_HIGH_LOAD = 0.5, 1.5  # seconds: the capacity's constraint; what the paper calls high load


@dataclass(frozen=True)
class Plan:
    """How much is run: rates in requests per second, numbers of seeds, seconds of arrivals and of warm-up."""

    rates: tuple[float, ...] = RATES
    seeds: int = 10
    duration: float = 2100.0
    warm_up: float = 300.0
    class_seeds: int = 3
    class_window: tuple[float, float] = (1300.0, 1500.0)
    sensitivity_rates: tuple[float, ...] = SENSITIVITY_RATES
    sensitivity_seeds: int = 5
    overheads: tuple[float, ...] = OVERHEADS

    @property
    def shown(self) -> list[float]:
        """Return the rates for tables: the paper's, and the one beyond them."""
        return [r for r in self.rates if r in (*PAPER_RATES, 1.8)]


QUICK = Plan((1.2, 1.6), 2, 120.0, 20.0, 1, (60.0, 62.0), (1.0, 2.0), 2, (0.003, 0.028))


class Measurements:
    """Figures of every run, by policy and rate, with one value per seed.

    Args:
        scenario: hardware and workload; its arrivals are replaced by Poisson arrivals of each rate.
        policies: what is run.
        rates: requests per second.
        seeds: number of seeds; every policy sees the same requests under each.
        plan: the lengths of arrivals and warm-up.
    """

    def __init__(
        self, scenario: Scenario, policies: Iterable[str], rates: Sequence[float], seeds: int, plan: Plan
    ) -> None:
        self.scenario, self.plan, self.system = scenario, plan, scenario.make_system()
        self.rates, self.seeds, self.rows = rates, seeds, list[dict[str, Any]]()
        policies = list(policies)
        for rate in rates:
            for seed in range(seeds):
                table = self.sample(rate, seed)
                for policy in policies:
                    result = simulate(self.system, table, make_policy(policy), seed=seed)
                    row = {"scenario": scenario.name, "policy": policy, "rate": rate, "seed": seed}
                    self.rows.append(row | measure(result, plan))
        self._frame = pl.DataFrame(self.rows)

    def sample(self, rate: float, seed: int) -> RequestTable:
        """Return the requests of a rate and a seed."""
        arrivals = {"kind": "poisson", "rate": rate}
        workload = {"preset": self.scenario.workload, "arrivals": arrivals, "duration": self.plan.duration}
        made = self.scenario.override(workload=workload).make_workload()
        return self.scenario.sample(made, seed, self.system.kv_capacity)

    def class_tbt(self, policy: str, rate: float) -> Array:
        """Return the P99 TBT of paying and of free users in the window, shape (2, class_seeds)."""
        found = []
        for seed in range(self.plan.class_seeds):
            table = self.sample(rate, seed)
            owner, gap = token_gaps(self.system, table, policy, self.plan.class_window)
            found.append([quantile(gap[table.priority[owner] == priority], 0.99) for priority in (1, 0)])
        return np.array(found).T

    def values(self, policy: str, rate: float, column: str) -> Array:
        """Return a figure by seed, shape (seeds,)."""
        chosen = self._frame.filter((pl.col("policy") == policy) & (pl.col("rate") == rate))
        return chosen.sort("seed")[column].to_numpy().astype(np.float64)

    def curve(self, policy: str, column: str) -> Array:
        """Return a figure by rate and seed, shape (rates, seeds)."""
        return np.array([self.values(policy, rate, column) for rate in self.rates])

    def rate_at(self, policy: str, bound: float) -> Array:
        """Return by seed the rate at which the median TTFT first exceeds ``bound``; NaN where it never does.

        Linear between the rates that were run.
        """
        medians = self.curve(policy, "ttft_median")
        out = np.full(self.seeds, np.nan)
        for seed in range(self.seeds):
            above = np.flatnonzero(medians[:, seed] > bound)
            if len(above) and above[0] > 0:
                k = int(above[0])
                low, high = medians[k - 1, seed], medians[k, seed]
                out[seed] = np.interp(bound, (low, high), (self.rates[k - 1], self.rates[k]))
        return out

    def at(self, policy: str, rates: Array, column: str) -> Array:
        """Return a figure by seed at a rate of its own for each, linear between those that were run."""
        by_rate = self.curve(policy, column)
        return np.array(
            [
                np.interp(rates[s], self.rates, by_rate[:, s]) if np.isfinite(rates[s]) else np.nan
                for s in range(self.seeds)
            ]
        )


def measure(result: Any, plan: Plan) -> dict[str, float]:
    """Return the figures of a run, in seconds; TTFT and SLOs over requests that arrive after the warm-up."""
    r, table, metrics = result.requests, result.table, compute_metrics(result)
    counted = table.arrival_time >= plan.warm_up
    ttft, paying = r["first_token_time"] - table.arrival_time, table.priority == 1
    served = (r["status"] == FINISHED) & (r["finish_time"] <= plan.duration)
    row = {
        "ttft_median": quantile(ttft[counted], 0.5),
        "ttft_p90": quantile(ttft[counted], 0.9),
        "ttft_mean": mean(ttft[counted]),
        "tbt_p99": metrics["tbt_p99"],
        "batch_time": float(result.worker["busy_time"][0] / result.worker["iteration"][0]),
        "kv_utilisation": metrics["kv_utilisation"],
        "kv_peak": metrics["kv_peak"],
        "evictions": metrics["evictions"],
        "served": mean(served),
    }
    for name, of in (("paying", counted & paying), ("free", counted & ~paying)):
        gap = r["max_token_gap"][of]
        row[f"ttft_mean_{name}"] = mean(ttft[of])
        row[f"tbt_met_{name}"] = mean(gap <= table.tbt_slo[of])
    return row


def token_gaps(
    system: System, table: RequestTable, policy: str, window: tuple[float, float]
) -> tuple[NDArray[np.int64], Array]:
    """Return every gap between tokens that ends in a window of time: its request, and its seconds.

    The simulator keeps one histogram of all gaps; here it is stopped after each iteration of the window.
    """
    made = make_policy(policy)
    assert isinstance(made, CompiledPolicy)
    made.reset(system_info(system, table, 0, made.info.needs))
    run = Simulation(system, table, needs=made.info.needs, policy_name=made.info.name)
    ended = False
    while not ended and run.worker["clock"] < window[0]:
        ended = run.run(made.kernel, made.arguments(), budget=20)
    last, owners, gaps = run.requests["last_token_time"].copy(), [np.empty(0, np.int64)], [np.empty(0)]
    slots = run.active[0, : run.worker["num_active"]]
    before = slots["request_id"].astype(np.int64)
    last[before] = slots["last_token_time"]
    while not ended and run.worker["clock"] < window[1]:
        ended = run.run(made.kernel, made.arguments(), budget=1)
        slots = run.active[0, : run.worker["num_active"]]
        left, before = (
            before[run.requests["status"][before] == FINISHED],
            slots["request_id"].astype(np.int64),
        )
        ids = np.concatenate((left, before))
        times = np.concatenate((run.requests["finish_time"][left], slots["last_token_time"]))
        later = times > last[ids]  # not where either is NaN, before the first token
        owners.append(ids[later])
        gaps.append((times - last[ids])[later])
        moved = later | np.isnan(last[ids])
        last[ids[moved]] = times[moved]
    return np.concatenate(owners), np.concatenate(gaps)


def mean(values: NDArray[Any]) -> float:
    """Return the mean, NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


def quantile(values: NDArray[Any], q: float) -> float:
    """Return a quantile, NaN of nothing."""
    return float(np.quantile(values, q)) if len(values) else float("nan")


def text(estimate: Estimate, digits: int = 2, percent: bool = False) -> str:
    """Return a mean with its interval; as a change in percent if it is a ratio to be read so."""
    if not np.isfinite(estimate.value):
        return "–"
    if not np.isfinite(estimate.low):
        return f"{100 * (estimate.value - 1):+.0f} %" if percent else f"{estimate.value:.{digits}f}"
    if percent:
        value, low, high = (
            f"{round(100 * (x - 1)):+}" for x in (estimate.value, estimate.low, estimate.high)
        )
        return f"{value} % ({low} … {high})"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} – {estimate.high:.{digits}f})"


def markdown(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table under a heading."""
    lines = [header, ["---"] * len(header), *rows]
    return f"### {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def by_rate(title: str, data: Measurements, shown: Iterable[float], column: str, digits: int) -> str:
    """Return a table of one figure: a line per rate, a column per policy."""
    rows = [
        [f"{rate:g}", *(text(mean_interval(data.values(p, rate, column)), digits) for p in COMPARED)]
        for rate in shown
    ]
    return markdown(title, ["requests/s", *(NAMES[p] for p in COMPARED)], rows)


def capacity_table(title: str, data: Measurements) -> str:
    """Return the capacity of each policy, and the TBT there."""
    capacity = {p: data.rate_at(p, TTFT_BOUND) for p in COMPARED}
    rows = [
        [
            NAMES[p],
            text(mean_interval(capacity[p])),
            text(ratio_interval(capacity[p], capacity[FCFS]), percent=True),
            text(ratio_interval(capacity[p], capacity[SPF]), percent=True),
            *(
                text(mean_interval(data.at(p, capacity[p], column)), 3)
                for column in ("tbt_p99", "tbt_met_paying", "tbt_met_free")
            ),
        ]
        for p in COMPARED
    ]
    header = [
        "policy", f"capacity at median TTFT ≤ {TTFT_BOUND:g} s, 1/s", "against Sarathi FCFS",
        "against Sarathi SPF", "P99 TBT there, s", "paying within TBT SLO there", "free within TBT SLO there",
    ]  # fmt: skip
    return markdown(title, header, rows)


def high_load_table(title: str, data: Measurements, fixed: Iterable[float]) -> str:
    """Return median TTFTs where Sarathi FCFS has the paper's 1.5 s, and at fixed rates."""
    matched = data.rate_at(FCFS, FCFS_AT_HIGH_LOAD)
    loads: list[tuple[str, Callable[[str], Array]]] = [
        (
            f"{text(mean_interval(matched))}, where Sarathi FCFS has {FCFS_AT_HIGH_LOAD:g} s",
            lambda p: data.at(p, matched, "ttft_median"),
        )
    ]
    loads += [(f"{rate:g}", lambda p, rate=rate: data.values(p, rate, "ttft_median")) for rate in fixed]
    rows = []
    for name, of in loads:
        fcfs, spf, fixed_offset, dynamic = of(FCFS), of(SPF), of(FIXED), of(DYNAMIC)
        rows.append([name, *(text(mean_interval(x)) for x in (fcfs, spf, fixed_offset, dynamic))])
        rows[-1] += [
            text(ratio_interval(a, b), percent=True)
            for a, b in ((dynamic, fcfs), (spf, fcfs), (dynamic, spf))
        ]
    header = [
        "requests/s", *(NAMES[p] for p in (FCFS, SPF, FIXED, DYNAMIC)), "dynamic against FCFS",
        "SPF alone against FCFS", "dynamic against SPF",
    ]  # fmt: skip
    return markdown(title, header, rows)


def class_table(title: str, data: Measurements, shown: Iterable[float], policies: Iterable[str]) -> str:
    """Return how each class fares with its TBT objective."""
    rows = []
    for rate, p in [(rate, p) for rate in shown for p in policies]:
        exact = [text(mean_interval(x), 3) for x in data.class_tbt(p, rate)]
        met = [text(mean_interval(data.values(p, rate, f"tbt_met_{c}")), 3) for c in ("paying", "free")]
        rows.append([f"{rate:g}", NAMES[p], *exact, *met])
    header = [
        "requests/s", "policy", "paying: P99 TBT, s", "free: P99 TBT, s", "paying: requests with every gap ≤ 0.1 s",
        "free: requests with every gap ≤ 0.5 s",
    ]  # fmt: skip
    return markdown(title, header, rows)


def state_table(title: str, data: Measurements, rate: float, policies: Iterable[str]) -> str:
    """Return memory, batch time and the whole distribution of TTFT at one rate."""
    columns = (
        ("ttft_median", 2), ("ttft_mean", 2), ("ttft_p90", 2), ("served", 3), ("kv_utilisation", 3), ("kv_peak", 3),
        ("evictions", 0), ("batch_time", 3),
    )  # fmt: skip
    rows = [
        [NAMES[p], *(text(mean_interval(data.values(p, rate, c)), digits) for c, digits in columns)]
        for p in policies
    ]
    header = [
        "policy", "median TTFT, s", "mean TTFT, s", "P90 TTFT, s", "finished while requests arrive",
        "mean KV use", "peak KV use", "evictions", "mean batch time, s",
    ]  # fmt: skip
    return markdown(title, header, rows)


def paying_first_table(title: str, data: Measurements, shown: Iterable[float]) -> str:
    """Return the mean TTFT by class with and without priority of paying users."""
    rows = [
        [
            f"{rate:g}",
            name,
            *(
                text(mean_interval(data.values(p, rate, f"ttft_mean_{name}")))
                for p in (DYNAMIC, PAYING_FIRST)
            ),
            text(
                ratio_interval(*(data.values(p, rate, f"ttft_mean_{name}") for p in (PAYING_FIRST, DYNAMIC))),
                percent=True,
            ),
        ]
        for rate in shown
        for name in ("paying", "free")
    ]
    header = ["requests/s", "class", *(NAMES[p] for p in (DYNAMIC, PAYING_FIRST)), "change"]
    return markdown(title, header, rows)


def margin_table(title: str, data: Measurements, shown: Iterable[float]) -> str:
    """Return the margins δ t̄, and how far SLAI's medians are from Sarathi's with the same order of prefills."""
    pairs = (("slai:order=fcfs", FCFS), (FIXED, SPF), (DYNAMIC, SPF))
    rows = []
    for rate in shown:
        batch = float(data.values(DYNAMIC, rate, "batch_time").mean())
        ratios = [data.values(a, rate, "ttft_median") / data.values(b, rate, "ttft_median") for a, b in pairs]
        away = [f"{100 * np.abs(ratio - 1).max():.2f} %" for ratio in ratios]
        rows.append([f"{rate:g}", f"{batch:.4f}", f"{5 * batch:.2f}", f"{10 * batch:.2f}", *away])
    header = [
        "requests/s", "mean batch time t̄ (dynamic δ), s", "5 t̄, s", "10 t̄, s",
        *(f"{NAMES[a]} from {NAMES[b]}, at most" for a, b in pairs),
    ]  # fmt: skip
    return markdown(title, header, rows)


def sensitivity(scenario: Scenario, plan: Plan) -> tuple[str, list[dict[str, Any]]]:
    """Return capacities and high-load medians under other overheads per batch, and the runs."""
    rows, runs = [], []
    for overhead in plan.overheads:
        changed = scenario.override(batch_time={**scenario.batch_time, "overhead": overhead})
        policies = (FCFS, SPF, DYNAMIC)
        data = Measurements(changed, policies, plan.sensitivity_rates, plan.sensitivity_seeds, plan)
        runs += [{"overhead": overhead, **row} for row in data.rows]
        capacity = {p: data.rate_at(p, TTFT_BOUND) for p in policies}
        matched = data.rate_at(FCFS, FCFS_AT_HIGH_LOAD)
        medians = {p: data.at(p, matched, "ttft_median") for p in policies}
        rows.append(
            [
                f"{1000 * overhead:g}",
                text(mean_interval(capacity[FCFS])),
                text(ratio_interval(capacity[SPF], capacity[FCFS]), percent=True),
                text(ratio_interval(capacity[DYNAMIC], capacity[FCFS]), percent=True),
                text(mean_interval(matched)),
                text(ratio_interval(medians[SPF], medians[FCFS]), percent=True),
                text(ratio_interval(medians[DYNAMIC], medians[FCFS]), percent=True),
            ]
        )
    header = [
        "overhead, ms", "capacity of Sarathi FCFS, 1/s", "Sarathi SPF", "SLAI SPF, dynamic δ",
        "rate where Sarathi FCFS has 1.5 s, 1/s", "median TTFT there: Sarathi SPF", "SLAI SPF, dynamic δ",
    ]  # fmt: skip
    return markdown("Other overheads per batch, 5 % paying", header, rows), runs


def draw(data: Measurements) -> Figure:
    """Return median TTFT, P99 TBT and the paying users within their objective, against the rate."""
    panels = (
        ("ttft_median", "Median TTFT, s", (TTFT_BOUND,)),
        ("tbt_p99", "P99 TBT of all tokens, s", (0.1, 0.5)),
        ("tbt_met_paying", "Paying requests, all gaps ≤ 0.1 s", ()),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        for axes, (column, title, bounds) in zip(figure.subplots(1, 3), panels, strict=True):
            for k, policy in enumerate(COMPARED):
                estimates = [mean_interval(values) for values in data.curve(policy, column)]
                dashes = "-" if policy in ("vllm", FCFS, SPF, DYNAMIC) else (0, (2, 2))
                line = {"color": PALETTE[k], "linestyle": dashes, "label": NAMES[policy]}
                axes.plot(data.rates, [e.value for e in estimates], **line)
                bounds_of = [e.low for e in estimates], [e.high for e in estimates]
                axes.fill_between(data.rates, *bounds_of, color=PALETTE[k], alpha=0.15, linewidth=0)
            for bound in bounds:
                axes.axhline(bound, color="#57606a", linewidth=0.8, linestyle=":")
            axes.set(title=title, xlabel="requests per second")
            if column == "ttft_median":
                axes.set_yscale("log")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(COMPARED), fontsize=8.5)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, print the tables, write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few short runs; the figures mean nothing")
    parser.add_argument("--seeds", type=int, help="seeds of the main runs instead of 10")
    parser.add_argument("--out", type=Path, default=Path("results/slai"), help="folder for the files")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    seeds = options.seeds or plan.seeds
    loads = [r for r in (0.4, 0.8, 1.2, 1.6) if r in plan.rates]
    high = [r for r in (1.2, 1.4, 1.6) if r in plan.rates]
    tables, runs, main_data = list[str](), list[dict[str, Any]](), None

    def add(table: str) -> None:
        tables.append(table)
        print(table, flush=True)

    for name, share in SCENARIOS.items():
        scenario = load_scenario(name)
        data = Measurements(scenario, scenario.policies, plan.rates, seeds, plan)
        runs += data.rows
        main_data = main_data or data
        add(capacity_table(f"Capacity, {share}", data))
        add(high_load_table(f"Median TTFT at high load, {share}, s", data, high))
        if name == "slai-5":
            add(by_rate(f"Median TTFT, {share}, s", data, plan.shown, "ttft_median", 2))
            add(by_rate(f"P99 TBT of all tokens, {share}, s", data, plan.shown, "tbt_p99", 3))
            add(margin_table(f"Margins of SLAI, and its medians beside Sarathi's, {share}", data, plan.shown))
            add(class_table(f"TBT by class, {share}", data, loads, WATCHED))
            for rate in high:
                title = f"{rate:g} requests per second, {share}"
                add(state_table(title, data, rate, scenario.policies))
            add(paying_first_table(f"Mean TTFT by class, {share}, s", data, loads))
        else:
            add(class_table(f"TBT by class, {share}", data, high[:1], (FCFS, DYNAMIC)))
    table, sensitivity_runs = sensitivity(load_scenario("slai-5"), plan)
    add(table)
    assert main_data is not None
    options.out.mkdir(parents=True, exist_ok=True)
    report = "\n".join(tables)
    (options.out / "tables.md").write_text(report, encoding="utf-8")
    pl.DataFrame(runs).write_csv(options.out / "runs.csv")
    pl.DataFrame(sensitivity_runs).write_csv(options.out / "sensitivity.csv")
    draw(main_data).savefig(options.out / "slai.png", dpi=100)
    config = {"plan": {**vars(plan), "seeds": seeds}, **run_context()}
    (options.out / "config.json").write_text(json.dumps(jsonable(config), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
