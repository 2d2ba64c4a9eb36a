import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvgym.experiments import identity
from kvgym.experiments.identity import code_digest, run_keys, setting_key
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import POLICIES, Policy, PolicyInfo, make_policy
from kvgym.policies.routing import make_router
from kvgym.studies.sweeping.fields import set_fields

BASE = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 30})


def key(scenario=BASE, policy="fcfs", router=None, seed=0):
    return run_keys(setting_key(scenario), make_policy(policy), router, [seed])[0]


def test_everything_but_labels_counts():
    renamed = BASE.model_copy(update={"name": "other", "summary": "x", "policies": ("mc_sf",), "seeds": 9})
    assert key(renamed) == key()
    assert key(BASE.resolved()) == key()
    others = [
        key(seed=1),
        key(policy="mc_sf"),
        key(policy="fcfs:protection=0.1"),
        key(set_fields(BASE, {"rate": 7})),
        key(set_fields(BASE, {"kv_capacity": 9000})),
        key(set_fields(BASE, {"block_size": 16})),
        key(set_fields(BASE, {"hardware": "llama3-8b-a100-tp1"})),
        key(set_fields(BASE, {"engine": "none"})),
        key(set_fields(BASE, {"predictions": "noisy:epsilon=0.5"})),
        key(set_fields(BASE, {"workers": 2}), router=make_router("round_robin")),
        key(set_fields(BASE, {"workers": 2}), router=make_router("join_shortest_queue")),
    ]
    assert len({key(), *others}) == len(others) + 1


def test_an_explicit_default_is_the_default():
    budget = make_policy("sarathi").content()["token_budget"]
    assert key(policy=f"sarathi:token_budget={budget}") == key(policy="sarathi")
    assert key(policy=f"sarathi:token_budget={budget + 1}") != key(policy="sarathi")


def test_keys_are_equal_in_every_process():
    code = (
        "from kvgym.experiments.identity import *; from kvgym.experiments.scenario import load_scenario; "
        "from kvgym.policies.policy import make_policy; "
        "s = load_scenario('a100-llama2-70b').override(workload={'preset': 'lmsys', 'num_requests': 30}); "
        "print(*run_keys(setting_key(s), make_policy('ranked_latency'), None, [3]))"
    )
    here = key(policy="ranked_latency", seed=3)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": "1"}
    )
    assert run.stdout.strip() == here, run.stderr


def test_contents_of_files_count_but_not_paths(tmp_path):
    rows = "request_id,arrival_time,prompt_len,output_len\n0,0.0,10,5\n1,1.0,20,6\n"
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(rows)
    second.write_text(rows)
    keys = [key(set_fields(BASE, {"trace": str(path)})) for path in (first, second)]
    assert keys[0] == keys[1]
    second.write_text(rows.replace("20", "21"))
    assert key(set_fields(BASE, {"trace": str(second)})) != keys[0]


def test_hardware_files_count_by_their_content(tmp_path):
    folder = Path(identity.__file__).parents[2] / "configs" / "hardware"
    content = yaml.safe_load((folder / "llama3-8b-a100-tp1.yaml").read_text())
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(yaml.safe_dump(content))
    content["kv_capacity"] += 1
    second.write_text(yaml.safe_dump(content))
    assert key(set_fields(BASE, {"hardware": str(first)})) != key(set_fields(BASE, {"hardware": str(second)}))


class Own(Policy):
    """A policy of another package."""

    info = PolicyInfo(name="own", summary="admits no request")

    def __init__(self, *, pace: int = 1) -> None:
        self.pace = pace

    def schedule(self, view):
        return view.consult(None, None)


def test_foreign_policies_count_with_their_code(monkeypatch):
    setting = setting_key(BASE)
    before = run_keys(setting, Own(), None, [0])
    assert before == run_keys(setting, Own(pace=1), None, [0])
    assert before != run_keys(setting, Own(pace=2), None, [0])
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: read(self) + (b"#" if self.name == Path(__file__).name else b"")
    )
    assert run_keys(setting, Own(), None, [0]) != before


def test_the_code_of_the_library_counts(monkeypatch):
    before = code_digest()
    read = Path.read_bytes
    code_digest.cache_clear()
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: read(self) + (b"#" if self.name == "engine.py" else b"")
    )
    assert code_digest() != before
    code_digest.cache_clear()


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_can_be_pickled_and_hashed(name):
    policy = make_policy(name)
    again = pickle.loads(pickle.dumps(policy))
    assert again.content() == policy.content()
    assert run_keys("x", again, None, [0]) == run_keys("x", policy, None, [0])


def test_networks_count_with_their_weights():
    agent = make_policy("ppo_noisy")
    content = agent.content()
    assert content == make_policy("ppo_noisy").content()
    agent.model.arrays[next(iter(agent.model.arrays))] += 1
    assert agent.content() != content


LOADED = """
import sys
from kvgym.experiments.runs import Player, PlannedRun
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.sweeping.fields import set_fields

for name, policy in (
    ("a100-llama2-70b", "fcfs"), ("a100-llama2-70b", "ppo_noisy"), ("a100-llama2-70b", "ranked_latency"),
    ("wait-low", "wait:rule=practical"),
):
    scenario = set_fields(load_scenario(name), {"num_requests": 20})
    (played,) = Player()([PlannedRun(scenario, policy, None, 0, policy)])
    assert not played.record.error, played.record.error
print(*(name for name in sys.modules if name.startswith("kvgym.")))
"""

HARMLESS = (
    "kvgym.configs", "kvgym.errors", "kvgym.experiments.changes",
    "kvgym.experiments.identity", "kvgym.experiments.describing", "kvgym.experiments.scenario_options",
    "kvgym.studies",
)  # fmt: skip


def test_all_modules_loaded_by_runs_count():
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert not run.returncode, run.stderr
    counted = [f"kvgym.{part.removesuffix('.py').replace('/', '.')}" for part in identity.DECISIVE]
    others = {
        name
        for name in run.stdout.split()
        if name != "kvgym.experiments" and not name.startswith((*counted, *HARMLESS))
    }
    assert not others
    assert "kvgym.theory.fluid" in run.stdout.split()


def test_every_decisive_part_exists():
    package = Path(identity.__file__).parents[1]
    for part in identity.DECISIVE:
        path = package / part
        assert path.is_file() or identity._sources_in(path), part


def test_long_arrays_count_with_all_their_numbers():
    def content(numbers):
        return identity._digest({"weights": numbers})

    numbers = np.zeros(5000)
    before = content(numbers)
    assert content(np.zeros(5000)) == before
    numbers[2500] = 1.0  # its text omits it
    assert content(numbers) != before
