"""Detokenizer: characters split over tokens, broken bytes, special tokens, the first space."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from token_files import archive_tokenizer, byte_level, sentence_piece

from pyggml.engine.detokenizer import Detokenizer
from pyggml.engine.tokenizer import Tokenizer

THUMB = "\U0001f44d".encode()
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def bytes_only() -> Tokenizer:
    """A vocabulary whose first 256 ids are the bytes."""
    return Tokenizer.from_gguf(byte_level(control=["<|end|>"], user_defined=["<think>"]))


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@pytest.mark.parametrize(
    ("vocabulary", "ids", "text"),
    [
        ("qwen2", [130474, 129377, 8839, 231, 44022, 136339], "розовые щёчки"),
        ("llama-bpe", [9468, 239, 235], "\U0001f44d"),
        ("llama-bpe", [9468, 239, 101, 102470, 9468, 239, 102, 102470, 9468, 239, 100], FAMILY),
    ],
)
def test_a_character_comes_whole_however_many_tokens_it_takes(
    archive: Path, vocabulary: str, ids: list[int], text: str
) -> None:
    chunks = stream(archive_tokenizer(archive, vocabulary), ids)
    assert "".join(chunks) == text
    assert not any("\ufffd" in chunk for chunk in chunks)


def test_logprobs_get_the_raw_bytes(archive: Path) -> None:
    tokenizer = archive_tokenizer(archive, "llama-bpe")
    assert [list(tokenizer.token_bytes(i)) for i in (9468, 239, 235)] == [[240, 159], [145], [141]]


@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        (THUMB, ["", "", "", "\U0001f44d", ""]),
        (THUMB[:3], ["", "", "", "\ufffd"]),
        (THUMB[:2] + b"a", ["", "", "\ufffda", ""]),
        (THUMB[:2] + THUMB, ["", "", "\ufffd", "", "", "\U0001f44d", ""]),
        (b"\x91a", ["\ufffd", "a", ""]),
        (b"\xff\xfe", ["\ufffd", "\ufffd", ""]),
        ('\u2028"\n'.encode(), ["", "", "\u2028", '"', "\n", ""]),
        (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd", ""]),
        (b"", [""]),
    ],
    ids=["whole", "bad end", "bad middle", "restart", "stray", "never", "json", "surrogate", "empty"],
)
def test_broken_bytes_give_one_replacement_each_and_lose_nothing(data: bytes, chunks: list[str]) -> None:
    tokenizer = bytes_only()
    assert stream(tokenizer, list(data)) == chunks
    assert tokenizer.decode(data) == "".join(chunks) == data.decode("utf-8", "replace")


def test_byte_tokens_of_sentence_piece_join_to_a_character() -> None:
    tokenizer = Tokenizer.from_gguf(sentence_piece(["\u2581"]))
    ids = [tokenizer.id_of(f"<0x{byte:02X}>") or 0 for byte in THUMB]
    assert stream(tokenizer, ids) == ["", "", "", "\U0001f44d", ""]


def test_each_chunk_survives_json() -> None:
    chunks = stream(bytes_only(), list('a"\n\u2028\U0001f44d\\'.encode()))
    assert "".join(json.loads(json.dumps(chunk)) for chunk in chunks) == 'a"\n\u2028\U0001f44d\\'


def test_sequences_do_not_share_their_rest() -> None:
    tokenizer = bytes_only()
    one, two = Detokenizer(tokenizer), Detokenizer(tokenizer)
    assert [one.push(THUMB[0]), two.push(ord("x")), one.push(THUMB[1]), two.push(ord("y"))] == [
        "",
        "x",
        "",
        "y",
    ]
    assert "".join([one.push(THUMB[2]), one.push(THUMB[3])]) == "\U0001f44d"


def test_control_tokens_give_text_only_if_wanted_and_user_defined_ones_always() -> None:
    tokenizer = bytes_only()
    ids = [ord("a"), 256, 257, ord("b")]
    assert stream(tokenizer, ids) == ["a", "", "<think>", "b", ""]
    assert stream(tokenizer, ids, skip_special=False) == ["a", "<|end|>", "<think>", "b", ""]
    assert tokenizer.decode(ids, skip_special=False) == "a<|end|><think>b"


def test_a_hidden_token_within_a_character_does_not_break_it() -> None:
    assert "".join(stream(bytes_only(), [*THUMB[:2], 256, *THUMB[2:]])) == "\U0001f44d"


def test_an_id_without_a_text_gives_none() -> None:
    assert stream(bytes_only(), [ord("a"), 10**6, -1, ord("b")]) == ["a", "", "", "b", ""]


def spaced(**keys: object) -> Tokenizer:
    pieces = ["\u2581Hello", "\u2581world", "\u2581\u2581", "\u2581"]
    return Tokenizer.from_gguf(sentence_piece(pieces, user_defined=["  "], **keys))


@pytest.mark.parametrize(
    ("at_start", "prefix", "tokens", "text"),
    [
        (True, True, ["\u2581Hello", "\u2581world"], "Hello world"),
        (False, True, ["\u2581Hello", "\u2581world"], " Hello world"),
        (True, False, ["\u2581Hello", "\u2581world"], " Hello world"),
        (True, True, ["<s>", "\u2581Hello", "\u2581world"], "Hello world"),
        (True, True, ["\u2581", "\u2581Hello"], " Hello"),
        (True, True, ["\u2581\u2581", "\u2581Hello"], "  Hello"),
        (True, True, ["<0x0A>", "\u2581Hello"], "\n Hello"),
        (True, True, ["  ", "\u2581Hello"], "   Hello"),
        (True, True, [], ""),
    ],
)
def test_only_the_first_space_of_a_whole_text_is_dropped(
    at_start: bool, prefix: bool, tokens: list[str], text: str
) -> None:
    tokenizer = spaced(add_space_prefix=prefix)
    ids = [tokenizer.id_of(token) or 0 for token in tokens]
    assert "".join(stream(tokenizer, ids, at_start=at_start)) == text


def test_a_stream_joined_is_the_text_of_all_its_ids() -> None:
    rng = random.Random(3)
    for tokenizer in (bytes_only(), spaced()):
        for _ in range(300):
            ids = [rng.randrange(tokenizer.n_vocab + 3) for _ in range(rng.randint(0, 30))]
            joined = "".join(stream(tokenizer, ids, at_start=True))
            assert joined == tokenizer.decode(ids)
            shown = [i for i in ids if not tokenizer.is_control(i)]
            whole = b"".join(map(tokenizer.token_bytes, shown)).decode("utf-8", "replace")
            assert joined in (whole, whole.removeprefix(" "))
