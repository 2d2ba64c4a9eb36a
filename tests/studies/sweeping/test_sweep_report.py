"""The report of a sweep: figures match the runs, and nothing is averaged over silently."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.pages import HOSTILE, Page, data_of, pictures_of, sweep_frame
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.statistics import mean_interval
from kvgym.metrics.catalogue import metric_names
from kvgym.report.names import field_name, metric_name
from kvgym.studies import write_sweep_report
from kvgym.studies.sweeping.report.fronts import front_of, pareto_front
from kvgym.studies.sweeping.report.maps import heat_maps
from kvgym.studies.sweeping.report.page import outcome
from kvgym.studies.sweeping.report.plots import curves
from kvgym.studies.sweeping.report.runs import SweepRuns, wants_log
from kvgym.studies.sweeping.report.slices import MAX_PANELS, cut, numeric_pairs
from kvgym.utils.frame import Frame

RATES = [{"rate": r} for r in (1, 2, 4, 8)]
GRID = [{"rate": r, "capacity": c} for c in (100, 200, 300) for r in (1, 2, 4)]
CUBE = [{**p, "hardware": h} for h in ("small", "large") for p in GRID]


def report(tmp_path, runs, fields, **options):
    return write_sweep_report(runs, fields, tmp_path / "new" / "sweep.html", **options).read_text("utf-8")


def test_a_sweep_of_one_field(tmp_path):
    text = report(tmp_path, sweep_frame(RATES), ["rate"], title="Rates <&>", command="kvgym sweep rate=1:8")
    page = Page(text)
    said = " ".join(" ".join(page.texts).split())
    assert "24 runs: 2 policies at 4 points of arrival rate, 3 seeds." in said
    assert "Rates <&>" in said
    assert "kvgym sweep rate=1:8" in said
    assert len(pictures_of(text)) == 4 + 2  # curves and fronts
    (panel,) = data_of(text)["charts"]["curve-0-0"]["panels"]
    assert panel["x"]["log"]
    first = panel["series"][0]
    expected = [mean_interval([1 + i + s / 10 for s in range(3)]) for i in range(4)]
    assert (first["name"], first["x"]) == ("a", [1, 2, 4, 8])
    assert first["y"] == pytest.approx([e.value for e in expected], rel=1e-5)
    assert first["y_low"] == pytest.approx([e.low for e in expected], rel=1e-5)
    assert first["y_high"] == pytest.approx([e.high for e in expected], rel=1e-5)
    assert first["text"][1] == "arrival rate = 2; 3 seeds"
    assert "Lowest mean end-to-end latency: a at 4 of 4 points." in said
    assert (panel["x"]["label"], panel["x"]["unit"]) == ("Arrival rate", "requests/s")
    assert "https://" not in text


def test_equal_sweeps_give_equal_reports(tmp_path):
    runs = sweep_frame(GRID[:6])
    assert report(tmp_path, runs, ["rate", "capacity"]) == report(tmp_path, runs, ["rate", "capacity"])


@pytest.fixture(scope="module")
def of_cube(tmp_path_factory):
    """The report of a sweep of three fields."""
    return report(tmp_path_factory.mktemp("cube"), sweep_frame(CUBE), ["rate", "capacity", "hardware"])


def test_every_picture_shows_its_policies(of_cube):
    data = data_of(of_cube)["charts"]
    assert list(data) == pictures_of(of_cube)
    for name, chart in data.items():
        shown = {s["policy"] for panel in chart["panels"] for s in panel["series"]} - {None}
        assert len(shown) == (2 if not name.startswith("map") else name[-1] in "01")


def test_other_fields_make_panels_or_are_fixed_and_named(of_cube):
    runs = SweepRuns(sweep_frame(CUBE), ["rate", "capacity", "hardware"])
    piece = cut(runs, (0,), panels=True)
    assert [title for title, _ in piece.panels] == ["capacity = 100", "capacity = 200", "capacity = 300"]
    assert piece.remarks == ("hardware = small; not shown: large.",)
    for _, points in piece.panels:
        assert [p[0] for p in points] == [1, 2, 4]
        assert {p[2] for p in points} == {"small"}
    piece = cut(runs, (2,), panels=True)
    assert piece.remarks == ("capacity = 200; not shown: 100, 300.",)
    assert piece.remarks[0] in of_cube


def test_panels_are_selected_evenly_and_omissions_named():
    runs = SweepRuns(sweep_frame([{"x": x, "y": y} for x in (1, 2) for y in range(11)]), ["x", "y"])
    piece = cut(runs, (0,), panels=True)
    assert [title for title, _ in piece.panels] == [f"y = {y}" for y in (0, 3, 7, 10)]
    assert len(piece.panels) == MAX_PANELS
    assert piece.remarks == ("Not shown: y = 1, 2, 4, 5, 6, 8, 9.",)


def test_fields_that_change_together_need_no_panels():
    runs = SweepRuns(sweep_frame([{"x": i, "y": 10 * i} for i in range(1, 4)]), ["x", "y"])
    piece = cut(runs, (0,), panels=True)
    assert len(piece.panels) == 1
    assert piece.remarks == ("y varies with it.",)
    assert numeric_pairs(runs) == []


def test_a_hyperparameter_of_one_policy_leaves_the_others_in_every_panel():
    with_alpha = sweep_frame([{"rate": r, "alpha": a} for a in (0.1, 0.2) for r in (1, 2)], policies=("a",))
    without = sweep_frame([{"rate": r, "alpha": None} for r in (1, 2)], policies=("b",))
    both = Frame.from_rows([*with_alpha.rows(), *without.rows()])
    runs = SweepRuns(both, ["rate", "alpha"])
    piece = cut(runs, (0,), panels=True)
    assert [title for title, _ in piece.panels] == ["alpha = 0.1", "alpha = 0.2"]
    assert all(runs.has("b", (rate, None)) for rate in (1, 2))
    assert all((1, None) in points for _, points in piece.panels)
    assert "Without b, which has no alpha." in cut(runs, (1,), panels=True).remarks


def test_a_hyperparameter_of_one_policy_does_not_repeat_the_runs_of_others(tmp_path):
    grid = [{"rate": r, "a.alpha": x} for x in (0.1, 0.2) for r in (1, 2)]
    runs = SweepRuns(sweep_frame(grid), ["rate", "a.alpha"])
    assert len(runs) == 3 * (4 + 2)  # those of b once per rate
    assert runs.points == ((1, 0.1), (1, 0.2), (1, None), (2, 0.1), (2, 0.2), (2, None))
    assert runs.own("b", (1, 0.2)) == (1, None)
    assert (
        outcome(runs, "e2e_latency_mean") == "Lowest mean end-to-end latency: a at 2 and b at 2 of 4 points."
    )
    text = report(tmp_path, sweep_frame(grid), ["rate", "a.alpha"])
    assert "combinations of policy and point" not in text
    assert "Without b, which has no a alpha." in text


def test_metrics_that_are_always_0_have_no_figure(tmp_path):
    rows = [{**row, "evictions": 0} for row in sweep_frame(RATES).rows()]
    text = report(tmp_path, Frame.from_rows(rows), ["rate"], metrics=["evictions", "ttft_mean"])
    assert "Evictions, against" not in text
    assert "Mean time to first token, against arrival rate" in text
    assert "evictions in all runs" in text


def test_names_for_readers():
    assert [metric_name(name) for name in ("ttft_p99", "tbt_mean", "kv_utilisation", "evictions")] == [
        "time to first token, p99", "mean time between tokens", "KV utilisation", "evictions",
    ]  # fmt: skip
    assert field_name("sarathi.token_budget") == "sarathi token budget"
    assert all(metric_name(name).isascii() and "_" not in metric_name(name) for name in metric_names())


def test_heat_maps_show_every_cell_on_one_scale():
    runs = SweepRuns(sweep_frame(GRID, failed={(0, "b", 1)}), ["rate", "capacity"])
    maps = heat_maps(runs, cut(runs, (0, 1), panels=False), "e2e_latency_mean")
    assert [policy for _, policy in maps] == ["a", "b", None]
    panels = [panel for chart, _ in maps for panel in chart.panels]
    assert panels[0].z == panels[1].z == panels[2].z == panels[2].x
    first, second = (panel.series[0] for panel in panels[:2])
    assert np.isnan(second.values["z"]).sum() == second.look["notes"].count("failed") == 1
    at = list(zip(first.values["x"], first.values["y"], strict=True)).index((2, 1))
    assert first.values["z"][at] == pytest.approx(6.1)
    assert first.look["notes"][at] == "6.10"
    assert panels[0].y.quantity.names == ("100", "200", "300")


def test_a_failed_seed_leaves_no_mean_and_is_listed(tmp_path):
    runs = sweep_frame(RATES, failed={(3, "b", 1)})
    text = report(tmp_path, runs, ["rate"])
    assert "1 run failed; the reasons are below." in text
    assert re.search(r"b, arrival rate = 8\s+\(1 of 3 seeds: 1\)", text)
    assert "it got stuck &lt;b&gt;" in text
    (panel,) = data_of(text)["charts"]["curve-0-0"]["panels"]
    assert panel["series"][1]["y"][3] is None
    assert panel["series"][1]["text"][3].endswith("failed")


def test_a_sweep_in_which_all_runs_failed(tmp_path):
    failed = {(i, p, s) for i in range(4) for p in "ab" for s in range(3)}
    text = report(tmp_path, sweep_frame(RATES, failed=failed), ["rate"])
    assert "24 runs failed" in text
    assert pictures_of(text) == []


def test_missing_seeds_and_points_are_shown(tmp_path):
    left_out = [{"rate": 8, "policy": "b"}, {"rate": 1, "seed": 2}]
    runs = Frame.from_rows(
        row for row in sweep_frame(RATES).rows() if not any(out.items() <= row.items() for out in left_out)
    )
    text = report(tmp_path, runs, ["rate"])
    assert "2 means are over fewer seeds" in text
    assert "1 of 8 combinations of policy and point" in text


def test_categories_are_drawn_side_by_side():
    runs = SweepRuns(sweep_frame([{"hardware": h} for h in ("x", "y")]), ["hardware"])
    chart = curves(runs, cut(runs, (0,), panels=True), "goodput")
    (panel,) = chart.panels
    assert panel.x.quantity.names == ("x", "y")
    assert [round(v) for s in panel.series for v in s.values["x"]] == [0, 1, 0, 1]
    assert panel.series[0].values["x"].tolist() != panel.series[1].values["x"].tolist()


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1, 2, 4], True),
        ([0.1, 1, 10, 100], True),
        ([5, 10, 15, 50], False),
        ([1, 3, 50], True),
        (list(range(1, 21)), False),
        ([1, 100], False),
        ([0, 1, 10], False),
        ([8000, 16492], False),
    ],
)
def test_which_fields_have_logarithmic_axes(values, log):
    assert wants_log(values) is log


def test_a_front_by_hand():
    x, y = [1, 2, 3, 2, 4, math.nan], [5, 3, 3, 3, 1, 0]
    assert pareto_front(x, y, lower_x=True, lower_y=True) == [0, 1, 3, 4]
    assert pareto_front(x, y, lower_x=False, lower_y=True) == [4]


numbers = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20)


@given(numbers, st.booleans(), st.booleans())
def test_a_front_is_not_dominated(pairs, lower_x, lower_y):
    x, y = [p[0] for p in pairs], [p[1] for p in pairs]
    signs = (1 if lower_x else -1, 1 if lower_y else -1)
    costs = [(signs[0] * a, signs[1] * b) for a, b in pairs]
    best = {
        i for i, c in enumerate(costs) if not any(d[0] <= c[0] and d[1] <= c[1] and d != c for d in costs)
    }
    assert set(pareto_front(x, y, lower_x=lower_x, lower_y=lower_y)) == best


def test_the_front_of_a_sweep_is_in_the_table(tmp_path):
    runs = sweep_frame(RATES)
    assert front_of(SweepRuns(runs, ["rate"]), "ttft_p99", "tbt_p99") == [("a", (1,))]
    text = report(tmp_path, runs, ["rate"])
    assert "on the front" in text


def test_clairvoyant_policies_are_marked_and_on_no_front(tmp_path):
    known = ("clairvoyant:rule=ranked", "fcfs")  # the first has the lower latency everywhere
    runs = SweepRuns(sweep_frame(RATES, known), ["rate"])
    assert runs.clairvoyant == {known[0]}
    assert front_of(runs, "ttft_p99", "tbt_p99") == [("fcfs", (1,))]
    text = report(tmp_path, sweep_frame(RATES, known), ["rate"])
    assert text.count('<span class="mark">clairvoyant</span>') == len(RATES)
    assert "knows the true lengths" in text
    assert "true lengths" not in report(tmp_path, sweep_frame(RATES, ("fcfs", "mc_sf")), ["rate"])


def without(runs, column):
    return Frame({name: runs[name] for name in runs.columns if name != column})


def test_bad_input_is_explained(tmp_path):
    runs = sweep_frame(RATES)
    with pytest.raises(ConfigError, match="lack speed, policy"):
        report(tmp_path, without(runs, "policy"), ["speed"])
    with pytest.raises(ConfigError, match="policy a, arrival rate = 1, seed 0 appears twice"):
        report(tmp_path, Frame.from_rows([*runs.rows(), *runs.rows()]), ["rate"])
    with pytest.raises(ConfigError, match="has no runs"):
        report(tmp_path, Frame({name: [] for name in runs.columns}), ["rate"])
    with pytest.raises(ConfigError, match="has no fields"):
        report(tmp_path, runs, [])
    with pytest.raises(UnknownNameError, match="goodput"):
        report(tmp_path, runs, ["rate"], metrics=["godput"])
    with pytest.raises(ConfigError, match="lack the metrics ttft_p99"):
        report(tmp_path, without(runs, "ttft_p99"), ["rate"])
    times = Frame({**without(runs, "rate").to_dict(), "rate": np.zeros(len(runs), "M8[s]")})
    with pytest.raises(ConfigError, match="expected numbers, strings or booleans"):
        report(tmp_path, times, ["rate"])


def test_hostile_names_of_columns_policies_values_and_notes(tmp_path):
    field = f"workload.{HOSTILE}"
    rows = [
        {
            field: value, "policy": policy, "seed": seed, "error": HOSTILE if seed else "", "num_requests": 5,
            **dict.fromkeys(metric_names(), float("nan") if seed else 1.0 + k),
        }
        for k, value in enumerate((HOSTILE, "<img src=x onerror=alert(1)>"))
        for policy in (HOSTILE, "</script><b>")
        for seed in (0, 1)
    ]  # fmt: skip
    path = write_sweep_report(
        Frame.from_rows(rows), (field,), tmp_path / "report.html", metrics=("e2e_latency_mean",),
        title=HOSTILE, lead=HOSTILE, notes=[HOSTILE], command=HOSTILE, configuration={HOSTILE: HOSTILE},
    )  # fmt: skip
    text = path.read_text("utf-8")
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert len(re.findall(r"<script\b", text)) == len(re.findall(r"</script>", text))
    assert len(re.findall(r"<script\b", text)) <= 2
