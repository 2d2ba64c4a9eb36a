"""Workloads: descriptions with their data, which sample requests by seed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.seeding import stream
from kvgym.workloads.arrivals import ArrivalProcess, PoissonArrivals, Times, mean_rate_of
from kvgym.workloads.base import TRACE_SUFFIXES, IntRange, check_size
from kvgym.workloads.classes import ClassStatistics, RateProfile
from kvgym.workloads.layout import FEATURE_COLUMNS
from kvgym.workloads.lengths import Lengths, PairDistribution, draw_index
from kvgym.workloads.mixtures import MixedLengths
from kvgym.workloads.predictions import ClassPrediction, Predictor
from kvgym.workloads.presets import PRESETS
from kvgym.workloads.spec import RequestClass, TraceLengths, WorkloadSpec
from kvgym.workloads.table import RequestTable

if TYPE_CHECKING:
    from kvgym.workloads.traces import Trace

# Parts of the named streams. A class c has part (CLASS, c). New parts are appended so that workloads do not change.
_COUNT, _CLASS = 0, 1  # of "arrivals": number or horizon, and the classes' own processes
_PROMPT, _OUTPUT, _CLASS_PROMPT, _CLASS_OUTPUT = 0, 1, 2, 3  # of "lengths"
_FEATURES = 5  # of "lengths"; part 4 is in `instances`
_CLIENTS = 0  # of "classes"


class Workload:
    """A sampler of request tables.

    Arrivals, lengths, classes and predictions use separate random streams: a change to one never affects another. The
    first n requests of a longer run equal the run of n (except with a predictor that depends on the whole table). If
    classes have their own arrival processes, these determine the order of the classes, but the j-th request of a class
    keeps its lengths.

    Args:
        spec: the description.
        trace: the data of a ``trace`` source, e.g. read with a tokenizer; None = read the file now.

    Attributes:
        spec: the description.
        trace: the data, None without a trace.
    """

    _stream = staticmethod(stream)

    @explained
    def __init__(self, spec: WorkloadSpec, trace: Trace | None = None) -> None:
        """Combine ``spec`` with its data."""
        self.spec = spec
        self.trace = trace
        if isinstance(spec.lengths, TraceLengths):
            if trace is None:
                from kvgym.workloads.traces import load_trace

                given = spec.lengths.model_dump(include={"columns", "time_unit", "shared_prefix"})
                self.trace = load_trace(spec.lengths.path, spec.lengths.format, **given)
        elif trace is not None:
            raise ConfigError("a trace was given, but the workload's lengths are not of kind 'trace'")

    def __repr__(self) -> str:
        """Return the name and rate."""
        return f"Workload({self.spec.name!r}, mean_rate={self.mean_rate:g})"

    @property
    def mean_rate(self) -> float:
        """Long-run arrivals per second; if a trace's timestamps determine it, of the replayed requests."""
        replayed, times = self._replayed(), self._recorded_times()
        if replayed is None or times is None:
            return self.spec.mean_rate
        return mean_rate_of(times) * replayed[1].rate_scale

    @property
    def size(self) -> int | None:
        """The number of requests for every seed; None if it depends on the seed."""
        requested, duration, replayed = self.spec.num_requests, self.spec.duration, self._replayed()
        if replayed is None:
            return requested if isinstance(requested, int) else None
        trace, source, rows = replayed
        if duration is None and not isinstance(requested, IntRange):
            return len(rows) if requested is None else min(requested, len(rows))
        times = self._recorded_times()
        spread = trace.batched if source.debatch is None else source.debatch
        return len(times) if times is not None and isinstance(duration, int | float) and not spread else None

    def _replayed(self) -> tuple[Trace, TraceLengths, NDArray[np.int64]] | None:
        """Return a trace, its replay settings, and the rows to replay before a number or duration cuts them."""
        source = self.spec.lengths
        if self.trace is None or not isinstance(source, TraceLengths) or not self.spec.replays:
            return None
        return self.trace, source, self.trace.window(source.start, source.end)

    def _recorded_times(self) -> Times | None:
        """Return when a trace has recorded the requests that every seed replays, seconds; None = others decide."""
        replayed = self._replayed()
        if replayed is None or self.spec.arrivals is not None:
            return None
        trace, source, rows = replayed
        times, n, horizon = trace.arrival_time[rows], self.spec.num_requests, self.spec.duration
        if isinstance(n, int):
            times = times[:n]
        if isinstance(horizon, int | float):
            times = times[(times - source.start) / source.rate_scale < horizon]
        return times

    @property
    def class_rates(self) -> NDArray[np.float64]:
        """Arrivals per second of each class, float64 (number of classes,)."""
        classes = self.spec.classes
        if classes and classes[0].source == "weight":
            weights = np.array([c.weight or 1.0 for c in classes])
            return np.asarray(self.mean_rate * weights / weights.sum(), np.float64)
        return np.array([c.arrivals.mean_rate if c.arrivals else c.rate for c in classes], np.float64)

    @functools.cached_property
    def class_statistics(self) -> tuple[ClassStatistics, ...]:
        """Rate and mean lengths of each class; empty without classes, with prefixes, or without a mean length."""
        if self.spec.prefixes is not None:
            return ()
        source = self.spec.lengths
        pair = source if isinstance(source, PairDistribution) else None
        described = []
        for k, (c, rate) in enumerate(zip(self.spec.classes, self.class_rates, strict=True)):
            prompt = c.prompt.mean_len if c.prompt is not None else pair and pair.mean_prompt_len
            output = c.output.mean_len if c.output is not None else pair and pair.mean_output_len
            if not prompt or not output or not 0 < rate < np.inf:
                return ()
            described.append(
                ClassStatistics(
                    c.name or str(k), float(rate), float(prompt), float(output), self._profile(c, rate)
                )
            )
        return tuple(described)

    def _profile(self, c: RequestClass, rate: float) -> RateProfile | None:
        """Return how the rate of a class changes over time: by its own process or as its share of all arrivals."""
        if c.arrivals is not None:
            return c.arrivals.profile
        whole = None if self.spec.arrivals is None else self.spec.arrivals.profile
        return None if whole is None else whole.scaled(float(rate) / self.mean_rate)

    def sample(self, seed: int) -> RequestTable:
        """Return the requests for ``seed``; equal seeds give equal bits, and no file is read.

        Args:
            seed: non-negative integer.
        """
        spec = self.spec
        if spec.replays:
            table = self._replay(seed)
        else:
            times, class_id = self._arrivals(seed)
            prompt, output, features = self._lengths(seed, class_id, len(times))
            table = RequestTable.from_columns(
                arrival_time=times,
                prompt_len=prompt,
                output_len=output,
                **features,
                **self._class_columns(class_id),
            )
            if spec.prefixes is not None:
                table = spec.prefixes.apply(table, seed)
            if not len(table):
                table = table.replace(notes=("no requests: none arrive in time.",))
        table = spec.limits.apply(table)
        targets = {"ttft_slo": spec.ttft_slo, "tbt_slo": spec.tbt_slo, "e2e_slo": spec.e2e_slo}
        given: dict[str, Any] = {name: np.full(len(table), x) for name, x in targets.items() if x is not None}
        if given:
            table = table.replace(**given)
        if spec.arrivals is not None and len(table):
            last = float(table.arrival_time[-1])
            table = table.with_rates(spec.arrivals.known_rates(lambda: self._stream(seed, "arrivals"), last))
        if spec.clients is not None:
            table = self._with_clients(table, seed)
        if spec.predictions is not None:
            return self._predictor(spec.predictions).apply(table, self._stream(seed, "predictions"))
        recorded = (table.predicted_output_len, table.predicted_low, table.forecasts)  # of a trace
        return table if any(x is not None for x in recorded) else table.with_exact_predictions()

    def provenance(self) -> dict[str, Any]:
        """Return the data that reproduce the workload: its description, and the trace's path, format and SHA-256."""
        trace = self.trace
        source = (
            None if trace is None else {"path": trace.path, "format": trace.format, "sha256": trace.sha256}
        )
        return {"spec": self.spec.model_dump(mode="json"), "trace": source}

    def _replay(self, seed: int) -> RequestTable:
        """Return the trace's rows in order, with their recorded times or those of the arrival process."""
        spec, source = self.spec, self.spec.lengths
        assert isinstance(source, TraceLengths)
        assert self.trace is not None
        table = self.trace.to_table(
            rate_scale=source.rate_scale,
            start=source.start,
            end=source.end,
            debatch=False if spec.arrivals is not None else source.debatch,
            rng=self._stream(seed, "arrivals"),
        )
        n, horizon = self._extent(seed)
        if spec.arrivals is not None:
            times = spec.arrivals.sample(len(table), self._stream(seed, "arrivals"))
            notes = tuple(note for note in table.notes if not note.startswith("no arrival times"))
            table = table.replace(arrival_time=times, notes=notes)
        if n is not None and n < len(table):
            table = table.select(slice(0, n), f"The first {n:,} of {len(table):,} requests are used.")
        elif n is not None and n > len(table):
            table = table.replace(notes=(*table.notes, too_few(n, len(table))))
        if horizon is not None:
            inside = table.arrival_time < horizon
            if not inside.all():
                table = table.select(inside, f"{inside.sum():,} of {len(table):,} requests arrive in time.")
        if not spec.classes:
            return table
        class_id = self._draw_classes(seed, len(table))
        prompt, output = self._own_lengths(seed, class_id, table.prompt_len, table.output_len)
        return table.replace(prompt_len=prompt, output_len=output, **self._class_columns(class_id))

    def _extent(self, seed: int) -> tuple[int | None, float | None]:
        """Return the number of requests and the horizon in seconds; one or both are None."""
        n, duration = self.spec.num_requests, self.spec.duration
        if isinstance(n, IntRange):
            n = n.draw(self._stream(seed, "arrivals", _COUNT))
        if isinstance(duration, IntRange):
            duration = duration.draw(self._stream(seed, "arrivals", _COUNT))
        return n, duration

    def _arrivals(self, seed: int) -> tuple[Times, Lengths | None]:
        """Return arrival times (n,) in seconds and class ids (n,), None without classes."""
        spec = self.spec
        n, horizon = self._extent(seed)
        processes = (
            [spec.arrivals]
            if spec.arrivals is not None
            else [c.arrivals or PoissonArrivals(rate=c.rate or 1.0) for c in spec.classes]
        )
        _check_sizes(processes, n, horizon)
        if spec.arrivals is not None:
            times = spec.arrivals.draw(n, horizon, self._stream(seed, "arrivals"))
            return times, self._draw_classes(seed, len(times)) if spec.classes else None
        streams = [self._stream(seed, "arrivals", _CLASS, k) for k in range(len(processes))]
        parts = [p.draw(n, horizon, rng) for p, rng in zip(processes, streams, strict=True)]
        times = np.concatenate(parts)
        class_id = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(times, kind="stable")[:n]
        return times[order], class_id[order]

    def _draw_classes(self, seed: int, n: int) -> Lengths:
        """Return class ids (n,) drawn by weight."""
        weights = np.array([c.weight or 1.0 for c in self.spec.classes])
        return draw_index(weights, self._stream(seed, "classes").random(n))

    def _lengths(
        self, seed: int, class_id: Lengths | None, n: int
    ) -> tuple[Lengths, Lengths, dict[str, Any]]:
        """Return prompt and output lengths, (n,) each, tokens, and feature columns by name."""
        source = self.spec.lengths
        prompt = output = np.ones(n, np.int64)
        features: dict[str, Any] = {}
        prompt_rng, output_rng = (self._stream(seed, "lengths", part) for part in (_PROMPT, _OUTPUT))
        if isinstance(source, PairDistribution):
            prompt, output = source.sample(n, prompt_rng, output_rng)
            if isinstance(source, MixedLengths) and source.kinds[0].features:
                kinds_rng, own_rng = (self._stream(seed, "lengths", part) for part in (_PROMPT, _FEATURES))
                features = source.sample_features(n, kinds_rng, own_rng)
        elif isinstance(source, TraceLengths):
            assert self.trace is not None
            pool = self.trace.window(source.start, source.end)
            rows = pool[prompt_rng.integers(0, len(pool), n)]
            prompt, output = self.trace.prompt_len[rows], self.trace.output_len[rows]
            features = {name: x[rows] for name, x in self.trace.extra.items() if name in FEATURE_COLUMNS}
        return *self._own_lengths(seed, class_id, prompt, output), features

    def _own_lengths(
        self, seed: int, class_id: Lengths | None, prompt: Lengths, output: Lengths
    ) -> tuple[Lengths, Lengths]:
        """Replace the lengths of classes that have their own distributions."""
        prompt, output = prompt.copy(), output.copy()
        for k, c in enumerate(self.spec.classes):
            rows = np.flatnonzero(class_id == k)
            if c.prompt is not None:
                prompt[rows] = c.prompt.sample(len(rows), self._stream(seed, "lengths", _CLASS_PROMPT, k))
            if c.output is not None:
                output[rows] = c.output.sample(len(rows), self._stream(seed, "lengths", _CLASS_OUTPUT, k))
        return prompt, output

    def _class_columns(self, class_id: Lengths | None) -> dict[str, Any]:
        """Return the columns that are determined by the class."""
        if class_id is None:
            return {}
        columns: dict[str, Any] = {"class_id": class_id, "classes": self.class_statistics}
        classes = self.spec.classes
        if any(c.priority for c in classes):
            columns["priority"] = np.array([c.priority for c in classes], np.int64)[class_id]
        if all(c.client is not None for c in classes):
            columns["client_id"] = np.array([c.client for c in classes], np.int64)[class_id]
        for name in ("ttft_slo", "tbt_slo", "e2e_slo"):
            targets = [getattr(c, name) for c in classes]
            if any(target is not None for target in targets):
                seconds = np.array([np.inf if target is None else target for target in targets])
                columns[name] = seconds[class_id]
        return columns

    def _with_clients(self, table: RequestTable, seed: int) -> RequestTable:
        """Return the requests with clients drawn by their shares; classes with a client of their own keep it."""
        clients = self.spec.clients
        assert clients is not None
        shares = np.arange(1, clients.count + 1, dtype=np.float64) ** -clients.zipf
        client_id = draw_index(shares, self._stream(seed, "classes", _CLIENTS).random(len(table)))
        if table.class_id is not None and self.spec.classes:
            own = np.array([-1 if c.client is None else c.client for c in self.spec.classes], np.int64)[
                table.class_id
            ]
            client_id = np.where(own >= 0, own, client_id)
        return table.replace(client_id=client_id)

    def _predictor(self, predictor: Predictor) -> Predictor:
        """Return the predictor, of classes with the lengths of the workload's."""
        if isinstance(predictor, ClassPrediction) and predictor.lengths is None and self.spec.classes:
            outputs = [c.output for c in self.spec.classes]
            if predictor.statistic == "mean" and all(outputs):
                means = tuple(int(np.ceil(o.mean_len)) for o in outputs if o is not None)
                return predictor.model_copy(update={"lengths": means})
            longest = [o.max_len for o in outputs if o is not None and o.max_len is not None]
            if predictor.statistic == "max" and len(longest) == len(outputs):
                return predictor.model_copy(update={"lengths": tuple(longest)})
        return predictor


def too_few(requested: int, rows: int) -> str:
    """Return the note on a trace that has fewer requests than requested."""
    return f"The trace has only {rows:,} requests; {requested:,} were requested."


@explained
def make_workload(source: str | Path | Mapping[str, Any] | WorkloadSpec, **overrides: Any) -> Workload:
    """Return a workload from a preset, a trace file or a description.

    Args:
        source: name of a preset (:func:`kvgym.workloads.preset_names`), path of a trace file to replay, a
            :class:`WorkloadSpec`, or a mapping of its fields, which may start from ``{"preset": name}`` or
            ``{"trace": path}``, see :func:`describe_workload`.
        **overrides: fields to replace, e.g. ``num_requests=500``. Mappings are merged into the existing fields unless
            their ``kind`` differs: ``arrivals={"rate": 10}`` keeps the process. ``rate=10`` scales all arrivals to 10
            per second; a trace without times gets Poisson arrivals.

    Raises:
        UnknownNameError: no preset of this name.
        ConfigError: a field is unknown or wrong.
        TraceFormatError: the trace file is malformed.
    """
    fields = _fields(source) if isinstance(source, WorkloadSpec) else describe_workload(source)
    preset = fields.pop("preset", None)
    if preset is not None:
        fields = _layer(_fields(PRESETS[str(preset)]), fields)
    rate = overrides.pop("rate", fields.pop("rate", None))
    spec = WorkloadSpec(**_layer(fields, overrides))
    if rate is None:
        return Workload(spec)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < np.inf:
        raise ConfigError(f"rate must be a number of requests per second > 0, got {shown(rate)}")
    if spec.arrivals is None and spec.replays:
        trace = Workload(spec).trace
        assert trace is not None
        if trace.has_times:
            raise ConfigError(
                f"{spec.name} has arrival times: change its speed with rate_scale (--set rate_scale=2), not with rate"
            )
        return Workload(spec.model_copy(update={"arrivals": PoissonArrivals(rate=rate)}), trace)
    return Workload(spec.at_rate(rate))


def describe_workload(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Expand a short form into a description for :func:`make_workload`; returns a copy.

    A name is a preset or the path of a trace file. In a mapping, ``trace`` is the path of a trace file, next to the
    fields of :class:`TraceLengths`: ``{"trace": "mine.csv", "rate_scale": 2}``.

    Raises:
        ConfigError: a trace together with a preset or lengths.
    """
    if not isinstance(source, Mapping):
        name = str(source)
        if name in PRESETS or Path(name).suffix.lower() not in TRACE_SUFFIXES:
            return {"preset": name}
        source = {"trace": name}
    fields = {str(key): value for key, value in source.items()}
    path = fields.pop("trace", None)
    if path is None:
        return fields
    if both := sorted(fields.keys() & {"preset", "lengths"}):
        raise ConfigError(f"workload: trace and {both[0]} exclude each other: a trace is the workload")
    of_trace = TraceLengths.model_fields.keys() - {"kind", "path"}
    given = {name: fields.pop(name) for name in of_trace & fields.keys()}
    return {"name": Path(str(path)).name, **fields, "lengths": {"kind": "trace", "path": str(path), **given}}


def _fields(spec: WorkloadSpec) -> dict[str, Any]:
    """Return the fields of a description as plain values."""
    return spec.model_dump(mode="python")


def _layer(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into fields; a new number of requests replaces a duration and vice versa."""
    merged = {**fields, **{key: _merge(fields.get(key), value) for key, value in changes.items()}}
    for given, other in (("duration", "num_requests"), ("num_requests", "duration")):
        if changes.get(given) is not None and other not in changes:
            merged[other] = None
    return merged


def _merge(old: Any, new: Any) -> Any:
    """Merge mapping ``new`` into ``old`` unless they are of different kinds."""
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return new
    if new.get("kind", old.get("kind")) != old.get("kind"):
        return dict(new)
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


_COUNTED = 10**18
"""Larger numbers of requests are not printed, as Python refuses to print thousands of digits."""


def _check_sizes(processes: Sequence[ArrivalProcess], n: int | None, horizon: float | None) -> None:
    """Check the number of requests before anything is drawn.

    Raises:
        WorkloadError: too many; the message names the number, or rate and duration, and the limit.
    """
    if n is not None:
        shown = f"{n:,}" if n < _COUNTED else "more than 10^18"
        of = f" of {len(processes)} processes" if len(processes) > 1 else ""
        check_size(min(n, _COUNTED) * len(processes), f"{shown} requests{of}")
        return
    assert horizon is not None
    rates = " + ".join(f"{process.mean_rate:g}" for process in processes[:3]) + " + …" * (len(processes) > 3)
    expected = sum(process.expected(horizon) for process in processes)
    check_size(expected, f"{horizon:g} s at {rates} requests per second")
