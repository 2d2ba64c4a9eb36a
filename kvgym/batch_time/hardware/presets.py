"""GPUs and models by name: those that come with kvgym, each figure with its source, and those of YAML files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.errors import UnknownNameError
from kvgym.utils.reading import parse_fields, read_text, shipped_texts, validate_fields

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Preset(Generic[M]):
    """What a file says.

    Attributes:
        figures: the GPU or model.
        source: where they come from.
    """

    figures: M
    source: str


class Presets(Mapping[str, M]):
    """What comes with kvgym of one kind, by name; a file is read when it is first asked for.

    Args:
        kind: of what the files describe.
        folder: of ``configs`` that holds them.
        what: what it is, for messages.
    """

    def __init__(self, kind: type[M], folder: str, what: str) -> None:
        self._kind, self._folder, self._what = kind, folder, what
        self._found: dict[str, Preset[M]] = {}

    def __iter__(self) -> Iterator[str]:
        """Go through the names, in order."""
        return iter(sorted(shipped_texts(self._folder)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(shipped_texts(self._folder))

    def __getitem__(self, name: str) -> M:
        """Return what the preset of exactly that name is."""
        return self._preset(name).figures

    def _preset(self, name: str) -> Preset[M]:
        if name not in self._found:
            self._found[name] = self._parse(shipped_texts(self._folder)[name], f"{name}.yaml")
        return self._found[name]

    def _parse(self, text: str, origin: str) -> Preset[M]:
        origin = f"{self._what} {origin}"
        fields = parse_fields(text, origin)
        source = str(fields.pop("source", ""))
        return Preset(validate_fields(self._kind, fields, origin), source)

    def source(self, name_or_path: str) -> str:
        """Return where the figures of a preset or a file come from; "" = it does not say.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(name_or_path).source

    def find(self, given: M | str) -> M:
        """Return what is described by itself, by a preset's name or by the path of a YAML file.

        Case, hyphens, underscores and dots of names do not count: ``Llama-3-70B`` is ``llama3-70b``.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(given).figures if isinstance(given, str) else given

    def name(self, given: str) -> str:
        """Return how a preset is spelt; the path of a file as it is.

        The first words do where they are those of one preset only: ``h100`` is ``h100-80gb``, ``a100`` could be two.

        Raises:
            UnknownNameError: no such preset.
        """
        if _is_path(given):
            return given
        found = [name for name in self if _plain(name) == _plain(given)]
        found = found or [name for name in self if name.startswith(f"{given.lower()}-")]
        if len(found) != 1:
            raise UnknownNameError(self._what, given, found or self)
        return found[0]

    def name_of(self, figures: M) -> str | None:
        """Return the name of the preset with these figures, None where there is none."""
        return next((name for name in self if self[name] == figures), None)

    def _find(self, given: str) -> Preset[M]:
        if _is_path(given):
            return self._parse(read_text(Path(given), self._what), given)
        return self._preset(self.name(given))


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml"))


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


GPUS: Presets[GPU] = Presets(GPU, "gpu", "GPU")
"""GPUs by name."""

MODELS: Presets[ModelShape] = Presets(ModelShape, "model", "model")
"""Model shapes by name."""
