"""Runs that cannot end: detection in bounded work, the blocking request in the message, and the result so far."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import InvalidDecisionError, LivelockError, RunError
from kvgym.kernels import PolicyDecision, PolicyMemory, PolicyView, admit, first_waiting, policy_kernel
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import CompiledPolicy, Policy, PolicyInfo, SystemInfo
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.decision import Decision
from kvgym.simulator.system import LEAST_EFFORT, System, Worker
from kvgym.simulator.tables import FINISHED
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()


def requests(prompt: Any, output: Any, arrival: Any = None, **columns: Any) -> RequestTable:
    times = np.zeros(len(prompt)) if arrival is None else arrival
    return RequestTable(times, prompt, output, **columns)


def error_of(system: System, table: RequestTable, policy: str | Policy, **options: Any) -> LivelockError:
    with pytest.raises(LivelockError) as caught:
        simulate(system, table, policy, **options)
    return caught.value


# ---------------------------------------------------------------- which request blocks

# Requests 0 … 3: the queue begins with 0, 1 has the shortest prompt, 2 the shortest predicted output.
PROMPTS, OUTPUTS = [9, 6, 8, 7], [5, 6, 2, 4]


@pytest.mark.parametrize(
    ("policy", "blocked", "known"),
    [
        ("alpha_greedy:alpha=0.8,strict=True", 0, r"a prompt of 9 tokens"),
        ("alpha_beta:alpha=0.8,strict=True", 0, r"a prompt of 9 tokens"),
        ("mc_sf:protection=0.8,strict=True", 2, r"a prompt of 8 tokens and a predicted output of 2"),
        ("mc_benchmark:protection=0.8,strict=True", 0, r"a prompt of 9 tokens and a predicted output of 5"),
        (
            "mc_longest:protection=0.8,strict=True",
            0,
            r"a prompt of 9 tokens and a predicted output of 4 to 6",
        ),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_the_message_names_the_request_that_blocks(
    policy: str, blocked: int, known: str, compiled: bool
) -> None:
    columns = {
        "predicted_output_len": OUTPUTS,
        "predicted_low": np.array(OUTPUTS) - 1,
        "predicted_high": np.array(OUTPUTS) + 1,
    }
    table = requests(PROMPTS, OUTPUTS, [0, 0.1, 0.2, 0.3], **columns)
    system = System(20, UNIT, stall_limit=9)
    error = error_of(system, table, policy, compiled=compiled)
    text = rf"an empty worker \(4 waiting, kv_capacity 20\)\. Request {blocked}, which it would admit"
    assert error.result is not None
    with pytest.raises(LivelockError, match=text + rf" next, has {known}\. Try less margin"):
        raise error


def predicted(prompts: Any, outputs: Any, predicted: Any, arrival: Any = None) -> RequestTable:
    return requests(prompts, outputs, arrival, predicted_output_len=predicted)


LATER = [0, 0.1, 0.2, 0.3]
BLOCKED = {
    "ageing: the shortest of predictions that all exceed the memory": (
        "ageing:rate=0", 1, predicted(PROMPTS, OUTPUTS, [15, 20, 13, 16], LATER),
        r"Request 2, which it would admit next, has a prompt of 8 tokens",
    ),
    "ageing: the first to come": (
        "ageing:rate=99", 1, predicted(PROMPTS, OUTPUTS, [15, 20, 13, 16], LATER),
        r"Request 0, which it would admit next, has a prompt of 9 tokens",
    ),
    "a_min: the least output possible": (
        "a_min", 1, requests([9, 6, 8], [5, 6, 2], predicted_low=[15, 16, 14], predicted_high=[20, 20, 20]),
        r"Request 2, which it would admit next, has a prompt of 8 tokens and a predicted output of 14 to 20",
    ),
    "after 1 and 3 have run, the shortest left": (
        "mc_sf:protection=0.3,strict=True", 1, predicted([9, 2, 8, 2], [9, 1, 5, 2], [9, 1, 8, 2]),
        r"2 waiting.*Request 2, which it would admit next, has a prompt of 8 tokens",
    ),
    "in a cluster, by the policy of the stuck worker": (
        "mc_sf:protection=0.6,strict=True", 2, predicted([2, 9, 3, 8], [1, 5, 1, 2], [1, 5, 1, 2]),
        r"worker 1, .*Request 3, which it would admit next",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKED)
def test_the_request_that_blocks(case: str) -> None:
    policy, workers, table, message = BLOCKED[case]
    system = System.cluster([Worker(20, UNIT)] * workers, stall_limit=9)
    with pytest.raises(LivelockError, match=message):
        simulate(system, table, policy)


MARGINS = [
    f"{name}={margin}"
    for names, margin in (
        (("sarathi:watermark", "sarathi:order=spf,watermark", "vllm:watermark", "vllm_v1:watermark"), 0.9),
        (("slai:watermark", "fcfs:protection", "cost_aware:protection", "ageing:protection"), 0.9),
        (("mc_sf:protection", "mc_benchmark:protection", "mc_longest:protection"), 0.9),
        (("alpha_greedy:alpha", "alpha_beta:alpha"), 0.9),
    )
    for name in names
]


@pytest.mark.parametrize("policy", MARGINS)
@pytest.mark.parametrize("block_size", [1, 3])
def test_margins_do_not_apply_to_an_empty_worker(policy: str, block_size: int) -> None:
    """Requests that fill the memory are served, one by one, regardless of margins."""
    predicted = {"predicted_output_len": OUTPUTS, "predicted_low": OUTPUTS, "predicted_high": OUTPUTS}
    columns = {**predicted, "ttft_slo": np.full(4, 9.0), "tbt_slo": np.full(4, 2.0)}
    prompts = 18 - np.array(OUTPUTS)
    system = System(20, UNIT, stall_limit=9, block_size=block_size)
    result = simulate(system, requests(prompts, OUTPUTS, **columns), policy)
    assert result.completed
    assert not result.requests["num_evictions"].any()


class Refuses(Policy):
    """Admits no request, and does not name the one that it would admit next."""

    info = PolicyInfo(name="refuses", summary="")

    def schedule(self, view: SystemView) -> Decision:
        return Decision()


def test_without_a_named_request_the_message_describes_waiting_ones() -> None:
    error = error_of(System(20, UNIT, stall_limit=9), requests(PROMPTS, OUTPUTS), Refuses())
    assert (
        "(4 waiting, kv_capacity 20). Request 0, the first in the queue, has a prompt of 9 tokens, and 1, "
        "the shortest, has a prompt of 6 tokens. Try less"
    ) in str(error)
    error = error_of(System(20, UNIT, stall_limit=9), requests([6, 9], [2, 2]), Refuses())
    assert "Request 0, the first in the queue, has a prompt of 6 tokens. Try less" in str(error)


# ---------------------------------------------------------------- the result so far


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_livelock_keeps_the_completed_requests(compiled: bool, workers: int) -> None:
    table = requests([2, 2, 18, 18], [3, 2, 1, 1], [0, 0.5, 1, 1])
    one = System(20, UNIT, stall_limit=9)
    system = one if workers == 1 else one.replicate(workers)
    error = error_of(system, table, "alpha_greedy:alpha=0.2,strict=True", log=True, compiled=compiled)
    result = error.result
    assert isinstance(result, SimulationResult)
    assert not result.completed
    assert (result.requests["status"] == FINISHED).tolist() == [True, True, False, False]
    alone = simulate(
        system, table.select(slice(0, 2)), "alpha_greedy:alpha=0.2,strict=True", compiled=compiled
    )
    assert result.requests["finish_time"][:2].tolist() == alone.requests["finish_time"].tolist()
    assert compute_metrics(result)["finished"] == 2
    assert result.log is not None
    assert result.log["num_finished"].sum() == 2


class TooMuch(Policy):
    """Serves request 0, then admits a request that does not exist."""

    info = PolicyInfo(name="too_much", summary="")

    def schedule(self, view: SystemView) -> Decision:
        return Decision(admit=[0]) if view.iteration == 0 else Decision(admit=[0] if view.num_active else [7])


def test_an_invalid_decision_keeps_the_completed_requests() -> None:
    with pytest.raises(InvalidDecisionError) as caught:
        simulate(System(20, UNIT), requests([2, 2], [1, 2]), TooMuch())
    result = caught.value.result
    assert result is not None
    assert result.requests["finish_time"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    assert not result.completed


@pytest.mark.parametrize("kind", [RunError, LivelockError, InvalidDecisionError])
def test_errors_without_a_result_can_be_pickled(kind: type[RunError]) -> None:
    error = pickle.loads(pickle.dumps(kind("text")))
    assert (type(error), str(error), error.result) == (kind, "text", None)


def test_errors_with_a_result_can_be_pickled() -> None:
    table = requests([2, 18], [3, 1])
    error = error_of(System(20, UNIT, stall_limit=9), table, "alpha_greedy:alpha=0.2,strict=True")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is LivelockError
    assert str(copy) == str(error)
    assert copy.result.requests.tobytes() == error.result.requests.tobytes()  # type: ignore[union-attr]
    assert copy.result.policy.hyperparameters() == {"alpha": 0.2, "strict": True}


def test_a_result_that_cannot_be_pickled_does_not_hide_the_error() -> None:
    class Local(Refuses):
        pass

    error = error_of(System(20, UNIT, stall_limit=9), requests([2], [3]), Local())
    assert error.result is not None
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.result) == (str(error), None)


# ---------------------------------------------------------------- bounded work


def test_a_policy_that_never_admits_is_found_early_even_with_long_requests() -> None:
    """The limit by decisions alone would be 810,000."""
    table = requests([100] * 50, [36_000] * 50, predicted_output_len=[35_901] * 50)
    error = error_of(System(40_000, UNIT), table, "mc_sf:protection=0.1,strict=True")
    allowed = LEAST_EFFORT // (1_000 + 36_100)
    assert f"no request for {allowed + 1} decisions" in str(error)


def test_a_cycle_of_evictions_in_a_long_queue_is_found_within_seconds() -> None:
    """Of 20,000 requests, a hundred from all over the queue are admitted and evicted repeatedly."""
    n, rng = 20_000, np.random.default_rng(0)
    output = np.full(n, 3_000)
    output[0] = 30_000
    predicted = rng.integers(1, 200, n)
    table = requests(rng.integers(100, 300, n), output, predicted_output_len=predicted)
    started = time.process_time()
    error = error_of(System(40_000, UNIT), table, "mc_sf")
    assert time.process_time() - started < 60  # a generous bound: it takes a few
    assert error.result is not None
    worker = error.result.worker[0]
    assert worker["total_evicted"] <= 11 * n
    assert worker["decisions"] < 50_000
    again = error_of(System(40_000, UNIT), table, "mc_sf")
    assert str(again) == str(error)


def test_short_requests_keep_the_limit_by_decisions() -> None:
    error = error_of(System(20, UNIT), requests(PROMPTS, OUTPUTS), "alpha_greedy:alpha=0.8,strict=True")
    assert f"no request for {10_000 + 20 * 14} decisions" in str(error)


def test_a_given_stall_limit_is_the_only_one() -> None:
    table = requests([100] * 5, [36_000] * 5, predicted_output_len=[35_901] * 5)
    error = error_of(System(40_000, UNIT, stall_limit=60_000), table, "mc_sf:protection=0.1,strict=True")
    assert "no request for 60000 decisions" in str(error)


@policy_kernel
def late_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit the head of the queue from a given iteration on."""
    if view.worker.num_active == 0 and view.worker.iteration >= memory.params[0]:
        admit(decision, first_waiting(view))


class Late(CompiledPolicy):
    info = PolicyInfo(name="late", summary="")
    kernel = late_kernel

    def __init__(self, *, iteration: int = 0) -> None:
        self.iteration = iteration

    def params(self, system: SystemInfo) -> Any:
        return np.array([float(self.iteration)])


def test_waiting_for_an_arrival_or_a_horizon_is_bounded_by_decisions_only() -> None:
    """An empty worker may wait 100,000 rounds for a future arrival, but not for nothing."""
    table = requests([100, 36_000], [36_000, 100])
    assert not simulate(System(40_000, UNIT, horizon=100_000), table, Late(iteration=200_000)).completed
    error = error_of(System(40_000, UNIT), table, Late(iteration=100_000))
    assert "no request for 269" in str(error)
    later = requests([100, 36_000], [36_000, 100], [0, 150_000.0])
    assert simulate(System(40_000, UNIT), later, Late(iteration=100_000)).completed


def test_progress_resets_the_count() -> None:
    """Each request waits 20,000 rounds for its turn: 26,954 in a row would be too many."""

    class Rounds(Late):
        pass

    table = requests([100, 36_000, 50], [36_000, 100, 3], [0, 0, 60_000.0])
    result = simulate(System(40_000, UNIT), table, Rounds(iteration=20_000))
    assert result.completed
    assert result.worker[0]["total_idle"] >= 20_000


def test_a_decode_worker_waits_for_its_prefill_worker() -> None:
    """The prefill worker takes 30,000 rounds for a long prompt; the decode worker refuses meanwhile."""

    class Parts(Policy):
        info = PolicyInfo(name="parts", summary="", chunks_prefill=True)

        def schedule(self, view: SystemView) -> Decision:
            if view.role == "decode":
                enough = view.num_waiting == 2 or view.num_active > 0
                return Decision(admit=view.waiting.request_id.tolist() if enough else ())
            ids = [*view.active.request_id.tolist(), *view.waiting.request_id.tolist()]
            return Decision(admit=view.waiting.request_id.tolist(), tokens=dict.fromkeys(ids, 1))

    table = requests([1, 30_000], [100, 100])
    workers = [Worker(40_000, UNIT, role="prefill"), Worker(40_000, UNIT, role="decode")]
    result = simulate(System.cluster(workers), table, Parts())
    assert result.completed
    assert result.worker[1]["total_idle"] > 29_000


class Polls(Policy):
    """Waits in steps of a millisecond until a given time, then serves."""

    info = PolicyInfo(name="polls", summary="")

    def schedule(self, view: SystemView) -> Decision:
        if view.clock < 25.0:
            return Decision(wait_until=view.clock + 1e-3)
        return Decision(admit=view.waiting.request_id[: 1 - view.num_active].tolist())


def test_waiting_does_not_count_as_work() -> None:
    """With requests of any length, an empty worker may wait as often as ``stall_limit`` allows."""
    assert simulate(System(100_000, UNIT), requests([60_000], [2]), Polls()).completed
