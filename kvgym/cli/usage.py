"""Commands that explain wrong use: an option of another command, an argument for which there is an option, a list."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from kvgym.cli.fields import DESCRIBED_OPTIONS
from kvgym.errors import ConfigError, shown, some


class Command(TyperCommand):
    """A command of ``kvgym``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            ConfigError: an option belongs to other commands, an argument is unexpected, or an option of scenarios with
                one value has a list.
        """
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        self._check_lists(args)
        ctx.allow_extra_args = True
        try:
            super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "possibilities"):  # of the class NoSuchOption, which Typer does not export
                raise
            raise ConfigError(self._unknown(str(error.option_name), ctx.parent)) from None  # type: ignore[attr-defined]
        if ctx.args:
            raise ConfigError(self._unexpected(ctx.args[0]))
        return []

    def _check_lists(self, args: Sequence[str]) -> None:
        """Reject lists and ranges as values of options that set one number of the scenario."""
        names = getattr(self.callback, "numbers", ())
        numbers = {flag: each.name for each in self.params if each.name in names for flag in each.opts}
        for place, text in enumerate(args):
            flag, equals, value = text.partition("=")
            if flag not in numbers:
                continue
            value = value if equals else next(iter(args[place + 1 : place + 2]), "")
            if "," in value or ":" in value:
                name = numbers[flag]
                field = f"hardware.{name}" if name in DESCRIBED_OPTIONS else name
                raise ConfigError(
                    f"{flag} {value}: expected one value; for several: kvgym sweep {field}={value}"
                )

    def _unknown(self, flag: str, parent: Any) -> str:
        """Return the message on an option that the command does not have."""
        own = [text for each in self.params for text in each.opts]
        having = () if parent is None else parent.command.owners(flag)
        close = difflib.get_close_matches(flag, own, n=1, cutoff=0.85 if having else 0.7)
        hints = []
        if having:
            hints.append(f"{'it is an option' if len(having) == 1 else 'options'} of kvgym {some(having)}")
        if close:
            hints.append(f"did you mean {close[0]}?")
        hints = hints or [f"kvgym {self.name} --help lists its options"]
        return f"kvgym {self.name} has no option {flag}; {'; '.join(hints)}"

    def _unexpected(self, text: str) -> str:
        """Return the message on an argument that the command does not take."""
        flags = {flag for parameter in self.params for flag in parameter.opts}
        ways = [f"{what} with {flag}" for flag, what in _WAYS.items() if flag in flags]
        hint = f"; give {', '.join(ways)}" if ways else f"; see kvgym {self.name} --help"
        return f"kvgym {self.name}: unexpected argument {shown(text)}{hint}"


_WAYS = {"--policies": "policies", "--scenario": "a scenario", "--trace": "a trace"}
"""What is given by an option in every command, by the option."""
