"""How the command line loads matplotlib: without the descriptions that it writes of every artist for those who ask.

Where matplotlib is imported, it puts together for each kind of artist what can be set of it, a fifth of the time that
its import takes. Nobody asks for that in a program of the command line.
"""

from __future__ import annotations

from typing import Any


def load_matplotlib() -> None:
    """Import what figures need of matplotlib; artists work as ever, but ``set`` of each says nothing of its own."""
    import matplotlib.artist

    artist: Any = matplotlib.artist.Artist
    name = "_update_set_signature_and_docstring"
    writes = vars(artist).get(name)
    if writes is not None:  # else it is another version, which may take its time
        setattr(artist, name, classmethod(lambda _: None))
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure
    finally:
        if writes is not None:
            setattr(artist, name, writes)
