"""Cards of published agents."""

import json
import re

import pytest

from helpers.training.evolution_runs import TINY
from kvgym.agents import train
from kvgym.agents.library import load_model
from kvgym.agents.runs.config import make_training


def test_publish_evolved_weights_and_renew_the_card(scripts, tmp_path):
    publish = scripts("publish_agent")
    train(make_training({**TINY, "generations": 2}), tmp_path / "run")
    given = ["--figures", str(publish.RESULTS / "ranked_slo.json"), "--models", str(tmp_path)]
    publish.main([str(tmp_path / "run"), "tiny_margin", "--limits", "None known.", *given])
    assert load_model(tmp_path / "tiny_margin.json").metadata["name"] == "tiny_margin"
    card = (tmp_path / "tiny_margin.md").read_text()
    for text in (
        "# tiny_margin",
        "weights of `mc_sf`",
        "## Trained on",
        "## Figures",
        "## Limits",
        "- None known.",
    ):
        assert text in card
    assert re.search(r"^\| `server-mixed` \| slo_attainment \| 0\.9\d+ \| `ranked` \|", card, re.MULTILINE)
    given[1] = str(publish.RESULTS / "ranked_chat.json")
    publish.main(["--renew", "tiny_margin", *given])
    renewed = (tmp_path / "tiny_margin.md").read_text()
    changed = [b for a, b in zip(card.splitlines(), renewed.splitlines(), strict=True) if a != b]
    assert changed
    assert all(line.startswith("| `") for line in changed)


@pytest.mark.parametrize(
    ("name", "text"), [("ppo_noisy", "environment steps on"), ("routing", "--router routing,")]
)
def test_a_network_and_a_router_have_a_card(scripts, name, text):
    publish = scripts("publish_agent")
    rows = publish.figures(publish.RESULTS / f"{name}.json")
    card = publish.card(load_model(name), name, rows, ["None known."], {"libraries": {}})
    assert text in card
    stored = json.loads((publish.RESULTS / f"{name}.json").read_text())
    assert len(rows) == 2 + len(stored["values"].keys() - stored["errors"].keys())
    assert "scored as" not in card
