"""The protocol of sources: what a page shows, and how it changes.

A state is JSON-able: ``version`` (grows with every change), ``epoch`` (grows when rows are rewritten), ``title``,
``about``, ``status``, ``message``, ``x_label``, ``charts`` (a title, a unit and the names of series each), ``first``
and ``rows`` (from that index on; x, then the values of all series of all charts, None for none), ``tiles`` (name and
text), ``lines`` (of a log), and ``speed`` and ``paused``, which are None for a source without a clock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvgym.errors import ConfigError, KVGymError, shown

Row = list[float | None]

MOST_ROWS = 4000
"""Rows of a history; beyond that every second one is dropped, so that a long run stays small."""

MOST_SPEED = 1e6
"""Simulated seconds per second, beyond which a run is as fast as it can be."""


class Chart(NamedTuple):
    """A chart of a page.

    Attributes:
        title: its heading.
        unit: of its values, "" for none.
        series: names of its lines.
    """

    title: str
    unit: str
    series: tuple[str, ...]


class Source(ABC):
    """A source of states, which a thread of its own keeps up to date.

    Args:
        title: heading of the page.
        about: lines below it.
        charts: what the rows hold.
        x_label: meaning of the first number of a row.
        speed: simulated seconds per second; None for a source without a clock.
    """

    def __init__(
        self,
        title: str,
        about: Sequence[str],
        charts: Sequence[Chart],
        x_label: str,
        speed: float | None = None,
    ) -> None:
        self._fixed = {
            "title": title, "about": list(about), "x_label": x_label, "charts": [c._asdict() for c in charts],
        }  # fmt: skip
        self._changing: dict[str, Any] = {"status": "starting", "message": "", "tiles": [], "lines": []}
        self._rows: list[Row] = []
        self._version, self._epoch = 0, 0
        self.speed, self.paused, self._stopped = speed, None if speed is None else False, False
        self.changed = threading.Condition()

    @abstractmethod
    def follow(self) -> None:
        """Keep the state up to date until the end, or until :attr:`stopped`; called in a thread."""

    def run(self) -> None:
        """Call :meth:`follow`, and show an error of kvgym that ends it."""
        try:
            self.follow()
        except KVGymError as error:
            self.update(status="failed", message=str(error))

    @property
    def stopped(self) -> bool:
        """Whether the page is about to end."""
        return self._stopped

    def stop(self) -> None:
        """End :meth:`follow` and everything that waits for a change."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()

    def update(self, rows: Sequence[Row] = (), *, replace: bool = False, **changes: Any) -> None:
        """Add rows, or replace them all, and change parts of the state."""
        with self.changed:
            if replace:
                self._rows, self._epoch = list(rows), self._epoch + 1
            else:
                self._rows += rows
            if len(self._rows) > MOST_ROWS:
                self._rows, self._epoch = self._rows[::2], self._epoch + 1
            self._changing |= changes
            self._version += 1
            self.changed.notify_all()

    def state(
        self, version: int = -1, epoch: int = -1, rows: int = 0, timeout: float = 0.0
    ) -> dict[str, Any]:
        """Return the state, with the rows that a page does not have; see the module.

        Args:
            version: the page's version; a newer one is awaited.
            epoch: its epoch.
            rows: number of rows that it has of that epoch.
            timeout: longest wait, seconds.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._version != version or self._stopped, timeout)
            first = min(rows, len(self._rows)) if epoch == self._epoch else 0
            return {
                **self._fixed, **self._changing, "version": self._version, "epoch": self._epoch,
                "first": first, "rows": self._rows[first:], "speed": self.speed, "paused": self.paused,
            }  # fmt: skip

    def control(self, given: Any) -> None:
        """Change the speed, or pause or continue.

        Args:
            given: ``{"speed": simulated seconds per second}``, ``{"paused": bool}`` or both.

        Raises:
            ConfigError: anything else, or the source has no clock.
        """
        if self.speed is None:
            raise ConfigError("this page follows a training, which has no speed")
        if not isinstance(given, dict) or not given or given.keys() - {"speed", "paused"}:
            raise ConfigError(f"control {shown(given)}; expected speed, paused or both")
        speed, paused = given.get("speed", self.speed), given.get("paused", self.paused)
        check_speed(speed)
        if not isinstance(paused, bool):
            raise ConfigError(f"paused = {shown(paused)}; expected true or false")
        with self.changed:
            self.speed, self.paused = float(speed), paused
        self.update()


def check_speed(speed: Any) -> None:
    """Check a speed.

    Raises:
        ConfigError: it is not a positive number.
    """
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed <= MOST_SPEED:
        raise ConfigError(
            f"speed = {shown(speed)}; expected simulated seconds per second, up to {MOST_SPEED:g}"
        )
