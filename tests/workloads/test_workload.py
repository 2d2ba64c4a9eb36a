import json
import subprocess
import sys

import numpy as np
import pytest

from kvgym.errors import ConfigError, UnknownNameError, WorkloadError
from kvgym.workloads import (
    RequestTable,
    Workload,
    WorkloadSpec,
    describe_presets,
    load_trace,
    make_workload,
    mcsf_instance,
    preset_names,
    write_requests,
)
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.traces import write_sample_trace

TWO_CLASSES = [
    {
        "prompt": {"kind": "constant", "value": 3},
        "output": {"kind": "uniform", "low": 1, "high": 9},
        "rate": 2,
    },
    {"prompt": {"kind": "constant", "value": 5}, "output": {"kind": "constant", "value": 7}, "rate": 6},
]


def same(a: RequestTable, b: RequestTable, *names: str) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names or a.columns())


@pytest.mark.parametrize("name", preset_names())
def test_presets(name: str):
    workload = make_workload(name)
    table = workload.sample(3)
    assert len(table) >= 20
    assert same(table, make_workload(name).sample(3))
    drawn = not name.startswith("mcsf-adversarial")  # the adversarial instance is deterministic
    assert same(table, workload.sample(4), "output_len") != drawn
    assert same(table, table.replace(), "predicted_output_len")
    np.testing.assert_array_equal(table.predicted_output_len, table.output_len)
    text = json.dumps(workload.provenance())
    assert same(table, make_workload(json.loads(text)["spec"]).sample(3))
    description = describe_presets()[name]
    assert "\n" not in description
    assert 20 < len(description) < 110


def test_lmsys_statistics():
    # MC-SF, Section 5.2. Standard errors at n = 200,000: 0.3 and 0.3 tokens; limits lower the means < 1 %.
    table = make_workload("lmsys", num_requests=200_000).sample(0)
    assert np.median(table.prompt_len) == 11
    assert np.median(table.output_len) == pytest.approx(45, abs=1)
    assert table.prompt_len.mean() == pytest.approx(40.62, rel=0.025)
    assert table.output_len.mean() == pytest.approx(85.32, rel=0.015)
    assert table.prompt_len.max() <= 4096
    assert table.output_len.max() <= 2048
    assert len(table) / table.arrival_time[-1] == pytest.approx(50, rel=0.01)
    assert any("prompt clipped to 4096" in note for note in table.notes)
    spec = make_workload("lmsys").spec
    assert spec.lengths.prompt.limited_mean(high=4096) == pytest.approx(40.62, rel=0.01)
    assert spec.lengths.output.limited_mean(high=2048) == pytest.approx(85.32, rel=0.01)


def test_flow_is_three_equal_streams_in_integer_slots():
    workload = make_workload("flow")
    table = workload.sample(0)
    assert np.all(table.arrival_time == np.floor(table.arrival_time))
    assert table.arrival_time[[0, -1]].tolist() == [0, 999]
    np.testing.assert_allclose(np.bincount(table.class_id) / 1000, 5, rtol=0.05)
    np.testing.assert_array_equal(table.output_len, np.array([20, 40, 60])[table.class_id])
    np.testing.assert_allclose(workload.class_rates, [5, 5, 5])


def test_wait_presets():
    high = make_workload("wait-high")
    table = high.sample(0)
    np.testing.assert_allclose(np.bincount(table.class_id) / len(table), [1 / 2, 1 / 3, 1 / 6], atol=0.02)
    assert len(table) / table.arrival_time[-1] == pytest.approx(12_000, rel=0.05)
    assert make_workload("wait-nested").class_rates.tolist() == [20, 40, 80, 160]
    assert make_workload("wait-bins-low").mean_rate == 55


@pytest.mark.parametrize(
    ("name", "share"), [("slai", 0.05), ("slai-paying-50", 0.5), ("slai-paying-95", 0.95)]
)
def test_slai_presets(name: str, share: float):
    table = make_workload(name, duration=40_000).sample(0)
    assert np.median(table.prompt_len) == pytest.approx(1730, rel=0.03)
    assert np.quantile(table.output_len, 0.9) == pytest.approx(834, rel=0.03)
    assert np.max(table.prompt_len + table.output_len) == 8192
    paying = table.class_id == 0
    assert paying.mean() == pytest.approx(share, abs=0.01)
    np.testing.assert_array_equal(table.tbt_slo, np.where(paying, 0.1, 0.5))
    np.testing.assert_array_equal(table.priority, paying)
    assert same(
        table, make_workload("slai", duration=40_000).sample(0), "arrival_time", "prompt_len", "output_len"
    )


def test_stab_lengths_are_independent():
    table = make_workload("stab-2-1").sample(0)
    assert table.prompt_len.max() <= 2133
    assert table.output_len.min() >= 5
    assert abs(np.corrcoef(table.prompt_len, table.output_len)[0, 1]) < 0.04


def test_mcsf_instances():
    capacities, rates = [], []
    for seed in range(300):
        table, kv_capacity = mcsf_instance(1, seed)
        assert 40 <= len(table) <= 60
        assert np.all(table.arrival_time == 0)
        assert np.all((table.prompt_len >= 1) & (table.prompt_len <= 5))
        assert np.all(table.prompt_len + table.output_len <= kv_capacity)
        capacities.append(kv_capacity)
        online, same_capacity = mcsf_instance(2, seed)
        assert same_capacity == kv_capacity
        assert online.arrival_time.min() >= 1
        assert online.arrival_time.max() <= 60
        rates.append(len(online) / 50)
    assert set(capacities) == set(range(30, 51))
    assert np.mean(rates) == pytest.approx(1, abs=0.08)


def test_streams_are_independent():
    base = make_workload("lmsys").sample(1)
    noisy = make_workload("lmsys", predictions={"kind": "noisy", "epsilon": 0.5}).sample(1)
    assert same(base, noisy, "arrival_time", "prompt_len", "output_len")
    assert not same(base, noisy, "predicted_output_len")
    bursty = make_workload("lmsys", arrivals={"kind": "gamma", "rate": 50, "burstiness": 0.2}).sample(1)
    assert same(base, bursty, "prompt_len", "output_len", "predicted_output_len")
    assert not same(base, bursty, "arrival_time")
    shorter = make_workload("lmsys", lengths={"output": {"kind": "constant", "value": 9}}).sample(1)
    assert same(base, shorter, "arrival_time", "prompt_len")
    classes = [{"tbt_slo": 0.1}, {"weight": 3}]
    assert same(
        base, make_workload("lmsys", classes=classes).sample(1), "arrival_time", "prompt_len", "output_len"
    )


@pytest.mark.parametrize("name", ["lmsys", "slai", "wait-low", "wait-bins-low", "stab-1-1", "flow"])
def test_first_requests_of_a_longer_run_are_equal(name: str):
    predictions = {"kind": "noisy", "epsilon": 0.5}
    long = make_workload(name, num_requests=3000, predictions=predictions).sample(2)
    short = make_workload(name, num_requests=700, predictions=predictions).sample(2)
    for column, values in short.columns().items():
        np.testing.assert_array_equal(values, getattr(long, column)[:700])


def test_rate_stretches_the_same_workload():
    base, slow = make_workload("lmsys").sample(1), make_workload("lmsys", rate=10).sample(1)
    np.testing.assert_allclose(slow.arrival_time, 5 * base.arrival_time, rtol=1e-12)
    assert same(base, slow, "prompt_len", "output_len")
    assert make_workload("wait-low", rate=500).class_rates.tolist() == [250, 250]
    with pytest.raises(ConfigError, match="no rate to change"):
        make_workload("mcsf-model-1", rate=3)
    with pytest.raises(ConfigError, match="rate must be"):
        make_workload("lmsys", rate=0)


def test_classes_with_rates_are_independent_poisson_streams():
    spec = {"classes": TWO_CLASSES, "duration": 5000.0}
    workload = make_workload(spec)
    table = workload.sample(0)
    assert workload.class_rates.tolist() == [2, 6]
    assert workload.mean_rate == 8
    for c, rate in ((0, 2), (1, 6)):
        times = table.arrival_time[table.class_id == c]
        assert len(times) / 5000 == pytest.approx(rate, rel=0.04)
        gaps = np.diff(times)
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.04)
    faster = make_workload(spec, classes=[TWO_CLASSES[0], {**TWO_CLASSES[1], "rate": 20}]).sample(0)
    of = lambda t, c: t.select(t.class_id == c)  # noqa: E731
    assert same(of(table, 0), of(faster, 0), "arrival_time", "prompt_len", "output_len")


def test_classes_with_their_own_arrivals():
    day = {"kind": "sinusoid", "rate": 3, "period": 100, "amplitude": 0.9}
    classes = [
        {**TWO_CLASSES[0], "rate": None, "arrivals": day},
        {**TWO_CLASSES[1], "rate": None, "arrivals": {"kind": "deterministic", "rate": 1}},
    ]
    workload = make_workload({"classes": classes, "num_requests": 800})
    table = workload.sample(0)
    assert workload.class_rates.tolist() == [3, 1]
    np.testing.assert_array_equal(
        table.arrival_time[table.class_id == 1], np.arange(np.sum(table.class_id == 1))
    )
    assert len(table) == 800


def test_class_predictions_know_the_classes_not_the_sample():
    workload = make_workload({"classes": TWO_CLASSES, "num_requests": 3, "predictions": {"kind": "class"}})
    table = workload.sample(0)
    np.testing.assert_array_equal(table.predicted_output_len, np.array([9, 7])[table.class_id])
    mean = make_workload(workload.spec, predictions={"statistic": "mean"}).sample(0)
    np.testing.assert_array_equal(mean.predicted_output_len, np.array([5, 7])[mean.class_id])


def test_overrides_merge_and_replace():
    assert make_workload("lmsys", arrivals={"rate": 7}).spec.arrivals.rate == 7
    assert make_workload("lmsys", arrivals={"kind": "all_at_once"}).spec.arrivals.kind == "all_at_once"
    assert make_workload("lmsys", duration=5).spec.num_requests is None
    assert make_workload({"preset": "lmsys", "num_requests": 5}).spec.num_requests == 5
    assert make_workload({"preset": "lmsys", "duration": 5}, num_requests=6).spec.num_requests == 6
    spec = make_workload("lmsys").spec
    assert make_workload(spec).spec == spec
    assert WorkloadSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "no arrivals"),
        ({"preset": "lmsys", "nmu_requests": 5}, "nmu_requests"),
        ({"preset": "lmsys", "arrivals": {"kind": "poison", "rate": 5}}, "arrivals: .*'poisson'"),
        ({"preset": "lmsys", "arrivals": {"rate": -5}}, "arrivals.*rate: .*greater than 0"),
        ({"preset": "lmsys", "num_requests": 5, "duration": 5}, "not both"),
        ({"preset": "lmsys", "num_requests": 0}, "num_requests"),
        ({"arrivals": {"kind": "poisson", "rate": 5}, "num_requests": 5}, "no lengths"),
        ({"preset": "lmsys", "num_requests": None}, "give num_requests"),
        ({"preset": "wait-low", "arrivals": {"kind": "poisson", "rate": 5}}, "use class weights"),
        ({"preset": "lmsys", "classes": [{"weight": 1}, {"rate": 1}]}, "mix rate and weight"),
        ({"preset": "lmsys", "classes": [{"weight": 1, "rate": 1}]}, "one of weight, rate and arrivals"),
        ({"preset": "lmsys", "arrivals": {"kind": "all_at_once"}, "duration": 5.0}, "need num_requests"),
    ],
)
def test_mistakes_are_named(spec, message: str):
    with pytest.raises(ConfigError, match=message):
        make_workload(spec).sample(0)


def test_the_request_table_loads_neither_scipy_nor_pydantic():
    code = "import sys, kvgym.workloads.table; print({'pydantic', 'scipy'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


def test_empty_horizon():
    assert len(make_workload("slai", duration=1e-6).sample(0)) == 0


def test_unknown_preset_suggests():
    with pytest.raises(UnknownNameError, match="lmsys"):
        make_workload("lmsis")


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_bad_seed(seed):
    with pytest.raises(ConfigError, match="seed"):
        make_workload("lmsys").sample(seed)


def test_replay_of_a_trace_file(tmp_path):
    path = tmp_path / "requests.csv"
    written = write_sample_trace(path, "azure")
    workload = make_workload(path)
    table = workload.sample(0)
    assert same(written, table, "arrival_time", "prompt_len", "output_len")
    np.testing.assert_array_equal(table.predicted_output_len, table.output_len)
    assert workload.mean_rate == pytest.approx(199 / table.arrival_time[-1])
    assert workload.provenance()["trace"]["sha256"] == load_trace(path).sha256
    path.unlink()  # sampling does no I/O
    assert same(table, workload.sample(5))


def test_replay_options(tmp_path):
    path = tmp_path / "requests.csv"
    written = write_sample_trace(path, "azure")
    base = make_workload(str(path))
    first = make_workload(base.spec, num_requests=20, limits={"max_prompt_len": 300}).sample(0)
    assert len(first) == 20
    assert first.prompt_len.max() == 300
    assert any("clipped to 300" in note for note in first.notes)
    half = make_workload(base.spec, lengths={"rate_scale": 2, "start": 10, "end": 20}).sample(0)
    inside = (written.arrival_time >= 10) & (written.arrival_time < 20)
    np.testing.assert_allclose(half.arrival_time, (written.arrival_time[inside] - 10) / 2)
    short = make_workload(base.spec, duration=15).sample(0)
    assert len(short) == np.sum(written.arrival_time < 15)
    paced = make_workload(base.spec, arrivals={"kind": "deterministic", "rate": 2}).sample(0)
    np.testing.assert_array_equal(paced.arrival_time, np.arange(200) / 2)
    assert same(paced, written, "prompt_len", "output_len")
    tiers = make_workload(base.spec, classes=[{"tbt_slo": 0.1}, {"weight": 4}]).sample(0)
    assert same(tiers, written, "arrival_time", "prompt_len", "output_len")
    assert 10 < np.sum(tiers.tbt_slo == 0.1) < 80


def test_resampled_trace_keeps_pairs(tmp_path):
    path = tmp_path / "requests.jsonl"
    written = write_sample_trace(path, "kvgym")
    spec = {
        "lengths": {"kind": "trace", "path": str(path), "mode": "resample"},
        "arrivals": {"kind": "poisson", "rate": 3},
        "num_requests": 1000,
    }
    table = make_workload(spec).sample(0)
    pairs = set(zip(written.prompt_len.tolist(), written.output_len.tolist(), strict=True))
    assert set(zip(table.prompt_len.tolist(), table.output_len.tolist(), strict=True)) <= pairs
    assert table.prompt_len.mean() == pytest.approx(written.prompt_len.mean(), rel=0.15)


def test_timeless_trace_takes_an_arrival_process(tmp_path):
    path = tmp_path / "chats.json"
    write_sample_trace(path, "sharegpt", 30)
    at_once = make_workload(str(path)).sample(0)
    assert np.all(at_once.arrival_time == 0)
    assert any("no arrival times" in note for note in at_once.notes)
    paced = make_workload(str(path), arrivals={"kind": "poisson", "rate": 2}).sample(0)
    assert len(np.unique(paced.arrival_time)) == 30
    assert not any("no arrival times" in note for note in paced.notes)


def test_recorded_predictions_are_kept(tmp_path):
    path = tmp_path / "requests.parquet"
    write_requests(RequestTable([0, 1], [1, 1], [5, 6], predicted_output_len=[7, 8]), path)
    assert make_workload(str(path)).sample(0).predicted_output_len.tolist() == [7, 8]
    exact = make_workload(str(path), predictions={"kind": "exact"}).sample(0)
    assert exact.predicted_output_len.tolist() == [5, 6]


def test_trace_given_as_object(tmp_path):
    path = tmp_path / "chats.jsonl"
    write_sample_trace(path, "lmsys", 10)
    characters = load_trace(path, tokenizer=len)
    spec = WorkloadSpec(lengths={"kind": "trace", "path": str(path)})
    assert Workload(spec, characters).sample(0).prompt_len.sum() > Workload(spec).sample(0).prompt_len.sum()
    with pytest.raises(ConfigError, match="not of kind 'trace'"):
        Workload(make_workload("lmsys").spec, characters)
    with pytest.raises(WorkloadError, match="no request between"):
        make_workload(spec, lengths={"start": 5.0}).sample(0)


def test_class_statistics_reach_the_table() -> None:
    workload = make_workload("wait-low", num_requests=20)
    table = workload.sample(0)
    assert [(c.name, c.rate, c.prompt_len, c.output_len) for c in table.classes] == [
        ("10+10", 1000.0, 10.0, 10.0),
        ("10+20", 1000.0, 10.0, 20.0),
    ]
    assert table.select(slice(0, 3)).classes == table.replace(priority=None).classes == table.classes
    assert make_workload("slai").class_statistics[0].prompt_len == pytest.approx(
        make_workload("slai").class_statistics[1].prompt_len
    )
    assert make_workload("lmsys").sample(0).classes == ()


def test_class_ids_must_be_described() -> None:
    with pytest.raises(WorkloadError, match="class_id 2 has no entry"):
        make_workload("wait-low", num_requests=3).sample(0).replace(class_id=[0, 2, 1])
    with pytest.raises(WorkloadError, match="rate = 0"):
        ClassStatistics("idle", 0, 1, 1)


def test_rate_and_number_are_of_the_replayed_requests(tmp_path):
    """The first rows of a trace have a different rate; a file with only these rows gives the same requests."""
    times = [0, 1, 2, 3, 3.1, 3.2, 3.3, 3.4]
    for name, rows in (("all", times), ("first", times[:4])):
        lines = "".join(f"{t},5,2\n" for t in rows)
        (tmp_path / f"{name}.csv").write_text(f"arrival_time,prompt_len,output_len\n{lines}")
    whole = {"trace": str(tmp_path / "all.csv")}
    first = make_workload(tmp_path / "first.csv")
    for changes, rate in (
        ({"num_requests": 4}, 1), ({"end": 3.05}, 1), ({"duration": 3.05}, 1),
        ({"duration": 1.5, "rate_scale": 2}, 2 * 2 / 2), ({"start": 3, "num_requests": 3}, 10), ({}, 7 / 3.4),
        ({"num_requests": 1}, np.inf),
    ):  # fmt: skip
        workload = make_workload({**whole, **changes})
        table = workload.sample(0)
        assert workload.mean_rate == pytest.approx(rate), changes
        assert workload.size == len(table), changes
    cut = make_workload({**whole, "num_requests": 4})
    assert (cut.mean_rate, cut.size) == (first.mean_rate, first.size) == (1, 4)
    assert same(cut.sample(0), first.sample(0), "arrival_time", "prompt_len")


def test_a_number_that_depends_on_the_seed_is_unknown(tmp_path):
    path = tmp_path / "requests.csv"
    write_sample_trace(path, "azure")
    trace = {"trace": str(path)}
    assert make_workload({**trace, "num_requests": {"low": 2, "high": 9}}).size is None
    assert make_workload({**trace, "duration": 5, "debatch": True}).size is None
    poisson = {"arrivals": {"kind": "poisson", "rate": 3}}
    assert make_workload({**trace, **poisson, "duration": 5}).size is None
    assert make_workload({**trace, **poisson, "num_requests": 7}).size == 7
    assert make_workload("flow").size is None
    assert make_workload("lmsys").size == 1000


def test_requests_carry_the_rates_that_have_drawn_them():
    bursts = {"every": 20.0, "length": 5.0, "factor": 2.0}
    base = {"kind": "poisson", "rate": 8}
    lengths = {"kind": "independent", "prompt": TWO_CLASSES[0]["prompt"], "output": TWO_CLASSES[0]["output"]}
    spec = {
        "lengths": lengths,
        "num_requests": 400,
        "arrivals": {"kind": "bursty", "base": base, "bursts": bursts},
    }
    table = make_workload(spec).sample(3)
    rates = table.rates
    assert rates is not None
    assert rates.mean.rates == (10.0,)
    assert set(rates.drawn.rates) == {8.0, 16.0}
    assert rates != make_workload(spec).sample(4).rates
    assert table.select(slice(0, 10)).rates == rates
    fast = table.faster(2.0).rates
    assert fast is not None
    assert fast.mean.rates == (20.0,)
    assert fast.drawn.times[1] == rates.drawn.times[1] / 2
    assert (
        make_workload("wait-low", num_requests=5).sample(0).rates is None
    )  # classes have their own processes
