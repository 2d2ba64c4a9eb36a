"""Fixed knobs: an episode of one step equals that of an agent policy, and the search finds the best ones."""

import numpy as np
import pytest
from compare_agents.knobs import (
    Choice,
    KnobPlayer,
    best_knobs,
    environment_arguments,
    grid_of,
    orders_for,
)
from compare_agents.tasks import SLO_CLASSES

from helpers.amount import some
from helpers.comparing_runs import small
from kvgym.envs.agents import AgentPolicy
from kvgym.errors import ConfigError
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics import compute_metrics
from kvgym.runner import simulate

LATENCY = "e2e_latency_mean"
SLO = load_scenario("slai-50").override(
    workload={"preset": "slai-paying-50", "duration": 15, "rate": 2.0, "classes": SLO_CLASSES}
)


class Same:
    """A model with a constant action."""

    def __init__(self, knobs):
        self.knobs = np.array(knobs)

    def predict(self, observation, deterministic=True, action_masks=None):
        return self.knobs, None


@pytest.mark.parametrize(
    ("scenario", "order", "metric"),
    [
        (small("noisy"), "volume", LATENCY),
        (small("noisy", system={"block_size": 16}), "predicted", LATENCY),
        (small("interval"), "attained", LATENCY),
        (SLO, "prompt", "slo_attainment"),
    ],
    ids=["volume", "blocks", "attained", "objectives"],
)
@pytest.mark.parametrize("knobs", some([(1, 7, 3, 0), (0, 2, 1, 4)], 2))
def test_an_episode_is_that_of_an_agent_policy(scenario, order, metric, knobs):
    seeds = [1000, 2_000_001]
    arguments = {**environment_arguments(scenario, order), "action": "knobs", "hold": 16}
    policy = AgentPolicy(Same(knobs), name="same", **arguments)
    system, workload = scenario.make_system(), scenario.make_workload()
    expected = [compute_metrics(simulate(system, workload.sample(s), policy, seed=s))[metric] for s in seeds]
    player = KnobPlayer(scenario, order, seeds)
    assert player.play(knobs, metric).tolist() == expected
    assert player.play(knobs, metric).tolist() == expected


def test_the_best_knobs_are_those_of_the_whole_grid():
    scenario, seeds = small("noisy", rate=80.0), [1000, 1001, 1002]
    levels = {"protection": (0, 2), "cap": (1, 7), "budget": (0, 3, 9), "quantum": (0,)}
    found = best_knobs(scenario, LATENCY, seeds, levels, ["volume", "predicted"])
    means = {
        (order, point): KnobPlayer(scenario, order, seeds).play(point, LATENCY).mean()
        for order in ("volume", "predicted")
        for point in grid_of(levels)
    }
    assert len(means) == 24
    assert means[found.order, found.knobs] == pytest.approx(min(means.values()), rel=0.01)
    assert means[found.order, found.knobs] < 0.97 * max(means.values())


def test_knobs_that_leave_requests_are_not_chosen():
    scenario = small("noisy", system={"horizon": 1.0})
    assert np.isnan(KnobPlayer(scenario, "volume", [1000]).play((1, 7, 3, 0), LATENCY)).all()
    levels = {"protection": (1,), "cap": (7,), "budget": (3,), "quantum": (0,)}
    assert best_knobs(scenario, LATENCY, [1000, 1001], levels, ["volume"]) is None


def test_orders_fit_what_is_known():
    for kind, orders in (("noisy", ("volume", "predicted")), ("interval", ("attained", "prompt"))):
        assert orders_for(small(kind).make_workload().sample(0)) == orders


def test_text_gives_values_rather_than_levels():
    choice = Choice("volume", (1, 7, 3, 4))
    assert choice.text == "volume:protection=0.02,cap=∞,budget=256,quantum=128"


def test_mistakes_are_refused():
    with pytest.raises(ConfigError, match="need too_long: error, not 'drop'"):
        KnobPlayer(small(too_long="drop"), "volume", [0])
    with pytest.raises(ConfigError, match="expected levels of protection, cap, budget, quantum"):
        grid_of({"protection": (0,), "cup": (7,)})
