"""GPUs and models by name, from kvgym's files (each figure with its source) or users' YAML files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from kvgym.batch_time.hardware.checkpoints import parse_checkpoint
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
        aliases: other names of the same figures, as a checkpoint's on Hugging Face.
        variants: what differs in some fields, by name: checkpoints with smaller weights, or another vocabulary.
    """

    figures: M
    source: str
    aliases: tuple[str, ...] = ()
    variants: Mapping[str, M] = field(default_factory=dict)


class Presets(Mapping[str, M]):
    """kvgym's presets of one kind, by name; a file is read on first use.

    Args:
        kind: class that the files describe.
        folder: their folder in ``configs``.
        what: name of the kind, for messages.
        parse_json: reads another kind of file, JSON: text and path; None = there is none.
    """

    def __init__(
        self, kind: type[M], folder: str, what: str, parse_json: Callable[[str, str], M] | None = None
    ) -> None:
        self.kind, self.folder, self._what, self._parse_json = kind, folder, what, parse_json
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
            text, origin = shipped_texts(self.folder)[name], f"{self._what} {name}.yaml"
            fields = parse_fields(text, origin)
            aliases, variants = fields.pop("aliases", ()), fields.pop("variants", {})
            preset = self._made(fields, origin)
            changed = {
                other: self._made({**fields, **changes}, origin).figures
                for other, changes in variants.items()
            }
            self._found[name] = replace(preset, aliases=tuple(aliases), variants=changed)
        return self._found[name]

    def _made(self, fields: Mapping[str, Any], origin: str) -> Preset[M]:
        figures = {name: value for name, value in fields.items() if name != "source"}
        return Preset(validate_fields(self.kind, figures, origin), str(fields.get("source", "")))

    @functools.cached_property
    def _others(self) -> Mapping[str, str]:
        """Canonical names by the other names of all presets, with and without their part before a slash."""
        found: dict[str, str] = {}
        for name in self:
            preset = self._preset(name)
            for alias in preset.aliases:
                found |= dict.fromkeys((_plain(alias), _plain(_short(alias))), name)
            for other, figures in preset.variants.items():
                self._found[_short(other)] = Preset(figures, preset.source)
                found |= dict.fromkeys((_plain(other), _plain(_short(other))), _short(other))
        return found

    def names(self, name_or_path: str) -> tuple[str, ...]:
        """Return the other names of a preset, those of its variants last; none of a variant or a file.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        preset = self._find(name_or_path)
        return (*preset.aliases, *preset.variants)

    def source(self, name_or_path: str) -> str:
        """Return the source of the figures of a preset or a file; "" = not given.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(name_or_path).source

    def find(self, given: M | str) -> M:
        """Return the object for a preset's name or the path of a file; objects are returned unchanged.

        Names are read as by :meth:`name`.

        Raises:
            UnknownNameError: no such preset.
            ConfigError: the file cannot be read or a field is wrong.
        """
        return self._find(given).figures if isinstance(given, str) else given

    def name(self, given: str) -> str:
        """Return the canonical name of a preset; paths of files are returned unchanged.

        Case, hyphens, underscores and dots are ignored: ``Llama-3-70B`` is ``llama3-70b``. The first words are enough
        if they are unique: ``h100`` is ``h100-80gb``, but ``a100`` is ambiguous. A checkpoint's name counts with and
        without its organisation: ``Qwen/Qwen3-32B`` is ``qwen3-32b``. A variant is the last part of its name:
        ``qwen3-32b-fp8``.

        Raises:
            UnknownNameError: no such preset.
        """
        if is_path(given):
            return given
        found = [name for name in self if _plain(name) == _plain(given)]
        found = found or [name for name in self if name.startswith(f"{given.lower()}-")]
        if len(found) != 1 and _plain(given) in self._others:
            found = [self._others[_plain(given)]]
        if len(found) != 1:
            files = "a YAML file" if self._parse_json is None else "a config.json, or a YAML file"
            raise UnknownNameError(self._what, given, found or self, files)
        return found[0]

    def name_of(self, figures: M) -> str | None:
        """Return the name of the preset with these figures, None if there is none."""
        return next((name for name in self if self[name] == figures), None)

    def _find(self, given: str) -> Preset[M]:
        if is_path(given):
            text, origin = read_text(Path(given), self._what), f"{self._what} {given}"
            if given.endswith(".json") and self._parse_json is not None:
                return Preset(self._parse_json(text, given), f"{Path(given).name} of the checkpoint")
            return self._made(parse_fields(text, origin), origin)
        return self._preset(self.name(given))


def is_path(text: str) -> bool:
    """Return whether a text names a file, YAML or JSON, instead of a preset."""
    return text.endswith((".yaml", ".yml", ".json"))


def _short(name: str) -> str:
    """Return the last part of a checkpoint's name, in lower case."""
    return name.rpartition("/")[2].lower()


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


GPUS: Presets[GPU] = Presets(GPU, "gpu", "GPU")
"""GPUs by name."""

MODELS: Presets[ModelShape] = Presets(ModelShape, "model", "model", parse_checkpoint)
"""Model shapes by name; also from a checkpoint's ``config.json``."""
