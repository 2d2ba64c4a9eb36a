"""The file of an evolved agent: round trip and errors."""

import json

import pytest

import kvgym
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import load_agent, load_model
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import label_of

MODEL = EvolvedModel("weighted", {"count": 3}, {"margin": 0.125, "bias": (0.1, -1e-300, 2.5)}, {"name": "x"})


def write(path, **changes):
    content = {**json.loads(MODEL.to_json()), **changes}
    path.write_text(json.dumps({k: v for k, v in content.items() if v != "removed"}))
    return path


def test_a_round_trip(weighted, tmp_path):
    MODEL.save(tmp_path / "agent.json")
    found = EvolvedModel.load(tmp_path / "agent.json")
    assert found == MODEL
    assert found.to_json() == MODEL.to_json()
    policy = found.make("mine")
    assert policy.info.name == label_of(policy) == "mine"
    assert policy.hyperparameters() == {"count": 3, "margin": 0.125, "bias": (0.1, -1e-300, 2.5)}
    assert type(policy).info.name == "weighted"


def test_by_path_in_a_comparison(tmp_path):
    path = tmp_path / "margin.json"
    EvolvedModel("mc_sf", {"overrun": "extend"}, {"protection": 0.2}).save(path)
    workload = {"preset": "lmsys", "num_requests": 30, "predictions": {"kind": "noisy", "epsilon": 0.5}}
    scenario = kvgym.load_scenario("a100-llama2-70b").override(workload=workload)
    spec = "mc_sf:protection=0.2,overrun=extend"
    comparison = kvgym.compare(scenario, [str(path), spec], seeds=2)
    label = str(path.with_suffix(""))
    assert comparison.policies == (label, spec)
    one, two = (comparison.values(p, "e2e_latency_mean").tolist() for p in comparison.policies)
    assert one == two
    assert comparison.hyperparameters[label] == {"protection": 0.2, "overrun": "extend", "strict": False}
    assert load_model(path).weights == {"protection": 0.2}
    with pytest.raises(ConfigError, match="takes no environment arguments; got hold"):
        load_agent(path, hold=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "kvgym-agent"}, "not an evolved agent"),
        ({"version": 2}, "reads version 1"),
        ({"policy": "removed"}, "missing or unknown: policy"),
        ({"code": "print(1)"}, "missing or unknown: code"),
        ({"policy": "weigthed"}, "unknown policy 'weigthed'. Did you mean 'weighted'"),
        ({"policy": ["weighted"]}, "expected a name"),
        ({"weights": [0.1]}, "weights must be a mapping, got list"),
        ({"weights": {"margn": 0.1}}, "no hyperparameter 'margn'; valid: bias, count, margin"),
        ({"weights": {"margin": 0.76}}, "out of range; expected 0 … 0.75"),
        ({"weights": {"margin": True}}, "needs a number, got True"),
        ({"weights": {"margin": "0.1"}}, "needs a number, got '0.1'"),
        ({"weights": {"bias": [0.0, 0.0]}}, "needs 3 numbers, got 2 entries"),
        ({"weights": {"bias": [0.0, 0.0, None]}}, "needs 3 numbers"),
        ({"weights": {"count": 2}}, "'count' is in both fixed and weights"),
        ({"fixed": {"count": 2}}, "needs 2 numbers, got 3 entries"),
        ({"fixed": {"colour": 2}}, "no hyperparameter 'colour'"),
    ],
)
def test_damaged(weighted, tmp_path, changes, message):
    path = write(tmp_path / "agent.json", **changes)
    with pytest.raises(ConfigError, match=message) as error:
        kvgym.make_policy(str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("\x80", "agent"),
        ("[" * 100_000, "agent"),
        ('{"a": NaN}', "the number NaN; all numbers must be finite"),
        (MODEL.to_json().replace("0.125", "1e999"), "out of range"),
        (MODEL.to_json()[:-9], "agent"),
        ("[1]", "not an evolved agent"),
    ],
    ids=["empty", "binary", "deep", "nan", "infinite", "cut", "list"],
)
def test_not_json(weighted, tmp_path, text, message):
    path = tmp_path / "agent.json"
    path.write_bytes(text.encode("latin-1") if text == "\x80" else text.encode())
    with pytest.raises(ConfigError, match=message):
        EvolvedModel.load(path)


def test_policies_without_declared_weights_check_their_ranges(tmp_path):
    path = tmp_path / "agent.json"
    for value, message in (
        (1.5, "protection = 1.5; expected a fraction"),
        ([0.1], "expected a finite number"),
    ):
        path.write_text(
            json.dumps(
                {
                    **json.loads(MODEL.to_json()),
                    "policy": "mc_sf",
                    "fixed": {},
                    "weights": {"protection": value},
                }
            )
        )
        with pytest.raises(ConfigError, match=message):
            EvolvedModel.load(path)


def test_size_and_absence(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_agent(tmp_path / "none.json")
    monkeypatch.setattr("kvgym.utils.reading.MAX_BYTES", 10)
    MODEL.save(tmp_path / "agent.json")
    with pytest.raises(ConfigError, match="larger than 10 bytes"):
        EvolvedModel.load(tmp_path / "agent.json")
