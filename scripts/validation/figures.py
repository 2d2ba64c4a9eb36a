"""Figures of docs/validation.md. Each function returns a matplotlib Figure; needs the extra ``kvgym[pictures]``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvgym.batch_time.hardware.overhead import NO_ENGINE
from kvgym.report.style import DASHES, INK, PALETTE, styled
from kvgym.servers.validation.engines import (
    CONSTANTS,
    Predictor,
    decode_ms,
    half_spread,
    predictor,
    prompt_ms,
    prompt_times,
    token_times,
)
from kvgym.servers.validation.published import BATCHES, REFERENCE

_CONTEXT = 512 + np.arange(127)  # of the rows that vary the batch
_SIZES = np.unique(np.round(np.geomspace(1, 64, 40)).astype(int))


@styled
def token_figure() -> Figure:
    """Token times of the reference deployment by batch size, measured and by engine."""
    source = predictor(REFERENCE)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax = figure.add_subplot()
    _measured_tokens(ax, source)
    kernels = np.array([decode_ms(source.kernels, int(n), _CONTEXT).mean() for n in _SIZES])
    shown = {**source.engines, **CONSTANTS}
    shown = {name: x for name, x in shown.items() if name == NO_ENGINE or x.milliseconds(1) > 0}
    for i, (name, overhead) in enumerate(shown.items()):
        predicted = kernels + [overhead.milliseconds(int(n)) for n in _SIZES]
        ax.plot(
            _SIZES,
            predicted,
            color=PALETTE[i % len(PALETTE)],
            linestyle=DASHES[0 if name == source.engine else 1 + i % (len(DASHES) - 1)],
            linewidth=2.2 if name == source.engine else 1.3,
            label=name,
        )
    _batch_axis(ax)
    ax.set_ylabel("Token time (ms)")
    ax.set_title(f"Llama-2-70B, {source.deployment.label}: measured (dots) and predicted by engine (lines)")
    figure.legend(loc="outside right center")
    return figure


@styled
def deployment_figure() -> Figure:
    """Token times of every deployment by batch size, measured and predicted."""
    return _grid(_token_panel, "Token time (ms)", "Requests in the batch")


@styled
def prompt_length_figure() -> Figure:
    """Times of single prompts of every deployment by length, measured and predicted."""
    return _grid(_length_panel, "Prompt time (ms)", "Tokens of the prompt")


@styled
def prompt_batch_figure() -> Figure:
    """Times of several prompts of 512 tokens, measured, predicted as one batch and one after another."""
    return _grid(_prompts_panel, "Prompt time per prompt (ms)", "Prompts of 512 tokens")


def _grid(panel: Callable[[Axes, Predictor], None], label: str, below: str) -> Figure:
    """Draw a panel for every deployment, a row for each GPU."""
    sources = [predictor(deployment) for deployment in BATCHES]
    columns = 3
    figure = Figure(figsize=(8, 2.5 * -(-len(sources) // columns) + 0.4), layout="constrained")
    axes = figure.subplots(-(-len(sources) // columns), columns, squeeze=False).ravel()
    for ax, source in zip(axes, sources, strict=False):
        panel(ax, source)
        ax.set_title(f"{source.deployment.label}, {'calibrated' if source.calibrated else 'roofline'}")
    for ax in axes[len(sources) :]:
        ax.set_visible(False)
    figure.supylabel(label, fontsize="medium")
    figure.supxlabel(below, fontsize="medium")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=len(handles[1]))
    return figure


def _measured_tokens(ax: Axes, source: Predictor) -> None:
    times = [t for t in token_times(source) if t.measured.prompt == 512]
    values = np.array([t.measured.token_ms for t in times])
    ax.errorbar(
        [t.requests for t in times],
        values,
        yerr=half_spread(source.deployment) * values,
        fmt="o",
        ms=4,
        color=INK,
        capsize=2.5,
        elinewidth=0.9,
        label="measured",
        zorder=3,
    )


def _token_panel(ax: Axes, source: Predictor) -> None:
    _measured_tokens(ax, source)
    kernels = np.array([decode_ms(source.kernels, int(n), _CONTEXT).mean() for n in _SIZES])
    overhead = np.array([source.overhead.milliseconds(int(n)) for n in _SIZES])
    ax.plot(_SIZES, kernels + overhead, color=PALETTE[0], label=f"predicted, {source.engine}")
    ax.plot(_SIZES, kernels, color=PALETTE[1], linestyle=DASHES[1], label="GPU kernels alone")
    _batch_axis(ax, label=False)
    ax.set_ylim(bottom=0)


def _length_panel(ax: Axes, source: Predictor) -> None:
    times = [t for t in prompt_times(source) if t.measured.requests == 1 and t.measured.output == 128]
    lengths = [t.measured.prompt for t in times]
    ax.loglog(lengths, [t.measured.prompt_ms for t in times], "o", ms=4, color=INK, label="measured")
    fine = np.geomspace(min(lengths), max(lengths), 60).astype(int)
    predicted = [prompt_ms(source.kernels, 1, int(n)) + source.overhead.milliseconds(1) for n in fine]
    ax.loglog(fine, predicted, color=PALETTE[0], label=f"predicted, {source.engine}")


def _prompts_panel(ax: Axes, source: Predictor) -> None:
    times = [t for t in prompt_times(source) if t.measured.prompt == 512 and t.measured.output == 128]
    count = np.array([t.measured.requests for t in times])
    ax.plot(count, [t.measured.prompt_ms for t in times] / count, "o", ms=4, color=INK, label="measured")
    together = np.array([t.together_ms + source.overhead.milliseconds(t.measured.requests) for t in times])
    ax.plot(count, together / count, color=PALETTE[0], label="predicted as one batch")
    turn = [t.alone_ms + source.overhead.milliseconds(1) for t in times]
    ax.plot(count, turn, color=PALETTE[1], linestyle=DASHES[1], label="predicted one after another")
    _batch_axis(ax, label=False)
    ax.set_ylim(bottom=0)


def _batch_axis(ax: Axes, *, label: bool = True) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    if label:
        ax.set_xlabel("Requests in the batch")


FIGURES: dict[str, Callable[[], Figure]] = {
    "validation-tokens.png": token_figure,
    "validation-deployments.png": deployment_figure,
    "validation-prompts.png": prompt_length_figure,
    "validation-prompt-batches.png": prompt_batch_figure,
}
"""Figures by their file in docs/images."""
