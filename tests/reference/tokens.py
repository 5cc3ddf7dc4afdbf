"""llama.cpp as the judge of tokenizers: compiles `llama_tokens.cpp` and asks it for many texts at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from llama import Reference, places

SOURCE = Path(__file__).with_name("llama_tokens.cpp")
Ids = list[int]


@cache
def _program() -> Path:
    reference = Reference.found()
    stamp = hashlib.sha256(SOURCE.read_bytes() + str(reference.bin).encode()).hexdigest()[:16]
    target = places.cache_folder() / "reference" / f"llama_tokens-{stamp}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        includes = [f"-I{reference.archive / part / 'include'}" for part in ("", "ggml")]
        libraries = [f"-L{reference.bin}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{reference.bin}"]
        compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1"]
        subprocess.run([*compiler, str(SOURCE), *includes, *libraries, "-o", str(partial)], check=True)
        os.replace(partial, target)
    return target


def ask(questions: Iterable[tuple[Path, str]]) -> list[tuple[Ids, Ids]]:
    """Ids of each text under the vocabulary of a GGUF file: control tokens parsed, and as text.

    Raises: places.Missing without the reference.
    """
    asked = [(path, text.encode()) for path, text in questions]
    stream = b"".join(f"{path} {len(text)}\n".encode() + text for path, text in asked)
    output = subprocess.run([str(_program())], input=stream, stdout=subprocess.PIPE, check=True).stdout
    answers = [[int(word) for word in line.split()] for line in output.decode().splitlines()]
    return list(zip(answers[0::2], answers[1::2], strict=True))
