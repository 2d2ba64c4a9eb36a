"""``kvgym warm-up``."""

import pytest

from kvgym.batch_time import UnitBatchTime
from kvgym.compiling import kernel as compiled
from kvgym.compiling.kernel import Kernel


@pytest.fixture
def one_kernel(monkeypatch, tmp_path):
    """A single kernel, and an empty cache."""
    unit = UnitBatchTime.kernel
    monkeypatch.setattr(compiled, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(
        "kvgym.cli.warming.all_kernels", lambda: [Kernel(unit.function, unit.signature, "batch times")]
    )


def test_it_shows_what_was_compiled_and_uses_the_cache_next_time(kvgym, one_kernel):
    out = kvgym.output("warm-up", "--jobs", 1)
    assert "batch times" in out
    assert "1 compiled in" in out
    assert "0 already cached" in out
    out = kvgym.output("warm-up", "--jobs", 1)
    assert "batch times" not in out
    assert "0 compiled in" in out
    assert "1 already cached" in out
