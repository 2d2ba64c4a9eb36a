"""The command line loads matplotlib with less; what is drawn is the same, and nothing of matplotlib stays changed."""

import subprocess
import sys

DRAW = """
import io, sys
if {quick}:
    from kvgym.report.loading import load_matplotlib
    load_matplotlib()
from matplotlib.artist import Artist
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
import matplotlib
matplotlib.rcParams["svg.hashsalt"] = "same"
figure = Figure(figsize=(3, 2), layout="constrained")
axes = figure.add_subplot()
axes.set(xlabel="x", title="a line")
axes.plot([0, 1, 2], [3, 1, 2])[0].set(color="red", linewidth=2.5)
text = io.StringIO()
FigureCanvasSVG(figure).print_svg(text, metadata={{"Date": None}})
print(text.getvalue())
print("linewidth" in str(Line2D.set.__doc__), file=sys.stderr)


class Mine(Artist):
    def set_size_of_mine(self, size):
        pass


print("size_of_mine" in Mine.set.__doc__, file=sys.stderr)
"""


def draw(quick: bool) -> tuple[str, list[str]]:
    """Draw in a process of its own; return the picture, and whether artists describe what can be set."""
    code = DRAW.format(quick=quick)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.split()


def test_pictures_are_the_same_and_only_descriptions_are_missing():
    usual, described = draw(quick=False)
    quick, left = draw(quick=True)
    assert quick == usual
    assert described == ["True", "True"]
    assert left == ["False", "True"]
