import numpy as np
import pytest

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.studies.sweeping.plan import SweepPlan, load_plan, make_plan, plan_names


def test_a_grid_has_every_combination_the_last_field_fastest():
    plan = make_plan({"fields": {"rate": "5:10:5", "kv_capacity": [8000, 9000], "num_requests": 50}})
    assert plan.swept == ("rate", "kv_capacity")
    assert plan.fixed == {"num_requests": 50}
    assert [tuple(p.values()) for p in plan.make_points()] == [(5, 8000), (5, 9000), (10, 8000), (10, 9000)]


def test_fields_can_be_zipped_and_points_added():
    fields = {"rate": [1, 2], "kv_capacity": [8000, 9000]}
    plan = make_plan({"fields": fields, "combine": "zip", "points": [{"rate": 9, "kv_capacity": 7000}]})
    assert plan.make_points() == (
        {"rate": 1, "kv_capacity": 8000}, {"rate": 2, "kv_capacity": 9000}, {"rate": 9, "kv_capacity": 7000},
    )  # fmt: skip
    alone = make_plan({"points": [{"rate": 3}, {"rate": 4}, {"rate": 3}]})
    assert alone.swept == ("rate",)
    assert alone.make_points() == ({"rate": 3}, {"rate": 4})  # equal points count once
    assert make_plan({"fields": {"rate": 3}}).make_points() == ({},)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"field": {}}, "fields: name, summary"),
        ({"fields": {"rate": []}}, "rate: expected at least one value"),
        ({"fields": {"rate": "5:1:1"}}, "low ≤ high"),
        (
            {"fields": {"rate": [1, 2], "kv_capacity": [1, 2, 3]}, "combine": "zip"},
            "different numbers of values",
        ),
        ({"fields": {"rate": [1, 2]}, "points": [{"kv_capacity": 3}]}, "other fields than rate"),
        ({"metrics": ["speed"]}, "unknown metric 'speed'"),
        ({"metrics": []}, "expected at least one"),
        ({"seeds": 0}, "field seeds"),
        ({"combine": "sum"}, "'grid' or 'zip'"),
    ],
)
def test_mistakes_are_named(content, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(content)


def test_too_many_points_are_refused_before_they_are_made():
    wide = dict.fromkeys(("rate", "num_requests", "kv_capacity"), "1:5000:1")
    with pytest.raises(ConfigError, match="125,000,000,000 points"):
        make_plan({"fields": wide}).make_points()


def test_scenarios_by_fields():
    plan = make_plan(
        {"scenario": {"hardware": "llama3-8b-a100-tp1", "workload": "lmsys"}, "fields": {"rate": [1, 2]}}
    )
    assert plan.make_scenario().hardware == "llama3-8b-a100-tp1"
    with pytest.raises(ConfigError, match="workload"):
        make_plan({"scenario": {"hardware": "llama3-8b-a100-tp1"}}).make_scenario()


def test_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("summary: two rates\nfields: {rate: '5:10:5'}\npolicies: fcfs,mc_sf\n")
    plan = load_plan(path)
    assert (plan.name, plan.fields["rate"], plan.policies) == ("mine", (5, 10), ("fcfs", "mc_sf"))
    assert load_plan(str(path)) == plan
    assert make_plan(plan.model_dump()) == plan
    assert SweepPlan.model_validate_json(plan.model_dump_json()) == plan
    for text, message in (
        ("[1", "not valid YAML"),
        ("- 1", "must be a mapping"),
        ("seeds: x", "field seeds"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_plan(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(UnknownNameError, match="unknown sweep 'nothing'"):
        load_plan("nothing")


@pytest.mark.parametrize("name", plan_names())
def test_shipped_sweeps_can_be_run(name):
    from kvgym.studies.sweeping.sweep import sweep

    plan = load_plan(name)
    assert plan.summary
    smaller = plan.model_copy(
        update={"seeds": 1, "fields": {**{k: v[:2] for k, v in plan.fields.items()}, "num_requests": (20,)}}
    )
    result = sweep(smaller)
    assert len(result.runs) == len(smaller.make_points()) * len(result.policies)
    assert not result.errors()


@pytest.mark.parametrize("values", [np.arange(5, 8), [np.int64(5), np.int32(6), 7], range(5, 8), "5:7:1"])
def test_values_of_numpy_are_numbers(values):
    plan = make_plan({"fields": {"rate": values, "kv_capacity": np.int64(9000)}})
    assert plan.fields == {"rate": (5, 6, 7), "kv_capacity": (9000,)}
    assert {type(x) for x in plan.fields["rate"]} == {int}
