"""Tokenizer on vocabularies made here: keys and defaults, special tokens, segments, errors, bytes."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from gguf import TokenType
from resident import resident_bytes
from token_files import byte_level, sentence_piece

from pyggml.engine.errors import RequestError, UnsupportedTokenizer
from pyggml.engine.pre_tokenizers import PRE_TOKENIZERS, REFUSED
from pyggml.engine.tokenizer import Tokenizer

WORDS = ["Hello", " world", "the", "ing", "\n\n", "é", "user"]
CONTROL = ["<|a|>", "<|a|>b", "<|end|>", "<s>"]
USER_DEFINED = ["<think>", "  ", "    "]


def words_tokenizer(**keys: object) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level(WORDS, control=CONTROL, user_defined=USER_DEFINED, **keys))


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def random_text(rng: random.Random, *, longest: int = 40) -> str:
    ranges = [(0x20, 0x7E), (0, 0x1F), (0xA0, 0x2FF), (0x300, 0x36F), (0x2000, 0x206F), (0x4E00, 0x9FFF)]
    ranges += [(0x1F300, 0x1FAFF), (0xE000, 0xE0FF), (0x10FF00, 0x10FFFF), (0xAC00, 0xD7A3)]
    picked = [rng.choice(ranges) for _ in range(rng.randint(0, longest))]
    return "".join(chr(rng.randint(low, high)) for low, high in picked)


# Keys, defaults, errors


@pytest.mark.parametrize("missing", ["tokens", "merges"])
def test_a_missing_part_is_named(missing: str) -> None:
    metadata = byte_level()
    del metadata[f"tokenizer.ggml.{missing}"]
    with pytest.raises(UnsupportedTokenizer, match=f"tokenizer.ggml.{missing}"):
        Tokenizer.from_gguf(metadata)


def test_sentence_piece_without_scores_is_refused() -> None:
    metadata = sentence_piece(["a"])
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(UnsupportedTokenizer, match="tokenizer.ggml.scores"):
        Tokenizer.from_gguf(metadata)


def test_too_few_token_types_are_refused() -> None:
    metadata = {**byte_level(), "tokenizer.ggml.token_type": [1, 1, 1]}
    with pytest.raises(UnsupportedTokenizer, match="3 entries for 256 tokens"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "whitespace", "test"])
def test_an_unknown_kind_is_refused_by_name(model: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=f"'{model}'.*gpt2"):
        Tokenizer.from_gguf({**byte_level(), "tokenizer.ggml.model": model})


def test_an_unknown_pre_tokenizer_is_refused_with_near_names() -> None:
    with pytest.raises(UnsupportedTokenizer, match="'qwen22'.*qwen2"):
        Tokenizer.from_gguf(byte_level(pre="qwen22"))


@pytest.mark.parametrize("pre", REFUSED)
def test_a_pre_tokenizer_that_needs_own_code_is_refused_with_the_reason(pre: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match="not supported: its|not supported: it"):
        Tokenizer.from_gguf(byte_level(pre=pre))


@pytest.mark.parametrize(
    ("pre", "key", "adds"),
    [
        ("llama-bpe", None, True),
        ("tekken", None, True),
        ("gpt-2", None, False),
        ("qwen2", None, False),
        ("llama-bpe", False, False),
        ("gpt-2", True, True),
    ],
)
def test_bos_is_added_as_the_file_says_or_as_its_family_does(pre: str, key: bool | None, adds: bool) -> None:
    keys = {} if key is None else {"add_bos_token": key}
    tokenizer = words_tokenizer(pre=pre, bos_token_id=np.uint32(259), **keys)
    assert tokenizer.encode("x", add_special=True) == [*([259] if adds else []), ord("x")]
    assert tokenizer.encode("x") == [ord("x")]


def test_eos_is_added_where_the_file_says_so() -> None:
    tokenizer = words_tokenizer(eos_token_id=260, add_eos_token=True)
    assert tokenizer.encode("x", add_special=True) == [ord("x"), 260]


def test_an_id_outside_of_the_vocabulary_counts_as_missing() -> None:
    tokenizer = words_tokenizer(bos_token_id=10**6, add_bos_token=True)
    assert tokenizer.bos_id is None
    assert tokenizer.encode("x", add_special=True) == [ord("x")]


def test_sentence_piece_defaults_are_llamas() -> None:
    tokenizer = Tokenizer.from_gguf(sentence_piece(["\u2581a"]))
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert (tokenizer.add_bos, tokenizer.add_eos, tokenizer.add_space_prefix) == (True, False, True)


@pytest.mark.parametrize("model", ["no_vocab", "none", None])
def test_without_a_vocabulary_ids_work_and_text_does_not(model: str | None) -> None:
    keys = {} if model is None else {"tokenizer.ggml.model": model}
    tokenizer = Tokenizer.from_gguf({**keys, "general.architecture": "llama", "llama.vocab_size": 32})
    assert (tokenizer.kind, tokenizer.n_vocab, tokenizer.stop_ids) == ("none", 32, frozenset())
    assert (tokenizer.decode([1, 31]), tokenizer.token_bytes(5), tokenizer.is_control(5)) == ("", b"", False)
    with pytest.raises(RequestError, match="no vocabulary.*token ids"):
        tokenizer.encode("x")


def test_merges_that_name_no_token_are_left_out() -> None:
    metadata = byte_level(["ab"])
    metadata["tokenizer.ggml.merges"] = ["x <|gone|>", *metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert names(tokenizer, tokenizer.encode("abx")) == ["ab", "x"]


def test_half_a_surrogate_pair_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="surrogate pair at character 2"):
        words_tokenizer().encode("ab\ud83d")


def test_every_pre_tokenizer_builds() -> None:
    for pre, family in PRE_TOKENIZERS.items():
        if family.is_byte_level:
            tokenizer = Tokenizer.from_gguf(byte_level(["Hello"], pre=pre))
            assert tokenizer.decode(tokenizer.encode("Hello 12 é\n")) == "Hello 12 é\n", pre


# Special tokens and segments


@pytest.mark.parametrize(
    ("text", "parsed", "plain"),
    [
        ("<|a|>", ["<|a|>"], list("<|a|>")),
        ("<|a|>b", ["<|a|>b"], list("<|a|>b")),
        ("<|a|>c", ["<|a|>", "c"], list("<|a|>c")),
        ("<<|a|>", ["<", "<|a|>"], list("<<|a|>")),
        ("<|a", ["<", "|", "a"], list("<|a")),
        ("<think>", ["<think>"], ["<think>"]),
        ("x   y", ["x", "  ", " ", "y"], ["x", "  ", " ", "y"]),
        ("x     y", ["x", "    ", " ", "y"], ["x", "    ", " ", "y"]),
        ("<|end|><s>Hello", ["<|end|>", "<s>", "Hello"], [*"<|end|><s>", "Hello"]),
    ],
)
def test_control_tokens_are_parsed_on_request_and_user_defined_ones_always(
    text: str, parsed: list[str], plain: list[str]
) -> None:
    tokenizer = words_tokenizer()
    assert names(tokenizer, tokenizer.encode(text, parse_special=True)) == parsed
    assert names(tokenizer, tokenizer.encode(text)) == plain


def test_an_ordinary_entry_that_looks_special_is_text() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(["</s>"]))
    ids = tokenizer.encode("</s>x", parse_special=True)
    assert names(tokenizer, ids) != [] and "</s>" not in tokenizer.special_texts
    assert not any(tokenizer.is_control(i) for i in ids)


@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "<s>x</s>"])
def test_text_is_never_spelled_into_a_control_token(text: str) -> None:
    pieces = ["<s", "</", "</s", "<u", "<un", "<unk", "s>", "<", "s", ">", "/", "u", "n", "k", "x"]
    tokenizer = Tokenizer.from_gguf(sentence_piece(pieces, add_space_prefix=False))
    ids = tokenizer.encode(text)
    assert not any(tokenizer.is_control(i) for i in ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "cuts",
    [[3], [1, 2, 3, 4, 5], [7], [], [2, 9], [12], [8, 16], list(range(1, 30))],
    ids=lambda cuts: str(len(cuts)),
)
@pytest.mark.parametrize("parse_special", [False, True])
def test_cuts_between_segments_leave_no_trace(cuts: list[int], parse_special: bool) -> None:
    text = "Hello world    the\n\n<|a|>bing é <think>"
    for tokenizer in (
        words_tokenizer(),
        Tokenizer.from_gguf(sentence_piece(["\u2581H", "el", "lo", "o\u2581w"])),
    ):
        bounds = [0, *(cut for cut in cuts if cut < len(text)), len(text)]
        segments = [(text[a:b], parse_special) for a, b in zip(bounds, bounds[1:], strict=False)]
        assert tokenizer.encode_segments(segments) == tokenizer.encode(text, parse_special=parse_special)


def test_a_control_token_counts_only_if_all_of_it_may_be_parsed() -> None:
    tokenizer = words_tokenizer()
    assert names(tokenizer, tokenizer.encode_segments([("<|a", True), ("|>", False)])) == list("<|a|>")
    assert names(tokenizer, tokenizer.encode_segments([("<|a", False), ("|>", True)])) == list("<|a|>")
    assert names(tokenizer, tokenizer.encode_segments([("<|a|>", True), ("b", False)])) == ["<|a|>", "b"]


def test_a_user_defined_token_may_span_segments() -> None:
    tokenizer = words_tokenizer()
    assert names(tokenizer, tokenizer.encode_segments([("<thi", True), ("nk>", False)])) == ["<think>"]


def test_only_the_templates_control_tokens_count() -> None:
    tokenizer = words_tokenizer()
    segments = [("<|a|>user\n", True), ("Hello<|end|>\n<|a|>the", False), ("<|end|>\n", True)]
    ids = tokenizer.encode_segments(segments)
    assert [tokenizer.token_text(i) for i in ids if tokenizer.is_control(i)] == ["<|a|>", "<|end|>"]
    assert tokenizer.decode(ids, skip_special=False) == "".join(text for text, _ in segments)


def test_user_text_may_not_forge_a_token_with_its_neighbours() -> None:
    tokenizer = words_tokenizer()
    ids = tokenizer.encode_segments([("<", True), ("|a|", False), (">", True)])
    assert not any(map(tokenizer.is_control, ids))


def test_phi_3s_control_tokens_swallow_the_white_space_behind_them() -> None:
    metadata = sentence_piece(["\u2581H", "\u2581", "H", "i"], control=["<|user|>", "<|end|>"])
    plain = Tokenizer.from_gguf(metadata)
    phi = Tokenizer.from_gguf({**metadata, "general.name": "Phi-3-mini"})
    text = "<|user|>\n Hi<|end|>\n"
    assert names(phi, phi.encode(text, parse_special=True)) == ["<|user|>", " H", "i", "<|end|>"]
    assert len(plain.encode(text, parse_special=True)) > 4


# Ids, bytes, stop tokens


def test_ids_and_texts_of_tokens() -> None:
    tokenizer = words_tokenizer()
    assert tokenizer.id_of("<|a|>") == tokenizer.encode("<|a|>", parse_special=True)[0]
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.special_texts == set(CONTROL)
    assert tokenizer.user_defined_texts == set(USER_DEFINED)
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("é\n")] == ["é".encode(), b"\n"]
    assert tokenizer.token_bytes(tokenizer.id_of("<|a|>") or 0) == b"<|a|>"
    assert [tokenizer.token_bytes(i) for i in (-1, tokenizer.n_vocab)] == [b"", b""]


def test_unused_tokens_stand_for_nothing_and_byte_tokens_for_their_byte() -> None:
    metadata = sentence_piece(["a"])
    metadata["tokenizer.ggml.tokens"].append("[PAD260]")
    metadata["tokenizer.ggml.token_type"].append(TokenType.UNUSED)
    metadata["tokenizer.ggml.scores"].append(0.0)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.token_bytes(260) == b""
    assert [tokenizer.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize(
    ("control", "user_defined", "words", "stops"),
    [
        (["<|im_start|>", "<|im_end|>", "<|endoftext|>"], [], [], {"<|im_end|>", "<|endoftext|>"}),
        (["<|eot_id|>", "<|eom_id|>", "<|begin_of_text|>"], [], [], {"<|eot_id|>", "<|eom_id|>"}),
        (["<eos>", "<end_of_turn>"], [], [], {"<eos>", "<end_of_turn>"}),
        ([], ["<|im_end|>", "</s>"], [], {"<|im_end|>"}),
        ([], [], ["</s>"], set()),
        (["</s>"], [], [], {"</s>"}),
        (["<|end|>", "<|user|>"], [], [], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], [], [], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], [], [], {"<|flush|>", "<|calls|>"}),
        (["<\uff5cend\u2581of\u2581sentence\uff5c>"], [], [], {"<\uff5cend\u2581of\u2581sentence\uff5c>"}),
    ],
)
def test_stop_tokens_are_found_by_their_texts(
    control: list[str], user_defined: list[str], words: list[str], stops: set[str]
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(words, control=control, user_defined=user_defined))
    assert {tokenizer.token_text(i) for i in tokenizer.stop_ids} == stops


def test_stop_tokens_are_those_that_the_file_names_too() -> None:
    tokenizer = words_tokenizer(eos_token_id=1, eot_token_id=2, eom_token_id=3)
    assert tokenizer.stop_ids == {1, 2, 3, tokenizer.id_of("<|end|>")}


# Properties


def test_any_text_comes_back_from_byte_level_ids() -> None:
    rng = random.Random(1)
    tokenizer = words_tokenizer(pre="llama-bpe")
    for _ in range(400):
        text = random_text(rng)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_any_text_without_the_space_mark_comes_back_from_sentence_piece_ids(prefix: bool) -> None:
    rng = random.Random(2)
    pieces = ["\u2581", "\u2581\u2581", "th", "\u2581th"]
    tokenizer = Tokenizer.from_gguf(sentence_piece(pieces, add_space_prefix=prefix))
    for _ in range(400):
        text = rng.choice(["", " ", "  ", "th"]) + random_text(rng)
        assert tokenizer.decode(tokenizer.encode(text, add_special=True)) == text


def test_threads_share_a_tokenizer_that_is_not_built_yet() -> None:
    tokenizer = words_tokenizer()
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(tokenizer.encode("Hello world"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8 and all(ids == results[0] for ids in results)


@pytest.mark.parametrize("metadata", [byte_level(WORDS), sentence_piece(list("abcdefgh"))], ids=["gpt2", "llama"])
def test_words_without_end_do_not_fill_memory(metadata: dict[str, object]) -> None:
    tokenizer = Tokenizer.from_gguf(metadata)
    rng = random.Random(1)

    def encode(n: int) -> None:
        for _ in range(n):
            text = "".join(rng.choices("abcdefgh", k=200))
            tokenizer.encode_segments([(text, False), ("<s>", True), (text[::-1], False)])

    encode(200)
    before = resident_bytes()
    threads = [threading.Thread(target=encode, args=(1000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resident_bytes() - before < 4 << 20
