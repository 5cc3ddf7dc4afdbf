"""Characters that special tokens can't do without, and where around them a special token's text stands.

Knows texts only, no tokenizer. Immutable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator


class SpecialAnchors:
    """One anchor in each special text: its first character that is neither letter, digit, space nor quote.

    A text of letters has its first letter; texts of white space alone are left out, they can't be told from prose.
    """

    def __init__(self, special_texts: Collection[str]) -> None:
        self._texts = frozenset(text for text in special_texts if text.strip())
        self.anchors: set[str] = set()
        # By the anchor and the character behind it: how far before it a text starts and how far it reaches.
        self._reaches: dict[str, set[tuple[int, int]]] = {}
        for text in self._texts:
            at = _anchor_of(text)
            self.anchors.add(text[at])
            self._reaches.setdefault(text[at : at + 2], set()).add((at, len(text) - at))

    def spans(self, text: str, positions: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Where special texts stand that have their anchor at one of the rising positions; spans don't overlap."""
        done = 0
        for position in positions:
            found = [
                (position - before, position + after)
                for key in {text[position : position + 2], text[position]}
                for before, after in self._reaches.get(key, ())
                if before <= position and text[position - before : position + after] in self._texts
            ]
            if found:
                start, end = max(done, min(start for start, _ in found)), max(end for _, end in found)
                if start < end:
                    yield start, end
                    done = end


def _anchor_of(text: str) -> int:
    visible = [at for at, char in enumerate(text) if not char.isspace()]
    return next((at for at in visible if not text[at].isalnum() and text[at] not in "\"'\\"), visible[0])
