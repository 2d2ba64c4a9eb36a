"""The scripts for other frameworks run, and the files for rl-baselines3-zoo say what its trainer accepts."""

import inspect
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

import kvgym
from helpers.script_folders import importing_from
from kvgym.envs import IDS

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts" / "frameworks"
ZOO = ROOT / "configs" / "train" / "zoo"
PAGE = (ROOT / "docs" / "frameworks.md").read_text("utf-8")
TINY = ["--num-envs", "4", "--num-requests", "10", "--eval-seeds", "1"]
# What rl_zoo3 reads itself, before the rest goes to the algorithm.
ZOO_KEYS = {"env_kwargs", "n_envs", "n_timesteps", "normalize", "policy_kwargs"}
ENTRIES = [
    (path.stem, name, entry)
    for path in sorted(ZOO.glob("*.yml"))
    for name, entry in yaml.safe_load(path.read_text("utf-8")).items()
]
IDENTIFIERS = [f"{algorithm}-{name}" for algorithm, name, _ in ENTRIES]


@pytest.fixture(scope="module")
def load():
    """Return what imports a script by name."""
    with importing_from("frameworks") as found:
        yield found


def check_figures(found):
    for key in ("before", "agent", "fcfs", "mc_sf"):
        assert 0 < found[key] < 100
    assert found["steps"] >= 64
    assert found["steps_per_second"] > 0


# ---------------------------------------------------------------- scripts


def test_every_script_compiles_and_is_on_the_page():
    names = {path.name for path in SCRIPTS.glob("*.py")}
    assert names == {"cleanrl_ppo.py", "learners.py", "rllib_ppo.py", "torchrl_ppo.py"}
    for name in names:
        compile((SCRIPTS / name).read_text("utf-8"), name, "exec")
        assert f"python scripts/frameworks/{name}" in PAGE


@pytest.fixture
def one_thread():
    """The scripts set the number of threads of torch."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_cleanrl(load, one_thread, capsys):
    found = load("cleanrl_ppo").main([*TINY, "--steps", "256", "--rollout", "32", "--minibatch", "32"])
    check_figures(found)
    assert found["steps"] == 256
    assert "after training" in capsys.readouterr().out


def test_cleanrl_advantages_stop_at_ends(load, one_thread):
    """By hand: step 1 finishes an episode, step 2 resets, step 3 is truncated and worth its last value."""
    import torch

    rewards = torch.tensor([[1.0], [2.0], [0.0], [4.0]])
    values = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    terminated = torch.tensor([[False], [True], [False], [False]])
    ended = torch.tensor([[False], [True], [False], [True]])
    found = load("cleanrl_ppo").advantages(rewards, values, terminated, ended, 0.5, 0.5)
    last = 4 + 0.5 * 50 - 40
    second = 2 - 20
    first = 1 + 0.5 * 20 - 10 + 0.25 * second
    assert [first, second, last] == found[[0, 1, 3], 0].tolist()


def test_cleanrl_never_chooses_what_is_masked(load, one_thread):
    import torch

    agent = load("cleanrl_ppo").Agent(3, 4)
    mask = np.array([False, True, False, True])
    chosen = {agent.predict(np.ones(3, np.float32), action_masks=mask)[0] for _ in range(50)}
    assert chosen == {1, 3}
    both = torch.as_tensor(mask)
    assert agent.distribution(torch.ones(3), both).probs[~both].sum() == 0


@pytest.mark.filterwarnings("default")
def test_torchrl(load, one_thread):
    pytest.importorskip("torchrl")
    found = load("torchrl_ppo").main([*TINY, "--steps", "128", "--batch", "128", "--minibatch", "64"])
    check_figures(found)


@pytest.mark.filterwarnings("default")
def test_rllib(load, one_thread):
    pytest.importorskip("ray.rllib")
    check_figures(load("rllib_ppo").main([*TINY, "--steps", "128", "--batch", "128"]))


# ---------------------------------------------------------------- the table of learners


def test_the_table_of_learners_by_hand(load):
    """Means over seeds and then trainings: -2 and -4, one of four episodes not served; and what was not run."""
    pytest.importorskip("sb3_contrib")
    results = {0: [[-1.0, True], [-3.0, True]], 1: [[-5.0, True], [-3.0, False]]}
    lines = [
        {"id": "kvgym/Route-v0", "player": "PPO", "how": "drawn", "seed": seed, "results": found}
        for seed, found in results.items()
    ]
    row = "| `Route-v0` | drawn | – | – | – | – | – | -3.0 ± 1.4, 25% stall | – | – |"
    assert load("learners").table(lines).splitlines()[2:] == [row]


def test_a_script_of_cleanrl_runs_as_it_is(load, one_thread, tmp_path):
    """Where it stands, with its arguments, in a folder that it may fill; the agent prefers 2 and draws 1."""
    pytest.importorskip("sb3_contrib")
    (tmp_path / "ppo.py").write_text(
        "import sys, torch\n"
        "assert __name__ == '__main__'\n"
        "open('written', 'w').close()\n"
        "print('steps')\n"
        "class Agent:\n"
        "    arguments = sys.argv[1:]\n"
        "    def actor(self, x): return torch.tensor([[0.0, 0.1, 0.2]]) * x.sum()\n"
        "    def get_action_and_value(self, x): return torch.tensor([1]), None\n"
        "agent = Agent()\n"
    )
    found = load("learners").CleanRL(tmp_path / "ppo.py", "kvgym/Route-v0", 512, 3)
    assert found.agent.arguments == ["--env-id", "kvgym/Route-v0", "--total-timesteps", "512", "--seed", "3"]
    assert found.predict(np.ones(4, np.float32)) == (2, None)
    assert found.predict(np.ones(4, np.float32), deterministic=False) == (1, None)
    assert [path.name for path in tmp_path.iterdir()] == ["ppo.py"]


def test_a_learner_with_changes(load, one_thread, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    script, out = load("learners"), tmp_path / "found.jsonl"
    arguments = ["--ids", "kvgym/Priority-v0", "--learners", "changed", "DQN", "--test-seeds", "1"]
    monkeypatch.setattr("sys.argv", ["learners", *arguments, "--steps", "64", "--out", str(out)])
    script.main()
    row = capsys.readouterr().out.splitlines()[2].split("|")[1:-1]
    constant, drawn, rule, _, dqn, _, _, changed = (text.strip() for text in row[2:])
    assert dqn == "–"  # not for a Box
    assert float(drawn) < float(constant) < float(rule) < 0
    assert abs(float(changed) - float(rule)) < 1  # it starts from no opinion


# ---------------------------------------------------------------- rl-baselines3-zoo


def test_entries_are_those_of_the_page():
    assert IDENTIFIERS == [
        "dqn-kvgym/AdmitCount-v0",
        "ppo-kvgym/AdmitCount-v0",
        "ppo-kvgym/AdmitEvict-v0",
        "ppo-kvgym/Knobs-v0",
    ]
    for path in ZOO.glob("*.yml"):
        assert f"--conf-file configs/train/zoo/{path.name}" in PAGE


@pytest.mark.parametrize(("algorithm", "name", "entry"), ENTRIES, ids=IDENTIFIERS)
def test_entry_suits_the_algorithm(algorithm, name, entry):
    sb3 = pytest.importorskip("stable_baselines3")
    assert name in IDS
    cls = {"ppo": sb3.PPO, "dqn": sb3.DQN}[algorithm]
    given = {key: value for key, value in entry.items() if key not in ZOO_KEYS}
    assert set(given) <= set(inspect.signature(cls).parameters)
    for key, value in given.items():
        if isinstance(value, str) and key != "policy":
            kind, number = value.split("_")
            assert kind == "lin"
            given[key] = float(number)
    if algorithm == "ppo":
        assert entry["n_steps"] * entry["n_envs"] % entry["batch_size"] == 0
        assert set(eval(entry["normalize"])) == {"norm_obs", "norm_reward"}
        given["batch_size"] = entry["n_steps"]  # one environment here
    model = cls(
        env=gym.make(name, **entry["env_kwargs"]),
        policy_kwargs=eval(entry["policy_kwargs"]),  # as rl_zoo3 does
        device="cpu",
        **given,
    )
    model.env.reset()
    model.env.step([model.action_space.sample()])
    assert entry["n_timesteps"] >= 100_000
    assert model.action_space == model.env.action_space


@pytest.mark.parametrize(("algorithm", "name", "entry"), ENTRIES, ids=IDENTIFIERS)
def test_any_request_of_the_entry_fits(algorithm, name, entry):
    """The longest request of the workload must fit, or a training run would end in an error."""
    limits = kvgym.make_workload("lmsys").spec.limits
    assert entry["env_kwargs"]["kv_capacity"] >= limits.max_prompt_len + limits.max_output_len
