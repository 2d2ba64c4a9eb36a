"""Schedules recorded from vLLM with kvgym's policies by ``scripts/conformance integration --freeze``.

They are played again over a stand-in for vLLM's scheduler, and in the simulator.
"""

from pathlib import Path

import pytest
from conformance.cases import difference
from conformance.integration import play, read_frozen, simulated
from conformance.integration_engine import BATCH_TIME, Engine

from helpers.servers import fake_vllm
from kvgym.integrations.vllm import deciding, releases

RECORDED = read_frozen(Path(__file__).parent / "vllm-0.33.0-policies.jsonl")


class StandIn(Engine):
    """Drives the stand-in as vLLM is driven."""

    def __init__(self):
        self._class, self._ahead = releases.scheduler_class(False), 0

    def make_scheduler(self, case, settings):
        limits = {"budget": 1 << 20, "seqs": 1 << 10, "blocks": case.blocks, "block_size": case.block_size}
        deciding.LEAST_ROWS = len(case.arrival)
        made = self._class(
            fake_vllm.configuration(settings | {"batch_time": BATCH_TIME}, **limits), fake_vllm.MEMORY
        )
        made.now, made.wall, made._origin = (lambda: 0.0), (lambda: 0.0), 0.0
        made._build()
        return made

    def make_request(self, case, i, extra):
        lengths = case.prompt[i], case.output[i], case.arrival[i]
        return fake_vllm.Request(f"{i:06}", *lengths, priority=-case.priority[i], max_tokens=1 << 20, **extra)


@pytest.fixture
def engine(monkeypatch):
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(deciding, "LEAST_ROWS", deciding.LEAST_ROWS)
    releases.scheduler_class.cache_clear()
    return StandIn()


@pytest.mark.parametrize("policy", dict.fromkeys(policy for policy, *_ in RECORDED))
def test_recorded_schedules_are_equal(engine, policy):
    played = [(workload, theirs) for name, workload, theirs in RECORDED if name == policy]
    assert played
    for workload, theirs in played:
        assert difference(play(engine, workload, policy), theirs) == ""
        assert difference(simulated(workload, policy), theirs) == ""


def test_most_policies_preempt_in_them():
    preempt = {policy for policy, _, theirs in RECORDED if any(step.preempted for step in theirs.steps)}
    assert len(preempt) >= 4
