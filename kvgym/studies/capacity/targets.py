"""Service-level targets of a whole run, and their parser for texts such as ``"ttft_p99<1,tbt_p99<0.2"``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvgym.errors import ConfigError, shown
from kvgym.metrics.catalogue import metric_info
from kvgym.utils.arguments import explained, explained_class
from kvgym.utils.checks import check_text
from kvgym.utils.specs import PER_SECOND

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FORM = "write metric<bound, as in ttft_p99<1,tbt_p99<0.2 (seconds) or goodput>=0.9 (share of the requests)"
_PATTERN = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([^\s<>=]+?)\s*(ms|s|%)?\s*")
_PER_UNIT = {**PER_SECOND, "%": 1e2}

SHARE = "slo_attainment"
"""The metric that ``goodput`` stands for in targets: the share of requests that met all their SLOs."""


@explained_class
@dataclass(frozen=True)
class Target:
    """A bound on a metric of a run.

    Attributes:
        metric: name, see :mod:`kvgym.metrics`.
        relation: ``"<"``, ``"<="``, ``">"`` or ``">="``.
        bound: in the metric's unit.
    """

    metric: str
    relation: str
    bound: float

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UnknownNameError: there is no such metric.
            ConfigError: the metric has no direction, the relation contradicts it, or the bound is not a number.
        """
        lower = metric_info(self.metric).lower_is_better
        if self.relation not in _COMPARE:
            raise ConfigError(
                f"target {self}: {shown(self.relation)} is not one of {', '.join(_COMPARE)}; {_FORM}"
            )
        if not math.isfinite(self.bound):
            raise ConfigError(f"target {self}: the bound must be a finite number")
        if lower is None:
            raise ConfigError(f"target {self}: neither more nor less of {self.metric} is better; {_FORM}")
        if lower != (self.relation in ("<", "<=")):
            better, right = ("less", "< or <=") if lower else ("more", "> or >=")
            raise ConfigError(f"target {self}: {better} of {self.metric} is better, so it needs {right}")
        if self.metric == SHARE and not 0 < self.bound <= 1:
            raise ConfigError(
                f"target {self}: a share of the requests lies in (0, 1], as in goodput>=0.9; for a rate use "
                "request_throughput"
            )

    def __str__(self) -> str:
        """Return the target as text, e.g. ``ttft_p99<1``."""
        return f"{self.metric}{self.relation}{self.bound:g}"

    def met(self, metrics: Mapping[str, float]) -> bool:
        """Return whether a run's metrics meet the target.

        A metric without a value (NaN, as ``tbt`` if all outputs have one token) meets upper bounds only.
        """
        value = metrics[self.metric]
        if math.isnan(value):
            return self.relation in ("<", "<=")
        return bool(_COMPARE[self.relation](value, self.bound))


@explained
def parse_targets(text: str | Iterable[str | Target]) -> tuple[Target, ...]:
    """Return the targets in one or several texts.

    Args:
        text: comma-separated, each a metric, a relation and a bound in the metric's unit; seconds may be written as
            ``200ms`` or ``0.2s``, shares as ``90%``. ``goodput`` stands for the metric :data:`SHARE`.

    Raises:
        ConfigError: a part cannot be read, or a metric is bounded twice in one direction.
        UnknownNameError: there is no such metric.
    """
    parts = text.split(",") if isinstance(text, str) else text
    found: list[Target] = []
    for part in parts:
        if isinstance(part, Target):
            found.append(part)
        elif isinstance(part, str) and "," in part:
            found += parse_targets(part)
        else:
            found.append(_parse(check_text(part, "target", "a text such as ttft_p99<=1.5")))
    for target in found:
        if sum(other.metric == target.metric for other in found) > 1:
            raise ConfigError(f"target {target}: {target.metric} is bounded twice; keep the tighter bound")
    return tuple(found)


def _parse(part: str) -> Target:
    match = _PATTERN.fullmatch(part)
    if match is None:
        raise ConfigError(f"target {shown(part.strip())}: cannot be read; {_FORM}")
    metric, relation, figure, unit = match[1], match[2], match[3], match[4] or ""
    metric = SHARE if metric == "goodput" else metric
    try:
        bound = float(figure) / _PER_UNIT[unit]
    except ValueError:
        raise ConfigError(f"target {shown(part.strip())}: {shown(figure)} is not a number; {_FORM}") from None
    target = Target(metric, relation, bound)
    of_metric = metric_info(metric).unit
    if unit and of_metric != {"%": "1"}.get(unit, "s"):
        has = "no unit" if of_metric == "1" else f"the unit {of_metric}"
        raise ConfigError(f"target {shown(part.strip())}: {metric} has {has}, not {unit}")
    return target
