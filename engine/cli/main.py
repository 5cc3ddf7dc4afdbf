"""The command `pyggml`: finds the command, settles its options, runs it, makes exit statuses of errors.

Exit status: 0 done, 1 something failed, 2 a mistake in what was asked, 130 interrupted. The modules of
commands are imported only when they run, so that help needs nothing but the packages around it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from ..errors import ConfigError
from . import overview
from .commands import COMMANDS
from .option import TRUE_WORDS
from .options import options_of
from .parser import make_parser, parse
from .settings import nearest, settle
from .terminal import accept_any_text, one_line, say

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    accept_any_text()
    name = ""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(overview.text())
            return 0
        if arguments[0] == "--version":
            print(f"pyggml {overview.version()}")
            return 0
        name = _command(arguments)
        status = _run(name, arguments[len(name.split()) :])
        sys.stdout.flush()
        return status
    except SystemExit as end:  # argparse, after printing help
        return int(end.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except Exception as error:
        return _report(name, error, is_verbose=_is_verbose(arguments))


def _is_verbose(arguments: Sequence[str]) -> bool:
    """Whether to show tracebacks; also when the options themselves could not be settled."""
    said = os.environ.get("PYGGML_VERBOSE", "").strip().lower()
    return "--verbose" in arguments or said in TRUE_WORDS


def _command(arguments: Sequence[str]) -> str:
    """The name of the command that the arguments begin with."""
    for n_words in (1, 2):
        name = " ".join(arguments[:n_words])
        if name in COMMANDS:
            return name
    members = [name for name in COMMANDS if name.startswith(arguments[0] + " ")]
    if members:
        raise ConfigError(f"{arguments[0]} is a group of commands: {', '.join(members)}")
    near = nearest(arguments[0], tuple(COMMANDS))
    raise ConfigError(f"there is no command {arguments[0]!r}{near}; pyggml --help lists all")


def _run(name: str, arguments: Sequence[str]) -> int:
    options = options_of(name)
    parser = make_parser(name, COMMANDS[name], options)
    settings = settle(name, options, parse(parser, name, arguments), os.environ)
    missing = [
        option.flags[0]
        for option in options.values()
        if option.required and not settings.is_given(option.name)
    ]
    if missing and not arguments:
        parser.print_help()
        return 0
    if missing:
        raise ConfigError(f"{missing[0]} is missing; usage: pyggml {name} {COMMANDS[name].usage} [options]")
    for notice in settings.notices:
        say(f"pyggml {name}: {notice}")
    if settings.takes("tp"):
        from .loading import check_options

        check_options(settings)
    settings.fetch_files(model=False)
    return COMMANDS[name].load()(settings)


def _report(name: str, error: Exception, *, is_verbose: bool) -> int:
    """Say on one line what went wrong; the exit status."""
    from pyggml import ClosedError, ComputeError, PyggmlError, ShapeError

    from ..errors import DownloadError, GenerationError

    if is_verbose:
        traceback.print_exception(error)
    command = f"pyggml {name}".strip()
    if isinstance(error, PyggmlError):
        say(f"{command}: {one_line(str(error))}")
        return 1 if isinstance(error, (ClosedError, ComputeError, DownloadError, GenerationError, ShapeError)) else 2
    hint = "" if is_verbose else " (--verbose shows where)"
    say(f"{command}: unexpected {type(error).__name__}: {one_line(str(error))}{hint}")
    return 1


def _drop_output() -> None:
    """Let the interpreter's own flush at exit find no closed pipe."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
