"""Every experiment of every paper runs, draws, and is on its page and in the matrix."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAPERS = ("mc_sf", "wait", "slai", "flow", "stab")


def papers(*long):
    """All papers, those named marked as long."""
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in PAPERS]


@pytest.fixture(scope="module")
def load_paper(reproduce):
    return reproduce("harness.command").load_paper


@pytest.fixture(scope="module")
def pages(reproduce):
    return reproduce("harness.pages")


def run(*arguments, folder):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reproduce"), *arguments, "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", papers("wait", "slai", "mc_sf", "stab"))
def test_all_run_quick_and_draw(load_paper, name, tmp_path):
    pytest.importorskip("matplotlib")
    text = run(name, "--quick", "--jobs", "1", folder=tmp_path)
    assert " nan" not in text
    for experiment in load_paper(name).experiments:
        assert f"{name} {experiment.name}: " in text
        made = tmp_path / "out" / "quick" / name / experiment.name
        assert made.with_suffix(".json").exists()
        assert made.with_suffix(".png").exists() == (experiment.draw is not None)


@pytest.mark.parametrize("name", PAPERS)
def test_pages_and_matrix_have_every_experiment(load_paper, pages, name):
    paper = load_paper(name)
    assert paper.name == name
    names = [experiment.name for experiment in paper.experiments]
    assert len(set(names)) == len(names)
    page = (DOCS / "reproductions" / paper.page).read_text("utf-8")
    matrix = pages.read_block((DOCS / "reproductions.md").read_text("utf-8"), name)
    for experiment in paper.experiments:
        block = pages.read_block(page, experiment.name)
        assert block.startswith(f"## {experiment.title}\n"), f"run python scripts/reproduce {name}"
        assert f"(reproductions/{paper.page}#{pages.anchor(experiment)}) |" in matrix
        if experiment.draw is not None:
            assert 1_000 < (DOCS / pages.picture(paper, experiment)).stat().st_size < 200_000
        for file in re.findall(rf"\.\./({pages.TABLES}/[^)]*)\)", block):
            assert (DOCS / file).read_text("utf-8").count("\n") > pages.LONG
    # And no others.
    assert set(re.findall(r"<!-- begin (\S+) -->", page)) == set(names)
    anchors = [pages.anchor(experiment) for experiment in paper.experiments]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"^\| \[[^]]*\]\([^)#]*#([^)]*)\) \|", matrix, re.MULTILINE)) == set(anchors)


def test_summary_counts_the_verdicts_of_the_matrix(pages):
    text = (DOCS / "reproductions.md").read_text("utf-8")
    assert pages.read_block(text, pages.SUMMARY) == pages.summary_block(text)


def findings(rows, first):
    """Return claim, published, ours, verdict and, on pages, reason of rows in Markdown; the claim is cell ``first``."""
    cells = [re.split(r" (?<!\\)\| ", row.removeprefix("| ").removesuffix(" |")) for row in rows]
    return [tuple(row[first:]) for row in cells]


@pytest.mark.parametrize("name", PAPERS)
def test_page_and_matrix_agree_and_give_reasons(load_paper, pages, name):
    paper = load_paper(name)
    page = (DOCS / "reproductions" / paper.page).read_text("utf-8")
    matrix = pages.read_block((DOCS / "reproductions.md").read_text("utf-8"), name).splitlines()
    for experiment in paper.experiments:
        _, _, rest = pages.read_block(page, experiment.name).partition(
            "| --- | --- | --- | --- | --- | --- |\n"
        )
        on_page = findings(rest.partition("\n\n")[0].splitlines(), 0)
        where = f"#{pages.anchor(experiment)}) |"
        assert [row[:-1] for row in on_page] == findings([row for row in matrix if where in row], 1)
        for claim, published, ours, seeds, verdict, why in on_page:
            assert all((claim, published, ours)), experiment.name
            assert seeds == "–" or int(seeds) >= 1, f"{experiment.name}: {claim}"
            assert why.strip() or verdict == "reproduced", f"{experiment.name}: {claim} has no reason"
            named = "Holds " in why or why == "as above"
            assert named or verdict != "with conditions", f"{experiment.name}: {claim} has no condition"


@pytest.mark.parametrize("name", PAPERS)
def test_every_figure_and_theorem_of_the_paper_is_answered(load_paper, name):
    paper = load_paper(name)
    covered = {part for experiment in paper.experiments for part in experiment.covers}
    assert paper.figures
    assert paper.theorems
    assert covered == {*paper.figures, *paper.theorems}


def fragments(paper):
    """Return the constant texts in the code of a paper's experiments, the longest first."""
    folder = ROOT / "scripts" / "reproduce" / "papers" / paper.name
    nodes = (node for file in folder.rglob("*.py") for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    texts = {n.value.strip(" .:") for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return sorted((text for text in texts if len(text) > 2), key=len, reverse=True)


@pytest.mark.parametrize("name", PAPERS)
def test_every_sentence_of_a_block_is_one_that_the_command_writes(load_paper, pages, name):
    """Whatever an experiment costs: words between markers that no code contains are out of date."""
    paper = load_paper(name)
    page, known = (DOCS / "reproductions" / paper.page).read_text("utf-8"), fragments(paper)
    for experiment in paper.experiments:
        for line in pages.read_block(page, experiment.name).splitlines():
            rest = line.replace("\\|", "|")
            for text in known:
                rest = rest.replace(text, " | ")
            unknown = re.findall(r"(?:[A-Za-z][A-Za-z'’-]*[,;:]? +){3,}[A-Za-z]+", rest)
            assert not [words for words in unknown if "rows as CSV" not in words], (
                f"{experiment.name}: {unknown}"
            )


@pytest.mark.parametrize("name", papers("mc_sf", "wait", "slai"))
def test_pages_match_the_results_of_cheap_experiments(load_paper, pages, name, tmp_path):
    pytest.importorskip("matplotlib")
    paper = load_paper(name)
    cheap = [experiment.name for experiment in paper.experiments if experiment.cheap]
    assert cheap
    shutil.copytree(DOCS / "reproductions", tmp_path / "docs" / "reproductions")
    shutil.copy(DOCS / "reproductions.md", tmp_path / "docs")
    run(name, "--only", ",".join(cheap), "--docs", str(tmp_path / "docs"), folder=tmp_path)
    made = [str(file.relative_to(tmp_path / "docs")) for file in (tmp_path / "docs").rglob("*.csv")]
    for file in ("reproductions.md", f"reproductions/{paper.page}", *made):
        assert (tmp_path / "docs" / file).read_text("utf-8") == (DOCS / file).read_text("utf-8")
