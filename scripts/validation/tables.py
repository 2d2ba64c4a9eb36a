"""The tables of docs/validation.md, and their insertion into pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from kvgym.batch_time.hardware.overhead import engines_of
from kvgym.errors import ConfigError
from kvgym.servers.validation.engines import (
    CONSTANTS,
    Predictor,
    half_spread,
    held_out,
    in_turn_error,
    predictor,
    prompt_times,
    repeated,
    together_error,
    token_errors,
    token_times,
)
from kvgym.servers.validation.published import BATCHES, CPU_TIMES, REFERENCE

CPU_ENGINE = "early-2024"
"""Engine of the published CPU times."""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float) -> str:
    """Return a signed percentage."""
    return f"{100 * share:+.1f} %"


def sizes(errors: ArrayLike) -> tuple[str, str]:
    """Return median and maximum of absolute errors."""
    absolute = 100 * np.abs(np.asarray(errors))
    return f"{np.median(absolute):.1f} %", f"{absolute.max():.1f} %"


def _predictors() -> list[Predictor]:
    return [predictor(deployment) for deployment in BATCHES]


def _kernels(source: Predictor) -> str:
    return f"`{source.deployment.hardware}`" if source.calibrated else "roofline"


def summary() -> str:
    """Return the error of the default engine, on the rows it was fitted to and on rows left out of the fit."""
    source = predictor(REFERENCE)
    times = token_times(source)
    median, largest = sizes(token_errors(times, source.overhead))
    unseen = sizes(np.concatenate([left_out.errors for left_out in held_out(times)]))
    return (
        f"Token times of Llama-2-70B on two A100 with `{source.engine}`: median error {median}, largest {largest} "
        f"({len(times)} measured rows, to which the engine's two figures were fitted).\n"
        f"On rows of a batch size left out of the fit: median {unseen[0]}, largest {unseen[1]}."
    )


def engine_table() -> str:
    """Return errors of the reference deployment's token times by engine."""
    source = predictor(REFERENCE)
    times = token_times(source)
    rows = []
    for name, overhead in {**source.engines, **CONSTANTS}.items():
        errors = token_errors(times, overhead)
        label = name if name in CONSTANTS else f"`{name}`"
        label += ", fitted to these rows" if name == source.engine else ""
        formula = f"{overhead.base_ms:g} + {overhead.per_request_ms:g} n"
        rows.append([label, formula, *sizes(errors), percent(float(errors.mean()))])
    return markdown(["engine", "overhead of n requests, ms", "median", "largest", "mean, signed"], rows)


def row_table() -> str:
    """Return every token time of the reference deployment."""
    source = predictor(REFERENCE)
    times = token_times(source)
    errors = token_errors(times, source.overhead)
    rows = []
    for time, error in zip(times, errors, strict=True):
        row, requests = time.measured, time.requests
        ran = f"{row.requests}" if requests == row.requests else f"{row.requests}, as {requests}"
        predicted = time.kernels_ms + source.overhead.milliseconds(requests)
        figures = (f"{row.token_ms:.1f}", f"{time.kernels_ms:.1f}", f"{predicted:.1f}", percent(error))
        rows.append([f"{row.prompt:,}", ran, f"{row.output:,}", *figures])
    head = ["prompt", "requests", "requested output", "measured, ms", "kernels, ms"]
    return markdown([*head, f"with `{source.engine}`, ms", "error"], rows)


def held_out_table() -> str:
    """Return errors of batch sizes that the overhead was not fitted to."""
    found = held_out(token_times(predictor(REFERENCE)))
    rows = []
    for size, overhead, errors in found:
        formula = f"{overhead.base_ms:.1f} + {overhead.per_request_ms:.2f} n"
        rows.append([f"{size}", f"{len(errors)}", formula, *sizes(errors)])
    rows.append(["all", f"{sum(len(f.errors) for f in found)}", ""])
    rows[-1] += sizes(np.concatenate([f.errors for f in found]))
    return markdown(["requests left out", "rows", "fit to the others, ms", "median", "largest"], rows)


def repeat_table() -> str:
    """Return the spread of measurements of nearly the same thing."""
    rows = []
    for deployment in BATCHES:
        values = repeated(deployment)
        spread = f"± {100 * half_spread(deployment):.1f} %"
        rows.append([deployment.label, f"{values.min():.1f}", f"{values.max():.1f}", spread])
    return markdown(["deployment", "least, ms", "most, ms", "spread"], rows)


def deployment_table() -> str:
    """Return errors of token times by deployment, and the overhead that would match."""
    rows = []
    for source in _predictors():
        times = token_times(source)
        errors = token_errors(times, source.overhead)
        missing = {
            size: [t.measured.token_ms - t.kernels_ms for t in times if t.requests == size]
            for size in (1, max(t.requests for t in times))
        }
        row = [source.deployment.label, _kernels(source), f"{len(times)}", *sizes(errors)]
        rows.append([*row, *(f"{np.median(v):.1f} (n = {size})" for size, v in missing.items())])
    head = ["deployment", "kernels from", "rows", "median", "largest", "measured less kernels, ms"]
    return markdown([*head, "the same, largest batch"], rows)


def prompt_length_table() -> str:
    """Return errors of single prompts by length."""
    found = {s.deployment.label: _single_prompts(s) for s in _predictors()}
    lengths = sorted({length for errors in found.values() for length in errors})
    rows = [[f"{length:,}", *(percent(errors[length]) for errors in found.values())] for length in lengths]
    return markdown(["tokens", *found], rows)


def _single_prompts(source: Predictor) -> dict[int, float]:
    times = [t for t in prompt_times(source) if t.measured.requests == 1 and t.measured.output == 128]
    return {t.measured.prompt: together_error(t, source.overhead) for t in times}


def prompt_batch_table() -> str:
    """Return several prompts of 512: predicted as one batch and in turn, and measured against one alone."""
    rows = []
    for source in _predictors():
        times = [t for t in prompt_times(source) if t.measured.prompt == 512 and t.measured.output == 128]
        alone = next(t.measured.prompt_ms for t in times if t.measured.requests == 1)
        for time in (t for t in times if t.measured.requests > 1):
            row = time.measured
            together, turn = (f(time, source.overhead) for f in (together_error, in_turn_error))
            ratio = f"{row.prompt_ms / (row.requests * alone):.2f}"
            name = source.deployment.label
            rows.append(
                [name, f"{row.requests}", f"{row.prompt_ms:,.0f}", percent(together), percent(turn), ratio]
            )
    head = ["deployment", "prompts", "measured, ms", "predicted as one batch", "predicted in turn"]
    return markdown([*head, "measured / (n x one alone)"], rows)


def cpu_table() -> str:
    """Return measured CPU times and the overhead of their engine."""
    rows = []
    for time in CPU_TIMES:
        overhead = engines_of(time.tensor_parallel)[CPU_ENGINE]
        predicted = overhead.milliseconds(time.decodes)
        rows.append([
            time.model, f"{time.tensor_parallel}", f"{time.decodes}", f"{time.total_ms:.2f}",
            f"{predicted:.2f}", percent(predicted / time.total_ms - 1),
        ])  # fmt: skip
    return markdown(["model", "TP", "decodes", "measured, ms", f"`{CPU_ENGINE}`, ms", "error"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": summary,
    "engines": engine_table,
    "rows": row_table,
    "held out": held_out_table,
    "repeats": repeat_table,
    "deployments": deployment_table,
    "prompt lengths": prompt_length_table,
    "prompt batches": prompt_batch_table,
    "cpu": cpu_table,
}
"""Tables of the page, by the name in their markers."""

_BLOCK = re.compile(r"(<!-- table: ([\w ]+) -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)


def fill(page: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """Return a page with up-to-date tables between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    Args:
        page: its text.
        tables: all its tables, by name.

    Raises:
        ConfigError: a mark names no table, or a table has no mark.
    """
    names = [name for _, name, _ in _BLOCK.findall(page)]
    if sorted(names) != sorted(tables):
        wrong = sorted(set(names) ^ set(tables)) or sorted(names)
        raise ConfigError(f"the page must show each table once; check {', '.join(wrong)}")
    return _BLOCK.sub(lambda match: match[1] + tables[match[2]]() + "\n" + match[3], page)
