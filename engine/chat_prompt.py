"""A conversation ready to be answered: its tokens, what the answer is held to, and how its text is read.

The text of an answer becomes content, reasoning and calls of tools on its way to whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .chat_format import ChatFormat, Form, Messages, Opening, ToolChoice, chosen_tools, schema_of_format
from .errors import RequestError
from .formats.parser import ChatParser
from .formats.tools import Tool, tools_of
from .grammar import ANY_OBJECT, Grammar, check_schema, schema_text
from .request import Delta, FinishReason
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

_FORMS = ("json_schema", "json_object", "regex", "grammar")


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation. `sampling` are the caller's sampling options with the answer's form among them."""

    ids: list[int]
    text: str
    sampling: dict[str, Any]
    format: ChatFormat
    opening: Opening
    tools: tuple[Tool, ...]

    @classmethod
    def rendered(
        cls,
        format: ChatFormat,
        tokenizer: Tokenizer,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> ChatPrompt:
        """Render and encode; `sampling` is taken as it is, but for its form. Raises: TemplateError, RequestError."""
        offered = tools_of(tools)
        callable_tools = chosen_tools(offered, tool_choice)
        prompt = format.render(messages, tools=tools if callable_tools and tools else (), **(template or {}))
        ids = tokenizer.encode_segments([(s.text, s.parse_special) for s in prompt.segments], add_special=True)
        bos = tokenizer.bos_id
        ids = ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids
        opening = format.opening(prompt.text)
        schema, options = _schema(schema_of_format(response_format), sampling)
        if any(name in options for name in _FORMS):
            if tool_choice not in (None, "auto", "none"):
                raise RequestError("a grammar or regex and a tool_choice that demands a call exclude each other")
            form = _form_of(format, opening, options)
        else:
            if schema is not None:
                check_schema("json_schema", schema)
            enforced = _enforceable(offered, tool_choice)
            is_parallel = parallel_tool_calls is not False
            form = format.grammar_for(enforced, tool_choice, schema, is_parallel=is_parallel, opening=opening)
        if form is not None:
            options |= {"grammar": form.grammar, "trigger": form.trigger}
        return cls(ids, prompt.text, options, format, opening, callable_tools)

    def reads(self, emit: Callable[[Delta], None]) -> Callable[[Delta], None]:
        """Where one answer's deltas go, so that `emit` gets them with content, reasoning and calls apart."""
        parser = self.format.parser(self.opening, self.tools)
        return emit if parser is None else _Reading(parser, emit)


class _Reading:
    """One answer's deltas on their way."""

    def __init__(self, parser: ChatParser, emit: Callable[[Delta], None]) -> None:
        self._parser = parser
        self._emit = emit

    def __call__(self, delta: Delta) -> None:
        content, reasoning, calls = self._parser.push(delta.text)
        reason = delta.finish_reason
        if reason is None and content == delta.text and not reasoning and not calls:
            self._emit(delta)
            return
        if reason is not None:
            rest = self._parser.finish()
            content, reasoning, calls = content + rest.content, reasoning + rest.reasoning, calls + rest.calls
            if reason is FinishReason.STOP and self._parser.has_calls:
                reason = FinishReason.TOOL_CALLS
        self._emit(replace(delta, text=content, reasoning=reasoning, tool_calls=calls, finish_reason=reason))


@lru_cache(maxsize=512)
def _check_parameters(name: str, schema: str) -> None:
    check_schema(name, schema, is_lenient=True)


def _enforceable(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools, those whose schemas are none with any arguments; where a call is demanded that is an error."""
    found: list[Tool] = []
    for k, tool in enumerate(tools):
        try:
            _check_parameters(f"tools[{k}].function.parameters", schema_text(tool.parameters))
            found.append(tool)
        except RequestError:
            if choice not in (None, "auto", "none"):
                raise
            found.append(Tool(tool.name))
    return found


def _form_of(format: ChatFormat, opening: Opening, options: dict[str, Any]) -> Form | None:
    """The caller's own grammar or regex, which is about the content: reasoning may come before it."""
    grammar = Grammar.of(SamplingParams(regex=options.pop("regex", None), grammar=options.pop("grammar", None)))
    assert grammar is not None, "one of them was given"
    return Form(format.grammar_around(grammar.text, opening), options.pop("trigger", None))


def _schema(schema: str | None, sampling: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The schema of the content, which may come as a sampling option, too, and the options without it."""
    given = {name: sampling[name] for name in _FORMS if sampling.get(name) is not None}
    params = SamplingParams(**given)  # which refuses what contradicts or is no form
    forms = [name for name in given if name != "json_object" or params.json_object]
    if schema is not None and forms:
        raise RequestError(f"response_format and {forms[0]} are given; an answer can follow one of them only")
    options = {name: value for name, value in sampling.items() if name not in _FORMS}
    if params.json_object or params.json_schema is not None:
        return ANY_OBJECT if params.json_object else schema_text(given["json_schema"]), options
    return schema, options | {name: given[name] for name in forms}
