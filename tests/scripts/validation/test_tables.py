"""docs/validation.md matches the code, and its figures are drawn."""

import functools
import shutil
from pathlib import Path

import pytest
from validation.tables import TABLES, fill

from kvgym.errors import ConfigError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "validation.md").read_text("utf-8")


@pytest.fixture(scope="module", autouse=True)
def calculated_once():
    """No table is calculated twice in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, table in TABLES.items():
            patch.setitem(TABLES, name, functools.cache(table))
        yield


def test_the_page_is_up_to_date():
    assert fill(PAGE) == PAGE, "run python scripts/validate_engines.py --write"


def test_tables_replace_the_text_between_markers():
    marks = "".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in TABLES)
    page = fill(f"before\n{marks}after\n")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "| `vllm-2023`, fitted to these rows | " in page
    assert fill(page) == page


@pytest.mark.parametrize(
    ("marks", "word"),
    [
        ([name for name in TABLES if name != "cpu"], "cpu"),
        ([*TABLES, "nonsense"], "nonsense"),
        ([*TABLES, "cpu"], "each table once"),
    ],
)
def test_wrong_markers_are_rejected(marks, word):
    with pytest.raises(ConfigError, match=word):
        fill("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in marks))


def test_the_page_lists_every_engine_and_the_limits():
    for word in ("vllm-2023", "early-2024", "vllm-2024", "none", "## Not validated", "chunked prefill"):
        assert word in PAGE


@pytest.mark.long
def test_the_script_updates_page_and_figures(scripts, tmp_path, monkeypatch, capsys):
    script = scripts("validate_engines")
    for name in ("validation.md", "hardware.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    monkeypatch.setattr("sys.argv", ["validate_engines.py", "--write", "--docs", str(tmp_path)])
    script.main()
    assert (tmp_path / "validation.md").read_text("utf-8") == PAGE
    assert (tmp_path / "hardware.md").read_bytes() == (ROOT / "docs" / "hardware.md").read_bytes()
    drawn = {path.name for path in (tmp_path / "images").iterdir()}
    assert len(drawn) == 4
    assert all(f"images/{name}" in PAGE for name in drawn)
    monkeypatch.setattr("sys.argv", ["validate_engines.py"])
    script.main()
    assert "| engine | overhead of n requests, ms |" in capsys.readouterr().out
