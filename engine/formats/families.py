"""Which format a chat template uses, told by the marks in its text, and how each family's answers are laid out.

The marks are facts of the templates that the families publish. A template that names no tools at all gets Hermes's
format, which `generic_tools` then explains to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from .call_style import CallStyle
from .channels import Channels
from .json_calls import JsonCalls
from .loose_calls import LooseCalls
from .named_calls import NamedCalls
from .nested_calls import NestedCalls
from .parser import Layout
from .tagged_calls import TaggedCalls

HERMES = JsonCalls("<tool_call>", "</tool_call>", between="\n")
_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_THINK = re.compile(r"<((?:\w+:)?think(?:ing)?)>")


def _tagged(prefix: str, section: str, *, string: str = "") -> TaggedCalls:
    """`<invoke name="…">` with `<parameter name="…">`, these tags with a prefix, within a section."""
    return TaggedCalls(
        start=f"<{section}>\n",
        head=f'<{prefix}invoke name="{{name}}">\n',
        argument=f'<{prefix}parameter name="{{key}}"{string}>',
        value_end=f"</{prefix}parameter>",
        tail=f"</{prefix}invoke>\n",
        end=f"</{section}>",
        between="",
    )


def _functions(start: str, end: str, inner: str) -> TaggedCalls:
    """`<function=…>` with `<parameter=…>`."""
    return TaggedCalls(
        start=start + "\n",
        head="<function={name}>\n",
        argument="<parameter={key}>",
        value_end="</parameter>",
        tail="</function>\n",
        end=end,
        inner=inner,
        also=("<function=",),
    )


def _arg_keys(source: str) -> TaggedCalls:
    """GLM's `<arg_key>` and `<arg_value>`; some families put a suffix behind every tag, and line breaks differ."""
    suffix = ":opensource" if "tool_sep" in source else ""
    breaks = "\n" if re.search(r"</arg_key>(\\n|\n)|</arg_key>['\"] *~? *['\"]?\\n", source) or suffix else ""
    if suffix:
        return TaggedCalls(
            start=f"<tool_calls{suffix}>\n",
            head=f"<tool_call{suffix}>{{name}}<tool_sep{suffix}>\n",
            argument=f"<arg_key{suffix}>{{key}}</arg_key{suffix}>\n<arg_value{suffix}>",
            value_end=f"</arg_value{suffix}>",
            tail=f"</tool_call{suffix}>\n",
            end=f"</tool_calls{suffix}>",
            between="",
        )
    return TaggedCalls(
        start="<tool_call>",
        head="{name}" + breaks,
        argument=f"<arg_key>{{key}}</arg_key>{breaks}<arg_value>",
        value_end="</arg_value>",
        tail="",
        end="</tool_call>",
        between=breaks,
        behind_value=breaks,
    )


_KIMI_K3 = TaggedCalls(
    start="<|open|>tools<|sep|>",
    head='<|open|>call tool="{name}" index="{index}"<|sep|>',
    argument='<|open|>argument key="{key}" type="{type}"<|sep|>',
    value_end="<|close|>argument<|sep|>",
    tail="<|close|>call<|sep|>",
    end="<|close|>tools<|sep|>",
    between="",
    behind_value="",
)
_MINICPM = TaggedCalls(
    start="",
    head='<function name="{name}">',
    argument='<param name="{key}">',
    value_end="</param>",
    tail="</function>",
    end="",
    behind_value="",
    has_cdata=True,
)
_KIMI_K2 = NamedCalls(
    head="<|tool_call_begin|>{name}<|tool_call_argument_begin|>",
    tail="<|tool_call_end|>",
    start="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    name_prefix="functions.",
    has_number=True,
)
_DEEPSEEK_R1 = NamedCalls(
    head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    tail="\n```<｜tool▁call▁end｜>",
    start="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    between="\n",
)
_DEEPSEEK = replace(
    _DEEPSEEK_R1, head="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", tail="<｜tool▁call▁end｜>", between=""
)
_MISTRAL_LIST = JsonCalls("[TOOL_CALLS]", is_list=True, id_key="id", inner="")
_MISTRAL = NamedCalls(head="[TOOL_CALLS]{name}[ARGS]", also=("[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]",))
_MISTRAL_ID = NamedCalls(head="[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]", also=("[TOOL_CALLS]{name}[ARGS]",))
_SOLAR = NamedCalls(
    head="<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>",
    tail="<|tool_call:end|>",
    start="<|tool_calls|>",
)
_COHERE = JsonCalls(
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    is_list=True,
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    inner="",
)
_COMMAND_R = JsonCalls(
    "Action: ```json", "```", is_list=True, name_key="tool_name", arguments_key="parameters", also=("Action:\n```json",)
)
_APERTUS = JsonCalls("<|tools_prefix|>", "<|tools_suffix|>", is_list=True, is_keyed=True, inner="")
_GIGACHAT = JsonCalls("<|message_sep|>\n\nfunction call<|role_sep|>", inner="\n", between="")
_LLAMA = JsonCalls("", arguments_key="parameters", inner="", between="; ", also=("<|python_tag|>",), is_bare=True)
_MUSE = Channels(
    starts=("<|start|>assistant", " to="),
    ends=("<|eom|>", "<|eot|>", "<|start|>assistant"),
    name_prefix="",
    to_self="self",
    to_user="user",
    inner=_tagged("atem:", "atem:function_calls"),
)

Rule = tuple[Callable[[str], bool], Callable[[str], CallStyle]]


def _has(*texts: str) -> Callable[[str], bool]:
    return lambda source: all(text in source for text in texts)


def _always(style: CallStyle) -> Callable[[str], CallStyle]:
    return lambda source: style


# The first that fits counts.
_STYLES: tuple[Rule, ...] = (
    (_has("<|channel|>", "<|message|>"), _always(Channels())),
    (_has("<atem:function_calls>"), _always(_MUSE)),
    (_has(">>>all"), _always(NamedCalls(head=">>>{name}\n", text_name="all"))),
    (_has("<|tool_calls_section_begin|>"), _always(_KIMI_K2)),
    (_has("<|open|>", "<|close|>"), _always(_KIMI_K3)),
    (_has(_M3), _always(NestedCalls(_M3))),
    (_has("<minimax:tool_call>"), _always(_tagged("", "minimax:tool_call"))),
    (_has(_DSML, "tool_calls>"), _always(_tagged(_DSML, f"{_DSML}tool_calls", string=' string="{string}"'))),
    (_has(_DSML), _always(_tagged(_DSML, f"{_DSML}function_calls", string=' string="{string}"'))),
    (_has("<|tool_call>call:"), _always(LooseCalls("<|tool_call>", "<tool_call|>"))),
    (_has('<function name="', '<param name="'), _always(_MINICPM)),
    (_has("<arg_key"), _arg_keys),
    (_has("<seed:tool_call>"), _always(_functions("<seed:tool_call>", "</seed:tool_call>", ""))),
    (_has("<function=", "<parameter="), _always(_functions("<tool_call>", "</tool_call>", "\n"))),
    (_has("<function=", "</function>"), _always(NamedCalls(head="<function={name}>", tail="</function>"))),
    (_has("<|START_ACTION|>"), _always(_COHERE)),
    (_has("Action:", "```json", "tool_name"), _always(_COMMAND_R)),
    (_has("<｜tool▁calls▁begin｜>", "```json"), _always(_DEEPSEEK_R1)),
    (_has("<｜tool▁calls▁begin｜>"), _always(_DEEPSEEK)),
    (_has("[TOOL_CALLS]", "[CALL_ID]"), _always(_MISTRAL_ID)),
    (_has("[TOOL_CALLS]", "[ARGS]"), _always(_MISTRAL)),
    (_has("[TOOL_CALLS]"), _always(_MISTRAL_LIST)),
    (_has("<|tools_prefix|>"), _always(_APERTUS)),
    (_has("<TOOLCALL>"), _always(JsonCalls("<TOOLCALL>", "</TOOLCALL>", is_list=True, inner=""))),
    (_has("<tool_calls>["), _always(JsonCalls("<tool_calls>", "</tool_calls>", is_list=True, inner=""))),
    (_has("<tool_calls>"), _always(JsonCalls("<tool_calls>", "</tool_calls>", is_many=True, between="\n"))),
    (_has("<|function_call|>"), _always(JsonCalls("<|function_call|>", inner="", between=""))),
    (_has("<|role_sep|>", "<|message_sep|>"), _always(_GIGACHAT)),
    (_has("<|tool_call:begin|>"), _always(_SOLAR)),
    (_has("<|tool_call_start|>"), _always(LooseCalls("<|tool_call_start|>", "<|tool_call_end|>", is_python=True))),
    (_has("List of tools: "), _always(LooseCalls("<|tool_call_start|>", "<|tool_call_end|>", is_python=True))),
    (_has("<|/tool_call|>"), _always(JsonCalls("<|tool_call|>", "<|/tool_call|>", is_list=True, inner=""))),
    (_has("<|tool_call|>"), _always(JsonCalls("<|tool_call|>", is_list=True, inner=""))),
    (_has("functools["), _always(JsonCalls("functools", is_list=True, inner=""))),
    (_has("<tool_call>"), _always(HERMES)),
    (_has('"parameters": ', "ipython"), _always(_LLAMA)),
)


def layout_of(source: str) -> Layout:
    """The layout that a template's text speaks of."""
    style = next((made(source) for fits, made in _STYLES if fits(source)), HERMES)
    opens, closes = _reasoning(source, style)
    dropped: tuple[str, ...] = ()
    text_opens, text_closes = "", ""
    for mark, end in (
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ("<|START_TEXT|>", "<|END_TEXT|>"),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        ("<|content|>", "<|end|>"),
    ):
        if (mark in source and mark != "<|content|>") or style is {"<|op": _KIMI_K3, "<|co": _SOLAR}.get(mark[:4]):
            text_opens, text_closes = mark, end
            dropped = (mark, end)
    if style is _KIMI_K3:
        dropped = (*dropped, "<|close|>message<|sep|>")
    if style is _SOLAR:
        dropped = (*dropped, "<|begin|>assistant")
    if "<response>" in source and "<think>" in source:
        dropped = ("<response>", "</response>")
    return Layout(opens, closes, dropped, (style,), text_opens, text_closes)


def _reasoning(source: str, style: CallStyle) -> tuple[str, str]:
    """The marks around reasoning; empty where the template speaks of none."""
    if isinstance(style, Channels):
        return "", ""
    if style is _KIMI_K3:
        return "<|open|>think<|sep|>", "<|close|>think<|sep|>"
    if "tool_sep" in source and ":opensource" in source:
        return "<think:opensource>", "</think:opensource>"
    for opens, closes in (
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("[THINK]", "[/THINK]"),
        ("<|channel>thought\n", "<channel|>"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        ("<|think|>", "<|end|>"),
        ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ):
        if opens.strip() in source or (opens.startswith("<|channel>") and "<|channel>" in source):
            return opens, closes
    found = _THINK.search(source)
    return (f"<{found[1]}>", f"</{found[1]}>") if found else ("", "")
