"""Short labels of results: the name of a policy or router and its main setting, as in ``vllm_v1 8192``.

Files keep the whole labels, ``vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024``.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from kvgym.errors import KVGymError
from kvgym.policies.policy import POLICIES

_SPEC = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*):(\w+=[^,\s]*(?:,\w+=[^,\s]*)*)")
"""A name with settings, alone or within a label such as ``sarathi:token_budget=512 via least_loaded ×2``."""

_WORDS = {"true": "{key}", "false": "no {key}", "none": "{key} none"}
"""Values that say nothing without their key."""

Pairs = list[tuple[str, str]]
"""Settings of a name with their values."""


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return a short label for each label; all are different, and labels without settings stay as they are.

    A label keeps the value of its main setting, that is the token budget of its iterations or else the first setting.
    Further values are added where labels would be equal, then the names of the settings, at last the whole label.

    Args:
        labels: all labels of a table or a page, different from each other.
    """
    forms = {label: _forms(label) for label in labels}
    places = dict.fromkeys(forms, 0)
    while True:
        found = {label: forms[label][place][0] for label, place in places.items()}
        for short in [short for short, count in Counter(found.values()).items() if count > 1]:
            alike = [label for label in found if found[label] == short]
            more = [label for label in alike if forms[label][places[label] + 1 :][:1]]
            valued = [label for label in more if not forms[label][places[label] + 1][1]]
            for label in valued or more:
                places[label] += 1
        if len(set(found.values())) == len(found):
            return found


def shortener(labels: Iterable[str]) -> Callable[[str], str]:
    """Return a function that puts the short labels in place of the whole ones in a text."""
    changed = {label: short for label, short in short_labels(labels).items() if short != label}
    if not changed:
        return lambda text: text
    either = "|".join(map(re.escape, sorted(changed, key=len, reverse=True)))
    whole = re.compile(rf"(?<![\w./:=-])(?:{either})(?![\w=-]|[.,]\w)")
    return lambda text: whole.sub(lambda found: changed[found[0]], text)


def label_note(labels: Sequence[str]) -> list[str]:
    """Return the note that gives the whole labels of the short ones; none if no label is shortened."""
    changed = [f"{short} = {label}" for label, short in short_labels(labels).items() if short != label]
    return [f"Short labels: {'; '.join(changed)}."] if changed else []


def _forms(label: str) -> list[tuple[str, bool]]:
    """Return a label with ever more of its settings, at last whole; and whether it has more than names and values."""
    most = max((len(_settings(*match.groups())) for match in _SPEC.finditer(label)), default=0)
    found: dict[str, bool] = {}
    for named in (False, True):
        for count in range(1, most + 1):
            put = functools.partial(_written, count=count, named=named)
            found.setdefault(_SPEC.sub(put, label), named)
    return list({**found, label: True}.items())


def _written(match: re.Match[str], count: int, named: bool) -> str:
    """Return a name with the values of its first settings, and with their keys if ``named``."""
    name, pairs = match[1], _settings(match[1], match[2])[:count]
    return " ".join([name, *(f"{key}={value}" if named else _value(key, value) for key, value in pairs)])


def _settings(name: str, text: str) -> Pairs:
    """Return settings, the main one first."""
    pairs = [(key, value) for key, _, value in (part.partition("=") for part in text.split(","))]
    main = _budget_of(name)
    return sorted(pairs, key=lambda pair: pair[0] != main)


def _budget_of(name: str) -> str:
    try:
        return POLICIES[name].info.budget
    except KVGymError:  # a router, or a policy that is not registered
        return ""


def _value(key: str, value: str) -> str:
    """Return a value as text; a file without its folders and its suffix."""
    word = _WORDS.get(value.lower())
    if word is not None:
        return word.format(key=key.replace("_", " "))
    return PurePath(value).stem if "/" in value else value
