"""A text that every Python carries: the topics of its built-in help, from the language reference.

Python's documentation, Copyright Python Software Foundation, licensed under the PSF License Version 2. About 465,000
characters with Python 3.11; other versions of Python have other texts, so results name the text's SHA-256.
"""

from __future__ import annotations

import hashlib


def corpus() -> str:
    """The topics in the order of their names."""
    from pydoc_data.topics import topics

    texts: dict[str, str] = dict(topics)
    return "\n\n".join(texts[name].strip() for name in sorted(texts)) + "\n"


def fingerprint(text: str) -> str:
    """The beginning of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
