"""Descriptions of workloads: immutable, strict, and convertible to JSON."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvgym.errors import ConfigError
from kvgym.workloads.arrivals import Rate
from kvgym.workloads.base import MAX_TOKENS, IntRange, Spec
from kvgym.workloads.lengths import AnyLength, EmpiricalPairs, FillLengths, IndependentLengths
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.mixtures import MixedLengths
from kvgym.workloads.predictions import AnyPredictor
from kvgym.workloads.prefix.prefixes import Prefixes
from kvgym.workloads.varying_arrivals import AnyArrivals


class TraceLengths(Spec):
    """Requests of a trace file.

    Attributes:
        path: the file.
        format: one of :func:`kvgym.workloads.trace_formats`, or ``"auto"``.
        columns: names of its columns, and
        time_unit: unit of its times, see :func:`kvgym.workloads.load_trace`.
        mode: ``"replay"`` keeps the rows in order, with their recorded times unless the workload has an arrival
            process; ``"resample"`` draws (prompt, output) pairs jointly with replacement, with their feature columns.
        rate_scale: factor of the recorded rate.
        start: seconds since the first row; earlier rows are skipped.
        end: seconds since the first row; later rows are skipped. None = keep all.
        debatch: spread equal timestamps over the gap to the next one; None = the default of the format.
        shared_prefix: build block hashes from sessions and a system prompt of this many tokens, see
            :func:`kvgym.workloads.load_trace`.
    """

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    format: str = "auto"
    columns: dict[str, str] = Field(default_factory=dict)
    time_unit: str | None = None
    mode: Literal["replay", "resample"] = "replay"
    rate_scale: Rate = 1.0
    start: float = Field(default=0.0, ge=0)
    end: float | None = Field(default=None, gt=0)
    debatch: bool | None = None
    shared_prefix: int | None = Field(default=None, ge=0, le=MAX_TOKENS)

    @model_validator(mode="after")
    def _in_order(self) -> TraceLengths:
        if self.mode == "resample" and self.shared_prefix is not None:
            raise ValueError("mode: resample draws lengths without sessions; remove shared_prefix")
        return self


AnyPairs = Annotated[
    IndependentLengths | FillLengths | EmpiricalPairs | MixedLengths | TraceLengths,
    Field(discriminator="kind"),
]
"""Any source of (prompt, output) lengths, distinguished by ``kind``."""


class RequestClass(Spec):
    """A class of requests: its arrivals, lengths, priority and targets.

    Attributes:
        name: name in reports.
        weight: share of the workload's arrivals, relative to the other classes.
        rate: Poisson rate of the class, arrivals per second, instead of a weight.
        arrivals: arrival process of the class, instead of a weight.
        prompt: prompt lengths of the class; None = the workload's.
        output: output lengths of the class; None = the workload's.
        priority: larger is more important.
        ttft_slo: target of the time to first token, seconds; None = no target.
        tbt_slo: target of the time between tokens, seconds; None = no target.
        e2e_slo: deadline, seconds from arrival to completion; None = no deadline.
        client: the client that sends the class; None = by the workload's ``clients``.
    """

    name: str = ""
    weight: float | None = Field(default=None, gt=0)
    rate: Rate | None = None
    arrivals: AnyArrivals | None = None
    prompt: AnyLength | None = None
    output: AnyLength | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    ttft_slo: float | None = Field(default=None, ge=0)
    tbt_slo: float | None = Field(default=None, ge=0)
    e2e_slo: float | None = Field(default=None, ge=0)
    client: int | None = Field(default=None, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _one_source(self) -> RequestClass:
        given = [name for name in ("weight", "rate", "arrivals") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a class has one of weight, rate and arrivals, got {given}")
        return self

    @property
    def source(self) -> str:
        """``"arrivals"``, ``"rate"`` or ``"weight"`` (the default, weight 1)."""
        return "arrivals" if self.arrivals is not None else "rate" if self.rate is not None else "weight"


class Clients(Spec):
    """Clients that send the requests, drawn for each request.

    Attributes:
        count: number of clients.
        zipf: exponent of their shares: the k-th sends 1 / k^zipf as many as the first; 0 = equal shares.
    """

    count: int = Field(ge=1, le=1_000_000)
    zipf: float = Field(default=0.0, ge=0, le=100)


class WorkloadSpec(Spec):
    """Complete description of a workload; together with a seed it determines every request.

    Arrivals have exactly one source: ``arrivals``, or a rate or process of every class, or the timestamps of a
    replayed trace. Workloads other than replayed traces also need ``num_requests`` or ``duration``.

    Attributes:
        name: name of the preset, or the user's.
        description: one line.
        arrivals: process of all requests together.
        lengths: source of (prompt, output) lengths for classes without their own.
        classes: classes of requests; empty = none.
        prefixes: what requests share; lengths are those of a request's own part. None = nothing, or what a trace says.
        predictions: predicted output lengths; None = those of the trace, else exact lengths.
        limits: bounds on the lengths.
        ttft_slo: target of the time to first token of every request, seconds; None = those of the classes or the trace.
        tbt_slo: the same for the time between tokens.
        e2e_slo: the same for the time from arrival to completion.
        clients: clients of the requests; None = those of the classes or the trace.
        num_requests: number of requests, or a range to draw it from, at most
            :data:`~kvgym.workloads.base.MAX_REQUESTS`.
        duration: horizon in seconds (slots for slotted arrivals), or a range to draw it from.
    """

    name: str = "custom"
    description: str = ""
    arrivals: AnyArrivals | None = None
    lengths: AnyPairs | None = None
    classes: tuple[RequestClass, ...] = ()
    prefixes: Prefixes | None = None
    predictions: AnyPredictor | None = None
    limits: LengthLimits = LengthLimits()
    ttft_slo: float | None = Field(default=None, gt=0)
    tbt_slo: float | None = Field(default=None, gt=0)
    e2e_slo: float | None = Field(default=None, gt=0)
    clients: Clients | None = None
    num_requests: Annotated[int, Field(ge=1)] | IntRange | None = None
    duration: Annotated[float, Field(gt=0)] | IntRange | None = None

    @model_validator(mode="after")
    def _complete(self) -> WorkloadSpec:
        sources = {c.source for c in self.classes}
        if len(sources) > 1:
            raise ValueError(f"classes mix {' and '.join(sorted(sources))}; use one of them for all classes")
        own = [c.client is not None for c in self.classes]
        if any(own) and not all(own) and self.clients is None:
            raise ValueError(
                "some classes have a client and others none; give each one, or clients for the others"
            )
        per_class = bool(sources & {"rate", "arrivals"})
        if self.arrivals is not None and per_class:
            raise ValueError(f"both the workload and its classes give {sources.pop()}; use class weights")
        if self.replays and per_class:
            raise ValueError("a replayed trace sets the arrivals; give its classes weights")
        if self.replays and self.prefixes is not None:
            raise ValueError(
                "a replayed trace says what its requests share; remove prefixes, or use mode: resample"
            )
        if self.arrivals is None and not per_class and not self.replays:
            raise ValueError("no arrivals: give arrivals, or a rate for every class, or replay a trace")
        if self.lengths is None and not all(c.prompt and c.output for c in self.classes or [RequestClass()]):
            raise ValueError("no lengths: give lengths, or prompt and output for every class")
        if self.num_requests is not None and self.duration is not None:
            raise ValueError("give num_requests or duration, not both")
        if self.num_requests is None and self.duration is None and not self.replays:
            raise ValueError("give num_requests (requests) or duration (seconds)")
        return self

    @property
    def replays(self) -> bool:
        """Whether the rows of a trace are replayed in order."""
        return isinstance(self.lengths, TraceLengths) and self.lengths.mode == "replay"

    @property
    def mean_rate(self) -> float:
        """Long-run arrivals per second of all classes; NaN if a trace's timestamps determine it."""
        if self.arrivals is not None:
            return self.arrivals.mean_rate
        rates = [c.arrivals.mean_rate if c.arrivals else c.rate or math.nan for c in self.classes]
        return sum(rates) if rates else math.nan

    def at_rate(self, rate: float) -> WorkloadSpec:
        """Return this workload with all arrivals scaled to ``rate`` per second.

        Raises:
            ConfigError: the workload has no finite rate.
        """
        if not math.isfinite(self.mean_rate):
            raise ConfigError("the workload has no rate to change; for a trace use rate_scale")
        factor = rate / self.mean_rate
        if self.arrivals is not None:
            return self.model_copy(update={"arrivals": self.arrivals.scaled(factor)})
        classes = []
        for c in self.classes:
            own = {"arrivals": c.arrivals.scaled(factor)} if c.arrivals else {"rate": (c.rate or 0) * factor}
            classes.append(c.model_copy(update=own))
        return self.model_copy(update={"classes": tuple(classes)})
