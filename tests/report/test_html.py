"""The report of a comparison: one file with the setup, failures, and escaped texts."""

import importlib.util
import re

import pytest

from helpers.pages import HOSTILE, Page
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.statistics import Estimate
from kvgym.metrics.catalogue import metric_names
from kvgym.report import content, write_report
from kvgym.report.html import render
from kvgym.report.numbers import figures, interval

from .conftest import scenario


@pytest.fixture(scope="module")
def text(comparison):
    return render(comparison, command="kvgym compare tiny --seeds 3")


def test_report_is_one_balanced_file_without_resources(comparison, tmp_path):
    path = write_report(comparison, tmp_path / "deep" / "report.html")
    page = Page(path.read_text("utf-8"))
    assert path.name == "report.html"
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert "default-src 'none'" in dict(page.attributes)["content"]
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))
    outside = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")  # a namespace, not an address
    assert not re.search(r"https?://|@import|url\((?!#)", outside)
    assert page.texts.count("The figures need JavaScript; the tables do not.") == 1


def test_ids_are_unique_and_references_hit(text):
    page = Page(text)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for name, value in page.attributes if name == "href" and value.startswith("#")}
    wanted |= {value for name, value in page.attributes if name == "aria-labelledby"}
    assert wanted <= set(ids)


def test_the_report_shows_the_setup(text, comparison):
    page = " ".join(" ".join(Page(text).texts).split())
    for part in (
        "Scheduler comparison: tiny",
        "thirty requests in slotted time",
        "30 tokens",
        "uniform lengths",
        "0, 1, 2",
        "kvgym compare tiny --seeds 3",
        "exactly once",
        "numba",
        "Jaillet et al.",
    ):
        assert part in page
    for name in metric_names():
        assert f"<code>{name}</code>" in text
    assert text.count("data-chart=") == 7 + 2 * len(comparison.policies)


def test_main_table_holds_the_estimates(comparison):
    table = content.main_table(comparison, "fcfs")
    assert [title for title, _ in table["columns"][:2]] == ["E2E mean", "E2E ratio"]
    for row in table["rows"]:
        mean = comparison.estimate(row["policy"], "e2e_latency_mean")
        ratio = comparison.ratio(row["policy"], "fcfs", "e2e_latency_mean")
        assert row["cells"][0]["text"] == figures(mean.value)
        assert row["cells"][0]["interval"] == interval(mean)
        assert row["cells"][1]["text"] == figures(ratio.value)
    best = min(comparison.policies, key=lambda p: comparison.estimate(p, "e2e_latency_mean").value)
    assert comparison.leaders("e2e_latency_mean") == (best,)
    assert [r["policy"] for r in table["rows"] if r["cells"][0]["best"]] == [best]
    assert content.lead(comparison).startswith(f"Lowest mean end-to-end latency over 3 seeds: {best},")
    assert f"{best} has" in content.lead(comparison)


def test_units_match_the_table_of_the_command_line(comparison):
    units = dict(content.main_table(comparison, "fcfs")["columns"])
    assert (units["TBT p50"], units["KV use"], units["Output"]) == ("s", "", "tokens/s")
    row = content.main_table(comparison, "fcfs")["rows"][0]
    place = list(units).index("KV use")
    assert row["cells"][place]["text"] == figures(comparison.estimate("fcfs", "kv_utilisation").value)


def test_the_result_comes_first_and_the_setting_is_folded(text):
    places = [text.index(f'id="{name}"') for name in ("results", "plots", "policies", "details", "repeat")]
    assert places == sorted(places)
    setting = text.index('<details class="setting"><summary>What was compared')
    assert text.index("</table>") < setting < text.index('id="plots"')


def test_a_clairvoyant_policy_is_marked_below_its_name():
    made = compare(scenario(), ["clairvoyant", "fcfs"], seeds=1)
    assert content.marks(made) == {"clairvoyant": ("clairvoyant", "‡ overloaded"), "fcfs": ("‡ overloaded",)}
    assert render(made).count('<span class="mark">clairvoyant</span>') == 1


def test_a_reference_is_not_a_winner():
    """Without other policies the lead names no winner; otherwise it names the best of the others."""
    alone = content.lead(compare(scenario(), ["clairvoyant"], seeds=2))
    first, _, rest = alone.partition(". ")
    assert first == "Only clairvoyant references completed"
    assert rest.startswith("Mean end-to-end latency over 2 seeds: clairvoyant")
    assert "clairvoyant" not in content.lead(compare(scenario(), ["clairvoyant", "fcfs"], seeds=2))


def test_reference_can_be_chosen(comparison):
    assert "its ratio is to mc_sf." in render(comparison, reference="mc_sf")
    with pytest.raises(UnknownNameError, match="mc_sf"):
        render(comparison, reference="mc_sv")


def test_equal_comparisons_give_equal_reports(comparison, text):
    assert render(comparison, command="kvgym compare tiny --seeds 3") == text


def test_hostile_texts_are_escaped_everywhere(with_failure):
    text = render(with_failure, command=HOSTILE)
    page = Page(text)
    assert page.tags.count("script") == 2
    assert "<b>" not in text
    assert "alert(" in text
    assert sum(HOSTILE in part for part in page.texts) > 5


def test_failures_are_shown_with_their_reason(with_failure):
    text = render(with_failure)
    page = " ".join(" ".join(Page(text).texts).split())
    assert "3 of 3 seeds" in page
    assert "it waits for the next arrival, but there is none" in page
    assert "Not shown, as the run failed" in page
    assert "6 of 9 runs" in page
    rows = content.main_table(with_failure, "fcfs")["rows"]
    assert rows[1]["cells"][0]["text"] == "–"
    assert rows[2]["cells"][0]["text"] != "–"


def test_a_report_of_failures_only():
    from .conftest import Stuck

    text = render(compare(scenario(), [Stuck()], keep_examples=True))
    assert "No policy completed the comparison" in text
    assert text.count("data-chart=") == 1


def test_one_seed_has_no_intervals(single):
    text = render(single)
    assert "One seed, so there are no intervals" in text
    assert 'class="interval">reference' in text
    assert text.count('class="interval"') == 1
    assert "nan" not in " ".join(Page(text).texts).lower().split()


def test_equal_policies_are_called_equal():
    result = compare(scenario(kv_capacity=2000), ["fcfs", "mc_sf"])
    assert result.leaders("e2e_latency_mean") == ("fcfs", "mc_sf")
    assert "They do not differ significantly (paired" in content.lead(result)
    assert not any(c["best"] for row in content.main_table(result, "fcfs")["rows"] for c in row["cells"])


def test_unfinished_requests_are_reported():
    result = compare(scenario(system={"horizon": 12.0}), keep_examples=True)
    text = render(result)
    assert "Latencies cover finished requests only" in text
    assert "Unfinished" in [title for title, _ in content.main_table(result, "fcfs")["columns"]]


def test_a_comparison_without_examples_has_bars_only():
    text = render(compare(scenario(), ["fcfs", "mc_sf"], seeds=2))
    assert text.count("data-chart=") == 1
    assert "keep_examples=True" in text


def test_the_code_repeats_the_comparison(with_failure, comparison, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(content.repeat_code(comparison), names)
    again = names["comparison"]
    for policy in comparison.policies:
        expected = comparison.values(policy, "e2e_latency_mean")
        assert again.values(policy, "e2e_latency_mean").tolist() == expected.tolist()
    assert (tmp_path / "report.html").exists()
    assert "mc_sf:protection=0.1" in content.repeat_code(with_failure)


def test_missing_libraries_are_explained(comparison, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("kvgym.report.find_spec", lambda name: None if name == "jinja2" else found(name))
    with pytest.raises(ConfigError, match=re.escape('jinja2; install with: pip install "kvgym[report]"')):
        write_report(comparison, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (0.0, "0"),
        (26.04, "26.0"),
        (0.04567, "0.0457"),
        (999.96, "1,000"),
        (1234567.8, "1,234,568"),
        (16492.0, "16,492"),
        (1.234e-6, "1.23e-06"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers(value, expected):
    assert figures(value) == expected


def test_interval_text():
    assert interval(Estimate(1.5, 1.25, 2.0, 3)) == "1.25\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}2"
    assert interval(Estimate(1.0, 1.0, 1.0, 3)) == ""
    assert interval(Estimate(1.5, float("nan"), float("nan"), 1)) == ""


def test_the_setting_has_the_workload_that_was_run():
    changed = build_scenario("a100-llama2-70b", rate=20.0, num_requests=10)
    rows = dict(content.setting(compare(changed, ["fcfs"], seeds=1)))
    assert "20 requests/s, 10 requests" in rows["Scenario"]
    assert rows["Workload"].startswith("lmsys, 20 requests/s, 10 requests; changed from the preset: ")
    assert "50/s" not in rows["Workload"]
