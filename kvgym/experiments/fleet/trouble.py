"""Failures of workers and impatient users, in a scenario."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from pydantic import ConfigDict

from kvgym.errors import ConfigError, shown
from kvgym.simulator.fleet import Failures, Users
from kvgym.utils.reading import Description
from kvgym.utils.specs import parse_seconds

Duration: TypeAlias = float | str
"""Seconds, or a text with a unit: ``"500h"``, ``"10min"``, ``"30s"``."""

_LONG = re.compile(r"(\d+(?:\.\d+)?) *(min|h|d)", re.IGNORECASE)
_SECONDS = {"min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: Duration, what: str) -> float:
    """Parse a time, in seconds.

    Args:
        value: seconds, or a text with a unit: ms, s, min, h or d.
        what: name of the time, for messages.

    Raises:
        ConfigError: any other form.
    """
    match = _LONG.fullmatch(str(value).strip())
    if match:
        return float(match[1]) * _SECONDS[match[2].lower()]
    try:
        return parse_seconds(value, what)
    except ConfigError:
        raise ConfigError(
            f"{what} = {shown(value)}; expected seconds, or a number with ms, s, min, h or d"
        ) from None


class FailureSettings(Description):
    """How workers fail, see :class:`~kvgym.simulator.fleet.Failures`.

    Attributes:
        mtbf: mean time from the start of a worker to its failure, such as ``"500h"``; None = only those of ``at``.
        repair: time for which the place cannot be used.
        at: further failures: pairs of a time and a place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mtbf: Duration | None = None
    repair: Duration = 600.0
    at: tuple[tuple[Duration, int], ...] = ()

    def failures(self) -> Failures:
        """Return the settings; ConfigError if a value is out of range."""
        return Failures(
            mtbf=math.inf if self.mtbf is None else parse_duration(self.mtbf, "mtbf"),
            repair=parse_duration(self.repair, "repair"),
            at=tuple((parse_duration(time, "time of a failure"), place) for time, place in self.at),
        )


class Again(Description):
    """Whether a user tries again, see :class:`~kvgym.simulator.fleet.Users`.

    Attributes:
        probability: of another try.
        delay: time until then.
        most: most further tries.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    probability: float = 1.0
    delay: Duration = 0.0
    most: int = 1


class UserSettings(Description):
    """How users behave, see :class:`~kvgym.simulator.fleet.Users`.

    Attributes:
        patience: time after which a user without a first token goes away, or ``{median: 30, sigma: 0.5}``; None =
            never.
        again: whether a user tries again after going away, or being refused; None = never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience: Duration | dict[str, Duration] | None = None
    again: Again | None = None

    def users(self) -> Users:
        """Return the settings; ConfigError if a value is out of range."""
        median, sigma = self._patience()
        if self.again is None:
            return Users(median, sigma)
        delay = parse_duration(self.again.delay, "delay")
        return Users(median, sigma, self.again.probability, delay, self.again.most)

    def _patience(self) -> tuple[float, float]:
        given = self.patience
        if not isinstance(given, dict):
            return math.inf if given is None else parse_duration(given, "patience"), 0.0
        if not {"median"} <= given.keys() <= {"median", "sigma"}:
            raise ConfigError(f"patience = {shown(given)}; expected seconds, or a median and a sigma")
        return parse_duration(given["median"], "patience"), float(given.get("sigma", 0.0))
