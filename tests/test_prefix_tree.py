"""The radix tree against plain lists of who holds what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.engine.prefix_tree import PrefixTree, n_common

SEQUENCE = st.lists(st.integers(0, 2), max_size=9)
HOLDER = st.integers(0, 4)
STEP = st.one_of(
    st.tuples(st.just("hold"), HOLDER, SEQUENCE),
    st.tuples(st.just("drop"), HOLDER, st.just([])),
    st.tuples(st.just("cut"), HOLDER, SEQUENCE),
    st.tuples(st.just("part"), HOLDER, SEQUENCE),
)


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def naive_common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@settings(deadline=None, max_examples=300)
@given(st.lists(STEP, max_size=25), SEQUENCE)
def test_the_tree_tells_what_lists_tell(steps: list[tuple[str, int, list[int]]], asked: list[int]) -> None:
    tree, held = PrefixTree(), dict[int, list[int]]()
    for what, holder, tokens in steps:
        if what == "hold":
            tree.hold(holder, ids(tokens))
            held[holder] = tokens
        elif what == "drop":
            tree.drop(holder)
            held.pop(holder, None)
        elif what == "cut":
            tree.cut(holder, len(tokens))
            held[holder] = held.get(holder, [])[: len(tokens)]
        else:
            tree.part(ids(tokens))
        held = {h: t for h, t in held.items() if t}
        assert {h: tree.ids(h).tolist() for h in held} == held
        assert {h: tree.length(h) for h in range(5)} == {h: len(held.get(h, [])) for h in range(5)}
    assert tree.common(ids(asked)) == {h: naive_common(t, asked) for h, t in held.items()}


@settings(deadline=None)
@given(st.lists(st.tuples(HOLDER, SEQUENCE), max_size=30))
def test_nothing_is_left_when_nobody_holds_anything(steps: list[tuple[int, list[int]]]) -> None:
    tree = PrefixTree()
    for holder, tokens in steps:
        tree.part(ids(tokens))
        tree.hold(holder, ids(tokens))
    for holder in range(5):
        tree.drop(holder)
    assert tree.n_nodes() == 0


@settings(deadline=None)
@given(st.lists(st.tuples(HOLDER, SEQUENCE), max_size=40))
def test_without_partings_there_are_at_most_two_nodes_a_holder(steps: list[tuple[int, list[int]]]) -> None:
    tree = PrefixTree()
    for holder, tokens in steps:
        tree.hold(holder, ids(tokens))
    assert tree.n_nodes() <= 2 * 5


@pytest.mark.parametrize(
    ("prompts", "partings"),
    [
        ([[1, 2, 3, 4], [1, 2, 9], [1, 2, 8]], [0, 1, 2]),  # a shared beginning
        ([[1, 2], [1, 2, 3], [1, 2, 3, 4]], [0, 0, 0]),  # a conversation that grows
        ([[1, 2, 3], [1, 2, 3], [1, 2, 3]], [0, 0, 0]),  # one prompt again and again
        ([[5, 6, 7], [1, 2, 3], [8, 9, 3]], [0, 0, 0]),  # nothing in common
    ],
)
def test_only_shared_beginnings_count_as_partings(prompts: list[list[int]], partings: list[int]) -> None:
    tree, seen = PrefixTree(), []
    for prompt in prompts:  # one slot holds them in turn
        n = tree.common(ids(prompt)).get(0, 0)
        seen.append(tree.part(ids(prompt[:n])) if 0 < n < len(prompt) else 0)
        tree.cut(0, n)
        tree.hold(0, ids(prompt))
    assert seen == partings


@given(SEQUENCE, SEQUENCE)
def test_common_beginnings_as_counted_by_hand(a: list[int], b: list[int]) -> None:
    assert n_common(ids(a), ids(b)) == naive_common(a, b)
