"""``kvgym list``: list policies, scenarios, hardware and more, or show one entry in detail."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.lists import LISTS, details, listing
from kvgym.errors import UnknownNameError

SHOWN = 6
"""Number of lists shown by default."""

_SERVED = "any model on any GPU: --model NAME --gpu NAME --tp N; a roofline without measured kernels (docs/hardware.md)"
ABOUT = {
    "hardware": "other models and GPUs: --model NAME --gpu NAME (kvgym list models, kvgym list gpus, docs/hardware.md)",
    "environments": 'made by gymnasium.make("kvgym:ID"), or by gymnasium.make("ID") after import kvgym',
    "models": f"{_SERVED}; also as a checkpoint on Hugging Face, such as Qwen/Qwen3-32B, or its config.json",
    "gpus": _SERVED,
}
"""Text below a list."""


def list_(
    what: Annotated[
        str | None,
        typer.Argument(help=f"One of {', '.join(LISTS)}; by default the first six lists are shown."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="An entry, or a scenario or hardware file, to show in detail."),
    ] = None,
    markdown: Annotated[bool, typer.Option(help="Print Markdown tables, with all columns.")] = False,
) -> None:
    """List policies, agents, scenarios, hardware, workloads, environments and more.

    An entry in detail, for schedulers and routers with their options: kvgym list policies mc_sf.
    """
    if what is not None and what not in LISTS:
        raise UnknownNameError("list", what, LISTS)
    for chosen in LISTS[:SHOWN] if what is None else (what,):
        tables = (
            [(chosen.capitalize(), *listing(chosen, full=markdown, brief=what is None))]
            if name is None
            else details(chosen, name)
        )
        for title, headings, rows in tables:
            if markdown:
                print(console.markdown_table(headings, rows))
            else:
                short = name is None and len(headings) == 2 and console.out.is_terminal
                console.print_table(console.mapping_table(title, rows, headings, one_line=short))
            console.out.print()
        if chosen in ABOUT:
            console.out.print(ABOUT[chosen], markup=False)
            console.out.print()
    if what is not None and name is None and not markdown:
        console.out.print(f"details of an entry: kvgym list {what} NAME", style="dim")
