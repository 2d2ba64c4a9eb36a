"""The picture of the section multiples."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from harness import save_figure
from papers.wait.multiples import MULTIPLES


def draw(shares: dict[tuple[str, str], list[dict[str, float]]], path: Path) -> None:
    """Draw the share of the fluid throughput against C / M*."""
    presets = list(dict.fromkeys(preset for preset, _ in shares))
    figure = Figure(figsize=(3.1 * len(presets), 5.6))
    axes = figure.subplots(2, len(presets), sharey=True, squeeze=False)
    lines = ("fcfs", "vllm", "sarathi", "wait, n*", "wait, n* C/M*", "nested, n*")
    for (preset, kind), rows in shares.items():
        axis = axes[("affine", "hardware").index(kind), presets.index(preset)]
        for name, style in zip(lines, ("C7-s", "C1-^", "C2-v", "C0-o", "C0--o", "C3-D"), strict=True):
            points = [(m, row[name]) for m, row in zip(MULTIPLES, rows, strict=False) if name in row]
            axis.plot(*zip(*points, strict=True) if points else ([], []), style, label=name, markersize=4)
        axis.set(title=f"{preset}, {kind}", xscale="log", ylim=(0, 1.05))
        axis.set_xticks(MULTIPLES, [f"{m:g}" for m in MULTIPLES], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in axes.flat:
        axis.set_visible(axis.has_data())
        axis.set_xlabel("C / M*")
    for axis in axes[:, 0]:
        axis.set_ylabel("throughput / fluid")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(lines), frameon=False
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    save_figure(figure, path, dpi=90)
