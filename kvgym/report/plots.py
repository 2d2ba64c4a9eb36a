"""Figures of a comparison. Each function returns a :class:`~kvgym.report.chart.Chart` for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import BOUNDED, Comparison, label_of
from kvgym.metrics.catalogue import metric_info
from kvgym.metrics.measured import scope_of
from kvgym.policies.runner import SimulationResult
from kvgym.report import series
from kvgym.report.alike import join_alike
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.colours import GRID
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import figures

Runs = Comparison | SimulationResult | Mapping[str, SimulationResult]
"""Runs that can be drawn; a comparison needs ``keep_examples=True`` for all figures but the bars."""

THROUGHPUT_BINS, MOST_BINS = 60, 300
MINUTE = 60.0
"""Length of the part of a time axis that is shown at first, seconds."""
MAX_DOTS = 50
TIME = Quantity("Time", "s")
LATENCIES = {
    "e2e_latency": Quantity("End-to-end latency", "s"),
    "ttft": Quantity("Time to first token", "s"),
    "tpot": Quantity("Time per output token", "s"),
    "tbt": Quantity("Time between tokens", "s"),
    "longest_gap": Quantity("Longest time between tokens of a request", "s"),
}
FAR = 20.0
"""Ratio between policies above which an axis is logarithmic, or a time axis is cut."""
TAIL = 100.0
"""Ratio of the largest value to a median above which the axis of a distribution is logarithmic."""
CUT = 5.0
"""End of a cut time axis, as a multiple of the shortest run."""


def examples_of(runs: Runs) -> dict[str, SimulationResult]:
    """Return the single runs to draw by policy.

    Raises:
        ConfigError: the comparison has no examples.
    """
    if isinstance(runs, SimulationResult):
        return {label_of(runs.policy): runs}
    if isinstance(runs, Comparison):
        if not runs.examples:
            raise ConfigError("this comparison has no example runs; call compare(..., keep_examples=True)")
        return {p: runs.examples[p] for p in runs.policies if p in runs.examples}
    return dict(runs)


def end_of(results: Mapping[str, SimulationResult]) -> float:
    """Return the end of the time axis, in seconds; 1 without runs.

    It is the end of the last iteration of all runs. If one run is much longer than another, see :data:`FAR`, the axis
    is cut so that the others remain visible.
    """
    ends = [float(series.iteration_log(r)["end_time"].max(initial=0.0)) for r in results.values()]
    run = [end for end in ends if end > 0]
    return (CUT * min(run) if far_apart(run) else max(run)) if run else 1.0


def time_axis(results: Mapping[str, SimulationResult]) -> Axis:
    """Return the time axis of runs; it begins with their busiest minute."""
    end = end_of(results)
    return Axis(TIME, 0, end, start=busiest_minute(results) or (0.0, end))


def busiest_minute(results: Mapping[str, SimulationResult]) -> tuple[float, float] | None:
    """Return the minute with most requests in the system, mean over the runs; None for runs of hardly more."""
    end = end_of(results)
    if end < 1.5 * MINUTE:
        return None
    edges = np.append(np.arange(0.0, end, MINUTE / 30), end)
    inside = np.zeros(len(edges))
    for result in results.values():
        inside += np.searchsorted(result.table.arrival_time, edges, side="right")
        inside -= np.searchsorted(np.sort(result.requests["finish_time"]), edges, side="right")
    sums = np.cumsum(np.insert(inside, 0, 0.0))
    first = int(np.argmax(sums[30:-1] - sums[:-31]))
    start = min(float(edges[first]), end - MINUTE)
    return start, start + MINUTE


def cut_off(results: Mapping[str, SimulationResult]) -> list[str]:
    """Return the policies with runs beyond the end of the time axis."""
    end = end_of(results)
    return [p for p, r in results.items() if series.iteration_log(r)["end_time"].max(initial=0.0) > end]


def far_apart(values: Iterable[float], ratio: float = FAR) -> bool:
    """Whether the largest value is at least ``ratio`` times the smallest positive one."""
    positive = [value for value in values if 0 < value < np.inf]
    return bool(positive) and max(positive) >= ratio * min(positive)


def latency_bars(comparison: Comparison, metric: str = "e2e_latency_mean") -> Chart:
    """Bars of a metric by policy, the first on top: mean over seeds, 95 % interval, and the single seeds as dots.

    Bars of clairvoyant policies are pale, with a star. A dashed line is the bound. If policies are far apart, the axis
    is logarithmic; it has no zero for bars to start at, so they are dots.

    Args:
        comparison: the comparison.
        metric: any metric, see :mod:`kvgym.metrics`.
    """
    failed = comparison.errors()
    estimates = {policy: comparison.estimate(policy, metric) for policy in comparison.policies}
    log = far_apart(e.value for e in estimates.values())
    bound = [comparison.bound().value] if comparison.bounds and metric == BOUNDED else []
    shown, bars = [*bound], []
    for row, (policy, e) in enumerate(estimates.items()):
        seeds = comparison.values(policy, metric)
        dots = seeds[np.isfinite(seeds)].tolist() if 1 < len(seeds) <= MAX_DOTS else []
        none = "failed" if policy in failed else "no value"
        known = bool(np.isfinite(e.value))
        shown += [e.value, e.low, e.high, *dots]
        values = {"x": e.value, "x_low": e.low, "x_high": e.high, "y": row}
        look = {
            "dots": dots,
            "notes": [figures(e.value) if known else none],
            "alpha": 0.4 if policy in comparison.clairvoyant else 0.85,
        }
        bars.append(Series(policy, policy, "bars", values, () if known else (none,), look))
    names = tuple(p + " *" * (p in comparison.clairvoyant) for p in comparison.policies)
    rows = Axis(Quantity("", names=names), len(names) - 0.5, -0.5)
    quantity = metric_quantity(metric)
    x = Axis.over(quantity._replace(label=quantity.label + ", logarithmic" * log), shown, log=log)
    rules = [("x", value, "") for value in bound]
    return Chart([Panel(x, rows, bars, 30.0 * len(names), rules=rules)])


def latency_distribution(runs: Runs, name: str = "e2e_latency") -> Chart:
    """Empirical distribution of the requests' latencies; with unfinished requests the curve ends below 1.

    Args:
        runs: the runs.
        name: a key of :data:`LATENCIES`; ``"tbt"`` is over all tokens, the others are over requests.
    """
    what = "tokens" if name == "tbt" else "requests"
    curves = {p: _distribution(result, name) for p, result in examples_of(runs).items()}
    return Chart([distributions(LATENCIES[name], f"Share of {what}", curves)])


def _distribution(result: SimulationResult, name: str) -> tuple[series.Floats, series.Floats]:
    if name == "tbt":
        return series.token_gaps(result)
    values = series.latencies(result, name)
    counted = int(np.broadcast_to(scope_of(result).counted, len(result.table)).sum())
    return series.distribution(values, counted if name in series.LATENCY_COLUMNS else len(values))


def distributions(
    quantity: Quantity,
    share: str,
    curves: Mapping[str, tuple[series.Floats, series.Floats]],
    **options: float | str,
) -> Panel:
    """Return a panel of distribution functions, values and shares by policy; logarithmic if they are far apart.

    Args:
        quantity: of the values.
        share: label of the vertical axis.
        curves: values and shares by policy.
        options: further fields of the panel.
    """
    shown = {policy: (x, y) for policy, (x, y) in curves.items() if len(x)}
    lines = [steps(policy, np.insert(x, 0, x[0]), np.insert(y, 0, 0.0)) for policy, (x, y) in shown.items()]
    medians = [float(x[np.searchsorted(y, 0.5 * y[-1])]) for x, y in shown.values()]
    log = far_apart(medians) or far_apart([*medians, *(float(x[-1]) for x, _ in shown.values())], TAIL)
    ends = [float(x[k]) for x, _ in shown.values() for k in (0, -1)]
    return Panel(Axis.over(quantity, ends, log=log), Axis(Quantity(share), 0, 1.02), lines, **options)  # type: ignore[arg-type]


def waiting_queue(runs: Runs) -> Chart:
    """Waiting requests over time, counted after the admissions of each iteration."""
    results = examples_of(runs)
    lines, longest = [], []
    for policy, result in results.items():
        x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "num_waiting"))
        lines.append(steps(policy, x, y))
        longest.append(float(y.max(initial=0.0)))
    y_axis = Axis.over(Quantity("Waiting requests"), longest)
    if far_apart(longest):
        y_axis = Axis(Quantity("Waiting requests (none: below)"), 0.8, 1.3 * max(longest), log=True)
    return join_alike(Chart([Panel(time_axis(results), y_axis, lines)]))


def token_throughput(runs: Runs) -> Chart:
    """Output tokens per second over time, below the output tokens of arriving requests."""
    results = examples_of(runs)
    edges = time_bins(results)
    table = next(iter(results.values())).table
    arriving = series.rate_bins(table.arrival_time, table.output_len, edges)
    rates = {}
    for policy, result in results.items():
        log = series.iteration_log(result)
        rates[policy] = series.rate_bins(log["end_time"], log["num_output_tokens"], edges)
    top = Series(
        "arriving", None, "steps", {"x": edges, "y": np.append(arriving, arriving[-1])},
        look={"color": GRID, "fill": 0.6, "width": 0},
    )  # fmt: skip
    lines = [steps(policy, edges, np.append(rate, rate[-1])) for policy, rate in rates.items()]
    time = time_axis(results)
    arrivals = Axis.over(Quantity("Output tokens of arriving requests", "1/s"), arriving)
    generated = Quantity("Output tokens generated, repeats after evictions included", "1/s")
    most = [float(rate.max()) for rate in rates.values()]
    return join_alike(
        Chart([Panel(time, arrivals, [top], 60.0), Panel(time, Axis.over(generated, most), lines, 130.0)])
    )


def time_bins(results: Mapping[str, SimulationResult]) -> series.Floats:
    """Return the edges of the bins of rates over time: finer in long runs, so that a minute has several."""
    end = end_of(results)
    count = int(np.clip(end * 30 / MINUTE, THROUGHPUT_BINS, MOST_BINS))
    return np.linspace(0.0, end, count + 1)


def steps(policy: str, x: series.Floats, y: series.Floats) -> Series:
    """Return a policy's step function."""
    return Series(policy, policy, "steps", {"x": x, "y": y})


def capacity_of(result: SimulationResult) -> int:
    """Return the KV memory of all workers, tokens."""
    return result.system.usable_capacity * len(result.worker)


def metric_quantity(metric: str) -> Quantity:
    """Return a metric as a quantity, see :mod:`kvgym.metrics`."""
    unit = metric_info(metric).unit
    return Quantity(title(metric_name(metric)), "" if unit == "1" else unit)
