"""What becomes of a closed environment: its memory is freed, and whoever asks for it is told so."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym


def not_running(closed: bool) -> Exception:
    """Return the error about an environment that is to step without an episode."""
    if closed:
        return gym.error.ClosedEnvironmentError("the environment is closed; make a new one")
    return gym.error.ResetNeeded("the episode has ended or was never started; call reset() first")


class Closed:
    """Stands for what a closed environment has freed: any use is a ClosedEnvironmentError."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise not_running(True)

    __getattr__ = __getitem__ = __iter__ = __len__ = __call__ = _refuse
