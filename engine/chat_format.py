"""How one model's answers in a conversation are written and read: reasoning, content and calls of tools.

Told by its chat template and its vocabulary: renders prompts, gives a parser for each answer, and the grammar that
holds an answer to a call, to a schema, or to either. Immutable after the first use and safe to share between threads.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .chat_template import ChatTemplate, Prompt
from .constraint import Trigger
from .errors import RequestError, TemplateError
from .formats.call_style import CallStyle
from .formats.channels import Channels
from .formats.families import HERMES, layout_of
from .formats.generic_tools import with_calls_apart, with_calls_written, with_tools_explained
from .formats.lark import LarkText
from .formats.parser import ChatParser
from .formats.tools import Tool
from .grammar import ANY_OBJECT, json_rule, schema_text

if TYPE_CHECKING:
    from .model import Model
    from .tokenizer import Tokenizer

_CONTENT = "around_content"  # the rule that a grammar of the content begins with
_PROBE_NAME = "zq7_probe_call"
Messages = Sequence[Mapping[str, Any]]
ToolChoice = str | Mapping[str, Any] | None


@dataclass(frozen=True)
class Form:
    """What an answer is held to: a grammar, from `trigger` on where that is given."""

    grammar: str
    trigger: Trigger | None = None


@dataclass(frozen=True)
class Opening:
    """How a prompt leaves its answer to begin: within reasoning, after it, and behind which mark of a call."""

    is_open: bool = False
    is_over: bool = False
    lead: str = ""


class ChatFormat:
    """The format of one template and vocabulary."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        layout = layout_of(template.source_for_tools)
        if not self._knows_tools:  # the model is told in Hermes's words, and may all the same write as it learnt
            layout = replace(layout, styles=tuple(dict.fromkeys((HERMES, *layout.styles))))
        self.layout = layout
        self._tokenizer = tokenizer

    @classmethod
    def from_model(cls, model: Model, template: ChatTemplate | None = None) -> ChatFormat:
        """The format of a model's own template, or of another one for it. Raises: TemplateError for a base model."""
        chosen = template or model.chat_template
        if chosen is None:
            raise TemplateError(f"{model.path} has no chat template (a base model); use generate(), or give a template")
        return cls(chosen, model.tokenizer)

    @property
    def style(self) -> CallStyle:
        """How calls are written."""
        return self.layout.styles[0]

    @cached_property
    def shown_ids(self) -> frozenset[int]:
        """Control tokens that are marks of the format, so that a parser has to see their texts."""
        return frozenset(self._special.values())

    @cached_property
    def _special(self) -> dict[str, int]:
        marks = "\n".join(texts_in(self.layout))
        vocabulary = self._tokenizer.vocabulary
        ids = ((vocabulary.tokens[id], id) for id in vocabulary.control_ids | vocabulary.stop_ids)
        return {text: id for text, id in ids if text and text in marks}

    @cached_property
    def _knows_tools(self) -> bool:
        return re.search(r"\b(tools|available_tools|functions)\b", self.template.source_for_tools) is not None

    @cached_property
    def _writing(self) -> tuple[bool, bool] | None:
        """How the template writes past calls: with null for content, apart from content; None if not at all."""
        is_refused = True
        for is_apart in (False, True):
            for keeps_null in (False, True):
                probe = _probe("" if is_apart else "Hm.")
                with contextlib.suppress(TemplateError):
                    text = self.template.render(probe, keeps_null=keeps_null).text
                    is_refused = False
                    if _PROBE_NAME in text:
                        return keeps_null, is_apart
        return (False, False) if is_refused else None

    def render(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] = (), **variables: Any) -> Prompt:
        """The prompt of a conversation. Raises: TemplateError."""
        has_calls = any(isinstance(m, Mapping) and (m.get("tool_calls") or m.get("role") == "tool") for m in messages)
        if not self._knows_tools and (tools or has_calls):
            return self._rendered_generic(with_calls_written(messages, self.style), tools, variables)
        if has_calls and self._writing is None:
            messages = with_calls_written(messages, self.style)
        elif has_calls and self._writing is not None:
            keeps_null, is_apart = self._writing
            messages = with_calls_apart(messages) if is_apart else messages
            variables = {"keeps_null": keeps_null, **variables}
        if tools and "functions" in self.template.source_for_tools:  # Firefunction's name for them, as text
            text = json.dumps(list(tools), ensure_ascii=False, indent=4)
            variables = {"functions": text, "datetime": "", **variables}
        return self.template.render(messages, tools=list(tools) or None, **variables)

    def _rendered_generic(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> Prompt:
        if not tools:
            return self.template.render(messages, **variables)
        try:
            return self.template.render(with_tools_explained(messages, tools, in_system=True), **variables)
        except TemplateError:  # some templates refuse system messages
            return self.template.render(with_tools_explained(messages, tools, in_system=False), **variables)

    def opening(self, prompt: str) -> Opening:
        """How a rendered prompt leaves its answer to begin."""
        end = prompt.rstrip()
        opens, closes = self.layout.opens.strip(), self.layout.closes.strip()
        lead = next((mark for mark in self.style.starts if mark and prompt.endswith(mark)), "")
        return Opening(bool(opens) and end.endswith(opens), bool(closes) and end.endswith(closes), lead)

    def parser(self, opening: Opening = Opening(), tools: Sequence[Tool] = ()) -> ChatParser | None:
        """A parser for one answer, or None where all of its text is content."""
        is_plain = not tools and not self.style.is_always and not self.layout.closes and not self.layout.dropped
        if is_plain:
            return None
        return ChatParser(
            self.layout, tools, is_open=opening.is_open, is_over=opening.is_over, lead=opening.lead
        )

    def grammar_for(
        self,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = None,
        schema: str | None = None,
        *,
        is_parallel: bool = True,
        opening: Opening = Opening(),
    ) -> Form | None:
        """What an answer is held to: `schema` (JSON text) is the form of its content; None for anything.

        tool_choice is "auto", "none", "required" or a named function; with tools and a schema an answer is one of them.
        Raises: RequestError.
        """
        offered = chosen_tools(tools, tool_choice)
        must_call = bool(offered) and (tool_choice == "required" or isinstance(tool_choice, Mapping))
        g = LarkText(self._special)
        if schema is None and not offered:
            return None
        calls = self._lark_calls(g, offered, is_parallel, opening) if offered else None
        if isinstance(self.style, Channels):
            return self._channel_form(g, calls, schema, must_call)
        if calls is not None and schema is None and not must_call:
            return self._lazy_form(g, calls, opening)
        content = None if schema is None or must_call else self._lark_content(g, schema, opening)
        body = g.choice([part for part in (calls, content) if part is not None])
        return Form(g.text(f"{self._lark_thought(g, opening)} {body}".strip()))

    def _lark_calls(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool, opening: Opening) -> str:
        style: Any = self.style
        if opening.lead and hasattr(style, "head"):
            style, is_parallel = replace(style, head=style.head.removeprefix(opening.lead)), False
        return g.rule(style.lark(g, tools, is_parallel))

    def grammar_around(self, text: str, opening: Opening) -> str:
        """A grammar of the content, in the library's language, with reasoning allowed before it."""
        layout = self.layout
        is_free = not layout.closes or opening.is_over
        if text.lstrip().startswith("{") or (is_free and not isinstance(self.style, Channels)):
            return text
        g = LarkText(self._special, own="around_")
        if isinstance(self.style, Channels):
            start = self.style.lark_final(g, _CONTENT)
        else:
            start = f"{self._lark_thought(g, opening)} {self._lark_within(g, _CONTENT, opening)}"
        return g.text(start) + re.sub(r"(?m)^\s*start\b", _CONTENT, text)

    def _lark_content(self, g: LarkText, schema: str, opening: Opening) -> str:
        return self._lark_within(g, g.rule(json_rule(schema)), opening)

    def _lark_within(self, g: LarkText, form: str, opening: Opening) -> str:
        """Content of a form within the format's marks."""
        text_name = getattr(self.style, "text_name", None)
        if text_name is not None:
            mark = self.style.starts[0].removeprefix(opening.lead)
            return g.rule(f"{g.literal(f'{mark}{text_name}' + chr(10))} {form}")
        if not self.layout.text_opens:
            return form
        return g.rule(f"({g.literal(self.layout.text_opens)})? {form} ({g.literal(self.layout.text_closes)})?")

    def _lark_thought(self, g: LarkText, opening: Opening) -> str:
        layout = self.layout
        space = g.terminal(r"[ \n]{0,4}")
        if not layout.closes:
            return ""
        if opening.is_over:
            return space
        thought = f"{g.until(layout.closes)} {space}"
        if opening.is_open:
            return thought
        return f"({g.literal(layout.opens)} {thought})?" if layout.opens else space

    def _lazy_form(self, g: LarkText, calls: str, opening: Opening) -> Form | None:
        """Free text until a call begins."""
        marks = tuple(mark for mark in self.style.starts if mark)
        if self.style.is_bare:
            marks = ('{"name"', *marks)
        if opening.lead or not marks:
            return None
        is_bare = self.style.is_bare
        before = g.terminal(r"[ \t\r\n]{0,64}" if is_bare else f"[^{re.escape(marks[0][0])}]{{0,64}}")
        wakes = marks[:1]  # calls that begin with another mark are read, but not held to a form
        trigger = Trigger(wakes, self.layout.opens, self.layout.closes, opening.is_open, is_first=is_bare)
        return Form(g.text(f"{before} {calls}"), trigger)

    def _channel_form(self, g: LarkText, calls: str | None, schema: str | None, must_call: bool) -> Form | None:
        style = self.style
        assert isinstance(style, Channels)
        if schema is not None and not must_call:
            final = g.rule(style.lark_final(g, g.rule(json_rule(schema))))
            return Form(g.text(g.choice([part for part in (calls, final) if part is not None])))
        return Form(g.text(calls)) if must_call and calls is not None else None


def _probe(content: str) -> list[dict[str, Any]]:
    call = {"id": "call00000", "type": "function", "function": {"name": _PROBE_NAME, "arguments": "{}"}}
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "call00000"},
    ]


def chosen_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """The tools that an answer may call. Raises: RequestError for a choice that makes no sense."""
    if choice in (None, "auto", "none", "required"):
        if choice == "required" and not tools:
            raise RequestError("tool_choice is 'required' and there are no tools")
        return () if choice == "none" else tuple(tools)
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        found = tuple(tool for tool in tools if tool.name == name)
        if found:
            return found
        there = ", ".join(tool.name for tool in tools) or "none"
        raise RequestError(f"tool_choice names the function {name!r}; the tools are: {there}")
    raise RequestError(f"tool_choice is {choice!r}; 'auto', 'none', 'required' or a function by its name is needed")


def schema_of_format(response_format: Mapping[str, Any] | None) -> str | None:
    """The JSON schema, as text, that OpenAI's response_format asks for. Raises: RequestError."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    inner = response_format.get("json_schema") if kind == "json_schema" else response_format
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT if schema is None else schema_text(schema)
    if kind == "json_schema" and schema is not None:
        return schema_text(schema)
    raise RequestError(
        "response_format needs a type: 'text', 'json_object', or 'json_schema' with json_schema.schema beside it"
    )


def texts_in(value: Any) -> list[str]:
    """All texts within a dataclass, and the marks that it makes of them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, tuple):
        return [text for item in value for text in texts_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [text for item in fields(value) for text in texts_in(getattr(value, item.name))] + list(
            getattr(value, "starts", ())
        )
    return []

