"""Doubtful times of operator tables: against neighbours by hand, and shipped tables with one series or time changed."""

from dataclasses import replace

import numpy as np
import pytest

from kvgym.batch_time.operators.files import load_operators
from kvgym.batch_time.operators.tables import Grid, OperatorTables
from kvgym.servers.calibration.contradictions import contradictions

KEY = ("bf16", 128, 32, 8)


@pytest.fixture(scope="module")
def shipped():
    return load_operators("a100-80gb")


def changed(tables, group, key, factors):
    """Return tables with one series multiplied."""
    grids = getattr(tables, group)
    grid = grids[key]
    return replace(tables, **{group: {**grids, key: Grid(grid.axes, grid.ms * factors)}})


def test_shipped_tables_have_a_few_doubtful_times(shipped):
    found = contradictions(shipped)
    assert not any(doubt.is_grave for doubt in found)
    assert {doubt.text.partition(" vllm")[0] for doubt in found} == {"latent decode", "latent prefill"}


@pytest.mark.parametrize(("factor", "other"), [(15, r"1\d x those of"), (1 / 15, r"0\.0\d+ x those of")])
def test_a_series_as_a_whole(shipped, factor, other):
    first, *rest = contradictions(changed(shipped, "decode", KEY, factor))
    assert first.is_grave
    assert first.text.startswith("decode attention, bf16 cache, head_dim 128, 32 query heads, 8 KV heads: ")
    if factor > 1:
        assert "of 180 times doubtful" in first.text
        assert "query heads allows and" in first.text
    assert not any("decode attention" in doubt.text for doubt in rest)


def test_one_time(shipped):
    ms = shipped.decode[KEY].ms
    factors = np.ones(ms.shape)
    factors[4, 7] = 15
    axes = shipped.decode[KEY].axes
    (found,) = (d for d in contradictions(changed(shipped, "decode", KEY, factors)) if "latent" not in d.text)
    assert not found.is_grave
    where = f"at batch_size {axes[0][4]:g}, step {axes[1][7]:g} {15 * ms[4, 7]:.3g} ms"
    assert "1 of 180 times doubtful" in found.text
    assert where in found.text
    assert any(
        f"x that of {gpu}" in found.text for gpu in ("h100-80gb", "h200", "b200", "l40s", "rtx-pro-6000")
    )


def test_a_unit_of_all_rows_contradicts_the_other_gpus(shipped):
    slow = {key: Grid(grid.axes, 1e3 * grid.ms) for key, grid in shipped.prefill.items()}
    found = [doubt for doubt in contradictions(replace(shipped, prefill=slow)) if doubt.is_grave]
    assert len(found) == len(slow)
    assert "x those of" in found[0].text
    # Of a GPU without a data sheet only neighbours are compared.
    assert not [
        d
        for d in contradictions(replace(shipped, name="mine", prefill=slow))
        if "prefill attention" in d.text
    ]


def test_neighbours_by_hand():
    """Four times the tokens take 1 to 4 times as long, 1 to 16 times in attention of a chunk, within a factor of 4."""
    tokens = np.array([1.0, 4.0, 16.0])

    def doubts(*ms, **groups):
        grid = Grid((tokens,), np.array(ms))
        tables = OperatorTables("mine", "", "", "", **{name: {key: grid} for name, key in groups.items()})
        return [doubt.text for doubt in contradictions(tables)]

    assert doubts(1.0, 0.3, 4.7, all_reduce=2) == []
    assert doubts(1.0, 15.9, 15.9, all_reduce=2) == []
    (text,) = doubts(1.0, 17.0, 17.0, all_reduce=2)
    assert text == (
        "all reduce 2: 2 of 3 times doubtful; at bytes 1 1 ms, 0.24 x what the next bytes allows (plausible: 0.25 to 4)"
    )
    assert doubts(1.0, 60.0, 60.0, prefill=("bf16", 128, 8, 2)) == []
    assert len(doubts(1.0, 65.0, 65.0, prefill=("bf16", 128, 8, 2))) == 1
    assert len(doubts(5.0, 1.0, 1.0, all_reduce=2)) == 1
