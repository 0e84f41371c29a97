"""One sentence for words that a command does not take: what was typed, what was expected, where the options are listed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from ..text import visible

_TYPED_WRONGLY: Any = typer.BadParameter.__mro__[2]  # the base of all such errors


class Commands(TyperGroup):
    """The commands. Each refusal is one sentence."""

    def main(self, args: Sequence[str] | None = None, *more: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run the command that ``args`` name, and end with its status."""
        try:
            status = super().main(args, *more, standalone_mode=False, **options)
        except _TYPED_WRONGLY as error:
            words = list(sys.argv[1:] if args is None else args)
            if not standalone_mode:
                raise
            if words:
                typer.echo(visible(self._sentence(error, words)), err=True)
            else:
                error.show()  # the help
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(1)
        return sys.exit(status) if standalone_mode else status

    def _sentence(self, error: Any, words: list[str]) -> str:
        """Such as ``train: --epochs 0: Input should be greater than 0. See python -m tinygrad_mem train --help``."""
        said = _of_one(error, words) if getattr(error, "param", None) else error.format_message().rstrip(".")
        if words[0] in self.commands:
            return f"{words[0]}: {said}. See python -m tinygrad_mem {words[0]} --help"
        return f"tinygrad_mem: {said}. The commands are {', '.join(self.commands)}"


def _of_one(error: Any, words: list[str]) -> str:
    """The error of one option or argument."""
    names = error.param.opts
    name = max(names, key=len) if names[0].startswith("-") else names[0].upper()
    if "Missing" in type(error).__name__:
        return f"{name} is missing: {error.param.help}"
    return " ".join([name, *_typed_option(names, words)]) + f": {error.message.removeprefix('Value error, ').rstrip('.')}"


def _typed_option(names: list[str], words: list[str]) -> list[str]:
    """The word that was typed for an option, if any."""
    for index, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option in names:
            return [value] if sign else words[index + 1 : index + 2]
    return []
