"""Limits on lengths; the table's notes count the requests that they change or drop."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.workloads.base import MAX_TOKENS, Spec
from kvgym.workloads.table import RequestTable


class LengthLimits(Spec):
    """Bounds on prompt, output and total length, tokens.

    Clipping first brings prompt and output into their ranges. If the total still exceeds ``max_total_len``, the
    prompt is shortened, as in Vidur's replay generator, but not below ``min_prompt_len``; then the output.

    Attributes:
        min_prompt_len: shortest prompt.
        max_prompt_len: longest prompt; None = no bound.
        min_output_len: shortest output.
        max_output_len: longest output; None = no bound.
        max_total_len: largest prompt + output; None = no bound.
        policy: ``"clip"`` changes lengths, ``"drop"`` removes requests that are out of bounds.
    """

    min_prompt_len: int = Field(default=1, ge=1, le=MAX_TOKENS)
    max_prompt_len: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    min_output_len: int = Field(default=1, ge=1, le=MAX_TOKENS)
    max_output_len: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    max_total_len: int | None = Field(default=None, ge=2, le=2 * MAX_TOKENS)
    policy: Literal["clip", "drop"] = "clip"

    @model_validator(mode="after")
    def _consistent(self) -> LengthLimits:
        for name in ("prompt", "output"):
            low, high = getattr(self, f"min_{name}_len"), getattr(self, f"max_{name}_len")
            if high is not None and high < low:
                raise ValueError(f"max_{name}_len = {high} is below min_{name}_len = {low}")
        least = self.min_prompt_len + self.min_output_len
        if self.max_total_len is not None and self.max_total_len < least:
            raise ValueError(f"max_total_len = {self.max_total_len} is below the shortest request, {least}")
        return self

    def apply(self, table: RequestTable) -> RequestTable:
        """Apply the limits to a table; each limit that changes something adds a note."""
        if self._holds(table):
            return table
        return self._drop(table) if self.policy == "drop" else self._clip(table)

    def _holds(self, table: RequestTable) -> bool:
        """Return whether all requests are within the limits."""
        prompt, output = table.prompt_len, table.output_len
        return (
            _inside(prompt, self.min_prompt_len, self.max_prompt_len)
            and _inside(output, self.min_output_len, self.max_output_len)
            and (self.max_total_len is None or _inside(prompt + output, 1, self.max_total_len))
        )

    def _clip(self, table: RequestTable) -> RequestTable:
        notes: list[str] = []
        lengths = {}
        for name in ("prompt", "output"):
            before = getattr(table, f"{name}_len")
            low, high = getattr(self, f"min_{name}_len"), getattr(self, f"max_{name}_len")
            after = np.maximum(before, low)
            if high is not None:
                after = np.minimum(after, high)
            short, long = np.count_nonzero(before < low), np.count_nonzero(before > after)
            note(notes, int(short), len(table), f"had its {name} raised to {low} tokens")
            note(notes, int(long), len(table), f"had its {name} clipped to {high} tokens")
            lengths[name] = after
        if self.max_total_len is not None:
            prompt, output = lengths["prompt"], lengths["output"]
            over = int(np.count_nonzero(prompt + output > self.max_total_len))
            lengths["prompt"], lengths["output"] = shorten(
                prompt, output, self.max_total_len, self.min_prompt_len
            )
            cut = f"shortened to {self.max_total_len} tokens in total, the prompt first"
            note(notes, over, len(table), f"was {cut}")
        return table.replace(
            prompt_len=lengths["prompt"], output_len=lengths["output"], notes=(*table.notes, *notes)
        )

    def _drop(self, table: RequestTable) -> RequestTable:
        total = table.prompt_len + table.output_len
        bounds = (
            ("prompt", table.prompt_len, self.min_prompt_len, self.max_prompt_len),
            ("output", table.output_len, self.min_output_len, self.max_output_len),
            ("total", total, 0, self.max_total_len),
        )
        keep = np.ones(len(table), bool)
        notes: list[str] = []
        for name, value, low, high in bounds:
            inside = (value >= low) & (value <= (high if high is not None else value))
            span = f"{low} … {high if high is not None else '∞'} tokens"
            text = f"was dropped, its {name} length outside {span}"
            note(notes, int(np.sum(keep & ~inside)), len(table), text)
            keep &= inside
        return table.select(keep, *notes)


def _inside(lengths: NDArray[np.int64], low: int, high: int | None) -> bool:
    """Return whether lengths ≥ 1 are from ``low`` to ``high``, None = unlimited."""
    return (low <= 1 or lengths.min(initial=low) >= low) and (high is None or lengths.max(initial=0) <= high)


def shorten(
    prompt: NDArray[np.int64], output: NDArray[np.int64], most: Any, min_prompt_len: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths of prompts and outputs that are ``most`` tokens together, int or (n,): the prompt is cut first."""
    prompt = np.minimum(prompt, np.maximum(most - output, min_prompt_len))
    return prompt, np.minimum(output, most - prompt)


def note(notes: list[str], count: int, n: int, what: str) -> None:
    """Append "count of n requests: each ``what``" if the count is positive."""
    if count:
        notes.append(f"{count:,} of {n:,} requests: each {what}.")
