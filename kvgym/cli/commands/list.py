"""``kvgym list``: what there is, and all that is known of one entry."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.lists import LISTS, details, listing
from kvgym.errors import UnknownNameError

SHOWN = 6
"""Lists shown when none is asked for."""

_ROOFLINE = "roofline, not validated: --model NAME --gpu NAME --tp N (docs/hardware.md)"
ABOUT = {
    "hardware": "others by a roofline of their data sheets: kvgym list models, kvgym list gpus (docs/hardware.md)",
    "environments": 'made by gymnasium.make("kvgym:ID"), or by gymnasium.make("ID") after import kvgym',
    "models": _ROOFLINE,
    "gpus": _ROOFLINE,
}
"""What is said below a list."""


def list_(
    what: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(LISTS)}; nothing lists the first six.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One of these, or a file of a scenario or hardware: all that is known of it."),
    ] = None,
    markdown: Annotated[bool, typer.Option(help="Print Markdown tables, with all columns.")] = False,
) -> None:
    """List policies, agents, scenarios, hardware, workloads, environments and more.

    One of them in detail, of schedulers and routers with their options: kvgym list policies mc_sf.
    """
    if what is not None and what not in LISTS:
        raise UnknownNameError("list", what, LISTS)
    for chosen in LISTS[:SHOWN] if what is None else (what,):
        tables = (
            [(chosen.capitalize(), *listing(chosen, full=markdown))]
            if name is None
            else details(chosen, name)
        )
        for title, headings, rows in tables:
            if markdown:
                print(console.markdown_table(headings, rows))
            else:
                short = name is None and len(headings) == 2 and console.out.is_terminal
                console.out.print(console.mapping_table(title, rows, headings, one_line=short))
            console.out.print()
        if chosen in ABOUT:
            console.out.print(ABOUT[chosen], markup=False)
            console.out.print()
    if what is not None and name is None and not markdown:
        console.out.print(f"all that is known of one of them: kvgym list {what} NAME", style="dim")
