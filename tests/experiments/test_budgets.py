"""Token budgets: which policies have one, the choice of the best, notes on rankings."""

import math
from collections.abc import Mapping, Sequence

import pytest

from kvgym.batch_time import UnitBatchTime, load_hardware
from kvgym.errors import ConfigError
from kvgym.experiments.budget_comparison import compare_budgets
from kvgym.experiments.budgets import (
    ADVICE,
    add_best_budgets,
    budget_note,
    ranking_notes,
    training_seeds,
    with_budgets,
)
from kvgym.experiments.comparison import label_of
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.simulator.system import System
from kvgym.utils.hyperparameters import all_hyperparameters, policy_defaults
from kvgym.workloads.table import RequestTable

TABLE = RequestTable([0], [5], [5])
H100 = System(kv_capacity=1000, batch_time=load_hardware("roofline:model=llama3-8b,gpu=h100").batch_time())
PLAIN = System(kv_capacity=1000, batch_time=UnitBatchTime())


def made(spec: str, system: System = H100) -> Policy:
    return resolve_policy(make_policy(spec), system, TABLE)


def budgets(policies: Sequence[Policy]) -> list[int]:
    return [all_hyperparameters(policy)[policy.info.budget] for policy in policies]


def test_budgets_are_hyperparameters() -> None:
    found = {name: cls.info.budget for name in POLICIES if (cls := POLICIES[name]).info.budget}
    assert found == {
        "sarathi": "token_budget", "slai": "token_budget", "vllm": "max_batch_tokens",
        "vllm_v1": "max_num_batched_tokens",
    }  # fmt: skip
    assert all(name in policy_defaults(POLICIES[policy]) for policy, name in found.items())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sarathi", [1024, 2048, 4096, 8192]),
        ("sarathi:order=spf", [1024, 2048, 4096, 8192]),
        ("sarathi:token_budget=700", []),
        ("vllm_v1", [512, 1024, 2048, 4096]),  # 8,192 is the engine's own on an H100
        ("vllm_v1:max_num_seqs=2000", [2048, 4096]),  # fewer tokens than sequences are refused
        ("fcfs", []),
    ],
)
def test_other_budgets(spec: str, expected: list[int]) -> None:
    assert budgets(with_budgets(made(spec))) == expected


def test_the_best_follows_the_policy_as_given() -> None:
    policies = [made(s) for s in ("sarathi", "fcfs", "vllm_v1", "vllm", "vllm:max_batch_tokens=512")]

    def choose(policy: Policy, others: Sequence[Policy]) -> Policy:
        return {"sarathi": others[1], "vllm_v1": policy, "vllm": others[0]}[policy.info.name]

    found, best = add_best_budgets(policies, choose)
    assert [label_of(policy) for policy in found] == [
        "sarathi", "sarathi:token_budget=2048", "fcfs", "vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024",
        "vllm", "vllm:max_batch_tokens=512",
    ]  # fmt: skip
    assert best == {0: 1, 3: 3, 4: 5}  # the last one was given already


def test_notes_on_budgets() -> None:
    specs = ("fcfs", "sarathi", "vllm_v1", "vllm_v1:max_num_batched_tokens=512")
    assert budget_note([made(s) for s in specs], H100, ADVICE) == [
        "Tokens per iteration at most: sarathi 512, vllm_v1 8,192 (its engine's default on H100 80GB), vllm_v1 512. "
        "Rankings can depend on them: --tune-budgets also runs the best of a few."
    ]
    (text,) = budget_note([made("vllm_v1", PLAIN)], PLAIN)
    assert text.endswith("vllm_v1 2,048 (its engine's default on hardware without a known GPU).")
    assert budget_note([made("fcfs")], H100) == []


@pytest.mark.parametrize(
    ("values", "lower", "text"),
    [
        (
            {"a": 3.0, "a:b=1": 1.0, "c": 2.0},
            True,
            "depends on the token budgets: c, a as given; a, c with the best",
        ),
        (
            {"a": 3.0, "a:b=1": 4.0, "c": 2.0},
            False,
            "is the same with the budgets as given and with the best ones",
        ),
        ({"a": math.nan, "a:b=1": 1.0, "c": 2.0}, True, "c, a as given; a, c with the best ones"),
    ],
)
def test_notes_on_rankings(values: Mapping[str, float], lower: bool, text: str) -> None:
    chosen, ranking = ranking_notes(["a", "a:b=1", "c"], {0: 1}, values, lower, "x", range(1000, 1003), False)
    assert chosen == "Best token budgets of 512 to 8,192, chosen by x on seeds 1000–1002: a:b=1."
    assert text in ranking


def test_other_seeds() -> None:
    assert list(training_seeds(2, replays=False)) == [1000, 1001]
    assert list(training_seeds(9, replays=False)) == [1000, 1001, 1002]
    assert list(training_seeds(9, replays=True)) == [1000]
    text = ranking_notes(["a"], {0: 0}, {"a": 1.0}, True, "x", range(1000, 1001), True)[0]
    assert text.endswith("on the same requests, as a trace has no others: a as given.")
    assert "no policy has a token budget" in ranking_notes(["a"], {}, {}, True, "x", range(1), False)[0]


def test_a_comparison_with_the_best_budgets() -> None:
    # Prompts of 1,600 tokens at most, a rate that needs large batches: budgets matter for the time between tokens.
    chosen = load_scenario("vllm-v1").override(workload={"preset": "stab-1-1", "num_requests": 60, "rate": 3})
    found = compare_budgets(chosen, ["fcfs", "vllm_v1"], seeds=1, metric="tbt_p99")
    assert found.policies == ("fcfs", "vllm_v1", "vllm_v1:max_num_batched_tokens=512")
    values = {label: found.values(label, "tbt_p99")[0] for label in found.policies}
    assert values["vllm_v1:max_num_batched_tokens=512"] < values["vllm_v1"]
    assert "chosen by tbt_p99 on seed 1000: vllm_v1:max_num_batched_tokens=512." in found.notes[-2]
    assert "The ranking by tbt_p99" in found.notes[-1]
    with pytest.raises(ConfigError, match="neither more nor less of kv_utilisation is better"):
        compare_budgets(chosen, ["fcfs"], metric="kv_utilisation")
