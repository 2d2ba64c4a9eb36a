"""Separate prefill and decode workers by options, their link, and the same workers together."""

import pytest

import kvgym
from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.disaggregation import describe_roles, parse_link, together
from kvgym.experiments.scenario import load_scenario

SEPARATE = {"prefill_workers": 1, "decode_workers": 2}
LLAMA_3_8B = 131072
"""Bytes of KV cache per token: 32 layers, 8 heads of 128 keys and values, 2 bytes each."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25GB/s", (25e9, None)),
        ("200Gbit/s", (25e9, None)),
        ("1.5 TB/s", (1.5e12, None)),
        ("800MB/s+1ms", (8e8, 1e-3)),
        ("25GB/s+0", (25e9, 0.0)),
    ],
)
def test_links(text, expected):
    assert parse_link(text) == expected


@pytest.mark.parametrize(
    "text", ["25", "25Gb/s", "0GB/s", "-1GB/s", "nanGB/s", "fast", "25GB/s+", "25GB/s 1ms", "1e999GB/s"]
)
def test_links_of_another_form(text):
    with pytest.raises(ConfigError, match="expected a bandwidth, as in 25GB/s or 200Gbit/s"):
        parse_link(text)


def test_options_reproduce_the_scenario_of_separate_workers():
    shipped = load_scenario("a100-llama3-8b-disaggregated")
    made = build_scenario(
        shipped.override(workers=3), **SEPARATE, link="25GB/s+1ms", router="least_outstanding_work"
    )
    assert made.workers == shipped.workers
    assert made.system.transfer_latency == 0.001
    assert made.system.transfer_time == LLAMA_3_8B / 25e9  # 5.24 microseconds; the scenario rounds to 5.2
    assert describe_roles(made) == "1 prefill and 2 decode workers, link 25 GB/s"
    assert made.summary.startswith("1 prefill and 2 decode workers, link 25 GB/s, least_outstanding_work: ")


def test_the_link_is_that_of_the_gpu_unless_given():
    system = build_scenario("a100-llama3-8b", **SEPARATE).system
    assert (system.transfer_latency, system.transfer_time) == (10e-6, LLAMA_3_8B / 300e9)
    both = build_scenario(
        "a100-llama2-70b", **SEPARATE
    ).system  # 80 layers, 8 heads; each of two GPUs sends half
    assert both.transfer_time == 80 * 8 * 128 * 2 * 2 / (2 * 300e9)
    own = build_scenario("a100-llama3-8b-disaggregated", prefill_workers=2)
    assert own.system == load_scenario("a100-llama3-8b-disaggregated").system  # which has a link of its own
    other = build_scenario("a100-llama3-8b-disaggregated", hardware="roofline:model=qwen3-8b,gpu=h100")
    assert other.system.transfer_time == 36 * 8 * 128 * 2 * 2 / 450e9


def test_without_hardware_the_system_has_the_time_of_a_token():
    made = build_scenario("mc-sf-model-1", **SEPARATE)
    assert made.system.transfer_time == 0
    assert describe_roles(made) == "1 prefill and 2 decode workers, a link that takes no time"
    with pytest.raises(ConfigError, match=r"link = '1GB/s' needs hardware.*transfer_time"):
        build_scenario("mc-sf-model-1", **SEPARATE, link="1GB/s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill_workers": 1}, "prefill_workers = 1 needs decode_workers too, as in decode_workers = 1"),
        ({"decode_workers": 2}, "decode_workers = 2 needs prefill_workers too"),
        ({"prefill_workers": 0, "decode_workers": 2}, "prefill_workers = 0: expected a whole number ≥ 1"),
        ({**SEPARATE, "workers": 3}, "workers = 3 and prefill_workers or decode_workers exclude each other"),
        ({"workers": 3, "link": "25GB/s"}, "link = '25GB/s' needs separate workers"),
    ],
)
def test_contradictions(options, message):
    with pytest.raises(ConfigError, match=message):
        build_scenario("a100-llama3-8b", **options)


def test_the_same_workers_together():
    scenario = build_scenario("a100-llama3-8b", **SEPARATE, num_requests=12, rate=20.0)
    alike = together(scenario)
    assert [worker.role for worker in alike.make_system().all_workers] == ["mixed"] * 3
    with pytest.raises(ConfigError, match="no separate workers"):
        together(alike)
    found = kvgym.compare(scenario, ["fcfs"], seeds=1, together=True)
    assert found.policies == ("fcfs, 1 prefill 2 decode", "fcfs, 3 together")
    for label, one in zip(found.policies, (scenario, alike), strict=True):
        (alone,) = kvgym.compare(one, ["fcfs"], seeds=1).runs
        assert found.values(label, "e2e_latency_mean") == alone.metrics["e2e_latency_mean"]
    with pytest.raises(ConfigError, match="no separate workers"):
        kvgym.compare("a100-llama3-8b", ["fcfs"], seeds=1, together=True)
