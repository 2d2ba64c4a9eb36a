"""The environment that scales a fleet: costs, players, masks, observations, states, vectors and pictures."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.environments import vector_play
from kvgym.envs.rendering.episode import record_episode
from kvgym.envs.scaling.agents import AgentAutoscaler, play_autoscaler
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scaling.players import autoscaler_player
from kvgym.envs.scaling.vector_environment import ScalingVectorEnv
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.cluster.members import DRAINS, STARTING, STATES

UNIT = {"kind": "affine", "constant": 0.5, "per_decode_token": 0.0, "per_prefill_token": 0.0}
"""Every batch takes half a second."""

LOAD = {
    "num_requests": 120,
    "lengths": {
        "kind": "independent",
        "prompt": {"kind": "constant", "value": 20},
        "output": {"kind": "uniform", "low": 1, "high": 15},
    },
    "arrivals": {"kind": "sinusoid", "rate": 1.0, "amplitude": 0.9, "period": 60.0},
    "ttft_slo": 1.5,
    "tbt_slo": 0.8,
    "e2e_slo": 9.0,
}
SMALL = {
    "scenario": "scale-day",
    "workers": [{"count": 1, "least": 1, "most": 5, "startup": 7.0}],
    "batch_time": UNIT,
    "kv_capacity": 100,
    "workload": LOAD,
    "control": 5.0,
    "window": None,
}
TWO = [
    {"count": 1, "role": "prefill", "least": 1, "most": 3, "startup": 4.0, "price": 2.5},
    {"count": 1, "role": "decode", "least": 1, "most": 4, "startup": 6.0, "drain": "finish"},
]


def cost_of(env):
    return compute_metrics(env.result(), ("fleet_cost",))["fleet_cost"]


def random_episode(env, seed, masked=0.8):
    """Play at random; return the rewards and whether actions were ignored."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    rewards, ignored, ended = [], [], False
    while not ended:
        mask = env.sample_mask() if rng.random() < masked else None
        _, reward, terminated, truncated, info = env.step(env.action_space.sample(mask))
        assert reward == pytest.approx(info["reward_terms"].sum())
        rewards.append(reward)
        ended = terminated or truncated
        if mask is not None:
            assert info["ignored"] == 0
        ignored.append(info["ignored"])
    return rewards, ignored


# ---------------------------------------------------------------- the return is the cost


@settings(max_examples=12, deadline=None)
@given(st.floats(0.7, 80.0), st.integers(0, 10**6), st.booleans(), st.sampled_from(["change", "target"]))
def test_the_return_is_minus_the_cost(control, seed, two, kind):
    env = ScalingEnv(**{**SMALL, "control": control, "action": kind, **({"workers": TWO} if two else {})})
    rewards, _ = random_episode(env, seed)
    assert sum(rewards) == pytest.approx(-cost_of(env), abs=1e-9)
    assert max(rewards) <= 1e-12


def test_a_horizon_counts_what_is_left_as_missed():
    env = ScalingEnv(**{**SMALL, "horizon": 40.0, "reward_scale": 3.0})
    rewards, _ = random_episode(env, 1)
    result = env.result()
    assert not result.completed
    assert 3.0 * sum(rewards) == pytest.approx(-cost_of(env), abs=1e-9)
    missed = compute_metrics(result, ("slo_attainment",))["slo_attainment"]
    assert missed < 1


def test_failures_and_users_that_leave(tmp_path):
    """Failed places cost nothing, and what is lost or given up has missed its target; a state has the same luck."""
    path = tmp_path / "failing.yaml"
    path.write_text(
        "batch_time: {kind: affine, constant: 0.5}\nkv_capacity: 100\nrouter: join_shortest_queue\npolicies: [fcfs]\n"
        "workload: mcsf-model-2\n"
        "fleet: {control: 5s, failures: {mtbf: 40s, repair: 10s}, users: {patience: 3s}}\n"
        "workers:\n- {count: 2, most: 4, startup: 6s}\n"
    )
    env, other = (ScalingEnv(scenario=str(path), workload=LOAD) for _ in range(2))
    rewards, _ = random_episode(env, 3)
    metrics = compute_metrics(env.result())
    assert sum(rewards) == pytest.approx(-metrics["fleet_cost"], abs=1e-9)
    states = {state for _, _, state in env.result().fleet.changes}
    assert STATES.index("failed") in states
    env.reset(seed=3)
    for _ in range(12):
        env.step([4])
    other.set_state(env.get_state())
    assert np.array_equal(other.observer.flat, env.observer.flat)
    assert env.step([5])[1] == other.step([5])[1]


def test_misses_count_when_they_are_certain(requests_of):
    """One worker, a request at 0 of 4 batches and one at 1 that waits for it: its token is late at 1 + 1.5 s."""
    load = requests_of((0.0, 60, 4), (1.0, 60, 2), ttft_slo=0.7)
    arguments = {
        **SMALL,
        "workload": load,
        "control": 1.0,
        "workers": [{"count": 1, "most": 2, "startup": 50.0}],
    }
    env = ScalingEnv(**{**arguments, "num_requests": None})
    env.reset(seed=0)
    terms, times = [], []
    ended = False
    while not ended:
        _, _, terminated, truncated, info = env.step([4])
        terms.append(info["reward_terms"] * 3600)
        times.append(info["time"])
        ended = terminated or truncated
    first = env.result().requests["first_token_time"]
    assert first.tolist() == [0.5, 2.5]
    missed = [at for at, (_, penalty) in zip(times, terms, strict=True) if penalty]
    assert missed == [2.0]  # asked at 1.7 s + the rest of the interval, and before the token comes
    assert [penalty for _, penalty in terms if penalty] == pytest.approx([-20.0])
    assert [workers for workers, _ in terms] == pytest.approx(-np.diff(times, prepend=0.0))


def test_start_ups_and_drains_are_billed():
    """Orders to start cost from the moment of the order; a target below what is needed drains."""
    env = ScalingEnv(**SMALL)
    env.reset(seed=0)
    _, _, _, _, info = env.step([6])  # two more, which need 7 s
    assert info["reward_terms"][0] * 3600 == pytest.approx(-15.0)
    assert env.observer.flat[env.feature_names.index("pool.0.starting")] == np.float32(2 / 5)
    assert env.view.pools[0].ready_in == pytest.approx((2.0, 2.0))
    _, _, _, _, info = env.step([0])  # clipped to the least of 1: both starts are cancelled
    assert info["ignored"] == 1
    assert info["reward_terms"][0] * 3600 == pytest.approx(-5.0)
    assert env.view.pools[0].target == 1


# ---------------------------------------------------------------- players and agents


@pytest.mark.parametrize("workers", [SMALL["workers"], TWO], ids=["one pool", "two pools"])
@pytest.mark.parametrize("spec", ["hpa:target=3,down=10", "kpa:target=4", "fixed:workers=1", "roles"])
def test_an_autoscaler_plays_as_in_simulate(spec, workers):
    env = ScalingEnv(**{**SMALL, "workers": workers, "action": "target"})
    result, total = play_autoscaler(env, spec, workload_seed=4)
    table = env.scenario.sample(env.workload, 4, env.system.usable_capacity)
    same = simulate(env.system, table, "fcfs", router=env.scenario.router, autoscaler=spec, seed=4)
    for name in ("first_token_time", "finish_time", "worker"):
        assert np.array_equal(result.requests[name], same.requests[name])
    assert result.fleet.changes == same.fleet.changes
    assert total == pytest.approx(-compute_metrics(same, ("fleet_cost",))["fleet_cost"], abs=1e-9)


def test_roles_that_change_are_targets_of_two_pools_with_one_budget():
    env = ScalingEnv(scenario="scale-split", num_requests=3000, window=None, action="target")
    result, total = play_autoscaler(env, "roles:base=1", workload_seed=4)
    table = env.scenario.sample(env.workload, 4, env.system.usable_capacity)
    same = simulate(
        env.system,
        table,
        env.scenario.policies[0],
        router=env.scenario.router,
        autoscaler="roles:base=1",
        seed=4,
    )
    assert np.array_equal(result.requests["finish_time"], same.requests["finish_time"])
    assert result.fleet.changes == same.fleet.changes
    assert len({sizes for _, sizes in result.fleet.targets}) > 1
    assert {sum(sizes) for _, sizes in result.fleet.targets} == {8}
    assert total == pytest.approx(-compute_metrics(same, ("fleet_cost",))["fleet_cost"], abs=1e-9)


def test_every_player_plays():
    env = ScalingEnv(**{**SMALL, "num_requests": 30})
    assert {"fixed", "hpa", "keda", "ray", "random"} <= set(env.players())
    for name in env.players():
        act = env.player(name, 3)
        observation, _ = env.reset(seed=3)
        ended = False
        while not ended:
            observation, _, terminated, truncated, info = env.step(act(observation, env.action_masks()))
            ended = terminated or truncated
            assert info["ignored"] == 0
    with pytest.raises(UnknownNameError, match="hpaa"):
        env.player("hpaa", 0)
    env.reset(seed=3)
    assert autoscaler_player(env, "fixed:workers=5")(None, None).tolist() == [8]


class Threshold:
    """Wants two more workers while its pool has many unfinished requests, one fewer while it has few."""

    def predict(self, observation, deterministic=True, action_masks=None):
        assert action_masks.any()
        ongoing = observation[20]
        return np.array([6 if ongoing > 0.04 else 3]), None


def test_an_agent_plays_as_an_autoscaler(tmp_path):
    env = ScalingEnv(**SMALL)
    model = Threshold()
    observation, _ = env.reset(seed=0, options={"workload_seed": 5})
    ended = False
    while not ended:
        action, _ = model.predict(observation, action_masks=env.action_masks())
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    result = env.result()
    assert len(result.fleet.targets) > 4
    agent = AgentAutoscaler(model, name="mine", **SMALL)
    table = env.scenario.sample(env.workload, 5, env.system.usable_capacity)
    same = simulate(env.system, table, "fcfs", router=env.scenario.router, autoscaler=agent, seed=5)
    assert result.fleet.changes == same.fleet.changes
    assert np.array_equal(result.requests["finish_time"], same.requests["finish_time"])
    other = ScalingEnv(**{**SMALL, "workers": TWO})
    with pytest.raises(
        ConfigError, match=r"trained with pools of at most \[5\] workers; this fleet has \[3, 4\]"
    ):
        simulate(other.system, table, "fcfs", autoscaler=agent)


# ---------------------------------------------------------------- masks and observations


def test_masks_by_hand():
    env = ScalingEnv(**SMALL)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [False] * 4 + [True] * 5  # 1 + (0 … 4)
    env.step([8])
    assert env.action_masks().tolist() == [True] * 5 + [False] * 4  # 5 - (4 … 0)
    env = ScalingEnv(**{**SMALL, "action": "target"})
    env.reset(seed=0)
    assert env.action_masks().tolist() == [False, True, True, True, True, True]


def test_masks_within_a_budget(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "batch_time: {kind: affine, constant: 0.5}\nkv_capacity: 100\nfleet: {budget: 3}\nworkload: mcsf-model-2\n"
        "workers:\n- {count: 1, most: 5}\n- {count: 1, role: mixed, most: 2, least: 0}\n"
    )
    env = ScalingEnv(scenario=str(path), num_requests=20, action="target", control=1.0)
    env.reset(seed=0)
    assert [part.tolist() for part in env.sample_mask()] == [[0, 1, 1, 1, 0, 0], [1, 1, 1]]
    env.step([2, 0])  # the second has nothing to give now
    assert [part.tolist() for part in env.sample_mask()] == [[0, 1, 1, 1, 0, 0], [1, 1, 1]]
    env.step([3, 0])
    assert [part.tolist() for part in env.sample_mask()] == [[0, 1, 1, 1, 0, 0], [1, 1, 1]]
    env.step([3, 2])  # two more do not fit, and wait
    assert [(pool.target, pool.ready + pool.starting) for pool in env.view.pools] == [(3, 3), (2, 0)]


def test_observations_by_hand(requests_of):
    """Requests at 0, 3 and 3 s, 60 prompt tokens each: only one fits into the memory of 100 tokens.

    Batches take half a second, so the first ends at 2 s; the second has its token at 3.5 s and 64 tokens of KV at 5 s.
    """
    load = requests_of((0.0, 60, 4), (3.0, 60, 30), (3.0, 60, 2), ttft_slo=2.5)
    env = ScalingEnv(**{**SMALL, "workload": load, "num_requests": None, "day": 20.0})
    env.reset(seed=0)

    def features(action):
        env.step(action)
        return dict(zip(env.feature_names, env.observer.flat.tolist(), strict=True))

    found, rate = features([4]), env.workload.mean_rate
    assert found["fleet.rate_1"] == pytest.approx(0.4 / (0.4 + rate))  # the last 5 s, without 0 itself
    assert found["fleet.prompt"] == pytest.approx(60 / (60 + 1024))
    assert found["fleet.attainment"] == 1.0  # the third has no token, and is not late
    mean = (0.5 + 2.0) / 2 / 2.5  # of the two since the question at 0
    assert found["fleet.ttft"] == pytest.approx(mean / (mean + 1))
    assert (found["fleet.day_sin"], found["fleet.day_cos"]) == pytest.approx((1.0, 0.5))
    assert found["pool.0.waiting"] == pytest.approx(1 / 17)
    assert found["pool.0.ongoing"] == pytest.approx(2 / 66)
    assert found["pool.0.kv"] == found["pool.0.kv_most"] == pytest.approx(0.64)
    assert (found["pool.0.target"], found["pool.0.ready"]) == pytest.approx((0.2, 0.2))
    found = features([4])
    assert (found["fleet.rate_1"], found["fleet.attainment"], found["fleet.ttft"]) == (0.0, 1.0, 0.0)
    assert found["pool.0.kv"] == pytest.approx(0.74)


def test_an_episode_is_a_stretch_of_the_load():
    whole, part = ScalingEnv(**SMALL), ScalingEnv(**{**SMALL, "window": 20.0})
    counts, begins = [], []
    for seed in range(4):
        whole.reset(options={"workload_seed": seed})
        part.reset(options={"workload_seed": seed})
        full, own, begin = (
            whole.simulation.table.arrival_time,
            part.simulation.table.arrival_time,
            part._begins,
        )
        inside = full[(full >= begin) & (full < begin + 20.0)] - begin
        assert np.array_equal(own, inside)
        counts.append(len(own))
        rates = [env.simulation.table.rates.mean for env in (whole, part)]
        assert rates[1].most(9.0, 9.01) == rates[0].most(begin + 9.0, begin + 9.01)
        begins.append(begin)
        angle = 2 * np.pi * begin / 60.0
        assert part.observer.flat[8] == np.float32(0.5 + 0.5 * np.sin(angle))
    assert len(set(begins)) == 4
    assert min(counts) < 15 < max(counts)


# ---------------------------------------------------------------- states, vectors, plain Python


def test_states_in_the_middle_of_starts_and_drains(equal):
    env, other = ScalingEnv(**SMALL), ScalingEnv(**SMALL)
    seen = set()
    env.reset(seed=2)
    for action in ([8], [4], [2], [5], [0], [8], [4], [1]):
        env.step(action)
        state = env.get_state()
        seen |= set(env.simulation.changing_fleet.members.state.tolist())
        observation, info = other.set_state(state)
        assert np.array_equal(observation, env.observer.flat)
        assert info["time"] == env.observer.episode["since"][0]
        assert equal(other.step([5]), _ahead(env, [5]))
    assert {STARTING, DRAINS} <= seen
    damaged = env.get_state()
    object.__setattr__(damaged, "memory", np.full((3, 1), 99))
    with pytest.raises(ConfigError, match="expected whole numbers in the action space"):
        other.set_state(damaged)


def _ahead(env, action):
    """Return the next step of an environment, which then is where it was."""
    state = env.get_state()
    found = env.step(action)
    env.set_state(state)
    return found


def test_compiled_and_plain_python_agree():
    arguments = {**SMALL, "num_requests": 15, "workers": TWO}
    found = [random_episode(ScalingEnv(compiled=compiled, **arguments), 3)[0] for compiled in (True, False)]
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("observation", ["flat", "dict", "rllib"])
def test_a_vector_equals_single_environments(mode, observation, equal):
    arguments = {**SMALL, "num_requests": 25, "workers": TWO, "observation": observation}
    native, sync = vector_play.pair("kvgym/Scale-v0", 2, mode, **arguments)
    assert isinstance(native.unwrapped, ScalingVectorEnv)
    native.action_space.seed(0)
    assert vector_play.drive(native, sync, equal, native.action_space.sample, 25, {"seed": 3}) >= 2


def test_wrong_arguments():
    for wrong, message in (
        ({"router": "unknown"}, "unknown"),
        ({"policy": "unknown"}, "unknown"),
        ({"control": 0.0}, "control"),
        ({"fleet": "8-1"}, "as in 1-8"),
        ({"system": {"sessions": "closed"}}, "sessions"),
        ({"observation": "both"}, "observation"),
    ):
        with pytest.raises(ConfigError, match=message):
            ScalingEnv(**{**SMALL, **wrong})
    env = ScalingEnv(scenario="mc-sf-model-2", num_requests=5)
    assert [(pool.least, pool.count, pool.most) for pool in env.fleet.pools] == [(1, 1, 8)]
    with pytest.raises(gym.error.ResetNeeded):
        _ = env.view


# ---------------------------------------------------------------- pictures


def test_recording(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    env = ScalingEnv(**{**SMALL, "num_requests": 60})
    record = record_episode(
        env, "hpa:target=3", path=tmp_path / "a.gif", png=tmp_path / "a.png", max_frames=6
    )
    assert record.completed
    assert record.total_reward == pytest.approx(-record.metrics["fleet_cost"], abs=1e-9)
    with pictures.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames >= 3
    with pictures.open(tmp_path / "a.png") as png:
        assert png.size == (1000, 800)


def test_texts_and_the_future():
    """A text has the pools; panels show no arrivals that are still to come."""
    env = ScalingEnv(**SMALL, render_mode="ansi")
    env.reset(seed=0)
    env.step([6])
    lines = env.render().splitlines()
    assert lines[0].startswith("t = 5.0 s")
    assert lines[3].split()[:5] == ["0", "3", "1", "2", "0"]
    assert lines[3].endswith("#++")
    assert max(map(len, lines)) <= 80
    load = next(p for p in env.scene().panels if p.y.quantity.label == "Requests")
    x, y = (np.asarray(load.series[0].values[name]) for name in ("x", "y"))
    assert not y[:-1][x[:-1] > 5.0].any()
    width = x[1] - x[0]
    assert y[:-1].sum() * width == pytest.approx(env.view.counts.arrivals)
