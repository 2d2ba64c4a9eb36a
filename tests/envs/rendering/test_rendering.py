"""Pictures and texts of episodes: content, and no hidden information."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from PIL import ImageColor

from helpers.environments.rendered import TIGHT, after, play
from kvgym.envs.rendering import picture as frame
from kvgym.envs.rendering.episode import record_episode
from kvgym.envs.rendering.scene import EVICTED, IN_QUEUE, RUNNING, SERVED, SPANS, memory_bar
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError
from kvgym.simulator.tables import FINISHED, UNKNOWN


def colored(picture, color, box):
    """Return the mask of the pixels inside axes that have a colour, bool (height, width)."""
    left, top, right, bottom = box
    return (picture[top:bottom, left + 1 : right] == np.array(ImageColor.getrgb(color), np.uint8)).all(axis=2)


# ---------------------------------------------------------------- pictures


def test_form_of_the_picture():
    env = after(20)
    picture = env.render()
    assert picture.shape == (600, 800, 3)
    assert picture.dtype == np.uint8
    assert (picture[:5] == 255).all()
    assert 0.02 < (picture != 255).any(axis=2).mean() < 0.5
    again = env.render()
    picture[:] = 0  # the caller owns it
    assert np.array_equal(env.render(), again)


def test_same_seed_same_bytes():
    pictures = [after(60, seed=seed).render() for seed in (3, 4, 3)]
    assert np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])


@pytest.mark.parametrize("steps", [0, 1, 60, 2000])
def test_axes_stay_within_their_areas(steps):
    picture = after(steps).render()
    for left, right in ((0, 4), (512, 530), (796, 800)):  # left of the names, between the halves, at the edge
        assert (picture[60:, left:right] == 255).all()
    for top, bottom in ((0, 14), (40, 50), (590, 600)):
        assert (picture[top:bottom] == 255).all()


@pytest.mark.parametrize("action", ["admit_count", "admit_evict"])
def test_lines_show_memory_and_queue(action):
    env = ServingEnv(render_mode="rgb_array", action=action, **TIGHT)
    view = env.view
    seen = np.array(
        [(view.clock, view.kv_tokens, view.num_waiting, view.num_active) for _ in play(env, 150)], float
    )
    scene, picture = env._recorder.scene(), env.render()
    lines = np.array((scene.time, scene.kv[0], scene.waiting[0], (scene.unfinished - scene.waiting)[0]))
    assert not lines[:, 0].any()  # empty until the first request
    assert np.array_equal(lines[:, 1:-1], seen.T)
    assert np.array_equal(lines[:, -1], seen[-1])
    assert seen[:, 1].max() > 1000
    left, top, right, bottom = frame.MEMORY
    area = colored(picture, frame.SHADE, frame.MEMORY).sum(axis=0)
    end = frame.round_up(scene.clock)
    for column in range(10, int(400 * scene.clock / end), 37):
        time = end * (np.array([column + 0.5, column + 1.5]) / (right - left))
        first, last = np.searchsorted(seen[:, 0], time, side="right") - 1
        expected = (bottom - top) * seen[first : last + 1, 1].min() / (1.12 * 1500)
        assert area[column] == pytest.approx(expected, abs=2.5)
    assert colored(picture, frame.ORANGE, frame.QUEUE).any()


def test_bars_show_the_active_set():
    env = after(15)
    active, picture = env.view.active, env.render()
    kv, prompt = active.num_kv_tokens[::-1], active.prompt_len[::-1]
    held = np.minimum(kv, prompt)
    assert 10 < len(active) < 40
    to_come = prompt + active.predicted_output_len[::-1]
    unit = 220 / frame.round_up(to_come.max())
    row = (frame.ACTIVE[3] - frame.ACTIVE[1]) / frame.rows_for(len(active))
    for k in range(len(active)):
        middle = int((k + 0.5) * row)
        for color, left, right in ((frame.PROMPT, 0 * held, held), (frame.OUTPUT, held, kv)):
            shown = np.flatnonzero(colored(picture, color, frame.ACTIVE)[middle]) + 1
            assert len(shown) == pytest.approx(unit * (right[k] - left[k]), abs=2.1)
        right_end = np.flatnonzero(colored(picture, frame.GRID, frame.ACTIVE)[middle])
        if to_come[k] > kv[k] + 5 / unit:
            assert right_end[-1] + 2 == pytest.approx(unit * to_come[k], abs=2.1)
    for color, tokens in ((frame.PROMPT, held.sum()), (frame.OUTPUT, kv.sum() - held.sum())):
        width = colored(picture, color, frame.TOTAL)[15].sum()
        assert width == pytest.approx(220 * tokens / (1.05 * 1500), abs=2.1)


def test_gantt_shows_the_spans():
    env = after(60)
    scene, picture = env._recorder.scene(), env.render()
    spans = scene.spans
    assert set(spans.kind) == {IN_QUEUE, RUNNING, EVICTED, SERVED}
    left, top, right, bottom = frame.GANTT
    low, high = frame.time_window(spans.start[spans.kind != IN_QUEUE].min(), scene.clock)
    assert low <= spans.start[spans.kind != IN_QUEUE].min()
    assert scene.clock <= high
    row = (bottom - top) / frame.rows_for(len(scene.rows))
    for kind, (_, color, _) in SPANS.items():
        there = colored(picture, color, frame.GANTT)
        for k in np.flatnonzero(spans.kind == kind):
            ends = (right - left) * (np.array([spans.start[k], spans.end[k]]) - low) / (high - low)
            if ends[1] - ends[0] > 3 and ends[0] > 0:
                inside = there[int((spans.row[k] + 0.5) * row), int(ends[0]) + 1 : int(ends[1]) - 1]
                assert inside.all(), (kind, k)


# ---------------------------------------------------------------- hidden information


def test_hidden_lengths_and_future_requests_are_not_shown():
    env = after(8)
    picture, text = env.render(), env.scene().text()
    block = env.episodes.slots[0].block
    arrived = int(block["tracker"]["next_arrival"][0])
    assert arrived < 40
    assert env.view.num_active > 0
    block["workload"]["output_len"] += 1000
    block["workload"]["arrival_time"][arrived:] += 5.0
    block["targets"][:] += 1000
    block["problem"]["num_requests"] += 7
    assert np.array_equal(env.render(), picture)
    assert env.scene().text() == text
    unfinished = block["requests"]["status"][:arrived] != FINISHED
    assert (block["requests"]["output_len"][:arrived] == UNKNOWN).all()
    assert unfinished.any()


def test_predictions_are_shown_only_if_revealed():
    informed, uninformed = after(25), after(25, information=())
    assert (uninformed.scene().active.predicted_len == UNKNOWN).all()
    assert (uninformed.scene().queue.predicted_len == UNKNOWN).all()
    assert (informed.scene().active.predicted_len > 0).all()
    assert not np.array_equal(informed.render(), uninformed.render())
    assert not colored(uninformed.render(), frame.GRID, frame.ACTIVE).any()
    rows = [line.split() for line in uninformed.scene().text().splitlines() if " ? " in line + " "]
    assert len(rows) >= 8
    assert all(row[3] == "?" for row in rows)


# ---------------------------------------------------------------- text


def test_text():
    env = after(25, "ansi")
    text, view = env.render(), env.view
    assert isinstance(text, str)
    assert text.endswith("\n")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert f"t = {view.clock:.3f} s" in lines[0]
    assert "iteration 25" in lines[0]
    assert f"{view.kv_tokens:,} / 1,500" in lines[1]
    assert f"{view.num_waiting} waiting" in text
    assert f"{view.num_active} requests" in text
    finished = int((env.tables.requests["status"] == FINISHED).sum())
    assert f"{finished} finished" in text
    latest = view.active.request_id[-1]
    row = next(line.split() for line in lines if line.split()[:1] == [str(latest)])
    columns = (view.active.prompt_len, view.active.predicted_output_len, view.active.num_output_tokens,
               view.active.num_kv_tokens)  # fmt: skip
    assert row[2:] == [f"{column[-1]:,}" for column in columns]
    assert "more activated earlier" in text


def test_text_in_blocks():
    env = after(25, "ansi", block_size=16)
    lines, view = env.render().splitlines(), env.view
    used = int((-(-view.active.num_kv_tokens // 16) * 16).sum())
    assert used == view.kv_allocated > view.kv_tokens
    assert f"{used:,} / 1,488" in lines[1]  # 93 blocks
    assert "= generated or unfilled;" in lines[2]
    assert max(map(len, lines)) <= 80
    assert env._recorder.history.columns()[1][-1] == used
    assert env.scene().total("peak_kv_tokens") % 16 == 0


def test_text_of_an_empty_worker():
    env = after(2000, "ansi")
    assert "active   0 requests" in env.render()
    assert "[" + "." * 48 + "] 0 / 1,500" in env.render()


def test_memory_bar():
    assert memory_bar(25, 50, 100, 8) == "##==...."
    assert memory_bar(100, 100, 100, 4) == "####"
    assert memory_bar(0, 1, 100, 4) == "...."


# ---------------------------------------------------------------- libraries


def test_texts_need_no_plotting_library():
    code = (
        "import sys, kvgym.envs.rendering.episode, kvgym.cli.commands.render\n"
        "from kvgym.envs.scheduling.environment import ServingEnv\n"
        "env = ServingEnv(render_mode='ansi', num_requests=3)\n"
        "env.reset(seed=0)\n"
        "assert 'waiting' in env.render()\n"
        "assert not {'matplotlib', 'PIL', 'imageio'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_plotting_libraries(monkeypatch, tmp_path):
    """Pictures name the missing library, in errors of Gymnasium and of kvgym; texts and playing need none."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr("kvgym.envs.recordable.find_spec", lambda name: None)
    env = after(1, "ansi")
    assert record_episode(env).completed
    needs = {
        "rgb_array": lambda: ServingEnv(render_mode="rgb_array", **TIGHT),
        "routing": lambda: RoutingEnv(render_mode="rgb_array"),
        "gif": lambda: record_episode(env, path=tmp_path / "a.gif"),
        "png": lambda: record_episode(env, png=tmp_path / "a.png"),
    }
    for make in needs.values():
        with pytest.raises(ConfigError, match=r'needs PIL.*pip install "kvgym\[pictures\]"') as found:
            make()
        assert isinstance(found.value, gym.error.DependencyNotInstalled)
