"""Reports without their pictures, which take most of the time to draw: for tests of everything else in a report."""

import importlib.util


def leave_out(monkeypatch):
    """Make empty pictures of all figures of reports; everything else is as ever. tests/report draws them."""
    if all(importlib.util.find_spec(name) for name in ("matplotlib", "jinja2")):
        monkeypatch.setattr(
            "kvgym.report.page.inline_svg",
            lambda chart, name, label: (f'<svg data-chart="{name}"></svg>', []),
        )
