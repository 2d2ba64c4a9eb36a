"""Pictures, texts and recordings of episodes show what happened, and nothing the agent may not know."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from kvgym.cli import console
from kvgym.cli.render import render
from kvgym.envs.rendering import recorder as rendering
from kvgym.envs.rendering.episode import greedy_action, record_episode
from kvgym.envs.rendering.recorder import History, Recorder
from kvgym.envs.rendering.scene import EVICTED, IN_QUEUE, RUNNING, SERVED, choose_rows, memory_bar
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.simulator.tables import ACTIVE, FINISHED, UNKNOWN, WAITING

TIGHT = {"num_requests": 40, "kv_capacity": 1500, "rate": 40.0}
"""Requests that arrive faster than they can be served, so that some are evicted."""


def play(env, steps, seed=0):
    """Reset and take greedy steps; yields after the reset and after each step."""
    env.reset(seed=seed)
    yield
    for _ in range(steps):
        ended = env.step(greedy_action(env.config, env.action_masks()))[2:4]
        yield
        if any(ended):
            return


def after(steps, render_mode="rgb_array", seed=0, **arguments):
    """Return an environment after some greedy steps."""
    env = ServingEnv(render_mode=render_mode, **{**TIGHT, **arguments})
    for _ in play(env, steps, seed):
        pass
    return env


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


# ---------------------------------------------------------------- what is recorded


def test_spans_are_what_happened():
    env = ServingEnv(render_mode="ansi", **TIGHT)
    status, evictions, clock = np.zeros(40, int), np.zeros(40, int), 0.0
    gaps = {i: [] for i in range(40)}  # followed here from step to step, as the recorder cannot know
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


def test_gaps_of_old_requests_are_forgotten(monkeypatch):
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
        Recorder(10).text()


# ---------------------------------------------------------------- what is hidden


def test_hidden_lengths_and_future_requests_are_not_shown():
    env = after(12)
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


# ---------------------------------------------------------------- recordings


def test_recording(tmp_path):
    files = [(tmp_path / f"{k}" / "a.gif", tmp_path / f"{k}.png") for k in range(2)]
    for path, png in files:
        record = record_episode(TIGHT, seed=2, path=path, png=png, fps=5, max_frames=12)
        assert (record.path, record.png) == (path, png)
        assert record.completed
        assert 6 <= record.frames <= 12
        with Image.open(path) as gif:
            assert gif.size == (800, 600)
            assert gif.n_frames == record.frames
            assert gif.info["duration"] == 200
            gif.seek(gif.n_frames - 1)
            assert gif.info["duration"] == 2000
            last = np.asarray(gif.convert("RGB")).astype(int)
        with Image.open(png) as summary:
            assert summary.size == (1000, 800)
            summary.load()
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]
    env = after(record.steps, seed=2)
    assert np.abs(last - env.render()).mean() < 0.5  # but for the palette
    assert (last[:5] == 255).all()
    assert record.metrics["finished"] == 40
    assert record.metrics["e2e_latency_mean"] == pytest.approx(-record.total_reward)


def test_summary_shows_the_whole_episode():
    from kvgym.envs.rendering.picture import summary_figure

    env = after(2000)
    scene = env._recorder.scene(rows=None)
    memory, queue, gantt = summary_figure(scene, "greedy").axes
    assert np.array_equal(memory.lines[0].get_data(), (scene.time, scene.kv))
    assert np.array_equal(queue.lines[0].get_data(), (scene.time, scene.waiting))
    assert np.array_equal(queue.lines[1].get_data(), (scene.time, scene.active))
    assert gantt.get_ylim() == (39.5, -0.5)
    assert sum(len(bars.get_paths()) for bars in gantt.collections) == len(scene.spans.kind)
    assert "40 of 40 requests finished" in gantt.figure.get_suptitle()


def test_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    import imageio_ffmpeg

    path = tmp_path / "a.mp4"
    record = record_episode(TIGHT, path=path, fps=10, max_frames=8)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == record.frames + 20
    assert seconds == pytest.approx(frames / 10, abs=0.11)


def test_video_without_its_library(monkeypatch, tmp_path):
    monkeypatch.setattr("kvgym.envs.rendering.episode.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="imageio-ffmpeg"):
        record_episode(TIGHT, path=tmp_path / "a.mp4")


@pytest.mark.parametrize("action", ["admit_count", "admit_evict", "flags", "knobs"])
def test_greedy_and_random_play_every_kind_of_action(action):
    config = EnvConfig.of(action=action, **{**TIGHT, "num_requests": 10, "kv_capacity": 600})
    greedy = record_episode(config)
    assert greedy.completed
    assert greedy.frames == 0
    steps = [record_episode(config, "random", seed=s, max_steps=50).total_reward for s in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]


def test_greedy_admits_what_fits():
    states = set()
    for action in ("admit_evict", "flags"):  # the same decisions in two languages
        env = after(0, "ansi", action=action)
        while env.view.iteration < 40:
            env.step(greedy_action(env.config, env.action_masks()))
        states.add((env.view.clock, tuple(env.tables.requests["status"].tolist())))
    assert len(states) == 1
    assert ACTIVE in states.pop()[1]


def test_functions_agents_and_wrapped_environments():
    import gymnasium as gym

    class Agent:
        def predict(self, observation, state=None, deterministic=False, action_masks=None):
            assert deterministic
            assert env.observation_space.contains(observation)
            return int(np.flatnonzero(action_masks)[-1]), None

    class Blind:
        def predict(self, observation, state=None, deterministic=False):
            return 0, None

    env = gym.make("kvgym/AdmitCount-v0", **TIGHT)
    wrapped = gym.wrappers.RecordEpisodeStatistics(env)
    rewards = [
        record_episode(wrapped, policy).total_reward
        for policy in ("greedy", Agent(), lambda observation, mask: int(np.flatnonzero(mask)[-1]))
    ]
    assert len(set(rewards)) == 1
    stopped = record_episode(env, Blind(), max_steps=5)
    assert (stopped.steps, stopped.completed, stopped.metrics) == (5, False, {})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "gredy"}, UnknownNameError, "Did you mean 'greedy'.*greedy, random"),
        ({"policy": 3}, ConfigError, "predict"),
        ({"path": "a.avi"}, ConfigError, r"\.gif or \.mp4"),
        ({"png": "a.jpg"}, ConfigError, r"\.png"),
        ({"fps": 0}, ConfigError, "fps"),
        ({"max_frames": 2}, ConfigError, "max_frames"),
        ({"env": 3}, ConfigError, "an environment of kvgym"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        record_episode(**{"env": TIGHT, **arguments})


# ---------------------------------------------------------------- command line


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run ``kvgym render``; returns its result."""
    from rich.console import Console

    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(render)

    def run(*arguments):
        with monkeypatch.context() as patch:
            output = Console(highlight=False, width=200)
            patch.setattr(console, "out", output)
            return CliRunner().invoke(app, [str(a) for a in arguments])

    return run


def test_command(command, tmp_path):
    result = command(
        "Knobs-v0", "-n", 20, "--kv-capacity", 1500, "--max-frames", 4, "--fps", 4, "-o", "b.gif"
    )
    assert result.exit_code == 0, result.output
    assert "20 requests finished." in result.output
    assert "b.gif" in result.output
    with Image.open(tmp_path / "b.gif") as gif:
        assert 2 <= gif.n_frames <= 4
        assert gif.info["duration"] == 250
    with Image.open(tmp_path / "b.png") as png:
        png.load()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["AdmitCont-v0"], "kvgym/AdmitCount-v0"),
        (["kvgym/AdmitCount-v0", "--policy", "best"], "greedy, random"),
        (["--scenario", "nowhere"], "a100-llama2-70b"),
        (["-o", "a.webm"], ".gif or .mp4"),
        (["--png", "a.svg"], ".png"),
    ],
)
def test_command_names_valid_values(command, arguments, message):
    result = command(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
