#!/usr/bin/env python3
"""Store in tests/golden/splits.json where llama.cpp's pre-tokenizers cut texts, for every `tokenizer.ggml.pre` name.

    python tests/reference/make_splits.py

A cut shows in the ids when every piece is one token: so each text gets a vocabulary of all its byte substrings, with
all their cuts as merges. The file maps a list of names that cut alike to the list of pieces of each text.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gguf import GGUFWriter, TokenType
from llama import Reference
from tiny_vocab import BYTE_CHARS, spelled
from tokens import ask

TARGET = Path(__file__).resolve().parent.parent / "golden" / "splits.json"
TEXTS = [
    "Hello world, it's 12345!",
    "I'LL we'Ve don'T 's",
    "O'Neil's l'eau",
    "'saw l'real 'table",
    "a   b\tc\n\n\n d",
    "x=->(y):\n",
    " \n \n  y  ",
    "\n\r\n\r  z\n",
    "end   ",
    "  \n",
    "1 12 123 1234 1234567",
    "3.14 and 1,000,000",
    "½ ٣٤٥ 中12文",
    "你好，世界。ok",
    "今日はカタカナ",
    "한국어 문장ㄱㄴ",
    "ㄅㄆㄇ中文",
    "e\u0301a\u0308 Ä",
    "हिन्दी है",
    "ภาษาไทย",
    "ÜberÄrger ÉCOLE",
    "camelCaseHTTPServer",
    "iPhone's XMLs'RE",
    "$a_b=\"c\"+'d'",
    "a/b/c//d\n/e",
    "(f)[g]{h}<i>|~^`",
    "!!!??...\n\n",
    "#tag @user -x",
    "👍🏽 ok 😀a",
    "\u00a0x\u3000y\u2028z",
    "ǅ ʰx ªº",
    "Ⅷ ² ①",
    "розовые щёчки",
    "…“q”‘r’—：、〈",
    "<sentinel:12>IMGIMGABZ",
    "        deep",
    "\t\tif x:",
]
LONGEST_BYTES = 30


def vocabulary_file(path: Path, pre: str, text: str) -> list[str]:
    """Write a vocabulary in which every piece of the text is one token; returns the tokens."""
    word = spelled(text.encode())
    parts = {word[i:j] for i in range(len(word)) for j in range(i + 2, len(word) + 1)}
    tokens = [*BYTE_CHARS, *sorted(parts, key=lambda part: (len(part), part))]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([f"{part[:k]} {part[k:]}" for part in tokens[256:] for k in range(1, len(part))])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def questions(folder: Path, names: list[str]) -> Iterator[tuple[Path, str, list[str]]]:
    for name in names:
        for k, text in enumerate(TEXTS):
            path = folder / f"{name}-{k}.gguf"
            yield path, text, vocabulary_file(path, name, text)


def main() -> None:
    assert max(len(text.encode()) for text in TEXTS) <= LONGEST_BYTES, (
        "longer texts need too large vocabularies"
    )
    source = Reference.found().archive / "src" / "llama-vocab.cpp"
    names = sorted(set(re.findall(r'tokenizer_pre == "([^"]+)"', source.read_text())))
    byte_of = {char: byte for byte, char in enumerate(BYTE_CHARS)}
    cuts: dict[str, list[str]] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            asked = list(questions(Path(folder), [name]))
            try:
                answers = ask((path, text) for path, text, _ in asked)
            except subprocess.CalledProcessError as problem:
                print(f"{name}: left out ({problem})")
                continue
        rows = []
        for (_, text, tokens), (_, ids) in zip(asked, answers, strict=True):
            pieces = [bytes(byte_of[char] for char in tokens[i]) for i in ids]
            whole = b"".join(pieces) == text.encode()
            rows.append([piece.decode("utf-8", "backslashreplace") for piece in pieces] if whole else None)
        if all(rows):  # else the family does not spell bytes, and golden vocabularies check it
            cuts.setdefault(json.dumps(rows), []).append(name)
    groups = [{"names": group, "pieces": json.loads(rows)} for rows, group in cuts.items()]
    lines = [json.dumps({"texts": TEXTS}), *(json.dumps(group, separators=(",", ":")) for group in groups)]
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
