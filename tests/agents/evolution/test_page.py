"""The configuration on the page about evolution runs."""

import re
from pathlib import Path

from kvgym.agents import train
from kvgym.agents.runs.config import load_training

PAGE = Path(__file__).resolve().parents[3] / "docs" / "evolution.md"


def test_the_example_runs(tmp_path):
    (text,) = re.findall(r"```yaml\n# margin\.yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "margin.yaml"
    path.write_text(text)
    small = ["generations=1", "services_per_generation=1", "held_out.services=1", "population=4", "jobs=1"]
    config = load_training(path, small)
    assert train(config, tmp_path / "run").steps == 1
