"""Fixtures shared by all tests."""

import os

import pytest
from hypothesis import settings

from kvgym.workloads.traces import write_sample_trace

# What other distributions register is not what these tests are about; the commands they start inherit this.
os.environ["KVGYM_PLUGINS"] = "0"

# How long an example takes says nothing on a machine that others use too. Examples are the same in every run, so that
# what passes on one machine passes on another; `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("kvgym", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("kvgym")


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="also run the checks that take a minute or more each"
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        skipped = pytest.mark.skip(reason="takes long: pytest --long runs it")
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
