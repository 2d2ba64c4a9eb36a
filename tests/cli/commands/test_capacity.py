"""kvgym capacity and kvgym capacity provision: tables, files, exit codes, and errors."""

import json
import re
from types import SimpleNamespace

import polars as pl
import pytest

from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import mean_interval

SMALL = ("-n", 60, "--seeds", 1, "-p", "fcfs", "--tolerance", 0.5, "--no-progress")
TARGETS = "ttft_p99<1,tbt_p99<200ms"


def test_capacity(kvgym, tmp_path):
    out = kvgym.output("capacity", "--slo", TARGETS, "-n", 60, "--seeds", 2, "-p", "fcfs,mc_sf", "-o", "res")
    assert "ttft_p99<1, tbt_p99<0.2" in out
    title = " ".join(out.split())
    assert title.startswith(
        "rush-changed: llama2-70b-a100-tp2 (M = 16,492 in blocks of 16), lmsys engine vllm-2023: 9 ms per batch"
        " + 0.29 ms per request, 2023; kernels calibrated on A100 80GB; engine rules: KV of a token at once ttft"
    )
    assert "60 requests a run" in out
    assert "95 % interval" in out
    assert "means over 2 seeds" in out
    assert {f.name for f in (tmp_path / "res").iterdir()} == {
        "probes.csv", "probes.parquet", "capacity.json", "config.json", "report.html",
        ".kvgym-results.json",
    }  # fmt: skip
    summary = json.loads((tmp_path / "res" / "capacity.json").read_text())
    assert [c["contender"] for c in summary["capacities"]] == ["fcfs", "mc_sf:protection=0.15,overrun=extend"]
    command = json.loads((tmp_path / "res" / "config.json").read_text())["command"]
    assert command.startswith("kvgym capacity --slo")


def test_marks_are_in_table_files_and_report(kvgym, tmp_path):
    code, out, err = kvgym(
        "capacity", *SMALL[:4], "-p", "fcfs,mc_sf,clairvoyant", "--tolerance", 0.5, "-s", "a100-llama2-70b", "-o", "x"
    )  # fmt: skip
    assert code == 0, err
    assert "mc_sf†" in out
    assert "note: † The predictions are exact: mc_sf observed" in out
    found = json.loads((tmp_path / "x" / "capacity.json").read_text())["capacities"]
    assert [c["marks"] for c in found] == [[], ["exact_lengths"], []]
    report = (tmp_path / "x" / "report.html").read_text()
    assert report.count('<span class="mark">† exact lengths</span>') == 1
    assert report.count('<span class="mark">clairvoyant</span>') == 1


def test_clusters_have_efficiencies_and_more_requests(kvgym, tmp_path):
    clusters = ("capacity", *SMALL, "--workers", "1,2", "--no-report", "-o", "res")
    code, out, _ = kvgym(*clusters)
    assert code == 0
    assert "60 to 120 requests a run" in out
    assert set(pl.read_parquet(tmp_path / "res" / "probes.parquet")["num_requests"]) == {60, 120}
    out = kvgym(*clusters, "--markdown")[1]
    assert "| policy | requests/s | per worker | efficiency |" in out
    assert "`fcfs ×1`" in out
    assert "`fcfs ×2`" in out


def test_requested_hardware_is_in_the_name(kvgym, tmp_path):
    out = kvgym("capacity", "--hardware", "llama3-8b-a100-tp1", *SMALL, "--no-report")[1]
    assert "a100-llama2-70b" not in out
    title = " ".join(out.split())
    assert title.startswith(
        "llama3-8b-a100-tp1-lmsys: llama3-8b-a100-tp1 (M = 131,000 in blocks of 16), lmsys engine early-2024: 1.27 ms"
        " per batch + 0.109 ms per request, 2024; kernels calibrated on A100 80GB; engine rules: KV of a token at"
        " once ttft"
    )
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("capacity-llama3-8b-a100-tp1-lmsys-")


@pytest.mark.parametrize("seeds", [1, 2])
def test_limits_show_the_number_of_seeds(seeds):
    from kvgym.cli.commands.capacity import _around
    from kvgym.studies.capacity.outcome_tables import capacity_table

    capacity = SimpleNamespace(
        limits=(("tbt_p99<0.2", 1), ("backlog", seeds)), held=(2.0,) * seeds, label="fcfs", workers=None,
        estimate=mean_interval([2.0] * seeds), on_every_seed=2.0, values={}, signs="", marks=(), clairvoyant=False,
    )  # fmt: skip
    result = SimpleNamespace(
        capacities=(capacity,), seeds=tuple(range(seeds)), targets=(), tolerance=0.1, heading="x",
        probes=(SimpleNamespace(played=SimpleNamespace(num_requests=9)),), scenario=load_scenario("mc-sf-model-1"),
    )  # fmt: skip
    limits = "tbt_p99<0.2, backlog" if seeds == 1 else "tbt_p99<0.2 (1), backlog (2)"
    assert capacity_table(result).rows[0].cells[-1] == limits
    assert ("with the number of seeds" in _around(result)[1]) == (seeds > 1)


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [
        (("--slo", "tbt_mean<0.1ms"), 1, "fails at every rate"),
        (("--slo", "goodput>=90%", "--ttft-slo", 2, "--tbt-slo", 0.5), 0, "within SLOs"),
        (("--slo", ""), 0, "no growing"),
    ],
)
def test_targets(kvgym, options, code, shown):
    found, out, _ = kvgym("capacity", *SMALL, *options, "--no-report")
    assert found == code
    assert shown in out


def test_the_first_seed(kvgym, tmp_path):
    kvgym("capacity", *SMALL, "--first-seed", 7, "--no-report", "-o", "res")
    assert pl.read_parquet(tmp_path / "res" / "probes.parquet")["seed"].unique().to_list() == [7]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--slo", "ttft_p99>1"), "needs < or <="),
        (("--slo", "tfft_p99<1"), "Did you mean"),
        (("--slo", "goodput>0.9"), "these have none; set them, e.g. with --ttft-slo 1 --tbt-slo 0.2"),
        (("--ttft-slo", -1), "ttft=-1.0: expected ttft or tbt, and seconds > 0"),
        (("--workers", "1,x"), "expected whole numbers ≥ 1, e.g. 1,2,4,8"),
        (("--workers", "0"), "expected whole numbers ≥ 1"),
        (("--router", "round_robin"), "routers need a cluster"),
        (("--tolerance", 0), "expected a share in (0, 1]"),
        (("-p", "nope"), "nope"),
        (("-n", 5), "5 requests are too few"),
    ],
)
def test_wrong_options_of_capacity(kvgym, options, says):
    error = kvgym.error("capacity", "--no-progress", *options)
    assert says in error


def test_provision(kvgym, azure_trace, tmp_path):
    out = kvgym.output(
        f"capacity provision -s a100-llama3-8b --trace {azure_trace} -p vllm_v1 --slo 'ttft_p99<1' --window 5 "
        "--price llama3-8b-a100-tp1=2.5 --router round_robin,join_shortest_queue --details --no-progress -o res "
        "--autoscaler hpa:target=4 --startup 1"
    )
    assert "Workers that come and go" in out
    assert out.count("hpa:target=4") == out.count("instant profile*") == 2
    answer = re.search(
        r"vllm_v1 via round_robin: (\d+) workers?, ([\d.]+) per hour, [\d.]+ per million output tokens", out
    )
    assert answer is not None
    assert float(answer[2]) == 2.5 * int(answer[1])
    assert answer.start() < out.index("one fewer misses")
    assert "μ, mean batch time, saturated (theory)" in out
    assert out.index("one fewer misses") < out.index("sufficient in 95 %") < out.index("batch time (ms)")
    assert "μ, median batch time, trace as it is (obvious)" in out
    assert "cost/hour" in out
    assert "sufficient in 95 % of the windows" in out
    assert "Workers that come and go" in (tmp_path / "res" / "report.html").read_text("utf-8")
    assert {f.name for f in (tmp_path / "res").iterdir()} == {
        "provision.json", "estimates.csv", "windows.csv", "fleets.csv", "probes.csv", "probes.parquet", "config.json",
        "report.html", ".kvgym-results.json",
    }  # fmt: skip


def test_prices_of_rooflines(kvgym, azure_trace, tmp_path):
    """One price for all, or one per roofline."""
    common = ("capacity", "provision", "--trace", azure_trace, "-p", "fcfs", "--slo", "ttft_p99<1", "--no-progress",
              "--no-report")  # fmt: skip
    roofline, own = "roofline:model=llama3-8b,gpu=l4,tp=4", ("--model", "llama3-8b", "--gpu", "l4", "--tp", 4)
    both = ("--hardware", f"llama3-8b-a100-tp1,{roofline}")
    for arguments, expected in (
        ((*own, "--price", 3.5), {roofline: 3.5}),
        ((*own, "--price", f"{roofline}=3"), {roofline: 3.0}),
        (
            (*both, "--price", f"{roofline}=3,llama3-8b-a100-tp1=2.5"),
            {roofline: 3.0, "llama3-8b-a100-tp1": 2.5},
        ),
    ):
        out = kvgym.output(*common, *arguments, "-o", "res")
        assert "cost/hour" in out
        plans = json.loads((tmp_path / "res" / "provision.json").read_text())["plans"]
        assert {plan["hardware"]: plan["price"] for plan in plans} == expected


def test_provision_in_markdown_for_several_kinds_of_hardware(kvgym, azure_trace):
    out = kvgym.output(
        f"capacity provision -s a100-llama3-8b --trace {azure_trace} -p vllm_v1 --slo 'ttft_p99<1' --no-report "
        "--hardware llama3-8b-a100-tp1,llama2-7b-a100-tp1 --markdown --details --no-progress"
    )
    assert "| hardware | policy | workers |" in out
    assert "| hardware | policy | estimate |" in out
    assert out.count("| llama2-7b-a100-tp1 | vllm_v1 |") == 12


def test_estimates_are_details(kvgym):
    common = "capacity provision -n 60 -p fcfs --slo ttft_p99<200ms --no-progress --no-report"
    out = kvgym(common)[1]
    assert "batch time" not in out
    assert "hardware" not in out  # there is only one
    assert re.search(r"^fcfs: \d+ workers?$", out, re.MULTILINE)


def test_no_number_of_workers_is_an_exit_code(kvgym, azure_trace):
    command = ("capacity", "provision", "-s", "a100-llama3-8b", "--trace", azure_trace, "-p", "vllm_v1",
               "--no-progress", "--no-report")  # fmt: skip
    code, out, _ = kvgym(*command, "--slo", "ttft_p99<500ms", "--set", "rate_scale=100", "--most-workers", 2)
    assert code == 1
    assert "no number up to 2 meets the targets" in out
    code, out, err = kvgym(*command, "--slo", "tbt_mean<0.1ms", "-o", "none")
    assert (code, out) == (2, "")
    assert (
        "no number of workers meets tbt_mean<0.0001: with every request alone on an empty worker it is" in err
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--slo", ""), "cannot be read"),
        (("--price", "a100"), "is not name=number"),
        (("--price", "roofline:model=qwen3-8b,gpu=l4"), "is not name=number; or give one number"),
        (("--price", "a100=2"), "unknown hardware (with a price) 'a100'"),
        (("--price", "-1"), "expected a number ≥ 0"),
        (("--window", 60), "windows need a trace"),
        (("--trace", "none.csv"), "no such file"),
        (("--hardware", "a100"), "unknown hardware"),
    ],
)
def test_wrong_options_of_provision(kvgym, options, says):
    error = kvgym.error("capacity", "provision", "-n", 40, "-p", "fcfs", "--no-progress", *options)
    assert says in error
