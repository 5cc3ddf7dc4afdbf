"""Chat formats under test: the archive's templates, a vocabulary of bytes with a format's marks, answers by parsers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tiny_vocab import BYTE_CHARS

from pyggml.engine import ToolCall
from pyggml.engine.chat_format import ChatFormat, Opening, texts_in
from pyggml.engine.chat_template import ChatTemplate
from pyggml.engine.constraint import Constraint
from pyggml.engine.formats.families import layout_of
from pyggml.engine.formats.parser import ChatParser
from pyggml.engine.formats.tools import joined_calls, tools_of
from pyggml.engine.grammar_compiler import GrammarCompiler
from pyggml.engine.tokenizer import Tokenizer

END = 256
NO_MORE = object()
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "minimum": 0, "maximum": 99, "description": "How many."},
            "unit": {"enum": ["c", "f"], "type": "string", "description": "Of temperature."},
            "options": {"type": "object", "description": "Anything.", "additionalProperties": True},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
}
ADD = {
    "name": "add",
    "description": "The sum of two numbers.",
    "parameters": {
        "type": "object",
        "properties": {key: {"type": "number", "description": "A summand."} for key in ("a", "b")},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": WEATHER}, {"type": "function", "function": ADD}]
# What templates write behind an answer; a model would end there.
ENDS = """
<|im_end|> <|eot_id|> <|eom_id|> <EOS> <|END_OF_TURN_TOKEN|> <end_of_sentence> [e~[
<｜end▁of▁sentence｜> <|end_of_text|>
<turn|> <|tool_response> <|role_end|> <sep> </assistant> <|end_of_msg|> <|return|> <|call|> <SPECIAL_12> <seed:eos>
<|user_end|> <｜hy_eos:opensource｜> <|calls|> <|im_user|> <end_of_turn>
""".split()
_CONTROL = re.compile(r"<\|[^<>|\n]*\|?>|<[a-z_]*\|>|<｜[^<>｜\n]*｜>|\[[A-Z_]+\]")


class Read(NamedTuple):
    """What a parser made of a text."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]


def read(parser: ChatParser, pieces: Iterable[str]) -> Read:
    """The whole of what the pieces give."""
    found = [*map(parser.push, pieces), parser.finish()]
    calls: Sequence[ToolCall] = joined_calls(call for piece in found for call in piece.calls)
    return Read(
        "".join(piece.content for piece in found),
        "".join(piece.reasoning for piece in found),
        tuple((call.name, call.arguments) for call in calls),
    )


def tokenizer_of(marks: Sequence[str]) -> Tokenizer:
    """Bytes, an end, and as control tokens those marks that look like some."""
    control = sorted(set(_CONTROL.findall("\n".join(marks))))
    if "<|tool_calls|>" in control:  # Solar's, in whose company <|end|> ends no answer
        control += ["<|flush|>", "<|calls|>"]
    tokens = [*BYTE_CHARS, "<|im_end|>", *control]
    types = [1] * 256 + [3] * (len(tokens) - 256)
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": END,
            "general.architecture": "llama",
        }
    )


@cache
def format_of(path: Path) -> ChatFormat:
    """The format of a template file, with a vocabulary made for it."""
    source = path.read_text()
    tokenizer = tokenizer_of(texts_in(layout_of(source)))
    template = ChatTemplate(source, bos_token="<BOS>", eos_token="<EOS>", special_texts=tokenizer.special_texts)
    return ChatFormat(template, tokenizer)


@cache
def compiler_of(path: Path) -> GrammarCompiler:
    """What compiles grammars for a template's vocabulary."""
    tokenizer = format_of(path)._tokenizer
    return GrammarCompiler(tokenizer, tokenizer.n_vocab)


def answer_in(format: ChatFormat, prompt: str, whole: str) -> tuple[str, str]:
    """What of a rendered conversation is the prompt, and what the assistant's text, up to its end.

    Where the prompt ends with a mark of reasoning that the conversation does not have, that mark is not counted.
    """
    marks = [mark.strip() for mark in (format.layout.closes, format.layout.opens) if mark]
    while not whole.startswith(prompt):
        shorter = prompt.rstrip()
        for mark in marks:
            if shorter.endswith(mark):
                shorter = shorter[: -len(mark)]
                break
        assert shorter != prompt, f"the conversation does not begin with the prompt: {prompt!r}"
        prompt = shorter
    text = whole[len(prompt) :]
    ends = [at for end in ENDS if (at := text.find(end)) >= 0]
    return prompt, text[: min(ends, default=len(text))]


def random_answer(format: ChatFormat, constraint: Constraint, rng: np.random.Generator, opening: Opening) -> str | None:
    """A text that the masks allow; in free text the format's marks are tried, so that it ends. None if it does not."""
    tokenizer: Tokenizer = format._tokenizer
    marks = [tokenizer.encode(mark, parse_special=True) for mark in texts_in(format.layout) if mark]
    marks += [tokenizer.encode(f"\n{mark}", parse_special=True) for mark in texts_in(format.layout) if mark]
    ids: list[int] = []
    for _ in range(1000):
        mask = constraint.mask()
        assert mask is not None
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: tokenizer.n_vocab])
        assert len(bits), f"nothing is allowed behind {ids}"
        ends = np.isin(bits, list(tokenizer.stop_ids))
        allows_end, bits = bool(ends.any()), bits[~ends]
        if allows_end and (not len(bits) or rng.random() < 0.7):
            return b"".join(tokenizer.token_bytes(id) for id in ids).decode("utf-8", "replace")
        chosen = [int(rng.choice(bits))]
        if len(bits) > 150:  # free text
            chosen = [int(rng.choice(list(b"abc <\"'\\/\n{}[]:,=")))]
            if rng.random() < 0.4:
                fitting = [m for m in marks if (len(m) > 2 or m[0] > END) and constraint.allows(m)]
                chosen = fitting[int(rng.integers(len(fitting)))] if fitting else chosen
        if not constraint.allows(chosen):
            continue
        for id in chosen:
            constraint.accept(id)
            ids.append(id)
    return None


def tools() -> Any:
    """The tools as parsers want them."""
    return tools_of(TOOLS)
