"""Pictures and texts of episodes show what happened, and nothing the agent may not know."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from rendered import TIGHT, after, play

from kvgym.envs.rendering import scene as rendering
from kvgym.envs.rendering.episode import record_episode
from kvgym.envs.rendering.scene import EVICTED, IN_QUEUE, RUNNING, SERVED, memory_bar
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError
from kvgym.simulator.tables import FINISHED, UNKNOWN


def frame():
    from kvgym.envs.rendering import frame as rendering_frame

    return rendering_frame._KEPT.frame


def bars_of(collection):
    """Return left and right ends and the middle of the bars of a collection."""
    corners = np.array([path.vertices[:4] for path in collection.get_paths()]).reshape(-1, 4, 2)
    return corners[:, 0, 0], corners[:, 1, 0], corners[:, :, 1].mean(axis=1)


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


def test_a_picture_does_not_depend_on_those_before_it():
    from kvgym.envs.rendering.frame import Frame

    for arguments in ({}, {"num_requests": 4, "rate": 0.001, "epochs": "decision"}):
        env = ServingEnv(render_mode="rgb_array", **{**TIGHT, **arguments})
        for step, _ in enumerate(play(env, 33)):
            picture = env.render()
            if step % 11 == 0:
                assert np.array_equal(Frame().draw(env._recorder.scene()), picture)


def test_threads_draw_the_same():
    env, drawn = after(30), []
    thread = threading.Thread(target=lambda: drawn.append(env.render()))
    thread.start()
    thread.join()
    assert np.array_equal(drawn[0], env.render())


def test_panels_keep_to_their_parts():
    from kvgym.envs.rendering.frame import HEIGHT, PANELS, WIDTH, Frame

    for steps in (0, 1, 60):
        shown = Frame()
        shown.draw(after(steps)._recorder.scene())
        for name, (_, (left, low, right, high)) in PANELS.items():
            box = shown.axes[name].get_tightbbox()
            assert left * WIDTH <= box.x0
            assert box.x1 <= right * WIDTH
            assert low * HEIGHT <= box.y0
            assert box.y1 <= high * HEIGHT


@pytest.mark.parametrize("action", ["admit_count", "admit_evict"])
def test_lines_show_memory_and_queue(action):
    env = ServingEnv(render_mode="rgb_array", action=action, **TIGHT)
    view = env.view
    seen = np.array(
        [(view.clock, view.kv_tokens, view.num_waiting, view.num_active) for _ in play(env, 150)], float
    )
    env.render()
    lines = frame().timeline
    for line, column in ((lines.kv, 1), (lines.waiting, 2), (lines.active, 3)):
        x, y = line.get_data()
        assert np.array_equal(x[:-1], seen[:, 0])
        assert np.array_equal(y[:-1], seen[:, column])
        assert (x[-1], y[-1]) == (seen[-1, 0], seen[-1, column])
        low, high = line.axes.get_ylim()
        assert low <= y.min()
        assert y.max() <= high
    assert set(lines.capacity.get_ydata()) == {1500}
    assert seen[:, 1].max() > 1000


def test_bars_show_the_active_set():
    env = after(15)
    env.render()
    active, shown = env.view.active, frame()
    kv, prompt = active.num_kv_tokens[::-1], active.prompt_len[::-1]
    held = np.minimum(kv, prompt)
    place = np.arange(len(active))
    assert 10 < len(active) < 40
    for bars, ends in ((shown.prompt, (0 * kv, held)), (shown.output, (held, kv))):
        left, right, middle = bars_of(bars)
        assert np.array_equal(left, ends[0])
        assert np.array_equal(right, ends[1])
        assert np.allclose(middle, place)
    assert np.array_equal(bars_of(shown.predicted)[1], prompt + active.predicted_output_len[::-1])
    assert [bars_of(b)[1][0] for b in (shown.total_prompt, shown.total_output)] == [held.sum(), kv.sum()]
    assert f"{kv.sum():,} / 1,500" in shown.usage.get_text()
    assert shown.names[0].get_text() == str(active.request_id[-1])
    for word in ("iteration 15", f"{env.view.num_waiting} waiting", f"{len(active)} active"):
        assert word in shown.counts.get_text()


def test_gantt_shows_the_spans():
    env = after(60)
    env.render()
    scene = env._recorder.scene()
    assert set(scene.spans.kind) == {IN_QUEUE, RUNNING, EVICTED, SERVED}
    for kind, bars in frame().timeline.spans.items():
        left, right, middle = bars_of(bars)
        of_kind = scene.spans.kind == kind
        assert np.array_equal(left, scene.spans.start[of_kind])
        assert np.array_equal(right, scene.spans.end[of_kind])
        assert np.allclose(middle, scene.spans.row[of_kind], atol=1e-12)
    low, high = frame().timeline.gantt.get_xlim()
    assert low <= scene.spans.start[scene.spans.kind != IN_QUEUE].min()
    assert scene.clock <= high


# ---------------------------------------------------------------- what is hidden


def test_hidden_lengths_and_future_requests_are_not_shown():
    env = after(8)
    picture, text = env.render(), env._recorder.text()
    block = env.episodes.slots[0].block
    arrived = int(block["tracker"]["next_arrival"][0])
    assert arrived < 40
    assert env.view.num_active > 0
    block["workload"]["output_len"] += 1000
    block["workload"]["arrival_time"][arrived:] += 5.0
    block["targets"][:] += 1000
    block["problem"]["num_requests"] += 7
    assert np.array_equal(env.render(), picture)
    assert env._recorder.text() == text
    unfinished = block["requests"]["status"][:arrived] != FINISHED
    assert (block["requests"]["output_len"][:arrived] == UNKNOWN).all()
    assert unfinished.any()


def test_predictions_are_shown_only_if_revealed():
    told, untold = after(25), after(25, information=())
    assert (untold._recorder.scene().predicted_len == UNKNOWN).all()
    assert (untold._recorder.scene().queue_predicted == UNKNOWN).all()
    assert (told._recorder.scene().predicted_len > 0).all()
    assert not np.array_equal(told.render(), untold.render())
    untold.render()
    assert np.array_equal(bars_of(frame().predicted)[1], bars_of(frame().output)[1])
    rows = [line.split() for line in untold._recorder.text().splitlines() if " ? " in line + " "]
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
        "import sys, kvgym.envs.rendering.episode, kvgym.cli.render\n"
        "from kvgym.envs.scheduling.environment import ServingEnv\n"
        "env = ServingEnv(render_mode='ansi', num_requests=3)\n"
        "env.reset(seed=0)\n"
        "assert 'waiting' in env.render()\n"
        "assert not {'matplotlib', 'PIL', 'imageio'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    env = after(1)
    with pytest.raises(ConfigError, match=r'pip install "kvgym\[report\]"'):
        env.render()
    with pytest.raises(ConfigError, match="matplotlib"):
        record_episode(env, path=tmp_path / "a.gif")
