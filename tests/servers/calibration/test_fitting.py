"""The fits of operator tables: monotone projections, surfaces, prefill attention as a sum, nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.batch_time.hardware.held_out import prefill_ms
from kvgym.batch_time.hardware.interpolation import bilinear, isotonic
from kvgym.batch_time.hardware.operator_tables import PrefillTable
from kvgym.servers.calibration.fitting import (
    DECODE_TERMS,
    PooledPrefill,
    fit_prefill,
    fit_surface,
    isotonic_surface,
)
from kvgym.servers.calibration.grids import batches, grid, resolution, thin


def test_isotonic_by_hand():
    np.testing.assert_allclose(isotonic(np.array([1.0, 3, 2, 4])), [1, 2.5, 2.5, 4])
    np.testing.assert_allclose(isotonic(np.array([3.0, 1]), np.array([3.0, 1])), [2.5, 2.5])


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=2, max_size=5))
def test_monotone_surfaces(rows):
    table = np.array(rows)
    result = isotonic_surface(table, np.ones_like(table))
    assert np.all(np.diff(result, axis=0) >= 0)
    assert np.all(np.diff(result, axis=1) >= 0)
    assert result.min() >= table.min() - 1e-9


def _fit(x, y, value, rows, columns):
    points = tuple(np.array(v, float) for v in (x, y, value))
    return fit_surface(np.array(rows, float), np.array(columns, float), points, DECODE_TERMS)


def test_a_surface_fits_what_it_can_represent():
    x, y = (axis.ravel() for axis in np.meshgrid([1.0, 2, 4, 8], [10.0, 20, 40], indexing="ij"))
    value = 0.1 + 0.01 * x * y
    surface = _fit(x, y, value, [1, 2, 4, 8], [10, 20, 40])
    np.testing.assert_allclose(surface.ms.ravel(), value, rtol=1e-6)
    np.testing.assert_allclose(surface.support, 1)
    assert surface.change.largest < 1e-6


def test_nodes_without_measurements_follow_the_others():
    """Measured only up to 64 decodes times context; the far corner follows the first guess."""
    x, y = (
        axis.ravel()
        for axis in np.meshgrid([1.0, 2, 4, 8, 16, 32, 64], [1.0, 2, 4, 8, 16, 32, 64], indexing="ij")
    )
    near = x * y <= 64
    truth = 0.1 + 0.01 * x + 0.002 * x * y
    nodes = [1, 2, 4, 8, 16, 32, 64]
    surface = _fit(x[near], y[near], truth[near], nodes, nodes)
    assert surface.support[-1, -1] == 0
    np.testing.assert_allclose(surface.ms.ravel(), truth, rtol=1e-3)


def test_a_node_with_one_noisy_measurement_has_little_weight():
    nodes = [1.0, 2, 4, 8, 1000]
    x, y = (axis.ravel() for axis in np.meshgrid(nodes[:-1], nodes[:-1], indexing="ij"))
    value = 1 + x * y
    # Hardly beyond the dense part, and ten times too fast: by extrapolation the far node would be below 0.
    surface = _fit([*x, 9], [*y, 9], [*value, 8.2], nodes, nodes)
    got = bilinear(surface.rows, surface.columns, surface.ms, x, y)
    assert np.median(np.abs(got / value - 1)) < 0.02
    assert np.all(surface.ms > 0)


def _table(fit: PooledPrefill) -> PrefillTable:
    return PrefillTable(
        launch_ms=fit.launch, chunk=fit.chunk, own_ns=fit.own * 1e6, cached_ns=fit.cached * 1e6
    )


def test_prefill_fit_recovers_its_own_form():
    chunk, cached = (axis.ravel() for axis in np.meshgrid([64.0, 128, 256, 512], [0.0, 128, 1024]))
    value = 0.01 + chunk * (1e-5 + 1e-7 * chunk) + cached * 2e-7 * np.minimum(chunk, 128)
    fit = fit_prefill(np.array([0.0, 64, 128, 256, 512]), (chunk, cached, value))
    np.testing.assert_allclose(prefill_ms(_table(fit), chunk, cached), value, rtol=1e-6)
    assert 0 < fit.launch < 0.015
    assert np.all(np.diff(fit.own) >= 0)


def test_prefill_of_a_kernel_that_long_chunks_fill_better():
    """A pair takes as long as the chunk fills the GPU; own is flat, then rises: not concave."""
    chunk = np.array([32.0, 64, 128, 256, 512, 1024, 2048, 4096, 8192])
    value = 0.01 + 1e-7 * chunk * np.maximum(chunk, 1024)
    points = (np.tile(chunk, 2), np.repeat([0.0, 8192], 9), np.append(value, value + 2e-7 * chunk * 8192))
    nodes = np.append(0.0, chunk)
    errors = [
        np.abs(prefill_ms(_table(fit_prefill(nodes, points, concave=concave)), chunk, 0 * chunk) / value - 1)
        for concave in (True, False)
    ]
    assert errors[0].max() > 0.06
    assert errors[1].max() < 0.02


def test_long_prefills_are_never_faster_than_the_peak():
    """Flat beyond a chunk of 100: a pair takes 1e-3 ms at the peak, so own rises by half of the estimated 2e-3."""
    chunk = np.array([0.0, 50, 100])
    fit = PooledPrefill(0.0, chunk, np.array([0.0, 1.0, 1.0]), np.array([0.0, 1.0, 3.0]))
    longer = fit.continued(1e-3, 2e-3)
    np.testing.assert_allclose(longer.chunk, [0, 50, 100, 400])
    np.testing.assert_allclose(longer.own, [0, 1, 1, 1 + 300 * 1e-3])
    np.testing.assert_allclose(longer.cached, [0, 1, 3, 3 + 300 * 2 / 50])  # as measured
    steep = fit.continued(1e-1, 2e-1)
    np.testing.assert_allclose(steep.own[-1], 4.0)  # in proportion to the chunk, no more
    assert fit.continued(1e-9, 1e-9).chunk is not None
    slow = PooledPrefill(0.0, chunk, np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0]))
    assert slow.continued(1e-3, 2e-3) is slow


def test_thin_keeps_the_steps():
    x = np.arange(0.0, 100)
    y = np.where(x < 50, 1.0, 2.0)
    kept = thin(x, [y])
    assert list(kept) == [0, 49, 50, 99]
    np.testing.assert_allclose(np.interp(x, x[kept], y[kept]), y)


def test_nodes_are_measured_values():
    np.testing.assert_array_equal(
        grid((10, 100, 1000), np.array([1, 9.9, 50, 103, 500])), [1, 9.9, 50, 103, 500]
    )
    np.testing.assert_array_equal(grid((10,), np.array([9, 9.5, 10, 10.5, 11])), [9, 10, 11])


@pytest.mark.parametrize(
    ("sms", "edges"), [(108, (27, 28, 54, 55, 81, 82)), (132, (33, 34, 66, 67, 99, 100))]
)
def test_nodes_at_the_waves_of_the_sms(sms, edges):
    assert set(edges) <= set(batches(sms, 32, 4))


def test_resolution():
    assert resolution(np.array([0.009, 1.234])) == 1e-3
    assert resolution(np.array([0.009, 1.2345])) == 0.0
