"""Drawing on a canvas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageColor

from kvgym.envs.rendering.canvas import FAINT, Canvas, Panel, faded, ticks
from kvgym.report.colours import INK

RED, BLUE = "#c80000", "#0000c8"


def inked(canvas, color):
    """Return the mask of the pixels of a colour, bool (height, width)."""
    return (canvas.pixels() == np.array(ImageColor.getrgb(color), np.uint8)).all(axis=2)


def shown(canvas, color):
    """Return the pixels of a colour as text, one line per row."""
    return ["".join("#" if dot else "." for dot in row) for row in inked(canvas, color)]


def panel(width=10, height=5, x=(0.0, 10.0), y=(0.0, 5.0)):
    """Return a panel that covers its whole canvas, one pixel per unit."""
    canvas = Canvas(width, height)
    return canvas, Panel(canvas, (0, 0, width, height), x, y)


@pytest.mark.parametrize(
    ("bars", "hollow", "expected"),
    [
        (
            ([1.0, 4.0], [3.0, 4.2], [3.5, 1.5], 1.0),
            False,
            ["..........", ".##.......", "..........", "....#.....", ".........."],
        ),
        (  # clipped at both ends, and one of no length
            ([-5.0, 2.0, 8.0], [1.0, 2.0, 99.0], [4.5, 2.5, 0.5], 1.0),
            False,
            ["#.........", "..........", "..........", "..........", "........##"],
        ),
        (
            (2.0, 6.0, 2.5, 3.0),
            True,
            ["..........", "..####....", "..#..#....", "..####....", ".........."],
        ),
    ],
)
def test_bars(bars, hollow, expected):
    canvas, axes = panel()
    axes.bars(*bars, RED, hollow=hollow)
    assert shown(canvas, RED) == expected


def test_steps_keep_each_value_until_the_next_time():
    canvas, axes = panel(10, 8, y=(0.0, 8.0))
    axes.steps(np.array([0.0, 4.0, 8.0]), np.array([2.0, 6.0, 1.0]), RED, area=BLUE, thick=1)
    assert shown(canvas, RED)[:7] == [
        "..........",
        "..........",
        "....#####.",
        "....#...#.",
        "....#...#.",
        "....#...#.",
        "#####...#.",
    ]
    assert shown(canvas, BLUE)[7] == "########.."


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=40),
)
def test_every_step_is_in_its_column(points):
    canvas, axes = panel(40, 30)
    time, values = np.array(sorted(p[0] for p in points)), np.array([p[1] for p in points])
    axes.steps(time, values, RED, thick=1)
    there = inked(canvas, RED)
    ends = zip(axes.x(time), axes.x(time[1:]), axes.y(values), strict=False)
    for column, after, row in ends:
        if column < after and row < 30:
            assert there[row, column : min(after, 40)].all()


@pytest.mark.parametrize(
    ("ends", "most", "whole", "expected"),
    [
        ((0, 10), 6, False, [0, 2, 4, 6, 8, 10]),
        ((0, 1), 6, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((0, 4), 5, True, [0, 1, 2, 3, 4]),
        ((0, 3), 8, True, [0, 1, 2, 3]),
        ((1.5, 4), 4, False, [2, 3, 4]),
        ((0, 1680), 5, True, [0, 500, 1000, 1500]),
    ],
)
def test_ticks(ends, most, whole, expected):
    assert ticks(*ends, most, whole=whole) == pytest.approx(expected)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8), st.booleans())
def test_ticks_are_few_and_inside(low, width, most, whole):
    found = ticks(low, low + width, most, whole=whole)
    assert len(found) <= most
    assert all(low - 1e-6 * width <= value <= (low + width) * (1 + 1e-9) + 1e-6 for value in found)
    assert not whole or all(value == round(value) for value in found)


def test_text_is_aligned_and_clipped():
    for align in (0.0, 0.5, 1.0):
        canvas = Canvas(60, 20)
        width = canvas.text(30, 10, "wide", align=align)
        columns = np.flatnonzero((canvas.pixels() != 255).any(axis=(0, 2)))
        assert columns[0] == pytest.approx(30 - align * width, abs=1)
        assert columns[-1] == pytest.approx(30 + (1 - align) * width, abs=2)
    canvas = Canvas(20, 12)
    canvas.text(15, 12, "wide")
    assert (canvas.pixels()[:5] == 255).all()
    assert (canvas.pixels()[8:, 15:] != 255).any()


def test_axes_and_limits():
    canvas = Canvas(60, 60)
    axes = Panel(canvas, (20, 20, 50, 40), (0, 3), (0, 2))
    axes.axes([1.0], [2.0])
    axes.limit(x=2.0)
    grid, ink = inked(canvas, FAINT), inked(canvas, INK)
    assert grid[20:40, 30].all()
    assert grid[20, 21:50][np.arange(29) != 19].all()
    assert ink[20:40, 20].all()
    assert ink[20:32, 40].tolist() == ([True] * 4 + [False] * 2) * 2


def test_faded_colors():
    assert faded("#0072b2", 1.0) == "#0072b2"
    assert faded("#0072b2", 0.0) == "#ffffff"
