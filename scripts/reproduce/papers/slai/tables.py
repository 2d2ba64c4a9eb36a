"""The tables: one function for each, which returns Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from harness import markdown_table
from kvgym.experiments.statistics import Estimate, mean_interval, ratio_interval
from papers.slai.gaps import Array
from papers.slai.measurements import Measurements
from papers.slai.setting import (
    COMPARED,
    DYNAMIC,
    FCFS,
    FCFS_AT_HIGH_LOAD,
    FIXED,
    NAMES,
    PAYING_FIRST,
    SPF,
    TTFT_BOUND,
)


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
    return titled(title, header, rows)


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
    return titled(title, header, rows)


def by_rate(title: str, data: Measurements, shown: Iterable[float], column: str, digits: int) -> str:
    """Return a table of one figure: a line per rate, a column per policy."""
    rows = [
        [f"{rate:g}", *(text(mean_interval(data.values(p, rate, column)), digits) for p in COMPARED)]
        for rate in shown
    ]
    return titled(title, ["requests/s", *(NAMES[p] for p in COMPARED)], rows)


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
    return titled(title, header, rows)


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
    return titled(title, header, rows)


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
    return titled(title, header, rows)


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
    return titled(title, header, rows)


def titled(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table under a heading."""
    return f"### {title}\n\n{markdown_table(header, list(rows))}"


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
