"""Separate prefill and decode workers by options, their link, and the same workers together."""

import numpy as np
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
        ("25GB/s", (25e9, None, 1.0, None)),
        ("200Gbit/s", (25e9, None, 1.0, None)),
        ("1.5 TB/s", (1.5e12, None, 1.0, None)),
        ("800MB/s+1ms", (8e8, 1e-3, 1.0, None)),
        ("25GB/s+0", (25e9, 0.0, 1.0, None)),
        ("200GB/s+0.4ms,share=0.73", (2e11, 4e-4, 0.73, None)),
        ("200GB/s, copies=2, share=1", (2e11, None, 1.0, 2)),
        ("25GB/s+1ms,shared,overlap=32", (25e9, 1e-3, 1.0, None, True, 32)),
    ],
)
def test_links(text, expected):
    assert parse_link(text) == (*expected, False, 0)[:6]


@pytest.mark.parametrize(
    "text", ["25", "25Gb/s", "0GB/s", "-1GB/s", "nanGB/s", "fast", "25GB/s+", "25GB/s 1ms", "1e999GB/s"]
)
def test_links_of_another_form(text):
    with pytest.raises(ConfigError, match="expected a bandwidth, as in 25GB/s or 200Gbit/s"):
        parse_link(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("25GB/s,share=0", r"link '25GB/s,share=0': share = 0; expected a number above 0 and at most 1"),
        ("25GB/s,share=1.1", "share = 1.1; expected"),
        ("25GB/s,share", "share = ''; expected"),
        ("25GB/s,copies=0", "copies = 0; expected a whole number ≥ 1"),
        ("25GB/s,copies=1.5", "copies = 1.5; expected"),
        ("25GB/s,shared=yes", "shared = 'yes'; expected shared alone"),
        ("25GB/s,overlap=-1", "overlap = -1; expected layers of the model"),
        (
            "25GB/s,latency=1ms",
            r"'latency' is none of share=…, copies=…, shared and overlap=…; expected 25GB/s.*25GB/s\+1ms",
        ),
    ],
)
def test_wrong_shares_and_copies(text, message):
    with pytest.raises(ConfigError, match=message):
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


def test_links_that_transfers_share():
    shipped = load_scenario("a100-llama3-8b-disaggregated")
    made = build_scenario(shipped, link="25GB/s+1ms,shared,overlap=32")
    assert (made.system.transfer_link, made.system.transfer_overlap) == ("shared", 32)
    assert (
        describe_roles(made) == "1 prefill and 2 decode workers, link 25 GB/s, shared, overlap over 32 layers"
    )
    system = made.make_system()
    assert (system.transfer_link, system.transfer_overlap) == ("shared", 32)
    again = build_scenario(made, link="25GB/s+1ms").system
    assert again.transfer_link == "private"
    assert "transfer_link" not in again.model_dump()  # so that hashes of scenarios without it stay


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


def test_no_link_of_a_gpu_leaves_the_server():
    """Of 8 GPUs at most; between servers the network's bandwidth must be given."""
    deployment = {"hardware": "model=llama3-70b,gpu=h100,tp=4"}
    system = build_scenario("a100-llama3-8b", **deployment, prefill_workers=1, decode_workers=1).system
    assert system.transfer_time == 80 * 8 * 128 * 2 * 2 / (4 * 450e9)
    with pytest.raises(
        ConfigError, match=r"12 GPUs of .* do not fit into one server of 8.*add its bandwidth"
    ):
        build_scenario("a100-llama3-8b", **deployment, **SEPARATE)
    system = build_scenario("a100-llama3-8b", **deployment, **SEPARATE, link="50GB/s").system
    assert system.transfer_time == 80 * 8 * 128 * 2 * 2 / 50e9


@pytest.mark.parametrize(
    ("hardware", "link", "copies"),
    [
        ("model=qwen3-8b,gpu=h100,tp=8", "50GB/s", 1),  # 8 KV heads
        ("model=qwen3-235b-a22b,gpu=h200,tp=8", "50GB/s", 2),  # 4 KV heads
        ("model=qwen3-235b-a22b,gpu=h200,tp=8", "50GB/s,copies=1", 1),
        ("model=qwen3-235b-a22b,gpu=h200,tp=8", "100GB/s,share=0.5", 2),
        ("model=deepseek-v3,gpu=h200,tp=16", "50GB/s", 16),  # latent attention: the cache is on every GPU
    ],
)
def test_all_copies_in_the_decode_worker_are_sent(hardware, link, copies):
    made = build_scenario("a100-llama3-8b", hardware=hardware, prefill_workers=1, decode_workers=1, link=link)
    once = kvgym.load_hardware(hardware).model.kv_bytes_per_token
    assert made.system.transfer_time == pytest.approx(copies * once / 50e9)


TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MEASURED = [
    ("model=qwen3-8b,gpu=h100,tp=8", "200GB/s+0.4ms,share=0.73",
     (0.54, 0.61, 0.92, 1.5, 2.51, 4.75, 8.84, 16.43, 31.65)),
    ("model=qwen3-235b-a22b,gpu=h200,tp=8", "200GB/s+1.8ms,share=0.86",
     (2.07, 2.58, 2.98, 3.96, 6.43, 10.95, 20.31, 39.14, 76.78)),
]  # fmt: skip
"""Milliseconds of a transfer by prompt tokens: vLLM (H800), SGLang (H20-3e), between two servers by RoCE.

Source: documentation of Mooncake at commit 3b5a5941, vllm-v1-pd-performance.md and sglang-benchmark-results-v1.md. The
GPUs only name KV heads here; latency and share were fitted to these rows, so their error is that of the formula.
"""


@pytest.mark.parametrize(("hardware", "link", "measured"), MEASURED)
def test_transfers_that_were_measured(hardware, link, measured):
    def errors(link):
        made = build_scenario(
            "a100-llama3-8b", hardware=hardware, prefill_workers=1, decode_workers=1, link=link
        ).system
        seconds = made.transfer_latency + made.transfer_time * np.array(TOKENS)
        return 1e3 * seconds / np.array(measured) - 1

    assert np.abs(errors(link)).max() < 0.081
    assert np.median(np.abs(errors(link))) < 0.035
    assert errors("200GB/s").max() < -0.17  # the nominal bandwidth alone


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
