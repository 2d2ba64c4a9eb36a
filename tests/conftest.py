"""Fixtures shared by all tests."""

import pytest

from kvgym.workloads.traces import write_sample_trace


@pytest.fixture
def azure_trace(tmp_path):
    """A small synthetic trace in the Azure layout."""
    path = tmp_path / "azure.csv"
    write_sample_trace(path, "azure")
    return path
