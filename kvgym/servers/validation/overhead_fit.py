"""Fit an engine's overhead to a server's log by repeated replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import yaml

from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.errors import ConfigError
from kvgym.experiments.scenario import Scenario
from kvgym.servers.validation.replay import Replay, loss, mean_error, replay_log
from kvgym.servers.validation.served import Floats, ServedLog
from kvgym.utils.arguments import explained

NAMES = ("base_ms", "per_request_ms")
"""The fitted values."""

TOLERANCE = 0.01
"""A loss within this of the best is accepted: about one per cent of latency."""

_SEARCH, _STARTS, _POLISH, _PROFILE = (
    120,
    3,
    60,
    12,
)  # replays of: search; simplexes, each; values of a profile
_STEPS = (0.01, 0.03, 0.08, 0.2)  # of a profile to either side, shares of the range
_UNIT = [(0.0, 1.0), (0.0, 1.0)]
MOST_REPLAYS = _SEARCH + (_STARTS + 1) * _POLISH + 2 * (2 * len(_STEPS)) * _PROFILE
"""About the most replays of a fit."""


class Profile(NamedTuple):
    """How well one value is determined: the least loss at each value of it, with the other one refitted.

    Attributes:
        values: milliseconds, float64 (m,), ascending.
        losses: float64 (m,).
        low: the least value tried with a loss within :data:`TOLERANCE` of the best.
        high: the largest.
    """

    values: Floats
    losses: Floats
    low: float
    high: float

    def range_text(self) -> str:
        """Return low and high as text, marked where the range may extend beyond the values tried."""
        less = " or less" if 0 < self.low == self.values[0] else ""
        more = " or more" if self.high == self.values[-1] else ""
        return f"{self.low:.3g}{less} to {self.high:.3g}{more} ms"


@dataclass(frozen=True)
class OverheadFit:
    """An overhead fitted to a log.

    Attributes:
        overhead: the fit.
        profiles: how well each value is determined, by name.
        replays: number of simulations.
        before: the replay with the scenario's engine.
        after: the replay with the fit.
    """

    overhead: EngineOverhead
    profiles: dict[str, Profile]
    replays: int
    before: Replay
    after: Replay

    def option(self) -> str:
        """Return the fit as the command line takes it after ``--engine``."""
        return f"base_ms={self.overhead.base_ms:g},per_request_ms={self.overhead.per_request_ms:g}"

    def yaml(self, name: str = "mine") -> str:
        """Return the fit as lines of a hardware file."""
        entry = {
            **{figure: getattr(self.overhead, figure) for figure in NAMES},
            "source": f"fitted to {self.after.log.name}, {len(self.after.log):,} requests",
            "validated": f"the requests it was fitted to: mean error {mean_error(self.after):.1%}",
        }
        return yaml.safe_dump({"engines": {name: entry}}, sort_keys=False, width=110).rstrip()

    def summary(self) -> dict[str, Any]:
        """Return figures and profiles, JSON-able."""
        return {
            **{name: getattr(self.overhead, name) for name in NAMES},
            "loss_before": loss(self.before),
            "loss": loss(self.after),
            "mean_error_before": mean_error(self.before),
            "mean_error": mean_error(self.after),
            "replays": self.replays,
            "profiles": {
                name: {
                    "values": profile.values.tolist(),
                    "losses": profile.losses.tolist(),
                    "within_tolerance": [profile.low, profile.high],
                }
                for name, profile in self.profiles.items()
            },
        }


class _Objective:
    """The loss over places in [0, 1]²: the overhead of a batch of usual size, and the requests' share of it.

    A log determines the first well, and the second if its batches differ in size. In ``base_ms`` and
    ``per_request_ms`` themselves the good places form a narrow slanting valley.
    """

    def __init__(
        self,
        log: ServedLog,
        scenario: Scenario,
        policy: str,
        seed: int,
        progress: Callable[[str], None],
    ) -> None:
        self.log, self.scenario, self.policy, self.seed = log, scenario, policy, seed
        self.progress = progress
        self.most_ms = 1e3 * float(np.nanmedian(log.tbt))
        self.usual = max(1.0, float((log.e2e_latency - log.ttft).sum()) / log.makespan)
        self.seen: dict[tuple[float, float], float] = {}

    def __call__(self, place: Any) -> float:
        return self.at(self.figures(place))

    def at(self, figures: tuple[float, float]) -> float:
        """Return the loss of figures in milliseconds, rounded to 0.1 µs: finer differences are noise."""
        figures = round(figures[0], 4), round(figures[1], 4)
        if figures not in self.seen:
            self.progress(f"base {figures[0]:.3g} ms, per request {figures[1]:.3g} ms")
            self.seen[figures] = loss(self.replay(figures))
        return self.seen[figures]

    def figures(self, place: Any) -> tuple[float, float]:
        """Return milliseconds per batch and per request at a place."""
        whole, share = self.most_ms * float(place[0]), float(place[1])
        return whole * (1 - share), whole * share / self.usual

    def place(self, figures: tuple[float, float]) -> Floats:
        """Return the place of figures in milliseconds."""
        whole = figures[0] + figures[1] * self.usual
        return np.array([whole / self.most_ms, 1 - figures[0] / whole if whole > 0 else 0.5])

    def replay(self, figures: tuple[float, float]) -> Replay:
        """Return the replay with an overhead."""
        engine = dict(zip(NAMES, figures, strict=True))
        return replay_log(self.log, self.scenario.override(engine=engine), self.policy, seed=self.seed)

    def ranked(self) -> list[tuple[float, float]]:
        """Return all figures so far, the best first, of equals the smallest."""
        return sorted(self.seen, key=lambda figures: (self.seen[figures], figures))


@explained
def fit_overhead(
    log: ServedLog,
    scenario: Scenario,
    policy: str,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> OverheadFit:
    """Find the overhead that brings the replay nearest to a log.

    The loss is the mean ``|log(simulated / observed)|`` of token times and end-to-end latencies, see
    :func:`~kvgym.servers.validation.replay.loss`. The overhead of a batch of usual size is searched from 0 to the
    median token time of the log, and how it divides into a batch's and the requests' part: by rectangles (DIRECT),
    then by simplexes (Nelder and Mead) around the best points. Nothing is random: equal input gives equal output.

    Args:
        log: the served requests.
        scenario: with hardware, and equal workers.
        policy: the scheduler.
        seed: seed of the policy's own randomness.
        progress: called with a line of text before each replay.

    Raises:
        ConfigError: the scenario has no hardware with an engine to replace, or no request has two tokens.
    """
    if scenario.hardware is None or "kind" in scenario.batch_time or not isinstance(scenario.workers, int):
        raise ConfigError(
            "an overhead can be fitted to a scenario with hardware and equal workers; choose one with --hardware, "
            "without batch_time"
        )
    if not np.isfinite(log.tbt).any():
        raise ConfigError(
            f"{log.name}: no request has more than one output token; an overhead cannot be fitted"
        )
    objective = _Objective(log, scenario, policy, seed, progress)
    before = replay_log(log, scenario, policy, seed=seed)
    _search(objective)
    center = objective.ranked()[0]
    curves = [_curve(objective, center, i) for i in range(len(NAMES))]
    _polish(objective, objective.place(objective.ranked()[0]))  # a profile may have found a better place
    best = objective.ranked()[0]
    profiles = {
        name: _profile(*curve, best[i], objective.seen[best])
        for i, (name, curve) in enumerate(zip(NAMES, curves, strict=True))
    }
    overhead = EngineOverhead(base_ms=best[0], per_request_ms=best[1])
    return OverheadFit(overhead, profiles, len(objective.seen), before, objective.replay(best))


def _search(objective: _Objective) -> None:
    """Search the whole range, then around the best points that are not close together."""
    from scipy.optimize import direct

    direct(objective, _UNIT, maxfun=_SEARCH, locally_biased=False, vol_tol=0)
    starts: list[Floats] = []
    for figures in objective.ranked():
        place = objective.place(figures)
        if len(starts) < _STARTS and all(np.abs(place - other).max() > 0.1 for other in starts):
            starts.append(place)
    for start in starts:
        _polish(objective, start)


def _polish(objective: _Objective, start: Floats) -> None:
    """Descend from a place."""
    from scipy.optimize import minimize

    sizes = np.where(start > 0.5, -1, 1) * (0.01, 0.1)
    corners = np.array([start, *(start + size * axis for size, axis in zip(sizes, np.eye(2), strict=True))])
    options = {"initial_simplex": corners, "maxfev": _POLISH, "xatol": 1e-4, "fatol": 1e-6}
    minimize(objective, start, method="Nelder-Mead", bounds=_UNIT, options=options)


def _curve(objective: _Objective, best: tuple[float, float], i: int) -> tuple[Floats, Floats]:
    """Return values of figure i around the best, and the least loss at each with the other figure free."""
    from scipy.optimize import minimize_scalar

    most = objective.most_ms / (1, objective.usual)[i]
    rest = objective.most_ms / (objective.usual, 1)[i]
    offsets = [sign * step * most for step in _STEPS for sign in (-1, 1)]
    values = sorted({max(best[i] + offset, 0.0) for offset in (0.0, *offsets)})
    losses = []
    for value in values:

        def along(other: float, value: float = value) -> float:
            return objective.at((value, other) if i == 0 else (other, value))

        # Start from the other value that keeps the overhead of a usual batch.
        slope = (1 / objective.usual, objective.usual)[i]
        natural = max(best[1 - i] - slope * (value - best[i]), 0.0)
        least = along(natural)
        if value != best[i]:
            width = 0.1 * rest
            bounds = (max(natural - width, 0.0), natural + width)
            options = {"maxiter": _PROFILE - 1, "xatol": 1e-4 * rest}
            least = min(least, minimize_scalar(along, bounds=bounds, method="bounded", options=options).fun)
        losses.append(float(least))
    return np.array(values), np.array(losses)


def _profile(values: Floats, losses: Floats, best: float, least: float) -> Profile:
    """Return the profile of a curve; between its values losses are interpolated linearly."""
    limit = least + TOLERANCE
    ends = []
    below, above = values <= best, values >= best
    for x, y in ((values[below][::-1], losses[below][::-1]), (values[above], losses[above])):  # outwards
        end = best
        for k in range(len(x)):
            if y[k] > limit:
                if k:
                    share = (limit - y[k - 1]) / (y[k] - y[k - 1])
                    end = float(x[k - 1] + share * (x[k] - x[k - 1]))
                break
            end = float(x[k])
        ends.append(end)
    return Profile(values, losses, *ends)
