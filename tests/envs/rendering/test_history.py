"""Recorders of episodes: spans, gaps and history."""

import gymnasium as gym
import numpy as np
import pytest

from helpers.environments.rendered import TIGHT, after, play
from kvgym.envs.rendering import recorder as rendering
from kvgym.envs.rendering.recorder import History, choose_rows
from kvgym.envs.rendering.scene import EVICTED, RUNNING, SERVED
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.simulator.tables import FINISHED, WAITING

# ---------------------------------------------------------------- recording


def test_spans_match_the_episode():
    env = ServingEnv(render_mode="ansi", **TIGHT)
    status, evictions, clock = np.zeros(40, int), np.zeros(40, int), 0.0
    gaps = {i: [] for i in range(40)}  # tracked at every step, unlike in the recorder
    for _ in play(env, 2000):
        requests = env.tables.requests
        for i in range(40):
            if requests["num_evictions"][i] > evictions[i]:
                gaps[i].append([clock, None])
            elif status[i] == WAITING and requests["status"][i] != WAITING and gaps[i]:
                gaps[i][-1][1] = clock
        status, evictions = requests["status"].copy(), requests["num_evictions"].copy()
        clock = env.view.clock
    assert (status == FINISHED).all()
    assert evictions.sum() > 5
    scene = env._recorder.scene(whole=True)
    assert scene.rows.tolist() == list(range(40))
    assert scene.total("total_evicted") == evictions.sum()
    for i in range(40):
        mine = scene.spans.row == i
        kind, start, end = (column[mine] for column in (scene.spans.kind, scene.spans.start, scene.spans.end))
        record = env.tables.requests[i]
        assert np.array_equal(start[1:], end[:-1])
        assert (start[0], end[-1]) == (record["arrival_time"], record["finish_time"])
        assert np.column_stack((start, end))[kind == EVICTED].tolist() == gaps[i]
        assert start[kind == SERVED][0] == record["start_time"]
        assert RUNNING not in kind


@pytest.mark.parametrize("arguments", [{"action": "knobs"}, {"epochs": "decision"}, {"action": "flags"}])
def test_spans_follow_one_another_where_iterations_are_skipped(arguments):
    env = after(2000, "ansi", **arguments)
    scene = env._recorder.scene(whole=True)
    for row in range(len(scene.rows)):
        mine = scene.spans.row == row
        assert np.array_equal(scene.spans.start[mine][1:], scene.spans.end[mine][:-1])
        assert scene.spans.end[mine][-1] == env.tables.requests["finish_time"][row]


def test_memory_of_evictions_is_bounded(monkeypatch):
    """The earliest are dropped; spans still follow one another."""
    monkeypatch.setattr(rendering, "MAX_GAPS", 32)
    env = ServingEnv(render_mode="ansi", action="flags", **TIGHT)
    env.reset(seed=0)
    space = env.action_space
    space.seed(0)
    for _ in range(400):
        env.step(space.sample(mask=env.sample_mask()))
    assert env.tables.requests["num_evictions"].max() > 32
    assert len(env._recorder._gaps) == 32
    scene = env._recorder.scene(whole=True)
    assert 32 <= (scene.spans.kind == EVICTED).sum() <= 32 + 40
    for row in range(len(scene.rows)):
        mine = scene.spans.row == row
        assert np.array_equal(scene.spans.start[mine][1:], scene.spans.end[mine][:-1])


def test_memory_is_empty_while_the_worker_is_idle():
    env = ServingEnv(render_mode="ansi", scenario="a100-llama2-70b", num_requests=5, rate=0.05)
    for _ in play(env, 5000):
        pass
    scene, requests = env._recorder.scene(), env.tables.requests
    done, coming = requests["finish_time"][0], requests["arrival_time"][1]
    assert done < coming
    k = int(np.flatnonzero(scene.time == done)[0])
    assert [column[0, k] for column in (scene.kv, scene.waiting, scene.unfinished)] == [0, 0, 0]
    assert (scene.time[k + 1], scene.waiting[0, k + 1]) == (coming, 1)


def test_history_is_bounded_and_keeps_peaks():
    rng = np.random.default_rng(0)
    history, taken = History(limit=8), rng.integers(0, 1000, (1000, 3))
    for k, (kv, waiting, active) in enumerate(taken.tolist()):
        history.add(float(k), kv, waiting, active)
        assert len(history) <= 8
        time, *columns = history.columns()
        buckets = np.arange(0, k + 1, history.stride)
        assert np.array_equal(time, buckets)
        for j in range(3):
            assert np.array_equal(columns[j], np.maximum.reduceat(taken[: k + 1, j], buckets))
    assert history.stride == 128


def test_rows_of_the_gantt_view():
    active, waiting, finished = np.arange(100, 160), np.arange(160, 200), np.arange(100)
    rows = choose_rows(active, waiting, finished, 40)
    assert rows.tolist() == [*range(92, 100), *range(136, 160), *range(160, 168)]
    assert choose_rows(active, waiting[:0], finished[:0], 40).tolist() == list(range(120, 160))
    assert choose_rows(active[:0], waiting, finished[:3], 40).tolist() == [0, 1, 2, *range(160, 197)]
    assert len(choose_rows(active, waiting, finished, None)) == 200
    assert len(choose_rows(active, waiting, finished, 0)) == 0


def test_recording_needs_an_episode():
    with pytest.raises(gym.error.ResetNeeded):
        ServingEnv(**TIGHT).recording()
