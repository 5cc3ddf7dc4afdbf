"""Where options come from, and which of them wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyggml.engine import ConfigError
from pyggml.engine.cli.commands import COMMANDS
from pyggml.engine.cli.options import OPTIONS, options_of
from pyggml.engine.cli.options_page import page
from pyggml.engine.cli.parser import make_parser, parse
from pyggml.engine.cli.settings import Settings, settle
from pyggml.engine.placement import MIN_CTX


def settled(*arguments: str, environ: Mapping[str, str] | None = None, command: str = "run") -> Settings:
    options = options_of(command)
    parser = make_parser(command, COMMANDS[command], options)
    return settle(command, options, parse(parser, command, arguments), environ or {})


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(content: str, name: str = "c.json") -> str:
        path = tmp_path / name
        path.write_text(content)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ((), {}, None),
        (("--config", "FILE"), {}, 100),
        ((), {"PYGGML_CONFIG": "FILE"}, 100),
        (("--config", "FILE"), {"PYGGML_BATCH": "200"}, 200),
        (("--config", "FILE", "--batch", "300"), {"PYGGML_BATCH": "200"}, 300),
        (("--batch=300", "--config", "FILE"), {}, 300),
        (("--config", "FILE", "--config", "LATER"), {}, 101),
        (("--config", "LATER", "--config", "FILE"), {}, 100),
        (("--config", "LATER"), {"PYGGML_CONFIG": "FILE"}, 101),
        ((), {"PYGGML_BATCH": ""}, None),
    ],
)
def test_the_nearer_source_wins(
    arguments: tuple[str, ...], environ: dict[str, str], expected: int | None, file: Any
) -> None:
    paths = {"FILE": file('{"batch": 100}'), "LATER": file('{"batch": 101}', "later.json")}
    settings = settled(
        *(paths.get(a, a) for a in arguments), environ={k: paths.get(v, v) for k, v in environ.items()}
    )
    assert settings["batch"] == expected


def test_what_overrides_a_file_is_noticed(file: Any) -> None:
    path = file('{"batch": 100, "ctx": 64, "stop": "x"}')
    settings = settled("--config", path, "--batch", "300", "--stop", "y", environ={"PYGGML_CTX": "128"})
    assert settings.notices == [f"PYGGML_CTX overrides {path}: ctx", f"--batch overrides {path}: batch"]


def test_what_is_said_twice_alike_is_not_noticed(file: Any) -> None:
    path = file('{"batch": 100, "device": "cpu"}')
    settings = settled("--config", path, "--batch", "100", "--device", "cpu,cpu")
    assert settings.notices == [f"--device overrides {path}: device"]


def test_repeatable_options_add_up(file: Any) -> None:
    path = file('{"stop": ["a", "b"]}')
    settings = settled("--config", path, "--stop", "d", "--stop", "e", environ={"PYGGML_STOP": "c"})
    assert settings["stop"] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ('{"ctx": 100, /* twice\n */ "raw": true,} // end', "raw", True),
        ('{"stop": ["a, ]", "/* b */", "// c",],}', "stop", ["a, ]", "/* b */", "// c"]),
        ('{"system": "say \\"hi\\" // not a comment"}', "system", 'say "hi" // not a comment'),
        ("\ufeff{}", "ctx", None),
        ('{"ctx": null}', "ctx", None),
        ('{"prefix-cache": false}', "prefix-cache", False),
        ('{"raw": false}', "raw", False),
        ('{"stop": "one"}', "stop", ["one"]),
        ('{"stop": null}', "stop", []),
        ('{"ctx": "100"}', "ctx", 100),
        ('{"temperature": 0.5}', "temperature", 0.5),
        ('{"temperature": 1}', "temperature", 1.0),
        ('{"logit-bias": {"5": -1, "6": 2.5}}', "logit-bias", [(5, -1.0), (6, 2.5)]),
        ('{"logit-bias": ["5=-1"]}', "logit-bias", [(5, -1.0)]),
        ('{"model": "m.gguf", "prompt": "hi"}', "model", "m.gguf"),
        ('{"device": ["cuda:0", "cuda:1"]}', "device", "cuda:0,cuda:1"),
        ('{"tensor-split": [3, 1.5]}', "tensor-split", "3,1.5"),
        ('{"n-gen": 5}', "ctx", None),
    ],
)
def test_values_of_a_file(content: str, name: str, expected: object, file: Any) -> None:
    assert settled("--config", file(content))[name] == expected


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ('{"model": "${FOLDER}/m.gguf"}', "model", "/env/m.gguf"),
        ('{"variables": {"FOLDER": "/own"}, "model": "${FOLDER}/m.gguf"}', "model", "/own/m.gguf"),
        ('{"model": "${FOLDER}/m.gguf", "variables": {"FOLDER": "/own"}}', "model", "/own/m.gguf"),
        ('{"model": "${NONE:-/else}/m.gguf"}', "model", "/else/m.gguf"),
        ('{"model": "${EMPTY:-/else}/m.gguf"}', "model", "/else/m.gguf"),
        ('{"model": "a${EMPTY}b"}', "model", "ab"),
        ('{"model": "${NONE:-}b"}', "model", "b"),
        ('{"model": "${FOLDER:-/else}/m.gguf"}', "model", "/env/m.gguf"),
        ('{"variables": {"a": "${b}/x", "b": "${FOLDER}/y"}, "model": "${a}"}', "model", "/env/y/x"),
        ('{"variables": {"n": 128}, "ctx": "${n}"}', "ctx", 128),
        ('{"ctx": "${NONE:-256}"}', "ctx", 256),
        ('{"variables": {"on": true}, "raw": "${on}"}', "raw", True),
        ('{"raw": "${NONE:-no}"}', "raw", False),
        ('{"stop": ["${FOLDER}", "b"]}', "stop", ["/env", "b"]),
        ('{"logit-bias": {"5": "${NONE:--1}"}}', "logit-bias", [(5, -1.0)]),
        ('{"system": "costs $5, $${FOLDER} and {x}$"}', "system", "costs $5, ${FOLDER} and {x}$"),
        ('{"system": "\u0024{FOLDER}"}', "system", "/env"),
        ('{"n-gen": "${NONE}"}', "ctx", None),  # of another command
    ],
)
def test_variables_of_a_file(content: str, name: str, expected: object, file: Any) -> None:
    assert settled("--config", file(content), environ={"FOLDER": "/env", "EMPTY": ""})[name] == expected


def test_variables_of_a_file_hold_for_later_ones_which_may_replace_them(file: Any) -> None:
    first = file('{"variables": {"a": "1", "b": "2"}, "stop": "${a}${b}"}')
    later = file('{"variables": {"b": "3"}, "stop": "${a}${b}"}', "later.json")
    assert settled("--config", first, "--config", later)["stop"] == ["12", "13"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model": "${NONE}"}', "c.json: model: ${NONE} is neither in \"variables\" nor in the environment"),
        (
            '{"variables": {"a": "${b}", "b": "${a}"}, "model": "${a}"}',
            "c.json: model: variables come round in a circle: a -> b -> a",
        ),
        ('{"variables": {"a": "${a}"}, "model": "${a}"}', "circle: a -> a"),
        ('{"model": "${A-b}"}', "c.json: model: '${A-b}' is no variable; the forms are ${NAME} and ${NAME:-fallback}"),
        ('{"model": "${A"}', "'${A' is no variable"),
        ('{"model": "${A:-${B}}"}', "is no variable"),
        ('{"variables": ["a"]}', "c.json: variables: an object is needed"),
        ('{"variables": {"a-b": "1"}}', "'a-b' is no name of a variable"),
        ('{"variables": {"a": null}}', "a needs a text, a number, true or false"),
        ('{"raw": "yes"}', "true or false is needed"),
        ('{"raw": "${NONE:-maybe}"}', "c.json: raw is 'maybe': true or false is needed"),
        ('{"ctx": "${NONE:-many}"}', "c.json: ctx is 'many': a whole number is needed"),
        ('{"variables": {}, "variable": {}}', "c.json: variable: there is no such option"),
        ('{"devise": "cpu"}', "c.json: devise: there is no such option; did you mean device?"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_and_key(content: str, message: str, file: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settled("--config", file(content))
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["[64, 128]", '"64,128"'])
def test_a_list_of_numbers_in_a_file(value: str, file: Any) -> None:
    path = file(f'{{"n-prompt": {value}}}')
    assert settled("--config", path, command="bench")["n-prompt"] == [64, 128]


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        (("m", "hi"), "prompt", "hi"),
        (("m", "--ctx", "100", "hi"), "prompt", "hi"),
        (("--ctx=100", "m"), "model", "m"),
        (("m", "--seed", "-1"), "seed", -1),
        (("--temp", "0.5"), "temperature", 0.5),
        (("-n", "7"), "max-tokens", 7),
        (("--raw", "--no-raw"), "raw", False),
        (("--no-prefix-cache",), "prefix-cache", False),
        ((), "prefix-cache", True),
        (("--cache-type-k", "Q8_0"), "cache-type-k", "q8_0"),
        (("m", "\udcff"), "prompt", "\ufffd"),
    ],
)
def test_the_command_line(arguments: tuple[str, ...], name: str, expected: object) -> None:
    assert settled(*arguments)[name] == expected


@pytest.mark.parametrize("word", ["1", "true", "Yes", "on"])
def test_switches_in_the_environment(word: str) -> None:
    assert settled(environ={"PYGGML_RAW": word})["raw"] is True


def test_no_command_has_two_options_of_one_name() -> None:
    for command in COMMANDS:
        flags = [flag for option in OPTIONS if command in option.commands for flag in option.flags]
        assert len(flags) == len(set(flags)), command


def test_the_smallest_context_is_that_of_the_engine() -> None:
    read = options_of("run")["ctx"].kind.read
    assert read(str(MIN_CTX)) == MIN_CTX
    with pytest.raises(ValueError, match=f"at least {MIN_CTX}"):
        read(str(MIN_CTX - 1))


def test_the_file_that_the_page_of_options_shows_is_read(file: Any) -> None:
    (example,) = re.findall(r"^```json config\n(.*?)^```$", page(OPTIONS), re.MULTILINE | re.DOTALL)
    settings = settled("--config", file(example), environ={"CTX": "4096"})
    names = ("model", "device", "tp", "ctx", "stop")
    assert [settings[name] for name in names] == ["/models/model.gguf", "cuda:0,cuda:1", 2, 4096, ["###"]]


def test_every_example_is_valid() -> None:
    for option in OPTIONS:
        if not option.kind.is_flag:
            option.kind.read(option.example.strip('"'))
