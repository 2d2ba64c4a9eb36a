"""Pages that repeat what the code knows say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvgym.batch_time.hardware import load_hardware
from kvgym.cli.console import markdown_table
from kvgym.cli.list import listing
from kvgym.envs.expressible import table
from kvgym.experiments.scenario import load_scenario, scenario_names
from kvgym.export import records, vllm_bench

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    ("what", "name"),
    [("policies", "policies"), ("routers", "policies"), ("models", "hardware"), ("gpus", "hardware")],
)
def test_pages_with_lists_are_up_to_date(what: str, name: str) -> None:
    page = (DOCS / f"{name}.md").read_text("utf-8")
    for line in markdown_table(*listing(what, full=True)).splitlines():
        assert line in page, f"run kvgym list {what} --markdown and put the table into docs/{name}.md"


def test_the_examples_of_hardware_run(tmp_path: Path) -> None:
    page = (DOCS / "hardware.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/hardware.md", "exec"), {})
    for name, text in zip(
        ("scenario", "file"), re.findall(r"```yaml\n(.*?)```", page, re.DOTALL), strict=True
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert load_scenario(tmp_path / "scenario.yaml").make_system().kv_capacity > 0
    assert load_hardware(tmp_path / "file.yaml").engine == "ours"


def test_the_page_of_actions_says_what_they_can_express() -> None:
    page = (DOCS / "actions.md").read_text("utf-8")
    for line in markdown_table(*table()).splitlines():
        assert line in page, "print the table as docs/actions.md shows, and put it there"


def test_the_page_of_metrics_has_all_names() -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    for line in markdown_table(*vllm_bench.table()).splitlines():
        assert line in page, "print the table as docs/metrics.md shows, and put it there"


@pytest.mark.parametrize("fields", [records.REQUESTS, records.ITERATIONS], ids=["requests", "iterations"])
def test_the_page_of_exports_has_the_schemas(fields: Mapping[str, records.Field]) -> None:
    page = (DOCS / "exports.md").read_text("utf-8")
    for line in markdown_table(*records.schema_table(fields)).splitlines():
        assert line in page, (
            "put markdown_table(*schema_table(…)) of kvgym.export.records into docs/exports.md"
        )


def test_the_example_of_an_observer_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "exports.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "docs/exports.md", "exec"), {})
    assert f"print(max(chunks.sizes))  # {capsys.readouterr().out.strip()} tokens" in code


def test_scenarios_named_in_the_docs_exist() -> None:
    named = set()
    for page in [*DOCS.glob("**/*.md"), DOCS.parent / "README.md"]:
        named |= set(re.findall(r"--scenario ([\w.-]+)", page.read_text("utf-8")))
    assert named
    assert {name for name in named if not name.endswith((".yaml", "-"))} <= set(scenario_names())


def test_links_lead_somewhere() -> None:
    for page in DOCS.glob("**/*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def headlines(page: Path) -> list[str]:
    """Return the anchors of a page's headlines, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in found]
    return [re.sub(r"[^\w\- ]", "", line.lower().strip()).replace(" ", "-") for line in plain]


def test_links_to_headlines_lead_to_one() -> None:
    for page in [*DOCS.glob("**/*.md"), DOCS.parent / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                found = headlines(page.parent / target if target else page)
                assert found.count(anchor) == 1, f"{page.name}: {target}#{anchor}"
