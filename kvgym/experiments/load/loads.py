"""Loads: scenarios that can be run at other rates, and in parts."""

from __future__ import annotations

import math
from typing import Any

from kvgym.errors import ConfigError
from kvgym.experiments.scenario import Scenario
from kvgym.workloads.arrivals import Times
from kvgym.workloads.spec import RequestClass, TraceLengths, WorkloadSpec
from kvgym.workloads.workload import Workload, too_few


class Load:
    """A scenario with an adjustable arrival rate.

    Arrivals keep their pattern: the times of a seed are stretched, so all rates see the same requests (common random
    numbers). Slotted arrivals, which have integer times, are drawn again. A trace replayed with its own times is
    compressed or stretched (``rate_scale``).

    Args:
        scenario: the scenario. Its horizon is ignored, as only runs that finish can sustain a rate. So is its window,
            as a growing backlog shows only in the whole run.
        num_requests: requests per run; None = as in the scenario, for a duration the mean number of requests.
        request_slos: SLOs of every request, in seconds, by ``"ttft"`` and ``"tbt"``, instead of the workload's.

    Attributes:
        scenario: the scenario at its own rate.
        rate: its arrivals per second; for a replayed trace, of the requests in use.
        replays: whether a trace is replayed with its own times, so that all seeds have the same arrivals.
        num_requests: requests per run.
        notes: sentences on what was changed.

    Raises:
        ConfigError: the workload has no rate, or an SLO is invalid.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        num_requests: int | None = None,
        request_slos: dict[str, float] | None = None,
    ) -> None:
        notes = []
        if scenario.system.horizon is not None:
            notes.append(
                f"Runs continue until all requests have finished, beyond the horizon of {scenario.system.horizon:g} s."
            )
            settings = scenario.system.model_copy(update={"horizon": None})
            scenario = scenario.model_copy(update={"system": settings})
        if scenario.window is not None:
            notes.append("Runs are judged as a whole: warm_up and cool_down are ignored.")
            scenario = scenario.model_copy(update={"warm_up": None, "cool_down": None})
        workload = scenario.make_workload()
        self.rate = float(workload.mean_rate)
        if not math.isfinite(self.rate) or self.rate <= 0:
            raise ConfigError(
                f"workload {workload.spec.name}: no arrival rate to change (all requests arrive at once, or the trace "
                "has no times); set one with --rate"
            )
        spec = workload.spec
        self.replays = spec.replays and spec.arrivals is None
        if num_requests is None:
            rows = len(workload.trace.window(*_window(spec))) if workload.trace is not None else 0
            num_requests = _size(spec, self.rate, rows)
            if spec.replays and isinstance(spec.num_requests, int) and rows < spec.num_requests:
                notes.append(too_few(spec.num_requests, rows))
        spec = _with_slos(spec, request_slos) if request_slos else spec
        self._spec = _validated({**spec.model_dump(), "num_requests": num_requests, "duration": None})
        if self.replays:
            times = Workload(self._spec).sample(0).arrival_time
            num_requests = len(times)
            self.rate = _rate_of(times)
            self._first, last = float(times[0]), float(times[-1])
            self._end = math.nextafter(self._recorded(last - self._first), math.inf)
        self.num_requests = num_requests
        self._base = scenario
        self.scenario = self.at(self.rate)
        self.notes = tuple(notes)

    def at(self, rate: float, *, workers: int | None = None, num_requests: int | None = None) -> Scenario:
        """Return the scenario at a rate.

        Args:
            rate: arrivals per second.
            workers: number of equal workers; None = as in the scenario.
            num_requests: requests per run; None = :attr:`num_requests`.
        """
        spec = self._spec
        if num_requests is not None:
            spec = spec.model_copy(update={"num_requests": num_requests})
        if self.replays:
            assert isinstance(spec.lengths, TraceLengths)
            scale = spec.lengths.rate_scale * (rate / self.rate)
            lengths = spec.lengths.model_copy(update={"rate_scale": scale})
            spec = spec.model_copy(update={"lengths": lengths})
        else:
            spec = spec.at_rate(rate)
        return self._with(spec, workers)

    def at_once(self) -> Scenario:
        """Return the scenario with all requests arriving at time 0, on one worker."""
        once: dict[str, Any] = {"arrivals": {"kind": "all_at_once"}}
        classes = [c.model_dump() | {"rate": None, "arrivals": None} for c in self._spec.classes]
        if self._spec.classes and self._spec.classes[0].source != "weight":
            workload = self._base.make_workload()
            for c, rate in zip(classes, workload.class_rates, strict=True):
                c["weight"] = float(rate)
            once["classes"] = classes
        return self._with(_validated({**self._spec.model_dump(), **once}), 1)

    def steady(self) -> Load:
        """Return the load without its variation over time.

        For a trace replayed with its own times: the same number of requests, drawn from it with replacement, and
        Poisson arrivals at its rate. Otherwise the load itself.
        """
        if not self.replays:
            return self
        lengths = self._spec.lengths
        assert isinstance(lengths, TraceLengths)
        changes = {
            "arrivals": {"kind": "poisson", "rate": self.rate},
            "lengths": lengths.model_copy(update={"mode": "resample", "shared_prefix": None}),
        }
        return Load(self._with(_validated({**self._spec.model_dump(), **changes}), None))

    def between(self, start: float, end: float | None) -> Load:
        """Return the load of a part of a replayed trace, at the rate of that part.

        Args:
            start: seconds since the first arrival.
            end: seconds since the first arrival, exclusive. None = to the end.

        Raises:
            ConfigError: too few requests arrive in it to have a rate.
        """
        lengths = self._spec.lengths
        assert isinstance(lengths, TraceLengths)
        changes = {"start": self._recorded(start), "end": self._end if end is None else self._recorded(end)}
        spec = _validated(
            {**self._spec.model_dump(), "lengths": lengths.model_copy(update=changes), "num_requests": None}
        )
        return Load(self._with(spec, None))

    def _recorded(self, seconds: float) -> float:
        """Return the time in the trace of an arrival this many seconds after the first request."""
        assert isinstance(self._spec.lengths, TraceLengths)
        return self._spec.lengths.start + (self._first + seconds) * self._spec.lengths.rate_scale

    def _with(self, spec: WorkloadSpec, workers: int | None) -> Scenario:
        changes: dict[str, Any] = {"workload": spec.model_dump(mode="json")}
        return self._base.override(**changes, workers=workers)


def _rate_of(times: Times) -> float:
    """Return the number of gaps between arrivals over their span, per second."""
    span = float(times[-1] - times[0])
    if span <= 0:
        raise ConfigError(
            f"{len(times)} requests of a trace arrive at the same time: they have no rate to change"
        )
    return (len(times) - 1) / span


def _window(spec: WorkloadSpec) -> tuple[float, float | None]:
    """Return start and end of the part of a trace that is used, seconds."""
    assert isinstance(spec.lengths, TraceLengths)
    return spec.lengths.start, spec.lengths.end


def _size(spec: WorkloadSpec, rate: float, rows: int) -> int:
    """Return the number of requests per run."""
    if isinstance(spec.num_requests, int):
        return min(spec.num_requests, rows) if spec.replays else spec.num_requests
    if spec.num_requests is not None:
        return (spec.num_requests.low + spec.num_requests.high) // 2
    if spec.duration is not None:
        seconds = spec.duration
        mean = seconds if isinstance(seconds, float | int) else (seconds.low + seconds.high) / 2
        count = max(1, round(rate * mean))
        return min(count, rows) if spec.replays else count
    return rows


def _with_slos(spec: WorkloadSpec, slos: dict[str, float]) -> WorkloadSpec:
    """Return a workload with the given SLOs for all requests, in every class."""
    for name, seconds in slos.items():
        if name not in ("ttft", "tbt") or not seconds > 0:
            raise ConfigError(f"SLO {name}={seconds}: expected ttft or tbt, and seconds > 0")
    given: dict[str, Any] = {f"{name}_slo": seconds for name, seconds in slos.items()}
    classes = spec.classes or (RequestClass(),)
    return spec.model_copy(update={**given, "classes": tuple(c.model_copy(update=given) for c in classes)})


def _validated(fields: dict[str, Any]) -> WorkloadSpec:
    return WorkloadSpec(**fields)
