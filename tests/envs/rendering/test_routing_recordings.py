"""Recordings of the environment that routes requests."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from helpers.environments.routing_play import APART, CLUSTERS, TIGHT
from kvgym.envs.rendering.episode import record_episode
from kvgym.envs.rendering.picture import BLUE, draw, draw_summary
from kvgym.envs.rendering.recorder import History
from kvgym.envs.rendering.scene import ClusterScene
from kvgym.envs.routing.agents import play_router
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.players import router_player
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.policies.routing import ROUTERS, make_router
from kvgym.simulator.tables import WORKER

SPARSE = {**TIGHT, "num_requests": 6, "rate": 0.5}
"""Requests so rare that workers are idle between them."""


def course_of(router="round_robin", **arguments):
    """Record an episode; return its course and the environment."""
    env = RoutingEnv(**{**TIGHT, **arguments})
    record_episode(env, router)
    return env._recording.scene(whole=True), env


def made_scene(workers, samples=5):
    """Return the end of an invented episode."""
    rng = np.random.default_rng(workers)
    share = rng.random((workers, samples))
    records = np.zeros(workers, WORKER)
    records["role"] = np.arange(workers) % 3
    records["iteration"], records["total_evicted"] = 1_234_567, 12_345
    records["peak_kv_tokens"], records["total_routed"] = 1000, rng.integers(0, 10**6, workers)
    return ClusterScene(
        clock=12.5, num_arrived=123_456, num_finished=123_456, mean_latency=123.4, workers=records,
        kv_capacity=np.full(workers, 1000), time=np.linspace(0.0, 12.5, samples), kv=1000 * share,
        waiting=np.floor(500 * share), unfinished=np.ceil(1000 * share), choice=None,
    )  # fmt: skip


# ---------------------------------------------------------------- recordings


@pytest.mark.parametrize("workers", [4, pytest.param(APART, marks=pytest.mark.long)])
def test_recording(tmp_path, workers):
    files = [(tmp_path / f"{k}" / "a.gif", tmp_path / f"{k}.png") for k in range(2)]
    for path, png in files:
        env = RoutingEnv(workers=workers, **TIGHT)
        record = record_episode(env, "join_shortest_queue", seed=2, path=path, png=png, max_frames=4)
        assert record.completed
        assert 2 <= record.frames <= 4
        with Image.open(path) as gif:
            assert gif.size == (800, 600)
            assert gif.n_frames == record.frames
        with Image.open(png) as summary:
            assert summary.size == (1000, 800)
            summary.load()
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]
    assert record.steps == 80 * (1 if workers == 4 else 2)
    assert record.metrics["finished"] == 80
    assert record.metrics["e2e_latency_mean"] == pytest.approx(-record.total_reward)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_recording_changes_nothing(cluster):
    env = RoutingEnv(**TIGHT, **CLUSTERS[cluster])
    record = record_episode(env, "uniform_random", seed=3)
    observation, _ = env.reset(seed=3)
    act, total, ended = router_player(env, "uniform_random", seed=3), 0.0, False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(act(observation, env.action_masks()))
        total, ended = total + reward, terminated or truncated
    assert record.total_reward == total
    assert list(record.metrics.values()) == pytest.approx(info["metrics"], abs=0, nan_ok=True)


def test_episodes_cut_short_are_recorded(tmp_path):
    record = record_episode(RoutingEnv(horizon=0.05, **TIGHT), "round_robin", png=tmp_path / "a.png")
    assert not record.completed
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize("name", ["random", *(name for name in ROUTERS if not make_router(name).reassigns)])
def test_routers_and_random_play(name):
    config = RoutingConfig.of(**{**TIGHT, "num_requests": 20})
    totals = [record_episode(config, name, seed=s).total_reward for s in (0, 0, 1)]
    assert totals[0] == totals[1] != totals[2]
    if name == "round_robin":
        assert record_episode(config).total_reward == totals[0]  # the default


def test_wrong_players():
    env = RoutingEnv(**TIGHT)
    valid = "join_shortest_queue, least_outstanding_work, lmetric"
    with pytest.raises(UnknownNameError, match=rf"Did you mean 'round_robin'.*{valid}"):
        record_episode(env, "round_robbin")
    with pytest.raises(UnknownNameError, match=valid):
        record_episode(env, "greedy")
    with pytest.raises(ConfigError, match=r"round_robin.*predict"):
        record_episode(env, 3)
    with pytest.raises(ConfigError, match="round_robin"):
        record_episode(env, "round_robin:speed=2")


def test_functions_and_agents_play():
    class Agent:
        def predict(self, observation, deterministic=False, action_masks=None):
            return np.flatnonzero(action_masks)[-1], None

    env = RoutingEnv(workers=APART, **TIGHT)
    totals = {
        record_episode(env, policy).total_reward
        for policy in (Agent(), lambda observation, mask: int(np.flatnonzero(mask)[-1]))
    }
    assert len(totals) == 1
    assert env._recording.scene(whole=True).workers["total_routed"].tolist() == [0, 80, 0, 0, 80]


# ---------------------------------------------------------------- course


def test_course_matches_the_episode():
    course, env = course_of(workers=4)
    result = env.result()
    assert (
        course.workers["total_routed"].tolist()
        == np.bincount(result.requests["worker"], minlength=4).tolist()
    )
    assert (course.num_finished, course.num_arrived) == (80, 80)
    assert course.mean_latency == pytest.approx(
        np.mean(result.requests["finish_time"] - result.requests["arrival_time"])
    )
    assert course.time[-1] == result.requests["finish_time"].max()
    assert (np.diff(course.time) >= 0).all()
    assert (course.waiting <= course.unfinished).all()
    kv, peak = (
        (course.kv.T / course.kv_capacity).max(),
        (course.workers["peak_kv_tokens"] / course.kv_capacity).max(),
    )
    assert 0.5 < kv <= peak <= 1.0
    for figures in (course.kv, course.waiting, course.unfinished):
        assert (figures[:, -1] == 0).all()
    requests = result.requests
    for k in range(4):  # unfinished at a moment, except those that arrive at that moment
        mine = requests[requests["worker"] == k]
        for t, unfinished in zip(course.time[::7], course.unfinished[k, ::7], strict=True):
            present = ((mine["arrival_time"] < t) & (mine["finish_time"] > t)).sum()
            assert present <= unfinished <= ((mine["arrival_time"] <= t) & (mine["finish_time"] >= t)).sum()


def test_the_end_is_recorded_without_a_choice():
    course, env = course_of(workers=2)
    last = env.result().requests["arrival_time"].max()
    assert (course.time > last).sum() > 20
    assert course.kv[:, course.time > last].max() > 0.2 * course.kv_capacity[0]


def test_memory_is_empty_while_a_worker_is_idle():
    course, env = course_of(workers=2, **SPARSE)
    requests = env.result().requests
    for k in range(2):
        mine = requests[requests["worker"] == k]
        for end in mine["finish_time"]:
            if not ((mine["arrival_time"] <= end) & (mine["finish_time"] > end)).any():
                at = np.flatnonzero(course.time == end)[-1]
                assert course.kv[k, at] == course.unfinished[k, at] == 0


def test_memory_of_the_recorder_is_bounded(monkeypatch):
    long, _ = course_of(workers=3)
    monkeypatch.setattr(History.__init__, "__defaults__", (16,))
    short, env = course_of(workers=3)
    assert len(env._recording.history) <= 16
    assert env._recording.history.stride > 1
    for one, other in ((short.kv, long.kv), (short.unfinished, long.unfinished)):
        assert one.max(axis=1) == pytest.approx(other.max(axis=1), abs=0)  # peaks survive
    assert short.workers["total_routed"].tolist() == long.workers["total_routed"].tolist()


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("workers", [1, 32, 100])
def test_summary_of_any_number_of_workers(workers):
    scene = made_scene(workers)
    picture = draw_summary(scene, "join_shortest_queue on a100-llama2-70b, several workers, seed 0")
    assert picture.shape == (800, 1000, 3)
    for edge in (picture[:8], picture[-8:], picture[:, :12], picture[:, -12:]):
        assert (edge == 255).all()
    for gap in (picture[96:728, 449:462], picture[96:728, 833:844]):  # between the axes
        assert (gap == 255).all()
    bars = (picture[92:728, 849:985] == np.array(ImageColor.getrgb(BLUE), np.uint8)).all(axis=2)
    received = scene.workers["total_routed"]
    lengths = [bars[int((k + 0.5) * 636 / workers)].sum() for k in range(workers)]
    assert lengths == pytest.approx(137 / 1.75 * received / received.max(), abs=2.1)


def test_summary_of_an_empty_episode(tmp_path):
    env = RoutingEnv(**TIGHT)
    record = record_episode(env, "round_robin", png=tmp_path / "a.png", max_steps=0)
    assert (record.steps, record.metrics) == (0, {})
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize("workers", [2, 32, APART])
def test_moments_do_not_depend_on_those_before_them(workers):
    env = RoutingEnv(workers=workers, render_mode="rgb_array", **TIGHT)
    env.reset(seed=0)
    recording = env.recording()
    for _ in range(40):
        recording.take()
        env.step(int(np.flatnonzero(env.action_masks())[-1]))
    scene = recording.scene()
    picture = draw(scene)
    assert (picture.shape, picture.dtype) == ((600, 800, 3), np.uint8)
    env.step(int(np.flatnonzero(env.action_masks())[0]))
    assert np.array_equal(draw(scene), picture)
    assert not np.array_equal(env.render(), picture)
    for edge in (picture[:5], picture[-5:], picture[:, :5], picture[:, -5:]):
        assert (edge == 255).all()


def test_play_router_does_not_continue_the_recording():
    env = RoutingEnv(**TIGHT)
    record_episode(env, "round_robin")
    samples = len(env._recording.history)
    recording = env._recording
    play_router(env, "round_robin")
    assert env._recording is None
    assert len(recording.history) == samples
