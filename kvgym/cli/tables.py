"""The tables of the command line: they drop whole columns that do not fit, and never cut or wrap a number."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as Drawn
from rich.text import Text

from kvgym.errors import printable

NARROW = 12
"""Least width of a column of words, which wrap."""
LABEL = 40
"""Greatest width of the first column, and of a word, before it wraps."""
LONG_HEADING = 16
"""Width from which a heading wraps."""

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: heading.
        rank: importance, 0 = the most important; columns of equal rank by their place.
        words: whether it has words, which stand at the left and may wrap, not numbers.
        style: style of its cells.
    """

    heading: str
    rank: int
    words: bool
    style: str | None


class ResultTable:
    """A table of results for a terminal; the first column names the rows.

    The first column and the most important other one are always shown. Of the others, the most important ones that fit
    are shown, and a line below the table names the rest.

    Args:
        title: heading.
        caption: remark below.
        files: where all columns are, for the line on hidden ones.
        plain: whether to omit lines and edges.
    """

    def __init__(self, title: str = "", caption: str = "", *, files: str = "", plain: bool = False) -> None:
        self.title, self.caption, self.files, self.plain = title, caption, files, plain
        self.columns: list[Column] = []
        self.rows: list[tuple[list[Cell], str | None]] = []
        self._ends: list[int] = []

    def column(
        self, heading: str, *, rank: int | None = None, words: bool = False, style: str | None = None
    ) -> None:
        """Add a column; without a rank it is less important than those before it."""
        place = len(self.columns)
        self.columns.append(Column(printable(heading), place if rank is None else rank, words, style))

    def row(self, *cells: Cell, style: str | None = None) -> None:
        """Add a row with a cell per column; missing cells at its end are empty."""
        shown: list[Cell] = [printable(cell) if isinstance(cell, str) else cell for cell in cells]
        self.rows.append((shown + [""] * (len(self.columns) - len(shown)), style))

    def section(self) -> None:
        """End a group of rows."""
        self._ends.append(len(self.rows) - 1)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType | Segment]:
        """Yield title, table, the line on hidden columns, and caption, for the width of a console."""
        least = [self._least(place) for place in range(len(self.columns))]
        shown = self._fitting(least, options.max_width)
        widths = self._spread(shown, least, options.max_width)
        if self.title:
            yield Text(printable(self.title), style="italic")
        drawn = Drawn(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        if not self.plain:
            drawn = Drawn(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place in shown:
            own, width = self.columns[place], widths[place]
            heading = textwrap.fill(own.heading, width, break_long_words=False, break_on_hyphens=False)
            drawn.add_column(
                Text(heading), justify="left" if own.words else "right", style=own.style, width=width,
                no_wrap=not own.words, overflow="fold" if own.words else "crop",
            )  # fmt: skip
        for number, (cells, style) in enumerate(self.rows):
            texts = [Text(cell) if isinstance(cell, str) else cell for cell in (cells[p] for p in shown)]
            drawn.add_row(*texts, style=style, end_section=number in self._ends)
        room = max(self._total(widths[place] for place in shown), options.max_width)
        yield from console.render(drawn, options.update(width=room))
        if hidden := [own.heading for place, own in enumerate(self.columns) if place not in shown]:
            files = f" or {self.files}" if self.files else ""
            yield Text(f"hidden at this width: {', '.join(hidden)}; --width {self._total(least)}{files}")
        if self.caption:
            yield Text(printable(self.caption), style="dim italic")

    def _texts(self, place: int) -> list[str]:
        """Return the texts of the cells of a column."""
        return [str(cells[place]) for cells, _ in self.rows]

    def _least(self, place: int) -> int:
        """Return the least width of a column: the width of its numbers, or enough for words that wrap."""
        own, texts = self.columns[place], self._texts(place)
        heading = max(map(cell_len, own.heading.split()), default=0)
        heading = max(heading, min(cell_len(own.heading), LONG_HEADING))
        cells = max(map(cell_len, texts), default=0)
        if own.words:
            longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
            cells = min(cells, max(NARROW if place else LABEL, min(longest, LABEL)))
        return max(heading, cells)

    def _fitting(self, least: Sequence[int], room: int) -> list[int]:
        """Return the columns to show, in order: the first, and the most important others that fit."""
        order = sorted(range(1, len(self.columns)), key=lambda place: (self.columns[place].rank, place))
        shown = [0]
        for place in order:
            if len(shown) > 1 and self._total([least[k] for k in (*shown, place)]) > room:
                break
            shown.append(place)
        return sorted(shown)

    def _spread(self, shown: Sequence[int], least: Sequence[int], room: int) -> list[int]:
        """Return the widths of the columns; what is left goes to columns of words."""
        widths = list(least)
        wanted = {
            place: max(map(cell_len, self._texts(place)), default=0)
            for place in shown
            if self.columns[place].words
        }
        for _ in range(room - self._total(least[place] for place in shown)):
            tight = max(wanted, key=lambda place: wanted[place] - widths[place], default=None)
            if tight is None or wanted[tight] <= widths[tight]:
                break
            widths[tight] += 1
        return widths

    def _total(self, widths: Iterable[int]) -> int:
        """Return the width of a table of columns."""
        known = list(widths)
        return sum(known) + (2 * len(known) - 2 if self.plain else 2 * len(known) + 1)
