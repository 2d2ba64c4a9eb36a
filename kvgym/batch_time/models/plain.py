"""The base of models that are described by the arguments of their constructors."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.simulator.batch_time import BatchTimeModel


class PlainBatchTime(BatchTimeModel):
    """A model with the arguments of its constructor as attributes.

    Attributes:
        kind: its name in :data:`~kvgym.batch_time.BATCH_TIMES`.
    """

    kind: ClassVar[str]

    def spec(self) -> dict[str, Any]:
        """Return the arguments as a dict of plain values that :func:`~kvgym.batch_time.make_batch_time` accepts."""
        names = inspect.signature(type(self)).parameters
        return {"kind": self.kind, **{name: _plain(getattr(self, name)) for name in names}}


def _plain(value: Any) -> Any:
    """Return a value for a file: a GPU or a model by its name, or by its figures without one."""
    if isinstance(value, GPU):
        return GPUS.name_of(value) or value.model_dump()
    if isinstance(value, ModelShape):
        return MODELS.name_of(value) or value.model_dump()
    return list(value) if isinstance(value, list) else value
