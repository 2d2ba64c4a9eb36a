"""Lists, the details of their entries, help and completion."""

import re

import pytest

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.cli import console
from kvgym.cli.app import COMMANDS, load_command
from kvgym.cli.lists import LISTS, details, option_rows
from kvgym.experiments.scenario import scenario_names
from kvgym.policies.policy import POLICIES, policy_defaults
from kvgym.policies.routing import ROUTERS


def test_list(kvgym):
    out = kvgym.output("list")
    for word in ("mc_sf", "a100-llama2-70b", "llama3-8b-a100-tp1", "lmsys"):
        assert word in out
    assert "azure" in kvgym("list", "traces")[1]
    assert "jain_fairness" in kvgym("list", "metrics")[1]
    assert "kvgym 0" in kvgym("--version")[1]


def test_policies_take_a_line_each(kvgym):
    out = kvgym("list", "policies")[1]
    lines = [line for line in out.splitlines() if line.strip()]
    assert len(lines) == len(POLICIES) + 3  # a title, headings, and how to get details
    assert "kvgym list policies NAME" in lines[-1]
    for name in POLICIES:
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        assert line.split(maxsplit=1)[1].strip() == POLICIES[name].info.summary


def test_the_details_of_a_policy(kvgym):
    out = kvgym("list", "policies", "alpha_beta")[1]
    assert re.search(r"^alpha +0\.2 +protected fraction of memory, in \(0, 1\)", out, re.MULTILINE)
    assert re.search(r"^source +Jaillet et al., .*, Section 5.2", out, re.MULTILINE)
    assert "as in alpha_beta:alpha=…" in out
    assert "| `alpha` | 0.2 |" in kvgym("list", "policies", "alpha_beta", "--markdown")[1]
    assert "1 to 4,096" in kvgym("list", "hardware", "llama2-70b-a100-tp2")[1]


@pytest.mark.parametrize("cls", [*(POLICIES[n] for n in POLICIES), *(ROUTERS[n] for n in ROUTERS)])
def test_every_option_has_a_meaning(cls):
    rows = option_rows(cls)
    assert list(rows) == list(policy_defaults(cls))
    assert all(len(meaning.split()) > 1 for _, meaning in rows.values()), rows


@pytest.mark.parametrize("what", [name for name in LISTS if name != "environments"])
def test_all_entries_have_details(what):
    from kvgym.cli.lists import listing

    first = next(iter(listing(what)[1]))
    assert details(what, first)[0][1] == (first, "")


def test_lists_in_markdown(kvgym):
    out = kvgym.output("list", "policies", "--markdown")
    for name in POLICIES:
        (line,) = (line for line in out.splitlines() if line.startswith(f"| `{name}` "))
        cells = [cell.strip() for cell in line.split("|")][2:-1]
        info = POLICIES[name].info
        assert cells[0] == info.summary
        known = [*sorted(info.needs), *(f"({name})" for name in sorted(info.uses))]
        assert cells[2] == (", ".join(known) or "–") + (": clairvoyant" if info.clairvoyant else "")
        assert [cell == "yes" for cell in cells[3:6]] == [info.chunks_prefill, info.pauses, info.evicts]
        assert info.algorithm in cells[6]


def test_names_are_not_markup(capsys):
    table = console.mapping_table("[b]title[/b]", {"[red]x": ("[link]", "y")}, ("[i]name", "1", "2"))
    console.out.print(table)
    shown = capsys.readouterr().out
    for text in ("[b]title[/b]", "[red]x", "[link]", "[i]name"):
        assert text in shown


def test_help_shows_brackets(kvgym):
    """Help texts are markup: text in brackets vanishes unless it is escaped."""
    commands = [load_command(name) for name in COMMANDS]
    texts = [text for c in commands for text in (c.help, *(getattr(p, "help", "") for p in c.params)) if text]
    assert [text for text in texts if re.search(r"(?<!\\)\[", text)] == []
    assert "(needs kvgym[report])" in " ".join(kvgym("compare", "--help")[1].replace("│", "").split())


def test_completion_of_the_shell(kvgym, monkeypatch):
    assert "--install-completion" in kvgym("--help")[1]
    for name, value in (
        ("_KVGYM_COMPLETE", "complete_bash"),
        ("COMP_WORDS", "kvgym comp"),
        ("COMP_CWORD", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert kvgym()[1].split() == ["compare"]


def test_headings_name_seconds():
    assert [console.heading(m) for m in ("ttft_mean", "max_wait", "kv_utilisation", "token_throughput")] == [
        "TTFT mean (s)", "max wait (s)", "KV use", "tokens/s",
    ]  # fmt: skip


def test_the_details_of_a_scenario(kvgym, tmp_path):
    facts = details("scenarios", "vllm-v1")[0][2]
    assert facts["Hardware"] == ("llama3-8b-a100-tp1: Llama-3-8B on one A100 80 GB",)
    assert facts["Engine"][0].startswith("vllm-2024: 1 ms per batch; engine of autumn 2024: two")
    assert facts["KV capacity"] == ("131,000 tokens, in blocks of 16",)
    assert facts["- arrivals"] == ("poisson (rate = 3.2)",)
    assert "progress_on_evict = recompute, requeue = front" in facts["Engine rules"][0]
    assert facts["Policies"] == ("vllm_v1, vllm, sarathi, mc_sf, fcfs",)
    assert "calibrated; public operator profiles" in kvgym("list", "scenarios", "vllm-v1")[1]
    groups = "[{hardware: llama3-8b-a100-tp1}, {hardware: llama2-70b-a100-tp2, count: 2}]"
    (tmp_path / "mine.yaml").write_text(f"workers: {groups}\nworkload: lmsys\nrouter: uniform_random\n")
    mine = details("scenarios", str(tmp_path / "mine.yaml"))[0][2]
    assert mine["KV capacity"] == ("16,492 or 131,000 tokens, by worker",)
    assert mine["Workers"][0].startswith("1 mixed, llama3-8b-a100-tp1")
    assert mine["Router"] == ("uniform_random",)


def test_the_details_of_hardware(kvgym):
    hardware = load_hardware("llama3-8b-a100-tp1")
    facts = details("hardware", "llama3-8b-a100-tp1")[0][2]
    assert facts["Model"][0].startswith(
        "Llama-3-8B: 32 layers of width 4,096, 32 heads, 8 KV heads; 8.0 B weights"
    )
    assert facts["GPU"][0].startswith("1 x A100 80GB: 312 TFLOP/s (16-bit), 80.0 GiB")
    assert facts["KV tokens"] == (f"131,000: {hardware.kv_capacity_origin}",)
    assert facts["Source"] == (hardware.source,)
    assert "(default)" in facts["Engine early-2024"][0]
    assert {name for name in facts if name.startswith("Engine ")} == {
        f"Engine {e}" for e in hardware.all_engines
    }
    assert sum(name.startswith("Error ") for name in facts) == len(hardware.fit_error)
    assert facts["Measured prefill chunk"] == ("32 to 16,384",)
    assert "roofline, not validated" in kvgym("list", "hardware", "roofline:model=qwen3-8b,gpu=h200")[1]


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_has_details(name):
    facts = details("scenarios", name)[0][2]
    assert {"What it is", "Batch time", "KV capacity", "Workload", "Engine rules", "Policies"} <= set(facts)
    assert all(text for (text,) in facts.values()), facts
