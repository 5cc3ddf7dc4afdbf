"""What a request wants its answer to look like, in the words of the grammar library (llguidance).

A JSON schema, any JSON object, a regular expression, or a grammar: llama.cpp's GBNF, or the library's own language.
White space in JSON is bounded as in llama.cpp: a space, or a line break and up to 20 of indentation.
Compiles nothing; says where a compile error lies in what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import llguidance

from .errors import RequestError
from .gbnf import GBNFError
from .gbnf_lark import gbnf_to_lark

if TYPE_CHECKING:
    from .sampling_params import SamplingParams

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": r" |\n[ \t]{0,20}",
    "json_allow_general_unicode_escapes": True,
}
ANY_OBJECT = '{"type": "object"}'
ANY_VALUE = {"type": ["object", "array", "string", "number", "boolean", "null"]}
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_MAX_MESSAGE = 400
_NAMED_VALUES = (("format", "Unknown format: (.+)"), ("type", "Invalid type: (.+)"), ("$ref", "Pointer '(.+)'"))


@dataclass(frozen=True)
class Grammar:
    """A grammar for the library, and what it was made from: the parameter's name and its value as sent."""

    text: str
    name: str
    source: str

    @classmethod
    def of(cls, params: SamplingParams) -> Grammar | None:
        """The grammar that sampling parameters ask for. Raises: RequestError."""
        if params.json_schema is not None:
            source = schema_text(params.json_schema)
            return cls(_with_head(f"start: {json_rule(source)}"), "json_schema", source)
        if params.json_object:
            return cls(_with_head(f"start: {json_rule(ANY_OBJECT)}"), "json_object", ANY_OBJECT)
        if params.regex is not None:
            literal = llguidance.regex_to_lark(params.regex.replace("\n", "\\n"), "")
            return cls(_with_head(f"start: /{literal}/"), "regex", params.regex)
        return None if params.grammar is None else cls.from_grammar(params.grammar)

    @classmethod
    def from_grammar(cls, source: str) -> Grammar:
        """A grammar in GBNF or in the library's own language."""
        if not _GBNF_RULE.search(source):
            return cls(_with_head(source), "grammar", source)
        try:
            return cls(_with_head(gbnf_to_lark(source)), "grammar", source)
        except GBNFError as error:
            raise RequestError(f"grammar: {error}") from error


def _with_head(text: str) -> str:
    """A grammar that leaves it to the model how to cut a text into tokens, also where only one text is possible."""
    is_own = text.lstrip().startswith("{") or "%llguidance" in text
    return text if is_own else f'{text}\n%llguidance {{"no_forcing": true}}\n'


def check_schema(name: str, schema: str, *, is_lenient: bool = False) -> None:
    """See that a schema compiles. Raises: RequestError that begins with `name` and says where it does not."""
    grammar = Grammar(_with_head(f"start: {json_rule(schema, is_lenient=is_lenient)}"), "json_schema", schema)
    message = llguidance.LLMatcher.validate_grammar(grammar.text)
    if message and not message.startswith("WARNING"):
        error = compile_error(grammar, message)
        raise RequestError(f"{name}{str(error).removeprefix('json_schema')}")


def check_form(params: SamplingParams) -> None:
    """See, before there is a vocabulary, that what is asked of the text compiles. Raises: RequestError."""
    grammar = Grammar.of(params)
    if grammar is None:
        return
    message = llguidance.LLMatcher.validate_grammar(grammar.text)
    if message and not message.startswith("WARNING") and "no tokenizer" not in message:
        raise compile_error(grammar, message)


def json_rule(schema: str, *, is_lenient: bool = False) -> str:
    """What stands for the JSON texts that a schema, given as JSON text, allows.

    is_lenient: words of the schema that cannot be enforced are passed over. Raises: RequestError.
    """
    value = json.loads(schema)
    if value is False:
        raise RequestError("json_schema is false, which allows nothing; an object is needed")
    options = value.get("x-guidance", {}) if isinstance(value, dict) else {}
    if not isinstance(options, dict):
        raise RequestError("json_schema: x-guidance is no object")
    made = {"x-guidance": JSON_OPTIONS | ({"lenient": True} if is_lenient else {}) | options}
    return f"%json {json.dumps((ANY_VALUE if value in (True, {}) else value) | made, ensure_ascii=False)}"


def schema_text(schema: Mapping[str, Any] | str | bool) -> str:
    """A JSON schema as JSON text. Raises: RequestError."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, (Mapping, bool)):
            raise RequestError(f"json_schema is of type {type(value).__name__}; a JSON schema is an object")
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise RequestError("json_schema is nested too deeply") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"json_schema is not JSON: {error}") from error


def compile_error(grammar: Grammar, message: str) -> RequestError:
    """What the library says about a grammar, with the place in the request that it speaks of."""
    is_schema = grammar.name == "json_schema"
    if is_schema and "does not fetch resources" in message:
        message = "a $ref points out of the schema; only references within it (#/…) work"
        return RequestError(f"json_schema: {message}{_place(grammar.source, [('$ref', lambda v: not _is_local(v))])}")
    message = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", message) if is_schema else message
    message = message.partition("\n   1 |")[0] if is_schema else message
    message = re.sub(r"\n *\d+ \|\s*(%llguidance \{\"no_forcing\": true\})?(?=\n|$)", "", message)
    shown = re.sub(r"\s*\n\s*", "; ", message.strip())
    shown = shown if len(shown) <= _MAX_MESSAGE else shown[: _MAX_MESSAGE - 1] + "…"
    where = ""
    if is_schema:
        keys = re.findall(r'"([^"]+)"', message) if message.startswith("Unimplemented keys") else []
        wanted: list[tuple[str, Any]] = [(key, lambda v: True) for key in keys]
        for key, pattern in _NAMED_VALUES:
            if match := re.match(pattern, message):
                wanted.append((key, partial(_mentions, match[1])))
        where = _place(grammar.source, wanted)
    return RequestError(f"{grammar.name}: {shown}{where}")


def _mentions(text: str, value: Any) -> bool:
    return text in str(value)


def _is_local(reference: Any) -> bool:
    return isinstance(reference, str) and reference.startswith("#")


def _place(source: str, wanted: list[tuple[str, Any]]) -> str:
    for path, key, value in _entries(json.loads(source), "#"):
        if any(key == name and fits(value) for name, fits in wanted):
            return f" (at {path})"
    return ""


def _entries(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            inner = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            yield inner, key, item
            yield from _entries(item, inner)
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield from _entries(item, f"{path}/{k}")
