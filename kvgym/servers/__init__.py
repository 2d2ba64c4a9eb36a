"""Live servers and measured engines. A wing of the library: nothing but the command line imports it.

``endpoint`` measures an OpenAI-compatible server and serves simulated times, ``validation`` compares a server's log
and published batches with the simulator, ``calibration`` fits operator tables to measured profiles.
May import :mod:`kvgym.report` and what is below it; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.servers.validation.overhead_fit import OverheadFit, fit_overhead
    from kvgym.servers.validation.replay import Difference, Replay, replay_log
    from kvgym.servers.validation.results import save_picture, save_replay
    from kvgym.servers.validation.served import ServedLog, read_served
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "validation.overhead_fit": "OverheadFit fit_overhead",
            "validation.replay": "Difference Replay replay_log",
            "validation.results": "save_picture save_replay",
            "validation.served": "ServedLog read_served",
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
