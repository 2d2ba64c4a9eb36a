import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.sweeping.fields import (
    check_fields,
    number_range,
    parse_values,
    set_fields,
    with_hyperparameters,
)

BASE = load_scenario("a100-llama2-70b")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5:20:5", (5, 10, 15, 20)),
        ("5:19:5", (5, 10, 15)),
        ("0:0.3:0.1", (0.0, 0.1, 0.2, 0.3)),
        ("1:64:*2", (1, 2, 4, 8, 16, 32, 64)),
        ("1:10:*3", (1, 3, 9)),
        ("0.5:2:*2", (0.5, 1.0, 2.0)),
        ("8000,16492", (8000, 16492)),
        ("1,2:6:2,10", (1, 2, 4, 6, 10)),
        ("none,noisy:epsilon=0.5", (None, "noisy:epsilon=0.5")),
        ("uniform:low=1,high=2|none", ("uniform:low=1,high=2", None)),
        ("affine:constant=0.02,per_context_token=1e-6", ("affine:constant=0.02,per_context_token=1e-6",)),
        ("none,uniform:low=1,high=2,exact", (None, "uniform:low=1,high=2", "exact")),
        ("llama3-8b-a100-tp1", ("llama3-8b-a100-tp1",)),
        ("true", (True,)),
    ],
)
def test_values_as_text(text, values):
    found = parse_values(text)
    assert found == values
    assert [type(x) for x in found] == [type(x) for x in values]


@pytest.mark.parametrize(
    "text", ["", "1,,2", "1,", "5:4:1", "1:2:0", "1:2:-1", "1:8:*1", "0:8:*2", "0:1e9:1"]
)
def test_invalid_values(text):
    with pytest.raises(ConfigError):
        parse_values(text, "field rate: ")


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 20))
def test_ranges_are_those_of_whole_numbers(low, width, step):
    assert number_range(f"{low}:{low + width}:{step}") == tuple(range(low, low + width + 1, step))


def test_fields_by_name_set_what_the_command_line_sets():
    point = {
        "rate": 12,
        "kv_capacity": 8000,
        "num_requests": 50,
        "block_size": 16,
        "predictions": None,
        "horizon": 30,
    }
    made = set_fields(BASE, point)
    assert made.kv_capacity == 8000
    assert (made.system.block_size, made.system.horizon) == (16, 30)
    workload = made.make_workload()
    assert workload.mean_rate == pytest.approx(12)
    assert workload.spec.num_requests == 50
    assert workload.spec.predictions is None or workload.spec.predictions.kind == "none"
    assert (made.name, made.summary) == (BASE.name, BASE.summary)
    assert set_fields(BASE, {"hardware": "llama3-8b-a100-tp1"}).make_system().kv_capacity > 20_000
    assert set_fields(BASE, {"workers": 3, "router": "round_robin"}).workers == 3


def test_fields_inside_parts():
    noisy = set_fields(BASE, {"predictions": "noisy:epsilon=0.1"})
    for name in ("predictions.epsilon", "prediction.epsilon"):
        made = set_fields(noisy, {name: 0.7}).make_workload().spec.predictions
        assert (made.kind, made.epsilon) == ("noisy", 0.7)
    both = set_fields(BASE, {"predictions": "noisy:epsilon=0.1", "predictions.epsilon": 0.3, "rate": 7})
    assert both.make_workload().spec.predictions.epsilon == 0.3
    assert both.make_workload().mean_rate == pytest.approx(7)
    assert set_fields(BASE, {"system.swap_time": 0.01}).system.swap_time == 0.01
    assert set_fields(BASE, {"workload.num_requests": 70}).make_workload().spec.num_requests == 70
    lengths = {
        "kind": "independent",
        "prompt": {"kind": "constant", "value": 10},
        "output": {"kind": "constant", "value": 5},
    }
    fixed = BASE.override(
        workload={"lengths": lengths, "arrivals": {"kind": "poisson", "rate": 3}, "num_requests": 4}
    )
    longer = set_fields(fixed, {"workload.lengths.prompt.value": 99})
    assert longer.make_workload().sample(0).prompt_len.tolist() == [99] * 4
    assert longer.make_workload().sample(0).output_len.tolist() == [5] * 4
    assert fixed.make_workload().sample(0).prompt_len.tolist() == [10] * 4  # the base stays as it is


def test_a_prediction_may_be_complete_only_with_the_fields_inside():
    point = {"predictions": "noisy", "prediction.epsilon": 0.3}
    assert set_fields(BASE, point).make_workload().spec.predictions.epsilon == 0.3
    with pytest.raises(ConfigError, match="set predictions too, as in predictions=noisy"):
        set_fields(BASE, {"predictions.epsilon": 0.3})


def test_a_router_applies_to_points_with_several_workers():
    assert set_fields(BASE, {"workers": 1, "router": "round_robin"}).make_router() is None
    assert set_fields(BASE, {"workers": 2, "router": "round_robin"}).router == "round_robin"


def test_the_handling_of_long_requests_stays():
    dropping = BASE.model_copy(update={"too_long": "drop"})
    assert set_fields(dropping, {"rate": 3}).too_long == "drop"


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"rate": "fast"}, "rate = 'fast'; expected a number"),
        ({"kv_capacity": 8000.5}, "kv_capacity = 8000.5; expected a whole number"),
        ({"num_requests": True}, "expected a whole number"),
        ({"system.speed": 3}, "unknown field of system 'speed'"),
        ({"workload.lengths.prompt.value.x": 3}, "field 'workload.lengths.prompt.value.x'"),
        ({"predictions": "noisy:epsilon=-1"}, "epsilon"),
        ({"router": "round_robin"}, "needs a cluster"),
    ],
)
def test_wrong_values_are_named(point, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        set_fields(BASE, point).make_workload()


def test_unknown_fields_are_named():
    check_fields(
        ["rate", "predictions.epsilon", "system.block_size", "sarathi.token_budget"], ["sarathi", "fcfs"]
    )
    with pytest.raises(UnknownNameError, match="Did you mean 'rate'"):
        check_fields(["rat"], ["fcfs"])
    with pytest.raises(ConfigError, match="policy sarathi is not in the sweep; it compares fcfs, mc_sf"):
        check_fields(["sarathi.token_budget"], ["fcfs", "mc_sf"])
    with pytest.raises(UnknownNameError):
        check_fields(["unknown.token_budget"], ["fcfs"])


def test_hyperparameters_go_to_their_policy():
    point = {"rate": 3, "sarathi.token_budget": 128, "fcfs.protection": 0.1}
    assert with_hyperparameters("sarathi:order=spf", point).hyperparameters() == {
        "order": "spf",
        "token_budget": 128,
    }
    assert with_hyperparameters("mc_sf", point).hyperparameters() == {}
    with pytest.raises(ConfigError, match="sets token_budget, which is swept"):
        with_hyperparameters("sarathi:token_budget=64", point)
    with pytest.raises(ConfigError, match="valid: "):
        with_hyperparameters("fcfs", {"fcfs.speed": 1})
