"""Fixtures shared by all tests."""

import functools
import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from helpers import amount, processes
from kvgym.workloads.traces import write_sample_trace

# What other distributions register is not what these tests are about; the commands they start inherit this.
os.environ["KVGYM_PLUGINS"] = "0"
# PyTorch's threads wait for each other in a loop while other tests have the cores; commands inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says nothing on a machine that others use too. Examples are the same in every run, so that
# what passes on one machine passes on another; `pytest --hypothesis-profile=explore` draws new ones, and more.
settings.register_profile("kvgym", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=100)
settings.load_profile("kvgym")

TESTS = Path(__file__).parent

# The tests of `pytest -m fast`: the engine, schedules by hand, and every environment; under a minute on two cores once
# compiled code is in the cache.
FAST = (
    "golden",
    "simulator/engine/test_apply_decision.py",
    "simulator/engine/test_batch.py",
    "simulator/engine/test_blocks.py",
    "simulator/engine/test_decisions.py",
    "simulator/engine/test_engine.py",
    "simulator/engine/test_eviction_and_waiting.py",
    "simulator/engine/test_swap.py",
    "baselines/test_first_come.py",
    "baselines/test_flow.py",
    "baselines/test_iteration_level.py",
    "baselines/test_memory_constrained.py",
    "baselines/thresholds/test_nested_wait.py",
    "baselines/test_practice.py",
    "baselines/slai/test_slai.py",
    "baselines/test_vllm_v1.py",
    "baselines/thresholds/test_wait.py",
    "baselines/test_work_conserving.py",
    "envs/test_every_id.py",
)

# They take longest: begun last, one of them would run while the other processes have nothing to do. The first three
# compile what the others use, and not the same: the policies and loops, the environments, the checked build. What
# needs code that another process is compiling waits for it.
LONGEST = (
    "baselines/test_contract.py",
    "envs/scheduling/test_vector.py",
    "compiling/test_checked_build.py",
    "test_code_quality.py",
    "simulator/cluster/test_loop.py",
    "baselines/ranked/test_ranked_oracle.py",
    "test_readme.py",
    "test_docs.py",
    "scripts/checks/test_check_report.py",
    "utils/test_wrong_types.py",
    "envs/test_sb3.py",
    "agents/test_resuming.py",
)


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="run the tests in full: all policies, settings and examples"
    )


def pytest_xdist_auto_num_workers():
    """With ``-n auto`` one process more than cores: tests wait a fifth of their time, for programs and servers."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 1


def pytest_configure(config):
    amount.LONG = config.getoption("--long")
    config.pluginmanager.register(processes)
    # Shells start background jobs with SIGINT ignored, and processes inherit it; tests of Ctrl-C send the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path, config):
    """``-m fast`` does not import the other modules, which takes longer than its tests."""
    if config.getoption("markexpr") == "fast" and collection_path.suffix == ".py":
        return not _is_fast(collection_path) and collection_path.name != "conftest.py"
    return None


@functools.cache
def _is_fast(path):
    return any(path.is_relative_to(TESTS / fast) for fast in FAST)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude modules and collected tests, 700,000 objects, from garbage collection: a tenth of all time."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(config, items):
    longest = [TESTS / name for name in LONGEST]
    items.sort(key=lambda item: longest.index(item.path) if item.path in longest else len(longest))
    for item in items:
        if _is_fast(item.path):
            item.add_marker(pytest.mark.fast)
    if not config.getoption("--long"):
        skipped = pytest.mark.skip(reason="pytest --long runs it")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skipped)


@pytest.fixture
def one_torch_thread():
    """PyTorch computes in one thread: tests run side by side, and small networks gain nothing from more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def azure_trace(tmp_path):
    """A small synthetic trace in the Azure layout."""
    path = tmp_path / "azure.csv"
    write_sample_trace(path, "azure")
    return path
