"""Figures as SVG elements to put into a page."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from kvgym.report.plots import INK, STYLE


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as one ``<svg>`` element: transparent, text in the page's colour, equal for equal input.

    Args:
        figure: the figure.
        name: letters, told apart from other figures on the page; prefix of all ids.
        label: what it shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None})
    text = buffer.getvalue()
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    # Only inside tags, so that no text of the user's is touched.
    body = re.sub(r"<[^>]+>", lambda tag: _adapt(tag.group(), name), body)
    opening = f'<svg viewBox="{box.group(1)}" role="img" aria-label="{escape(label)}" preserveAspectRatio="xMinYMin">'
    return opening + body.strip()


def _adapt(tag: str, name: str) -> str:
    tag = re.sub(r' d="[^"]*"', _shorten, tag)
    tag = tag.replace("xlink:href=", "href=").replace('href="#', f'href="#{name}-')
    tag = tag.replace(' id="', f' id="{name}-').replace("url(#", f"url(#{name}-")
    return tag.replace(INK, "currentColor")


def _shorten(path: re.Match[str]) -> str:
    """Round the coordinates of a path to 0.01 points and put it on one line."""
    rounded = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number.group()):.2f}", path.group())
    return " " + " ".join(rounded.split())
