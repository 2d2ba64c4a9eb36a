"""The policies in the documentation fulfil the contract."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.contract_checks import check_on_some
from kvgym.policies.contract import CHECKS
from kvgym.policies.policy import Policy

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["README.md", "docs/own-policy.md", "docs/compiled-policies.md"], scope="module")
def documented(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[type[Policy]]:
    """Return the policy of a page's first example with one, unregistered and without the code that uses it."""
    page = ROOT / request.param
    text = page.read_text("utf-8")
    if example := re.search(r"<!-- from (scripts/examples/\S+) -->", text):
        code = (ROOT / example[1]).read_text("utf-8")
    else:
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        code = re.split(r"\n\n\n(?=\w+ = )", next(block for block in blocks if "register_policy\n" in block))[
            0
        ]
    code = re.sub(r"@(kvgym\.)?register_policy\n", "", code)
    name = f"documented_{page.stem.replace('-', '_').lower()}"
    folder = tmp_path_factory.mktemp(name)
    (folder / f"{name}.py").write_text(code, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        (made,) = (
            x
            for x in vars(importlib.import_module(name)).values()
            if isinstance(x, type) and issubclass(x, Policy) and x.__module__ == name
        )
        yield made


@pytest.mark.parametrize("check", CHECKS)
def test_policies_of_the_documentation(documented: type[Policy], check: str) -> None:
    check_on_some(documented, check)
