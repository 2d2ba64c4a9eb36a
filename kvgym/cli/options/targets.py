"""Options of commands that search by targets, and their parsers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from kvgym.cli.options.shared import policies_option
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario_options import ScenarioOptions

SloOption = Annotated[
    str,
    typer.Option(
        "--slo",
        help="Targets of a run: ttft_p99<1,tbt_p99<0.2 (seconds; any of kvgym list metrics), or goodput>=0.9, the "
        "share of requests within their SLOs; '' for none.",
    ),
]
PoliciesOption = Annotated[
    list[str] | None,
    policies_option(
        "Comma-separated, or all: every policy that can run with the predictions (default: scenario's)."
    ),
]


def parse_prices(text: str, option: str) -> float | dict[str, float]:
    """Read a number, or ``hardware=number,hardware=number``.

    Args:
        text: the text. A roofline among the hardware contains commas itself; the number follows its last option, as in
            ``roofline:model=qwen3-8b,gpu=l4=2.5``.
        option: name of the option, for messages.

    Raises:
        ConfigError: the text has another form, or hardware is given twice.
    """
    if (alone := _number(text)) is not None:
        return alone
    found: dict[str, float] = {}
    for part in _pairs(text):
        name, equals, figure = (piece.strip() for piece in part.rpartition("="))
        number = _number(figure)
        if not name or not equals or number is None:
            raise ConfigError(
                f"{option} {shown(text)}: {shown(part.strip())} is not name=number; or give one number, for all "
                "hardware"
            )
        if name in found:
            raise ConfigError(f"{option} {shown(text)}: {name} is given twice")
        found[name] = number
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def _pairs(text: str) -> Iterator[str]:
    """Yield the parts between commas; a roofline is one part."""
    from kvgym.batch_time.deployments.described import HardwareName

    begun = ""
    for part in text.split(","):
        whole = begun + part
        begun = f"{whole}," if HardwareName(whole.strip()).described and part.count("=") < 2 else ""
        if not begun:
            yield whole
    if begun:
        yield begun[:-1]


def given_slos(options: ScenarioOptions) -> dict[str, float]:
    """Return the given SLOs of every request, as searches by targets take them."""
    slos = {"ttft": options.ttft_slo, "tbt": options.tbt_slo}
    return {name: seconds for name, seconds in slos.items() if seconds is not None}


def parse_counts(text: str | None) -> list[int] | None:
    """Read numbers of workers, e.g. ``1,2,4``.

    Raises:
        ConfigError: a part is not a whole number >= 1.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--workers {text}: expected whole numbers ≥ 1, e.g. 1,2,4,8")
    return [int(part) for part in parts]
