"""KV memory of the host in scenarios: sizes and speeds from data sheets, and what is refused."""

from typing import Any

import pytest

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError
from kvgym.experiments.caches.host_memory import HostMemorySettings, TierSettings
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.describing import memory_rows
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.simulator.prefix.host_memory import HostMemory, Tier

HARDWARE = load_hardware("roofline:model=llama3-8b,gpu=h100,tp=2")
BYTES = 2 * 32 * 8 * 128 * 2  # keys and values of a token: layers, heads, size of a head, bytes


def test_sizes_and_speeds_follow_from_the_model() -> None:
    memory = HostMemorySettings(gib=1, gb_per_s=10, write_gb_per_s=5).memory(HARDWARE)
    assert memory.tokens == 2**30 // BYTES
    assert memory.load_time == pytest.approx(BYTES / (2 * 10e9))  # two GPUs, a link each
    assert memory.store_time == pytest.approx(2 * memory.load_time)


def test_a_store_is_read_by_the_worker_as_a_whole() -> None:
    memory = HostMemorySettings(gib=1, below=TierSettings(gib=10, gb_per_s=4, latency=0.01)).memory(HARDWARE)
    assert memory.below is not None
    assert memory.below.tokens == 10 * 2**30 // BYTES
    assert memory.below.load_time == memory.below.store_time == pytest.approx(BYTES / 4e9)
    assert memory.below.latency == 0.01


def test_how_it_is_shared_and_written() -> None:
    below = TierSettings(tokens=900, load_time=0.0, shared="all")
    given = HostMemorySettings(
        tokens=500, load_time=0.0, shared="host", workers_per_host=2, write="back", below=below
    )
    assert given.memory(None) == HostMemory(
        500,
        0.0,
        0.0,
        shared="host",
        write="back",
        below=Tier(900, 0.0, 0.0, shared="all"),
        workers_per_host=2,
    )


def test_without_hardware_tokens_and_seconds() -> None:
    assert HostMemorySettings(tokens=500, load_time=1e-6).memory(None) == HostMemory(500, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either gib or tokens"),
        ({"gib": 1, "tokens": 5}, "either gib or tokens"),
        ({"gib": 1}, "gib needs hardware"),
        ({"tokens": 5}, "gb_per_s needs hardware"),
        ({"tokens": 5, "load_time": 0.0, "below": {}}, "below: expected either gib or tokens"),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HostMemorySettings(**settings).memory(None)


def test_the_option_switches_it_on_with_its_cache() -> None:
    scenario = build_scenario(
        "agent-sessions", ScenarioOptions(hardware="roofline:model=llama3-8b,gpu=h100", host_memory=8.0)
    )
    system = scenario.make_system()
    assert system.host_memory is not None
    assert system.host_memory.tokens == 8 * 2**30 // BYTES
    assert system.prefix_cache == "scheduled"
    assert "8 GiB of host memory below it" in memory_rows(scenario, 5000)[0][1]
