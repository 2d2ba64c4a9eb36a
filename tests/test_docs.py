"""Pages that repeat what the code knows say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvgym.cli.console import markdown_table
from kvgym.cli.list import listing
from kvgym.envs.expressible import table
from kvgym.experiments.scenario import scenario_names

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("what", ["policies", "routers"])
def test_the_page_of_policies_is_up_to_date(what: str) -> None:
    page = (DOCS / "policies.md").read_text("utf-8")
    for line in markdown_table(*listing(what, full=True)).splitlines():
        assert line in page, f"run kvgym list {what} --markdown and put the table into docs/policies.md"


def test_the_page_of_actions_says_what_they_can_express() -> None:
    page = (DOCS / "actions.md").read_text("utf-8")
    for line in markdown_table(*table()).splitlines():
        assert line in page, "print the table as docs/actions.md shows, and put it there"


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
