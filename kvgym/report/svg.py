"""Conversion of figures to SVG elements of a page."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG

from kvgym.report.chart import GID, Chart
from kvgym.report.style import INK, STYLE

_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_CORNER = re.compile(rf"(z)|([ML])\s*({_NUMBER})\s+({_NUMBER})")
_PARTS = re.compile(r"(<[^>]+>)")
_TAG = re.compile(r"<[^>]+>")
_PATH = re.compile(r' d="([^"]*)"')
_GROUP = re.compile(rf' id="{GID}(\d+)\.\d+"')
_PLACE = re.compile(r' (x|y|transform)="([^"]*)"')
_FONT = re.compile(r'(font: [\d.]+px|font-family:) [^;"]*')
_ID = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'(href="|url\()#([^")]+)')
_DIGITS = re.compile(r"-?\d+\.\d{3,}")
_LONG = 400
"""Length of a path, characters, above which it is rounded to a tenth of a point."""


def inline_svg(chart: Chart, name: str, label: str) -> tuple[str, list[dict[str, Any]]]:
    """Return a figure as one ``<svg>`` element: transparent, text in the page's colour, equal for equal input.

    Groups of a policy's artists have the class ``p0``, ``p1``, … by the policy's index in the chart.

    Args:
        chart: the figure.
        name: unique name of letters; prefix of all ids.
        label: description for screen readers.

    Returns:
        The element, and its :meth:`~kvgym.report.chart.Chart.data`.
    """
    buffer = io.StringIO()
    chart.set_facecolor("none")
    with mpl.rc_context(STYLE):  # savefig would draw everything twice, first for the layout
        canvas: Any = FigureCanvasSVG(chart)
        canvas.print_svg(buffer, metadata={"Date": None})
    text = buffer.getvalue()
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert box is not None
    width, height = box.groups()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    # Only inside tags, so that texts of users stay unchanged.
    body = _bare(_TAG.sub(lambda tag: _adapt(tag.group()), body), name)
    opening = (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMinYMin" data-chart="{name}">'
    )
    return opening + body, chart.data(float(width), float(height))


def _adapt(tag: str) -> str:
    if tag == "</g>":
        return tag
    tag = _PATH.sub(lambda path: f' d="{_shorten(path.group(1))}"', tag)
    tag = _GROUP.sub(r' class="p\1"', tag)
    tag = _PLACE.sub(_round_place, tag)
    tag = _FONT.sub(r"\1 sans-serif", tag)
    return tag.replace("xlink:href=", "href=").replace(INK, "currentColor")


def _round_place(attribute: re.Match[str]) -> str:
    numbers = _DIGITS.sub(lambda n: _rounded(n.group(), 2), attribute.group(2))
    return f' {attribute.group(1)}="{numbers}"'


def _bare(body: str, name: str) -> str:
    """Remove unused ids, groups without attributes and space between tags; number the other ids."""
    used = dict.fromkeys(old for _, old in _REFERENCE.findall(body))
    ids = {old: f"{name}-{i}" for i, old in enumerate(used)}
    parts: list[str] = []
    kept: list[bool] = []  # for each open group
    for part in _PARTS.split(body):
        if not part.startswith("<"):
            parts.append(part if part.strip() else "")
            continue
        tag = _ID.sub(lambda i: f' id="{ids[i.group(1)]}"' if i.group(1) in ids else "", part)
        tag = _REFERENCE.sub(lambda i: f"{i.group(1)}#{ids[i.group(2)]}", tag)
        if tag == "<g/>":
            continue
        if tag.startswith("<g") and tag[2] in " >":
            kept.append(tag != "<g>")
            if tag == "<g>":
                continue
        elif tag == "</g>" and not kept.pop():
            continue
        parts.append(tag)
    return "".join(parts)


def _shorten(path: str) -> str:
    """Return a shortened path: rounded, with horizontal and vertical lines as H and V."""
    if re.search(r"[CQ]", path):
        return _DIGITS.sub(lambda n: _rounded(n.group(), 2), " ".join(path.split()))
    digits = 1 if len(path) > _LONG else 2
    parts: list[str] = []
    last = ("", "")
    for end, letter, first, second in _CORNER.findall(path):
        if end:
            parts.append(end)
            continue
        point = (_rounded(first, digits), _rounded(second, digits))
        if letter == "M":
            parts.append(f"M{point[0]} {point[1]}")
        elif point[0] != last[0] and point[1] != last[1]:
            parts.append(f"L{point[0]} {point[1]}")
        elif point[0] != last[0]:
            parts.append("H" + point[0])
        elif point[1] != last[1] or parts[-1][0] == "M":  # a dot is a line of length zero
            parts.append("V" + point[1])
        last = point
    return "".join(parts)


def _rounded(number: str, digits: int) -> str:
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
