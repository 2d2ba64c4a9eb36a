"""Recordings of episodes, from Python and on the command line."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import typer
from PIL import Image, ImageColor
from typer.testing import CliRunner

from helpers.environments.rendered import TIGHT, after
from kvgym.cli import console
from kvgym.cli.commands.render import render
from kvgym.envs import registration
from kvgym.envs.rendering.episode import record_episode, record_episodes
from kvgym.envs.rendering.film import Film, side_by_side
from kvgym.envs.rendering.picture import GREEN, draw_summary
from kvgym.envs.rendering.scene import SERVED
from kvgym.envs.scheduling.actions import catalogue
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv, greedy_action
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.runner import simulate
from kvgym.simulator.tables import ACTIVE

# ---------------------------------------------------------------- recordings


def test_recording(tmp_path):
    files = [(tmp_path / f"{k}" / "a.gif", tmp_path / f"{k}.png") for k in range(2)]
    for path, png in files:
        record = record_episode(TIGHT, seed=2, path=path, png=png, fps=5, max_frames=6)
        assert (record.path, record.png) == (path, png)
        assert record.completed
        assert 3 <= record.frames <= 6
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
    assert np.abs(last - env.render()).mean() < 0.5  # except for the palette
    assert (last[:5] == 255).all()
    assert record.metrics["finished"] == 40
    assert record.metrics["e2e_latency_mean"] == pytest.approx(-record.total_reward)


def test_summary_shows_the_whole_episode():
    env = after(2000)
    scene = env._recorder.scene(whole=True)
    assert scene.rows.tolist() == list(range(40))
    picture = draw_summary(scene, "greedy")
    assert np.array_equal(picture, draw_summary(scene, "greedy"))
    assert (picture[:5] == 255).all()
    assert (picture[:, :10] == 255).all()
    finished = (picture[450:748, 73:980] == np.array(ImageColor.getrgb(GREEN), np.uint8)).all(axis=2)
    seconds = (scene.spans.end - scene.spans.start)[scene.spans.kind == SERVED].sum()
    pixels = 0.8 * (748 - 450) / 40 * (980 - 72) / scene.clock * seconds
    assert finished.sum() == pytest.approx(pixels, rel=0.1)


def test_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    import imageio_ffmpeg

    path = tmp_path / "a.mp4"
    record = record_episode(TIGHT, path=path, fps=10, max_frames=8)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == record.frames
    assert 4 + 20 <= frames <= 8 + 20  # the last picture stays for two seconds
    assert seconds == pytest.approx(frames / 10, abs=0.11)


def test_video_without_its_library(monkeypatch, tmp_path):
    monkeypatch.setattr("kvgym.envs.recordable.find_spec", lambda name: None if "ffmpeg" in name else True)
    with pytest.raises(ConfigError, match="imageio_ffmpeg"):
        record_episode(TIGHT, path=tmp_path / "a.mp4")


@pytest.mark.parametrize("action", ["admit_count", "admit_evict", "flags", "knobs", "tokens"])
def test_greedy_and_random_play_every_kind_of_action(action):
    config = EnvConfig.of(action=action, **{**TIGHT, "num_requests": 10, "kv_capacity": 600})
    greedy = record_episode(config)
    assert greedy.completed
    assert greedy.frames == 0
    steps = [record_episode(config, "random", seed=s, max_steps=50).total_reward for s in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]


def test_greedy_admits_what_fits():
    states = set()
    for action in ("admit_evict", "flags"):  # the same decisions with two kinds of action
        env = after(0, "ansi", action=action)
        while env.view.iteration < 40:
            env.step(greedy_action(env.config, env.action_masks()))
        states.add((env.view.clock, tuple(env.tables.requests["status"].tolist())))
    assert len(states) == 1
    assert ACTIVE in states.pop()[1]


def test_functions_agents_and_wrapped_environments():
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


@pytest.mark.parametrize("name", ["mc_sf:protection=0.1", "fcfs"])
def test_schedulers_play_as_in_simulate(name):
    env = ServingEnv(action="knobs", **TIGHT)
    record = record_episode(env, name, workload_seed=7, seed=7)
    table = env.episodes.slots[0].table
    result = simulate(env.episodes.system, table, name, seed=7)
    assert record.name == name
    assert record.metrics == pytest.approx(compute_metrics(result), abs=0, nan_ok=True)
    assert record.steps == result.worker["decisions"][0]
    assert record.completed
    assert np.isnan(record.total_reward)


def test_a_livelock_is_shown():
    class Idle(Policy):
        info = PolicyInfo(name="idle", summary="admits nothing")

        def schedule(self, view):
            return Decision()

    record = record_episode(TIGHT, Idle())
    assert (record.name, record.completed) == ("idle", False)
    assert record.metrics["finished"] == 0


def test_side_by_side(tmp_path):
    path, png = tmp_path / "a.gif", tmp_path / "a.png"
    both = record_episodes(TIGHT, ["greedy", "mc_sf"], seed=2, path=path, png=png, max_frames=4)
    alone = [record_episode(TIGHT, policy, seed=2) for policy in ("greedy", "mc_sf")]
    for record, own in zip(both, alone, strict=True):
        assert record.metrics == pytest.approx(own.metrics, abs=0, nan_ok=True)
        assert record.steps == own.steps
        assert 2 <= record.frames <= 4
    assert both[0].metrics["e2e_latency_mean"] != both[1].metrics["e2e_latency_mean"]
    with Image.open(path) as gif:
        assert gif.size == (1600, 628)
    with Image.open(png) as summary:
        assert summary.size == (2000, 800)


def test_films_side_by_side_show_the_same_moments():
    films = [Film(100), Film(100)]
    for film, clocks in zip(films, ([0, 1, 2, 3, 4], [0, 3, 8]), strict=True):
        film.scenes = [SimpleNamespace(clock=clock) for clock in clocks]
    shown = [tuple(scene.clock for scene in moment) for moment in side_by_side(films, 5)]
    assert shown == [(0, 0), (2, 0), (4, 3), (4, 3), (4, 8)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "gredy"}, UnknownNameError, "Did you mean 'greedy'"),
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
    """Return a function that runs ``kvgym render`` and returns its result."""
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
    assert "20 requests finished, mean latency " in result.output
    assert "b.gif" in result.output
    with Image.open(tmp_path / "b.gif") as gif:
        assert 2 <= gif.n_frames <= 4
        assert gif.info["duration"] == 250
    with Image.open(tmp_path / "b.png") as png:
        png.load()


def test_command_takes_the_options_of_scenarios(command, tmp_path):
    (tmp_path / "log.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n1,5,3\n1,9,4\n")
    unit = (
        "--set",
        "batch_time=unit",
        "--rules",
        "paper",
        "--kv-capacity",
        20,
        "--max-frames",
        4,
        "-o",
        "b.gif",
    )
    result = command("--trace", "log.csv", "-n", 2, *unit)
    assert result.exit_code == 0, result.output
    assert "2 requests finished, mean latency 2.5" in result.output  # 2 and 3 batches of one second


@pytest.mark.long
def test_command_shows_policies_and_agents_side_by_side(command):
    result = command("-n", 15, "--rate", 40, "--max-frames", 4, "-o", "b.gif", "-p", "mc_sf,ppo_noisy")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == ["mc_sf", "ppo_noisy", "animation:", "summary:"]
    assert all("15 requests finished" in line for line in lines[:2])
    with Image.open("b.png") as png:
        assert png.size == (2000, 800)


@pytest.mark.parametrize("given", [["--workers", 3, "--scheduler", "fcfs"], ["--policies", "random"]])
def test_command_routes(command, tmp_path, given):
    result = command("Route-v0", "-n", 30, "--rate", 50, "--max-frames", 4, "-o", "b.gif", *given)
    assert result.exit_code == 0, result.output
    player = "random" if "random" in given else "round_robin"
    assert f"{player} on rush: 30 steps, 30 requests finished, mean latency " in result.output
    for name in ("b.gif", "b.png"):
        with Image.open(tmp_path / name) as image:
            image.load()


def test_command_takes_environments_of_plugins(command, monkeypatch):
    monkeypatch.setattr(registration.ACTIONS, "_items", dict(registration.ACTIONS._items))
    monkeypatch.setattr(catalogue, "_KINDS", {})
    kind = registration.ACTIONS["admit_count"].kind
    registration.register_action("mine", "mine/Count-v0", kind, "as many as fit")
    try:
        result = command("mine/Count-v0", "-n", 5, "--max-frames", 4)
    finally:
        del gym.registry["mine/Count-v0"]
    assert result.exit_code == 0, result.output
    assert "5 requests finished, mean latency " in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["AdmitCont-v0"], "kvgym/AdmitCount-v0"),
        (["Rout-v0"], "kvgym/Route-v0"),
        (["Route-v0", "--policies", "greedy"], "join_shortest_queue, least_outstanding_work, lmetric"),
        (["Route-v0", "--scheduler", "nothing"], "nothing"),
        (["AdmitCount-v0", "--workers", 4], "--workers is for kvgym/Route-v0"),
        (["--scheduler", "mc_sf"], "--scheduler is for kvgym/Route-v0"),
        (["kvgym/AdmitCount-v0", "--policies", "best"], "greedy"),
        (["--scenario", "nowhere"], "a100-llama2-70b"),
        (["-o", "a.webm"], ".gif or .mp4"),
        (["--png", "a.svg"], ".png"),
    ],
)
def test_command_names_valid_values(command, arguments, message):
    result = command(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
