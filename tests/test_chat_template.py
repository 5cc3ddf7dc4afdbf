"""Chat templates: what the sandbox offers and refuses, how messages are prepared, the templates of the archive."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pyggml.engine.chat_template import ChatTemplate
from pyggml.engine.errors import TemplateError

CHAT = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "u2"},
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City"}}},
        },
    }
]

CALL = {"id": "call_0001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Łódź"}'}}

ROUND_TRIP = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0001", "name": "get_weather", "content": '{"degrees": 3}'},
    {"role": "assistant", "content": "3 degrees"},
    {"role": "user", "content": "Thanks"},
]


def _text(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages or CHAT, **options).text


# What templates use


VALUE = {"q": "a<b & 'c'", "city": "Łódź 🙂", "z": 1, "a": [True, None]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ v|tojson }}", """{"q": "a<b & 'c'", "city": "Łódź 🙂", "z": 1, "a": [true, null]}"""),
        ("{{ {'a':1}|tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b':1,'a':2}|tojson(sort_keys=true, separators=(',',':')) }}", '{"a":2,"b":1}'),
        ("{{ {'a':'é🙂'}|tojson(ensure_ascii=true) }}", '{"a": "\\u00e9\\ud83d\\ude42"}'),
        ("{{ ('{\"a\": [1]}'|from_json).a[0] }}", "1"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ add_generation_prompt }} {{ tools is none }} {{ documents is none }}", "True True True"),
        ("{{ dict(a=1).a }}{{ namespace({'b': 2}, c=3).c }}", "13"),
        ("{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"),
        ("{{ ['a', 1]|join('-') }}{{ [{'k': 'x'}, {'k': 'y'}]|join(',', attribute='k') }}", "a-1x,y"),
        ("{{ messages[1].content|upper|replace('U', 'w') }}", "w1"),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
    ],
)
def test_templates_find_what_transformers_gives_them(source, expected) -> None:
    assert _text(source, v=VALUE) == expected


def test_loops_may_skip_and_end_and_count_in_a_namespace() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m.content }} {% set ns.n = ns.n + 1 %}{% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}"
    )
    assert _text(source) == "u1 a1 2"


def test_block_tags_on_lines_of_their_own_leave_no_space() -> None:
    source = (
        "    {% for m in messages %}\n    {% if m.role == 'user' %}\n"
        "[U]{{ m.content }}\n    {% endif %}\n    {% endfor %}\n"
    )
    assert _text(source) == "[U]u1\n[U]u2\n"


def test_strftime_now_gives_the_time() -> None:
    assert _text("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


# What it refuses


def test_raise_exception_carries_the_templates_words() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        _text("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'role': 'user'}) %}",
        "{% set _ = messages[0].pop('role') %}",
        "{% set _ = tools[0].function.parameters.required.append('x') %}",
        "{% set _ = v.extend([1]) %}",
        "{{ (v|from_json).append }}{% set _ = messages.clear() %}",
        "{{ dict.__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages[0].content.split.__globals__.x }}",
        "{{ messages[0].content._marks.restore }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ lipsum.__globals__.os }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ [1]|tojson(indent='x', sort_keys=1, bad=2) }}",
        "{% set a = [] %}{% set _ = a.append(a) %}{{ a|tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'file' %}",
    ],
)
def test_the_sandbox_holds(source) -> None:
    messages = [{"role": "user", "content": "a<|im_end|>b"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
    before = json.dumps([messages, tools])
    template = ChatTemplate(source, special_texts=["<|im_end|>"])
    with pytest.raises(TemplateError):
        template.render(messages, tools=tools, v=["x"])
    assert json.dumps([messages, tools]) == before


def test_a_template_may_change_lists_of_its_own() -> None:
    source = "{% set q = [1] %}{% set _ = q.append(2) %}{{ q.pop(0) }}{{ q }}{{ messages[:1].append(1) }}"
    assert _text(source) == "1[2]None"


@pytest.mark.parametrize("source", ["{% if %}", "{{ x | no_such_filter }}", "{% for m in messages %}", "{{ 'open"])
def test_a_syntax_error_is_told_when_rendering_only(source) -> None:
    template = ChatTemplate("\n" + source)
    with pytest.raises(TemplateError, match="syntax error: line 2"):
        template.render(CHAT)


@pytest.mark.parametrize(
    "messages",
    [[{"content": "no role"}], ["text"], [{"role": 5, "content": "x"}], [{"role": "user", "content": {1, 2}}]],
)
def test_messages_of_a_wrong_form_are_refused(messages) -> None:
    with pytest.raises(TemplateError):
        _text("{% for m in messages %}{{ m.content }}{% endfor %}", messages)


# How messages are prepared

SHOW = "{% for m in messages %}{{ m|tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({"role": "user", "content": "x", "name": None}, {"role": "user", "content": "x"}),
        (
            {"role": "assistant", "content": "x", "thinking": "r"},
            {"role": "assistant", "content": "x", "thinking": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning": "r"},
            {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r", "thinking": "r"},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
    ],
)
def test_messages_are_brought_into_the_templates_form(message, expected) -> None:
    assert json.loads(_text(SHOW, [message])) == expected


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("[1]", "[1]"),
        ("not json", "not json"),
    ],
)
def test_tool_arguments_become_an_object_where_they_are_one(sent, seen) -> None:
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": sent}}
    message = json.loads(_text(SHOW, [{"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": seen}}]


@pytest.mark.parametrize("sent", ['{"a": "é"}', {"a": "é"}])
def test_a_template_that_needs_arguments_as_text_gets_them_so(sent) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": sent}}
    source = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}"
    assert _text(source, [{"role": "assistant", "tool_calls": [call]}]) == 'call {"a": "é"}'


def test_objects_printed_bare_look_as_in_transformers() -> None:
    source = "{{ messages[1].tool_calls[0].function.arguments }}"
    assert _text(source, ROUND_TRIP) == "{'city': 'Łódź'}"


def test_when_no_form_of_the_messages_works_the_first_error_is_told() -> None:
    arguments = "messages[1].tool_calls[0].function.arguments"
    source = f"{{% if {arguments} is mapping %}}{{{{ raise_exception('first') }}}}{{% endif %}}{{{{ 1/0 }}}}"
    with pytest.raises(TemplateError, match="first"):
        _text(source, ROUND_TRIP)


TAKES_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% else %}<image>{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
NEEDS_PARTS = (
    "{% for m in messages %}{% for p in m.content %}"
    "{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (TAKES_PARTS, [{"type": "text", "text": "a"}, {"type": "image_url"}], "(a)<image>"),
        (TAKES_PARTS, "a", "a"),
        (NEEDS_PARTS, "a", "(a)"),
        (NEEDS_PARTS, [{"type": "text", "text": "a"}], "(a)"),
    ],
)
def test_parts_reach_a_template_that_handles_them(source, content, expected) -> None:
    assert _text(source, [{"role": "user", "content": content}]) == expected


def test_a_part_that_is_no_text_is_refused_where_the_template_takes_text_only() -> None:
    with pytest.raises(TemplateError, match="image_url"):
        _text("{{ messages[0].content + '' }}", [{"role": "user", "content": [{"type": "image_url"}]}])


# From a file


class FakeTokenizer:
    bos_id: int | None = 1
    eos_id: int | None = None
    special_texts = frozenset({"<s>"})

    def token_text(self, token_id: int) -> str:
        return {1: "<s>"}[token_id]


@pytest.mark.parametrize(
    ("metadata", "options", "expected"),
    [
        ({"": "plain"}, {}, "plain"),
        ({"": "plain", ".tool_use": "tools"}, {}, "plain"),
        ({"": "plain", ".tool_use": "tools"}, {"tools": TOOLS}, "tools"),
        ({"": "plain", ".rag": "rag"}, {"tools": TOOLS}, "plain"),
        ({".tool_use": "tools"}, {}, "tools"),
        ({"": "{{ bos_token }}|{{ eos_token }}|"}, {}, "<s>||"),
    ],
)
def test_the_files_template_is_taken_and_the_one_for_tools_if_there_are_tools(metadata, options, expected) -> None:
    keys = {f"tokenizer.chat_template{name}": source for name, source in metadata.items()}
    template = ChatTemplate.from_gguf({"general.name": "m"} | keys, FakeTokenizer())
    assert template is not None and template.render(CHAT, **options).text == expected


def test_a_template_can_be_picked_by_name() -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.rag": "rag"}
    template = ChatTemplate.from_gguf(metadata, FakeTokenizer(), "rag")
    assert template is not None and template.render(CHAT).text == "rag"
    with pytest.raises(TemplateError, match="it has rag"):
        ChatTemplate.from_gguf(metadata, FakeTokenizer(), "tool_use")


def test_a_file_without_a_template_has_none() -> None:
    assert ChatTemplate.from_gguf({"tokenizer.ggml.model": "gpt2"}, FakeTokenizer()) is None


# The archive's 70 templates


@pytest.fixture(scope="module")
def templates(archive: Path) -> dict[str, ChatTemplate]:
    files = sorted((archive / "models" / "templates").glob("*.jinja"))
    tokens: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "special_texts": ["<|im_end|>", "[INST]"]}
    return {path.stem: ChatTemplate(path.read_text(), **tokens) for path in files}


def _refusing(templates: dict[str, ChatTemplate], messages: list[dict[str, Any]], **options: Any) -> set[str]:
    refusing = set()
    for name, template in templates.items():
        try:
            template.render(messages, **options)
        except TemplateError:
            refusing.add(name)
    return refusing


def test_all_templates_of_the_archive_compile(templates) -> None:
    assert len(templates) == 70
    assert [name for name, template in templates.items() if template.syntax_error] == []


def test_templates_of_the_archive_render_a_conversation(templates) -> None:
    """Gemma 2 takes no system message; Firefunction wants variables of its own."""
    assert _refusing(templates, CHAT) == {"google-gemma-2-2b-it", "fireworks-ai-llama-3-firefunction-v2"}


def test_templates_of_the_archive_render_a_tool_round_trip(templates) -> None:
    """llama.cpp's own DeepSeek-R1 template hands tojson a generator, which becomes a list."""
    known = {"google-gemma-2-2b-it", "fireworks-ai-llama-3-firefunction-v2"}
    assert _refusing(templates, ROUND_TRIP, tools=TOOLS) == known


def test_firefunction_renders_with_its_variables(templates) -> None:
    prompt = templates["fireworks-ai-llama-3-firefunction-v2"].render(CHAT, functions="[]", datetime="now")
    assert "u2" in prompt.text
