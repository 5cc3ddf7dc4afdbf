"""llama.cpp's grammar language: what it allows after its translation, and what is refused with a reason."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from chat_formats import END, tokenizer_of

from pyggml.engine import RequestError, SamplingParams
from pyggml.engine.gbnf import Chars, Choice, GBNFError, Node, Repeat, Rule, Sequence, Token, read_gbnf
from pyggml.engine.gbnf_lark import gbnf_to_lark
from pyggml.engine.grammar_compiler import GrammarCompiler

TOKENIZER = tokenizer_of(["<|one|>", "<|two|>"])
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.n_vocab)
SAMPLES = {
    "arithmetic": (["x=1\n", "ab = (1 +2)\nc=3\n"], ["x=\n", "=1\n", "x=1"]),
    "c": (["int main(){int x = 5;if(x<3){foo (x);}return x;}"], ["int main(){", "main(){}"]),
    "chess": (["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O exd4=Q+\n"], ["1. e4 e5", "1. e9 e5\n2. a4 a5\n"]),
    "english": (["Hello, my 2 friends\nok"], ["Łódź", "a  b"]),
    "japanese": (["ひらカ漢", "あ い"], ["abc"]),
    "json": (['{"a": [1, 2.5e3, "x\\n\\u00e9 👍"],\n  "b": {"c": null}}', "{}"], ["[1]", '{"a": 01}', "{a: 1}"]),
    "json_arr": (['[\n{"a": 1},\n{"b": [2, true]}]'], ["[1]", "{}"]),
    "list": (["- one\n- two\n"], ["one\n", "- one"]),
}
CASES = [
    ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "y"]),
    ('root ::= [a-z]* "foo"', ["foo", "xfoo", "foofoo"], ["fo", "foox"]),
    ('root ::= "(" root ")" | [a-z]* "foo"', ["foo", "((xfoo))"], ["(foo", "(foo))"]),
    ('root ::= item+\nitem ::= [a-z]+ ws "\\n" # a comment\nws ::= [ \\n]*', ["a\n", "ab \n\nc\n"], ["a", "\n"]),
    ('root ::= a b?\na ::= "x"{2}\nb ::= "y"{1,3}', ["xx", "xxy", "xxyyy"], ["x", "xxyyyy"]),
    ('root ::= "a"{2,}', ["aa", "aaaa"], ["a"]),
    ('root ::= "x" (\n  "y" | # or\n  "z"\n)', ["xy", "xz"], ["x"]),
    ('root ::= [^a-c\\n-]', ["d", "é", "👍"], ["a", "-", "\n"]),
    ('root ::= [-a] [a-] [\\]\\[]', ["-a]", "a-["], ["b-["]),
    ('root ::= "\\x41\\u00e9\\U0001F44D\\"\\\\\\t"', ['Aé👍"\\\t'], ["A"]),
    ("root ::= . .", ["ab", "\n👍"], ["a", "abc"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= e\ne ::= t ("+" e)?\nt ::= [0-9] | "(" e ")"', ["1", "(1+2)+3"], ["1+", "()"]),
    ('root ::= l\nl ::= l "," [0-9] | [0-9]', ["1", "1,2,3"], ["1,", ","]),
    ('root ::= "a" rest\nrest ::= "b" | "bc" tail?\ntail ::= "(" rest ")"', ["ab", "abc", "abc(b)"], ["a", "abc("]),
    ('root ::= <|one|> [a-z]+ <|two|>', ["<|one|>ab<|two|>"], ["ab<|two|>", "<|one|>ab"]),
    (f'root ::= "a" <[{END + 1}]>', ["a<|one|>"], ["a", "a<|two|>"]),
]


def accepts(grammar: str, text: str) -> bool:
    constraint = COMPILER.constraint(SamplingParams(grammar=grammar))
    assert constraint is not None
    ids = TOKENIZER.encode(text, parse_special=True)
    if ids and not constraint.allows(ids):
        return False
    for id in ids:
        constraint.accept(id)
    mask = constraint.mask()
    assert mask is not None
    return bool(mask[END >> 5] >> (END & 31) & 1)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_grammars_that_come_with_llama_cpp(archive: Path, name: str) -> None:
    grammar = (archive / "grammars" / f"{name}.gbnf").read_text()
    good, bad = SAMPLES[name]
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize("grammar, good, bad", CASES)
def test_a_grammar_allows_what_it_says(grammar: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_the_librarys_own_language_is_taken_as_it_is() -> None:
    assert accepts('start: "a" B+\nB: /[0-9]/', "a12")
    assert accepts('{"grammars": [{"lark_grammar": "start: \\"x\\""}]}', "x")


@pytest.mark.parametrize(
    "grammar, words",
    [
        ("root ::= foo", ["foo", "nowhere defined"]),
        ('start ::= "a"', ["root"]),
        ('root ::= "a" | x\nx ::= x "b"', ["'x'", "end"]),
        ("start: x\nx: x", ["no text"]),
        ('root ::= "a', ["line 1", '"']),
        ('root ::= "a"\nroot2 ::= [a', ["line 2", "]"]),
        ('root ::= ("a"', ["line 1", ")"]),
        ('root ::= "a" )', ["line 1"]),
        ("root ::= [z-a]", ["rises"]),
        ('root ::= "\\q"', ["escape"]),
        ('root ::= "\\ud800"', ["escape"]),
        ('root ::= "a"{3,2}', ["second bound"]),
        ('root ::= "a"{5000}', ["5000", "2000"]),
        ("root ::= !<|one|>", ["<|one|>", "id"]),
        ("root ::= <nothing>", ["nothing"]),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, ["deep"]),
        ("start: nothing", ["nothing"]),
        ("start: /(?=a)/", ["look"]),
        ("start: " + "(" * 9000 + '"a"' + ")" * 9000, ["nested"]),
        ("{}", ["grammar"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(grammar: str, words: list[str]) -> None:
    with pytest.raises(RequestError, match="^grammar") as refused:
        COMPILER.constraint(SamplingParams(grammar=grammar))
    assert [word for word in words if word not in str(refused.value)] == []
    assert len(str(refused.value)) < 500


def test_rules_that_use_one_another_many_times_stay_small() -> None:
    lines = [f"r{k} ::= r{k + 1} r{k + 1}" for k in range(20)]
    grammar = "\n".join(["root ::= r0", *lines, 'r20 ::= "a"'])
    assert len(gbnf_to_lark(grammar)) < 2000


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"{1000000}',
        "start: /((a{100}){100}){100}/",
        "start: start",
        'start: "a"' + ' | "a"' * 10000,
        'start: %json {"type": "array", "items": ' * 3000,
        "start: /(a|b|ab|ba)*c(a|b)*(d|e|f){1,200}/",
    ],
)
def test_hostile_grammars_end_in_time_and_leave_the_process_alive(grammar: str, tmp_path: Path) -> None:
    (tmp_path / "grammar").write_text(grammar)
    tests = Path(__file__).parent
    program = (
        f"import sys; sys.path[:0] = [{str(tests)!r}]\n"
        "from test_gbnf import *\n"
        "try:\n    c = COMPILER.constraint(SamplingParams(grammar=open(sys.argv[1]).read()))\n"
        "    c.mask()\n    c.accept(97)\n    c.mask()\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
        "print('alive')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "grammar")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "alive", done.stderr[-500:]


def random_node(names: list[str], dice: random.Random, depth: int) -> str:
    """A piece of a grammar over the letters a and b."""
    kind = dice.random()
    if depth <= 0 or kind < 0.3:
        return dice.choice(['"a"', '"b"', '"ab"', "[ab]", "[^a]", '"ba"'])
    if kind < 0.45:
        return dice.choice(names)
    parts = [random_node(names, dice, depth - 1) for _ in range(dice.randrange(2, 4))]
    if kind < 0.65:
        return "(" + " | ".join(parts) + ")"
    return f"({parts[0]}){dice.choice(['*', '+', '?', '{1,2}'])}" if kind < 0.8 else " ".join(parts)


Places = dict[tuple[str, int], set[int]]


def ends_of(node: Node, text: str, start: int, known: Places) -> set[int]:
    """Where a node's texts may end that begin at a place, as far as it is known of rules."""
    if isinstance(node, Chars):
        is_there = start < len(text) and any(low <= ord(text[start]) <= high for low, high in node.ranges)
        return {start + 1} if is_there else set()
    if isinstance(node, Rule):
        return known.get((node.name, start), set())
    if isinstance(node, Choice):
        return {end for option in node.options for end in ends_of(option, text, start, known)}
    assert not isinstance(node, Token)
    least, most = (node.least, node.most) if isinstance(node, Repeat) else (0, 0)
    items = node.items if isinstance(node, Sequence) else (node.item,) * (least + len(text) if most is None else most)
    ends, places = set(), {start}
    for n, item in enumerate(items):
        if isinstance(node, Repeat) and n >= least:
            ends |= places
        places = {end for place in places for end in ends_of(item, text, place, known)}
    return ends | places


def is_in(rules: dict[str, Node], text: str) -> bool:
    """Whether a grammar has a text, by trying everything."""
    known: Places = {}
    while True:
        before = {key: len(ends) for key, ends in known.items()}
        for name, node in rules.items():
            for start in range(len(text) + 1):
                known.setdefault((name, start), set()).update(ends_of(node, text, start, known))
        if before == {key: len(ends) for key, ends in known.items()}:
            return len(text) in known["root", 0]


def test_random_grammars_have_the_same_texts_after_translation() -> None:
    dice = random.Random(2)
    words = ["".join(word) for n in range(6) for word in itertools.product("ab", repeat=n)]
    n_compared = 0
    while n_compared < 50:
        names = ["root", "x", "y", "z"][: dice.randrange(1, 5)]
        grammar = "\n".join(f"{name} ::= {random_node(names, dice, 3 if name == 'root' else 2)}" for name in names)
        try:
            rules = read_gbnf(grammar)
        except GBNFError:  # it never ends
            continue
        n_compared += 1
        assert [w for w in words if accepts(grammar, w)] == [w for w in words if is_in(rules, w)], grammar
