"""Trying policies: here, or in a process of the checked build that may end as it likes."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvgym.compiling.checked_build import checked_environment
from kvgym.contract.cases import Make
from kvgym.contract.checks import CHECKS, FIRST
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.policy import Policy, make_policy
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_text
from kvgym.utils.hyperparameters import construct
from kvgym.utils.specs import parse_spec


@dataclass(frozen=True)
class Finding:
    """What came of a check.

    Attributes:
        name: of the check.
        fault: what does not hold, with the smallest case found that shows it; "" where all is fine.
        skipped: whether it has not been made, as every run would have ended as the first one did.
    """

    name: str
    fault: str = ""
    skipped: bool = False


@explained
def policy_maker(spec: str) -> Make:
    """Return what makes a policy anew.

    Args:
        spec: what :func:`kvgym.make_policy` takes, or ``"module:Class"`` of a class that need not be registered, with
            hyperparameters as in ``"module:Class,spare=0.1"``.

    Raises:
        ConfigError: there is no such policy, or its module cannot be imported.
    """
    module, _, rest = spec.partition(":")
    attribute, _, options = rest.partition(",")
    if not attribute or "=" in attribute:
        return lambda: make_policy(spec)
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"policy {shown(spec)}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"policy {shown(spec)}: {attribute} of {module} is no class derived from kvgym.Policy"
        )
    _, hyperparameters = parse_spec(f"{attribute}:{options}", "policy")
    return lambda: construct(found, hyperparameters, f"policy {spec!r}")


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of checks in their order; all of them where none is given.

    Raises:
        UnknownNameError: there is no check of that name.
    """
    for name in names:
        if name not in CHECKS:
            raise UnknownNameError("check", name, CHECKS)
    return [name for name in CHECKS if not names or name in names]


def check_policy(policy: str | Make, *names: str) -> None:
    """Try a policy in this process.

    Args:
        policy: as :func:`policy_maker` takes it, or what makes it anew, such as its class.
        *names: of checks, see :data:`CHECKS`; all of them where none is given.

    Raises:
        ContractError: the first that does not hold, with the smallest case found that shows it in the details.
        ConfigError: no such policy or check.
    """
    make = policy_maker(policy) if isinstance(policy, str) else policy
    for name in chosen(names):
        CHECKS[name].run(make)


@explained
def examine(
    spec: str,
    names: Sequence[str] = (),
    *,
    timeout: float = 300.0,
    begins: Callable[[str], None] | None = None,
) -> Iterator[Finding]:
    """Try a policy in another process, of the checked build, which finds wrong indices and may crash.

    Args:
        spec: as :func:`policy_maker` takes it.
        names: of checks; all of them where none is given.
        timeout: seconds that a check may take, compiling included.
        begins: called with the name of each check when it begins.

    Yields:
        What came of each check, in their order; where the first, a single run, fails, the others are skipped.

    Raises:
        ConfigError: no such policy or check.
    """
    check_text(spec, "policy", "a name, or module:Class")
    left = chosen(names)
    while left:
        command = [sys.executable, "-m", "kvgym.contract", spec, *left]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=checked_environment()
        ) as process:
            late, current = threading.Event(), ""
            for entry in _entries(process, timeout, late):
                if "error" in entry:
                    raise ConfigError(entry["error"])
                if "begins" in entry:
                    current = entry["begins"]
                    if begins is not None:
                        begins(current)
                    continue
                left.remove(entry["name"])
                current = ""
                yield Finding(entry["name"], entry["fault"])
                if entry["name"] == FIRST and entry["fault"]:
                    yield from _skipped(left)
        if left and not current:
            raise ConfigError(
                f"policy {shown(spec)}: the process that tries it {_ending(process.returncode)}"
            )
        if current:  # go on with the others in a new process
            left.remove(current)
            ending = f"took more than {timeout:g} s" if late.is_set() else _ending(process.returncode)
            yield Finding(current, f"the process {ending}")
            if current == FIRST:
                yield from _skipped(left)


def _skipped(left: list[str]) -> Iterator[Finding]:
    """Go through the checks that are left, none of which is made any more."""
    while left:
        yield Finding(left.pop(0), skipped=True)


def _entries(
    process: subprocess.Popen[str], timeout: float, late: threading.Event
) -> Iterator[dict[str, str]]:
    """Go through what a process tells; it is killed where it tells nothing for too long."""

    def kill() -> None:
        late.set()
        process.kill()

    assert process.stdout is not None
    while True:
        timer = threading.Timer(timeout, kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            return
        yield json.loads(line)


def _ending(code: int) -> str:
    """Return how a process ended, for messages."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = (
        ": its kernel reads or writes memory that is not its own"
        if name in ("SIGSEGV", "SIGBUS", "SIGABRT")
        else ""
    )
    return f"was ended by {name}{hint}"
