"""Tables for terminals: whole columns are dropped and named, and no number is cut or wrapped at any width."""

import os
import re
import subprocess
import sys

import pytest

from kvgym.cli.console import Terminal, comparison_table, print_notes
from kvgym.cli.tables import ResultTable
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario_options import ScenarioOptions

NUMBERS = ("123.45", "100.01 – 150.02", "1,234,567")
REASON = "ttft_p99<1, tbt_p99<0.2 on all seeds"


def printed(table, width):
    console = Terminal(highlight=False, width=width, force_terminal=False)
    with console.capture() as shown:
        console.print(table, crop=False)
    return shown.get()


def example():
    table = ResultTable("a title", "a caption", files="results/x/summary.json")
    table.column("policy", words=True)
    table.column("mean (s)", rank=1)
    table.column("95 % interval", rank=3)
    table.column("tokens of all requests", rank=2)
    table.column("why", rank=4, words=True)
    table.row("fcfs‡", *NUMBERS, REASON)
    return table


@pytest.mark.parametrize("width", [10, 20, 30, 40, 50, 60, 80, 100, 200])
def test_numbers_are_whole_at_every_width(width):
    text = printed(example(), width)
    hidden = re.search(r"hidden at this width: (.*?); --width (\d+) or results", " ".join(text.split()))
    names = hidden[1].split(", ") if hidden else []
    assert NUMBERS[0] in text
    assert (NUMBERS[1] in text) == ("95 % interval" not in names)
    assert (NUMBERS[2] in text) == ("tokens of all requests" not in names)
    if width >= 20:
        assert max(map(len, text.splitlines())) <= width
    if hidden:
        assert "hidden at" not in printed(example(), int(hidden[2]))
        assert "hidden at" in printed(example(), int(hidden[2]) - 1)
    else:
        assert all(word in text for word in REASON.split())


def test_the_most_important_columns_are_kept():
    assert "hidden at this width: 95 % interval, why;" in " ".join(printed(example(), 40).split())


@pytest.fixture(scope="module")
def compared():
    scenario = build_scenario("a100-llama2-70b", ScenarioOptions(rate=50.0, num_requests=100))
    policies = ["vllm_v1:max_num_batched_tokens=8192,max_num_seqs=64", "fcfs", "mc_sf"]
    return compare(scenario, policies, seeds=2)


def test_a_comparison_at_80_columns(compared):
    text = printed(comparison_table(compared), 80)
    (heads,) = (line for line in text.splitlines() if line.startswith(" policy"))
    assert re.split(r"\s{2,}", heads.strip())[:3] == ["policy", "E2E mean (s)", "95 % interval"]
    assert "TTFT p99 (s)" in heads
    assert "TBT p99 (s)" in heads
    assert "vllm_v1 8192" in text
    assert "…" not in text
    assert "hidden at this width: TTFT p50 (s), tokens/s, KV use, evictions" in " ".join(text.split())


def test_notes_have_short_labels_and_the_whole_ones_once(compared, capsys):
    print_notes(compared.notes, compared.policies)
    text = " ".join(capsys.readouterr().out.split())
    assert text.count(compared.policies[0]) == 1
    assert f"Short labels: vllm_v1 8192 = {compared.policies[0]}." in text


@pytest.mark.parametrize(("columns", "option", "width"), [("", "", 80), ("100", "", 100), ("100", "90", 90)])
def test_the_width_of_piped_output(columns, option, width):
    code = "from kvgym.cli.app import main; main()"
    given = ["list", "traces", *(["--width", option] if option else [])]
    environment = {**os.environ, "COLUMNS": columns}
    done = subprocess.run(
        [sys.executable, "-c", code, *given], env=environment, capture_output=True, text=True, check=True
    )
    assert width - 12 < max(map(len, done.stdout.splitlines())) <= width
