"""GPUs and models by name, from kvgym's files (each figure with its source) or users' YAML files."""

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
    """The content of a file.

    Attributes:
        figures: the GPU or model.
        source: source of the figures.
    """

    figures: M
    source: str


class Presets(Mapping[str, M]):
    """kvgym's presets of one kind, by name; a file is read on first use.

    Args:
        kind: class that the files describe.
        folder: their folder in ``configs``.
        what: name of the kind, for messages.
    """

    def __init__(self, kind: type[M], folder: str, what: str) -> None:
        self.kind, self.folder, self._what = kind, folder, what
        self._found: dict[str, Preset[M]] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, sorted."""
        return iter(sorted(shipped_texts(self.folder)))

    def __len__(self) -> int:
        """Return the number of presets."""
        return len(shipped_texts(self.folder))

    def __getitem__(self, name: str) -> M:
        """Return the preset of exactly that name."""
        return self._preset(name).figures

    def _preset(self, name: str) -> Preset[M]:
        if name not in self._found:
            self._found[name] = self._parse(shipped_texts(self.folder)[name], f"{name}.yaml")
        return self._found[name]

    def _parse(self, text: str, origin: str) -> Preset[M]:
        origin = f"{self._what} {origin}"
        fields = parse_fields(text, origin)
        source = str(fields.pop("source", ""))
        return Preset(validate_fields(self.kind, fields, origin), source)

    def source(self, name_or_path: str) -> str:
        """Return the source of the figures of a preset or a file; "" = not given.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(name_or_path).source

    def find(self, given: M | str) -> M:
        """Return the object for a preset's name or the path of a YAML file; objects are returned unchanged.

        Case, hyphens, underscores and dots of names are ignored: ``Llama-3-70B`` is ``llama3-70b``.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(given).figures if isinstance(given, str) else given

    def name(self, given: str) -> str:
        """Return the canonical name of a preset; paths of files are returned unchanged.

        The first words are enough if they are unique: ``h100`` is ``h100-80gb``, but ``a100`` is ambiguous.

        Raises:
            UnknownNameError: no such preset.
        """
        if is_path(given):
            return given
        found = [name for name in self if _plain(name) == _plain(given)]
        found = found or [name for name in self if name.startswith(f"{given.lower()}-")]
        if len(found) != 1:
            raise UnknownNameError(self._what, given, found or self)
        return found[0]

    def name_of(self, figures: M) -> str | None:
        """Return the name of the preset with these figures, None if there is none."""
        return next((name for name in self if self[name] == figures), None)

    def _find(self, given: str) -> Preset[M]:
        if is_path(given):
            return self._parse(read_text(Path(given), self._what), given)
        return self._preset(self.name(given))


def is_path(text: str) -> bool:
    """Return whether a text names a YAML file instead of a preset."""
    return text.endswith((".yaml", ".yml"))


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


GPUS: Presets[GPU] = Presets(GPU, "gpu", "GPU")
"""GPUs by name."""

MODELS: Presets[ModelShape] = Presets(ModelShape, "model", "model")
"""Model shapes by name."""
