"""/tokenize, /detokenize, /apply-template and /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess

from pyggml.engine import Model

TEXT = "Hello 👍 <|im_end|> world"


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(smollm2, "--ctx", 256, "--parallel", 2) as server:
        yield server


@pytest.mark.parametrize("parse_special", [True, False])
def test_tokens_are_those_of_the_tokenizer(server: ServerProcess, smollm2: Path, parse_special: bool) -> None:
    reply = server.post("/tokenize", {"content": TEXT, "parse_special": parse_special})
    assert reply.json["tokens"] == Model(smollm2).tokenizer.encode(TEXT, parse_special=parse_special)


def test_pieces_are_texts_or_bytes(server: ServerProcess) -> None:
    pieces = server.post("/tokenize", {"content": TEXT, "with_pieces": True}).json["tokens"]
    data = [p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces]
    assert b"".join(data).decode() == TEXT


def test_detokenize_is_the_way_back(server: ServerProcess) -> None:
    tokens = server.post("/tokenize", {"content": TEXT}).json["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json["content"] == TEXT


def test_the_template_is_applied(server: ServerProcess) -> None:
    reply = server.post("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}).json
    assert reply["prompt"].endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert reply["n_tokens"] == server.chat("Hi", max_tokens=1).json["usage"]["prompt_tokens"]


def test_embeddings_have_length_1_and_tell_texts_apart(server: ServerProcess) -> None:
    reply = server.post("/v1/embeddings", {"input": ["The cat sat.", "A cat was sitting.", "Stock prices fell."]})
    a, b, c = (item["embedding"] for item in reply.json["data"])
    assert sum(x * x for x in a) == pytest.approx(1, abs=1e-4)
    assert sum(x * y for x, y in zip(a, b)) > sum(x * y for x, y in zip(a, c))
    assert reply.json["usage"]["total_tokens"] > 0


def test_embeddings_as_base64_are_the_same_numbers(server: ServerProcess) -> None:
    plain = server.post("/v1/embeddings", {"input": "The cat sat."}).json["data"][0]["embedding"]
    encoded = server.post("/v1/embeddings", {"input": "The cat sat.", "encoding_format": "base64"}).json
    data = base64.b64decode(encoded["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(plain)}f", data)) == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ""}),
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": "x", "dimensions": 8}),
        ("/v1/embeddings", {"input": [[10**9]]}),
        ("/v1/embeddings", {"input": "word " * 300}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/apply-template", {"messages": "x"}),
    ],
)
def test_mistakes_are_told(server: ServerProcess, path: str, body: object) -> None:
    reply = server.post(path, body)
    assert reply.status == 400
    assert reply.json["error"]["message"]


def test_odd_ids_stand_for_no_text(server: ServerProcess) -> None:
    assert server.post("/detokenize", {"tokens": [-1, 10**9]}).json == {"content": ""}
