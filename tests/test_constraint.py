"""Constrained answers: schemas, regular expressions, grammars, where they begin, and what they leave alone.

Verdicts come from a matcher over a vocabulary of bytes; whole answers from models with forced or flat output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from forced import write_chain, write_forced
from tiny_vocab import IM_END, vocabulary

from pyggml import GGUF
from pyggml.engine import LLM, FinishReason, GenerationError, Model, RequestError, SamplingParams
from pyggml.engine.constraint import Constraint, Trigger, Watch
from pyggml.engine.grammar_compiler import GrammarCompiler
from pyggml.engine.tokenizer import Tokenizer

OPEN: dict[str, Any] = {"device": "cpu", "threads": 1, "ctx": 512}
ROW = {
    "type": "object",
    "properties": {"who": {"$ref": "#/$defs/Who"}, "n": {"type": "integer"}},
    "required": ["who", "n"],
    "additionalProperties": False,
}
WHO = {"enum": ["ann", "bob"]}
ROWS = {"type": "array", "items": {"$ref": "#/$defs/Row"}, "minItems": 2, "maxItems": 2}
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v", "kids"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c d"]}, "maxItems": 3},
        "mail": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{2,8}$"}]},
    },
    "required": ["name", "age", "tags", "mail"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that likes all tokens alike."""
    return write_chain(tmp_path_factory.mktemp("flat") / "flat.gguf", {}, scale=0)


@pytest.fixture(scope="module")
def compiler(plain_model: Path) -> GrammarCompiler:
    model = Model(plain_model)
    return GrammarCompiler(model.tokenizer, model.hparams.n_vocab)


def allows(mask: np.ndarray | None, token: int) -> bool:
    return mask is None or bool(mask[token >> 5] >> (token & 31) & 1)


def accepts(compiler: GrammarCompiler, text: str, **params: Any) -> bool:
    """Whether the grammar lets these bytes through and the answer end there."""
    constraint = compiler.constraint(SamplingParams(**params))
    assert constraint is not None
    for byte in text.encode():
        if not allows(constraint.mask(), byte):
            return False
        constraint.accept(byte)
    return allows(constraint.mask(), IM_END)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    "text, fits",
    [
        ('[{"who":"ann","n":1},{"who":"bob","n":-2}]', True),
        ('[{"who": "ann", "n": 1}, {"who": "bob", "n": -2}]', True),
        ('[{"who":"ann","n":1}]', False),
        ('[{"who":"ann","n":1},{"who":"ann","n":1},{"who":"ann","n":1}]', False),
        ('[{"who":"carl","n":1},{"who":"bob","n":-2}]', False),
        ('[{"who":{},"n":1},{"who":"bob","n":-2}]', False),
        ('[{"who":"ann","n":1,"x":1},{"who":"bob","n":-2}]', False),
        ('[{"who":"ann","n":1.5},{"who":"bob","n":-2}]', False),
        ('[{"who":"ann","n":01},{"who":"bob","n":-2}]', False),
    ],
)
def test_references_mean_what_they_name_in_any_order(
    compiler: GrammarCompiler, text: str, fits: bool, is_reversed: bool
) -> None:
    definitions = [("Row", ROW), ("Who", WHO)]
    schema = ROWS | {"$defs": dict(reversed(definitions) if is_reversed else definitions)}
    assert accepts(compiler, text, json_schema=schema) is fits


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        (TREE, ['{"v":1,"kids":[]}', '{"v":1,"kids":[{"v":2,"kids":[{"v":3,"kids":[]}]}]}'], ['{"v":1,"kids":[1]}']),
        ({"enum": [1, "1", None, True]}, ["1", '"1"', "null", "true"], ["2", "false", '"true"']),
        ({"const": {"a": [1]}}, ['{"a":[1]}', '{"a": [1]}'], ['{"a":[2]}', "{}"]),
        (
            {"type": "object", "properties": {'a"b': {"const": 1}}, "required": ['a"b'], "additionalProperties": False},
            ['{"a\\"b":1}'],
            ['{"ab":1}', "{}"],
        ),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}, ["true", "false"], ["1"]),
        ({"type": "string"}, ['"é👍"', '"\\u00e9"', '"\\n"'], ['"\n"', "'a'"]),
        ({}, ["1", "[]", '{"a": [null]}', '"x"'], ["x"]),
        (True, ["1", "[]"], ["x"]),
        (json.dumps({"type": "boolean"}), ["true"], ["1"]),
    ],
)
def test_a_schema_allows_what_it_says(compiler: GrammarCompiler, schema: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(compiler, text, json_schema=schema)] == []
    assert [text for text in bad if accepts(compiler, text, json_schema=schema)] == []


def test_json_object_allows_objects_only(compiler: GrammarCompiler) -> None:
    assert accepts(compiler, '{"a": [1, {"b": null}]}', json_object=True)
    assert not accepts(compiler, "[1]", json_object=True)


def test_white_space_in_json_is_bounded(compiler: GrammarCompiler) -> None:
    assert accepts(compiler, '{\n  "a": 1}', json_object=True)
    assert not accepts(compiler, '{\n\n"a": 1}', json_object=True)
    assert not accepts(compiler, '{"a":  1}', json_object=True)
    assert not accepts(compiler, '{\n' + " " * 21 + '"a": 1}', json_object=True)


@pytest.mark.parametrize(
    "schema, words",
    [
        ({"properties": {"a": {"if": {}}}}, ["if", "#/properties/a/if"]),
        ({"properties": {"a": {"not": {}}}}, ["not", "#/properties/a/not"]),
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"items": {"$ref": "http://127.0.0.1:9/x.json"}}, ["$ref", "#/items/$ref", "within it"]),
        ({"items": {"$ref": "#/$defs/none"}}, ["/$defs/none", "#/items/$ref"]),
        ({"items": {"format": "nonsense", "type": "string"}}, ["nonsense", "#/items/format"]),
        ({"type": "strin"}, ["strin"]),
        ({"type": "integer", "minimum": 3, "maximum": 1}, ["minimum"]),
        ({"type": "string", "pattern": "(?=a)b"}, ["look"]),
        (False, ["false"]),
        (3, ["int"]),
        ("{", ["JSON"]),
        ({"a": float("nan")}, ["JSON"]),
        ({"a": object()}, ["JSON"]),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_by_name_and_place(
    compiler: GrammarCompiler, schema: Any, words: list[str]
) -> None:
    with pytest.raises(RequestError, match="json_schema") as refused:
        compiler.constraint(SamplingParams(json_schema=schema))
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_schema_nested_without_end_is_refused(compiler: GrammarCompiler) -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="json_schema"):
        compiler.constraint(SamplingParams(json_schema=schema))
    with pytest.raises(RequestError, match="json_schema"):
        compiler.constraint(SamplingParams(json_schema='{"items":' * 5000))


@pytest.mark.parametrize(
    "params",
    [
        {"json_object": True, "regex": "a"},
        {"json_schema": {}, "grammar": 'root ::= "a"'},
        {"json_object": 1},
        {"regex": 5},
        {"grammar": " "},
        {"trigger": Trigger(("<call>",))},
    ],
)
def test_forms_that_contradict_each_other_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        SamplingParams(**params)


def test_a_regular_expression_is_the_whole_answer(compiler: GrammarCompiler) -> None:
    regex = r"[a-z]+-\d{2,3}(\.jpg)?"
    assert [t for t in ("ab-12", "ab-123.jpg", "x-00") if not accepts(compiler, t, regex=regex)] == []
    assert [t for t in ("ab-1", "-12", "ab-12.jp", "ab-12 ", "") if accepts(compiler, t, regex=regex)] == []
    with pytest.raises(RequestError, match="regex.*look"):
        compiler.constraint(SamplingParams(regex="a(?=b)"))


def test_the_same_grammar_is_compiled_once(plain_model: Path) -> None:
    model = Model(plain_model)
    compiler = GrammarCompiler(model.tokenizer, model.hparams.n_vocab)
    constraints = [compiler.constraint(SamplingParams(json_schema=PERSON)) for _ in range(3)]
    assert compiler.n_compiled == 1
    assert constraints[0] is not None and constraints[1] is not None
    constraints[0].accept(ord("{"))  # what one answer does is not seen by another
    assert not allows(constraints[1].mask(), ord('"'))


def test_a_mask_that_was_prepared_is_the_one_that_counts(compiler: GrammarCompiler) -> None:
    prepared, plain = (compiler.constraint(SamplingParams(regex="ab?c")) for _ in range(2))
    assert prepared is not None and plain is not None
    for byte in b"abc":
        prepared.prepare()
        first, second = prepared.mask(), plain.mask()
        assert first is not None and second is not None
        np.testing.assert_array_equal(first, second)
        prepared.accept(byte)
        plain.accept(byte)


def test_a_vocabulary_without_texts_is_refused() -> None:
    tokenizer = Tokenizer.from_gguf({"tokenizer.ggml.model": "no_vocab", "general.architecture": "llama"})
    with pytest.raises(RequestError, match="vocabulary"):
        GrammarCompiler(tokenizer, 100).constraint(SamplingParams(json_object=True))


def random_answer(tokenizer: Tokenizer, constraint: Constraint, rng: np.random.Generator, n_max: int) -> str | None:
    """A text of random tokens that the masks allow, or None if it did not end."""
    data = b""
    for _ in range(n_max):
        mask = constraint.mask()
        assert mask is not None
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: tokenizer.n_vocab]
        token = int(rng.choice(np.flatnonzero(bits)))
        constraint.accept(token)
        if token in tokenizer.stop_ids:
            return data.decode()
        data += tokenizer.token_bytes(token)
    return None


@pytest.mark.parametrize("schema", [PERSON, ROWS | {"$defs": {"Row": ROW, "Who": WHO}}], ids=["person", "rows"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_random_tokens_under_the_mask_always_validate(
    name: str, schema: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model = Model(request.getfixturevalue(name))
    compiler = GrammarCompiler(model.tokenizer, model.hparams.n_vocab)
    rng = np.random.default_rng(7)
    texts = []
    for _ in range(24):
        constraint = compiler.constraint(SamplingParams(json_schema=schema))
        assert constraint is not None
        texts.append(random_answer(model.tokenizer, constraint, rng, 300))
    finished = [json.loads(text) for text in texts if text is not None]
    assert len(finished) >= 16
    for value in finished:
        jsonschema.validate(value, schema)
    model.close()


@pytest.mark.parametrize("name", "llama-spm phi-3 baichuan llama-bpe qwen2 gemma-4 deepseek-llm falcon".split())
def test_every_kind_of_vocabulary_can_be_constrained(name: str, archive: Path) -> None:
    with GGUF(archive / "models" / f"ggml-vocab-{name}.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
        compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
        rng = np.random.default_rng(3)
        for _ in range(5):
            constraint = compiler.constraint(SamplingParams(json_schema=PERSON))
            assert constraint is not None
            text = random_answer(tokenizer, constraint, rng, 300)
            if text is not None:
                jsonschema.validate(json.loads(text), PERSON)


@pytest.fixture(scope="module")
def flat(plain_model: Path) -> Iterator[LLM]:
    with LLM(plain_model, **OPEN | {"ctx": 2048}) as llm:
        yield llm


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 1, "top_k": 5},
        {"temperature": 1, "top_k": 0, "top_p": 0.9},
        {"temperature": 0, "repeat_penalty": 1.3, "presence_penalty": 1, "frequency_penalty": 0.5},
        {"temperature": 1, "logprobs": 5},
        {"temperature": 0, "logit_bias": {ord("9"): 3}},
    ],
)
def test_answers_validate_whatever_the_sampling(flat: LLM, params: dict[str, Any]) -> None:
    answers = flat.generate(["a", "b"], json_schema=PERSON, max_tokens=1500, seed=5, **params)
    finished = [a for a in answers if a.finish_reason is FinishReason.STOP]
    assert finished
    for answer in finished:
        jsonschema.validate(json.loads(answer), PERSON)


def test_logprobs_of_a_constrained_answer_are_the_models_own(flat: LLM) -> None:
    answer = flat.generate("a", regex="a", temperature=0, logprobs=5)
    assert answer == "a" and len(answer.logprobs) == 2
    assert all(abs(entry.logprob + np.log(512)) < 1e-4 for entry in answer.logprobs)


def test_neighbours_without_a_grammar_are_not_touched(tmp_path: Path) -> None:
    model = write_forced(tmp_path / "m.gguf", "Hello, world!").path
    with LLM(model, **OPEN, parallel=2) as llm:
        constrained = llm.generate(["x"], regex="[0-9]{5}", temperature=0, stream=True)
        free = llm.generate("x", temperature=0)
        digits = "".join(delta.text for delta in constrained)
    assert free == "Hello, world!"
    assert re.fullmatch("[0-9]{5}", digits)


def test_a_model_that_prefers_newlines_still_ends_its_json(tmp_path: Path) -> None:
    vocab = vocabulary(512)
    newline = vocab.id_of("\n")
    model = write_chain(tmp_path / "m.gguf", {newline: newline}, default=newline, vocab=vocab)
    with LLM(model, **OPEN) as llm:
        answer = llm.generate(
            "x", json_object=True, temperature=0, max_tokens=200, logit_bias={ord('"'): 1, ord("}"): 2, ord(":"): 1}
        )
    assert answer.finish_reason is FinishReason.STOP
    json.loads(answer)
    assert "\n" in answer


def test_a_cut_answer_says_length(flat: LLM) -> None:
    answer = flat.generate("a", json_schema={"type": "string", "minLength": 50}, max_tokens=10, temperature=0)
    assert answer.finish_reason is FinishReason.LENGTH and answer.startswith('"')


def test_with_ignore_eos_an_answer_ends_where_its_grammar_does(flat: LLM) -> None:
    answer = flat.generate("a", regex="abc", ignore_eos=True, temperature=0, max_tokens=50)
    assert answer == "abc" and answer.finish_reason is FinishReason.STOP


def test_a_refused_grammar_leaves_the_engine_free(flat: LLM) -> None:
    with pytest.raises(RequestError, match="grammar"):
        flat.generate("a", grammar="root ::= nothing")
    assert flat.generate("a", regex="ok", temperature=0) == "ok"


def test_a_grammar_with_bans_on_all_it_allows_is_an_error_of_that_answer(flat: LLM) -> None:
    with pytest.raises(GenerationError, match="no token is left"):
        flat.generate("a", regex="[0-9]", logit_bias={ord(d): -np.inf for d in "0123456789"}, temperature=0)


# Triggers


def pushed(watch: Watch, pieces: list[bytes]) -> tuple[int, list[int]] | None:
    """The token at which the watch ends, and the tokens it gives; tokens are numbered from 0."""
    for k, piece in enumerate(pieces):
        found = watch.push(k, piece)
        if found is not None:
            return k, found
    return None


def cuts(text: bytes) -> Iterator[list[bytes]]:
    for first in range(1, len(text)):
        for second in range(first + 1, len(text) + 1):
            yield [piece for piece in (text[:first], text[first:second], text[second:]) if piece]


def test_a_trigger_gives_the_token_in_which_it_begins_however_it_is_cut() -> None:
    text = b"some <ca<call>{"
    for pieces in cuts(text):
        found = pushed(Watch(Trigger(("<call>",))), pieces)
        assert found is not None
        starts = np.cumsum([0, *map(len, pieces)])
        assert found[1][0] == max(k for k in range(len(pieces)) if starts[k] <= 8), pieces
        assert found[1] == list(range(found[1][0], found[0] + 1))


def test_a_trigger_within_a_stretch_that_is_left_out_does_not_count() -> None:
    text = b"<think>a <call> b</think> c <call>"
    for pieces in cuts(text):
        found = pushed(Watch(Trigger(("<call>",), "<think>", "</think>")), pieces)
        assert found is not None and found[0] == len(pieces) - 1
    assert pushed(Watch(Trigger(("<call>",), "<think>", "</think>", is_open=True)), [b"<call>", b"</think>"]) is None


@pytest.mark.parametrize("text, wakes", [(b" \n{x", True), (b"<think>no</think> {x", True), (b"so {x", False)])
def test_a_trigger_that_must_come_first_does(text: bytes, wakes: bool) -> None:
    for pieces in cuts(text):
        trigger = Trigger(("{x",), "<think>", "</think>", is_first=True)
        assert (pushed(Watch(trigger), pieces) is not None) is wakes, pieces


def test_a_sleeping_grammar_begins_at_its_trigger(tmp_path: Path) -> None:
    chain = write_forced(tmp_path / "m.gguf", ["Well", ": ", "<c", "all>", "x", "12", "y"])
    with LLM(chain.path, **OPEN) as llm:
        options: dict[str, Any] = {"temperature": 0, "trigger": Trigger(("<call>",)), "max_tokens": 20}
        free = llm.generate("q", grammar='root ::= "<call>" [xyz0-9]+', **options)
        forced = llm.generate("q", grammar='root ::= "<call>" [a-c]+ "!"', **options)
    assert free == "Well: <call>x12y"
    assert re.fullmatch(r"Well: <call>[a-c]+!?", forced)


def test_tokens_that_end_an_answer_cannot_be_inside_a_string(compiler: GrammarCompiler) -> None:
    constraint = compiler.constraint(SamplingParams(json_schema={"type": "string"}))
    assert constraint is not None
    constraint.accept(ord('"'))
    mask = constraint.mask()
    assert allows(mask, ord("a")) and not allows(mask, IM_END) and not allows(mask, IM_END - 1)


