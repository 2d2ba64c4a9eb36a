"""Models with Stable-Baselines3's ``predict`` as players of one episode."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from typing import Any, Protocol

import numpy as np


class Predictor(Protocol):
    """Protocol of agents: Stable-Baselines3's ``predict``, with or without ``action_masks``."""

    def predict(self, observation: Any, *, deterministic: bool = ...) -> tuple[Any, Any]:
        """Return an action and a state."""
        ...


class Player:
    """A model in one episode: returns its actions, and passes its state, as of an LSTM, from each call to the next.

    Args:
        model: the model; its ``predict`` gets the mask and the state if it accepts ``action_masks`` and ``state``.
        **options: further arguments of its ``predict``; by default ``deterministic=True``.
    """

    def __init__(self, model: Predictor, **options: Any) -> None:
        accepted = inspect.signature(model.predict).parameters
        self._model: Any = model
        self._masked, self._recurrent = "action_masks" in accepted, "state" in accepted
        self._options = {"deterministic": True, **options}
        self._state: Any = None  # an episode starts without one

    def __call__(self, observation: Any, mask: Any) -> Any:
        """Return the action for an observation and its mask."""
        options = dict(self._options)
        if self._masked:
            options["action_masks"] = mask.astype(bool)
        if self._recurrent:
            options["state"] = self._state
        action, self._state = self._model.predict(observation, **options)
        return action


def drawing_player(model: Any, seed: np.random.SeedSequence) -> Player:
    """Return a player that draws the model's actions.

    Equal seeds give equal actions. kvgym's own models get a generator. The others draw from the global ones of
    PyTorch, NumPy and Python, which are seeded by the model's ``set_random_seed`` if it has one.
    """
    if "rng" in inspect.signature(model.predict).parameters:
        return Player(model, deterministic=False, rng=np.random.default_rng(seed))
    if hasattr(model, "set_random_seed"):
        model.set_random_seed(int(seed.generate_state(1)[0]))
    return Player(model, deterministic=False)


def content_of(model: Predictor) -> Any:
    """Return the identity of a model, JSON-able: its own ``content()``, else a hash of its pickle."""
    own = getattr(model, "content", None)
    return own() if own is not None else hashlib.sha256(pickle.dumps(model)).hexdigest()[:20]
