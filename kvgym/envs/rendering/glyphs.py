"""Font of pictures of environments, so that drawing needs only NumPy: letters of dots, drawn as smooth strokes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ROWS = 9
"""Rows of dots of a letter; the last two are below the line."""

CAPITAL_ROWS = 7
"""Rows of dots of a capital letter."""

CAPITAL = 9
"""Height of a capital letter in texts, pixels."""

STROKE = 0.62
"""Half of the width of a stroke, dots."""

SAMPLES = 4
"""Samples per pixel in each direction, for smooth edges."""

LEVELS = 4
"""Levels of opacity above 0: few, so that an animation needs few colours."""

CELL = 6
"""Columns of the sheet for each letter."""

SPACE = 3
"""Columns of a space, in addition to the space between letters."""

SHEET = """
0     1     2     3     4     5     6     7     8     9     .     ,     :     ;     %     (     )
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###. .     ..    .     ..    ##..# ..#   #..
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...# .     ..    .     ..    ##..# .#.   .#.
#...# ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...# .     ..    .     ..    ...#. #..   ..#
#...# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .#### .     ..    #     .#    ..#.. #..   ..#
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....# .     ..    .     ..    .#... #..   ..#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ...#. .     ..    .     ..    #..## .#.   .#.
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .##.. #     .#    #     .#    #..## ..#   #..
..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .     #.    .     #.    ..... ...   ...
..... ..... ..... ..... ..... ..... ..... ..... ..... ..... .     ..    .     ..    ..... ...   ...
/     +     -     –     =     ·     _     <     >     #     '     "     ?     !     *     |     &
...#  ..... ...   ..... ....  .     ..... ...#  #...  .#.#. #     #.#   .###. #     ..... #     .##..
...#  ..#.. ...   ..... ....  .     ..... ..#.  .#..  .#.#. #     #.#   #...# #     ..#.. #     #..#.
..#.  ..#.. ...   ..... ####  .     ..... .#..  ..#.  ##### .     ...   ....# #     #.#.# #     #..#.
..#.  ##### ###   ##### ....  #     ..... #...  ...#  .#.#. .     ...   ...#. #     .###. #     .##..
.#..  ..#.. ...   ..... ####  .     ..... .#..  ..#.  ##### .     ...   ..#.. #     #.#.# #     #.#.#
.#..  ..#.. ...   ..... ....  .     ..... ..#.  .#..  .#.#. .     ...   ..... .     ..#.. #     #..#.
#...  ..... ...   ..... ....  .     ..... ...#  #...  .#.#. .     ...   ..#.. #     ..... #     .##.#
....  ..... ...   ..... ....  .     ##### ....  ....  ..... .     ...   ..... .     ..... #     .....
....  ..... ...   ..... ....  .     ..... ....  ....  ..... .     ...   ..... .     ..... #     .....
A     B     C     D     E     F     G     H     I     J     K     L     M     N     O     P     Q
.###. ####. .###. ####. ##### ##### .###. #...# ###   ..### #...# #.... #...# #...# .###. ####. .###.
#...# #...# #...# #...# #.... #.... #...# #...# .#.   ...#. #..#. #.... ##.## ##..# #...# #...# #...#
#...# #...# #.... #...# #.... #.... #.... #...# .#.   ...#. #.#.. #.... #.#.# ##..# #...# #...# #...#
##### ####. #.... #...# ####. ####. #.### ##### .#.   ...#. ##... #.... #.#.# #.#.# #...# ####. #...#
#...# #...# #.... #...# #.... #.... #...# #...# .#.   ...#. #.#.. #.... #...# #..## #...# #.... #.#.#
#...# #...# #...# #...# #.... #.... #...# #...# .#.   #..#. #..#. #.... #...# #..## #...# #.... #..#.
#...# ####. .###. ####. ##### #.... .###. #...# ###   .##.. #...# ##### #...# #...# .###. #.... .##.#
..... ..... ..... ..... ..... ..... ..... ..... ...   ..... ..... ..... ..... ..... ..... ..... .....
..... ..... ..... ..... ..... ..... ..... ..... ...   ..... ..... ..... ..... ..... ..... ..... .....
R     S     T     U     V     W     X     Y     Z     [     ]     ×     ~     …
####. .#### ##### #...# #...# #...# #...# #...# ##### ##    ##    ..... ..... .....
#...# #.... ..#.. #...# #...# #...# #...# #...# ....# #.    .#    ..... ..... .....
#...# #.... ..#.. #...# #...# #...# .#.#. .#.#. ...#. #.    .#    #...# .#..# .....
####. .###. ..#.. #...# #...# #.#.# ..#.. ..#.. ..#.. #.    .#    .#.#. #.#.# .....
#.#.. ....# ..#.. #...# #...# #.#.# .#.#. ..#.. .#... #.    .#    ..#.. #..#. .....
#..#. ....# ..#.. #...# .#.#. ##.## #...# ..#.. #.... #.    .#    .#.#. ..... .....
#...# ####. ..#.. .###. ..#.. #...# #...# ..#.. ##### ##    ##    #...# ..... #.#.#
..... ..... ..... ..... ..... ..... ..... ..... ..... ..    ..    ..... ..... .....
..... ..... ..... ..... ..... ..... ..... ..... ..... ..    ..    ..... ..... .....
a     b     c     d     e     f     g     h     i     j     k     l     m     n     o     p     q
..... #.... ....  ....# ..... .##   ..... #.... #     .#    #...  #.    ..... ....  ..... ..... .....
..... #.... ....  ....# ..... #..   ..... #.... .     ..    #...  #.    ..... ....  ..... ..... .....
.###. ####. .###  .#### .###. ###   .#### ####. #     .#    #..#  #.    ##.#. ###.  .###. ####. .####
....# #...# #...  #...# #...# #..   #...# #...# #     .#    #.#.  #.    #.#.# #..#  #...# #...# #...#
.#### #...# #...  #...# ##### #..   #...# #...# #     .#    ##..  #.    #.#.# #..#  #...# #...# #...#
#...# #...# #...  #...# #.... #..   #...# #...# #     .#    #.#.  #.    #.#.# #..#  #...# #...# #...#
.#### ####. .###  .#### .###. #..   .#### #...# #     .#    #..#  .#    #.#.# #..#  .###. ####. .####
..... ..... ....  ..... ..... ...   ....# ..... .     .#    ....  ..    ..... ....  ..... #.... ....#
..... ..... ....  ..... ..... ...   .###. ..... .     #.    ....  ..    ..... ....  ..... #.... ....#
r     s     t     u     v     w     x     y     z
...   ....  .#.   ....  ..... ..... ..... ....  ....
...   ....  .#.   ....  ..... ..... ..... ....  ....
#.#   .###  ###   #..#  #...# #...# #...# #..#  ####
##.   #...  .#.   #..#  #...# #...# .#.#. #..#  ...#
#..   .##.  .#.   #..#  #...# #.#.# ..#.. #..#  .##.
#..   ...#  .#.   #..#  .#.#. #.#.# .#.#. #..#  #...
#..   ###.  ..#   .###  ..#.. .#.#. #...# .###  ####
...   ....  ...   ....  ..... ..... ..... ...#  ....
...   ....  ...   ....  ..... ..... ..... .##.  ....
"""
"""Bands of letters: a line with the letters, then their rows of dots."""


def _read(sheet: str) -> dict[str, NDArray[np.bool_]]:
    """Return the letters of a sheet, bool (ROWS, width) each."""
    lines, found = sheet.strip("\n").split("\n"), {" ": np.zeros((ROWS, SPACE), bool)}
    for top in range(0, len(lines), ROWS + 1):
        for at in range(0, len(lines[top]), CELL):
            rows = [line[at : at + CELL].rstrip() for line in lines[top + 1 : top + 1 + ROWS]]
            found[lines[top][at]] = np.array([[dot == "#" for dot in row] for row in rows])
    return found


_LETTERS = _read(SHEET)
_UNKNOWN = np.pad(np.zeros((CAPITAL_ROWS - 2, 3), bool), 1, constant_values=True)
_UNKNOWN = np.pad(_UNKNOWN, ((0, ROWS - CAPITAL_ROWS), (0, 0)))


@lru_cache(maxsize=4096)
def text_mask(text: str, capital: int = CAPITAL) -> NDArray[np.float64]:
    """Return the opacity of the pixels of a line of text, float64 (height, width), from 0 to 1.

    Args:
        text: the line; characters that are not on the sheet become boxes.
        capital: height of a capital letter, pixels.
    """
    gap = np.zeros((_pixels(ROWS, capital), max(1, capital // CAPITAL_ROWS)))
    parts = [part for letter in text for part in (_letter(letter, capital), gap)]
    mask = np.hstack(parts[:-1]) if parts else gap[:, :0]
    mask.flags.writeable = False
    return mask


def _pixels(dots: int, capital: int) -> int:
    """Return the pixels that hold a number of dots."""
    return -(-dots * capital // CAPITAL_ROWS)


@lru_cache(maxsize=1024)
def _letter(letter: str, capital: int) -> NDArray[np.float64]:
    """Return the opacity of a letter's pixels: strokes along its dots, float64 (height, width)."""
    dots = _LETTERS.get(letter, _UNKNOWN)
    height, width = (_pixels(count, capital) for count in dots.shape)
    lines = _strokes(dots)
    if not len(lines):
        return np.zeros((height, width))
    scale = CAPITAL_ROWS / capital / SAMPLES  # dots per sample
    y, x = ((np.arange(count * SAMPLES) + 0.5) * scale for count in (height, width))
    place = np.stack(np.meshgrid(x, y), axis=-1)[:, :, None]  # (rows, columns, 1, 2)
    start, along = lines[:, :2], lines[:, 2:] - lines[:, :2]
    length = np.maximum((along**2).sum(axis=1), 1e-9)
    share = np.clip(((place - start) * along).sum(axis=-1) / length, 0.0, 1.0)
    away = np.linalg.norm(place - start - share[..., None] * along, axis=-1).min(axis=-1)
    inked = (away <= STROKE).reshape(height, SAMPLES, width, SAMPLES).mean(axis=(1, 3))
    opacity: NDArray[np.float64] = np.round(inked * LEVELS) / LEVELS
    return opacity


def _strokes(dots: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return lines between the centres of neighbouring dots, (m, 4): x and y of both ends.

    Dots that touch at a corner are joined if no dot beside both does it. A single dot is a line of length 0.
    """
    there = {(int(x), int(y)) for y, x in np.argwhere(dots)}
    found = []
    for x, y in sorted(there):
        found.append((x, y, x, y))
        found += [(x, y, *end) for end in ((x + 1, y), (x, y + 1)) if end in there]
        for side in (-1, 1):
            if (x + side, y + 1) in there and not {(x + side, y), (x, y + 1)} & there:
                found.append((x, y, x + side, y + 1))
    return np.array(found, np.float64).reshape(-1, 4) + 0.5
