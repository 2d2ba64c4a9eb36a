"""Options that many commands share, and helpers to declare options: completed names, and times with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from kvgym.errors import ConfigError, KVGymError, some
from kvgym.utils.specs import parse_seconds, split_specs

TIME_EXAMPLES = "0.5, 0.5s or 500ms"
"""The forms of a time, for help texts."""


def names(what: str) -> Callable[[str], list[tuple[str, str]]]:
    """Return a completion function for names, also in lists with commas.

    Args:
        what: a list of ``kvgym list``; it is read when the shell asks for completions.

    Returns:
        A function from the text typed so far to the matching values, each with its description.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from kvgym.cli.lists import listing

        before, comma, begun = incomplete.rpartition(",")
        _, rows = listing(what)
        return [(before + comma + name, row[-1]) for name, row in rows.items() if name.startswith(begun)]

    return complete


def time_option(name: str, what: str, *, least: float = -math.inf, panel: str | None = None) -> Any:
    """Return an option that takes a time, as ``0.5``, ``0.5s`` or ``500ms``, in seconds.

    Args:
        name: of the option, ``--window``.
        what: help text.
        least: the shortest valid time, seconds.
        panel: panel of the help text.
    """

    def parse(given: float | str) -> float:
        try:
            return seconds_of(given, name, least=least)
        except ConfigError as error:  # Click would show only the value of a ValueError
            raise KVGymError(str(error)) from None

    text = f"{what} ({TIME_EXAMPLES})"
    return typer.Option(name, parser=parse, metavar="TIME", help=text, rich_help_panel=panel)


def seconds_of(given: float | str, name: str, *, least: float = -math.inf) -> float:
    """Return a time in seconds.

    Args:
        given: the time, seconds or a text with a unit.
        name: what it is, for messages.
        least: the shortest valid time, seconds.

    Raises:
        ConfigError: it is no time, or too short.
    """
    seconds = parse_seconds(given, name)
    if not seconds >= least:
        raise ConfigError(f"{name} {given}: expected at least {least:g} seconds")
    return seconds


def policies_option(text: str) -> Any:
    """Return the option ``--policies``, which every command that runs policies has; see :func:`split_names`.

    Args:
        text: help text.
    """
    return typer.Option("--policies", "-p", metavar="NAMES", help=text, autocompletion=names("policies"))


def metrics_option(text: str) -> Any:
    """Return the option ``--metrics``, of every command that shows or optimises metrics; see :func:`split_names`.

    Args:
        text: help text.
    """
    return typer.Option("--metrics", "-m", metavar="NAMES", help=text, autocompletion=names("metrics"))


def split_names(given: Sequence[str] | None) -> list[str]:
    """Return the names or specs that an option has, comma-separated or repeated; empty if it is not given."""
    return split_specs(",".join(given or ()))


def one_policy(given: Sequence[str] | None, command: str) -> str:
    """Return the only policy that ``--policies`` names.

    Args:
        given: values of the option.
        command: the command, for messages.

    Raises:
        ConfigError: it names none, or several.
    """
    specs = split_names(given)
    if len(specs) == 1:
        return specs[0]
    if not specs:
        raise ConfigError(
            f"kvgym {command} needs a policy: --policies NAME, as in -p vllm_v1 (kvgym list policies)"
        )
    raise ConfigError(
        f"--policies {some(specs)}: kvgym {command} runs one policy; kvgym compare runs several"
    )


OUTPUT = "Execution and output"
"""The panel of options that do not change results."""

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        metavar="N",
        help="Processes; 0 = one per core (default: as needed).",
        rich_help_panel=OUTPUT,
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on Ray: local, auto or an address.", rich_help_panel=OUTPUT),
]
ProgressOption = Annotated[
    bool, typer.Option(show_default=False, help="Show a progress bar.", rich_help_panel=OUTPUT)
]
ReportOption = Annotated[
    bool,
    typer.Option(
        show_default=False, help="Write report.html (needs kvgym\\[report]).", rich_help_panel=OUTPUT
    ),
]
TuneBudgetsOption = Annotated[
    bool, typer.Option("--tune-budgets", help="Also run policies with their best token budget.")
]
