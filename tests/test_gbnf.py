"""llama.cpp's grammar language: what it allows after its translation, and what is refused with a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chat_formats import END, tokenizer_of

from pyggml.engine import RequestError, SamplingParams
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
    with pytest.raises(RequestError, match="^grammar: ") as refused:
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
