"""Recorders of episodes: spans, gaps and history."""

import numpy as np
import pytest

from helpers.rendered import TIGHT, after, play
from kvgym.envs.rendering import recorder as rendering
from kvgym.envs.rendering.history import History
from kvgym.envs.rendering.recorder import Recorder
from kvgym.envs.rendering.scene import EVICTED, RUNNING, SERVED, choose_rows
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError
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
    scene = env._recorder.scene(rows=None)
    assert scene.rows.tolist() == list(range(40))
    assert scene.num_evictions == evictions.sum()
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
    scene = env._recorder.scene(rows=None)
    for row in range(len(scene.rows)):
        mine = scene.spans.row == row
        assert np.array_equal(scene.spans.start[mine][1:], scene.spans.end[mine][:-1])
        assert scene.spans.end[mine][-1] == env.tables.requests["finish_time"][row]


def test_many_evictions_stay_bounded():
    env = ServingEnv(render_mode="ansi", action="flags", **TIGHT)
    env.reset(seed=0)
    space = env.action_space
    space.seed(0)
    for _ in range(400):
        env.step(space.sample(mask=env.sample_mask()))
    assert env.tables.requests["num_evictions"].max() > rendering.MAX_GAPS
    gaps = env._recorder._gaps
    assert max(map(len, gaps.values())) == rendering.MAX_GAPS
    scene = env._recorder.scene(rows=None)
    for row in range(len(scene.rows)):
        mine = scene.spans.row == row
        assert np.array_equal(scene.spans.start[mine][1:], scene.spans.end[mine][:-1])


def test_gaps_of_old_requests_are_dropped(monkeypatch):
    monkeypatch.setattr(rendering, "MAX_GAPPED", 4)
    env = after(4000, "ansi", num_requests=120)
    evicted = np.flatnonzero(env.tables.requests["num_evictions"])
    assert len(evicted) > 30
    assert len(env._recorder._gaps) < 20
    assert evicted[-1] in env._recorder._gaps


def test_memory_is_empty_while_the_worker_is_idle():
    env = ServingEnv(render_mode="ansi", num_requests=5, rate=0.05)
    for _ in play(env, 5000):
        pass
    scene, requests = env._recorder.scene(), env.tables.requests
    done, coming = requests["finish_time"][0], requests["arrival_time"][1]
    assert done < coming
    k = int(np.flatnonzero(scene.time == done)[0])
    assert (scene.kv[k], scene.waiting[k], scene.active[k]) == (0, 0, 0)
    assert (scene.time[k + 1], scene.waiting[k + 1]) == (coming, 1)


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


def test_recorder_without_an_episode():
    with pytest.raises(ConfigError, match="reset"):
        Recorder(10, observe=lambda: None).text()
