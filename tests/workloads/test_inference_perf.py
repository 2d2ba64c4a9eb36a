"""Workload specifications of inference-perf: rates by stage, lengths, prefixes, and what has no meaning here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.workloads.inference_perf import is_specification, read_specification
from kvgym.workloads.workload import Workload, make_workload

# Written for this test after the fields of inference-perf's configuration; the other sections say how to measure.
SAMPLE = """
api: {type: completion, streaming: true}
server: {type: vllm, model_name: a/model, base_url: "http://127.0.0.1:8000", ignore_eos: true}
load:
  type: poisson
  interval: 20
  num_workers: 4
  stages:
    - {rate: 40, duration: 100}
    - {rate: 80, duration: 50}
data:
  type: random
  input_distribution: {min: 20, max: 900, mean: 400, std_dev: 100}
  output_distribution: {type: lognormal, min: 10, max: 2000, mean: 110, std_dev: 80}
report: {request_lifecycle: {per_request: true}}
"""


def workload(folder: Path, **changes: Any) -> Workload:
    return make_workload(read_specification(written(folder, **changes)))


def written(folder: Path, **changes: Any) -> Path:
    """Write the sample with fields of its data and load changed, and return the file."""
    content = yaml.safe_load(SAMPLE)
    for section, fields in changes.items():
        content[section] = {**content[section], **fields}
    (path := folder / "spec.yml").write_text(yaml.safe_dump(content))
    return path


def test_stages_have_their_rates_and_nothing_comes_between(tmp_path):
    times = workload(tmp_path).sample(0).arrival_time
    first, second = (times < 100).sum(), (times >= 120).sum()
    assert first + second == len(times)
    assert first == pytest.approx(4000, abs=4 * np.sqrt(4000))
    assert second == pytest.approx(4000, abs=4 * np.sqrt(4000))
    assert times[-1] < 170


def test_one_rate_scales_all_stages(tmp_path):
    scenario = build_scenario("vllm-v1", trace=written(tmp_path), rate=8000 / 170 / 10)
    assert len(scenario.make_workload().sample(1)) == pytest.approx(800, abs=4 * np.sqrt(800))


def test_lengths_have_the_stated_moments(tmp_path):
    table = workload(tmp_path).sample(0)
    assert table.prompt_len.mean() == pytest.approx(400, abs=5)
    assert table.prompt_len.std() == pytest.approx(100, abs=5)
    assert table.output_len.mean() == pytest.approx(110, abs=4)
    assert table.output_len.std() == pytest.approx(80, abs=8)
    assert table.output_len.min() >= 10


@pytest.mark.parametrize(
    ("distribution", "mean", "low", "high"),
    [
        ({"type": "fixed", "mean": 77}, 77, 77, 77),
        ({"type": "uniform", "min": 10, "max": 30}, 20, 10, 30),
        ({"min": 100, "max": 200, "mean": 150, "std_dev": 0}, 150, 150, 150),
        ({"type": "poisson", "min": 1, "max": 200, "mean": 64}, 64, 35, 95),
        ({"type": "normal", "min": 50, "max": 90, "mean": 50, "std_dev": 1000}, 69.7, 50, 90),
        (
            {"type": "skew_normal", "min": 1, "max": 9000, "mean": 500, "std_dev": 100, "skew": 5},
            578.2,
            400,
            950,
        ),
        ({"variance": 100, "min": 1, "max": 900, "mean": 300}, 300, 260, 340),
    ],
)
def test_distributions(tmp_path, distribution, mean, low, high):
    """Clamped at 50 and 90, a wide normal at 50 has half its mass at 50 and 48.4 % at 90; a skew normal has the mean
    500 + 100 · 5 / √26 · √(2/π)."""
    table = workload(tmp_path, data={"input_distribution": distribution}).sample(0)
    assert table.prompt_len.mean() == pytest.approx(mean, rel=0.01)
    assert table.prompt_len.min() >= low
    assert table.prompt_len.max() <= high


def shared(**fields: Any) -> dict[str, Any]:
    given = {"num_groups": 4, "num_prompts_per_group": 5000, "system_prompt_len": 160, "question_len": 32}
    return {"type": "shared_prefix", "shared_prefix": {**given, "output_len": 8, **fields}}


def test_requests_of_a_group_share_its_system_prompt(tmp_path):
    table = workload(tmp_path, data=shared()).sample(0)
    assert set(table.prompt_len) == {192}
    assert set(table.output_len) == {8}
    blocks = [tuple(table.hashes.row(i)[:10]) for i in range(400)]
    assert len(set(blocks)) == 4
    assert len({tuple(table.hashes.row(i)) for i in range(400)}) == 400


def test_questions_that_are_sent_again_are_shared_as_well(tmp_path):
    """8,000 requests and 8 questions, each of 32 tokens = 2 blocks after its system prompt."""
    table = workload(tmp_path, data=shared(num_prompts_per_group=2)).sample(0)
    assert set(table.prompt_len) == {193}
    assert len({tuple(table.hashes.row(i)[:12]) for i in range(400)}) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"load": {"type": "concurrent"}},
            "load.type 'concurrent' is none of constant, poisson: give stages",
        ),
        ({"load": {"sweep": {"type": "linear"}}}, "load.sweep: its stages depend on the server"),
        ({"load": {"stages": []}}, "load: field stages"),
        ({"load": {"stages": [{"rate": -1, "duration": 3}]}}, "field stages.0.rate"),
        ({"data": {"type": "shareGPT"}}, "data.type 'shareGPT' is none of .* give its requests with --trace"),
        ({"data": {"trace": {"file": "a.csv"}}}, "data.trace: .* --trace"),
        ({"data": {"output_distribution": None}}, "data.type random needs input_distribution and"),
        ({"data": {"input_distribution": {"min": 9, "max": 3}}}, "min = 9 is above max = 3"),
        ({"data": {"input_distribution": {"men": 9}}}, "men"),
        ({"data": shared(enable_multi_turn_chat=True)}, "prefixes with turns"),
    ],
)
def test_what_has_no_meaning_here_has_a_remedy(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        workload(tmp_path, **changes)


def test_a_scenario_is_no_specification(tmp_path):
    assert is_specification(written(tmp_path))
    (other := tmp_path / "scenario.yaml").write_text("workload: lmsys\n")
    assert not is_specification(other)
    assert not is_specification(tmp_path / "log.csv")
    with pytest.raises(ConfigError, match=r"no data; .* --scenario"):
        read_specification(other)
