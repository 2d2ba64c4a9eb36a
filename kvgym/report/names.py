"""Names of metrics and swept fields for readers."""

from __future__ import annotations

from kvgym.metrics.catalogue import LATENCIES
from kvgym.metrics.measured import STATISTICS

_FAMILIES = {
    "e2e_latency": "end-to-end latency",
    "ttft": "time to first token",
    "tbt": "time between tokens",
    "tpot": "time per output token",
    "queueing_delay": "queueing delay",
}
_METRICS = {
    "first_turn_ttft": "time to first token of first turns",
    "later_turn_ttft": "time to first token of later turns",
    "first_turn_latency": "end-to-end latency of first turns",
    "later_turn_latency": "end-to-end latency of later turns",
    "request_throughput": "requests finished",
    "token_throughput": "output tokens",
    "generated_token_throughput": "generated tokens",
    "processed_token_throughput": "processed tokens",
    "slo_attainment": "share within SLOs",
    "busy_fraction": "share of time in batches",
    "batch_size": "requests per batch",
    "jain_fairness": "fairness (Jain)",
    "max_wait": "longest wait",
}
_FIELDS = {
    "rate": ("arrival rate", "requests/s"),
    "num_requests": ("number of requests", ""),
    "kv_capacity": ("KV capacity", "tokens"),
    "block_size": ("block size", "tokens"),
    "horizon": ("horizon", "s"),
    "predictions.epsilon": ("error of the predictions", ""),
}
"""Names of fields, and their units."""


def metric_name(metric: str) -> str:
    """Return the name of a metric in a sentence, as in ``time to first token, p99``."""
    family, _, statistic = metric.rpartition("_")
    if family in LATENCIES and statistic in STATISTICS:
        name = _FAMILIES.get(family, _words(family))
        return f"mean {name}" if statistic == "mean" else f"{name}, {statistic}"
    return _METRICS.get(metric, _words(metric))


def field_name(field: str) -> str:
    """Return the name of a swept field in a sentence, as in ``arrival rate`` or ``sarathi token budget``."""
    return _FIELDS[field][0] if field in _FIELDS else _words(field)


def field_unit(field: str) -> str:
    """Return the unit of a swept field, "" for none or an unknown one."""
    return _FIELDS.get(field, ("", ""))[1]


def title(name: str) -> str:
    """Return a name as the beginning of a line."""
    return name[:1].upper() + name[1:]


def _words(name: str) -> str:
    words = name.replace(".", " ").replace("_", " ").split()
    return " ".join(word.upper() if word in ("kv", "slo", "ttft", "tbt", "tpot") else word for word in words)
