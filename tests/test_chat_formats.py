"""Every template of the archive: its calls come back from its own text, however it is cut, and its grammar forces them.

Templates differ in what they can say: the tables name those that leave something out, with the reason.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import places
import pytest
from chat_formats import (
    ADD,
    TOOLS,
    WEATHER,
    Read,
    answer_in,
    compiler_of,
    format_of,
    random_answer,
    read,
    tools,
)

from pyggml.engine import SamplingParams
from pyggml.engine.chat_format import ChatFormat, Opening, texts_in

QUESTION = {"role": "user", "content": "Who knows?"}
ARGUMENTS: dict[str, Any] = {"city": 'Łódź "x" <b>', "days": 3, "options": {"k": [1, True]}}
SCHEMA = json.dumps(
    {"type": "object", "properties": {"z": {"type": "boolean"}}, "required": ["z"], "additionalProperties": False}
)


def call(name: str, arguments: Any, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


ONE = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", ARGUMENTS, "call00001")]}
TWO = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning_content": "Both are needed.",
    "tool_calls": [call("get_weather", {"city": "Łódź"}, "call00001"), call("add", {"a": 1, "b": 2.5}, "call00002")],
}
TEXT = {"role": "assistant", "content": "It is so.", "reasoning_content": "I think."}

# Templates that write no calls of an assistant: the format does it for them, as a part of its text.
WRITES_NO_CALLS = "SmolLM3 LFM2-8B LFM2.5-Instruct granite-3.3 gemma-2 Phi-3.5 rwkv-world R1-Distill-Llama".split()
# Templates that refuse several calls at once, or reasoning or text beside a call, or write only one of them.
WRITES_ONE_CALL = "Llama-3.1 Llama-3.2 Llama-3.3-70B gpt-oss GigaChat3-10B GigaChat3.1 llama-cpp-deepseek-r1".split()
# Ends with its generation prompt even where none was asked for, or leaves the call out of a text that is not the last.
OTHER_ENDS = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja": "<|END_OF_TURN_TOKEN|>",
    "GigaChat3-10B-A1.8B.jinja": "<|message_sep|>\n\n",
    "GigaChat3.1-10B-A1.8B.jinja": "<|message_sep|>\n\n",
    "muse-glimmer.jinja": "<|eot|>",
    "microsoft-Phi-3.5-mini-instruct.jinja": "<|end|>",
    "unsloth-Apriel-1.5.jinja": "<|end|>",
}


def template_paths() -> list[Path]:
    try:
        return sorted((places.archive_folder() / "models" / "templates").glob("*.jinja"))
    except places.Missing:
        return []


PATHS = template_paths()


@pytest.fixture(scope="module")
def paths(archive: Path) -> list[Path]:
    return sorted((archive / "models" / "templates").glob("*.jinja"))


def test_there_are_seventy_templates(paths: list[Path]) -> None:
    assert len(paths) == 70 and len(PATHS) == 70


def named(path: Path, names: Any) -> bool:
    return any(name in path.name for name in names)


def rendered(format: ChatFormat, path: Path, message: dict[str, Any]) -> tuple[str, str]:
    """The prompt and the assistant's text behind it, as the template writes them."""
    offered = TOOLS
    if "command-r-plus" in path.name:  # reads a field that not all schemas have
        text = json.dumps(TOOLS).replace('"type": "object", "additionalProperties": true', '"type": "string"')
        offered = json.loads(text)
    prompt = format.render([QUESTION], tools=offered).text
    whole = format.render([QUESTION, message], tools=offered, add_generation_prompt=False).text
    if path.name in OTHER_ENDS:
        start = len(prompt) if whole.startswith(prompt) else whole.rfind("Who knows?") + 12
        find = whole.rfind if "Giga" in path.name else whole.find
        cut = find(OTHER_ENDS[path.name], start + 5)
        whole = whole[: cut if cut >= 0 else len(whole)]
    if named(path, ["Apriel-1.6"]) and "BEGIN FINAL RESPONSE" in whole:  # what the prompt would have begun
        behind = whole.rfind("<|begin_assistant|>") + len("<|begin_assistant|>")
        whole = prompt + whole[behind:].lstrip() if "BEGIN FINAL RESPONSE" in whole[behind:] else whole
    if "command-r-plus" in path.name:
        behind = whole[whole.find("Who knows?") :].partition("<|CHATBOT_TOKEN|>")[2]
        return prompt, behind.partition("<|START_OF_TURN_TOKEN|>")[0].removesuffix("<|END_OF_TURN_TOKEN|>")
    return answer_in(format, prompt, whole)


def cut_everywhere(text: str) -> list[list[str]]:
    """The text cut in two at every place, in single characters, and at random."""
    cuts = [[text[:at], text[at:]] for at in range(len(text) + 1)]
    dice = random.Random(5)
    places_ = sorted(dice.sample(range(len(text) + 1), min(len(text), 9)))
    pieces = [text[a:b] for a, b in zip([0, *places_], [*places_, len(text)], strict=True)]
    return [*cuts, list(text), pieces]


def read_all_ways(format: ChatFormat, prompt: str, text: str) -> Read:
    """What the text means, which must not depend on how it is cut."""
    opening = format.opening(prompt)

    def parsed(pieces: list[str]) -> Read:
        parser = format.parser(opening, tools())
        assert parser is not None
        return read(parser, pieces)

    once = parsed([text])
    for pieces in cut_everywhere(text):
        assert parsed(pieces) == once, pieces
    return once


def calls_of(found: Read) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in found.calls]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_call_comes_back_from_the_templates_own_text(path: Path) -> None:
    format = format_of(path)
    prompt, text = rendered(format, path, ONE)
    found = read_all_ways(format, prompt, text)
    assert calls_of(found) == [("get_weather", ARGUMENTS)], (text, found)
    assert found.content.strip() == "" and found.reasoning == ""


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_several_calls_come_back(path: Path) -> None:
    format = format_of(path)
    if named(path, WRITES_ONE_CALL) or named(path, ["Nemotron-Nano-v2"]):
        return
    prompt, text = rendered(format, path, TWO)
    found = read_all_ways(format, prompt, text)
    assert calls_of(found) == [("get_weather", {"city": "Łódź"}), ("add", {"a": 1, "b": 2.5})], (text, found)
    if "Let me see." in text:
        assert found.content.strip() == "Let me see."
    if "Both are needed." in text:
        assert found.reasoning == "Both are needed."


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_plain_text_stays_content_and_reasoning_is_apart(path: Path) -> None:
    format = format_of(path)
    if named(path, ["Nemotron-Nano-v2"]):
        return
    prompt, text = rendered(format, path, TEXT)
    found = read_all_ways(format, prompt, text)
    assert found.content.strip() == "It is so." and not found.calls
    assert found.reasoning == ("I think." if "I think." in text else "")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_text_that_breaks_off_anywhere_loses_nothing(path: Path) -> None:
    format = format_of(path)
    prompt, text = rendered(format, path, ONE)
    opening = format.opening(prompt)
    for at in range(len(text)):
        parser = format.parser(opening, tools())
        assert parser is not None
        found = read(parser, [text[:at]])
        assert len(found.calls) <= 1
        if found.calls or format.style.is_always:
            continue
        kept = text[:at]
        for mark in (*format.layout.dropped, format.layout.opens, format.layout.closes):
            kept = kept.replace(mark, "") if mark else kept
        assert "".join((found.reasoning + found.content).split()) == "".join(kept.split())


GRAMMARS = {
    "required": ("required", None, False, Opening(is_over=True)),
    "several": ("required", None, True, Opening(is_over=True)),
    "thinking": ("required", None, False, Opening()),
    "open": ("required", None, False, Opening(is_open=True)),
    "either": ("auto", SCHEMA, False, Opening(is_over=True)),
    "named": ({"type": "function", "function": {"name": "add"}}, None, False, Opening(is_over=True)),
    "lazy": ("auto", None, True, Opening(is_over=True)),
}


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_the_grammar_allows_is_read_as_calls_that_validate(path: Path, kind: str) -> None:
    format = format_of(path)
    choice, schema, is_parallel, opening = GRAMMARS[kind]
    if opening.is_open and not format.layout.closes:
        return
    if ">>>" in format.style.starts:
        opening = Opening(opening.is_open, opening.is_over, ">>>")
    form = format.grammar_for(tools(), choice, schema, is_parallel=is_parallel, opening=opening)
    if form is None:
        assert kind == "lazy" and (format.style.is_always or opening.lead)
        return
    compiler = compiler_of(path)
    rng = np.random.default_rng(11)
    n_finished = 0
    for _ in range(4):
        constraint = compiler.constraint(SamplingParams(grammar=form.grammar))
        assert constraint is not None
        text = random_answer(format, constraint, rng, opening)
        if text is None:
            continue
        n_finished += 1
        parser = format.parser(opening, tools())
        assert parser is not None
        found = read(parser, [text])
        if schema is not None and not found.calls:
            jsonschema.validate(json.loads(found.content), json.loads(schema))
            continue
        assert found.calls and found.content.strip() == "" or kind == "lazy" and found.calls, (text, found)
        for name, arguments in found.calls:
            jsonschema.validate(json.loads(arguments), {"add": ADD, "get_weather": WEATHER}[name]["parameters"])
        assert is_parallel or len(found.calls) == 1, text
        assert kind != "named" or found.calls[0][0] == "add"
    assert n_finished, form.grammar




def distinct_formats() -> list[Path]:
    """One template for each layout."""
    found: dict[str, Path] = {}
    for path in PATHS:
        found.setdefault(repr(format_of(path).layout), path)
    return list(found.values())


JUNK = [
    '{"name": "get_weather", "arguments": {"city": "x"}}', '{"city": "Ł"}', "get_weather", "add", '"', "{", "}", "[",
    "]", ",", ":", " ", "\n", "text ", '"name"', "a", "1", "<", ">", "</", "\\", "city", "true", "functions.add:0",
    "=", "(", ")", "'", "call:add{a:1,b:2}", "add(a=1, b=2)", "🎉",
]  # fmt: skip


@pytest.mark.parametrize("path", distinct_formats(), ids=lambda path: path.stem)
def test_odd_texts_are_read_the_same_however_they_are_cut(path: Path) -> None:
    format = format_of(path)
    marks = [mark for text in texts_in(format.layout) if text for mark in {text, text.partition("{")[0]} if mark]
    dice = random.Random(3)
    prompt, sound = rendered(format, path, ONE)
    for k in range(120):
        if k % 2:
            text = "".join(dice.choice(marks if dice.random() < 0.45 else JUNK) for _ in range(dice.randrange(1, 14)))
        else:  # a sound text with a stretch gone, and something odd in its place
            start = dice.randrange(len(sound) + 1)
            text = sound[:start] + dice.choice([*JUNK, *marks]) + sound[start + dice.randrange(12) :]
        opening = Opening(is_open=bool(format.layout.closes) and dice.random() < 0.3)
        at = dice.randrange(len(text) + 1)
        for offered in (tools(), ()):
            parsers = [format.parser(opening, offered) for _ in range(3)]
            cuts = ([text], list(text), [text[:at], text[at:]])
            found = {read(parser, pieces) for parser, pieces in zip(parsers, cuts) if parser is not None}
            assert len(found) <= 1, (text, found)
