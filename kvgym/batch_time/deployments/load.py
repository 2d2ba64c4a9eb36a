"""Load hardware by name, from YAML files, or from one-line descriptions of rooflines."""

from __future__ import annotations

import functools
from pathlib import Path

from kvgym.batch_time.deployments.deployment import CalibratedHardware, Hardware, checked_hardware
from kvgym.batch_time.deployments.described import KINDS, HardwareName, parse_described
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.utils.arguments import explained
from kvgym.utils.reading import parse_fields, read_text, shipped_texts, validate_fields


@functools.lru_cache(maxsize=1)
def _descriptions() -> dict[str, str]:
    found = {}
    for name, text in sorted(shipped_texts("hardware").items()):
        line = next((part for part in text.splitlines() if part.startswith("description:")), "")
        found[name] = str(parse_fields(line or "{}", name).get("description", ""))
    return found


def hardware_names() -> dict[str, str]:
    """Return the names of kvgym's hardware files with their descriptions."""
    return dict(_descriptions())


@explained
def load_hardware(name_or_path: str | Path) -> Hardware:
    """Load hardware from a file or from the description of a roofline.

    Args:
        name_or_path: one of :func:`hardware_names`, the path of a YAML file (it ends in ``.yaml`` or
            ``.yml``, or is a :class:`~pathlib.Path`), or ``"roofline:model=llama3-70b,gpu=h200,tp=4"`` with the fields
            of a :class:`~kvgym.batch_time.deployments.described.Kernels` or
            :class:`~kvgym.batch_time.deployments.described.Roofline`.

    Raises:
        UnknownNameError: an unknown hardware, model or GPU.
        ConfigError: the file cannot be read, a field is wrong (the message names file and field), or the model does
            not fit into the memory.
    """
    if isinstance(name_or_path, str):
        name = HardwareName(name_or_path)
        if name.described:  # before the test for a file, as it may end like one: gpu=mine.yaml
            return name.hardware()
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        return parse_hardware(read_text(path, "hardware file"), str(path), str(path))
    return _load_name(name_or_path)


def hardware_label(name: str | None) -> str:
    """Return the label of hardware in tables and reports: its name; for a roofline its description and kind."""
    if not name or name in _descriptions():
        return name or ""
    try:
        hardware = load_hardware(name)
    except ConfigError:  # the file may have been removed
        return name
    return name if isinstance(hardware, CalibratedHardware) else f"{hardware.description} ({hardware.kind})"


@explained
def load_calibrated(name_or_path: str | Path) -> CalibratedHardware:
    """Load a hardware file with tables.

    Raises:
        UnknownNameError: an unknown hardware.
        ConfigError: it is a roofline, the file cannot be read, or a field is wrong.
    """
    hardware = load_hardware(name_or_path)
    if not isinstance(hardware, CalibratedHardware):
        raise ConfigError(f"hardware {name_or_path}: {hardware.kind}; it has no tables of measured operators")
    return hardware


@functools.lru_cache(maxsize=16)
def _load_name(name: str) -> Hardware:
    if name not in _descriptions():
        raise UnknownNameError("hardware", name, _descriptions(), "a YAML file, or roofline:model=…,gpu=…")
    return parse_hardware(shipped_texts("hardware")[name], f"{name}.yaml")


def parse_hardware(text: str, origin: str, name: str | None = None) -> Hardware:
    """Parse the text of a hardware file: calibrated tables, or the fields of a roofline with ``kind: roofline``.

    Args:
        text: YAML.
        origin: name of the file, for messages.
        name: name of the hardware; None = that in the text, or ``origin`` for a roofline.

    Raises:
        UnknownNameError: a roofline of an unknown model or GPU.
        ConfigError: a wrong field (the message names file and field), or the model does not fit into the memory.
    """
    where = f"hardware file {origin}"
    fields = parse_fields(text, where)
    if isinstance(kind := fields.get("kind"), str) and kind in KINDS:
        return parse_described(fields, where, name or origin)
    hardware = checked_hardware(validate_fields(CalibratedHardware, fields, where), where)
    return hardware if name is None else hardware.model_copy(update={"name": name})
