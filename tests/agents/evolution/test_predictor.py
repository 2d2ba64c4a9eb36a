"""A predictor fitted before evolution, and the one agent of predictor and weights."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.training.evolution_runs import TINY
from kvgym.agents import train
from kvgym.agents.evolution.predictor import Prediction, fit_predictor, written
from kvgym.agents.evolution.services import Services
from kvgym.agents.library import load_agent, load_model
from kvgym.agents.runs.config import load_training, make_training
from kvgym.errors import ConfigError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate

KINDS = [
    {"prompt": {"kind": "uniform", "low": low, "high": low + 20},
     "output": {"kind": "uniform", "low": length, "high": length + 2}, "features": [feature]}
    for low, length, feature in ((10, 60, 0.0), (60, 4, -3.0), (60, 60, 3.0))
]  # fmt: skip
"""Short prompts have long outputs; outputs after long prompts depend on the feature column."""

FAMILY = {
    "kv_capacity": 300,
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 30.0},
        "lengths": {"kind": "mixture", "kinds": KINDS},
        "num_requests": 40,
        "predictions": {"kind": "none"},
    },
}
SERVICES = {"families": [FAMILY]}
HOW = {"services": 8, "hidden": [8], "passes": 400}
RANKED = {
    **TINY, "policy": "ranked", "fixed": {}, "weights": ["prompt", "footprint"], "generations": 2,
    "services": SERVICES, "services_per_generation": 1, "reference": ["fcfs", "ranked"], "predictor": HOW,
}  # fmt: skip


def fitted(services, policy="ranked"):
    return fit_predictor(
        Services.model_validate(services), policy, {}, "e2e_latency_mean", Prediction.model_validate(HOW), 0
    )


def test_it_learns_from_prompts_and_columns_and_answers_as_its_agent():
    predictor, note = fitted(SERVICES)
    assert "of the variance of log output lengths; e2e_latency_mean of ranked with it: +" in note
    service = Services.model_validate(SERVICES).draw(123)
    predicted = predictor.predicted(service)
    found, true = predicted.table.predicted_output_len, service.table.output_len
    assert np.abs(np.log2(found / true)).mean() < 0.35
    assert service.table.predicted_output_len is None
    agent = predictor.agent("ranked", {"prompt": 0.4}, {})
    assert agent.header.env_arguments["scheduler"] == "ranked:prompt=0.4"

    # The agent of both schedules as the policy does with the predictions.
    from kvgym.envs.agents import AgentPolicy

    acting = AgentPolicy(agent, **agent.header.env_arguments)
    one = simulate(service.system, service.table, acting, seed=1)
    other = simulate(service.system, predicted.table, make_policy("ranked:prompt=0.4"), seed=1)
    np.testing.assert_array_equal(one.requests["finish_time"], other.requests["finish_time"])


@pytest.mark.parametrize(
    ("family", "note"),
    [
        (
            {**FAMILY, "workload": {**FAMILY["workload"], "predictions": {"kind": "exact"}}},
            "predicted lengths already",
        ),
        ({**FAMILY, "workers": 2}, "services of one worker"),
    ],
)
def test_where_there_is_none(family, note):
    predictor, said = fitted({"families": [family]})
    assert predictor is None
    assert note in said


def test_a_policy_that_needs_predictions_gets_them():
    predictor, note = fitted(SERVICES, "mc_sf")
    assert predictor is not None
    assert note.endswith("; mc_sf needs it")


def test_a_run_has_one_agent_of_both(tmp_path):
    result = train(make_training(RANKED), tmp_path / "run")
    assert result.report()[-1] == f"agent: {tmp_path / 'run' / 'best.npz'}"
    assert result.report()[0].startswith("note: the predictor explains")
    model = load_model(tmp_path / "run")
    weights = load_model(tmp_path / "run" / "best.json")
    assert model.header.env_arguments["scheduler"] == written("ranked", weights.weights)
    assert load_agent(tmp_path / "run").config.information == ("features",)
    assert model.metadata["training"]["predictor"]["services"] == 8


def test_written_hyperparameters_are_read_back_exactly():
    weights = {
        "prompt": 0.1 + 0.2,
        "footprint": -1e-7,
        "hidden": 1,
        "network": tuple(np.linspace(-1, 1, 14).tolist()),
    }
    policy = make_policy(written("ranked", weights))
    assert policy.values == make_policy("ranked", **weights).values
    assert policy.network == weights["network"]
    assert written("ranked", {}) == "ranked"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"imitate": {}, "fixed": {"hidden": 2}, "weights": ["network"]}, "without imitate"),
        ({"policy": "fcfs", "weights": {"protection": {"start": 0.5, "step": 0.2, "low": 0.0, "high": 0.9}}},
         "'fcfs' cannot take the answers"),
        ({"predictor": {"services": 2}}, "predictor.services"),
    ],
)  # fmt: skip
def test_wrong_configurations(change, message):
    with pytest.raises(ConfigError, match=message):
        make_training({**RANKED, **change})


def test_your_own_service_has_a_predictor():
    assert load_training("service", scenario="hidden-kinds").predictor == Prediction()
