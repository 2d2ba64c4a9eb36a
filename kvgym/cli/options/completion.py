"""Values that the shell completes: names of what ``kvgym list`` shows, also in lists with commas."""

from __future__ import annotations

from collections.abc import Callable


def names(what: str) -> Callable[[str], list[tuple[str, str]]]:
    """Return what completes the values of an option.

    Args:
        what: a list of ``kvgym list``; it is read when the shell asks.

    Returns:
        A function of what has been typed so far that returns values, each with what it is.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from kvgym.cli.lists import listing

        before, comma, begun = incomplete.rpartition(",")
        _, rows = listing(what)
        return [(before + comma + name, row[-1]) for name, row in rows.items() if name.startswith(begun)]

    return complete


__all__ = ["names"]
