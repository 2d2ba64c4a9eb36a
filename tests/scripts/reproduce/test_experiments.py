"""Every experiment of every paper runs, draws, and is on its page and in the matrix."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAPERS = ("mc_sf", "wait", "slai", "flow", "stab")
ONE_SEED = ("ten-segments",)  # a run takes minutes
MATPLOTLIB = "3.11"  # that drew the pictures; others draw some pixels differently


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


@pytest.fixture(scope="module")
def outcomes(reproduce, load_paper, pages):
    """Return what gives the outcomes of a paper's pages by experiment."""
    load = reproduce("harness.store").load

    def read(name):
        paper = load_paper(name)
        return {e.name: load(DOCS / pages.outcome_file(paper, e)) for e in paper.experiments}

    return read


@pytest.mark.parametrize("name", PAPERS)
def test_pages_are_made_from_outcomes_alone(load_paper, pages, outcomes, name, tmp_path):
    """Byte for byte, from pages with empty blocks, as ``--kept`` does; and nothing else is there."""
    paper, found = load_paper(name), outcomes(name)
    assert None not in found.values(), f"run python scripts/reproduce {name}"
    page = DOCS / "reproductions" / paper.page
    assert re.findall(r"<!-- begin (\S+) -->", page.read_text("utf-8")) == [
        block for block in re.findall(r"<!-- begin (\S+) -->", page.read_text("utf-8")) if block in found
    ]
    (tmp_path / "reproductions").mkdir()
    for file, blocks in ((page, found), (DOCS / "reproductions.md", (name, pages.SUMMARY))):
        text = file.read_text("utf-8")
        for block in blocks:
            assert text.count(f"<!-- begin {block} -->") == 1, block
            text = pages.write_block(text, block, "")
        (tmp_path / file.relative_to(DOCS)).write_text(text, "utf-8")
    pages.write_pages(tmp_path, paper, found)
    made = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    for file in made:
        assert (tmp_path / file).read_bytes() == (DOCS / file).read_bytes(), file
    tables = {file.relative_to(DOCS) for file in (DOCS / pages.TABLES).glob(f"{name}-*.csv")}
    assert tables == made - {Path("reproductions.md"), page.relative_to(DOCS)}
    kept = {str(file.relative_to(DOCS)) for file in (DOCS / pages.OUTCOMES).glob(f"{name}-*.json")}
    assert kept == {pages.outcome_file(paper, experiment) for experiment in paper.experiments}


@pytest.mark.parametrize("name", papers("mc_sf", "wait", "slai", "stab"))
def test_pictures_are_made_from_outcomes_alone(reproduce, load_paper, pages, outcomes, name, tmp_path):
    matplotlib, image = pytest.importorskip("matplotlib"), pytest.importorskip("matplotlib.image")
    if not matplotlib.__version__.startswith(f"{MATPLOTLIB}."):
        pytest.skip(f"pictures are those of matplotlib {MATPLOTLIB}")
    paper, found = load_paper(name), outcomes(name)
    drawn = [experiment for experiment in paper.experiments if experiment.draw is not None]
    for experiment in drawn:
        file = DOCS / pages.picture(paper, experiment)
        assert 1_000 < file.stat().st_size < 200_000
        if not found[experiment.name].data:
            continue  # run before outcomes had data
        reproduce("harness.figures").draw_to(tmp_path / "a.png", experiment.draw, found[experiment.name].data)
        assert np.array_equal(image.imread(tmp_path / "a.png"), image.imread(file)), experiment.name
    kept = {str(file.relative_to(DOCS)) for file in (DOCS / pages.PICTURES).glob(f"{name}-*.png")}
    assert kept == {pages.picture(paper, experiment) for experiment in drawn}


@pytest.mark.parametrize("name", PAPERS)
def test_anchors_of_a_page_are_distinct(load_paper, pages, name):
    anchors = [pages.anchor(experiment) for experiment in load_paper(name).experiments]
    assert len(set(anchors)) == len(anchors)


def test_summary_counts_the_verdicts_of_the_matrix(pages):
    text = (DOCS / "reproductions.md").read_text("utf-8")
    assert pages.read_block(text, pages.SUMMARY) == pages.summary_block(text)


@pytest.mark.parametrize("name", PAPERS)
def test_claims_have_figures_seeds_and_reasons(outcomes, name):
    for experiment, outcome in outcomes(name).items():
        assert outcome.findings, experiment
        for row in outcome.findings:
            assert all((row.claim, row.published, row.ours)), experiment
            few = experiment in ONE_SEED
            assert row.seeds == "–" or int(row.seeds) >= (1 if few else 5), f"{experiment}: {row.claim}"
            assert row.why or row.verdict.value == "reproduced", f"{experiment}: {row.claim} has no reason"


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
