"""Run the contract's checks on a policy, in this process or in one of the checked build that may crash."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvgym.compiling.checked_build import checked_environment
from kvgym.errors import ConfigError, ContractError, KVGymError, UnknownNameError, shown
from kvgym.policies.contract.cases import Make
from kvgym.policies.contract.checks import CHECKS, FIRST, depends_on_declared_columns
from kvgym.policies.policy import Policy, make_policy
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_text
from kvgym.utils.hyperparameters import maker_of


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        name: name of the check.
        fault: what is wrong, with the smallest failing case found; "" if the check passed.
        skipped: whether it was skipped because the first check, a single run, had failed.
    """

    name: str
    fault: str = ""
    skipped: bool = False


@explained
def policy_maker(spec: str) -> Make:
    """Return a function that makes a new policy at every call.

    Args:
        spec: a spec for :func:`kvgym.make_policy`, or ``"module:Class"`` of a class that need not be registered, with
            hyperparameters as in ``"module:Class,spare=0.1"``.

    Raises:
        ConfigError: an unknown policy, or its module cannot be imported.
    """
    attribute = spec.partition(":")[2].partition(",")[0]
    if not attribute or "=" in attribute:
        return lambda: make_policy(spec)
    return maker_of(spec, "policy", (Policy,))


def chosen(names: Sequence[str]) -> list[str]:
    """Return the given names of checks in the order of :data:`CHECKS`; all if none is given.

    Raises:
        UnknownNameError: there is no check of that name.
    """
    for name in names:
        if name not in CHECKS:
            raise UnknownNameError("check", name, CHECKS)
    return [name for name in CHECKS if not names or name in names]


def check_policy(policy: str | Make, *names: str) -> None:
    """Check a policy in this process.

    Args:
        policy: a spec for :func:`policy_maker`, or a function that makes a new policy, such as its class.
        *names: names of checks, see :data:`CHECKS`; all if none is given.

    Raises:
        ContractError: the first check that fails; the details have the smallest failing case found.
        ConfigError: an unknown policy or check.
    """
    make = policy_maker(policy) if isinstance(policy, str) else policy
    for name in chosen(names):
        CHECKS[name].run(make)


def check_information(make: Make) -> None:
    """Check that a policy depends on nothing that it does not declare to observe, in this process.

    A case that the policy cannot play, for example because the requests lack what it needs, shows nothing.

    Raises:
        ContractError: it depends on true lengths, later arrivals, or columns that it does not declare.
    """
    for name, holds in (
        ("undeclared", depends_on_declared_columns),
        ("true lengths", CHECKS["true lengths"].holds),
    ):
        for case in CHECKS[name].cases():
            try:
                holds(make, case)
            except ContractError:
                raise
            except KVGymError:
                continue


@explained
def examine(
    spec: str,
    names: Sequence[str] = (),
    *,
    timeout: float = 300.0,
    begins: Callable[[str], None] | None = None,
) -> Iterator[Finding]:
    """Check a policy in another process, of the checked build, which detects wrong indices and may crash.

    Args:
        spec: a spec for :func:`policy_maker`.
        names: names of checks; all if none is given.
        timeout: longest time of a check, compiling included, seconds.
        begins: called with the name of each check when it begins.

    Yields:
        The result of each check, in order; if the first, a single run, fails, the others are skipped.

    Raises:
        ConfigError: an unknown policy or check.
    """
    check_text(spec, "policy", "a name, or module:Class")
    left = chosen(names)
    while left:
        command = [sys.executable, "-m", "kvgym.policies.contract", spec, *left]
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
                f"policy {shown(spec)}: the process that checks it {_ending(process.returncode)}"
            )
        if current:  # continue with the other checks in a new process
            left.remove(current)
            ending = f"took more than {timeout:g} s" if late.is_set() else _ending(process.returncode)
            yield Finding(current, f"the process {ending}")
            if current == FIRST:
                yield from _skipped(left)


def _skipped(left: list[str]) -> Iterator[Finding]:
    """Yield the remaining checks as skipped."""
    while left:
        yield Finding(left.pop(0), skipped=True)


def _entries(
    process: subprocess.Popen[str], timeout: float, late: threading.Event
) -> Iterator[dict[str, str]]:
    """Yield the entries that a process writes; kill it if it writes nothing for too long."""

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
        ": its kernel reads or writes outside its memory" if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else ""
    )
    return f"was ended by {name}{hint}"
