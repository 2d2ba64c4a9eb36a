"""Metrics of the mock server, under the names and types of vLLM's V1 engine (``vllm/v1/metrics/loggers.py``).

Times are simulated seconds. Counters and gauges are read from the tables of the run when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvgym.servers.endpoint.online import OnlineRun

_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_NEXT = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class MockMetrics:
    """Metrics of a run.

    Args:
        run: the run.
        model: name of the model, a label of all metrics.

    Attributes:
        registry: all metrics.
    """

    def __init__(self, run: OnlineRun, model: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Tables(run, model))

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"vllm:{name}", about, _LABELS, buckets=buckets, registry=self.registry)
            return family.labels(model, _ENGINE)

        self._first = histogram("time_to_first_token_seconds", "Time to first token, s.", _FIRST)
        self._next = histogram("inter_token_latency_seconds", "Time between tokens, s.", _NEXT)
        self._whole = histogram("e2e_request_latency_seconds", "Time from arrival to last token, s.", _WHOLE)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output = histogram("request_generation_tokens", "Output tokens of a request.", _TOKENS)

    def first(self, seconds: float) -> None:
        """Count a first token after a time."""
        self._first.observe(seconds)

    def next(self, seconds: float) -> None:
        """Count a further token after a time."""
        self._next.observe(seconds)

    def finished(self, seconds: float, prompt_len: int, output_len: int) -> None:
        """Count a request that has finished after a time."""
        self._whole.observe(seconds)
        self._prompt.observe(prompt_len)
        self._output.observe(output_len)


_LABELS, _ENGINE = ("model_name", "engine"), "0"


class _Tables(Collector):
    """Counters and gauges of a run."""

    def __init__(self, run: OnlineRun, model: str) -> None:
        self._run, self._model = run, model

    def collect(self) -> Iterator[Metric]:
        """Yield what the tables have now."""
        w, system, labels = self._run.worker, self._run.system, (self._model, _ENGINE)
        for name, about, value in (
            ("num_requests_running", "Running requests.", w["num_active"]),
            ("num_requests_waiting", "Waiting requests.", w["num_waiting"]),
            ("kv_cache_usage_perc", "KV memory in use, 1 = all.", w["kv_allocated"] / system.usable_capacity),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", about, labels=_LABELS)
            gauge.add_metric(labels, float(value))
            yield gauge
        blocks = str(system.usable_capacity // system.block_size)
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "Memory.", labels=("block_size", "num_gpu_blocks", "engine")
        )
        config.add_metric((str(system.block_size), blocks, _ENGINE), 1.0)
        yield config
        for name, about, value in (
            ("num_preemptions", "Evictions.", w["total_evicted"]),
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.", w["total_known_tokens"]),
            ("prefix_cache_hits", "Tokens found in it.", w["total_hit_tokens"]),
            ("prompt_tokens", "Prompt tokens processed.", w["total_prefill_tokens"]),
            ("generation_tokens", "Output tokens.", w["total_delivered_tokens"]),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", about, labels=_LABELS)
            counter.add_metric(labels, float(value))
            yield counter
        done = CounterMetricFamily("vllm:request_success", "Finished.", labels=(*_LABELS, "finished_reason"))
        done.add_metric((*labels, "length"), float(w["total_finished"]))
        yield done
