"""Texts as models write them where their templates leave room: other orders, marks left out, blanks, several ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_formats import format_of, read, tools

from pyggml.engine.chat_format import Opening
from pyggml.engine.detokenizer import Detokenizer

ADD = ("add", {"a": 1, "b": 2})
CITY = ("get_weather", {"city": "Łódź"})
AB = '{"a": 1, "b": 2}'
HERMES, LLAMA, GPT_OSS = "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b"
CODER, R1, GLM = "Qwen3-Coder", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "GLM-4.6"
MISTRAL, NEMO = "unsloth-mistral-Devstral-Small-2507", "mistralai-Mistral-Nemo-Instruct-2407"

# template, text, content, reasoning, calls
TEXTS: list[tuple[str, str, str, str, list[tuple[str, Any]]]] = [
    (HERMES, f'<tool_call>{{"name":"add","arguments":{AB}}}</tool_call>', "", "", [ADD]),
    (HERMES, f'<tool_call>\n{{"arguments": {AB}, "name": "add"}}\n</tool_call>', "", "", [ADD]),
    (HERMES, f'Sure.\n<tool_call>\n{{"name": "add", "arguments": {AB}}}\n', "Sure.", "", [ADD]),
    (HERMES, '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}\n</tool_call>', "", "", [ADD]),
    (HERMES, f'<tool_call>\n{{"function": {{"name": "add", "arguments": {AB}}}}}\n</tool_call>', "", "", [ADD]),
    (HERMES, '<tool_call>\n{"name": "add"}\n</tool_call>', "", "", [("add", {})]),
    (HERMES, "a < b and <tool", "a < b and <tool", "", []),
    (HERMES, "<tool_call>\nnonsense\n</tool_call>", "<tool_call>\nnonsense\n</tool_call>", "", []),
    (HERMES, '<tool_call>\n{"name": "add", "argu', '<tool_call>\n{"name": "add", "argu', "", []),
    (LLAMA, f'{{"name": "add", "parameters": {AB}}}', "", "", [ADD]),
    (LLAMA, f'{{"type": "function", "name": "add", "parameters": {AB}}}', "", "", [ADD]),
    (LLAMA, f'<|python_tag|>{{"name": "add", "parameters": {AB}}}', "", "", [ADD]),
    (LLAMA, f'{{"name": "add", "parameters": {AB}}}; {{"name": "add", "parameters": {AB}}}', "", "", [ADD, ADD]),
    (LLAMA, '{"name": "Ann", "age": 5}', '{"name": "Ann", "age": 5}', "", []),
    (LLAMA, f'{{"name": "unknown", "parameters": {AB}}}', f'{{"name": "unknown", "parameters": {AB}}}', "", []),
    (LLAMA, f'So: {{"name": "add", "parameters": {AB}}}', f'So: {{"name": "add", "parameters": {AB}}}', "", []),
    (GPT_OSS, "<|channel|>final<|message|>Hello.", "Hello.", "", []),
    (GPT_OSS, "<|channel|>analysis<|message|>Hm", "", "Hm", []),
    (
        GPT_OSS,
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        f"<|constrain|>json<|message|>{AB}<|call|>",
        "",
        "Hm.",
        [ADD],
    ),
    (GPT_OSS, f" to=functions.add<|channel|>analysis <|constrain|>json<|message|>{AB}", "", "", [ADD]),
    (GPT_OSS, f"<|channel|>analysis to=functions.add<|message|>{AB}", "", "", [ADD]),
    (
        GPT_OSS,
        f"<|channel|>commentary<|message|>First this.<|end|><|start|>assistant to=functions.add<|channel|>commentary"
        f"<|message|>{AB}",
        "First this.",
        "",
        [ADD],
    ),
    (CODER, "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>2</parameter></function>", "", "", [ADD]),
    (
        CODER,
        "<tool_call><function=get_weather><parameter=city>Łódź</parameter></function></tool_call>",
        "",
        "",
        [CITY],
    ),
    (
        CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n\nŁódź\n\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        [("get_weather", {"city": "\nŁódź\n"})],
    ),
    (
        CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n3\n</parameter>\n",
        "",
        "",
        [("get_weather", None)],
    ),
    (GLM, "<tool_call>add\n<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key>\n<arg_value>2</arg_value>"
     "</tool_call>", "", "", [ADD]),
    (
        R1,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{AB}\n```<｜tool▁call▁end｜>",
        "",
        "",
        [ADD],
    ),
    (MISTRAL, f"[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{AB}", "", "", [ADD]),
    (MISTRAL, f"Well. [TOOL_CALLS]add[ARGS]{AB}[TOOL_CALLS]add[ARGS]{AB}", "Well.", "", [ADD, ADD]),
    (NEMO, f'[TOOL_CALLS] [{{"name": "add", "arguments": {AB}}}]', "", "", [ADD]),
    ("Kimi-K2-Instruct", "<|tool_calls_section_begin|><|tool_call_begin|>add:3<|tool_call_argument_begin|> "
     f"{AB} <|tool_call_end|>", "", "", [ADD]),
    ("LFM2.5-Instruct", "<|tool_call_start|>[add(a=1, b=2), get_weather(city=\"Łódź\")]<|tool_call_end|>", "", "",
     [ADD, CITY]),
    ("google-gemma-4-31B-it", "<|tool_call>call:get_weather{city:<|\"|>a \"b\" {c}<|\"|>,options:{x:[1,null]}}"
     "<tool_call|>", "", "", [("get_weather", {"city": 'a "b" {c}', "options": {"x": [1, None]}})]),
    ("Qwen-Qwen3-0.6B", "<think>\n\n</think>\n\nYes.", "Yes.", "", []),
    ("Qwen-Qwen3-0.6B", "<think>a <tool_call> b</think>Yes.", "Yes.", "a <tool_call> b", []),
    ("Qwen-Qwen3-0.6B", "I say <think> is a word.", "I say <think> is a word.", "", []),
    ("meetkai-functionary-medium-v3.2", f"all\nWell.>>>add\n{AB}", "Well.", "", [ADD]),
]  # fmt: skip


@pytest.mark.parametrize("name, text, content, reasoning, calls", TEXTS, ids=range(len(TEXTS)))
def test_texts_are_read_as_meant(
    archive: Path, name: str, text: str, content: str, reasoning: str, calls: list[tuple[str, Any]]
) -> None:
    format = format_of(archive / "models" / "templates" / f"{name}.jinja")
    opening = Opening(lead=">>>" if "functionary" in name else "")
    for pieces in ([text], list(text)):
        parser = format.parser(opening, tools())
        assert parser is not None
        found = read(parser, pieces)
        assert (found.content, found.reasoning) == (content, reasoning)
        assert [call[0] for call in found.calls] == [call[0] for call in calls]
        for (_, arguments), (_, wanted) in zip(found.calls, calls):
            assert wanted is None or json.loads(arguments) == wanted


@pytest.mark.parametrize("name", [HERMES, LLAMA, MISTRAL])
def test_without_tools_all_is_content(archive: Path, name: str) -> None:
    assert format_of(archive / "models" / "templates" / f"{name}.jinja").parser() is None


def test_an_id_that_the_model_gives_is_kept(archive: Path) -> None:
    format = format_of(archive / "models" / "templates" / f"{MISTRAL}.jinja")
    parser = format.parser(Opening(), tools())
    assert parser is not None
    calls = parser.push(f"[TOOL_CALLS]add[CALL_ID]abcdef123[ARGS]{AB}").calls
    assert calls[0].id == "abcdef123"


def test_ids_that_are_made_are_nine_letters_or_digits_and_differ(archive: Path) -> None:
    format = format_of(archive / "models" / "templates" / f"{HERMES}.jinja")
    parser = format.parser(Opening(), tools())
    assert parser is not None
    calls = parser.push(f'<tool_call>{{"name": "add", "arguments": {AB}}}</tool_call>' * 2).calls
    ids = [call.id for call in calls if call.id]
    assert len(set(ids)) == 2 and all(len(id) == 9 and id.isalnum() for id in ids)


@pytest.mark.parametrize(
    "name, marks",
    [
        (GPT_OSS, "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|call|> <|return|>"),
        ("google-gemma-4-31B-it", '<|tool_call> <tool_call|> <|"|> <|channel> <channel|>'),
        (R1, "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁calls▁end｜>"),
        (MISTRAL, "[TOOL_CALLS] [ARGS] [CALL_ID]"),
    ],
)
def test_control_tokens_that_are_marks_are_shown_to_the_parser(archive: Path, name: str, marks: str) -> None:
    format = format_of(archive / "models" / "templates" / f"{name}.jinja")
    ids = format._tokenizer.vocabulary.ids
    assert {ids[mark] for mark in marks.split()} <= format.shown_ids


def test_other_control_tokens_stay_hidden(archive: Path) -> None:
    tokenizer = format_of(archive / "models" / "templates" / f"{MISTRAL}.jinja")._tokenizer
    shown = tokenizer.vocabulary.ids["[ARGS]"]
    ids = tokenizer.encode("a[ARGS]b[CALL_ID]c", parse_special=True)
    text = Detokenizer(tokenizer, shown=frozenset({shown}))
    assert "".join(map(text.push, ids)) == "a[ARGS]bc"
