"""Validation: predictions against published batches of running engines and against a server's own logs.

``published`` holds the measurements, ``engines`` predicts them, ``tables`` and ``figures`` build docs/validation.md.
``served`` reads a server's log, ``replay`` simulates the same requests and compares, ``overhead_fit`` fits an engine's
overhead to it, ``results`` writes files, with the picture of ``distributions``.
May import :mod:`kvgym.report` and what is below it; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.validation.overhead_fit import OverheadFit, fit_overhead
    from kvgym.validation.replay import Difference, Replay, replay_log
    from kvgym.validation.results import save_picture, save_replay
    from kvgym.validation.served import ServedLog, read_served
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "overhead_fit": "OverheadFit fit_overhead",
            "replay": "Difference Replay replay_log",
            "results": "save_picture save_replay",
            "served": "ServedLog read_served",
        },
    )

__all__ = [
    "Difference",
    "OverheadFit",
    "Replay",
    "ServedLog",
    "fit_overhead",
    "read_served",
    "replay_log",
    "save_picture",
    "save_replay",
]
