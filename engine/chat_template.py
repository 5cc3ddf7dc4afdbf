"""Renders conversations with a model's own chat template.

Texts of special tokens inside what people and tools wrote, the assistant's earlier messages included, never become
special tokens: the prompt comes in segments, and those stretches have parse_special False (how: `marked_text`).
So a `</think>` in an assistant message still splits it where the template looks for it, and the template then writes
its own, which is special; one that the template leaves in the text is plain. Transformers has the same hardening;
llama.cpp's server has not. A template with a syntax error does not keep the model from loading: render raises.
Immutable and safe to share between threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jinja2

from .chat_messages import Message, has_arguments, has_parts, in_parts, normalized
from .errors import TemplateError
from .jinja_sandbox import Sandbox, given
from .marked_text import Marks, private_characters
from .special_anchors import SpecialAnchors

_SANDBOX = Sandbox()
_PROBE = "Zq7ProbeText"


class Segment(NamedTuple):
    """A stretch of a prompt; special tokens are looked for only where parse_special is set."""

    text: str
    parse_special: bool


class Prompt(NamedTuple):
    """A rendered conversation."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments)


class SpecialTexts(Protocol):
    """What a template needs from a tokenizer."""

    bos_id: int | None
    eos_id: int | None

    @property
    def special_texts(self) -> Collection[str]:
        """The texts of the tokens that must not come from people's text."""

    def token_text(self, token_id: int) -> str:
        """The text of one token."""


class ChatTemplate:
    """A jinja template and the special tokens of its model.

    tool_use is the template to take when tools are given, for models that carry two.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_texts: Collection[str] = (),
        tool_use: ChatTemplate | None = None,
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._special = SpecialAnchors(special_texts)
        self._own_private = private_characters(source + bos_token + eos_token)
        self._tool_use = tool_use
        self.syntax_error: str | None = None
        try:
            self._template = _SANDBOX.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            self.syntax_error = f"line {error.lineno}: {error.message}"

    @property
    def source_for_tools(self) -> str:
        """The text of the template that is taken when there are tools."""
        return self.source if self._tool_use is None else self._tool_use.source

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], tokenizer: SpecialTexts, name: str | None = None
    ) -> ChatTemplate | None:
        """The template in a GGUF file's metadata, or None when it has none.

        name picks one of several (`tokenizer.chat_template.NAME`). Without a name the default one is taken, with
        `tool_use` beside it if there is one. Raises: TemplateError for a name that the file does not have.
        """
        prefix = "tokenizer.chat_template"
        named = {key[len(prefix) + 1 :]: str(metadata[key]) for key in metadata if key.startswith(f"{prefix}.")}
        bos_token = "" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id)
        eos_token = "" if tokenizer.eos_id is None else tokenizer.token_text(tokenizer.eos_id)

        def made(source: str, tool_use: ChatTemplate | None = None) -> ChatTemplate:
            return cls(
                source,
                bos_token=bos_token,
                eos_token=eos_token,
                special_texts=tokenizer.special_texts,
                tool_use=tool_use,
            )

        if name is not None:
            if name not in named:
                there = ", ".join(sorted(named)) or "none by a name"
                raise TemplateError(f"the file has no chat template {name!r}; it has {there}")
            return made(named[name])
        tool_use = made(named["tool_use"]) if "tool_use" in named else None
        default = metadata.get(prefix, named.get("default"))
        return tool_use if default is None else made(str(default), tool_use)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        keeps_null: bool = False,
        **variables: Any,
    ) -> Prompt:
        """The prompt for a conversation in OpenAI's form; variables are further ones that the template knows.

        keeps_null: the content of a message of calls alone is null, not empty.

        Raises: TemplateError when the template is broken or refuses the messages.
        """
        if tools and self._tool_use is not None:
            return self._tool_use.render(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                keeps_null=keeps_null,
                **variables,
            )
        if self.syntax_error is not None:
            raise TemplateError(f"the model's chat template has a syntax error: {self.syntax_error}")
        values = {"documents": None, **variables, "add_generation_prompt": add_generation_prompt}
        values["tools"] = list(tools) if tools else None
        flatten = has_parts(messages) and not self._takes_parts
        prepared = normalized(messages, parse_arguments=True, flatten=flatten, keeps_null=keeps_null)
        if not self._takes_strings and self._takes_parts:
            prepared = in_parts(prepared)
        attempts = [(prepared, values)]
        if has_arguments(messages):  # functionary's templates want them as strings
            unparsed = normalized(messages, parse_arguments=False, flatten=flatten, keeps_null=keeps_null)
            attempts.append((unparsed, values))
        return self._first_rendered(attempts)

    def _first_rendered(self, attempts: list[tuple[list[dict[str, Any]], dict[str, Any]]]) -> Prompt:
        """The first of the attempts that the template takes; the error of the first if it takes none."""
        messages, values = attempts[0]
        if values["tools"] is None:  # tool-use templates loop over tools without asking whether there are any
            attempts = [*attempts, (messages, values | {"tools": []})]
        failure: TemplateError | None = None
        for messages, values in attempts:
            try:
                return self._rendered(messages, values)
            except TemplateError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _rendered(self, messages: Sequence[Message], values: Mapping[str, Any]) -> Prompt:
        used = set(self._own_private)

        def collect(text: str) -> str:
            used.update(private_characters(text))
            return text

        try:
            plain = given({**values, "messages": list(messages)}, collect)
            marks = Marks(self._special.anchors, used)
            text = self._template.render({**given(plain, marks.mark), **self._tokens})
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refused the messages: {error.message or error}") from error
        except Exception as error:  # a template is a foreign program: it can fail in any way
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
        plain_text = marks.restore(text)
        return Prompt(tuple(_segments(plain_text, self._special.spans(plain_text, marks.positions(text)))))

    @cached_property
    def _takes_parts(self) -> bool:
        return self._shows([{"type": "text", "text": _PROBE}])

    @cached_property
    def _takes_strings(self) -> bool:
        return self._shows(_PROBE)

    def _shows(self, content: Any) -> bool:
        """Whether a user's content in this form comes out as its bare text."""
        values = {"tools": None, "add_generation_prompt": True}
        try:
            text = self._first_rendered([([{"role": "user", "content": content}], values)]).text
        except TemplateError:
            return False
        return re.search(f"[\"']text[\"'].{{0,9}}{_PROBE}", text) is None and _PROBE in text


def _segments(text: str, written_spans: Iterable[tuple[int, int]]) -> Iterator[Segment]:
    position = 0
    for start, end in written_spans:
        if position < start:
            yield Segment(text[position:start], True)
        yield Segment(text[start:end], False)
        position = end
    if position < len(text):
        yield Segment(text[position:], True)
