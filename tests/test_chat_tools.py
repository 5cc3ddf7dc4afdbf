"""Conversations with tools, schemas and reasoning through LLM.chat, on models with forced output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from chat_formats import ADD, TOOLS, WEATHER
from forced import write_chain, write_forced

from pyggml.engine import LLM, ChatPrompt, Delta, FinishReason, RequestError

OPEN: dict[str, Any] = {"device": "cpu", "threads": 1, "ctx": 2048}
ASK = [{"role": "user", "content": "What is the weather?"}]
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n"
    "{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = QWEN.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź 👍", "days": 3}}\n</tool_call>'


OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("tools")

    def path_of(answer: Any, **options: Any) -> Path:
        return write_forced(folder / f"{len(list(folder.iterdir()))}.gguf", answer, n_vocab=640, **options).path

    return path_of


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model that likes all tokens alike."""
    path = write_chain(tmp_path_factory.mktemp("flat") / "flat.gguf", {}, scale=0)
    with LLM(path, **OPEN, chat_template=QWEN) as llm:
        yield llm


def test_a_call_streams_and_is_the_same_as_at_once(forced: Callable[..., Path]) -> None:
    with LLM(forced(f"Let me see.\n{CALL}"), **OPEN, chat_template=QWEN) as llm:
        whole = llm.chat(ASK, tools=TOOLS, temperature=0)
        deltas = list(llm.chat(ASK, tools=TOOLS, temperature=0, stream=True))
    assert whole == "Let me see." and whole.finish_reason is FinishReason.TOOL_CALLS
    (call,) = whole.tool_calls
    assert call.name == "get_weather" and call.parsed() == {"city": "Łódź 👍", "days": 3}
    pieces = [piece for delta in deltas for piece in delta.tool_calls]
    assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert [piece.name for piece in pieces].count("get_weather") == 1 and len(pieces) > 5
    assert all(piece.index == 0 for piece in pieces) and pieces[0].id
    assert "".join(delta.text for delta in deltas) == whole
    assert deltas[-1].finish_reason is FinishReason.TOOL_CALLS


def test_without_tools_the_same_text_is_content(forced: Callable[..., Path]) -> None:
    with LLM(forced(CALL), **OPEN, chat_template=QWEN) as llm:
        for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            answer = llm.chat(ASK, temperature=0, **options)
            assert answer == CALL and not answer.tool_calls and answer.finish_reason is FinishReason.STOP


def test_a_call_cut_by_length_keeps_what_was_sent(forced: Callable[..., Path]) -> None:
    with LLM(forced(CALL), **OPEN, chat_template=QWEN) as llm:
        whole = llm.chat(ASK, tools=TOOLS, temperature=0)
        for n in range(1, len(whole.ids)):
            answer = llm.chat(ASK, tools=TOOLS, temperature=0, max_tokens=n)
            assert answer.finish_reason is FinishReason.LENGTH
            if answer.tool_calls:
                assert whole.tool_calls[0].arguments.startswith(answer.tool_calls[0].arguments.rstrip("\ufffd"))
                assert answer == ""
            else:
                assert CALL.startswith(answer.rstrip("\ufffd"))


def test_reasoning_that_the_prompt_opens_is_apart(forced: Callable[..., Path]) -> None:
    with LLM(forced(f"Is it warm?\n</think>\n\nYes.\n{CALL}"), **OPEN, chat_template=THINKING) as llm:
        answer = llm.chat(ASK, tools=TOOLS, temperature=0)
        deltas = list(llm.chat(ASK, temperature=0, stream=True))
    assert (answer.reasoning, answer.text) == ("Is it warm?", "Yes.")
    assert [call.name for call in answer.tool_calls] == ["get_weather"]
    assert "".join(delta.reasoning for delta in deltas) == "Is it warm?"
    assert "".join(delta.text for delta in deltas) == f"Yes.\n{CALL}"


def test_reasoning_that_the_model_opens_is_apart(forced: Callable[..., Path]) -> None:
    template = QWEN + "{# <think> </think> #}"
    with LLM(forced("<think>\nHm.\n</think>\n\nYes."), **OPEN, chat_template=template) as llm:
        answer = llm.chat(ASK, temperature=0)
    assert (answer.reasoning, answer.text) == ("Hm.", "Yes.")


def test_a_stop_string_counts_in_the_text_as_the_model_writes_it(forced: Callable[..., Path]) -> None:
    with LLM(forced(f"Well.\n{CALL}"), **OPEN, chat_template=QWEN) as llm:
        answer = llm.chat(ASK, tools=TOOLS, temperature=0, stop=["👍"])
    (call,) = answer.tool_calls
    assert call.arguments == '{"city": "Łódź ' and answer.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_can_be_demanded(flat: LLM, choice: Any) -> None:
    for seed in range(3):
        answer = flat.chat(ASK, tools=[TOOLS[1]], tool_choice=choice, seed=seed, parallel_tool_calls=False)
        (call,) = answer.tool_calls
        assert answer == "" and answer.finish_reason is FinishReason.TOOL_CALLS
        jsonschema.validate(call.parsed(), ADD["parameters"])


def test_calls_end_at_some_number(flat: LLM) -> None:
    bias = {ord(char): 9 for char in '"}<,:\n'} | {258: -100}  # a model that does not want to end
    answer = flat.chat(ASK, tools=[TOOLS[1]], tool_choice="required", seed=1, logit_bias=bias, max_tokens=1900)
    assert 1 < len(answer.tool_calls) <= 16


def test_a_call_that_begins_is_held_to_its_tool(tmp_path: Path) -> None:
    pieces = ["Well, ", "<tool", "_call>", "\n", '{"name": "', "nonsense", '"}']
    model = write_forced(tmp_path / "m.gguf", pieces, n_vocab=640).path
    with LLM(model, **OPEN, chat_template=QWEN.replace("assistant\n", "assistant ")) as llm:
        bias = {ord(char): 5 for char in '"}1,: 2'}
        answer = llm.chat(ASK, tools=[TOOLS[1]], temperature=0, logit_bias=bias, parallel_tool_calls=False)
    assert answer == "Well," and [call.name for call in answer.tool_calls] == ["add"]


def test_response_format_holds_the_content(flat: LLM) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": OK}}
    answer = flat.chat(ASK, response_format=wanted, seed=1)
    assert answer.startswith("{")
    jsonschema.validate(json.loads(answer), OK)
    jsonschema.validate(json.loads(flat.chat(ASK, json_schema=OK, seed=2)), OK)
    with pytest.raises(RequestError, match="one of them only"):
        flat.chat(ASK, response_format=wanted, json_schema=OK)


def test_an_empty_schema_is_any_json(flat: LLM) -> None:
    json.loads(flat.chat(ASK, json_schema={}, json_object=False, grammar=None, seed=1, max_tokens=400))


def test_reasoning_comes_before_a_schema(forced: Callable[..., Path]) -> None:
    schema = OK | {"properties": {"ok": {"const": True}}}
    with LLM(forced('Hm, <b>.</think>{"ok": true}'), **OPEN, chat_template=THINKING) as llm:
        answer = llm.chat(ASK, json_schema=schema, temperature=0)
    assert (answer.reasoning, json.loads(answer)) == ("Hm, <b>.", {"ok": True})


@pytest.mark.parametrize("form", [{"regex": "[a-c]+"}, {"grammar": "root ::= [a-c]+"}, {"grammar": "start: /[a-c]+/"}])
def test_reasoning_comes_before_a_grammar(forced: Callable[..., Path], form: dict[str, Any]) -> None:
    with LLM(forced("Hm, <b>.</think>abc"), **OPEN, chat_template=THINKING) as llm:
        answer = llm.chat(ASK, temperature=0, **form)
    assert (answer.reasoning, answer.text) == ("Hm, <b>.", "abc")
    with LLM(forced("Hm, <b>."), **OPEN, chat_template=QWEN) as llm:
        answer = llm.chat(ASK, temperature=0, max_tokens=5, **form)
    assert answer and set(answer) <= set("abc")


def test_tools_with_a_schema_give_a_call_or_schema_text(flat: LLM) -> None:
    kinds = set()
    for seed in range(12):
        answer = flat.chat(ASK, tools=[TOOLS[1]], json_schema=OK, seed=seed, parallel_tool_calls=False)
        if answer.tool_calls:
            jsonschema.validate(answer.tool_calls[0].parsed(), ADD["parameters"])
        else:
            jsonschema.validate(json.loads(answer), OK)
        kinds.add(bool(answer.tool_calls))
    assert kinds == {True, False}


def test_a_tools_schema_that_is_none_matters_only_where_a_call_is_demanded(flat: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}]
    assert flat.chat(ASK, tools=tools, max_tokens=3).finish_reason is FinishReason.LENGTH
    with pytest.raises(RequestError, match=r"tools\[0\].function.parameters.*strin"):
        flat.chat(ASK, tools=tools, tool_choice="required")
    with pytest.raises(RequestError, match="json_schema.*not.*#/not"):
        flat.chat(ASK, json_schema={"type": "object", "not": {}})


@pytest.mark.parametrize(
    "options, words",
    [
        ({"tool_choice": "required"}, ["tool_choice", "no tools"]),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, ["tool_choice", "sometimes", "required"]),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "sub"}}}, ["sub", "get_weather", "add"]),
        ({"tools": [{"type": "function"}]}, ["tools[0]"]),
        ({"tools": [TOOLS[0], TOOLS[0]]}, ["tools[1]", "get_weather"]),
        ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, ["tools[0].function.parameters"]),
        ({"response_format": {"type": "yaml"}}, ["response_format"]),
        ({"response_format": {"type": "json_schema"}}, ["response_format", "schema"]),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, ["regex", "tool_choice"]),
        ({"json_schema": OK, "grammar": 'root ::= "a"'}, ["json_schema", "grammar"]),
        ({"json_object": True, "regex": "a"}, ["json_object", "regex"]),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, ["response_format", "grammar"]),
        ({"json_object": 1}, ["json_object"]),
        ({"regex": ""}, ["regex"]),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(flat: LLM, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        flat.chat(ASK, **options)
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_tools_schema_with_words_that_cannot_be_enforced_is_taken_all_the_same(flat: LLM) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}, "if": {}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    answer = flat.chat(ASK, tools=tools, tool_choice="required", seed=1, parallel_tool_calls=False, max_tokens=200)
    assert answer.finish_reason in (FinishReason.TOOL_CALLS, FinishReason.LENGTH)


def test_a_template_without_tools_gets_them_explained(forced: Callable[..., Path]) -> None:
    with LLM(forced(CALL), **OPEN) as llm:
        prompt = llm.chat_prompt(ASK, tools=TOOLS)
        answer = llm.chat(ASK, tools=TOOLS, temperature=0)
        follow_up = [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": answer.tool_calls[0].id, "type": "function",
                 "function": {"name": "get_weather", "arguments": answer.tool_calls[0].arguments}}]},
            {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"},
        ]  # fmt: skip
        second = llm.chat_prompt(follow_up, tools=TOOLS)
    assert WEATHER["description"] in prompt.text and "<tool_call>" in prompt.text
    assert [call.name for call in answer.tool_calls] == ["get_weather"]
    assert '"city": "Łódź 👍"' in second.text and "sunny" in second.text
    assert second.text.count("get_weather") > prompt.text.count("get_weather")


def test_a_prompt_can_be_sent_with_a_callback(forced: Callable[..., Path]) -> None:
    async def answers(llm: LLM) -> list[Delta]:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        deltas: list[Delta] = []

        def take(delta: Delta) -> None:
            deltas.append(delta)
            if sum(d.finish_reason is not None for d in deltas) == 2:
                loop.call_soon_threadsafe(done.set)

        prompt = llm.chat_prompt(ASK, tools=TOOLS, temperature=0)
        assert isinstance(prompt, ChatPrompt)
        llm.submit(prompt, llm.model.sampling(**prompt.sampling), take, n=2)
        await asyncio.wait_for(done.wait(), 60)
        return deltas

    with LLM(forced(CALL), **OPEN, chat_template=QWEN) as llm:
        deltas = asyncio.run(answers(llm))
    for index in (0, 1):
        pieces = [piece for delta in deltas if delta.index == index for piece in delta.tool_calls]
        assert json.loads("".join(piece.arguments for piece in pieces)) == {"city": "Łódź 👍", "days": 3}
