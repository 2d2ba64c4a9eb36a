"""The harness of the reproductions: blocks of pages, rows of the matrix, stored outcomes, the command line."""

import json
import re

import pytest

PAGE = "# Page\n\nBefore.\n\n<!-- begin a -->\n\nold\n\n<!-- end a -->\n\nAfter.\n"


@pytest.fixture
def harness(reproduce):
    return reproduce("harness")


@pytest.fixture
def pages(reproduce):
    return reproduce("harness.pages")


@pytest.fixture
def command(reproduce):
    return reproduce("harness.command")


class Toy:
    """A paper with two experiments, one of which counts its runs."""

    def __init__(self, harness):
        self.harness, self.runs, self.value = harness, 0, "1.0"
        one = harness.Experiment("one", "First | claim", "Section 1", self.run_one, draw=draw, cheap=True)
        two = harness.Experiment("two", "Second", "Section 2", self.run_two)
        self.paper = harness.Paper("toy", "A toy paper", "toy.md", (one, two))

    def run_one(self, scale):
        self.runs += 1
        seeds = scale.number_of_seeds(full=9)
        row = self.harness.Finding(
            "mean", "1.1", f"{self.value} ({seeds} seeds)", self.harness.Verdict.REPRODUCED
        )
        table = self.harness.Table(("n", "|x|"), (("1", "2"),), "A table.")
        return self.harness.Outcome([row], [table], {"y": [1.0, float("nan")]})

    def run_two(self, scale):
        row = self.harness.Finding("none", "5", "—", self.harness.Verdict.NOT_RUN, "No data.")
        return self.harness.Outcome([row])


def draw(data):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([y for y in data["y"] if y is not None])
    return figure


@pytest.fixture
def toy(harness, command, monkeypatch):
    made = Toy(harness)
    monkeypatch.setattr(command, "PAPERS", ("toy",))
    monkeypatch.setattr(command, "load_paper", lambda name: made.paper)
    return made


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    (folder / "reproductions").mkdir(parents=True)
    (folder / "reproductions" / "toy.md").write_text(
        "# Toy\n\nBy hand.\n\n<!-- begin two -->\n<!-- end two -->\n"
    )
    (folder / "reproductions.md").write_text("# All\n\n<!-- begin toy -->\n<!-- end toy -->\n\nThe end.\n")
    return folder


def run(command, docs, *arguments):
    command.main([*arguments, "--docs", str(docs), "--out", str(docs.parent / "out")])


def test_a_block_is_replaced_where_it_stands(pages):
    text = pages.write_block(PAGE, "a", "new")
    assert text == PAGE.replace("old", "new")
    assert pages.read_block(text, "a") == "new"
    assert pages.write_block(text, "a", "new") == text


def test_a_block_that_is_not_there_comes_last(pages):
    text = pages.write_block(PAGE, "b", "more")
    assert text.startswith(PAGE.rstrip())
    assert text.endswith("<!-- begin b -->\n\nmore\n\n<!-- end b -->\n")
    assert pages.read_block(PAGE, "b") == ""


def test_a_marker_without_its_end_is_an_error(pages):
    with pytest.raises(ValueError, match="no <!-- end a -->"):
        pages.write_block("<!-- begin a -->", "a", "x")


def test_a_full_run_writes_page_picture_and_matrix(toy, command, docs, pages, capsys):
    pytest.importorskip("matplotlib")
    run(command, docs)
    assert "toy one: mean: published 1.1; here 1.0 (9 seeds): reproduced" in capsys.readouterr().out
    page = (docs / "reproductions" / "toy.md").read_text()
    assert page.startswith("# Toy\n\nBy hand.\n\n<!-- begin two -->\n\n## Second\n")
    block = pages.read_block(page, "one")
    assert "Section 1. `python scripts/reproduce toy --only one`" in block
    assert "A table.\n\n| n | \\|x\\| |\n| --- | --- |\n| 1 | 2 |" in block
    assert "](../images/reproductions/toy-one.png)" in block
    assert (docs / "images" / "reproductions" / "toy-one.png").stat().st_size > 1000
    matrix = (docs / "reproductions.md").read_text()
    assert "<!-- end toy -->\n\nThe end.\n" in matrix
    assert (
        "| [Section 1](reproductions/toy.md#first--claim) | mean | 1.1 | 1.0 (9 seeds) | 9 | reproduced |\n"
        in matrix
    )
    assert "| [Section 2](reproductions/toy.md#second) | none | 5 | — | – | not run |\n" in matrix
    assert "| [A toy paper](reproductions/toy.md) | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in matrix


def test_an_equal_reason_is_not_repeated(harness, pages, toy):
    rows = [harness.Finding(claim, "1", "2", harness.Verdict.REFUTED, "Why.") for claim in ("a", "b")]
    block = pages.experiment_block(toy.paper, toy.paper.experiments[1], harness.Outcome(rows))
    assert block.endswith("| a | 1 | 2 | – | refuted | Why. |\n| b | 1 | 2 | – | refuted | as above |")


def test_a_claim_with_conditions_names_them(harness):
    verdict = harness.Verdict
    row = harness.Finding("a", "1", "2", verdict.CONDITIONS, "Why.", condition="for few batches")
    assert row.why == "Holds for few batches. Why."
    other = harness.Finding("a", "1", "2", verdict.REPRODUCED, "Why.", condition="for few batches")
    assert (other.why, other.condition) == ("Why.", "")
    with pytest.raises(ValueError, match="no condition is named"):
        harness.Finding("a", "1", "2", verdict.CONDITIONS, "Why.")


def test_findings_state_their_seeds(harness):
    scale = harness.Scale()
    rows = [harness.Finding("a", "1", "2", harness.Verdict.REPRODUCED, seeds=own) for own in ("", "1", "–")]
    assert [row.seeds for row in scale.count_seeds(harness.Outcome(rows)).findings] == ["–", "1", "–"]
    scale.number_of_seeds(7)
    assert [row.seeds for row in scale.count_seeds(harness.Outcome(rows)).findings] == ["7", "1", "–"]


def test_a_long_table_is_a_csv_file(harness, pages, toy, docs):
    rows = [("`a|b`", str(n)) for n in range(pages.LONG + 1)]
    outcome = harness.Outcome([], [harness.Table(("x", "n"), rows, "Many rows:")])
    pages.write_pages(docs, toy.paper, {"two": outcome})
    block = pages.read_block((docs / "reproductions" / "toy.md").read_text(), "two")
    assert "Many rows. [13 rows as CSV](../tables/toy-two-1.csv)" in block
    assert (docs / "tables" / "toy-two-1.csv").read_text().startswith("x,n\na|b,0\n")


def test_one_experiment_leaves_the_rows_of_others(toy, command, docs):
    pytest.importorskip("matplotlib")
    run(command, docs)
    before = (docs / "reproductions.md").read_text()
    toy.value = "2.0"
    run(command, docs, "toy", "--only", "one", "--fresh")
    assert (docs / "reproductions.md").read_text() == before.replace("1.0 (9", "2.0 (9")


def test_outcomes_are_stored(toy, command, docs):
    run(command, docs, "--no-pages")
    run(command, docs, "--no-pages")
    assert toy.runs == 1
    run(command, docs, "--no-pages", "--seeds", "3")
    assert toy.runs == 2
    run(command, docs, "--no-pages", "--fresh")
    assert toy.runs == 3
    kept = json.loads((docs.parent / "out" / "toy" / "one.json").read_text())
    assert kept["data"] == {"y": [1.0, None]}
    assert kept["findings"][0]["verdict"] == "reproduced"


def test_changed_code_runs_again_without_kept(toy, command, docs, reproduce, monkeypatch, capsys):
    run(command, docs)
    made = {file: file.read_bytes() for file in docs.rglob("*") if file.is_file()}
    assert "toy-one.json" in {file.name for file in made}
    monkeypatch.setattr(reproduce("harness.store"), "_digest", lambda paper: "other")
    for file in made:
        if file.suffix == ".png":
            file.unlink()
        elif file.suffix == ".md":
            file.write_text(
                re.sub(r"(begin \S+ -->).*?(<!-- end)", r"\1\n\2", file.read_text(), flags=re.DOTALL)
            )
    run(command, docs, "--kept")
    assert {file: file.read_bytes() for file in docs.rglob("*") if file.is_file()} == made
    assert toy.runs == 1
    run(command, docs, "--no-pages")
    assert toy.runs == 2
    (docs / "reproductions" / "outcomes" / "toy-one.json").unlink()
    with pytest.raises(SystemExit, match="2"):
        run(command, docs, "--kept")
    assert "toy one has no outcome: run it without --kept" in capsys.readouterr().err


def test_an_outcome_without_data_leaves_the_picture(toy, command, docs):
    pytest.importorskip("matplotlib")
    run(command, docs)
    picture, file = (
        docs / "images" / "reproductions" / "toy-one.png",
        docs / "reproductions" / "outcomes" / "toy-one.json",
    )
    made = picture.read_bytes()
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": {}}))
    run(command, docs, "--kept")
    assert picture.read_bytes() == made


def test_the_same_code_writes_the_same_bytes_again(toy, command, docs):
    pytest.importorskip("matplotlib")
    run(command, docs)
    made = {file: file.read_bytes() for file in docs.rglob("*") if file.is_file()}
    run(command, docs)
    run(command, docs, "--fresh")
    assert {file: file.read_bytes() for file in docs.rglob("*") if file.is_file()} == made
    assert toy.runs == 2


def test_outcomes_name_the_code_that_made_them(toy, command, docs, reproduce, monkeypatch, capsys):
    store, file = reproduce("harness.store"), docs / "reproductions" / "outcomes" / "toy-two.json"
    monkeypatch.setattr(store, "_digest", lambda paper: f"first {paper}")
    run(command, docs, "--only", "two")
    assert json.loads(file.read_text())["code"] == "first toy"
    monkeypatch.setattr(store, "_digest", lambda paper: "second")
    run(command, docs, "--only", "two", "--kept")
    assert json.loads(file.read_text())["code"] == "first toy"
    capsys.readouterr()
    run(command, docs, "--list")
    assert [line.endswith("(outcome of earlier code)") for line in capsys.readouterr().out.splitlines()] == [
        False,
        True,
    ]


def test_data_of_figures_are_kept_with_six_digits(harness, reproduce, tmp_path):
    row = harness.Finding("a", "1", "2", harness.Verdict.REFUTED, "Why.")
    outcome = harness.Outcome(
        [row], [], {"y": [1 / 3, 12345678, 12345678.0, float("nan")], "name": {"x": 2e-9 / 3}}
    )
    kept = reproduce("harness.store").keep(tmp_path / "new" / "a.json", outcome)
    assert kept.findings == [row]
    assert kept.data == {"y": [0.333333, 12345678, 12345700.0, None], "name": {"x": 6.66667e-10}}
    assert reproduce("harness.store").load(tmp_path / "new" / "a.json") == kept


def test_a_quick_run_leaves_the_pages(toy, command, docs):
    before = {file: file.read_bytes() for file in docs.rglob("*.md")}
    run(command, docs, "--quick")
    assert {file: file.read_bytes() for file in docs.rglob("*") if file.is_file()} == before
    assert (docs.parent / "out" / "quick" / "toy" / "two.json").exists()


def test_an_unknown_experiment_is_an_error(toy, command, docs, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(command, docs, "toy", "--only", "three")
    assert "no experiment 'three'" in capsys.readouterr().err
    assert not (docs.parent / "out").exists()


def test_an_unknown_paper_is_an_error(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["other", "--list"])
    assert "there is no paper 'other': mc_sf, wait" in capsys.readouterr().err


def test_the_list_names_all(toy, command, capsys):
    command.main(["--list"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["toy", "two", "Section", "2:", "Second"]


def test_scale_does_tasks_in_their_order(harness):
    scale = harness.Scale(quick=True, jobs=1)
    assert scale.do_all(str, [3, 1, 2]) == ["3", "1", "2"]
    assert scale.pick("full", "quick") == "quick"
    assert scale.number_of_seeds(50) == 2
    assert harness.Scale(seeds=4).number_of_seeds(50) == 4


def test_logarithmic_axes_with_one_power_of_ten_have_plain_numbers(reproduce, tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    narrow, one, wide = figure.subplots(1, 3)
    for axes, y in ((narrow, [5.22, 5.41]), (one, [250.0, 4000.0]), (wide, [5.0, 500.0])):
        axes.plot([50, 400], y)
        axes.set_yscale("log")
    reproduce("harness.figures").draw_to(tmp_path / "a.png", lambda data: figure, {})
    labels = [[label.get_text() for label in axes.get_yticklabels(which="both")] for axes in figure.axes]
    assert "5.300" in labels[0]
    assert "2000" in labels[1]
    assert not any("10^" in text for text in (*labels[0], *labels[1]))
    assert any("10^" in text for text in labels[2])
