"""Where a score stands in the published table."""

from dataclasses import replace
from pathlib import Path

from kvgym.studies.benchmark.leaderboard import place_of, read_results, standings
from kvgym.studies.benchmark.tasks import load_suite

RESULTS = read_results(Path(__file__).resolve().parents[3] / "docs" / "benchmark")
BY_NAME = {result.name: result for result in RESULTS}


def test_the_suite_has_the_scores_of_the_published_results():
    assert load_suite().standings == standings(RESULTS), (
        "run python scripts/freeze_benchmark.py --standings docs/benchmark"
    )


def test_rank_and_neighbours():
    found = {name: place_of(BY_NAME[name]) for name in ("ranked", "request_level", "lmetric")}
    assert found == {
        "ranked": "0.716, rank 2 of 44 schedulers, between reinforce_hidden_kinds (0.736) and ranked_documents (0.715)",
        "request_level": "-1.000, rank 43 of 44 schedulers, between fast_serve (-0.949) and rad_batched (-1.000)",
        "lmetric": "0.841, rank 1 of 12 routers, above preble (0.797)",
    }
    new = replace(BY_NAME["ranked"], name="mine")
    assert place_of(new).startswith(
        "0.716, rank 2 of 45 schedulers, between reinforce_hidden_kinds (0.736) and ranked"
    )


def test_no_rank_without_all_tasks():
    whole = BY_NAME["ranked"]
    assert place_of(replace(whole, values={"hidden-kinds": whole.values["hidden-kinds"]})) == ""
