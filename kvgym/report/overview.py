"""Overview figure: mean latency of each policy, with its KV memory over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import Comparison
from kvgym.report.chart import Chart
from kvgym.report.plots import draw_bars, draw_memory, end_of, examples_of
from kvgym.report.style import MAX_LABEL, STYLE, policy_styles, styled
from kvgym.utils.files import whole_file

WIDTH = 9.0
GAP = 0.35
"""Space between the memory strips, in strip heights."""
FORMATS = (".png", ".svg", ".pdf")


@styled
def overview(comparison: Comparison) -> Chart:
    """Mean end-to-end latency by policy (left) and KV memory in use over time (right), row by row.

    Args:
        comparison: a comparison with examples (``keep_examples=True``).
    """
    results, _ = examples_of(comparison)
    styles = policy_styles(comparison.policies)
    n = len(comparison.policies)
    height = 1.0 + 0.52 * n
    longest = max(min(len(p), MAX_LABEL) for p in comparison.policies)
    left, middle, right = (0.3 + 0.075 * longest) / WIDTH, 0.56, 1 - 0.15 / WIDTH
    bottom, top = 0.52 / height, 1 - 0.36 / height
    figure = Chart(comparison.policies, figsize=(WIDTH, height))
    edge = 1 / (2 * (1 + GAP))  # aligns each bar with the middle of its strip
    bars = figure.add_axes((left, bottom, middle - 0.1 - left, top - bottom))
    draw_bars(figure, bars, comparison, "e2e_latency_mean", dots=False)
    bars.set_ylim(n - 1 + edge, -edge)
    single = len(comparison.seeds) == 1
    heading = "One seed" if single else f"Mean over {len(comparison.seeds)} seeds, 95 % interval"
    corner = (min(left, 0.12), top)  # aligned with the title on the right
    bars.annotate(
        heading, corner, xycoords="figure fraction", xytext=(0, 6), textcoords="offset points", fontsize=10
    )
    grid = figure.add_gridspec(n, 1, left=middle, right=right, bottom=bottom, top=top, hspace=GAP)
    strips = grid.subplots(sharex=True, squeeze=False)[:, 0]
    for ax, policy in zip(strips, comparison.policies, strict=True):
        if policy in results:
            draw_memory(figure, ax, results[policy], policy, styles[policy])
        else:
            ax.set_yticks([])
            ax.annotate("failed", (0.02, 0.4), xycoords="axes fraction", style="italic")
        ax.label_outer()
    strips[0].set_title(f"KV memory in use (tokens), seed {comparison.seeds[0]}; dashed: capacity")
    strips[-1].set_xlim(0, end_of(results))
    strips[-1].set_xlabel("Time (s)")
    return figure


def picture(comparison: Comparison, path: str | Path) -> Path:
    """Write :func:`overview` to a file, 900 pixels wide.

    Args:
        comparison: a comparison with examples (``keep_examples=True``).
        path: ends in .png, .svg or .pdf; folders are created.

    Returns:
        The path.

    Raises:
        ConfigError: the file has another extension, or the comparison has no examples.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write a picture to {target}; the name must end in {', '.join(FORMATS)}")
    figure = overview(comparison)
    target.parent.mkdir(parents=True, exist_ok=True)
    settings: Any = {**STYLE, "svg.fonttype": "path"}
    with mpl.rc_context(settings), whole_file(target) as place:
        figure.savefig(place, dpi=100)
    return target
