"""The options of one run of a command, settled: command line over environment over files over defaults.

Every value remembers where it came from, so that an error names the option, the environment
variable, or the file and key at fault.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from .config_file import read_config
from .file_source import FileSource
from .option import Option
from .options import NAMES, OF_OTHERS, WORDS_OF_NODES
from .variables import Filled, Variables


class Settings:
    """Values by long name. `notices` are lines about settings of a file that something else overrides."""

    def __init__(self, command: str, options: Mapping[str, Option]) -> None:
        self.command = command
        self.notices: list[str] = []
        self.files: dict[str, FileSource] = {}  # options whose file may have to be fetched first
        self._options = options
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        option = self._options[name]
        return [] if option.repeatable else option.default

    def is_given(self, name: str) -> bool:
        """Whether the option was given anywhere."""
        return name in self._values

    def takes(self, name: str) -> bool:
        """Whether the command has the option."""
        return name in self._options

    def source(self, name: str) -> str:
        """Where the option was given, for messages: `--ctx`, `PYGGML_CTX` or `file.json: ctx`."""
        return self._sources.get(name, f"--{name}")

    def take(self, name: str, text: str, source: str) -> None:
        """Read one value; a repeatable option gathers it, any other one replaces what it had."""
        option = self._options[name]
        try:
            value = option.kind.read(text)
        except ValueError as error:
            raise ConfigError(f"{source} is {_shown(text)}: {error}") from None
        if option.repeatable:
            self._values.setdefault(name, []).append(value)
        else:
            self._values[name] = value
            self.files.pop(name, None)
        self._sources[name] = source

    def fetch_files(self, *, model: bool) -> None:
        """Fetch the model's file, or all others, where they are not there yet; raises ConfigError and DownloadError."""
        offline = bool(self["offline"]) if self.takes("offline") else False
        for name, file in self.files.items():
            if (name == "model") == model:
                file.fetch(is_model=model, offline=offline)

    def replace(self, name: str, text: str, source: str) -> None:
        """As take(), with a notice when a value of a file gives way to another one."""
        before, value = self._sources.get(name, ""), self._values.get(name)
        self.take(name, text, source)
        is_other = value != self._values[name] and not self._options[name].repeatable
        if is_other and before.endswith(f": {name}"):
            self.notices.append(f"{source} overrides {before}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def nearest(name: str, names: tuple[str, ...]) -> str:
    """`; did you mean X?`, or nothing."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def hint(name: str) -> str:
    """What there is in place of an option that there is not, written as the name is; or nothing."""
    bare = name.lstrip("-")
    prefix = "--" if bare != name else ""
    known = OF_OTHERS.get(bare)
    if known in NAMES:
        return f"; did you mean {prefix}{known}?"
    if known is not None:
        return f"; {known}"
    if WORDS_OF_NODES & set(bare.lower().replace("_", "-").split("-")):
        return "; pyggml runs on one machine: --tp and --layer-split take devices of this one"
    return nearest(name, tuple(prefix + each for each in NAMES))


def _texts(option: Option, value: Any, source: str) -> Iterator[str]:
    """The texts of a JSON value: none, one, or several of a list."""
    if value is None:
        return
    if option.kind.is_flag and not isinstance(value, Filled):
        if not isinstance(value, bool):
            raise ConfigError(f"{source} is {_shown(json.dumps(value))}: true or false is needed")
        yield "true" if value else "false"
    elif isinstance(value, dict) and option.repeatable:
        yield from (f"{key}={_text(of, source)}" for key, of in value.items())
    elif isinstance(value, list) and option.repeatable:
        yield from (_text(item, source) for item in value)
    elif isinstance(value, list) and option.kind.is_list:
        yield ",".join(_text(item, source) for item in value)
    else:
        yield _text(value, source)


def _text(value: Any, source: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{source} holds {_shown(json.dumps(value))}, which this option cannot be")
    return value if isinstance(value, str) else json.dumps(value)


def _read_file(settings: Settings, options: Mapping[str, Option], path: str, variables: Variables) -> None:
    table = read_config(path)
    variables.add(table.pop("variables", {}), f"{path}: variables")
    for key, value in table.items():
        source = f"{path}: {key}"
        if key not in NAMES or key == "config":
            raise ConfigError(f"{source}: there is no such option{hint(key)}")
        if key in options:
            value = variables.fill(value, source)
            file = FileSource.read(value, source) if isinstance(value, dict) and options[key].kind.is_file else None
            for text in _texts(options[key], value if file is None else file.path, source):
                settings.take(key, text, source)
            if file is not None:
                settings.files[key] = file


def settle(
    command: str,
    options: Mapping[str, Option],
    given: Mapping[str, list[tuple[str, str]]],
    environ: Mapping[str, str],
) -> Settings:
    """Join the sources. `given` are the command line's texts by option, each with the name it was given by.

    Raises ConfigError for a value that its option cannot take and for an unknown key of a file.
    """
    settings = Settings(command, options)
    from_environment = {
        name: environ[o.environment] for name, o in options.items() if environ.get(o.environment)
    }
    files = [from_environment["config"]] if "config" in from_environment else []
    variables = Variables(environ)
    for path in files + [text for text, _ in given.get("config", [])]:
        _read_file(settings, options, path, variables)
    for name, text in from_environment.items():
        settings.replace(name, text, options[name].environment)
    for name, texts in given.items():
        for text, flag in texts:
            settings.replace(name, text, flag)
    return settings
