"""Demonstrations: the schedule is the policy's own, and an environment with the same actions agrees bit for bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import kvgym
from kvgym.envs.agents import NotExpressibleError
from kvgym.envs.demonstrations.record import Demonstrations, demonstrate
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, InvalidDecisionError, LivelockError
from kvgym.kernels import PolicyDecision, PolicyMemory, PolicyView, admit, evict, first_waiting, policy_kernel
from kvgym.metrics.catalogue import metric_names
from kvgym.policies.policy import CompiledPolicy, PolicyInfo

AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}
SHORT = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 60}}
TIGHT = {
    "scenario": "a100-llama2-70b",
    "must_admit": False,
    "num_requests": 60,
    "kv_capacity": 300,
    "rate": 20.0,
    "batch_time": AFFINE,
    "workload": SHORT,
    "horizon": 1e6,
    "queue_window": 60,
    "active_window": 60,
}
NOISY = {**TIGHT, "workload": {**SHORT, "predictions": {"kind": "noisy", "epsilon": 0.5}}}
RECORDS = ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap")

POLICIES = {  # name -> arguments under which its decisions can be expressed
    "fcfs": {},
    "mc_sf": {"queue_order": "predicted"},
    "mc_benchmark": {},
    "alpha_greedy:alpha=0.1": {"overflow": "clear", "system": {"progress_on_evict": "kept"}},
    "work_conserving_fcfs:chunk=5000": {"system": {"progress_on_evict": "recompute"}},
}


def replay(found: Demonstrations, number: int, seed: int, arguments: dict) -> tuple[ServingEnv, int]:
    """Replay the recorded steps of an episode in an environment, comparing everything."""
    env = ServingEnv(**arguments)
    starts = np.flatnonzero(found.episode_starts)
    stop = starts[number + 1] if number + 1 < len(starts) else len(found)
    observation, info = env.reset(options={"workload_seed": seed})
    for t in range(starts[number], stop):
        assert observation.tobytes() == found.observations[t].tobytes()
        assert (env.action_masks() == found.masks[t]).all()
        observation, reward, terminated, truncated, info = env.step(found.actions[t])
        assert info["ignored"] == 0
        assert reward == found.rewards[t]
        assert (terminated or truncated) == (t == stop - 1 and number < len(found.metrics))
        if terminated or truncated:
            assert info["metrics"].tobytes() == found.metrics[number].tobytes()
    return env, stop


def check(policy: str, arguments: dict, steps: int = 1500, *, evicts: bool = False) -> Demonstrations:
    found = demonstrate(policy, steps=steps, seed=3, **arguments)
    assert len(found) == steps
    assert found.episode_starts.sum() == len(found.workload_seeds)
    config = EnvConfig.of(**arguments)
    for number, seed in enumerate(found.workload_seeds.tolist()):
        env, _ = replay(found, number, seed, arguments)
        if number == len(found.metrics):
            break  # incomplete
        table = at_load(env.episodes.workload.sample(seed), config.load, seed)
        run = kvgym.simulate(env.episodes.system, table, policy, seed=seed)
        for name in RECORDS:
            np.testing.assert_array_equal(env.result().requests[name], run.requests[name])
        expected = np.array(list(kvgym.compute_metrics(run).values()))
        assert found.metrics[number].tobytes() == expected.tobytes()
        assert found.completed[number] == run.completed
    assert len(found.metrics) > 0
    assert (found.metrics[:, metric_names().index("evictions")].sum() > 0) == evicts
    return found


@pytest.mark.parametrize("epochs", ["iteration", "decision"])
@pytest.mark.parametrize("action", ["admit_evict", "admit_count", "flags"])
@pytest.mark.parametrize("policy", POLICIES)
def test_schedule_and_metrics_are_those_of_the_policy(policy, action, epochs):
    arguments = {**TIGHT, **POLICIES[policy], "action": action, "epochs": epochs}
    check(policy, arguments, evicts=not policy.startswith("mc_"))


@pytest.mark.parametrize("action", ["admit_evict", "flags"])
def test_clearing_at_any_time_is_expressible_with_evictions(action):
    arguments = {**NOISY, "action": action, "queue_order": "predicted"}
    check("mc_sf:protection=0.1,overrun=extend", arguments, evicts=True)


@pytest.mark.parametrize("requeue", ["arrival", "front", "back"])
def test_order_of_evictions_is_kept_where_it_matters(requeue):
    check("fcfs", {**TIGHT, "action": "admit_evict", "system": {"requeue": requeue}}, evicts=True)


def test_a_short_window_in_queue_order():
    """With one choice at a time, a window in queue order always has the next request."""
    check("fcfs", {**TIGHT, "action": "admit_evict", "queue_window": 1}, evicts=True)


def test_horizon_load_and_calibrated_hardware():
    found = check("fcfs", {"num_requests": 60, "queue_window": 60, "load": [0.5, 3.0], "horizon": 25.0})
    assert not found.completed.all()


def test_discrete_and_binary_actions_have_their_shapes():
    count = demonstrate("fcfs", steps=50, **TIGHT)
    assert count.actions.shape == (50,)
    assert count.masks.shape == (50, 61)
    flags = demonstrate("fcfs", steps=50, action="flags", **TIGHT)
    assert flags.actions.shape == (50, 120)
    assert flags.masks.shape == (50, 240)
    assert [len(getattr(count, field.name)) for field in fields(count)][:5] == [50] * 5


def test_episodes_are_those_of_an_environment_with_the_same_seed():
    found = demonstrate("fcfs", steps=1500, seed=11, **TIGHT)
    env = ServingEnv(**TIGHT)
    for number, start in enumerate(np.flatnonzero(found.episode_starts)):
        observation, _ = env.reset(seed=11 if number == 0 else None)
        assert observation.tobytes() == found.observations[start].tobytes()


def test_same_seed_same_bits_and_another_seed_another_run(equal):
    def of(seed, **options):
        found = demonstrate("mc_benchmark", steps=700, seed=seed, **{**TIGHT, **options})
        return [getattr(found, field.name) for field in fields(found)]

    assert equal(of(1), of(1))
    assert not equal(of(1), of(2))


@pytest.mark.parametrize("action", ["admit_evict", "admit_count", "flags"])
def test_plain_python_is_equal(action, equal):
    options = {"scenario": "mc-sf-model-2", "num_requests": 8, "queue_window": 8, "horizon": 300.0}
    one, other = (
        demonstrate("mc_benchmark", steps=60, seed=2, compiled=c, action=action, **options)
        for c in (True, False)
    )
    assert all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("mc_sf", {}, "queue_order.*'predicted'"),
        ("fcfs", {"queue_window": 1}, "longer queue_window"),
        ("alpha_greedy:alpha=0.3", {}, "overflow='clear'"),
        ("fcfs", {"overflow": "clear"}, "overflow='lifo'"),
        ("alpha_greedy:alpha=0.3", {"action": "flags", "active_window": 2}, "active_window longer"),
        ("sarathi:token_budget=64", {}, "part of a prompt"),
    ],
)
def test_errors_of_inexpressible_decisions_have_a_remedy(policy, options, message):
    with pytest.raises(NotExpressibleError, match=message) as error:
        demonstrate(policy, steps=3000, **{**TIGHT, **options})
    assert f"policy {policy.split(':')[0]!r}, iteration " in str(error.value)


def test_clearing_requests_that_fit_needs_eviction_actions():
    options = {**NOISY, "queue_order": "predicted", "overflow": "clear"}
    with pytest.raises(NotExpressibleError, match=r"does not do; action='admit_evict'"):
        demonstrate("mc_sf:protection=0.1,overrun=ignore", steps=3000, **options)


def test_waiting_is_an_error():
    options = {"workload": "wait-low", "kv_capacity": 5000, "information": ["class", "class_rates"]}
    with pytest.raises(NotExpressibleError, match="waits"):
        demonstrate("wait:thresholds=4/4", steps=500, **{**TIGHT, "rate": None, **options})


def test_policies_that_make_no_progress():
    options = {**TIGHT, "overflow": "clear", "stall_limit": 20}
    with pytest.raises(LivelockError, match="larger protection margin"):
        demonstrate("alpha_greedy:alpha=0.001", steps=100_000, **options)


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="needs predicted_length"):
        demonstrate("mc_benchmark", steps=10, information=[], **TIGHT)
    with pytest.raises(NotExpressibleError, match="knobs"):
        demonstrate("fcfs", steps=10, action="knobs")
    with pytest.raises(ConfigError, match="steps = 0"):
        demonstrate("fcfs", steps=0)
    with pytest.raises(ConfigError, match="flat"):
        demonstrate("fcfs", steps=10, observation="dict")

    class Plain(kvgym.Policy):
        info = kvgym.PolicyInfo(name="plain", summary="")

        def schedule(self, view):
            return kvgym.Decision()

    with pytest.raises(ConfigError, match="not compiled"):
        demonstrate(Plain(), steps=10)
    with pytest.raises(ConfigError, match="before the episode's horizon"):
        demonstrate("fcfs", steps=10, **{**TIGHT, "horizon": 1e-9})


@policy_kernel
def evicts_missing_request(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit one, then evict a slot far beyond the tables."""
    if view.worker.num_active == 0:
        admit(decision, first_waiting(view))
    else:
        evict(decision, 1 << 30)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("action", ["admit_count", "tokens"])
def test_invalid_decisions(action, compiled):
    class Wrong(CompiledPolicy):
        info = PolicyInfo(name="wrong", summary="")
        kernel = evicts_missing_request

    with pytest.raises(InvalidDecisionError, match=r"'wrong'.*evicts slot 1073741824"):
        demonstrate(Wrong(), steps=10, action=action, compiled=compiled, **TIGHT)
