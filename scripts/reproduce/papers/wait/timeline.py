"""Figure 6: the course of Nested WAIT with two types, drawn from our run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym import RequestTable, System, make_batch_time
from kvgym.policies.runner import simulate
from kvgym.workloads.classes import ClassStatistics
from papers.wait.setting import RULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The instants that the text of Section 5.1 names: arrivals at 0, 1, 5, 7 and 14, thresholds 3 and 2, segment 1 to the
# first output token, segment 2 to the second. P3, P5 and P6 go on into segment 2, as in the figure's course; the text
# does not say when the later ones come, so the last are ours.
ARRIVALS = (0, 0, 1, 5, 5, 7, 7, 13, 14, 14, 15, 15, 15)
OUTPUTS = (1, 1, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1)


def run(scale: Scale) -> Outcome:
    """Run the paper's example and note every batch.

    Reproduced are batches at 1 and 7 that leave segment 2 alone, and one at 14 that serves it; with conditions, where
    it is served later.
    """
    ones = np.ones(len(ARRIVALS), np.int64)
    table = RequestTable.from_columns(
        arrival_time=np.array(ARRIVALS, float),
        prompt_len=ones,
        output_len=np.array(OUTPUTS),
        classes=(ClassStatistics("Hi", 1.0, 1.0, 1.0), ClassStatistics("Hi there!", 1.0, 1.0, 2.0)),
    )
    system = System(kv_capacity=40, batch_time=make_batch_time({"kind": "unit"}), horizon=17.0, **RULES)
    done = simulate(system, table, "nested_wait:thresholds=3/2,segments=1/2,drain=False")
    requests = done.requests
    began = sorted({float(t) for t in requests["start_time"] if np.isfinite(t)})
    second = sorted(
        float(t) for t, o in zip(requests["finish_time"], OUTPUTS, strict=True) if o == 2 and np.isfinite(t)
    )
    fits = began[0] == 1.0 and 7.0 in began and not any(t < 14 for t in second) and bool(second)
    late = bool(second) and second[0] > 15
    verdict = Verdict.NOT_REPRODUCED
    if fits:
        verdict = Verdict.CONDITIONS if late else Verdict.REPRODUCED
    finding = Finding(
        "nothing runs until three wait; segment 2 waits until two are at its entry",
        "Figure 6: batches at t = 1 and 7 with segment 1 only, at t = 14 both segments run",
        f"first prefills at t = {', '.join(f'{t:g}' for t in began)}; segment 2 done first at t = "
        f"{second[0] if second else float('nan'):g}",
        verdict,
        "The figure's arrivals up to t = 7 are printed in the text; later ones are filled in so that the third wave "
        "comes by t = 14."
        + (
            " Segment 2 runs in the next batch: in the batch at t = 14 P5 and P6 still do their step of "
            "segment 1."
            if late
            else ""
        ),
        condition="for segment 1; segment 2 runs one batch later than drawn",
    )
    rows = [
        [f"P{i + 1}", f"{a:g}", f"{o}", *(f"{x:g}" if np.isfinite(x) else "–" for x in times)]
        for i, (a, o, times) in enumerate(
            zip(
                ARRIVALS,
                OUTPUTS,
                requests[["start_time", "first_token_time", "finish_time"]].tolist(),
                strict=True,
            )
        )
    ]
    data = {
        "arrivals": list(ARRIVALS),
        "outputs": list(OUTPUTS),
        "start": _plain(requests["start_time"]),
        "first": _plain(requests["first_token_time"]),
        "finish": _plain(requests["finish_time"]),
    }
    head = ("prompt", "arrives", "output tokens", "prefill at", "first token at", "done at")
    return Outcome([finding], [Table(head, rows)], data)


def _plain(column: np.ndarray) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in column]


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw a line per prompt: waiting, prefill, then the iterations of its segments and its pauses."""
    figure, (axes,) = new_figure(panel=(7.5, 3.6))
    grey, prefill, one, two = "0.85", *palette(3)
    end = 17.0
    for k, arrived in enumerate(data["arrivals"]):
        start, first, finish = (data[x][k] for x in ("start", "first", "finish"))
        row = -k
        axes.barh(row, (start if start is not None else end) - arrived, left=arrived, color=grey, height=0.5)
        if start is None:
            continue
        axes.barh(row, 1, left=start, color=prefill, height=0.8)
        axes.plot([start + 1, finish if finish is not None else end], [row, row], color="0.6", linewidth=0.8)
        if first is not None:
            axes.barh(row, 1, left=first - 1, color=one, height=0.8)
        if finish is not None and data["outputs"][k] == 2:
            axes.barh(row, 1, left=finish - 1, color=two, height=0.8)
    names = (("waits", grey), ("prefill", prefill), ("segment 1, decode", one), ("segment 2, decode", two))
    for name, colour in names:
        axes.barh(0, 0, color=colour, label=name)
    for instant in (1, 7, 14):
        axes.axvline(instant, color="black", linestyle=":", linewidth=0.8)
    axes.set_yticks(
        [-k for k in range(len(data["arrivals"]))], [f"P{k + 1}" for k in range(len(data["arrivals"]))]
    )
    axes.set(xlabel="time (dotted: the instants of the paper's figure)", xlim=(0, end))
    axes.legend(fontsize=7, loc="lower left")
    return figure


EXPERIMENT = Experiment(
    name="figure-6",
    title="Figure 6: the course of Nested WAIT",
    source="Section 5.1, Figure 6",
    run=run,
    draw=draw,
    covers=("Figure 6",),
    cheap=True,
)
