"""Imitation of a ranking by true lengths: lessons, results, and as the start of a search."""

import csv
import math

import numpy as np
import pytest

from helpers.training.evolution_runs import SERVICES
from kvgym.agents import train
from kvgym.agents.evolution.fitting import outputs
from kvgym.agents.evolution.imitation import Imitation, _lessons, _moments, imitate, network_of
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.objective import measure
from kvgym.agents.evolution.services import Services
from kvgym.baselines.ranked.layout import SCORES
from kvgym.baselines.ranked.lengths import output_to_come
from kvgym.baselines.ranked.scoring import base_of
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import prepare_run, simulate
from kvgym.simulator.tables import WAITING

UNITS, FEATURES = 3, 12
HOW = Imitation(services=4, every=5, iterations=50)

LONG_ANSWERS_TO_SHORT_QUESTIONS = {
    "families": [
        {
            "kv_capacity": 1500,
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 1.0},
                "lengths": {"kind": "pairs", "prompt_len": [20, 100], "output_len": [200, 10]},
                "predictions": {"kind": "none"},
                "num_requests": 120,
            },
            "load": 1.5,
        }
    ]
}
"""What no predictor says, but the prompt: requests with a long prompt end soon."""


def services(**workload):
    [family] = SERVICES["families"]
    return Services(families=[{**family, "workload": {**family["workload"], **workload}}])


def network(units=UNITS):
    return POLICIES["ranked"].weights(hidden=units)[-1]


def crowded(predictions, hyperparameters):
    """Return a run of ``ranked`` that is paused where some requests wait and some are active, and its policy."""
    [family] = SERVICES["families"]
    tight = {
        **family,
        "kv_capacity": 400,
        "load": 3.0,
        "workload": {**family["workload"], "predictions": predictions},
    }
    service = Services(families=[tight]).draw(3)
    policy = make_policy("ranked", **hyperparameters)
    simulation, _ = prepare_run(service.system, service.table, policy, None, 3)
    while simulation.view.num_waiting < 5 or simulation.view.num_active < 3:
        assert not simulation.run(budget=3)
    return simulation, policy


@pytest.mark.parametrize("predictions", [{"kind": "noisy", "epsilon": 0.5}, {"kind": "none"}])
def test_lessons_are_of_the_score(predictions):
    """What the network sees is what its numbers act on; what it should add is the score's change with true lengths."""
    numbers = np.random.default_rng(0).normal(size=UNITS * (FEATURES + 2))
    simulation, policy = crowded(predictions, {"hidden": UNITS, "footprint": 0.7})
    view, found = simulation.view.rule_view(0), 0
    twin, reckoned = uncompiled(base_of), uncompiled(output_to_come)
    memory = policy.arguments()
    with_network = memory._replace(params=np.concatenate([memory.params[: -len(numbers)], numbers]))
    waiting = [i for i in range(len(simulation.requests)) if simulation.requests["status"][i] == WAITING]
    rows = [(view.requests[i], i, True) for i in waiting]
    rows += [(view.active[k], int(view.active[k].request_id), False) for k in range(view.worker.num_active)]
    for row, i, waits in rows:
        length = int(simulation.table.output_len[i])
        features, correction = policy.lesson(view, row, i, length)
        output = reckoned(view, memory, row, i)
        plain = twin(view, memory, row, i, output, waits)
        added = twin(view, with_network, row, i, output, waits) - plain
        assert added == pytest.approx(outputs(numbers, np.array([features]))[0])
        left, mean = length - int(row.num_output_tokens), features[0] - math.log(output)
        assert plain + correction == pytest.approx(twin(view, memory, row, i, float(left), waits))
        held, to_prefill = int(row.num_kv_tokens), int(row.num_prefill_left)
        work = math.log(left + 0.1 * to_prefill) - math.log(output + 0.1 * to_prefill)
        volume = [math.log(held + to_prefill + x / 2) for x in (left, output)]
        assert correction == pytest.approx(work + 0.7 * (volume[0] - volume[1]))
        assert features[2] == pytest.approx(volume[1] + mean)
        assert features[5] == waits
        found += 1
    assert found == simulation.view.num_waiting + simulation.view.num_active


def test_pauses_change_nothing():
    service = services().draw(3)
    policy = make_policy("ranked", hidden=2)
    simulation, _ = prepare_run(service.system, service.table, policy, None, 3)
    rng, seen = np.random.default_rng(0), set()
    while not simulation.run(budget=7):
        before = policy.arguments().reals[: SCORES + 1].copy()
        seen |= {len(_lessons(simulation, 0, policy, Imitation(requests=6), rng))}
        assert (policy.arguments().reals[: SCORES + 1] == before).all()
    whole = simulate(service.system, service.table, "ranked:hidden=2", seed=3)
    assert (simulation.requests["finish_time"] == whole.requests["finish_time"]).all()
    assert max(seen) == 6


def test_every_worker_of_a_cluster_gives_lessons():
    [family] = SERVICES["families"]
    pair = Services(families=[{**family, "workers": 2}])
    moments = list(_moments(pair.draw(3), make_policy("ranked", hidden=2), HOW, np.random.default_rng(0)))
    alone = list(_moments(services().draw(3), make_policy("ranked", hidden=2), HOW, np.random.default_rng(0)))
    assert len(moments) > 5
    assert len(alone) > 5
    assert all(len(moment) > 1 for moment in moments)


def test_observable_lengths_are_learned():
    """Without predictions the prompt determines the length: the network observes it, and the ranking gets better.

    On average over twelve services that it was not fitted to: they are short, and the gain differs.
    """
    known = Services(**LONG_ANSWERS_TO_SHORT_QUESTIONS)
    how = Imitation(services=8, every=20, requests=12)
    rule = {"growth": 0.0}  # no room by lengths that are reckoned without the network
    numbers, report = imitate(known, "ranked", {**rule, "hidden": UNITS}, network(), how, 0)
    assert report.unexplained < 0.3
    assert report.unexplained_validation < 0.5
    assert (report.services, report.lessons > report.moments > 100) == (8, True)
    assert "of 8 services; " in str(report)
    assert "not fitted to" in str(report)
    logs = []
    for seed in range(100, 112):
        without, with_network = (
            measure(known.draw(seed), "ranked", own, ["e2e_latency_mean"]).metrics["e2e_latency_mean"]
            for own in (rule, {**rule, "hidden": UNITS, "network": numbers})
        )
        logs.append(math.log(with_network / without))
    assert np.mean(logs) < math.log(0.97)


def test_equal_seeds_give_equal_bits():
    found = [imitate(services(), "ranked", {"hidden": 2}, network(2), HOW, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert len(found[0][0]) == 2 * (FEATURES + 2)


def test_the_start_of_a_search(tiny, tmp_path):
    """Alone (no generations), and as the centre of a search."""
    common = {
        "policy": "ranked", "fixed": {"hidden": 2}, "weights": ["footprint", "network"],
        "reference": ["fcfs"], "imitate": HOW.model_dump(), "held_out": {"services": 2, "interval": 1},
    }  # fmt: skip
    config = tiny(generations=0, **common)
    numbers, report = imitate(
        config.services, "ranked", {"hidden": 2, "footprint": 1.5}, network(2), HOW, config.seed
    )
    result = train(config, tmp_path / "alone")
    assert f"note: {report}" in result.report()
    model = EvolvedModel.load(tmp_path / "alone/best.json")
    assert model.weights == {"footprint": 1.5, "network": numbers}
    assert model.metadata["training"]["imitate"] == HOW.model_dump()
    [row] = csv.DictReader((tmp_path / "alone/curve.csv").read_text().splitlines())
    assert int(row["episodes"]) == 4 + 2 * 2  # imitation; a reference and the policy on 2 services
    result = train(tiny(generations=1, **common), tmp_path / "search")
    assert result.curve[0]["improvement_e2e_latency_mean"] == pytest.approx(
        float(row["improvement_e2e_latency_mean"])
    )


def test_mistakes(tiny, tmp_path):
    ranked = {"policy": "ranked", "fixed": {"hidden": 2}, "weights": {}, "imitate": {"services": 2}}
    for changes, message in (
        ({"policy": "mc_sf", "fixed": {}, "weights": {"protection": {"step": 0.1, "low": 0, "high": 0.5}}},
         "policy 'mc_sf' has no network that could imitate; policies that have: ranked"),
        ({"fixed": {}}, "'network', the network of policy 'ranked', is not among .*hidden: 4"),
        ({"weights": ["footprint"]}, "is not among the weights that are learned .footprint.; give it units"),
        ({"weights": {"network": {"start": [0.1] * 28}}}, "has numbers to start from already"),
        ({"imitate": {"services": 1}}, "imitate.services: .*greater than or equal to 2"),
        ({"imitate": {"epochs": 1}}, "imitate.epochs: .*valid there: services, every, requests"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            tiny(**{**ranked, **changes})
    EvolvedModel("ranked", {"hidden": 2}, {"network": (0.1,) * 28}).save(tmp_path / "start.json")
    config = tiny(**ranked, start=str(tmp_path / "start.json"))
    with pytest.raises(ConfigError, match="leave out these, or imitate"):
        train(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="more load, or moments more often than every = 1000000"):
        imitate(services(), "ranked", {"hidden": 2}, network(2), Imitation(services=2, every=1_000_000), 0)
    [weight] = [w for w in POLICIES["ranked"].weights(hidden=2) if w.name == "network"]
    assert network_of("ranked", [weight], {"network": (0.0,) * 28}) is weight
