"""Pages: generated tables are up to date, examples run, commands parse, links work."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.cli.app import GROUPS, command_name, load_command
from kvgym.cli.console import markdown_table
from kvgym.cli.lists import listing
from kvgym.envs.demonstrations.expressible import table
from kvgym.experiments.scenario import load_scenario, scenario_names
from kvgym.report.export import records, vllm_bench
from kvgym.studies.sweeping.plan import make_plan
from kvgym.utils.reading import parse_fields

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [page for page in sorted(DOCS.glob("**/*.md")) if "generated" not in page.parts]
# Pages of findings and long trainings: their commands are parsed, not run.
MEASURED = {
    "agents.md", "speed.md", "bounds.md", "calibration.md", "capacity.md", "evolution.md",
    "frameworks.md", "speculation.md",
    "newer-schedulers.md", "ranked.md", "ranked_networks.md", "reproductions.md", "sweeps.md", "validation.md",
}  # fmt: skip
# Pages with examples that another test runs.
ELSEWHERE = {
    "actions.md": "tests/packaging/test_action_package.py",
    "components.md": "tests/envs/scheduling/test_components.py",
    "hardware.md": "tests/test_docs.py",
    "own-metric.md": "tests/experiments/test_metric_checks.py",
    "planning.md": "tests/envs/test_planning.py",
    "traces.md": "tests/cli/test_trace_page.py",
    "compiled-policies.md": "tests/packaging/test_policy_package.py",
    "routing.md": "tests/policies/test_routing.py",
    "train_priority.md": "tests/agents/test_pages.py",
    "benchmark-suite.md": "tests/studies/benchmark/test_tasks.py",
    "train_with_sb3.md": "tests/agents/test_pages.py",
}


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("policies", "policies"),
        ("routers", "policies"),
        ("models", "hardware"),
        ("gpus", "hardware"),
        ("engines", "hardware"),
        ("fields", "sweeps"),
    ],
)
def test_pages_with_lists_are_up_to_date(what: str, name: str) -> None:
    page = (DOCS / f"{name}.md").read_text("utf-8")
    for line in markdown_table(*listing(what, full=True)).splitlines():
        assert line in page, f"run kvgym list {what} --markdown and put the table into docs/{name}.md"


def test_the_limits_of_sizes_are_those_of_the_code() -> None:
    page = (DOCS / "results.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+)[^|]* \| `([\w.]+)\.(\w+)`", page, re.MULTILINE)
    assert len(rows) == 13
    for number, module, name in rows:
        assert getattr(importlib.import_module(module), name) == int(number.replace(",", "")), name
    assert f"{importlib.import_module('kvgym.workloads.base').MAX_REQUESTS:,} requests" in (
        DOCS / "traces.md"
    ).read_text("utf-8")


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


def test_the_plan_on_the_page_of_sweeps_is_valid() -> None:
    (text,) = [code for kind, code in blocks(DOCS / "sweeps.md") if kind == "yaml"]
    plan = make_plan(parse_fields(text, "docs/sweeps.md"))
    plan.check()
    assert len(plan.make_points()) == 9


def test_the_page_of_actions_has_the_table_of_expressible_policies() -> None:
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
            "put markdown_table(*schema_table(…)) of kvgym.report.export.records into docs/exports.md"
        )


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of all fenced blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path: Path) -> None:
    """They run in a separate process, as they register policies."""
    run = [page for page in PAGES if page.name not in {*MEASURED, *ELSEWHERE}]
    assert {"cookbook.md", "exports.md", "own-policy.md", "start-researcher.md"} <= {
        page.name for page in run
    }
    runner = DOCS.parent / "tests" / "helpers" / "run_documents.py"
    done = subprocess.run(
        [sys.executable, runner, *run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (said,) = re.findall(
        r"print\(max\(chunks.sizes\)\)  # (\d+) tokens", (DOCS / "exports.md").read_text("utf-8")
    )
    assert f"\n{said}\n" in done.stdout


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    """All commands parse, even those that take too long to run."""
    for kind, code in blocks(page):
        if kind not in ("bash", "text", ""):
            continue
        for line in re.sub(r" *\\\n *", " ", code).splitlines():
            if line.startswith("kvgym ") and "…" not in line:
                words = shlex.split(line, comments=True)[1:]
                name = command_name(words)
                load_command(name).make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("page", [*PAGES, *DOCS.parent.glob("*.md")], ids=lambda page: page.name)
def test_commands_in_sentences_and_calls_of_scripts_have_options_that_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    sentences = "" if page.name == "CHANGELOG.md" else re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for command in re.findall(r"(?<!`)`kvgym ([a-z][^`]*)`", sentences):
        words = shlex.split(" ".join(command.split()))
        name = command_name(words)
        if not name and words[0] in GROUPS:
            continue
        known = {flag for each in load_command(name).params for flag in (*each.opts, *each.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        assert given <= known | {"--help"}, command
    for script, line in re.findall(r"^(?:\S*python[\d.]* )(scripts/\S+\.py) (.*)$", text, re.MULTILINE):
        source = "".join(part.read_text("utf-8") for part in (DOCS.parent / script).parent.rglob("*.py"))
        for flag in re.findall(r"(?<!\S)--[a-z-]+", line.partition("#")[0]):
            assert f'"{flag}"' in source, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_excerpts_are_parts_of_their_files(page: Path) -> None:
    """An excerpt follows a comment with the path of its file; its indentation may differ."""
    text = page.read_text("utf-8")
    for name, code in re.findall(
        r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        lines, found = (
            [line.strip() for line in code.splitlines() if line.strip()]
            for code in ((DOCS.parent / name).read_text("utf-8"), code)
        )
        assert any(lines[k : k + len(found)] == found for k in range(len(lines))), f"{name}: {code}"


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_examples_on_pages_are_short(page: Path) -> None:
    for kind, code in blocks(page):
        lines = len([line for line in code.splitlines() if line.strip()])
        assert kind != "python" or lines <= 15, f"move it to scripts/examples and show parts of it:\n{code}"


def test_scripts_on_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"^(?:\S*python )(scripts/[\w/]+(?:\.py)?)", page.read_text("utf-8"), re.MULTILINE
        ):
            assert (DOCS.parent / name).exists(), f"{page.name}: {name}"


def test_pages_of_findings_have_no_python() -> None:
    for page in PAGES:
        assert page.name not in MEASURED or "python" not in dict(blocks(page)), page.name


@pytest.mark.parametrize("page", ELSEWHERE)
def test_other_tests_run_the_remaining_examples(page: str) -> None:
    assert page in (DOCS.parent / ELSEWHERE[page]).read_text("utf-8")


def test_scenarios_named_in_the_docs_exist() -> None:
    named = set()
    for page in [*PAGES, DOCS.parent / "README.md"]:
        named |= set(re.findall(r"--scenario ([\w.-]+)", page.read_text("utf-8")))
    assert named
    assert {name for name in named if not name.endswith((".yaml", ".csv", "-"))} <= set(scenario_names())


def test_links_work() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(
                ("http", "generated/", "../generated/")
            ):  # checked by the build of the site
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def headings(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in found]
    return [re.sub(r"[^\w\- ]", "", line.lower().strip()).replace(" ", "-") for line in plain]


def test_links_to_headings_work() -> None:
    for page in [*PAGES, DOCS.parent / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                found = headings(page.parent / target if target else page)
                assert found.count(anchor) == 1, f"{page.name}: {target}#{anchor}"
