#!/usr/bin/env python3
"""Store llama.cpp's ids of many texts under the two real vocabularies in tests/golden/tokens.json.

    python tests/reference/make_tokens.py

One line per text: the text, then for each model the ids with control tokens parsed and, where they differ, as text.
"""

from __future__ import annotations

import json
from pathlib import Path

from llama import places
from token_texts import ALL_WRITTEN, generated
from tokens import ask

TARGET = Path(__file__).resolve().parent.parent / "golden" / "tokens.json"


def main() -> None:
    texts = list(dict.fromkeys([*ALL_WRITTEN, *generated(130, seed=7)]))
    models = {"smollm2": places.smollm2_file(), "gemma3": places.gemma3_file()}
    answers = {name: ask((path, text) for text in texts) for name, path in models.items()}
    lines = []
    for k, text in enumerate(texts):
        row: list[object] = [text]
        for name in models:
            parsed, plain = answers[name][k]
            row.append([parsed] if parsed == plain else [parsed, plain])
        lines.append(json.dumps(row, separators=(",", ":")))
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
