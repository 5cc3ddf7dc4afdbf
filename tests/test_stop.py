"""Stop strings: nothing of them is sent, nothing else is lost, whatever the cuts of the stream."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from token_files import archive_tokenizer

from pyggml.engine.detokenizer import Detokenizer
from pyggml.engine.errors import RequestError
from pyggml.engine.stop import StopMatcher, normalize_stops


def run(stops: Sequence[str], deltas: Sequence[str]) -> tuple[list[str], str | None]:
    """What is sent after each delta and at the end, and the match."""
    matcher = StopMatcher(stops)
    sent = [matcher.push(delta) for delta in deltas]
    return [*sent, matcher.finish()], matcher.matched


@pytest.mark.parametrize(
    ("stops", "deltas", "sent", "matched"),
    [
        (
            ["O P Q"],
            ["A", " B", " C", " O", " P", " Q", " R"],
            ["A", " B", " C", " ", "", "", "", ""],
            "O P Q",
        ),
        (["O P Q"], ["A", " B", " C", " O", " P"], ["A", " B", " C", " ", "", "O P"], None),
        (["\n"], ["a", "?\n"], ["a", "?", ""], "\n"),
        (["b", "ab"], ["x", "a", "b"], ["x", "", "", ""], "ab"),
        (["b", "ab"], ["xab"], ["x", ""], "ab"),
        (["ab"], ["a", "a", "b"], ["", "a", "", ""], "ab"),
        (["\U0001f44d"], ["", "", "\U0001f44d"], ["", "", "", ""], "\U0001f44d"),
        (["ab", "abc"], ["x", "ab", "c"], ["x", "", "", ""], "ab"),
        (["abcd", "bc"], ["abc", "d"], ["", "", ""], "abcd"),
        (["abcd", "bc"], ["abc", "e"], ["", "a", ""], "bc"),
        (["abcd", "bc"], ["abc"], ["", "a"], "bc"),
        (["aab"], ["aaa", "ab"], ["a", "a", ""], "aab"),
        (["END"], ["x EN", "x"], ["x ", "ENx", ""], None),
        (["END"], ["x", "ENDmore"], ["x", "", ""], "END"),
        ([], ["a", "b"], ["a", "b", ""], None),
    ],
    ids="a b c d d-whole i g same-start earlier-longer later-shorter at-end overlap false-start rest none".split(),
)
def test_stop_strings_are_cut_and_the_rest_is_sent(
    stops: list[str], deltas: list[str], sent: list[str], matched: str | None
) -> None:
    assert run(stops, deltas) == (sent, matched)


def test_a_stop_string_may_span_tokens_and_characters(archive: Path) -> None:
    tokenizer = archive_tokenizer(archive, "qwen2")
    detokenizer, matcher = Detokenizer(tokenizer), StopMatcher(["O P Q"])
    sent = [matcher.push(detokenizer.push(i)) for i in (32, 425, 356, 506, 393, 1207, 431)]
    assert ("".join(sent), matcher.matched) == ("A B C ", "O P Q")


def test_an_emoji_in_three_tokens_stops(archive: Path) -> None:
    detokenizer, matcher = Detokenizer(archive_tokenizer(archive, "llama-bpe")), StopMatcher(["\U0001f44d"])
    assert [matcher.push(detokenizer.push(i)) for i in (9468, 239, 235)] == ["", "", ""]
    assert matcher.matched == "\U0001f44d"


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert [matcher.push("a."), matcher.push("b"), matcher.finish(), matcher.push("c")] == ["a", "", "", ""]
    assert matcher.matched == "."


@pytest.mark.parametrize(
    ("value", "stops"),
    [
        (None, ()),
        ([], ()),
        ("x", ("x",)),
        (["x"], ("x",)),
        (["x", "y", "x"], ("x", "y")),
        ([" "], (" ",)),
    ],
)
def test_a_requests_stops_are_none_one_or_many(value: None | str | list[str], stops: tuple[str, ...]) -> None:
    assert normalize_stops(value) == stops


@pytest.mark.parametrize("value", ["", [""], ["x", ""]])
def test_an_empty_stop_string_is_refused(value: str | list[str]) -> None:
    with pytest.raises(RequestError, match="empty"):
        normalize_stops(value)


def test_a_stop_that_is_no_string_is_refused() -> None:
    with pytest.raises(RequestError, match="int"):
        normalize_stops(["x", 3])  # type: ignore[list-item]


def naive(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The text up to the stop string that starts first; of two at one place the shorter."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    return (text[: min(found)[0]], min(found)[2]) if found else (text, None)


def test_the_matcher_finds_what_a_search_in_the_whole_text_finds() -> None:
    rng = random.Random(4)
    n_matched = 0
    for _ in range(5000):
        stops = ["".join(rng.choices("ab\U0001f44d", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
        text = "".join(rng.choices("abc\U0001f44d", k=rng.randint(0, 24)))
        bounds = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(rng.randint(0, 8)))})
        deltas = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        sent, matched = run(stops, deltas)
        assert ("".join(sent), matched) == naive(stops, text), (stops, deltas)
        n_matched += matched is not None
    assert 500 < n_matched < 4900


def test_no_more_is_held_back_than_the_longest_stop_string_needs() -> None:
    rng = random.Random(5)
    for _ in range(500):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 6))) for _ in range(2)]
        matcher, n_sent, n_given = StopMatcher(stops), 0, 0
        for _ in range(20):
            n_sent += len(matcher.push(rng.choice("abc")))
            n_given += 1
            if matcher.matched is None:
                assert n_given - n_sent < max(map(len, stops))
