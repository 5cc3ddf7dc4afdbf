"""Answers in channels: gpt-oss's harmony and its like, where each stretch has a header that says what it is.

`<|channel|>analysis<|message|>…` is reasoning, `final` is content, a stretch `to=` a function is a call. Headers come
in several orders. The answer begins within a header, since the prompt ends behind the name of the role.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .json_text import pass_value
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tagged_calls import TaggedCalls
from .tools import Tool

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True)
class Channels:
    """The marks of a family: what begins a header, ends one, and ends a stretch; `within` may stand in a header.

    to_self: the recipient that means reasoning. inner: how arguments are written where not as bare JSON.
    """

    starts: tuple[str, ...] = ("<|start|>assistant", "<|channel|>", " to=")
    header_end: str = "<|message|>"
    ends: tuple[str, ...] = ("<|end|>", "<|return|>", "<|call|>", "<|start|>assistant", "<|channel|>")
    within: tuple[str, ...] = ("<|constrain|>",)
    name_prefix: str = "functions."
    to_self: str = ""
    to_user: str = ""
    inner: TaggedCalls | None = None
    is_bare: bool = False
    is_always: bool = True

    def read(self, r: CallReader, start: str) -> Steps[None]:
        rest, _ = yield from r.until(self.header_end, limit=500)
        header = start + rest
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        name = recipient[1] if recipient is not None else ""
        if name and name not in (self.to_self, self.to_user) and r.tools:
            yield from self._read_call(r, name.removeprefix(self.name_prefix))
            return
        is_reasoning = name == self.to_self if self.to_self else channel is not None and channel[1] == "analysis"
        r.used()
        try:
            end = yield from r.stream(r.reason if is_reasoning else r.say, *self.ends)
        except Malformed:  # the answer ended within the stretch, as its last one does
            r.used()
            return
        if end in self.starts:
            r.at -= len(end)
        r.used()

    def _read_call(self, r: CallReader, name: str) -> Steps[None]:
        yield from r.skip_space()
        if self.inner is not None:
            yield from r.expect(self.inner.start.strip())
            yield from self.inner.read(r, self.inner.start.strip())
        else:
            r.open_call(name)
            if (yield from r.peek()) != "{":
                raise Malformed("expected arguments")
            yield from pass_value(r, r.arguments)
        yield from r.skip_space()
        for end in self.ends:
            if end not in self.starts and (yield from r.take(end)):
                break

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        calls = []
        for tool in tools:
            if self.inner is not None:
                body = self.inner.lark(g, [tool], False)
                calls.append(g.rule(f"{g.literal(f' to={tool.name}{self.header_end}')} {body}"))
            else:
                recipient = f"to={self.name_prefix}{tool.name}"
                head = g.rule(
                    " | ".join(
                        g.literal(text)
                        for text in (
                            f"<|channel|>commentary {recipient} <|constrain|>json<|message|>",
                            f" {recipient}<|channel|>commentary json<|message|>",
                        )
                    )
                )
                calls.append(g.rule(f"{head} {g.schema(tool.parameters)}"))
        thought = self._lark_thought(g)
        return f"({thought})* {g.choice(calls)}"

    def _lark_thought(self, g: LarkText) -> str:
        """Reasoning before a call."""
        if self.to_self:
            head = g.literal(f" to={self.to_self}{self.header_end}")
            return f"{head} {g.until('<|eom|>')} {g.literal('<|start|>assistant')}"
        head = g.literal("<|channel|>analysis<|message|>")
        return f"{head} {g.until('<|end|>')} {g.literal('<|start|>assistant')}"

    def lark_final(self, g: LarkText, form: str) -> str:
        """The grammar of an answer whose content has this form."""
        heads = ["<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"]
        if self.to_self:
            heads = [f" to={self.to_user}{self.header_end}"]
        return f"({self._lark_thought(g)})* {g.choice(map(g.literal, heads))} {form}"

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        return None
