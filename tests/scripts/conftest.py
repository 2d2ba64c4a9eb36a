"""Scripts are imported as running one of their folder does."""

import pytest

from helpers.script_folders import importing_from


@pytest.fixture(scope="module")
def reproduce():
    """Return what imports a module of scripts/reproduce by name."""
    with importing_from("reproduce") as load:
        yield load


@pytest.fixture(scope="module")
def benchmarks():
    """Return what imports a module of scripts/speed by name."""
    with importing_from("speed") as load:
        yield load


@pytest.fixture(scope="module")
def fleets():
    """Return what imports a module of scripts/fleets by name."""
    with importing_from("fleets") as load:
        yield load


@pytest.fixture(scope="module")
def scripts():
    """Return what imports a script of scripts/ itself by name."""
    with importing_from(".") as load:
        yield load


@pytest.fixture(scope="module")
def checks():
    """Return what imports a module of scripts/checks by name."""
    with importing_from("checks") as load:
        yield load
