"""Where a score stands in the published tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvgym.studies.benchmark.leaderboard import leaderboard, places_of, read_results, standings
from kvgym.studies.benchmark.tasks import load_suite

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "benchmark"
RESULTS = read_results(FOLDER)
BY_NAME = {result.name: result for result in RESULTS}


def test_the_suite_and_the_page_have_the_scores_of_the_published_results():
    assert load_suite().standings == standings(RESULTS), "run python scripts/make_leaderboard.py"
    assert (FOLDER / "leaderboard.md").read_text("utf-8") == leaderboard(RESULTS)


@pytest.mark.parametrize(("name", "sections"), [("ranked_slo", 2), ("lmetric, tuned", 1), ("hpa, tuned", 1)])
def test_rank_and_neighbours(name: str, sections: int):
    places = places_of(BY_NAME[name])
    assert len(places) == sections
    for section, text in places.items():
        published = list(load_suite().standings[section].items())
        rank = [each for each, _ in published].index(name)
        assert text.startswith(f"{published[rank][1]:.3f}, rank {rank + 1} of {len(published)}, ")
        for neighbour in published[max(0, rank - 1) : rank] + published[rank + 1 : rank + 2]:
            assert f"{neighbour[0]} ({neighbour[1]:.3f})" in text
        assert f"of {len(published) + 1}," in places_of(replace(BY_NAME[name], name="mine"))[section]


def test_no_rank_without_all_tasks_of_a_section():
    whole = BY_NAME["ranked_slo"]
    some = {name: runs for name, runs in whole.values.items() if name != "hidden-kinds"}
    assert set(places_of(replace(whole, values=some))) == {"server, schedulers"}
