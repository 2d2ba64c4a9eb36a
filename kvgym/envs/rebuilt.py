"""Copies of environments: by configuration, not by their tables."""

from __future__ import annotations

from typing import Any


class Rebuilt:
    """Mixin of an environment that is pickled as its configuration and built again from it."""

    config: Any
    render_mode: Any
    spec: Any
    _compiled: bool
    _np_random: Any
    _np_random_seed: Any

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration and the generator; the copy starts with reset()."""
        return {
            "arguments": self.config.model_dump(),
            "render_mode": self.render_mode,
            "compiled": self._compiled,
            "np_random": self._np_random,
            "np_random_seed": self._np_random_seed,
            "spec": self.spec,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the environment."""
        self.__init__(  # type: ignore[misc]
            render_mode=state["render_mode"], compiled=state["compiled"], **state["arguments"]
        )
        self._np_random, self._np_random_seed = state["np_random"], state["np_random_seed"]
        self.spec = state["spec"]
