"""Why targets are missed, on batches computed by hand."""

from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.experiments.runs import Played, RunRecord
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.catalogue import metric_names
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.studies.capacity.entries import Entry
from kvgym.studies.capacity.finding import find_capacity
from kvgym.studies.capacity.probing import Probe
from kvgym.studies.capacity.reasons import explain, slow_batches
from kvgym.studies.capacity.targets import parse_targets
from kvgym.studies.capacity.verdict import BACKLOG, Verdict
from kvgym.workloads.table import RequestTable

# 10 ms a batch, 0.1 ms a prompt token, 1 ms a decode.
BATCH_TIME = AffineBatchTime(constant=0.01, per_prefill_token=1e-4, per_decode_token=1e-3)
FIGURES = {
    "seconds": 0.22, "prefill_tokens": 2000.0, "decodes": 10.0, "context": 500.0, "within_ttft": 1.0, "within_tbt": 1.0,
    "tbt_slo": np.inf,
}  # fmt: skip


def why(
    targets: str, reasons: str, policy: str = "fcfs", figures: Any = None, **metrics: float
) -> tuple[str, ...]:
    every = dict.fromkeys(metric_names(), 0.0) | metrics
    played = Played(RunRecord(policy, 0, every, "", True, 0.0), 100)
    entry = Entry(policy, make_policy(policy), None, 1)
    probe = Probe(entry, 1, 2.0, 2.0, 0, Verdict(False, tuple(reasons.split(","))), played)
    return explain(probe, parse_targets(targets), {**FIGURES, **(figures or {})}, BATCH_TIME)


@pytest.mark.parametrize(
    ("policy", "figures", "text"),
    [
        # 10 decodes take 20 ms; next to them 128 - 10 tokens fit into 33 ms < 40 ms, 256 - 10 do not.
        ("sarathi:token_budget=2048", {}, "a batch with 2,000 prompt tokens takes 0.22 s, without them 0.02 s; try "
         "sarathi:token_budget=128"),
        ("sarathi:token_budget=200", {"prefill_tokens": 190.0, "seconds": 0.041}, "try sarathi:token_budget=128"),
        ("fcfs", {}, "takes 0.22 s, without them 0.02 s; fcfs does not split prompts."),
        ("fcfs", {"prefill_tokens": 0.0, "decodes": 60.0, "seconds": 0.07}, "a batch of 60 decodes takes 0.07 s; use"),
        ("fcfs", {"seconds": 0.03}, "tokens wait through several batches: 7 evictions"),
    ],
)  # fmt: skip
def test_time_between_tokens(policy: str, figures: dict[str, float], text: str) -> None:
    (found,) = why("tbt_p99<0.04", "tbt_p99<0.04", policy, figures, tbt_p99=0.05, evictions=7)
    assert found.startswith("tbt_p99<0.04 fails at 2/s (0.05): ")
    assert text in found


def test_waiting_and_backlogs() -> None:
    figures = {"ttft_p99": 3.0, "queueing_delay_p99": 2.0, "kv_utilisation": 0.9}
    assert why("ttft_p99<1,tbt_p99<1", f"ttft_p99<1,{BACKLOG}", **figures) == (
        "ttft_p99<1 fails at 2/s (3): requests wait 2 s (99 % quantile) before their first batch, with 90% of the KV "
        "memory in use: memory is full.",
        "the backlog grows at 2/s, with 90% of the KV memory in use: memory is full.",
    )
    (found,) = why("ttft_p99<1", "ttft_p99<1", ttft_p99=3.0, queueing_delay_p99=0.5)
    assert "the prompt takes most of the time, 2.5 s of 3 s" in found


def test_shares_within_slos_name_the_tighter_one() -> None:
    share = {"within_tbt": 0.5, "within_ttft": 0.9, "tbt_slo": 0.04}
    (found,) = why("goodput>=0.9", "slo_attainment>=0.9", "sarathi", share, slo_attainment=0.5)
    assert "50% of the requests are within their SLO for the time between tokens; a batch with 2,000" in found
    (found,) = why("goodput>=0.9", "slo_attainment>=0.9", "sarathi", {**share, "within_ttft": 0.2}, ttft_p99=2.0,
                   queueing_delay_p99=1.5)  # fmt: skip
    assert "20% of the requests are within their SLO for the first token; requests wait 1.5 s" in found


def test_slow_batches_by_hand() -> None:
    # Request 1 arrives at 25 ms, during the second batch of request 0, and is in the batch from 22.1 to 42.1 + 10 ms.
    table = RequestTable.from_columns(
        arrival_time=[0, 0.02], prompt_len=[1, 100], output_len=[9, 1], tbt_slo=[0.02, 9]
    )
    result = simulate(System(kv_capacity=1000, batch_time=BATCH_TIME), table, "fcfs", log=True)
    found = slow_batches(result)
    assert found["seconds"] == pytest.approx(0.01 + 0.001 + 100 * 1e-4)
    assert (found["prefill_tokens"], found["decodes"]) == (100, 1)
    assert found["within_tbt"] == 0.5  # the first request waited 21 ms for a token
    assert found["tbt_slo"] == 0.02


def test_a_search_explains_its_limit() -> None:
    scenario = load_scenario("vllm-v1").override(
        workload={"preset": "stab-1-1", "num_requests": 60, "rate": 1}
    )
    result = find_capacity(
        scenario, "tbt_p99<0.05", ["vllm_v1", "sarathi"], seeds=1, num_requests=60, tolerance=0.2, curve=(),
        tune_budgets=True,
    )  # fmt: skip
    assert [c.policy for c in result.capacities][:2] == ["vllm_v1", "vllm_v1:max_num_batched_tokens=512"]
    first, best = result.capacities[:2]
    assert best.estimate.value > first.estimate.value
    (text,) = first.why
    assert "prompt tokens takes" in text
    assert "try vllm_v1:max_num_batched_tokens=" in text
    assert any(note.startswith("The ranking by capacity") for note in result.notes)
    assert result.summary()["capacities"][0]["why"] == [text]
