"""The command line of one command, read with argparse into texts; values are read in settings.py."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..errors import ConfigError
from .commands import Command
from .option import Option
from .options import OF_OTHERS, OPTIONS
from .settings import hint

Given = dict[str, list[tuple[str, str]]]  # option -> texts, each with the name it was given by


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print a usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Gather(argparse.Action):
    """Appends the text with the name it was given by."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*found, (values, option_string or self.dest.upper())])


class _GatherFlag(argparse.BooleanOptionalAction):
    """Appends true or false with the name it was given by."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        is_on = not (option_string or "").startswith("--no-")
        setattr(namespace, self.dest, [("true" if is_on else "false", option_string)])


def help_of(option: Option) -> str:
    """What help says of an option."""
    default = option.shown_default if option.required else f"default: {option.shown_default}"
    return f"{option.help} ({default}; {option.environment}; example: {option.shown_example})"


def make_parser(name: str, command: Command, options: Mapping[str, Option]) -> argparse.ArgumentParser:
    """The parser of a command."""
    parser = _Parser(
        prog=f"pyggml {name}",
        usage=f"pyggml {name} {command.usage} [options]".replace("  ", " "),
        description=command.summary[0].upper() + command.summary[1:] + ".",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for option in options.values():
        text = help_of(option).replace("%", "%%")
        if option.positional:
            parser.add_argument(
                option.name, nargs="?", action=_Gather, help=text, metavar=option.name.upper()
            )
        elif option.kind.is_flag:
            parser.add_argument(*option.flags, dest=option.name, action=_GatherFlag, help=text)
        else:
            metavar = option.kind.metavar
            parser.add_argument(*option.flags, dest=option.name, action=_Gather, help=text, metavar=metavar)
    return parser


def parse(parser: argparse.ArgumentParser, name: str, arguments: Sequence[str]) -> Given:
    """Read the arguments.

    Raises ConfigError for what the command does not take, with the nearest name.
    """
    for argument in itertools.takewhile(lambda word: word != "--", arguments):
        flag = argument.split("=")[0]
        # argparse would take the -ngl of llama.cpp for -n with the value gl
        if flag[:1] == "-" and flag[1:2] != "-" and len(flag) > 2 and flag[1:] in OF_OTHERS:
            raise ConfigError(_refusal(name, flag))
    given, rest = parser.parse_known_intermixed_args(list(arguments))
    if rest:
        raise ConfigError(_refusal(name, rest[0]))
    found: Given = vars(given)
    return found


def _refusal(name: str, argument: str) -> str:
    flag = argument.split("=")[0]
    takers = sorted({c for o in OPTIONS if flag in o.flags or flag == f"--no-{o.name}" for c in o.commands})
    if takers:
        return f"{flag} is an option of {', '.join(takers)} and not of {name}"
    if flag.startswith("-"):
        return f"there is no option {flag}{hint(flag)}"
    return f"{argument!r} is one argument too many; put quotes around a prompt of several words"
