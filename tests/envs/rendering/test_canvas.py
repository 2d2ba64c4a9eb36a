"""Drawing on a canvas of pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.envs.rendering.canvas import BLACK, FAINT, Canvas, Panel, color_of, ticks
from kvgym.envs.rendering.glyphs import ROWS, SHEET, _strokes, text_mask

RED, BLUE, WHITE = (200, 0, 0), (0, 0, 200), (255, 255, 255)


def inked(canvas, color):
    """Return the pixels of a colour as text, one line per row."""
    there = (canvas.pixels == np.array(color, np.uint8)).all(axis=2)
    return ["".join("#" if dot else "." for dot in row) for row in there]


def panel(width=10, height=5, x=(0.0, 10.0), y=(0.0, 5.0)):
    """Return a panel that covers its whole canvas, one pixel per unit."""
    canvas = Canvas(width, height)
    return canvas, Panel(canvas, (0, 0, width, height), x, y)


def test_bars():
    canvas, axes = panel()
    axes.bars([1.0, 4.0], [3.0, 4.2], [3.5, 1.5], 1.0, RED)
    assert inked(canvas, RED) == ["..........", ".##.......", "..........", "....#.....", ".........."]


def test_bars_are_clipped_and_empty_ones_skipped():
    canvas, axes = panel()
    axes.bars([-5.0, 2.0, 8.0], [1.0, 2.0, 99.0], [4.5, 2.5, 0.5], 1.0, RED)
    assert inked(canvas, RED) == ["#.........", "..........", "..........", "..........", "........##"]


def test_hollow_bars_have_no_left_side():
    canvas, axes = panel()
    axes.bars(2.0, 6.0, 2.5, 3.0, RED, hollow=True)
    assert inked(canvas, RED) == ["..........", "..####....", ".....#....", "..####....", ".........."]


def test_steps_keep_each_value_until_the_next_time():
    canvas, axes = panel(10, 8, y=(0.0, 8.0))
    axes.steps(np.array([0.0, 4.0, 8.0]), np.array([2.0, 6.0, 1.0]), RED, area=BLUE)
    assert inked(canvas, RED)[:7] == [
        "..........",
        "....#####.",
        "....#####.",
        "....#...#.",
        "....#...#.",
        "#####...#.",
        "#####...#.",
    ]
    assert inked(canvas, BLUE)[6] == ".....###.."


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=40),
)
def test_every_step_is_in_its_column(points):
    canvas, axes = panel(40, 30)
    time, values = np.array(sorted(p[0] for p in points)), np.array([p[1] for p in points])
    axes.steps(time, values, RED)
    there = (canvas.pixels == np.array(RED, np.uint8)).all(axis=2)
    for column, row in zip(axes.x(time), axes.y(values), strict=True):
        if column < 40 and row > 0:
            assert there[row - 1, column]


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


def test_letters():
    assert [[round(4 * value) for value in row] for row in text_mask("i", 7)] == [
        [4], [0], [4], [4], [4], [4], [4], [0], [0],
    ]  # fmt: skip
    assert text_mask("i").shape == (12, 2)
    assert text_mask("t = 1.5 s", 14).shape[0] == 2 * ROWS
    assert set(np.unique(text_mask("Some text: 12 %"))) == {0, 0.25, 0.5, 0.75, 1}
    names = [line[k] for line in SHEET.strip("\n").split("\n")[:: ROWS + 1] for k in range(0, len(line), 6)]
    drawings = {text_mask(name).tobytes() + bytes(text_mask(name).shape) for name in names}
    assert len(drawings) == len(names) - 2 > 80  # no two alike, but 0 and O, x and ×
    assert text_mask("☃").shape == text_mask("∫").shape == (12, 7)


def test_dots_that_touch_at_a_corner_are_joined_unless_another_joins_them():
    corner = _strokes(np.array([[True, False], [False, True]]))
    assert corner.tolist() == [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]]
    full = _strokes(np.array([[True, False], [True, True]]))
    assert [0.5, 0.5, 1.5, 1.5] not in full.tolist()


def test_text_is_aligned_and_clipped():
    for align, ends in ((0.0, (10, 14)), (1.0, (6, 10)), (0.5, (8, 12))):
        canvas = Canvas(20, 12)
        assert canvas.text(10, 2, "-", RED, align=align) == 4
        columns = np.flatnonzero((canvas.pixels == np.array(RED, np.uint8)).all(axis=2).any(axis=0))
        assert (columns[0], columns[-1] + 1) == ends
    canvas = Canvas(20, 12)
    canvas.text(15, 8, "wide")
    assert (canvas.pixels[:8] == 255).all()
    assert (canvas.pixels[8:, 15:] != 255).any()


def test_axes_and_limits():
    canvas = Canvas(60, 60)
    axes = Panel(canvas, (20, 20, 50, 40), (0, 3), (0, 2), "Title")
    axes.axes([1.0], [2.0])
    axes.limit(x=2.0)
    assert (canvas.pixels[20:40, 30] == FAINT).all()
    assert (canvas.pixels[20, 21:50][np.arange(29) != 19] == FAINT).all()
    assert (canvas.pixels[20:40, 20] == BLACK).all()
    assert [tuple(p) == BLACK for p in canvas.pixels[20:32, 40].tolist()] == ([True] * 4 + [False] * 2) * 2


def test_colors():
    assert color_of("#0072b2") == (0, 114, 178)
    assert color_of("#0072b2", 0.0) == WHITE
